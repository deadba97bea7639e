#!/usr/bin/env bash
# replay.sh INVAR PACKER FOLDER - invar replay, invar pack and diff --replay.
#
# Recorded steps are replayed from runs and from packs, with other free keys, after moves, and
# without the plug-ins and draft models of the run. All must be identical. Damaged packs are
# rejected. Control: PACKER FILE writes a pack with a weight that is not the recorded one, and its
# replay must differ. INVAR_TEST_FULL=1 repeats replays whose steps another replay has already
# proved, and damages packs at more places.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$1 packer=$2 folder=$3
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$folder"
mkdir -p "$folder/tmp" && cd "$folder" || exit 2
export TMPDIR=$folder/tmp

# train RUN FLAG ...: trains the recipe, with checkpoints in RUN/save.
train() {
    local run=$1
    shift
    "$invar" train "$recipe" --no-report --threads 1 --run "$run" --save "$run/save" \
        --load "$run/save" "$@" >output 2>&1 || complain "train $run $*:" "$(<output)"
}

# run_chain RUN: prints the chain of the run.
run_chain() {
    "$invar" ledger show "$1" --json | python3 -c 'import json, sys
print(json.load(sys.stdin)["run"]["chain"])'
}

# poke FILE OFFSET: changes one byte.
poke() { printf '\1' | dd of="$1" bs=1 seek="$2" conv=notrunc status=none; }

# prints PATH ...: prints the digests of all files, without those that a reader of a ledger creates.
prints() { find "$@" -type f ! -name '*-shm' -exec sha256sum {} + | sort; }

recipe=tiny.ini
cat >tiny.ini <<'END'
[model]
dtype = fp32
num-layers = 2
hidden-size = 32
ffn-hidden-size = 48
num-attention-heads = 2
max-position-embeddings = 32

[ckpt]
save-interval = 2

[rollout]
prompt-data = task:max
num-rollout = 4
rollout-batch-size = 2
n-samples-per-prompt = 2
rollout-max-response-len = 3
rm-type = overlap

[optimizer]
lr = 0.01

[engine]
numerics = ieee
END

# ---- two runs, replayed by diff ------------------------------------------------------------------

train one
train two --seed 5
again=(diff one two --replay)
"$invar" "${again[@]}" --html page.html >output 2>err
holds test "$?" = 1
holds grep -q 'point batch.tokens (rollout), the first that differs' output
holds [ "$(grep -c 'executing' err)" = 2 ] # other weights explain other samples
holds grep -q '^  A  .*  steps 0-3  one/ledger.db$' output
holds grep -q '^  free .* run .* one | two$' output
holds [ "$(grep -c -e --replay output)" = 0 ]
train three --ref-load one/save
expect 1 'its inputs are equal, but not the weights' diff one three --replay
ln -sf "$invar" own-program
more expect 1 'different' "${again[@]}" --program-a own-program
# Wrong options are rejected before anything is replayed.
expect 129 '--debug-determinism would be ignored' "${again[@]}" --debug-determinism full
expect 2 'missing/page.html: its folder does not exist' "${again[@]}" --html missing/page.html
expect 2 'missing/kept: the folder cannot be made' "${again[@]}" --keep missing/kept
holds [ ! -e missing ]
# The exit code is that of the program that replays.
expect 129 'A cannot be executed again: exit code 129' "${again[@]}" --lr 0.1
CUDA_VISIBLE_DEVICES='' expect 125 'A cannot be executed again: exit code 125' "${again[@]}" \
    --device cuda

# ---- a run that is replayed ----------------------------------------------------------------------

train a
prints a >before
more expect 0 identical replay a --step 3
expect 0 'steps     2 to 3' replay a --step 3 --threads 3
expect 0 'steps     2 to 2' replay a --step 2 --micro-batch-size 3 --rollout-concurrency 1
expect 0 'steps     0 to 3' replay a --from 0 --step 3 --recompute-granularity full
expect 0 'steps     0 to 1' replay a --step 1 --page-size 3 --chunked-prefill-size 2
expect 0 'from the start' replay a --step 3 --load=
expect 2 "load: nowhere: no such folder" replay a --step 3 --load nowhere
for folder in . a; do
    expect 2 "load: $folder has no checkpoint" replay a --step 3 --load $folder
