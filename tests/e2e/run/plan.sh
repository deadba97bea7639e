#!/usr/bin/env bash
# plan.sh INVAR FOLDER - invar plan: a large model in the memory of a GPU that is not installed.
#
# The model is six layers of Qwen3-30B-A3B, as a config.json without weights. If a plan does not
# fit, the test sets the keys that the message advises, and then it must fit. The planned size of a
# checkpoint is compared with the size that training writes. With INVAR_TEST_FULL=1 the advice for
# more sizes is followed, and more lists of all layouts are compared.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$(realpath "$1") folder=$2 recipes=$PWD/recipes recipe=$PWD/tests/gpu/qwen3-30b-cut.ini
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
rm -rf "$folder"
mkdir -p "$folder/model" && cd "$folder" || exit 2
expect_verb=(plan)

cat >model/config.json <<'END'
{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 151936,
 "hidden_size": 2048, "num_hidden_layers": 6, "num_attention_heads": 32, "num_key_value_heads": 4,
 "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
 "num_experts_per_tok": 8, "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [],
 "max_position_embeddings": 40960, "rope_theta": 1000000.0, "rms_norm_eps": 1e-06,
 "tie_word_embeddings": false, "attention_bias": false, "hidden_act": "silu",
 "eos_token_id": 151645}
END
cat >large.ini <<'END'
[model]
hf-checkpoint = model
dtype = bf16
[rollout]
prompt-data = gsm8k.jsonl
label-key = answer
rm-type = math
num-rollout = 1
rollout-batch-size = 32
n-samples-per-prompt = 8
rollout-max-prompt-len = 1024
rollout-max-response-len = 2048
[perf]
device = cuda
use-dynamic-batch-size = true
max-tokens-per-gpu = 32768
[engine]
numerics = sm90
END

# plan SIZE [ARGUMENT ...]: writes the plan as JSON to plan.json and the message to plan.err;
# returns its exit code.
plan() {
    timeout 60 "$invar" plan large.ini --json --memory "$@" >plan.json 2>plan.err
}

# number NAME: prints an integer of the plan.
number() {
    sed -n "s/^ *\"$1\": \([0-9]*\),*$/\1/p" plan.json
}

# The memory of an H200 is enough for the recipe as it stands.
holds plan 143GB
holds [ "$(number need)" -le "$(number usable)" ]
holds [ "$(number max-tokens-per-gpu)" -eq 32768 ]
holds grep -q '"advice": null' plan.json
holds grep -q '"chosen":\["log-probs-chunk-size","kv-pages"' <(tr -d ' \n' <plan.json)
holds [ "$(number longest_sample)" -eq 3072 ]
# Recording more points while sampling needs memory.
plain=$(number sampling)
holds plan 143GB --debug-determinism full
holds [ "$(number sampling)" -gt "$plain" ]
# Sampling during training needs a second copy of the weights, and memory at the same time.
lag=(--rollout-lag 2 --rollout-segment-tokens 512)
holds plan 143GB "${lag[@]}"
most=$(number need) weights=$(number resident)
holds [ "$(number beside)" -eq 0 ]
holds plan 143GB "${lag[@]}" --rollout-overlap true
holds [ "$(number resident)" -gt "$weights" ]
holds [ "$(number beside)" -ge "$(number sampling)" ]
holds [ "$(number beside)" -ge "$(number checking)" ]
holds [ "$(number block)" -eq $(($(number beside) + $(number learning))) ]
holds [ "$(number need)" -eq $(($(number resident) + $(number block) + $(number around))) ]
holds [ "$(number need)" -gt "$most" ]
holds plan 143GB "${lag[@]}" --rollout-overlap true --check-logprobs false
holds [ "$(number checking)" -eq 0 ]
holds plan 120GB "${lag[@]}"
plan 120GB "${lag[@]}" --rollout-overlap true && complain "both fit into what one needs"
holds grep -q 'rollout-overlap = false' plan.err
most=$(plan 143GB && number need)
# Less memory: the head chunks of logits become smaller, then the micro-batches.
holds plan 126GB
holds [ "$(number need)" -lt "$most" ]
holds [ "$(number log-probs-chunk-size)" -le 12000 ]
holds plan 118GB
holds [ "$(number max-tokens-per-gpu)" -lt 32768 ]
holds [ "$(number max-tokens-per-gpu)" -ge $((4 * 3071)) ] # a unit has up to 256 / 64 samples
# The KV cache becomes smaller if little else needs memory.
holds plan 120GB --optimizer-cpu-offload true --recompute-granularity full \
    --unit-rows 1 --rollout-max-response-len 32768
