# sharded_model.sh - runs of ranks/sharded_model.ini: the head of tests of several models, INVAR
# FOLDER.
#
# It makes the folder anew and goes there, with expect.sh. `train_flags` are of every run.
# shellcheck shell=bash disable=SC2034
# SPDX-License-Identifier: Apache-2.0
invar=$(readlink -f "$1") folder=$2
recipe=$PWD/tests/e2e/ranks/sharded_model.ini
rm -rf "$folder"
mkdir -p "$folder" && cd "$folder" || exit 2
# shellcheck source=tests/e2e/expect.sh
source "$OLDPWD/tests/e2e/expect.sh"
full=${INVAR_TEST_FULL:-} train_flags=()

# train NAME FLAG ...: a run; its chain is in `chain`.
train() {
    local name=$1 output
    shift
    checks=$((checks + 1))
    output=$("$invar" train "$recipe" --no-report --dtype bf16 --threads 1 --run "$name" \
        "${train_flags[@]}" "$@" 2>&1 </dev/null) || complain "$name: exit code $?" "$output"
    chain=$(sed -n 's/^chain  *//p' <<<"$output")
}

# digest RUN POINT: its hash in step 0.
digest() {
    column "$1" "SELECT hash FROM digests WHERE name = '$2' AND step = 0"
}
