#!/usr/bin/env bash
# import_miles.sh INVAR FOLDER - invar import-miles: launch scripts become recipes that plan
# accepts.
#
# A script with the usual eight groups gives the expected recipe and is not executed. Flags without
# an equivalent are reported. The command line also understands flags of Miles, Megatron-LM and
# SGLang.
# shellcheck disable=SC2016
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$(realpath "$1") folder=$2
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
rm -rf "$folder"
mkdir -p "$folder/model" "$folder/models" && cd "$folder" || exit 2

cat >model/config.json <<'END'
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 512,
 "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
 "head_dim": 64, "intermediate_size": 512, "max_position_embeddings": 8192,
 "rope_theta": 1000000.0, "rms_norm_eps": 1e-06, "tie_word_embeddings": true,
 "attention_bias": false, "hidden_act": "silu", "eos_token_id": 1}
END
cat >models/small.sh <<'END'
MODEL_ARGS=(
   --swiglu --num-layers 2 --hidden-size 256 --ffn-hidden-size 512
   --num-attention-heads 4 --group-query-attention --num-query-groups 2
   --rotary-base "${ROTARY_BASE:-1000000}" --normalization "RMSNorm"
)
END
# The eight groups of flags of a typical launch script, which must not be executed.
cat >run.sh <<'END'
set -ex
touch executed
pkill -9 -f train.py
GPUS=$(nvidia-smi -L | wc -l; touch executed)
if [ "$GPUS" -gt 0 ]; then FAST=1; else FAST=0; fi
SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
source "${SCRIPT_DIR}/models/small.sh"
ROOT=data
CKPT_ARGS=(
   --hf-checkpoint model
   --ref-load model_torch_dist
   --load out/ --save out/
   --save-interval 20
)
ROLLOUT_ARGS=(
   --prompt-data ${ROOT}/train.jsonl
   --input-key prompt --label-key label
   --apply-chat-template --rollout-shuffle
   --rm-type math
   --num-rollout 30 --rollout-batch-size 32 --n-samples-per-prompt 8
   --rollout-max-response-len 2048
   --rollout-temperature 0.8
   --rollout-stop "###" 'a "b"'
   --global-batch-size 256 --balance-data
   --over-sampling-batch-size 64
   --dynamic-sampling-filter-path a.filter_hub.check_reward_nonzero_std
)
EVAL_ARGS=(
   --eval-interval 20
   --eval-prompt-data aime "${ROOT}/a b.jsonl" other ${ROOT}/c.jsonl
   --n-samples-per-eval-prompt 16 --eval-top-p 0.7
)
PERF_ARGS=(
   --tensor-model-parallel-size 2 --sequence-parallel
   --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
   # --micro-batch-size 1
   --use-dynamic-batch-size --max-tokens-per-gpu 9216
)
GRPO_ARGS=(
   --advantage-estimator grpo
   --use-kl-loss --kl-loss-coef 0.001 --kl-loss-type low_var_kl
   --eps-clip 0.2 --eps-clip-high 0.28 --use-tis
)
OPTIMIZER_ARGS=(
   --optimizer adam --lr 2e-6 --lr-decay-style constant --weight-decay 0.1 --adam-beta2 0.98
)
SGLANG_ARGS=(
   --rollout-num-gpus-per-engine 2 --sglang-mem-fraction-static 0.7 --sglang-page-size 32
)
ENV_JSON="{
  \"env_vars\": {\"FAST\": \"${FAST}\"}
}"
ray job submit --address="http://127.0.0.1:8265" --runtime-env-json="${ENV_JSON}" \
   -- python3 train.py \
   --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate \
   ${MODEL_ARGS[@]} ${CKPT_ARGS[@]} "${ROLLOUT_ARGS[@]}" "${EVAL_ARGS[@]}" ${PERF_ARGS[@]} \
   ${GRPO_ARGS[@]} ${OPTIMIZER_ARGS[@]} ${SGLANG_ARGS[@]} 2>&1 | tee log.txt
