#!/usr/bin/env bash
# train_errors.sh INVAR FOLDER - errors of invar train: one clear message, and nothing is lost.
#
# Bad recipes, files and data; a full disk; missing permissions; plug-ins that crash, hang or send
# invalid responses. Each must end with the right exit code and one line that names the remedy.
# Ledgers stay undamaged, no unfinished file stays, and the run resumes when the cause is gone, to
# the same chain. With INVAR_TEST_FULL=1 every message is tested for every command that prints it.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$1 folder=$2
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
complete=${INVAR_TEST_FULL:-}
rm -rf "$folder"
mkdir -p "$folder" || exit 2
# Commands that check a recipe before the run.
ways=(train plan)
[[ ! $complete ]] || ways=(train "train --dry-run" plan)
plain=(train recipes/bf16.ini --num-rollout 4 --threads 1 --no-report)

# whole_ledger RUN: checks that its ledger is not damaged.
whole_ledger() {
    "$invar" ledger verify "$1/ledger.db" >"$folder/verify" 2>&1 ||
        complain "$1: the ledger is damaged:" "$(<"$folder/verify")"
}

# refuses CODE TEXT RUN ARGUMENT ...: checks the exit code, that one line "invar: ...TEXT..." is
# printed, and that no unfinished file is left. A warning about the chat template may come first.
refuses() {
    local code=$1 text=$2 run=$folder/$3 rc=0 left
    shift 3
    checks=$((checks + 1))
    "${under[@]}" "$invar" "$@" --run "$run" >"$folder/out" 2>"$folder/err" </dev/null || rc=$?
    grep '^invar: ' "$folder/err" | grep -v '^invar: warning: step 0: template: ' >"$folder/said"
    if ((rc != code)) || [[ $(wc -l <"$folder/said") != 1 ]] ||
        ! grep -qF -- "$text" "$folder/said"; then
        complain "$*: exit code $rc, expected $code with \"$text\":" "$(<"$folder/err")"
    fi
    left=$(find "$run" \( -name '*tmp*' -o -name '*.new' -o -name 'report.html' \) 2>/dev/null)
    [[ -z $left ]] || complain "$*: left behind: $left"
    if [[ -s $run/ledger.db ]]; then
        whole_ledger "$run"
    fi
}
under=()

# works RUN ARGUMENT ...: checks that the command succeeds; sets `chain`.
works() {
    local run=$folder/$1 rc=0
    shift
    checks=$((checks + 1))
    "$invar" "$@" --run "$run" --json >"$folder/out" 2>"$folder/err" || rc=$?
    chain=$(member chain "$folder/out")
    ((rc == 0)) || complain "$*: exit code $rc:" "$(<"$folder/err")"
    whole_ledger "$run"
}

works whole "${plain[@]}"
# A ledger given as an output file is a mistake.
shopt -s nullglob
for flag in --trace --record-golden; do
    refuses 129 "a ledger or another database lies there" "over$flag" "${plain[@]}" "$flag" \
        "$folder/whole/ledger.db"
done
# A file of another kind is not replaced, neither under its own name nor under a name derived from
# it; a link is not followed.
cp recipes/bf16.ini "$folder/mine.ini" && cp recipes/bf16.ini "$folder/mine.points"
ln -s mine.ini "$folder/link"
other="a file of another kind lies there and is not replaced; remove it, or give another name"
refuses 129 "mine.ini: $other" over--trace "${plain[@]}" --trace "$folder/mine.ini"
refuses 129 "mine.ini: $other" over--golden "${plain[@]}" --record-golden "$folder/mine.ini"
refuses 129 "mine.points: $other" over--golden "${plain[@]}" --record-golden "$folder/mine.golden"
cp recipes/bf16.points "$folder/own.points"
refuses 129 "own.points: a file of this name has the points of a golden" over--golden \
    "${plain[@]}" --record-golden "$folder/own.points"
cmp -s recipes/bf16.points "$folder/own.points" || complain "own.points was replaced"
rm "$folder/own.points"
refuses 2 "mine.ini" over--ledger "${plain[@]}" --ledger "$folder/mine.ini"
[[ -z $(echo "$folder"/mine.ini-*) ]] || complain "beside no ledger: $(echo "$folder"/mine.ini-*)"
mkfifo "$folder/pipe"
for flag in --trace --record-golden; do
    refuses 129 "link: is a symbolic link, and is not replaced or followed" over--trace \
        "${plain[@]}" "$flag" "$folder/link"
    refuses 129 "pipe: is a pipe, and is not replaced" over--trace "${plain[@]}" "$flag" \
        "$folder/pipe"
    # The folder of an output is checked before the run begins.
    refuses 2 "nowhere/f: its folder does not exist; create it first" over--trace "${plain[@]}" \
        "$flag" "$folder/nowhere/f"