done
expect 0 '"compared": 2' replay a --step 3 --json
expect 0 '"verdict": "identical"' replay a/ledger.db --step 0 --json
expect 0 'has both executions' replay a --step 2 --level full --keep kept
expect 0 '' ledger verify kept/run
expect 129 'new or empty' replay a --step 2 --keep kept
prints a >after
holds cmp before after

expect 129 '--step is missing' replay a
expect 2 "no run 'nofile.tar': it is no folder, no file" replay nofile.tar
expect 2 'has no step 4: its steps are 0 to 3' replay a --step 4
expect 2 'has no step' replay a --step 99 --from 1
expect 129 'not before the last' replay a --step 1 --from 2
expect 129 'semantic' replay a --step 1 --lr 0.5
expect 129 'by itself' replay a --step 1 --save x
expect 129 'by itself' replay a --step 1 --num-rollout 9
expect 129 '--level finest: there are step, point and full' replay a --step 1 --level finest
expect 2 '' replay nowhere --step 1
expect 129 'missing' replay --step 1

# Older versions recorded check-logprobs as a free key, which was not part of the identity.
cp -r a old
triggers=$(sqlite3 old/ledger.db "SELECT group_concat(sql, ';') FROM sqlite_master
    WHERE type = 'trigger' AND tbl_name = 'fact'")
drop=$(sqlite3 old/ledger.db "SELECT group_concat('DROP TRIGGER ' || name, ';')
    FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'fact'")
for value in ${INVAR_TEST_FULL:+true} false; do
    sqlite3 old/ledger.db "$drop; UPDATE fact SET key = 'check-logprobs', value = '$value'
        WHERE scope = 'free' AND key IN ('page-size', 'check-logprobs'); $triggers"
    known=$(sqlite3 old/ledger.db "SELECT value FROM fact WHERE key = 'check-logprobs'")
    holds [ "$known" = "$value" ]
    expect 0 identical replay old --step 3
done

# A damaged checkpoint is skipped, and so is a checkpoint of another run.
cp -r a damaged
poke damaged/save/iter_0000001/model.safetensors 5000
expect 0 'stepped over the checkpoint of step 1' replay a --step 2 --load damaged/save
more expect 0 'steps     0 to 2' replay a --step 2 --load damaged/save
train b --seed 5
expect 0 'another run' replay a --step 2 --load b/save
expect 2 'not the recorded run' replay a --step 2 --prompt-data task:copy

expect 2 'its seed was 1234 and is 5' train tiny.ini --run a --save x --seed 5

# Several steps per rollout; a ledger with several runs.
train c --num-steps-per-rollout 2
expect 0 'steps     4 to 7' replay c --step 6
expect 0 '' ledger import b/ledger.db a/ledger.db --into many.db
expect 0 identical replay many.db:2 --step 3 --load a/save
expect 0 '' pack many.db:2 --step 2 --output many.pack
expect 0 identical replay many.pack

# ---- packs ---------------------------------------------------------------------------------------

expect 0 "the run's checkpoint" pack a --step 2 --output a2.pack
expect 0 'executing the steps before it again' pack a --step 3 --output a3.pack
expect 0 'invar replay' pack a --step 0 --output a0.pack
expect 0 'none: the step is of the first rollout' pack a --step 0 --output again.pack
expect 0 '' pack c --step 5 --output c.pack
holds cmp a0.pack again.pack
holds test "$(tar tf a3.pack | tail -1)" = manifest.json
holds test "$(tar tf a2.pack | grep -c '^checkpoint/iter_0000001/')" = 6
holds test "$(tar tf a0.pack | grep -c checkpoint)" = 0
mkdir away && mv a b c away
for pack in a0 a2 a3 c; do
    (cd away && expect 0 identical replay "../$pack.pack" --threads 2; exit "$failed") || failed=1
done
more expect 0 'steps     4 to 5' replay c.pack
expect 129 'the pack is of step 3' replay a3.pack --step 2
more expect 0 identical replay a3.pack --step 3
mv away/* .
holds test -z "$(ls tmp)"

expect 2 'has no step 9' pack a --step 9
expect 129 '--step' pack a
expect 2 '' pack a --step 1 --output nowhere/a.pack
holds test ! -e nowhere

# An output name that cannot be used is rejected before steps are replayed. Ctrl-C stops a pack and
# leaves no file.
cp tiny.ini kept.ini
"$invar" pack a --step 3 --output kept.ini >output 2>&1
holds test "$?" = 129
holds grep -q '^invar: kept.ini: a file of another kind lies there' <(head -1 output)
holds cmp tiny.ini kept.ini
train long --num-rollout 300 --save-interval 1000
"$invar" pack long --step 299 --output long.pack >output 2>errors &
pid=$!
for ((i = 0; i < 100; i++)); do
    [[ -z $(ls tmp/*/run 2>/dev/null) ]] || break
    sleep 0.05
