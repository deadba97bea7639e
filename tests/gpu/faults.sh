#!/usr/bin/env bash
# faults.sh INVAR LOST FOLDER - a GPU that is full, fails, is missing or has an old driver.
#
# Each failure must print one line with a remedy, have the exit code of docs/commands.md and leave a
# ledger that verifies; the run, started again, must end with the chain of an undisturbed run. LOST
# is invar on a GPU that fails on request (lost.cu). Exit code: 0 all checks passed, 1 a check
# failed.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$1 lost=$2 folder=$3
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../e2e/expect.sh"
recipe=$PWD/tests/golden/h200/dense.ini
unset INVAR_LEDGER
rm -rf "$folder"
mkdir -p "$folder" && cd "$folder" || exit 2

# ends CODE TEXT COMMAND ...: checks the exit code, and that the last line of stderr has TEXT
ends() {
    local code=$1 text=$2 rc=0 last
    shift 2
    checks=$((checks + 1))
    timeout 300 "$@" >out 2>err </dev/null || rc=$?
    last=$(tail -n 1 err)
    if ((rc != code)) || [[ $last != *"$text"* ]]; then
        complain "$*: exit code $rc, expected $code with \"$text\":" "$last"
    fi
}

# train RUN FLAG ...: sets `words` to the command line
train() {
    words=(train "$recipe" --num-rollout 3 --device cuda --no-report --run "$1" --save "$1/save"
        --load "$1/save" --save-interval 1 "${@:2}")
}

# go_on RUN: checks that the ledger verifies and that the run resumes to the undisturbed chain
go_on() {
    if [[ -e $1/ledger.db ]]; then
        ends 0 "" "$invar" ledger verify "$1"
    fi
    train "$1"
    ends 0 "" "$lost" "${words[@]}"
    ends 0 "" "$invar" ledger verify "$1"
    ends 0 "" "$invar" diff whole "$1"
}

train whole
calls=0
INVAR_TEST_COUNT=$folder/calls ends 0 "" "$lost" "${words[@]}"
read -r calls <"$folder"/calls
((calls > 200)) || complain "the run has \"$calls\" calls"

# a kernel that traps: in the first rollout, in the middle, near the end
for call in 50 $((calls / 2)) $((calls - calls / 20)); do
    train "lost$call"
    INVAR_TEST_LOSE=$call ends 2 "started again, a run goes on from its last checkpoint" \
        "$lost" "${words[@]}"
    go_on "lost$call"
done

# a full GPU: no memory for the device context, or not enough for the run
train full1
INVAR_TEST_FREE=1 ends 2 "MiB" "$lost" "${words[@]}"
go_on full1
train full40 --kv-pages 10000
INVAR_TEST_FREE=40 ends 2 "set kv-pages = 0" "$lost" "${words[@]}"
grep -q "the run does not fit: it needs [0-9.]* MiB, the GPU has" err || complain "$(cat err)"
[[ ! -e full40 ]] || complain "a run that does not fit was begun"
go_on full40

# absent VARIABLE ...: without a GPU or with an unusable driver, no run is begun
absent() {
    train absent
    ends 125 "choose device = cpu" env "$@" "$invar" "${words[@]}"
    [[ ! -e absent ]] || complain "$*: a run was begun"
    ends 125 "choose device = cpu" env "$@" "$invar" selfcheck --device cuda --json
    ends 125 "choose device = cpu" env "$@" "$invar" bench --device cuda --op add --json
}
absent CUDA_VISIBLE_DEVICES=
mkdir old none
: >none/libcuda.so.1
absent LD_LIBRARY_PATH="$folder/none"
cat >old/cuda.c <<'END'
#include <stddef.h>
#include <string.h>
int cuInit(unsigned flags) { return (int)flags; }
int cuDriverGetVersion(int *out) { return *out = 12040, 0; }
int cuGetExportTable(const void **out, const void *id) { return *out = id ? NULL : out, 1; }
int cuGetProcAddress_v2(const char *name, void **out, int version, unsigned long flags, int *found);
int cuGetProcAddress(const char *name, void **out, int version, unsigned long flags)
{
    return cuGetProcAddress_v2(name, out, version, flags, NULL);
}
int cuGetProcAddress_v2(const char *name, void **out, int version, unsigned long flags, int *found)
{
    *out = strcmp(name, "cuDriverGetVersion") == 0 ? (void *)cuDriverGetVersion
           : strcmp(name, "cuInit") == 0           ? (void *)cuInit
           : strcmp(name, "cuGetExportTable") == 0 ? (void *)cuGetExportTable
           : strcmp(name, "cuGetProcAddress") == 0 ? (void *)cuGetProcAddress_v2
           : version && flags == 99                ? (void *)name
                                                   : NULL;
    if (found)
        *found = *out ? 0 : 1;
    return *out ? 0 : 500;
}
END
if cc -shared -fPIC -o old/libcuda.so.1 old/cuda.c; then
    absent LD_LIBRARY_PATH="$folder/old"
    ends 125 "is for CUDA 12.4, this build needs CUDA" \
        env LD_LIBRARY_PATH="$folder/old" "$invar" selfcheck --device cuda
else
    echo "no C compiler: a driver that is too old was not tried" >&2
    failed=1
fi

((failed)) || echo "$checks checks"
exit $failed
