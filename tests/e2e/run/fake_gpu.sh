#!/usr/bin/env bash
# fake_gpu.sh INVAR FOLDER [gpu] - every command over a model on a device whose memory the host
# cannot access.
#
# INVAR uses the fake GPU of the tests in place of CUDA: any access of the host to device memory is
# a segmentation fault. Every command must print and record with device = cuda what it does with
# device = cpu. Control: a run with another seed differs. With `gpu`, INVAR is a build with CUDA and
# runs on a real GPU, which has no peers of the tests and cannot be lost on request. With
# INVAR_TEST_FULL=1 devices are lost at more moments, and more ranks, ops, replays, benches and
# reports of the command doctor are checked.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$(realpath "$1") folder=$(realpath -m "$2") gpu=${3:-}
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
full=${INVAR_TEST_FULL:-}
recipe=$(realpath "$(dirname "$0")/../ranks/sharded_model.ini")
rm -rf "$folder"
mkdir -p "$folder/tmp" && cd "$folder" || exit 2
export TMPDIR=$folder/tmp

# alike ARGUMENT ...: checks that the output is the same on both devices and not empty.
alike() {
    checks=$((checks + 1))
    timeout 300 "$invar" "$@" --device cpu >cpu.out || complain "invar $* --device cpu failed"
    timeout 300 "$invar" "$@" --device cuda >cuda.out || complain "invar $* --device cuda failed"
    { [[ -s cpu.out ]] && cmp -s cpu.out cuda.out; } || complain "invar $*: other output with cuda"
}

cat >tiny.ini <<'END'
[model]
model-type = qwen3_moe
dtype = bf16
num-layers = 2
hidden-size = 64
ffn-hidden-size = 64
num-attention-heads = 2
num-experts = 4
moe-router-topk = 2
max-position-embeddings = 24
init-method-std = 0.1
[rollout]
prompt-data = task:max
num-rollout = 3
rollout-batch-size = 2
n-samples-per-prompt = 3
rollout-max-response-len = 4
rm-type = overlap
[eval]
eval-prompt-data = own task:max
eval-interval = 2
[optimizer]
lr = 0.01
[perf]
threads = 1
[engine]
numerics = ieee
END

for device in cpu cuda; do
    expect 0 "" train tiny.ini --no-report --device $device --run $device --save $device/save \
        --load $device/save --save-interval 1 --save-hf "$device/hf/{rollout_id}"
done
# Control of the comparison: a run with another seed, which must differ below.
expect 0 "" train tiny.ini --no-report --device cuda --run other --rollout-seed 7
expect 0 "" diff cpu cuda
# A checkpoint is copied from the device as late as possible, and has the same bytes. Steps of the
# run are audited.
INVAR_TEST_DELAY=100 expect 0 "" train tiny.ini --no-report --device cuda --run late \
    --save late/save --save-interval 1 --audit 20
expect 0 "" diff cpu late
# Rollouts are sampled during a training step, on a second handle of the device.
for device in cpu cuda; do
    expect 0 "" train tiny.ini --no-report --device $device --run ahead-$device --rollout-lag 1 \
        --rollout-segment-tokens 2 --rollout-overlap true
done
expect 0 "" diff ahead-cpu ahead-cuda
# The optimizer's moments are on the host; the run resumes with them on the device, and the reverse.
for offload in true false true; do
    expect 0 "" train tiny.ini --no-report --device cuda --run offloaded --save offloaded/save \
        --load offloaded/save --optimizer-cpu-offload=$offload --debug-exit-after-rollout 1
done
expect 0 "" diff cpu offloaded
# Several ranks share the device.
expect 0 "" train tiny.ini --no-report --device cuda --run ranks --save ranks/save \
    --save-interval 1 --ranks 2
