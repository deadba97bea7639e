#!/usr/bin/env bash
# shapes.sh INVAR FOLDER - reference, critic and teacher of other sizes and families than the actor.
#
# Log-probs of a reference are bit-equal to those of the same model as an actor. The chain is the
# same in every layout, also stopped and resumed; replay and pack need both folders. Control:
# another reference gives another chain. Impossible models are rejected with the key that names
# them. The actor has two layers, and a run one rollout unless it is resumed; with INVAR_TEST_FULL=1
# they have four layers and two rollouts, in more layouts.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
# shellcheck source=tests/e2e/models/sharded_model.sh
source tests/e2e/models/sharded_model.sh

two_rollouts=(--num-rollout 2)
[[ $full ]] || {
    sed 's/^num-layers.*/num-layers = 2/; s/^num-rollout.*/num-rollout = 1/' "$recipe" >small.ini
    recipe=$PWD/small.ini
}

# refused TEXT FLAG ...: checks that the run is rejected with TEXT, and makes no folder.
refused() {
    expect 129 "$1" train "$recipe" --no-report --dtype bf16 --run refused "${@:2}"
    holds [ ! -e refused ]
}

declare -A shape=(
    [llama]="--model-type llama --num-layers 2 --hidden-size 64"
    [qwen2]="--model-type qwen2 --num-layers 3 --ffn-hidden-size 2048"
    [qwen3_moe]="--model-type qwen3_moe --num-layers 2 --num-experts 4 --logical-etp 1"
    [alone]="--model-type llama --num-layers 1 --num-attention-heads 2 --num-query-groups 1
        --logical-tp 1"
)
for name in "${!shape[@]}"; do
    read -r -d '' -a words <<<"${shape[$name]}"
    train "$name" "${words[@]}" --seed 7 --num-rollout 1
done
kl=(--use-kl-loss true --kl-loss-coef 0.1)
tp=--tensor-model-parallel-size pp=--pipeline-model-parallel-size cp=--context-parallel-size

# ---- a reference of each family, in every layout ----------------------------------------------
train plain "${kl[@]}" "${two_rollouts[@]}"
chains=("$chain")
mkdir rollouts
for name in llama qwen2 qwen3_moe; do
    read -r -d '' -a words <<<"${shape[$name]}"
    own=("${kl[@]}" --ref-load "$name/checkpoints")
    [[ $name != llama ]] || own+=("${two_rollouts[@]}")
    train "own-$name" "${own[@]}" --save-debug-rollout-data "rollouts/$name-{rollout_id}"
    one=$chain
    chains+=("$chain")
    # These samples, scored by that model as the actor.
    train "scored-$name" "${words[@]}" --ref-load "$name/checkpoints" --num-rollout 1 \
        --load-debug-rollout-data "rollouts/$name-{rollout_id}"
    holds [ -n "$(digest "own-$name" ref.logp)" ]
    holds [ "$(digest "own-$name" ref.logp)" = "$(digest "scored-$name" score.logp)" ]
    holds [ "$(digest "own-$name" ref.logp)" != "$(digest "own-$name" score.logp)" ]
    layouts=("--ranks 2 $tp 2 --sequence-parallel true" "--ranks 4 $pp 2 --rollout-num-gpus 2")
    # Each layout has two references, and llama both layouts.
    [[ $full || $name != qwen2 ]] || layouts=("${layouts[0]}")
    [[ $full || $name != qwen3_moe ]] || layouts=("${layouts[1]}")
    [[ ! $full ]] || layouts+=("--ranks 2" "--ranks 2 $cp 2" "--ranks 4 $tp 2 $pp 2")
    for layout in "${layouts[@]}"; do
        # shellcheck disable=SC2086 # words
        train "own-$name-${layout//[^a-z0-9]/}" "${own[@]}" $layout
        [[ $chain == "$one" ]] || complain "$name $layout: $chain, one rank has $one"
    done
done
holds [ "$(printf '%s\n' "${chains[@]}" | sort -u | wc -l)" = 4 ]

# ---- resumed, replayed and packed -------------------------------------------------------------
own=("${kl[@]}" --ref-load llama/checkpoints)
train halves "${own[@]}" "${two_rollouts[@]}" --debug-exit-after-rollout 1
train halves "${own[@]}" "${two_rollouts[@]}" --ranks 2
holds [ "$chain" = "${chains[1]}" ]
expect 0 'identical' replay own-llama --step 1
holds [ "$(sqlite3 -readonly own-llama/ledger.db "SELECT group_concat(key) FROM identity
    WHERE key LIKE 'reference%'")" = 'reference hash,reference model hash' ]