done
[[ -p $folder/pipe ]] || complain "a pipe was replaced"
rm "$folder/pipe"
cp recipes/bf16.ini "$folder/mine-0"
refuses 129 "mine-0: $other" over-rollouts "${plain[@]}" --save-debug-rollout-data \
    "$folder/mine-{rollout_id}"
rm "$folder/mine-0" && cp recipes/bf16.ini "$folder/mine-2"
refuses 129 "mine-2: $other" over-rollouts "${plain[@]}" --save-debug-rollout-data \
    "$folder/mine-{rollout_id}"
mkdir "$folder/over-report" && cp recipes/bf16.ini "$folder/over-report/report.html"
rc=0
"$invar" "${plain[@]:0:6}" --run "$folder/over-report" >"$folder/out" 2>"$folder/err" || rc=$?
if [[ $rc != 129 || -e $folder/over-report/ledger.db ]] ||
    ! grep -qF "report.html: $other" "$folder/err"; then
    complain "a foreign report.html: exit code $rc:" "$(<"$folder/err")"
fi
cmp -s recipes/bf16.ini "$folder/over-report/report.html" || complain "report.html was replaced"
# A golden of another recipe is not replaced.
cp recipes/fp8.golden "$folder/fp8.golden"
refuses 129 "it is of a run that was asked for something else, and is not replaced" over--golden \
    "${plain[@]}" --record-golden "$folder/fp8.golden"
cmp -s recipes/fp8.golden "$folder/fp8.golden" || complain "fp8.golden was replaced"
# A folder with foreign files is not used as a run's folder, nor moved by --fresh.
mkdir "$folder/thesis" && echo precious >"$folder/thesis/chapter1"
for flag in --no-save-optim --fresh; do
    refuses 129 'thesis holds "chapter1" and no ledger: it is no folder of a run' thesis \
        "${plain[@]}" "$flag"
done
[[ $(ls "$folder"/thesis*) == chapter1 ]] || complain "a foreign folder: $(ls "$folder"/thesis*)"
# Files that users keep next to a run are not foreign.
mkdir "$folder/mine" && cp recipes/bf16.ini "$folder/mine/own.ini"
echo begun >"$folder/mine/tee.log"
"$invar" train "$folder/mine/own.ini" --run "$folder/mine" --num-rollout 1 --no-report \
    >"$folder/out" 2>&1 || complain "a recipe and a log: $(<"$folder/out")"
# A log of the run's output, and files that a run leaves, are not foreign either.
mkdir -p "$folder/logged/checkpoints"
"$invar" "${plain[@]}" --until 0 --run "$folder/logged" >"$folder/logged/log" 2>&1 ||
    complain "a log in the run's folder: $(<"$folder/logged/log")"
# A folder that save-hf would replace is rejected before the run, even one of a later rollout.
export=(--save-interval 2 --save-hf "$folder/export-{rollout_id}")
mkdir "$folder/export-3" && echo mine >"$folder/export-3/chat_template.jinja"
refuses 129 "export-3 is not empty, and this run did not write it" exports "${plain[@]}" \
    "${export[@]}"
[[ ! -e $folder/exports && ! -e $folder/export-1 ]] || complain "exports: something was run"
rm -r "$folder/export-3"
works exports "${plain[@]}" "${export[@]}" --debug-exit-after-rollout 2
refuses 129 "export-1 is not empty, and this run did not write it" others "${plain[@]}" \
    "${export[@]}"
# A run replaces its own exports: the checkpoints are gone, and the steps are executed again.
rm -r "$folder/exports/checkpoints" && echo stale >"$folder/export-1/model.safetensors"
works exports "${plain[@]}" "${export[@]}"
lacks '^stale$' "$folder/export-1/model.safetensors"
[[ -s $folder/export-3/config.json ]] || complain "no export of the last rollout"

for name in mine.ini mine.points mine-2; do
    cmp -s recipes/bf16.ini "$folder/$name" || complain "$name was replaced"
done
[[ -L $folder/link && -z $(echo "$folder"/over--{trace,golden}*) ]] ||
    complain "an output that is refused: $(echo "$folder"/over*)"
# An empty file, or a file of the same kind, is replaced.
touch "$folder/empty.json"
for ((i = 0; i < 2; i++)); do
    works "again-$i" "${plain[@]}" --trace "$folder/empty.json" --record-golden "$folder/own" \
        --save-debug-rollout-data "$folder/rollouts/{rollout_id}"
done
whole_ledger "$folder/whole"
whole=$chain

# ---- a prepared folder: no report is written through a link or into a pipe ----------------------
mkdir -p "$folder"/{linked,piped}
echo precious >"$folder/precious"
ln -s ../precious "$folder/linked/report.html"
mkfifo "$folder/piped/report.html"
for run in linked piped; do
    expect 129 "$run/report.html: is a " train recipes/bf16.ini --num-rollout 1 --threads 1 \
        --run "$folder/$run"
    [[ $(ls "$folder/$run") == report.html ]] || complain "$run: written: $(ls "$folder/$run")"