holds [ "$(number kv-pages)" -lt $((256 * 2113)) ]
# Keys that the recipe sets are not changed.
holds plan 143GB --kv-pages 4000 --rollout-concurrency 16 --log-probs-chunk-size 512
holds [ "$(number kv-pages)" -eq 4000 ]
holds [ "$(number rollout-concurrency)" -eq 16 ]
holds [ "$(number log-probs-chunk-size)" -eq 512 ]

# follow SIZE ARGUMENT ...: checks that the plan does not fit, and that each alternative that the
# message advises makes it fit.
follow() {
    local size=$1 rc=0 advice one
    shift
    plan "$size" "$@" || rc=$?
    holds [ $rc -eq 1 ]
    holds grep -q '"fits": false' plan.json
    holds grep -q 'does not fit: it needs .* GiB, the GPU has .* GiB to use; the largest are' \
        plan.err
    # The JSON output has the same advice.
    holds grep -qF "\"advice\": \"$(sed -n 's/.*; set /set /p' plan.err)\"" plan.json
    advice=$(sed -n 's/.*; set //p' plan.err | sed 's/ (semantic)//g; s/, or /\n/g')
    holds [ -n "$advice" ]
    while read -r one; do
        local -A keys=()
        for ((i = 1; i < $#; i += 2)); do keys[${!i}]=${*:i+1:1}; done
        while read -r key _ value; do keys[--$key]=$value; done <<<"${one// and /$'\n'}"
        plan "$size" "${keys[@]@k}" || complain "$size, $one: $(cat plan.err)"
        checks=$((checks + 1))
    done <<<"$advice"
}

follow 100GB
more follow 82GB
more follow 60GB
follow 100GB --optimizer-cpu-offload true --recompute-granularity full --kv-pages 400000
# One unit of all samples, up to the limit of its rows: only smaller units help.
one=(--optimizer-cpu-offload true --recompute-granularity full --unit-count 1)
follow 56GB "${one[@]}"
expect 1 "; set unit-rows = 8192 (semantic)" large.ini --memory 56GB "${one[@]}"
follow 143GB --use-dynamic-batch-size false --max-tokens-per-gpu 0 --micro-batch-size 32
# The GPU is far too small: the advice is LoRA, several GPUs or, in the end, a smaller model.
follow 40GB
[[ ! ${INVAR_TEST_FULL:-} ]] || follow 20GB
expect 1 "; set lora-rank = 16 (semantic)" large.ini --memory 40GB
expect 1 "'invar plan RECIPE --gpus 8 --all' shows whether 8 GPUs can share it" large.ini \
    --memory 40GB
expect 1 "not even LoRA (lora-rank) with optimizer-cpu-offload: take a smaller model" large.ini \
    --memory 5GB
expect 129 "expected a number with a unit" large.ini --memory 80
# Long context: the size of the cache is chosen, however large it could be.
expect 0 "kv-pages" large.ini --memory 120GB --optimizer-cpu-offload true \
    --recompute-granularity full --unit-rows 1 --rollout-max-response-len 32768 \
    --rollout-batch-size 4096 --rollout-concurrency 4096
expect 2 "lower kv-pages" large.ini --memory 143GB --kv-pages 1000000000

# The plan as text, and on the CPU.
expect 0 "max-tokens-per-gpu" large.ini --memory 143GB
expect 0 "by the recipe's bounds: prompt-data was not read" large.ini --memory 133.2GiB
expect 0 "verdict: fits" large.ini --device cpu --numerics ieee --memory 143GB
expect 1 "verdict: does not fit" large.ini --memory 1GB
tiny_recipe 1 >tiny.ini
expect 0 "verdict: fits" tiny.ini
# 3 characters of prompt and 2 of response, with the end token.
expect 0 "longest sample: 6 tokens" tiny.ini
# The scratch memory of several logical shards is counted, and their number is printed.
expect 0 "sums are made of: 8 pieces (logical-tp), those of experts 1 (logical-etp)" tiny.ini \
    --logical-tp 8

# The cache is too small for the longest sample of training, or of an evaluation with longer
# samples.
expect 129 "set kv-pages to 5 or more" tiny.ini --kv-pages 4 --page-size 1
expect 0 "verdict: fits" tiny.ini --kv-pages 5 --page-size 1
longer=(--eval-prompt-data "max task:max" --eval-interval 1 --eval-max-response-len 9)
expect 129 "sample of an evaluation of 13 tokens" tiny.ini "${longer[@]}" --kv-pages 5 --page-size 1
sft=(--loss-type sft_loss --n-samples-per-prompt 1 --rollout-concurrency 1 --page-size 1)
expect 0 " 13  chosen" tiny.ini "${longer[@]}" "${sft[@]}"

# disks ARGUMENT ...: checks that the planned bytes of a checkpoint are those that training writes,
# up to 512 bytes.
disks() {
    local planned real
    rm -rf disk
    planned=$("$invar" plan "$@" --run disk --json | sed -n 's/^ *"checkpoint": \([0-9]*\),*$/\1/p')
    "$invar" train "$@" --run disk --no-report >/dev/null 2>&1 || complain "train $*"
    real=$(cat disk/checkpoints/iter_*/* | wc -c)
    holds [ $((real - planned)) -ge -512 ] && holds [ $((real - planned)) -le 512 ]
}
disks tiny.ini
disks tiny.ini --no-save-optim true
disks tiny.ini --debug-rollout-only true
disks tiny.ini --lora-rank 4 --use-kl-loss true --ref-update-interval 1
disks tiny.ini --use-kl-loss true --ref-update-interval 1
disks "$recipes/moe.ini" --num-rollout 1 --advantage-estimator ppo
expect 0 "3 at one time, 2 of them by time" tiny.ini
# The verdict is about memory and disk.
good="fits; on the disk of runs/tiny/checkpoints: fits"
expect 0 "verdict: $good" tiny.ini
holds grep -qF "\"verdict\": \"$good\"" <("$invar" plan tiny.ini --json)
holds grep -qx "verdict: fits" <("$invar" plan tiny.ini --save none)
expect 0 "1 at one time, 0 of them by time" tiny.ini --save-interval-minutes 0
holds [ -z "$("$invar" plan tiny.ini --save none | grep disk)" ]
holds grep -q '"disk": null' <("$invar" plan tiny.ini --save none --json)
# The checkpoints exceed any disk; this is only a warning, because they may be moved away during the
# run.
endless=(--num-rollout 100000000 --save-interval 1 --run endless)
expect 0 "too little for all of them" tiny.ini "${endless[@]}"
expect 0 ": the first checkpoint fits, all of them do not" tiny.ini "${endless[@]}"
expect 0 "8796093022208.0  1000000002 at one time" large.ini --memory 143GB --save-interval 1 \
    --run endless --num-rollout 1000000000
expect_verb=(train)
expect 0 "the run will add 100000000 checkpoints of" tiny.ini "${endless[@]}" --dry-run
expect_verb=(plan)
# A disk that is too small is reported by the plan, and rejected by the run before it writes.
if mkdir small && mount -t tmpfs -o size=64k none small 2>/dev/null; then
    few=(--num-rollout 900 --save-interval 1 --keep-checkpoints 800 --run small/run)
    expect 0 "too little: the run would be refused" tiny.ini "${few[@]}"
    expect 0 "; on the disk of small/run/checkpoints: does not fit" tiny.ini "${few[@]}"
    for how in --dry-run --no-report; do
        expect_verb=(train)
        expect 2 "the run will add 801 checkpoints of" tiny.ini "${few[@]}" "$how"
        expect_verb=(plan)
    done
    holds [ -z "$(ls small)" ]
    umount small
else
    echo "skipped: a small disk cannot be mounted here"
fi

# bad input
for size in "" x 80XB -1GB 0 1e40 GB 80GBs nan; do
    expect 129 "is no size" tiny.ini --memory="$size"
done
for size in 16EB 1e40GB 9000PB; do
    expect 129 "\"$size\" is more than the 9 EB that can be planned for" tiny.ini --memory="$size"
done
for size in 80gb 80GIB 80g "80 gib" 1e9b 80Pb; do
    expect 0 "verdict: fits" tiny.ini --memory="$size"
done
for key in hf-checkpoint load ref-load; do
    expect 2 "nowhere: no such folder" large.ini "--$key" nowhere --memory 80GB
done
expect 0 "verdict: fits" large.ini --load runs/new --save runs/new --memory 143GB
if [[ $invar != */invar_fake_gpu ]] && ! nvidia-smi >/dev/null 2>&1; then
    expect 125 "--memory 80GB" large.ini
fi
# ---- many GPUs --------------------------------------------------------------------------------

# layout NAME: prints a value of the first layout of the last plan.
layout() {
    sed -n "s/^ *\"$1\": \([0-9.a-z]*\),*\$/\1/p" plan.json | head -1
}

many=(--logical-tp 8 --logical-etp 8 --gpus 8)
holds plan 143GB "${many[@]}"
whole=$(layout need)
holds [ "$(layout data)" -eq 8 ]
holds plan 143GB "${many[@]}" --tensor-model-parallel-size 4
holds [ "$(layout data)" -eq 2 ]
holds [ "$(layout need)" -lt "$whole" ]
holds [ "$(layout fits)" = true ]
holds grep -q '"prediction": true' plan.json
holds plan 143GB "${many[@]}" --tensor-model-parallel-size 4 --expert-model-parallel-size 2
holds [ "$(layout data)" -eq 1 ]
holds grep -q '"data_gb": 0.0' plan.json
holds grep -q '"name": "actor: moments"' plan.json
expect 0 "actor: gradients" large.ini --memory 143GB "${many[@]}"
# Rates change only seconds: half the FLOP/s, twice the time.
before=$(layout predicted_computing_s) sent=$(layout tensor_gb)
holds plan 143GB "${many[@]}" --tensor-model-parallel-size 4 --expert-model-parallel-size 2 \
    --tflops 225
holds [ "$(layout tensor_gb)" = "$sent" ]
holds awk -v a="$before" -v b="$(layout predicted_computing_s)" \
    'BEGIN { exit !(a > 0 && b / a > 1.999 && b / a < 2.001) }'
# Option --all: only layouts that fit are listed, the fastest first.
if [[ ${INVAR_TEST_FULL:-} ]]; then
    holds plan 143GB "${many[@]}" --all
    holds [ "$(grep -c '"fits": true' plan.json)" -gt 3 ]
    holds [ "$(grep -c '"fits": false' plan.json)" -eq 0 ]
    holds [ "$(grep -c '"sequence": true' plan.json)" -eq 0 ]
fi
expect 1 "No layout fits" large.ini --memory 20GB "${many[@]}" --all
expect 1 " no " large.ini --memory 40GB "${many[@]}"
expect 129 "needs a multiple of 4" large.ini --memory 143GB "${many[@]}" --gpus 6 \
    --tensor-model-parallel-size 4
expect 129 "sizes that fit now: 1, 2, 4" large.ini --memory 143GB "${many[@]}" \
    --tensor-model-parallel-size 8
expect 129 "leave out debug-rollout-only" large.ini --memory 143GB "${many[@]}" \
    --debug-rollout-only true
for gpus in "" 0 x "8," 8,,64 -8 100000; do
    expect 129 "is no list of numbers" large.ini --memory 143GB --gpus="$gpus"
done
expect 129 "--tflops: 0; expected 1 to 1000000" large.ini --memory 143GB --gpus 8 --tflops 0
# Sequence parallelism needs less memory: some layouts fit only with it.
cat >dense.ini <<'END'
[model]
dtype = bf16
num-layers = 4
hidden-size = 4096
ffn-hidden-size = 12288
num-attention-heads = 32
num-query-groups = 8
kv-channels = 128
vocab-size = 32000
max-position-embeddings = 8192
[rollout]
prompt-data = task:max
rm-type = overlap
num-rollout = 1
rollout-batch-size = 8
n-samples-per-prompt = 8
rollout-max-response-len = 8000
[grpo]
unit-count = 8
[perf]
device = cuda
[engine]
numerics = sm90
logical-tp = 8
END
# dense SIZE [ARGUMENT ...]: plans a dense model on four GPUs; otherwise like plan.
dense() {
    timeout 60 "$invar" plan dense.ini --json --gpus 4 --memory "$@" >plan.json 2>plan.err
}
tp=(--tensor-model-parallel-size 4)
dense 143GB "${tp[@]}"
learning=$(layout learning) sent=$(layout tensor_gb) most=$(layout need)
holds dense 143GB "${tp[@]}" --sequence-parallel true
holds awk -v a="$learning" -v b="$(layout learning)" 'BEGIN { exit !(b > 0 && b < 0.9 * a) }'
holds awk -v a="$sent" -v b="$(layout tensor_gb)" 'BEGIN { exit !(b > a && b < 1.2 * a) }'
between=$(((most + $(layout need)) * 65 / 128))B
expect 1 " no " dense.ini --memory "$between" --gpus 4 "${tp[@]}"
# One list has a layout that fits only with sequence parallelism, and one with more ranks for the
# rows of a sample.
holds dense 14GB --all
holds grep -q '"sequence": true' plan.json
holds grep -q '"context": [248],' plan.json
holds grep -q '"context": 1,' plan.json
holds [ "$(grep -c '"fits": true' plan.json)" -gt 0 ]
holds [ "$(grep -c '"fits": false' plan.json)" -eq 0 ]
if [[ ${INVAR_TEST_FULL:-} ]]; then
    holds dense "$between" --all
    holds [ "$(layout tensor)" -eq 4 ]
    holds [ "$(layout sequence)" = true ]
    holds [ "$(grep -c '"fits": true' plan.json)" -gt 0 ]
    holds [ "$(grep -c '"fits": false' plan.json)" -eq 0 ]
    # Less memory still: more ranks for the rows of a sample, or for the cache.
    holds dense 15GB --gpus 8 --all
    holds grep -q '"context": [248],' plan.json
    holds grep -q '"context": 1,' plan.json
fi
if [[ ${INVAR_TEST_FULL:-} ]]; then
    holds dense 143GB --all
    holds [ "$(grep -c '"context": 1,' plan.json)" -eq "$(grep -c '"tensor":' plan.json)" ]
    holds [ "$(grep -c '"gpus_per_engine"' plan.json)" -eq 0 ]
fi
holds dense 40GB --all --kv-pages 130000
holds grep -q '"gpus_per_engine"' plan.json
# Sampling during training excludes layouts that divide the model or reserve ranks for sampling.
holds dense 143GB --all "${lag[@]}" --rollout-overlap true
holds [ "$(grep -c '"data": 4,' plan.json)" -eq 1 ]
holds [ "$(grep -c '"tensor":' plan.json)" -eq 1 ]
for gpus in "" "--gpus 4"; do
    # shellcheck disable=SC2086 # nothing, or a flag and its number
    expect 129 "it needs ranks that sample by themselves" dense.ini --memory 143GB $gpus \
        "${lag[@]}" --rollout-overlap true "${tp[@]}"
done
# Ranks that only sample have weights and a cache; the others, unchanged in number, have no cache.
holds dense 143GB
colocated=$(layout need)
holds dense 143GB --gpus 6 --rollout-num-gpus 2 --rollout-num-gpus-per-engine 2
holds [ "$(layout data)" -eq 4 ]
holds [ "$(layout sampling)" -eq 0 ]
holds [ "$(layout need)" -le "$colocated" ]
holds [ "$(layout gpus_per_engine)" -eq 2 ]
weights=$(layout weights)
holds dense 143GB --gpus 6 --rollout-num-gpus 2
holds awk -v a="$(layout weights)" -v b="$weights" 'BEGIN { exit !(a > 1.9 * b && a < 2 * b) }'
if [[ ${INVAR_TEST_FULL:-} ]]; then
    holds dense 143GB --gpus 8 --rollout-num-gpus 2 --all
    holds [ "$(grep -c '"gpus_per_engine"' plan.json)" -eq "$(grep -c '"tensor":' plan.json)" ]
fi
# A layout fits only if its samplers fit; GPUs that only train have no draft model.
deep=(--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --sequence-parallel true
    --num-layers 16 --rollout-max-prompt-len 64 --rollout-max-response-len 64)
dense 4GB --gpus 34 --rollout-num-gpus 2 "${deep[@]}"
holds [ $? -eq 1 ]
holds [ "$(layout need)" -lt 3000000000 ]
holds [ "$(grep -c '"fits": false' plan.json)" -eq 2 ]
holds dense 143GB --gpus 34 --rollout-num-gpus 2 "${deep[@]}"
holds [ "$(grep -c '"fits": true' plan.json)" -eq 2 ]
mkdir -p draft
cat >draft/config.json <<'END'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32000,
 "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8,
 "intermediate_size": 1024, "max_position_embeddings": 8192, "rope_theta": 10000.0,
 "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "attention_bias": false,
 "hidden_act": "silu", "eos_token_id": 2, "bos_token_id": 1}
END
holds dense 143GB --gpus 6 --rollout-num-gpus 2 --speculative-algorithm draft \
    --speculative-draft-model-path draft
holds [ "$(sed '/"samplers"/q' plan.json | grep -c 'draft: weights')" -eq 0 ]
holds [ "$(sed '1,/"samplers"/d' plan.json | grep -c 'draft: weights')" -eq 1 ]
for all in "" --all; do
    # shellcheck disable=SC2086 # nothing, or a flag
    expect 129 "leaves 0 of 2 ranks" dense.ini --memory 143GB --gpus 2 --rollout-num-gpus 2 $all
done
expect 129 "say how many, as in --gpus 8" dense.ini --memory 143GB --all
expect 1 "does not fit: --all lists those that do" dense.ini --memory 15GB --gpus 8

# The recipes for many GPUs fit, with all layers of the model.
mkdir -p whole
sed 's/"num_hidden_layers": 6/"num_hidden_layers": 48/' model/config.json >whole/config.json
for gpus in 8 64; do
    expect 0 "yes" "$recipes/$gpus-gpus.ini" --hf-checkpoint whole --memory 141GB --gpus "$gpus"
done
expect 0 " 512 " "$(dirname "$recipe")/deepseek-v3-shape.ini" --memory 141GB --gpus 512
holds diff <(grep -v '^#' "$recipes/8-gpus.ini") <(grep -v '^#' "$recipes/64-gpus.ini")

# The recipe for one GPU fits.
expect 0 "verdict: fits" "$recipe" --memory 143GB
echo "$checks checks"
exit $failed
