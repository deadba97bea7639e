#!/usr/bin/env bash
# cli.sh INVAR - checks the command line: exit codes, messages, help, JSON and a full disk.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$1
here=$(dirname "$0")
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/expect.sh"

expect 129 "usage: invar VERB"
expect 0 "usage: invar VERB" help
expect 0 "usage: invar VERB" -h
expect 0 "--threads N" selfcheck --threads 2 --help
expect 129 "unexpected argument 'extra'" version extra
expect 129 "do not go together" selfcheck --json --record
expect 0 "--threads N" help selfcheck
expect 0 "--threads N" bench --help
expect 129 "no verb 'frob'" help frob
for subject in combinations exit-codes lr; do
    expect 129 "unexpected argument 'frob'" help $subject frob
done
expect 129 "no verb 'frob'" frob
expect 0 "invar 0." version
for line in "commit    " "compiler  " "devices   cpu (" "numerics  ieee, sm90; "; do
    expect 0 "$line" --version
done
expect 129 "no verb 'trian' (did you mean 'train'?)" trian
expect 129 "ledger: no verb 'shwo' (did you mean 'show'?)" ledger shwo
expect 129 "unknown option '--jsno' (did you mean '--json'?)" selfcheck --jsno
expect 129 "unknown option '--nmu-rollout' (did you mean '--num-rollout'?)" train --nmu-rollout 7
for verb in train eval; do
    expect 129 "which recipe? Give a file, such as recipes/quickstart.ini, or its keys" $verb
done
expect 0 "--dtype fp32|bf16|fp8|mxfp8|int4 (default bf16)" help train
expect 0 "--num-layers 0 to 256 (default 0)" help train
expect 0 "--rollout-shuffle true|false (default false)" help train
expect 0 "--prompt-data TEXT (default empty)" help train
expect 0 "[optimizer]" help lr
expect 0 "--lr 0 to 1000 (default 1e-06), semantic" help --lr
expect 0 "--threads 0 to 1024 (default 0), free" help threads
# On a terminal, help is as wide as the terminal, up to 100 columns, and no word is lost.
for columns in 60 200; do
    widest=$((columns < 100 ? columns : 100))
    for verb in "" bench train generate ledger "ledger sql" bisect lr; do
        read -ra words <<<"$verb"
        shown=$("$here/terminal.py" "$columns" "$invar" help "${words[@]}") || failed=1
        if (($(wc -L <<<"$shown") > widest)) || [[ -z $shown ]] ||
            ! cmp -s <(tr -d ' \n' <<<"$shown") <("$invar" help "${words[@]}" | tr -d ' \n'); then
            printf 'help %s is not made for %d columns:\n%s\n' "$verb" "$columns" "$shown" >&2
            failed=1
        fi
    done
done
# The table of selfcheck fits the terminal, too, and shows every hash.
for columns in 40 60; do
    shown=$("$here/terminal.py" "$columns" "$invar" selfcheck 2>/dev/null) || failed=1
    if (($(grep -v ' values: ' <<<"$shown" | wc -L) > columns)) ||
        (($(grep -c ' ok' <<<"$shown") < 100)); then
        printf 'selfcheck is not made for %d columns:\n%s\n' "$columns" "$shown" >&2
        failed=1
    fi
done
# The recipe is the word that is neither a flag nor the value of one, at any position.
expect 2 "no-such.ini: cannot be opened" train --seed 7 no-such.ini
expect 2 "no-such.ini: cannot be opened" train --rollout-shuffle no-such.ini --seed=7
expect 2 "no-such.ini: cannot be opened" eval --json --rollout 3 no-such.ini
expect 129 '--apply-chat-template: "maybe" is neither true or false, nor a recipe' generate \
    --apply-chat-template maybe --prompt x
expect 2 "no-such.ini: cannot be opened" score --dtype fp32 no-such.ini --tokens -
recipe=$here/../../recipes/quickstart.ini
expect 129 "unexpected argument 'two.ini'" train "$recipe" two.ini
expect 129 "unknown option '--frob'" train --frob 7 no-such.ini
expect 129 "unknown option '--frob'" selfcheck --frob
for verb in show watch verify; do
    expect 129 "unknown option '--run': RUN is given without a flag, as runs/NAME or @last" ledger \
        $verb --run runs/a
done
expect 129 "unexpected argument 'frob'" selfcheck frob
expect 129 "--threads needs a value" selfcheck --threads
expect 129 "'two' is not a whole number" selfcheck --threads two
expect 129 "--threads: 0; expected 1 to" selfcheck --threads=0
expect 129 "99999999999999999999; expected 1 to" selfcheck --threads 99999999999999999999
expect 129 "--json takes no value" selfcheck --json=yes
# No GPU is visible here, whatever this build and this machine have.
CUDA_VISIBLE_DEVICES='' expect 125 "choose device = cpu" bench --device cuda
CUDA_VISIBLE_DEVICES='' expect 125 "choose device = cpu" bench --device cuda --model tiny
CUDA_VISIBLE_DEVICES='' expect 125 "choose device = cpu" selfcheck --device cuda --json
expect 129 "--device tpu: there are cpu and cuda" selfcheck --device tpu
expect 129 "--device needs a value" selfcheck --device
expect 0 "next: $invar bench --device cpu" selfcheck --device=cpu
expect 129 "there are cpu and cuda" bench --device tpu
expect 129 "--layers is about a whole model: give --model" bench --op add --layers=2
expect 129 "--op is about single ops: leave out --model" bench --model tiny --op add
expect 0 "gpu      " doctor
expect 129 "unknown option '--frob'" doctor --frob
expect 129 "--op: no op has 'frob' in its name" bench --op frob
expect 0 "0 different, 0 not recorded" selfcheck --threads 3 --portable

# The command fails if its output cannot be written.
rc=0
said=$("$invar" selfcheck 2>&1 >/dev/full) || rc=$?
[[ $rc == 2 && $said == *written* ]] || complain "selfcheck on a full disk: exit code $rc: $said"
# The JSON output has one value per recorded line, and no color is written to a file.
count='import json, sys; print(json.load(sys.stdin)["values"])'
"$invar" doctor --json | python3 -c "import json, sys; assert json.load(sys.stdin)['cores'] > 0" ||
    complain "doctor --json: exit code $?"
values=$("$invar" selfcheck --json | python3 -c "$count")
lines=$("$invar" selfcheck --record | wc -l)
if [[ $values != "$lines" ]] || "$invar" selfcheck | grep -q $'\033'; then
    echo "--json has $values values, --record $lines lines, or colour went into a file" >&2
    failed=1
fi
((failed)) || echo "all as expected"
exit "$failed"