done
[[ -L $folder/linked/report.html && -p $folder/piped/report.html ]] || complain "was replaced"
[[ $(<"$folder/precious") == precious ]] || complain "a report went through a link"

# ---- recipes -----------------------------------------------------------------------------------
# recipe LINE ...: writes the lines to bad.ini, and sets `bad` to the command that trains it.
recipe() {
    printf '%s\n' "$@" >"$folder/bad.ini"
    bad=(train "$folder/bad.ini")
}
# untouched RUN: checks that not even its folder exists.
untouched() {
    [[ ! -e $folder/$1 ]] || complain "$1: the folder of a run that never was"
}
# All rollout files that the run will read are checked before it begins.
cp -r "$folder/rollouts" "$folder/lost" && rm "$folder/lost/3"
lost=("${plain[@]}" --load-debug-rollout-data "$folder/lost/{rollout_id}")
refuses 2 "lost/3: " r1 "${lost[@]}"
works early "${lost[@]}" --debug-exit-after-rollout 3
refuses 2 "lost/3: " early "${lost[@]}"
[[ $(sqlite3 -readonly "$folder/early/ledger.db" 'SELECT count(*) FROM segment') == 1 ]] ||
    complain "a rollout that is missing: the run was resumed"
head -c -5 "$folder/rollouts/3" >"$folder/lost/3"
refuses 2 "lost/3: cut off or changed" r1 "${lost[@]}"
refuses 129 "rollouts/0 has 64 samples, the recipe's steps need 32" r1 "${plain[@]}" \
    --load-debug-rollout-data "$folder/rollouts/{rollout_id}" --rollout-batch-size 4
cp "$folder/rollouts/3" "$folder/lost/3"
works early "${lost[@]}"
[[ $chain == "$whole" ]] || complain "files with rollouts: another chain"
recipe '[rollout]' 'rollout-bath-size = 4'
refuses 129 "bad.ini:2: " r1 "${bad[@]}"
recipe '[rollout]' 'rollout-batch-size = four'
refuses 129 "bad.ini:2: " r2 "${bad[@]}"
recipe '[rollout' 'rollout-batch-size = 4'
refuses 129 "bad.ini:1: " r3 "${bad[@]}"
refuses 2 "nowhere.ini" r4 train "$folder/nowhere.ini"
refuses 129 "--rm-type: 'rm-type' is \"frob\", which is no reward" r5 "${plain[@]}" --rm-type frob
refuses 129 "--lr: " r5 "${plain[@]}" --lr fast
refuses 129 "'rollout-temperature' = 0" r6 "${plain[@]}" --rollout-temperature 0
refuses 129 "'num-experts' needs model-type" r7 "${plain[@]}" --num-experts 4
refuses 129 "'kl-coef' would be ignored" r8 train recipes/sm90.ini --kl-coef 0.1
# No GPU is visible here, whatever this build and this machine have.
CUDA_VISIBLE_DEVICES='' refuses 125 "choose device = cpu" no-cuda "${plain[@]}" --device cuda
refuses 129 "global-batch-size * num-steps-per-rollout" r9 "${plain[@]}" --global-batch-size 7
refuses 129 "stop id 99; the vocabulary has 13 tokens" r9 "${plain[@]}" --rollout-stop-token-ids 99
refuses 129 "'rollout-max-response-len' = 3 leaves no room for a prompt in" r9 "${plain[@]}" \
    --max-position-embeddings 1
refuses 129 "no task" r10 "${plain[@]}" --prompt-data task:sorting
refuses 129 "unknown option '--frob'" r11 "${plain[@]}" --frob
refuses 129 "gone: use unit-rows and unit-count" r11 "${plain[@]}" --samples-per-unit 2
refuses 2 "mxfp8 needs multiples" r12 "${plain[@]}" --dtype mxfp8 --ffn-hidden-size 24
for ((i = 1; i <= 12; i++)); do
    untouched "r$i"
done
untouched no-cuda

# ---- models and data: a small folder in Hugging Face's format ----------------------------------
cat >"$folder/make.ini" <<'RECIPE'
[model]
dtype = bf16
num-layers = 1
hidden-size = 32
ffn-hidden-size = 32
num-attention-heads = 2
vocab-size = 260
max-position-embeddings = 64
[rollout]
prompt-data = task:copy
num-rollout = 1
rollout-batch-size = 2
n-samples-per-prompt = 2
rollout-max-response-len = 3
rm-type = overlap
[engine]
numerics = ieee
RECIPE
works make train "$folder/make.ini" --no-report --save "$folder/make-checkpoints" \
    --save-hf "$folder/hf-{rollout_id}"
python3 - "$folder" <<'FILES' || exit 2
"""tokenizer.json with the 256 bytes alone, and data with and without mistakes."""
import json
import sys

