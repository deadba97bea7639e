# sharded_model.sh - setup of tests with ranks/sharded_model.ini; sourced with INVAR FOLDER.
#
# Creates the folder, changes to it and sources expect.sh. `train_flags` go to every run.
# shellcheck shell=bash disable=SC2034
# SPDX-License-Identifier: Apache-2.0
invar=$(readlink -f "$1") folder=$2
recipe=$PWD/tests/e2e/ranks/sharded_model.ini
rm -rf "$folder"
mkdir -p "$folder" && cd "$folder" || exit 2
# shellcheck source=tests/e2e/expect.sh
source "$OLDPWD/tests/e2e/expect.sh"
full=${INVAR_TEST_FULL:-} train_flags=()

# train NAME FLAG ...: trains and sets `chain`.
train() {
    local name=$1 output
    shift
    checks=$((checks + 1))
    output=$("$invar" train "$recipe" --no-report --dtype bf16 --threads 1 --run "$name" \
        "${train_flags[@]}" "$@" 2>&1 </dev/null) || complain "$name: exit code $?" "$output"
    chain=$(sed -n 's/^chain  *//p' <<<"$output")
}

# digest RUN POINT: prints the digest of the point in step 0.
digest() {
    column "$1" "SELECT hash FROM digests WHERE name = '$2' AND step = 0"
}