END
cat >expected.ini <<'END'
[model]
hf-checkpoint = model
[ckpt]
save = out/
save-interval = 20
[rollout]
prompt-data = data/train.jsonl
input-key = prompt
label-key = label
apply-chat-template = true
rollout-shuffle = true
num-rollout = 30
rollout-batch-size = 32
n-samples-per-prompt = 8
global-batch-size = 256
rollout-max-response-len = 2048
rollout-temperature = 0.8
rollout-stop = ["###","a \"b\""]
rollout-skip-special-tokens = false
rm-type = math
over-sampling-batch-size = 64
dynamic-sampling-filter = nonzero_std
page-size = 32
[eval]
eval-interval = 20
eval-prompt-data = aime "data/a b.jsonl" other data/c.jsonl
n-samples-per-eval-prompt = 16
eval-top-p = 0.7
[perf]
device = cuda
use-dynamic-batch-size = true
max-tokens-per-gpu = 9216
recompute-granularity = full
tensor-model-parallel-size = 2
sequence-parallel = true
[grpo]
advantage-estimator = grpo
eps-clip = 0.2
eps-clip-high = 0.28
use-kl-loss = true
kl-loss-coef = 0.001
kl-loss-type = low_var_kl
[optimizer]
lr = 2e-06
lr-decay-style = constant
adam-beta2 = 0.98
weight-decay = 0.1
[engine]
numerics = sm90
logical-tp = 2
END
expect 0 'all that bits depend on is taken over' import-miles run.sh --out made.ini
holds diff <(sed '/^#/d;/^$/d' made.ini) expected.ini
expect 0 'verdict: fits' plan made.ini --memory 80GB
holds [ ! -e executed ]
holds grep -q -- '^#   --use-tis (run.sh:[0-9]*): would be ignored: it needs rollout-dtype' made.ini
holds grep -q -- '^#   --num-layers 2 (./models/small.sh:2): would be ignored' made.ini
# Standard output has the same text, except for the sum that detects an edit.
holds diff <("$invar" import-miles run.sh 2>/dev/null) <(sed '$d' made.ini)
# A recipe that import-miles wrote is replaced unless it was edited; other recipes are never
# replaced.
expect 0 'written to made.ini' import-miles run.sh --out made.ini
for edit in 's/^lr = .*/lr = 0.5/' '$d' '$s/.$/x/' '2i # mine'; do
    sed "$edit" made.ini >edited.ini
    cp edited.ini before.ini
    expect 129 'edited.ini: was edited since import-miles wrote it' \
        import-miles run.sh --out edited.ini
    holds cmp -s edited.ini before.ini
done
: >empty.ini
expect 0 'written to empty.ini' import-miles run.sh --out empty.ini
holds cmp -s empty.ini made.ini
expect 129 'expected.ini: a file of another kind' import-miles run.sh --out expected.ini

# change SED: writes changed.sh, the script with one change.
change() {
    sed "$1" run.sh >changed.sh
    holds [ -n "$(cmp run.sh changed.sh)" ]
}
# Bash would expand the braces to several words; they must be written out.
for braces in '{8,16}' '{1..3}' '1{0,}' '{a,{b,c}}'; do
    change "s/--n-samples-per-prompt 8/--n-samples-per-prompt $braces/"
    expect 1 "bash makes several words of {a,b} and {1..3}; write them out" import-miles changed.sh
done
# These braces are not expanded by bash.
for letters in '{8}' '{' "'{8,16}'"; do
    change "s/--rollout-stop \"###\"/--rollout-stop $letters/"
    expect 0 'all that bits depend on' import-miles changed.sh
done
change 's/--optimizer adam/--optimizer sgd/'
expect 1 'changed.sh:45: not taken over: --optimizer sgd: the optimizer is AdamW' \
    import-miles changed.sh --out changed.ini
