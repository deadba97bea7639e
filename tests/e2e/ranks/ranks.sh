#!/usr/bin/env bash
# ranks.sh INVAR FOLDER - a run on several ranks, threads or processes, has the bits of one rank.
#
# Chains and checkpoints are compared for several numbers of ranks, many kinds of runs, and runs
# that resume on another number of ranks. Controls: another seed does not match the golden, and a
# rank with another program, recipe, data or weights ends the run. Without mpirun, ranks are threads
# only. INVAR_TEST_FULL=1 adds numbers of ranks, a larger golden, and errors of the same kind.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$(readlink -f "$1") folder=$2 full=${INVAR_TEST_FULL:-}
rm -rf "$folder"
here=$PWD/tests/e2e/run recipes=$PWD/recipes
mkdir -p "$folder" && cd "$folder" || exit 2
# shellcheck source=tests/e2e/expect.sh
source "$OLDPWD/tests/e2e/expect.sh"
# shellcheck source=tests/e2e/ranks/launch.sh
source "$OLDPWD/tests/e2e/ranks/launch.sh"

# ---- any number of ranks ----------------------------------------------------------------------
tiny_recipe 6 >tiny.ini
ends 0 1 tiny.ini --run one --record-golden one.golden
for ranks in ${full:+2 3} 4; do
    ends 0 "$ranks" tiny.ini --run "r$ranks" --golden one.golden
    holds grep -q '^golden    identical, 6 of 6' out
    equal one "r$ranks"
done
expect 0 '4' ledger sql "SELECT value FROM fact WHERE scope = 'layout' AND key = 'ranks'" r4
expect 0 'identical' replay r4 --step 3
ends 4 2 tiny.ini --run other --seed 7 --golden one.golden

# ---- any kind of run --------------------------------------------------------------------------
# same NAME FLAG ...: checks that the recipe with these flags has the same result on three ranks as
# on one.
same() {
    local name=$1 ranks
    shift
    for ranks in 1 3; do
        rm -f count
        ends 0 "$ranks" tiny.ini --run "$name-$ranks" --num-rollout 3 "$@"
        holds grep '^content' out >"$name-$ranks/content"
    done
    holds diff "$name-1/content" "$name-3/content"
    equal "$name-1" "$name-3"
}
[[ ! $full ]] || same eval --eval-prompt-data 'max task:max' \
    --eval-interval 2 --n-samples-per-eval-prompt 3
printf '%s\n' '[cold]' 'path = task:max' 'temperature = 0' '[many]' 'path = task:sort' \
    'n-samples-per-eval-prompt = 3' 'max-response-len = 3' 'rm-type = exact' 'top-p = 0.5' >sets
same sets --eval-config sets --eval-interval 2
same few --rollout-batch-size 1 --n-samples-per-prompt 2 # one group, fewer samples than ranks
same filter --dynamic-sampling-filter nonzero_std --over-sampling-batch-size 3
same ppo --advantage-estimator ppo --dtype bf16 --num-steps-per-rollout 2
same kl --use-kl-loss --kl-loss-coef 0.1 --ref-update-interval 1 --dtype bf16
same sft --loss-type sft_loss --n-samples-per-prompt 1 --eval-prompt-data 'max task:max' \
    --eval-interval 1
same experts --model-type qwen3_moe --num-experts 3 --moe-router-topk 2 --dtype fp8 \
    --use-rollout-routing-replay --rollout-stop '["1"]'
same int4 --dtype int4 --hidden-size 32 --ffn-hidden-size 32 --num-attention-heads 2 \
    --use-kl-loss --kl-loss-coef 0.1

# Only rank 0 calls the plug-ins, once for all samples.
judge="python3 $here/nondeterministic_plugin.py count"
same plugins --rm-type none --custom-rm-path "$judge" --rollout-sample-filter-path "$judge" \
    --loss-type custom_loss --custom-loss-function-path "$judge" \
    --dynamic-sampling-filter-path "$judge" --over-sampling-batch-size 3 \
    --custom-before-train-step-hook-path "$judge"
holds [ "$(<count)" = 5 ]
kinds="SELECT (SELECT count(*) FROM gauge JOIN series USING(series)
    WHERE name = 'hook/before_train_step/start'), count(*) > 0,
    (SELECT max(value) FROM metrics WHERE name = 'train/loss_factor')
    FROM metrics WHERE name = 'rollout/dynamic_filter/dropped' AND value > 0"
holds [ "$(sqlite3 -readonly plugins-3/ledger.db "$kinds")" = '3|1|1.625' ]
parts="SELECT count(*), (SELECT count(*) FROM metrics WHERE name = 'rollout/reward/taste')
    FROM reward_parts WHERE name = 'mood'"