done
kill -INT "$pid"
rc=0
wait "$pid" || rc=$?
holds test "$rc" = 130
holds test -z "$(find . -maxdepth 1 -name 'long.pack*')$(ls tmp)"

# Control: a pack with a weight that is not the recorded one.
"$packer" other.pack >output 2>&1 || complain "$(<output)"
rc=0
"$invar" replay other.pack >output 2>&1 || rc=$?
holds test "$rc" = 1
holds grep -q 'did step 2 twice' output
holds grep -q 'point rollout.logp' output
rc=0
"$invar" replay other.pack --json --keep different >output 2>&1 || rc=$?
holds test "$rc" = 1
holds grep -q '"verdict": "different"' output
holds grep -q '"differs": 2' output
expect 1 'step 2' diff different/run different/run

size=$(stat -c %s a3.pack)
for at in 0 600 ${INVAR_TEST_FULL:+130 $((size / 3)) $((size - 1500))} $((size / 2)) \
    $((size - 3)); do
    cp a3.pack bad.pack
    poke bad.pack "$at"
    expect 2 bad.pack replay bad.pack
done
for left in 400 ${INVAR_TEST_FULL:+512 1024 $((size / 2))} $((size - 512)) $((size - 1)); do
    head -c "$left" a3.pack >bad.pack
    expect 2 '' replay bad.pack
done
{ cat a3.pack && printf 'more'; } >bad.pack
expect 2 'follows the end' replay bad.pack
python3 - <<'END'
import io, tarfile
def make(path, *members):
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, kind in members:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, 2 if kind == tarfile.REGTYPE else 0, "/etc"
            tar.addfile(info, io.BytesIO(b"hi"))
make("absolute.pack", ("/tmp/invar-escaped", tarfile.REGTYPE))
make("above.pack", ("../invar-escaped", tarfile.REGTYPE))
make("link.pack", ("a", tarfile.SYMTYPE))
make("hard.pack", ("a", tarfile.LNKTYPE))
make("folder.pack", ("a", tarfile.DIRTYPE))
make("pipe.pack", ("a", tarfile.FIFOTYPE))
END
for bad in absolute above link hard folder pipe; do
    expect 2 'damaged, or not of' replay "$bad.pack"
done
holds test ! -e /tmp/invar-escaped -a ! -e ../invar-escaped
printf 'not a pack' >text.pack
expect 2 '' replay text.pack --step 1

# ---- files that the run used ---------------------------------------------------------------------

"$here/replay_files.py" files
sed -e '/^num-layers\|^hidden-size\|^ffn-\|^num-att\|^max-pos/d' \
    -e 's/task:max/files\/data.jsonl@[0:8]/' -e 's/^rm-type.*/rm-type = f1\nlabel-key = label/' \
    -e 's/^dtype.*/dtype = bf16\nhf-checkpoint = files\/hf\nhf-ignore-keys = training_note/' \
    tiny.ini >hf.ini
recipe=hf.ini
train d --save-hf 'exported-{rollout_id}'
mv exported-3 exported
expect 0 training_note ledger sql \
    "SELECT value FROM fact WHERE scope = 'free' AND key = 'hf-ignore-keys'" d
expect 0 identical replay d --step 3
expect 0 '' pack d --step 3 --output d.pack
holds test "$(tar tf d.pack | grep -c '^hf/\|^data.jsonl')" = 5
cp files/hf/tokenizer* exported/
train e --hf-checkpoint exported --use-kl-loss --kl-loss-coef 0.1
expect 0 '' pack e --step 2 --output e.pack
holds test "$(tar tf e.pack | grep -c '^hf/model.safetensors')" = 1
mv files exported away
expect 2 "the run's hf-checkpoint, does not exist" replay d --step 3
moved=(--hf-checkpoint away/files/hf --prompt-data)
expect 0 identical replay d --step 3 "${moved[@]}" 'away/files/data.jsonl@[0:8]'
expect 2 'its data hash (prompt-data) was' replay d --step 3 "${moved[@]}" away/files/data.jsonl
expect 2 'does not exist' pack d --step 3 --output none.pack
expect 0 identical replay d.pack
expect 0 identical replay e.pack