expect 0 'verdict: fits' plan changed.ini --memory 80GB
# The window of the profiler. Columns: words, start and end in the recipe ("-" if left out). The
# recipe can be run.
# shellcheck disable=SC2034 # end is read by its name
while read -r words start end; do
    change "s/--colocate/--colocate ${words//,/ }/"
    expect 0 'all that bits depend on' import-miles changed.sh --out window.ini
    for key in start end; do
        holds [ "$(sed -n "s/^profile-step-$key = //p" window.ini)" = "${!key#-}" ]
    done
    [ "$start" != - ] || holds grep -q '^#   --profile-step-.*no step' window.ini
    holds [ "$(grep -c 'it cannot be run' window.ini)" = 0 ]
    rm window.ini
done <<'END'
--use-pytorch-profiler,--profile-step-start,3,--profile-step-end,5 3 5
--use-pytorch-profiler,--profile-step-start,3 3 12
--profile,--profile-step-start,11 11 12
--use-pytorch-profiler,--profile-step-end,20 10 20
--use-pytorch-profiler,--profile-step-start,12 - -
--use-pytorch-profiler,--profile-step-start,30 - -
--use-pytorch-profiler,--profile-step-end,10 - -
--profile-step-start,3 - -
--profile-step-start,3,--profile-step-end,5 - -
END
change 's/--colocate/--colocate --made-up 3/'
expect 1 'not taken over: --made-up 3: unknown flag' import-miles changed.sh
change 's/--lr 2e-6/--lr $LR/'
expect 1 'unknown: --lr $LR: the script does not say what the variable is' \
    import-miles changed.sh
change 's/--lr 2e-6/--lr $(cat lr)/'
expect 1 'nothing is executed' import-miles changed.sh
change 's/--ref-load model_torch_dist/--ref-load other/'
expect 1 'checkpoints of Megatron cannot be read' import-miles changed.sh
change 's/--rm-type math/--rm-type deepscaler/'
expect 1 '"deepscaler", which is no reward' import-miles changed.sh
change 's/ --lr-decay-style constant//'
expect 1 'Megatron decays linearly' import-miles changed.sh
change 's/nonzero_std/something_else/'
expect 1 'another filter is a plug-in' import-miles changed.sh
change 's/models.small/models\/none/'
expect 1 'models/none.sh' import-miles changed.sh
change 's/ train.py/ train_async.py/'
expect 0 'rollout-lag = 1' import-miles changed.sh
change 's/^set -ex/X=(/'
expect 129 'changed.sh:5: an operator within an array' import-miles changed.sh
expect 2 "none.sh" import-miles none.sh
# A name with a newline, or with bytes that are not UTF-8, becomes one printable line.
for name in $'a\nlr = 5\e.sh' $'caf\xe9.sh'; do
    printf 'python3 train.py --lr 1 --made-up\n' >"$name"
    expect 1 'made-up: unknown flag' import-miles "$name" --out named.ini
    holds [ "$(grep -a '^lr' named.ini)" = 'lr = 1' ]
    holds grep -q '^#   --made-up (.*?.*sh:1): unknown flag' named.ini
done
expect 129 'expected SCRIPT' import-miles

# Flags of other programs are understood, or rejected with an explanation.
expect_verb=(plan expected.ini --memory 80GB)
expect 0 'verdict: fits' --sglang-chunked-prefill-size 512
expect 129 '--sglang-page-size: ' --sglang-page-size many
expect 129 '--colocate, a flag of Miles, does not exist here: ranks sample and train in turn' \
    --colocate
expect 129 'memory is planned before a run' --sglang-mem-fraction-static 0.7
expect 129 'the launcher says how many ranks' --num-gpus-per-node=8
expect 129 "unknown option '--num-gpus-per-nod'" --num-gpus-per-nod 8
expect 129 "the key 'page-size' is already set by --page-size" --page-size 16 --sglang-page-size 32

echo "$checks checks"
exit $failed
