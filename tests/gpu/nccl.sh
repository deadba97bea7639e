#!/usr/bin/env bash
# nccl.sh INVAR FOLDER [STEPS] - ranks that use NCCL have the chains of tests/golden/h200.
#
# 2 and 4 processes started by mpirun share one GPU, or have one each; models dense and moe, in bf16
# and fp8. STEPS limits the number of compared rollouts (0, the default, for all). Checkpoints of
# two ranks must have the bytes of one rank's, ranks that are threads on one GPU must be rejected,
# and a killed rank must end the run. Control: another seed must differ. Exit code: 0 all checks
# passed, 77 mpirun, MPI or NCCL is missing, otherwise a check failed.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$(realpath "$1") folder=$(realpath -m "$2") steps=${3:-0}
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../e2e/expect.sh"
modules=$(dirname "$invar")
if ! command -v mpirun >/dev/null || [[ ! -e $modules/invar-mpi.so ]] ||
    [[ ! -e $modules/invar-nccl.so ]]; then
    echo "skipped: there is no mpirun, no invar-mpi.so or no invar-nccl.so"
    exit 77
fi
unset INVAR_LEDGER
export NO_COLOR=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo}
goldens=$PWD/tests/golden/h200
rm -rf "$folder"
mkdir -p "$folder" && cd "$folder" || exit 2
limit=()
((steps == 0)) || limit=(--num-rollout "$steps")

# launch RANKS NAME FLAG ...: sets `command` to train NAME (MODEL-FORMAT-...) on RANKS processes
launch() {
    local ranks=$1 name=$2 model format
    shift 2
    IFS=- read -r model format _ <<<"$name"
    command=(mpirun --oversubscribe --bind-to none -n "$ranks" "$invar" train "$goldens/$model.ini"
        --dtype "$format" --run "$name" --no-report --device cuda --distributed-backend nccl
        --threads 2 "$@")
}

train() {
    launch "$@"
    timeout 300 "${command[@]}" >"$2.out" 2>"$2.err" </dev/null
}

for ranks in 2 4; do
    for model in dense moe; do
        for format in bf16 fp8; do
            name=$model-$format-$ranks
            checks=$((checks + 1))
            train "$ranks" "$name" --save none --golden "$goldens/$model-$format.golden" \
                "${limit[@]}" || complain "$name: $(tail -n 5 "$name.out" "$name.err")"
            grep -h '^golden' "$name.out"
            expect 0 "NCCL 2." ledger sql "SELECT value FROM fact WHERE key = 'transport'" "$name"
        done
    done
done
# checkpoints of two ranks have the bytes of one rank's
for ranks in 1 2; do
    train $ranks moe-bf16-save$ranks --num-rollout 2 --save-interval 1 || complain "no checkpoints"
done
checks=$((checks + 1))
for file in moe-bf16-save1/checkpoints/iter_*/*.safetensors; do
    cmp -s "$file" "${file/save1/save2}" || complain "$file is another with two ranks"
done
checks=$((checks + 1))
rc=0
train 2 moe-bf16-seed --save none --golden "$goldens/moe-bf16.golden" --num-rollout 2 --seed 5 ||
    rc=$?
if ((rc != 4)) || ! grep -q '^golden    different from step 0 on' moe-bf16-seed.out; then
    complain "control: another seed: exit code $rc, expected 4 and a difference" \
        "$(tail -n 5 moe-bf16-seed.out moe-bf16-seed.err)"
fi
if (($(nvidia-smi --list-gpus | wc -l) == 1)); then
    expect 2 "share a GPU and a process" train "$goldens/dense.ini" --ranks 2 --device cuda \
        --distributed-backend nccl --run threads
fi
# a rank that is killed during the run
launch 2 dense-bf16-killed --save none --num-rollout 100000
"${command[@]}" >killed.out 2>killed.err </dev/null &
job=$!
for ((i = 0; i < 600; i++)); do
    [[ $("$invar" ledger sql "SELECT max(step) > 2 FROM step" dense-bf16-killed --csv 2>/dev/null |
        tail -n 1) == 1* ]] && break
    sleep 0.1
done
began=$SECONDS checks=$((checks + 1))
mapfile -t pids < <(pgrep -P "$job")
if ((${#pids[@]} == 2)); then
    kill -9 "${pids[1]}"
else
    complain "there are ${#pids[@]} ranks of 2"
fi
! wait "$job" || complain "a run without one of its ranks ends well"
((SECONDS - began < 30)) || complain "a killed rank ends the run after $((SECONDS - began)) s"
((failed)) || echo "$checks checks"
exit $failed