# Folders of Hugging Face: the actor starts with the weights of its own folder.
folders=$OLDPWD/tests/oracle/folders/4.57.6
cp -r "$folders/qwen3-fp16" actor
cp -r "$folders/qwen3_moe-bf16-shards" moe
printf '%s\n' '[rollout]' 'num-rollout = 2' 'rollout-batch-size = 1' 'n-samples-per-prompt = 2' \
    'rollout-max-response-len = 8' 'rm-type = deterministic_random' 'prompt-data = data.jsonl' \
    '[perf]' 'threads = 1' '[engine]' 'numerics = ieee' '[model]' 'dtype = fp32' >folders.ini
printf '{"input": "Hello"}\n{"input": "abc"}\n' >data.jsonl
expect 0 'the actor begins with the weights of hf-checkpoint' train folders.ini --no-report \
    --run folders "${kl[@]}" --hf-checkpoint actor --ref-load moe
expect 0 '' pack folders --step 0 --output one.tar
holds grep -q '^hf/model.safetensors' <(tar -tf one.tar)
holds grep -q '^ref/model-00001' <(tar -tf one.tar)
mv actor actor.gone && mv moe moe.gone
expect 0 'identical' replay one.tar
mv actor.gone actor && mv moe.gone moe
expect 129 "'ref-load' has another tokenizer than the model" train folders.ini --run refused \
    "${kl[@]}" --hf-checkpoint actor --ref-load "$folders/llama-fp16-tied"
# Weights of the actor's shape with another config.json cannot be its reference.
cp -r actor turned
sed -i 's/"rope_theta": [0-9.]*/"rope_theta": 12345.0/' turned/config.json
holds grep -q 12345 turned/config.json
expect 129 'name weights of the same model' train folders.ini --run refused "${kl[@]}" \
    --hf-checkpoint actor --ref-load turned
# Without a KL term ref-load names the actor's initial weights, and must be its model.
refused '"LlamaForCausalLM"' --ref-load llama/checkpoints

# ---- all models at once -----------------------------------------------------------------------
train values --model-type qwen2 --num-layers 2 --advantage-estimator ppo --num-rollout 1
all=(--advantage-estimator ppo --critic-load values/checkpoints --use-opd true
    --opd-teacher-load qwen3_moe/checkpoints "${own[@]}")
train all "${all[@]}"
one=$chain
train all-ranks "${all[@]}" --ranks 4 "$tp" 2 "$pp" 2
[[ $chain == "$one" ]] || complain "all at once: $chain, one rank has $one"
# Routing replay applies to the actor only: other models have no experts, or different ones.
read -r -d '' -a sparse <<<"${shape[qwen3_moe]}"
train sparse-values --model-type qwen3_moe --num-layers 1 --num-experts 4 --logical-etp 1 \
    --advantage-estimator ppo --num-rollout 1
declare -A companions=(
    [reference]="${own[*]}"
    [teacher]="--use-opd true --opd-teacher-load llama/checkpoints"
    [critic]="--advantage-estimator ppo --critic-load values/checkpoints"
    [experts]="--advantage-estimator ppo --critic-load sparse-values/checkpoints"
)
for name in "${!companions[@]}"; do
    read -r -a words <<<"${companions[$name]}"
    train "sparse-$name" "${sparse[@]}" "${words[@]}" --use-rollout-routing-replay true
    one=$chain
    [[ $full || $name != teacher ]] || continue
    [[ $name == critic && ! $full ]] || train "sparse-$name-free" "${sparse[@]}" "${words[@]}"
    [[ $chain == "$one" ]] || complain "a $name beside experts: $chain, with replay $one"
    train "sparse-$name-ranks" "${sparse[@]}" "${words[@]}" --use-rollout-routing-replay true \
        --ranks 2 "$tp" 2
    [[ $chain == "$one" ]] || complain "a $name beside experts: $chain, one rank has $one"
done
train adapters "${own[@]}" --lora-rank 4
one=$chain
train adapters-ranks "${own[@]}" --lora-rank 4 --ranks 2 "$tp" 2
[[ $chain == "$one" ]] || complain "adapters: $chain, one rank has $one"
expect 0 'reference: weights' plan "$recipe" "${own[@]}" --dtype bf16
holds [ "$(sed -n 's/^ *reference: weights *//p' <("$invar" plan "$recipe" "${own[@]}"))" != \
    "$(sed -n 's/^ *reference: weights *//p' <("$invar" plan "$recipe" "${kl[@]}"))" ]

# ---- impossible models ------------------------------------------------------------------------
for key in "ref-load ${kl[*]}" "opd-teacher-load --use-opd true"; do
    read -r name flags <<<"$key"
    # shellcheck disable=SC2086 # words
    for layout in "--ranks 2 $tp 2" "--ranks 2 $pp 2" "--ranks 2 $cp 2"; do
        refused "($name)" $flags "--$name" alone/checkpoints $layout
    done
done
refused "'ref-update-interval' would copy the actor into a reference of another shape" \
    "${own[@]}" --ref-update-interval 1

((failed)) || echo "$checks checks: all as expected"
exit "$failed"