holds [ "$(sqlite3 -readonly plugins-3/ledger.db "$parts")" = '6|3' ]

# The goldens of the recipes were recorded on one rank.
for recipe in moe ${full:+quickstart}; do
    ends 0 4 "$recipes/$recipe.ini" --run "$recipe" --until 3 --golden "$recipes/$recipe.golden"
    holds grep -q '^golden    identical, 4 of' out
done

# ---- experts and a critic, whose optimizer state is divided among the ranks --------------------
moe=("$recipes/moe.ini" --num-rollout 4 --save-interval 3 --advantage-estimator ppo)
ends 0 1 "${moe[@]}" --run whole
ends 0 4 "${moe[@]}" --run sliced --until 2
ends 0 3 "${moe[@]}" --run sliced
equal whole sliced

# ---- another number of ranks ------------------------------------------------------------------
ends 0 2 tiny.ini --run moves --until 1
ends 0 3 tiny.ini --run moves --until 3
ends 0 1 tiny.ini --run moves
equal one moves
ends 0 4 tiny.ini --run moves # nothing is left
holds grep -q 'the run is finished' err

# ---- one rank fails ---------------------------------------------------------------------------
judged=(tiny.ini --rm-type none --custom-rm-path "python3 $here/../ranks/failing.py")
echo 99 >left
ends 0 1 "${judged[@]}" --run judged

# fails RANKS: the plug-in fails on rank 0; checks that all ranks end with one message and a
# checkpoint, and that the next start resumes.
fails() {
    echo 3 >left
    ends 2 "$1" "${judged[@]}" --run "judged-$1"
    holds [ "$(grep -c 'custom-rm-path: it ended.*a checkpoint of step 2 is saved' err)" = 1 ]
    expect 0 'clean' ledger verify "judged-$1"
    echo 99 >left
    ends 0 2 "${judged[@]}" --run "judged-$1"
    holds grep -q 'resumed after step 2 from' err
    equal judged "judged-$1"
}
[[ ! $full ]] || fails 1
[[ ! $full ]] || fails 3 # processes do the same below, and threads in layouts.sh

# Nothing is saved in the middle of a step.
echo 99 >left
ends 129 3 "${judged[@]}" --run half --debug-dump 'no.such.*' --save-interval 9
holds [ "$(grep -c 'is saved' err)" = 0 ]

# ---- a finding of all ranks is reported once --------------------------------------------------
# Log-probs were changed in a file: exit code, message and event are those of one rank.
samples='rollout-{rollout_id}.jsonl'
ends 0 1 tiny.ini --run sampled --num-rollout 1 --save-debug-rollout-data "$samples"
python3 "$here/rollout_edit.py" rollout-0.jsonl '"logprobs":\[-' '"logprobs":[-1'
for i in 1 ${full:+2 3}; do
    ends 1 8 tiny.ini --run "differs-$i" --num-rollout 1 --load-debug-rollout-data "$samples"
    holds grep -q '^invar: step 0: log-probabilities of rollout and scoring differ' err
    expect 0 '1' ledger sql "SELECT count(*) FROM event WHERE kind = 'logp-mismatch'" "differs-$i"
done

# ---- invar doctor --ranks ---------------------------------------------------------------------
# checked CODE TEXT COMMAND ...: checks the exit code, and that a line of the output matches TEXT.
checked() {
    local code=$1 text=$2 rc=0
    shift 2
    checks=$((checks + 1))
    timeout 120 "$@" >out 2>err </dev/null || rc=$?
    ((rc == code)) || complain "$*: exit code $rc, expected $code:" "$(<out)" "$(<err)"
    grep -q -- "$text" out err || complain "$*: no line with '$text':" "$(<out)" "$(<err)"
}
checked 0 '^bytes    all arrived' "$invar" doctor --ranks 3
holds [ "$(grep -c '^ *[012]  [^ ]* .* none  ' out)" = 3 -o -n "$(grep NVIDIA out)" ]
holds [ "$(grep -c '^sendrecv\|^alltoallv\|^barrier' out)" = 7 ]
checked 0 '^ranks    1: one rank' "$invar" doctor --ranks
holds [ "$(grep -c '^bytes' out)" = 0 ]
checked 0 ' identity$' "$invar" doctor tiny.ini --ranks 2 --seed 5
holds [ ! -e runs ] # nothing is written
checked 2 '^invar: ref-load: nowhere: no such folder' "$invar" doctor --ranks 2 tiny.ini \
    --ref-load nowhere
