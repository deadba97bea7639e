#!/usr/bin/env bash
# adapters.sh INVAR FOLDER - LoRA adapters with a critic, and with rollouts in another format.
#
# The critic starts with the bits that it has next to a fully trained actor. New adapters change
# nothing, so the first rollout has the bits of that actor, in the format that samples. The chain is
# the same in other layouts, resumed and replayed; with INVAR_TEST_FULL=1 in all layouts and with a
# larger model. Control: another seed gives another chain.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
folders=$PWD/tests/oracle/folders/4.57.6
# shellcheck source=tests/e2e/models/sharded_model.sh
source tests/e2e/models/sharded_model.sh
train_flags=(--rm-type deterministic_random)
# The layouts divide tensors by 2. By default the model has a quarter of their parts.
[[ $full ]] || train_flags+=(--num-layers 2 --logical-tp 2 --ffn-hidden-size 256
    --num-attention-heads 4 --num-query-groups 2 --vocab-size 520)

# identity RUN KEY: prints a value of the run's identity.
identity() {
    column "$1" "SELECT value FROM identity WHERE key = '$2'"
}

# in_layouts LAYOUT NAME FLAG ...: checks that several ranks have the chain of one, by default only
# in this layout, if it is not empty; sets `chain`.
in_layouts() {
    local name=$2 one layout layouts=("$1")
    [[ $1 ]] || layouts=()
    [[ ! $full ]] || layouts=("$divided" "$apart")
    shift 2
    train "$name" "$@"
    one=$chain
    [[ ! $full ]] || layouts+=("--ranks 2" "--ranks 2 $tp --sequence-parallel true"
        "--ranks 2 --context-parallel-size 2" "--ranks 4 --rollout-num-gpus 2 $tp")
    for layout in "${layouts[@]}"; do
        # shellcheck disable=SC2086 # words
        train "$name${layout//[^a-z0-9]/}" "$@" $layout
        [[ $chain == "$one" ]] || complain "$name $layout: $chain, not $one"
    done
    chain=$one
}
tp='--tensor-model-parallel-size 2' pp='--pipeline-model-parallel-size 2'
divided="--ranks 4 $tp $pp" apart='--ranks 3 --rollout-num-gpus 1'
lora=(--lora-rank 4)

# ---- a critic ---------------------------------------------------------------------------------
ppo=(--advantage-estimator ppo --use-kl-loss true --kl-loss-coef 0.01)
train whole "${ppo[@]}"
whole=$chain
in_layouts "$divided" critic "${ppo[@]}" "${lora[@]}"
one=$chain
holds [ "$one" != "$whole" ]
holds [ "$(identity critic 'critic hash')" = "$(identity whole 'critic hash')" ]
holds [ "$(digest critic rollout.logp)" = "$(digest whole rollout.logp)" ]
train halves "${ppo[@]}" "${lora[@]}" --debug-exit-after-rollout 1 --ranks 2
# shellcheck disable=SC2086 # words
train halves "${ppo[@]}" "${lora[@]}" --ranks 2 $tp
holds [ "$chain" = "$one" ]
expect 0 'identical' replay critic --step 1
train seed "${ppo[@]}" "${lora[@]}" --seed 7
holds [ "$chain" != "$one" ]
# The critic's body is that of the base, from a checkpoint of full weights or from a folder.
for from in "--ref-load whole/checkpoints" "--critic-load seed/checkpoints"; do
    # shellcheck disable=SC2086 # words
    train "from${from//[^a-z]/}" "${ppo[@]}" "${lora[@]}" $from --num-rollout 1
done
train body "${ppo[@]}" --ref-load whole/checkpoints --num-rollout 1
holds [ "$(identity fromrefloadwholecheckpoints 'critic hash')" = "$(identity body 'critic hash')" ]
holds [ "$(identity fromcriticloadseedcheckpoints 'critic hash')" != \
    "$(identity critic 'critic hash')" ]
# A checkpoint without a critic provides the body, too; the new head then predicts 0.
train plain --num-rollout 1 --seed 9
train headless "${ppo[@]}" --critic-load plain/checkpoints --num-rollout 1
holds [ "$(column headless "SELECT value = 0 FROM metrics WHERE name = 'rollout/values'")" = 1 ]
holds [ "$(identity headless 'critic hash')" != "$(identity whole 'critic hash')" ]
printf '%s\n' '[rollout]' 'num-rollout = 1' 'rollout-batch-size = 1' 'n-samples-per-prompt = 2' \
    'rollout-max-response-len = 8' 'rm-type = deterministic_random' 'prompt-data = data.jsonl' \
    '[perf]' 'threads = 1' '[engine]' 'numerics = ieee' '[model]' 'dtype = fp32' >folders.ini
printf '{"input": "Hello"}\n' >data.jsonl
for rank in 0 4; do
    expect 0 'chain' train folders.ini --no-report --run "folder-$rank" "${ppo[@]}" \
        --hf-checkpoint "$folders/qwen3-fp16" --lora-rank "$rank"
done
holds [ "$(identity folder-0 'critic hash')" = "$(identity folder-4 'critic hash')" ]

# ---- rollouts in another format ---------------------------------------------------------------
formats=(fp8 int4)
[[ ! $full ]] || formats+=(fp32 mxfp8)
for format in "${formats[@]}"; do
    train "whole-$format" --rollout-dtype "$format" --num-rollout 1
    layout=''
    [[ $format != fp8 ]] || layout=$apart
    in_layouts "$layout" "sampled-$format" --rollout-dtype "$format" "${lora[@]}"
    holds [ "$(digest "sampled-$format" rollout.logp)" = "$(digest "whole-$format" rollout.logp)" ]
    holds [ "$(digest "sampled-$format" rollout.logp)" != "$(digest critic rollout.logp)" ]
    holds [ "$(column "sampled-$format" 'SELECT max(diff) > 0 FROM sample')" = 1 ]
done
one=$(column sampled-fp8 'SELECT lower(hex(chain)) FROM step ORDER BY step DESC LIMIT 1')
sampled=(--rollout-dtype fp8 "${lora[@]}")
train again "${sampled[@]}" --debug-exit-after-rollout 1
train again "${sampled[@]}" --ranks 2
holds [ "$chain" = "$one" ]
expect 0 'identical' replay sampled-fp8 --step 1
train tis "${sampled[@]}" --use-tis true
holds [ "$chain" != "$one" ]
in_layouts "$divided" experts --rollout-dtype fp8 "${lora[@]}" --model-type qwen3_moe \
    --num-experts 4 --moe-router-topk 2
# Adapters are loaded by ref-load: rollouts sample with their base.
train own "${lora[@]}" --num-rollout 1
train named "${sampled[@]}" --ref-load own/checkpoints --num-rollout 1
train named-apart "${sampled[@]}" --ref-load own/checkpoints --num-rollout 1 --ranks 2 \
    --rollout-num-gpus 1
holds [ "$(digest named rollout.logp)" = "$(digest named-apart rollout.logp)" ]
holds [ "$(digest named rollout.logp)" != "$(digest sampled-fp8 rollout.logp)" ]
expect 0 'rollout: weights' plan "$recipe" --dtype bf16 "${sampled[@]}"

((failed)) || echo "$checks checks: all as expected"
exit "$failed"