# ---- drafts, which a replay does not need --------------------------------------------------------

recipe=tiny.ini
train s --speculative-algorithm ngram --speculative-ngram-min-match-window-size 1
expect 0 identical replay s --step 3
train drafted --save-hf 'draft.{rollout_id}'
train t --speculative-algorithm draft --speculative-draft-model-path draft.3
expect 0 '' pack t --step 3 --output t.pack
rm -r draft.3
more expect 0 identical replay t --step 3
expect 0 identical replay t.pack
expect 2 'draft.3' replay t --step 3 --speculative-algorithm draft \
    --speculative-draft-model-path draft.3

# ---- plug-ins whose responses differ at every start ----------------------------------------------

recipe=tiny.ini
# Wrappers of python3, such as pyenv's, are slow to start.
python=$(python3 -c 'import sys; print(sys.executable)')
judge="$python $here/nondeterministic_plugin.py count"
plugins=(--rm-type none --custom-rm-path "$judge" --rollout-sample-filter-path "$judge"
    --loss-type custom_loss --custom-loss-function-path "$judge"
    --custom-before-train-step-hook-path "$judge")
train f "${plugins[@]}"
chain=$(run_chain f)
holds test "$(<count)" = 4
more expect 0 identical replay f --step 3
expect 0 identical replay f --from 0 --step 3
expect 0 '' pack f --step 3 --output f.pack
expect 0 identical replay f.pack
holds test "$(<count)" = 4 # no plug-in was started
cp -r f g
rm -r g/save/iter_0000003
echo 1 >g/save/latest_checkpointed_iteration.txt
train g "${plugins[@]}"
holds test "$(<count)" = 8
holds test "$(run_chain g)" = "$chain"
expect 0 identical diff f g
train h "${plugins[@]}" # control: another start gives other responses
holds test "$(run_chain h)" != "$chain"

# A shortened ledger lacks the plug-in responses of its removed steps: the loss factor of a hook is
# then missing, not 1.
hook=(--custom-before-train-step-hook-path "$judge")
train l "${hook[@]}"
cp -r l m
expect 0 '' ledger backup l --out m/short.db --keep-last 1
rm m/ledger.db*
mv m/short.db m/ledger.db
before=$(run_chain m)
expect 0 identical replay l --step 2
expect 2 'its loss factor of step 2 was left out of this ledger' replay m --step 3
rm -r m/save/iter_0000003
echo 1 >m/save/latest_checkpointed_iteration.txt
expect 2 'take the complete one, or continue' train tiny.ini --run m --save m/save --no-report \
    "${hook[@]}"
holds test "$(run_chain m)" = "$before"

# A plug-in with another run_chain is another plug-in: its run differs, and it does not get recorded
# responses. By default, teacher and train.lifecycle change plug-ins, and
# unit.ledger.view.diff.diff compares such runs.
if [[ ! ${INVAR_TEST_FULL:-} ]]; then
    ((failed)) || echo "$checks checks"
    exit "$failed"
fi
cp "$here/nondeterministic_plugin.py" judge.py
plugins=(--rm-type none --custom-rm-path "python3 judge.py count")
train i "${plugins[@]}"
cp -r i j
rm -r j/save/iter_0000003
echo 1 >j/save/latest_checkpointed_iteration.txt
echo '# changed' >>judge.py
train k "${plugins[@]}"
expect 1 'different: another plug-in (custom-rm-path), first at step 0' diff i k
before=$(run_chain j)
expect 2 'plug-in custom-rm-path: it has changed' train tiny.ini --run j --save j/save \
    --load j/save --no-report "${plugins[@]}"
expect 0 identical replay j --step 3 # a replay starts no plug-in
holds test "$(run_chain j)" = "$before"
cp "$here/nondeterministic_plugin.py" judge.py
train j "${plugins[@]}"
holds test "$(run_chain j)" = "$before"

((failed)) || echo "$checks checks"
exit "$failed"