checked 129 "unexpected argument 'tiny.ini'" "$invar" doctor tiny.ini
checked 129 "unknown option '--seed" "$invar" doctor --seed 5
checked 129 '0; expected 1 to 1024' "$invar" doctor --ranks 0
checked 129 '--timeout is about ranks' "$invar" doctor --timeout 5
checked 0 '"sound": true' "$invar" doctor --json --ranks=2
holds python3 -c 'import json, sys
found = json.load(open("out"))
assert [r["rank"] for r in found["ranks"]] == [0, 1] and found["differences"] == []
assert all(c["seconds"] > 0 for c in found["calls"]) and found["calls"][3]["bytes"] == 1 << 24'

# The GPU of all ranks computes other bits.
mkdir gpu && cp "$(dirname "$invar")/tests/plugin/fake_cuda.so" gpu/invar-cuda.so
INVAR_MODULES=gpu checked 1 'rank 1 on .*: its GPU must not run numerics sm90' "$invar" doctor \
    --ranks 2
holds [ "$(grep -c ' Fake GPU  1.0 *DIFFERS ' out)" = 2 ]
holds grep -q '^ranks    all are equal' out

$mpi || {
    ((failed)) || echo "$checks checks: all as expected; there is no mpirun"
    exit "$failed"
}

# ---- processes --------------------------------------------------------------------------------
ends 0 m2 tiny.ini --run p2 --golden one.golden
holds grep -q '^golden    identical, 6 of 6' out
equal one p2
[[ ! $full ]] || { # a failed run moves from processes to threads below
    ends 0 m3 tiny.ini --run p-moves --until 2
    ends 0 2 tiny.ini --run p-moves
    equal one p-moves
}

# once CODE TEXT ARGUMENT ...: checks that an error that all processes find before they connect is
# reported once.
once() {
    local code=$1 text=$2
    shift 2
    checked "$code" "$text" mpirun --oversubscribe -n 3 "$invar" "$@"
    holds [ "$(grep -c '^invar:' err)" = 1 ]
}
once 2 '^invar: nowhere.ini: ' train nowhere.ini
[[ ! $full ]] || once 129 "^invar: .*'--sede'" train tiny.ini --sede 5
once 129 '3 processes have been started already' train tiny.ini --ranks 2
[[ ! $full ]] || once 129 "^invar: .*'--sede'" doctor --ranks tiny.ini --sede 5
once 129 '^invar: ledger show runs in one process, and a launcher has started several' ledger show \
    one
[[ ! $full ]] || once 129 '^invar: eval runs in one process' eval tiny.ini --run one
[[ ! $full ]] || once 129 "^invar: no verb 'trian' (did you mean 'train'?)" trian tiny.ini
checked 0 '^invar ' mpirun --oversubscribe -n 2 "$invar" version
holds [ "$(grep -c '^invar ' out)" = 2 ]
expect 0 'one' ledger show one # no launcher
OMPI_COMM_WORLD_SIZE=1 expect 0 'one' ledger show one

# differ TEXT ARGUMENT ...: starts the last of three ranks differently; checks that the run fails
# with TEXT before it makes a folder.
differ() {
    local text=$1 rc=0
    shift
    checks=$((checks + 1))
    timeout 300 mpirun --oversubscribe -n 2 "$invar" train "$recipe" --run odd : \
        -n 1 "$@" --run odd >out 2>err </dev/null || rc=$?
    ((rc == 2)) || complain "$*: exit code $rc, expected 2:" "$(<out)" "$(<err)"
    holds grep -q "^invar: rank 2 on .* is another run than rank 0 on .*: its $text is " err
    holds [ "$(grep -c ^invar: err)" = 1 ]
    holds [ ! -e odd ]
}
recipe=tiny.ini
cp "$invar" another && printf '\0' >>another && cp "$(dirname "$invar")/invar-mpi.so" .
differ program ./another train tiny.ini
mkdir others && cp "$(dirname "$invar")"/invar-*.so others && printf '\0' >>others/invar-mpi.so
differ 'module invar-mpi.so' -x INVAR_MODULES="$PWD/others" "$invar" train tiny.ini
[[ ! $full ]] || differ rollout-seed "$invar" train tiny.ini --rollout-seed 7
[[ ! $full ]] || differ save-interval "$invar" train tiny.ini --save-interval 3
differ 'folder of checkpoints' -x INVAR_SAVE=none "$invar" train tiny.ini
fails m3

# Files that one rank reads with another content, or not at all.
"$here/replay_files.py" files
sed -e '/^num-layers\|^hidden-size\|^ffn-\|^num-att\|^max-pos\|^task-size/d' \
    -e 's/task:max/files\/data.jsonl/' -e 's/^rm-type.*/rm-type = f1\nlabel-key = label/' \
    -e 's/^dtype.*/dtype = bf16\nhf-checkpoint = files\/hf\nhf-ignore-keys = training_note/' \
    tiny.ini >hf.ini