expect 0 "" diff cpu ranks
# Bytes between ranks go directly from device to device if NCCL, here a fake, is available.
if [[ -z $gpu ]]; then
    INVAR_MODULES=$(dirname "$invar")/nccl
    export INVAR_MODULES
    straight=(train tiny.ini --no-report --device cuda --distributed-backend)
    several=2
    [[ ! $full ]] || several='2 3'
    for ranks in $several; do
        expect 0 "" "${straight[@]}" auto --run "straight$ranks" --save "straight$ranks/save" \
            --save-interval 1 --ranks "$ranks"
        expect 0 "" diff cpu "straight$ranks"
        expect 0 "NCCL 1.23.4" ledger sql "SELECT value FROM fact WHERE key = 'transport'" \
            "straight$ranks"
    done
    expect 0 "" "${straight[@]}" host --run through --ranks 2
    expect 0 "host memory: distributed-backend = host" ledger sql \
        "SELECT value FROM fact WHERE key = 'transport'" through
    [[ ! $full ]] || expect 2 "gpus     bytes between them go by NCCL 1.23.4" doctor --ranks 2
    [[ ! $full ]] || INVAR_TEST_NCCL=flip expect 2 "bytes that nobody had sent" doctor --ranks 2
    [[ ! $full ]] || expect 2 "go through host memory: distributed-backend = host" doctor \
        --ranks 2 tiny.ini --device cuda --distributed-backend host
    # A bit that changes in transit is detected by the ranks themselves.
    INVAR_TEST_NCCL=flip expect 1 "is out of step" "${straight[@]}" nccl --run flipped --ranks 2
    INVAR_TEST_NCCL=move expect 2 'its GPU in phase "gradients of units": code 7' \
        "${straight[@]}" nccl --run moves --ranks 2
    INVAR_TEST_NCCL=open expect 2 'its GPU in phase "start of NCCL": code 5' \
        "${straight[@]}" nccl --run opens --ranks 2
    # Ranks that divide the layers decode with captured graphs, which end at every communication.
    divided=(train "$recipe" --no-report --save none --dtype bf16)
    # Two ranks divide the model; by default it has a quarter of the parts.
    [[ $full ]] || divided+=(--num-layers 2 --logical-tp 2 --ffn-hidden-size 256
        --num-attention-heads 4 --num-query-groups 2 --vocab-size 520)
    expect 0 "" "${divided[@]}" --device cpu --run whole
    ways=auto
    [[ ! $full ]] || ways='auto host'
    for way in $ways; do
        expect 0 "" "${divided[@]}" --device cuda --run "divided-$way" --ranks 2 \
            --tensor-model-parallel-size 2 --distributed-backend "$way"
        expect 0 "" diff whole "divided-$way"
    done
    export INVAR_MODULES=$folder
    expect 2 " has no NCCL (invar-nccl.so)" "${straight[@]}" nccl --run none --ranks 2
    if [[ $full ]]; then
        expect 2 "go through host memory: rank 0 on" doctor --ranks 2
        expect 0 "" "${straight[@]}" auto --run none --ranks 2
    fi
    unset INVAR_MODULES
fi
# The module of GPU kernels must be the same on all ranks. The fake GPU never loads it.
mpi=$(dirname "$invar")/../invar-mpi.so
if [[ -z $gpu && -e $mpi ]] && command -v mpirun >/dev/null; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    for side in a b; do
        mkdir "modules-$side" && cp "$mpi" "modules-$side"
        echo "$side" >"modules-$side/invar-cuda.so"
    done
    train=("$invar" train tiny.ini --no-report --device cuda --run modules
        --num-rollout 1)
    for side in b a; do
        checks=$((checks + 1)) rc=0
        timeout 100 mpirun --oversubscribe -n 1 -x INVAR_MODULES=modules-a "${train[@]}" : \
            -n 1 -x "INVAR_MODULES=modules-$side" "${train[@]}" >out 2>err </dev/null || rc=$?
        if [[ $side == a ]]; then
            ((rc == 0)) || complain "ranks with one module:" "$(<err)"
        elif ((rc != 2)) || ! grep -q 'rank 1 on .*: its module invar-cuda.so is "' err; then
            complain "a rank with another module: exit code $rc" "$(<err)"
        fi
    done
fi
expect 129 "--optimizer-cpu-offload: expected true or false, found 'maybe'" train tiny.ini \
    --no-report --device cuda --run maybe --optimizer-cpu-offload maybe