folder = sys.argv[1]
plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
moved = [b for b in range(256) if b not in plain]
letters = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(moved)}
tokenizer = {
    "version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                      "use_regex": True},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "merges": [], "vocab": {letters[b]: b for b in range(256)}}}
with open(f"{folder}/hf-0/tokenizer.json", "w", encoding="utf-8") as file:
    json.dump(tokenizer, file)
lines = [json.dumps({"input": f"{i}=", "label": str(i)}) for i in range(8)]
for name, bad in (("good", lines[5]), ("broken", '{"input": "5=", '), ("keyless", '{"label": "5"}'),
                  ("typed", '{"input": 5, "label": "5"}'), ("latin", None)):
    with open(f"{folder}/{name}.jsonl", "wb") as file:
        for i, line in enumerate(lines):
            text = bad if i == 5 else line
            file.write(text.encode() if text else b'{"input": "\xe4", "label": "5"}')
            file.write(b"\n")
FILES
cat >"$folder/hf.ini" <<'RECIPE'
[model]
dtype = bf16
[rollout]
label-key = label
num-rollout = 2
rollout-batch-size = 2
n-samples-per-prompt = 2
rollout-max-response-len = 3
rm-type = overlap
[engine]
numerics = ieee
RECIPE
hf=(train "$folder/hf.ini" --no-report)
good=(--hf-checkpoint "$folder/hf-0" --prompt-data "$folder/good.jsonl")
works m0 "${hf[@]}" "${good[@]}"
learned=$chain

# Lengths beyond the positions of the model, in rollouts and evaluations, are rejected by every
# command.
model="max_position_embeddings = 64 of the model"
evals=(--eval-prompt-data "a $folder/good.jsonl" --eval-interval 1 --eval-max-response-len 9000)
long=(--rollout-max-response-len 9000)
for way in "${ways[@]}"; do
    read -ra verb <<<"$way"
    argv=("${verb[@]}" "$folder/hf.ini" "${good[@]}")
    refuses 129 "'rollout-max-response-len' = 9000 leaves no room for a prompt in $model" long \
        "${argv[@]}" "${long[@]}"
    refuses 129 "'rollout-max-response-len' = 3 and rollout-max-prompt-len = 62 exceed" long \
        "${argv[@]}" --rollout-max-prompt-len 62
    refuses 129 "'rollout-max-context-len' = 9000 is above $model" long "${argv[@]}" \
        --rollout-max-context-len 9000
    refuses 129 "'eval-max-response-len' = 9000 leaves no room for a prompt in $model" long \
        "${argv[@]}" "${evals[@]}"
    refuses 129 "stop id 9000; the vocabulary has 260 tokens" long "${argv[@]}" \
        --rollout-stop-token-ids 9000
done
untouched long
expect 129 "= 9000 leaves no room for a prompt in $model" generate "${good[@]:0:2}" --prompt 12 \
    --dtype bf16 --numerics ieee "${long[@]}"
expect 129 "'eval-max-response-len' = 9000 leaves no room for a prompt in $model" eval \
    "$folder/hf.ini" "${good[@]}" "${evals[@]}"
works fitting "${hf[@]}" "${good[@]}" --rollout-max-prompt-len 61
works ended "${hf[@]}" "${good[@]}" --rollout-max-prompt-len 62 --rollout-max-context-len 64
# A supervised run samples only in evaluations, which have a length of their own.
sed -e '/^rm-type/d' -e '/^rollout-max-response-len/d' \
    -e 's/^n-samples.*/n-samples-per-prompt = 1/' "$folder/make.ini" >"$folder/answers.ini"
works answers train "$folder/answers.ini" --no-report --loss-type sft_loss --eval-interval 1 \
    --eval-prompt-data "a task:copy" --eval-rm-type overlap --eval-max-response-len 5
[[ $(sqlite3 -readonly "$folder/answers/ledger.db" "SELECT count(*) FROM evaluation") -gt 0 ]] ||
    complain "a supervised run was not evaluated"

# spoil NAME: makes a copy of the model's folder, to be damaged.
spoil() {
    cp -r "$folder/hf-0" "$folder/$1"
    tensors=$(echo "$folder/$1"/*.safetensors)
    damaged=(--hf-checkpoint "$folder/$1" --prompt-data "$folder/good.jsonl")
}
refuses 2 "nowhere: no such folder" m1 "${hf[@]}" --hf-checkpoint "$folder/nowhere" \
    --prompt-data "$folder/good.jsonl"
spoil short && truncate -s -10 "$tensors"
refuses 2 "short/" m2 "${hf[@]}" "${damaged[@]}"
spoil empty && : >"$tensors"
refuses 2 "empty/" m3 "${hf[@]}" "${damaged[@]}"
spoil config && echo '{"model_type": "qwen3"' >"$folder/config/config.json"
refuses 129 "config/config.json" m4 "${hf[@]}" "${damaged[@]}"
spoil family && sed -i 's/qwen3/mamba/' "$folder/family/config.json"
refuses 2 "mamba" m5 "${hf[@]}" "${damaged[@]}"
spoil words && echo '{}' >"$folder/words/tokenizer.json"
refuses 129 "words/tokenizer.json" m6 "${hf[@]}" "${damaged[@]}"
spoil wide && sed -i 's/"hidden_size": *32/"hidden_size": 64/' "$folder/wide/config.json"
refuses 2 "embed_tokens" m7 "${hf[@]}" "${damaged[@]}"
for ((i = 1; i <= 7; i++)); do
    untouched "m$i"
done

# A named model never falls back to random weights: its weights have another format, or lack their
# index.
spoil bare && rm "$tensors"
refuses 2 "bare: no weights: neither model.safetensors nor" m8 "${hf[@]}" "${damaged[@]}"
touch "$folder/bare/pytorch_model.bin"
refuses 2 "pytorch_model.bin cannot be read: load it" m8 "${hf[@]}" "${damaged[@]}"
cp "$folder/hf-0/model.safetensors" "$folder/bare/model-00001-of-00001.safetensors"
for verb in train generate eval; do
    more=("$folder/hf.ini" "${damaged[@]}")
    [[ $verb != generate ]] || more+=(--prompt "1=" --load=)
    [[ $verb != eval ]] || more+=(--eval-prompt-data "good $folder/good.jsonl" --load=)
    refuses 2 "model-00001-of-00001.safetensors is a shard, and its index is missing" m8 \
        "$verb" "${more[@]}"
done
echo '{"tokens": [1, 2]}' >"$folder/tokens"
refuses 2 "its index is missing" m8 score --hf-checkpoint "$folder/bare" --load= \
    --tokens "$folder/tokens"
refuses 2 "its index is missing" m8 "${hf[@]}" "${good[@]}" --ref-load "$folder/bare"
refuses 2 "its index is missing" m8 "${hf[@]}" "${good[@]}" --critic-load "$folder/bare" \
    --advantage-estimator ppo
refuses 2 "its index is missing" m8 "${hf[@]}" "${good[@]}" --opd-teacher-load "$folder/bare" \
    --use-opd
cp -r "$folder/hf-0" "$folder/other"
sed -i 's/"rms_norm_eps": [^,]*/"rms_norm_eps": 0.5/' "$folder/other/config.json"
differs='other/config.json: "rms_norm_eps" is 0.5, and '
refuses 129 "$differs" m8 "${hf[@]}" "${good[@]}" --ref-load "$folder/other"
untouched m8
# Tokenizer and config of a folder without weights are enough if ref-load has the weights.
works m9 "${hf[@]}" "${damaged[@]}" --ref-load "$folder/hf-0"
[[ $chain == "$learned" ]] || complain "ref-load beside a folder without weights: another chain"

for data in broken keyless typed latin; do
    refuses 129 "$data.jsonl:6" "d-$data" "${hf[@]}" --hf-checkpoint "$folder/hf-0" \
        --prompt-data "$folder/$data.jsonl"
    untouched "d-$data"
done
refuses 2 "nowhere.jsonl" d-none "${hf[@]}" --hf-checkpoint "$folder/hf-0" \
    --prompt-data "$folder/nowhere.jsonl"
works m0 "${hf[@]}" "${good[@]}"
[[ $chain == "$learned" ]] || complain "after all that: another chain"
# The metadata of a late prompt makes its reward rule fail: every command finds it before the run.
sed '6s/}$/, "metadata": {"rm_type": "frob"}}/' "$folder/good.jsonl" >"$folder/frob.jsonl"
sed '1s/}$/, "metadata": {"rm_type": "frob"}}/' "$folder/good.jsonl" >"$folder/begin.jsonl"
frob=(--prompt-data "$folder/frob.jsonl" --rm-type deterministic_random)
five="frob.jsonl:6: prompt 5 of the data set: metadata of a sample: \"rm_type\" is \"frob\""
exam=(--prompt-data "$folder/good.jsonl" --eval-prompt-data "a $folder/good.jsonl"
    --eval-rm-type ifeval)
lists="of evaluation set a has no metadata (metadata-key): "
for way in "${ways[@]}"; do
    read -ra verb <<<"$way"
    argv=("${verb[@]}" "$folder/hf.ini" --hf-checkpoint "$folder/hf-0")
    refuses 129 "$five" d-frob "${argv[@]}" "${frob[@]}" --num-rollout 3
    refuses 129 "$five" d-frob "${argv[@]}" "${frob[@]}" --rollout-shuffle true --num-rollout 4
    refuses 129 "good.jsonl:1: prompt 0 of the data set has no metadata (metadata-key): " d-frob \
        "${argv[@]}" --prompt-data "$folder/good.jsonl" --rm-type ifeval
    refuses 129 "good.jsonl:1: prompt 0 $lists" d-frob "${argv[@]}" "${exam[@]}" --eval-interval 2
    plugs=("${argv[@]}" --prompt-data "$folder/good.jsonl" --custom-init-path)
    refuses 129 "custom-init-path" d-frob "${plugs[@]}" "python3 'x"
    [[ $way == plan ]] || refuses 2 "nothing.so" d-frob "${plugs[@]}" "$folder/nothing.so"
done
# A plan only warns, because it may be for another machine.
for plugin in "$folder/nothing.so" "$folder/nothing --fast"; do
    for more in "" "--gpus 1"; do
        # shellcheck disable=SC2086 # nothing, or a flag and its number
        expect 0 "warning: train refuses this on this machine: plug-in custom-init-path: " \
            "${plugs[@]}" "$plugin" $more
    done
done
refuses 129 "$five" d-frob train --ranks 2 "$folder/hf.ini" --hf-checkpoint "$folder/hf-0" \
    "${frob[@]}" --num-rollout 3
untouched d-frob

# expect_lines TIMES TEXT ARGUMENT ...: checks success, and TEXT in TIMES lines of the output.
expect_lines() {
    local times=$1 text=$2
    shift 2
    checks=$((checks + 1))
    "$invar" "$@" >"$folder/out" 2>&1 || complain "$*:" "$(<"$folder/out")"
    [[ $(grep -cF -- "$text" "$folder/out") == "$times" ]] ||
        complain "$*: expected $times times \"$text\":" "$(<"$folder/out")"
}
# A bad prompt that the run may read costs one warning; prompts that it will not read, or not score
# by a rule, cost none.
works judged "${hf[@]}" "${good[@]}" --num-rollout 4 \
    --save-debug-rollout-data "$folder/judged/{rollout_id}"
files=(--num-rollout 4 --load-debug-rollout-data "$folder/judged/{rollout_id}")
[[ $complete ]] && ways=("train --dry-run" plan) || ways=(plan)
for way in "${ways[@]}"; do
    read -ra verb <<<"$way"
    argv=("${verb[@]}" "$folder/hf.ini" --hf-checkpoint "$folder/hf-0")
    may="the run fails if it reads this prompt: $folder/frob.jsonl:6: prompt 5"
    expect_lines 0 "prompt 5" "${argv[@]}" "${frob[@]}"
    expect_lines 1 "$may" "${argv[@]}" "${frob[@]}" --rollout-shuffle true
    expect_lines 1 "$may" "${argv[@]}" "${frob[@]}" --dynamic-sampling-filter nonzero_std
    expect_lines 1 "$may" "${argv[@]}" "${frob[@]}" --num-rollout 4 --debug-exit-after-rollout 2
    expect_lines 0 "prompt 5" "${argv[@]}" "${frob[@]}" "${files[@]}"
    expect_lines 0 "prompt 5" "${argv[@]}" "${frob[@]}" "${files[@]}" --debug-train-only true
    expect_lines 0 "prompt 0" "${argv[@]}" "${exam[@]}" --eval-interval 3
    expect_lines 1 "prompt 0 $lists" "${argv[@]}" "${exam[@]}" --eval-interval 2 \
        --debug-exit-after-rollout 1
done
# A fork skips prompts of its data that would fail, and so does a run that resumes it.
works parent "${hf[@]}" "${good[@]}" --rm-type deterministic_random
begin=("$folder/hf.ini" "${good[@]:0:2}" --prompt-data "$folder/begin.jsonl"
    --run "$folder/child" --rm-type deterministic_random)
may="the run fails if it reads this prompt: $folder/begin.jsonl:1: prompt 0"
expect_lines 1 "$may" train --no-report "${begin[@]}" --num-rollout 3 --fork "$folder/parent"
grep -qF "$may" "$folder/child/train.log" || complain "train.log: $(<"$folder/child/train.log")"
expect_lines 1 "$may" train --no-report "${begin[@]}" --num-rollout 4
expect_lines 1 "$may" plan "${begin[@]}" --num-rollout 4
# A plan reports that its data does not exist yet.
expect 0 "by the recipe's bounds, and train refuses this: $folder/nowhere.jsonl" \
    plan "$folder/hf.ini" --hf-checkpoint "$folder/hf-0" --prompt-data "$folder/nowhere.jsonl"
# The failure occurs in the third rollout: the ledger has the exit code of the process and the state
# "failed".
cat >"$folder/late.py" <<'PLUGIN'
import json, sys

json.loads(sys.stdin.readline())
print(json.dumps({"invar": 1, "name": "late", "kinds": ["reward"]}), flush=True)
for n, line in enumerate(sys.stdin):
    request = json.loads(line)
    answer = {"error": "no judge"} if n == 2 else {"rewards": [1.0] * len(request["samples"])}
    print(json.dumps({"id": request["id"], **answer}), flush=True)
PLUGIN
sed '/^rm-type/d' "$folder/hf.ini" >"$folder/late.ini"
refuses 2 "no judge" d-late train "$folder/late.ini" --no-report "${good[@]}" --num-rollout 4 \
    --custom-rm-path "python3 $folder/late.py"
"$invar" ledger ls "$folder/d-late" 2>&1 | grep -q 'failed 2' ||
    complain "a failed run: $("$invar" ledger ls "$folder/d-late")"
[[ -s $folder/d-late/checkpoints/iter_0000001/state.json ]] || complain "d-late: no checkpoint"

# ---- a comment after a text value becomes part of the value, with a warning --------------------
comment() {
    sed "s|^dtype|name = $1\ndtype|" "$folder/hf.ini" >"$folder/comment.ini"
    "$invar" plan "$folder/comment.ini" "${good[@]}" >"$folder/out" 2>"$folder/err" ||
        echo "exit code $?" >>"$folder/err"
    cat "$folder/err"
}
said="comment.ini:2: the value of 'name' includes the ' #' and the text after it; a comment needs"
said+=" a line of its own"
[[ $(comment 'mine # my run') == *"$said" ]] || complain "a comment:" "$(<"$folder/err")"
[[ -z $(comment "'mine # my run'") && -z $(comment 'mine#1') ]] ||
    complain "no comment:" "$(<"$folder/err")"
hidden=$(comment 'hidden # my run')
[[ $hidden == *"$said" && $hidden != *hidden* ]] || complain "a value printed:" "$hidden"

# ---- a damaged checkpoint ----------------------------------------------------------------------
saved=("${plain[@]}" --save-interval 1 --save "$folder/c" --load "$folder/c")
works c "${saved[@]}" --debug-exit-after-rollout 3
tensors=$folder/c/iter_0000002/model.safetensors
printf 'X' | dd of="$tensors" bs=1 seek=3000 conv=notrunc 2>"$folder/dd"
refuses 2 "iter_0000002" c "${saved[@]}"
sets=(--eval-prompt-data "max task:max" --load "$folder/c" --threads 1)
refuses 2 "iter_0000002" c eval recipes/bf16.ini "${sets[@]}"
works c eval recipes/bf16.ini "${sets[@]}" --skip-damaged
refuses 2 "no such folder" c eval recipes/bf16.ini "${sets[@]/%\/c//nothing}"
works c "${saved[@]}" --skip-damaged
[[ $chain == "$whole" && $(member resumed_after "$folder/out") == 1 ]] ||
    complain "skip-damaged: $(<"$folder/out")"

# ---- found at the beginning, not hours later ---------------------------------------------------
refuses 2 "save: $folder/good.jsonl: cannot be written: " save "${plain[@]}" \
    --save "$folder/good.jsonl"
untouched save
for point in logp train.logp,weights.x layer.99.q; do
    commands=("${plain[*]}")
    [[ ! $complete ]] || commands+=("${plain[*]} --dry-run" "plan recipes/bf16.ini")
    for way in "${commands[@]}"; do
        read -ra words <<<"${way/ --no-report --dry-run/ --dry-run}"
        refuses 129 "debug-dump: " dump "${words[@]}" --debug-dump "$point"
    done
done
untouched dump
works dump "${plain[@]}" --debug-dump train.logp
[[ $chain == "$whole" && -s $folder/dump/dump/step_3/train.logp.npy ]] ||
    complain "debug-dump: $(ls "$folder/dump/dump/step_3")"

# ---- a full disk: recorded data stays, and the run resumes -------------------------------------
# No file may become larger than 150 KiB.
under=(bash -c 'trap "" XFSZ; ulimit -f 150; exec "$@"' limited)
full=("${plain[@]}" --save-interval 1 --save "$folder/f-checkpoints" --load "$folder/f-checkpoints")
refuses 2 "f" f "${full[@]}"
under=()
works f "${full[@]}"
[[ $chain == "$whole" ]] || complain "after a full disk: chain $chain, not $whole"
if mkdir "$folder/disk" && mount -t tmpfs -o size=400k none "$folder/disk" 2>/dev/null; then
    refuses 2 "" disk/run "${plain[@]}"
    umount "$folder/disk"
else
    echo "skipped: a small disk cannot be mounted here"
fi

# ---- no permission -----------------------------------------------------------------------------
locked=$folder/locked
mkdir -p "$locked" "$folder/open" && chmod 555 "$locked" && chmod 777 "$folder/open"
if (($(id -u) == 0)); then
    under=(setpriv --reuid 65534 --regid 65534 --clear-groups)
fi
# `test` runs as the user, because setpriv itself can still open a program below /root that the user
# cannot.
if "${under[@]}" test -x "$invar" -a -x "$folder"; then
    refuses 2 "ermission denied" locked/run "${plain[@]}"
    refuses 2 "locked/a.golden: cannot be written: Permission denied" locked-golden "${plain[@]}" \
        --record-golden "$locked/a.golden"
    untouched locked-golden
    refuses 2 "locked/new/{rollout_id}: cannot be written: Permission denied" \
        open/locked-rollouts "${plain[@]}" \
        --save-debug-rollout-data "$locked/new/{rollout_id}"
    untouched open/locked-rollouts
else
    echo "skipped: nobody without permissions can run $invar"
fi
under=()

# ---- plug-ins ----------------------------------------------------------------------------------
# The plug-in behaves as the file `mood` says, so that the recipe stays the same.
cat >"$folder/plugin.py" <<'PLUGIN'
import json, os, sys, time

mood = open(os.path.join(os.path.dirname(sys.argv[0]), "mood")).read().strip()
json.loads(sys.stdin.readline())
print(json.dumps({"invar": 1, "name": "moody", "kinds": ["reward"]}), flush=True)
for n, line in enumerate(sys.stdin):
    request = json.loads(line)
    rewards = [float(len(set(s["tokens"]))) for s in request["samples"]]
    if n >= 2 and mood == "crash":
        os.abort()
    if n >= 2 and mood == "exit":
        print("no judge today", file=sys.stderr)
        sys.exit(3)
    if n >= 2 and mood == "hang":
        time.sleep(600)
    if n >= 2 and mood == "rubbish":
        print("<html>", flush=True)
    if n >= 2 and mood == "short":
        rewards.pop()
    if n >= 2 and mood == "nan":
        rewards[0] = float("nan")
    print(json.dumps({"id": request["id"], "rewards": rewards}), flush=True)
PLUGIN
sed '/^rm-type/d' recipes/bf16.ini >"$folder/plugin.ini"
argv=(train "$folder/plugin.ini" --num-rollout 4 --threads 1 --no-report --plugin-timeout 2
    --custom-rm-path "python3 $folder/plugin.py")
echo good >"$folder/mood"
works p-good "${argv[@]}" --save "$folder/p-good-checkpoints"
judged=$chain
moods=(crash hang nan)
[[ ! $complete ]] || moods+=(exit rubbish short)
for mood in "${moods[@]}"; do
    here=("${argv[@]}" --save "$folder/p-$mood-checkpoints" --load "$folder/p-$mood-checkpoints")
    echo "$mood" >"$folder/mood"
    refuses 2 "custom-rm-path" "p-$mood" "${here[@]}"
    grep -q '; a checkpoint of step 1 is saved: start the run again to continue$' "$folder/err" ||
        complain "a plug-in's $mood: nothing says what is saved:" "$(<"$folder/err")"
    echo good >"$folder/mood"
    works "p-$mood" "${here[@]}"
    [[ $chain == "$judged" && $(member resumed_after "$folder/out") == 1 ]] ||
        complain "after a plug-in's $mood: $(<"$folder/out")"
done
refuses 2 "custom-rm-path" p-none "${argv[@]/python3 */$folder/nothing.so}" \
    --save "$folder/p-none-checkpoints"
# the failed start did not record another recipe
works p-none "${argv[@]}" --save "$folder/p-none-checkpoints"

# A run that diverges: with these rates, weights grow by the learning rate times the decay in every
# step, until the squares in a norm overflow. The failing step is not in the table of steps.
sed '/^num-/d; /^rollout-/d; /^n-samples/d; /^rm-/d; /^lr/d; /^weight-decay/d; /^adam/d' \
    recipes/bf16.ini | sed '/^\[grpo\]/,/^$/d' >"$folder/diverge.ini"
diverge=(train "$folder/diverge.ini" --num-layers 2 --num-attention-heads 4 --loss-type sft_loss
    --n-samples-per-prompt 1 --rollout-batch-size 4 --num-rollout 12 --debug-stats true
    --threads 1 --no-report)
# born PATTERN RUN: checks the query's result about the first number that is not finite.
born() {
    local found
    found=$("$invar" ledger query nan-birth "$folder/$2" --count 1 --csv) ||
        complain "$2: nan-birth: exit code $?"
    found=$(sed 1d <<<"$found")
    [[ $(cut -d, -f1,4,5,7,8 <<<"$found") =~ ^$1$ ]] || complain "$2: born in $found, expected $1"
}
refuses 2 "the step stops here" d-coarse "${diverge[@]}" --lr 1000 --weight-decay 1000
born "" d-coarse
refuses 2 "not finite is layer.1.norm_in (rmsnorm.fwd)" d-acts "${diverge[@]}" \
    --lr 1000 --weight-decay 1000 --debug-determinism full
born '1,layer\.1\.norm_in,forward,rmsnorm.fwd,act' d-acts
refuses 2 "not finite is rollout.layer.1.norm_in (rmsnorm.fwd)" d-rollout "${plain[@]}" \
    --lr 1000 --weight-decay 1000 --debug-stats true
born '1,rollout\.layer\.1\.norm_in,rollout,rmsnorm.fwd,act' d-rollout
more works d-finite "${diverge[@]}" --lr 0.002 --weight-decay 0
more born "" d-finite

((failed)) || echo "$checks checks: all as expected"
exit "$failed"