mkdir elsewhere && cp -r hf.ini files elsewhere
sed -i '1s/0 + 0/0 + 1/' elsewhere/files/data.jsonl
recipe=hf.ini
differ 'data hash' --wdir elsewhere "$invar" train hf.ini
cp files/data.jsonl elsewhere/files
python3 - elsewhere/files/hf/model.safetensors <<'END' # the last bit of the last weight
import sys
data = bytearray(open(sys.argv[1], "rb").read())
data[-4] ^= 1
open(sys.argv[1], "wb").write(data)
END
differ 'weights as read' --wdir elsewhere "$invar" train hf.ini
rm elsewhere/files/data.jsonl
checks=$((checks + 1))
timeout 300 mpirun --oversubscribe -n 1 "$invar" train hf.ini --run odd : \
    -n 1 --wdir elsewhere "$invar" train hf.ini --run odd >out 2>err </dev/null &&
    complain "a rank without data, and the run ended well"
holds grep -q '^invar: rank 1 on .* cannot go on: .*data.jsonl' err
holds [ ! -e odd -a ! -e elsewhere/odd ]

# A rank other than 0 fails in the middle of a run: a file of its host has tokens of another model.
# The exit code is that of the failing rank.
own='own-{rollout_id}.jsonl'
ends 0 1 tiny.ini --run wrote --save-debug-rollout-data "$own"
cp own-*.jsonl tiny.ini elsewhere
python3 "$here/rollout_edit.py" elsewhere/own-4.jsonl '"tokens":\[' '"tokens":[9'
loads=("$invar" train tiny.ini --run "$PWD/loses" --load-debug-rollout-data "$own" --no-report)
rc=0
timeout 300 mpirun --oversubscribe -n 2 "${loads[@]}" : -n 1 --wdir elsewhere "${loads[@]}" \
    >out 2>err </dev/null || rc=$?
holds [ "$rc" = 129 ]
holds grep -q '^invar: rank 2 on .* cannot go on: own-4.*a checkpoint of step 3 is saved' err
holds [ "$(grep -c ^invar:\ rank err)" = 1 ]
ends 0 2 tiny.ini --run loses --load-debug-rollout-data "$own"
holds grep -q 'resumed after step 3 from' err
equal one loses

# The doctor finds the same differences, and marks every value that differs.
doctor=(mpirun --oversubscribe -n 2 "$invar" doctor --ranks)
checked 0 '^ranks    3: processes, MPI' mpirun --oversubscribe -n 3 "$invar" doctor --ranks
holds grep -q '^bytes    all arrived' out
[[ ! $full ]] || checked 129 '2 processes have been started already' mpirun -n 2 \
    --oversubscribe "$invar" doctor --ranks 2
checked 1 '^recipe   rank 2 on .* is another run than rank 0 on .*: its save-interval is' \
    "${doctor[@]}" tiny.ini : -n 1 "$invar" doctor --ranks tiny.ini --save-interval 3
cp "$(dirname "$invar")/invar-mpi.so" gpu
INVAR_MODULES=$PWD/gpu checked 1 '^driver   rank 2 on .* has 0.9, rank 0 on .* has 1.0: install' \
    "${doctor[@]}" : -n 1 -x FAKE_DRIVER=0.9 ./another doctor --ranks
same_program='rank 2 on .* has .*, rank 0 on .* has .*: give all hosts the same program'
holds grep -q "^program  $same_program" out
holds [ "$(grep -c ' !$' out)" = 1 ]
holds grep -q '^ *2 .* !$' out
[[ ! $full ]] || {
    cp files/data.jsonl elsewhere/files && sed -i '1s/0 + 0/0 + 1/' elsewhere/files/data.jsonl
    checked 1 '^data     rank 2 on .*: give all hosts the same data' \
        "${doctor[@]}" hf.ini : -n 1 --wdir elsewhere "$invar" doctor --ranks hf.ini
    rm elsewhere/files/data.jsonl
    checked 2 '^invar: rank 2 on .* cannot go on: .*data.jsonl' \
        "${doctor[@]}" hf.ini : -n 1 --wdir elsewhere "$invar" doctor --ranks hf.ini
    holds [ "$(grep -c ^invar: err)" = 1 ]
}
checked 2 '^invar: not all ranks have come in 2 s' "${doctor[@]}" --timeout 2 : -n 1 sleep 60
holds [ "$(grep -c ^invar: err)" = 1 ]

((failed)) || echo "$checks checks: all as expected"
exit "$failed"