expect 1 "" diff cpu other
# The run waits for its last checkpoint; the checkpoint before it was written while the run
# continued.
for file in {hf/2/model,save/iter_000000{1,2}/model{,.exp_avg,.exp_avg_sq}}.safetensors; do
    checks=$((checks + 1))
    cmp -s "cpu/$file" "cuda/$file" || complain "$file is another with cuda"
    [[ $file == hf/* ]] || cmp -s "cpu/$file" "late/$file" || complain "$file is another, late"
    for run in ranks straight2 straight3; do
        [[ $file == hf/* || ! -e $run ]] || cmp -s "cpu/$file" "$run/$file" ||
            complain "$file is another, $run"
    done
done
expect 0 "" convert cuda/save converted --dtype bf16
checks=$((checks + 2))
cmp -s converted/model.safetensors cpu/hf/2/model.safetensors || complain "convert made another"
cmp -s {offloaded,cpu}/save/iter_0000002/model.exp_avg_sq.safetensors ||
    complain "a run with moments on the host has other ones"

# Steps that one device recorded are replayed on the other.
expect 0 identical replay cuda --step 2 --from 1 --device cpu
expect 0 identical replay cpu --step 2 --from 1 --device cuda --level full
expect 0 "" pack cuda --step 2 --output step.tar
if [[ $full || $gpu ]]; then
    expect 0 identical replay cuda --step 1
    expect 0 identical replay step.tar
fi
expect 0 identical replay step.tar --device cpu

printf '{"tokens":[1,2,3,4,5,6,7]}\n{"tokens":[9,8,7]}\n' >tokens
for mode in train prefill decode; do
    alike score tiny.ini --load cuda/save --tokens tokens --json --mode $mode
done
alike generate tiny.ini --load cpu/save --prompt "3,7=" --json
# One sample of the last rollout is sampled again alone, on the device that sampled it and on the
# other.
rng=$("$invar" ledger sql "SELECT rng FROM sample ORDER BY step DESC, idx DESC LIMIT 1" cuda --csv |
    sed 1d | tr -d '"\r')
for device in cpu cuda; do
    expect 0 "identical: prompt, tokens and log-probabilities" generate tiny.ini --sample "$rng" \
        --save cuda/save --run cuda --device $device
done
alike eval tiny.ini --load cuda/save --json

# The bench of a training step has the same gradient norm with the moments on the host and on the
# device.
if [[ $full ]]; then
    for offload in "" --optimizer-cpu-offload; do
        timeout 300 "$invar" bench --model tiny --device cuda --only train --repetitions 1 --json \
            $offload >"bench$offload.json" || complain "bench $offload failed"
    done
    checks=$((checks + 1))
    python3 - bench{,--optimizer-cpu-offload}.json <<'END' || complain "bench: moments on the host"
import json, sys
here, there = (json.load(open(name))["train"] for name in sys.argv[1:])
assert here["grad_norm"] == there["grad_norm"] > 0, (here, there)
assert there["optimizer_on_host"] and "optimizer_on_host" not in here
END
fi

# Every op runs once and is compared with the recorded digests.
expect 0 "0 different, 0 not recorded" selfcheck --device cuda
alike selfcheck --record
if [[ $gpu ]]; then
    ((failed)) || echo "$checks checks"
    exit $failed
fi

# The bench of an op with two peers: one copies, the other writes twice. It fails with exit code 1
# if the bits of an op differ from the CPU's.
plugins=$(dirname "$invar")/plugin
peers=$(dirname "$invar")/bench.peers_fake_gpu
holds "$peers" --device cuda --op kv.write --peer "$plugins/peer.so" --burst 10 --json >bench.json
python3 - bench.json <<'END' || complain "bench.peers" "$(cat bench.json)"
import json, sys
(row,) = json.load(open(sys.argv[1]))["rows"]
ratios = {peer["name"]: peer["ratio"] for peer in row["peers"]}
assert list(ratios) == ["copy", "twice"] and ratios["twice"] > 1.2, row
assert row["share"] > 0 and row["compared"] > 0 and row["different"] == 0, row
END
[[ ! $full ]] || expect 0 moe.route bench --device cuda --op moe.route
if "$peers" --device cuda --peer "$plugins/not_a_plugin.so" 2>bench.err ||
    ! grep -q "it has no ops for this device" bench.err; then
    complain "bench.peers with a file that has no ops" "$(<bench.err)"
fi

# The device is lost: the exit code is 2, the ledger verifies, and the run resumes.
calls=1000
[[ ! $full ]] || calls='60 500 1000 1500'
for call in $calls; do
    INVAR_TEST_DELAY=50 INVAR_TEST_LOSE="$call" expect 2 "the device is lost" train tiny.ini \
        --no-report --device cuda --run "lost$call" --save "lost$call/save" \
        --load "lost$call/save" --save-interval 1
    [[ ! -e "lost$call/ledger.db" ]] || expect 0 "" ledger verify "lost$call"
    expect 0 "" train tiny.ini --no-report --device cuda --run "lost$call" --save "lost$call/save" \
        --load "lost$call/save" --save-interval 1
    expect 0 "" ledger verify "lost$call"
    expect 0 "" diff cpu "lost$call"
done

# lost_json CALL ARGUMENT ...: checks that the JSON output is complete and reports the loss, or is
# empty.
lost_json() {
    local call=$1 rc=0
    shift
    checks=$((checks + 1))
    INVAR_TEST_LOSE="$call" timeout 300 "$invar" "$@" --device cuda --json >lost.json 2>lost.err ||
        rc=$?
    if ((rc != 2)) || ! grep -q "the device is lost" lost.err || { [[ -s lost.json ]] &&
        ! python3 -c 'import json; assert "lost" in json.load(open("lost.json"))["error"]'; }; then
        complain "invar $* --json, lost at call $call: exit code $rc" "$(tail -n 5 lost.json)"
    fi
}
calls=9
[[ ! $full ]] || calls='1 9 30'
for call in $calls; do
    lost_json "$call" selfcheck
    [[ ! $full ]] || lost_json "$call" bench --op add
done

# ---- moved repeatedly while a thread writes checkpoints -----------------------------------------
"$invar" train tiny.ini --device cuda --run moved.0 --num-rollout 1000000 --no-report \
    --save-interval 1 >moved.out 2>moved.err &
pid=$!
for ((i = 0; i < 300; i++)); do
    [[ -e moved.0/checkpoints/latest_checkpointed_iteration.txt ]] && break
    sleep 0.1
done
moves=5
[[ ! $full ]] || moves=20
for ((i = 0; i < moves; i++)); do
    mv "moved.$i" "moved.$((i + 1))"
    sleep 0.05
done
kill -INT $pid
rc=0 checks=$((checks + 1))
wait $pid || rc=$?
((rc == 130)) || complain "a run that is moved: exit code $rc, expected 130:" "$(<moved.err)"
expect 0 '' ledger verify "moved.$moves/ledger.db"

((failed)) || echo "$checks checks"
exit $failed
