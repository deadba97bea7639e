#!/usr/bin/env bash
# train.sh INVAR FOLDER - invar train: free keys change neither the chain nor the content.
#
# The test trains recipes of this tree for 2 rollouts. It sets all free keys together with each
# format, and each key alone with one, and stops, resumes and repeats runs; all must have the bits
# of the first run and of the golden. Control: semantic keys and one flipped bit of one weight must
# change the bits. In every ledger the log-probs of rollout and training are equal. With
# INVAR_TEST_FULL=1 runs have 100 rollouts, all recipes are trained, and each key is also alone in a
# model with experts.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$1 folder=$2 runs=0
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
full=${INVAR_TEST_FULL:-} rollouts=2 drafts=3 both=bf16 parts=1
if [[ $full ]]; then
    rollouts=100 drafts='1 2 3 4 5 6 7 8' both='bf16 moe' parts='1 2'
fi
rm -rf "$folder"
mkdir -p "$folder" || exit 2
declare -A base

# train RUN RECIPE FLAG ...: trains into FOLDER/RUN; sets `bits` to "CHAIN CONTENT". RECIPE is the
# name of a recipe of this tree, or an absolute path without the suffix .ini.
train() {
    local run=$1 recipe=$2 flags=(--run "$folder/$1" --no-report --json) rc=0
    shift 2
    runs=$((runs + 1))
    [[ " $* " == *" --num-rollout "* ]] || flags+=(--num-rollout "$rollouts")
    [[ " $* " == *" --save "* ]] || flags+=(--save none)
    [[ $recipe == /* ]] || recipe=recipes/$recipe
    "$invar" train "$recipe.ini" "${flags[@]}" "$@" >"$folder/$run.json" \
        2>"$folder/$run.err" || rc=$?
    ((rc == 0)) || complain "$run ($recipe $*): exit code $rc" "$(tail -n 2 "$folder/$run.err")"
    bits="$(member chain "$folder/$run.json") $(member content "$folder/$run.json")"
}

# exact RUN: checks that rollout and training agree in every bit at every step, or, if they use
# different number formats, that the difference is recorded; and that the ledger is undamaged.
exact() {
    local ledger=$folder/$1/ledger.db found table=metric diff='value_bits = 0' samples
    samples='diff_bits <> 0 OR diff_at <> -1'
    if [[ $1 == rollout-fp8* ]]; then
        table=gauge diff='value > 0' samples='diff_at = -1'
    fi
    found=$(sqlite3 -readonly "$ledger" "SELECT
        (SELECT count(*) FROM step) > 0 AND
        (SELECT count(*) FROM step) = (SELECT count(*) FROM $table JOIN series USING(series)
            WHERE name = 'train/logp_diff_max' AND $diff) AND
        NOT EXISTS (SELECT * FROM sample WHERE $samples)")
    [[ $found == 1 ]] || complain "$1: log-probabilities differ, or are not recorded"
    "$invar" ledger verify "$ledger" >"$folder/verify" 2>&1 ||
        complain "$1: the ledger is damaged:" "$(<"$folder/verify")"
}

# speculates RUN: checks that some draft tokens were accepted, and that the ledger counts them.
speculates() {
    local found
    found=$(sqlite3 -readonly "$folder/$1/ledger.db" "SELECT sum(value) > 0 FROM gauge
        JOIN series USING(series) WHERE name = 'rollout/spec_accept_token_num'")
    [[ $found == 1 ]] || complain "$1: nothing that was guessed was drawn"
}

# first RECIPE: trains the run that the others are compared with, and compares it with its golden.
first() {
    train "$1" "$1" --threads 1 --golden "recipes/$1.golden"
    [[ $bits == ????????*" "????????* ]] || complain "$1: no chain: \"$bits\""
    base[$1]=$bits
    exact "$1"
}

# same RECIPE FLAG ...: checks that these flags do not change a bit.
same() {
    train "$1-$runs" "$@"
    [[ $bits == "${base[$1]}" ]] ||
        complain "$*: chain and content are $bits, without the flags ${base[$1]}"
    exact "$1-$((runs - 1))"
}

# differs RECIPE FLAG ...: control: checks that these flags change the chain.
differs() {
    train "$1-$runs" "$@"
    [[ ${bits% *} != "${base[$1]% *}" ]] || complain "$*: the same chain"
}

# refused CODE TEXT FLAG ...: checks that bf16 with these flags ends with the code and one line with
# the text.
refused() {
    local code=$1 text=$2 rc=0
    shift 2
    "$invar" train recipes/bf16.ini --num-rollout "$rollouts" "$@" >"$folder/out" \
        2>"$folder/err" || rc=$?
    if ((rc != code)) || [[ $(grep -c '^invar: ' "$folder/err") != 1 ]] ||
        ! grep -q "^invar: .*$text" "$folder/err"; then
        complain "$*: exit code $rc, expected $code with \"$text\":" "$(<"$folder/err")"
    fi
}

# same_with_drafts RECIPE FLAG ...: checks that neither the drafter nor the number of draft tokens
# changes a bit.
same_with_drafts() {
    local tokens
    for tokens in $drafts; do
        # By default experts only verify the tokens of a draft model.
        if [[ $full || $1 == bf16 ]]; then
            same "$@" --threads 1 --speculative-num-draft-tokens "$tokens" \
                --speculative-algorithm ngram --speculative-ngram-min-match-window-size 1
            speculates "$1-$((runs - 1))"
        fi
        same "$@" --threads 1 --speculative-num-draft-tokens "$tokens" \
            --speculative-algorithm draft --speculative-draft-model-path "$folder/draft"
        speculates "$1-$((runs - 1))"
    done
}
train early bf16 --num-rollout 2 --save "$folder/early-saved"
"$invar" convert "$folder/early-saved" "$folder/draft" >/dev/null || complain "no draft model"

# ---- all recipes: their goldens, and every free key at once ------------------------------------
# By default, recipes that differ from bf16 in sizes only are left to the test ci.check, which
# compares two steps of every recipe with its golden, and adapters to train.lora.
for golden in recipes/*.golden; do
    recipe=$(basename "$golden" .golden)
    [[ ! $full && $recipe =~ ^(guess|quickstart|lora)$ ]] && continue
    first "$recipe"
    same "$recipe" --threads 3 --micro-batch-size 7 --rollout-concurrency 5 --page-size 3 \
        --chunked-prefill-size 3 --disable-prefix-sharing --recompute-granularity full \
        --log-probs-chunk-size 5 --audit 20
done

# ---- widths that are not multiples of the scale block ------------------------------------------
# narrow FORMATS RECIPE FLAG ...: checks, in these formats, a model whose last scale blocks are
# partial.
narrow() {
    local format name formats=$1
    shift
    [[ ! $full ]] || formats='fp8 mxfp8'
    for format in $formats; do
        name="$1-narrow-$format-$runs"
        train "$name" "$@" --dtype "$format" --threads 1 --num-rollout "$narrow_rollouts"
        base[$1]=$bits
        exact "$name"
        same "$@" --dtype "$format" --threads 3 --micro-batch-size 7 --rollout-concurrency 5 \
            --page-size 3 --chunked-prefill-size 3 --recompute-granularity full --audit 20 \
            --num-rollout "$narrow_rollouts"
    done
}
narrow_rollouts=1
[[ ! $full ]] || narrow_rollouts=2
base_before=${base[fp8]} base_moe_before=${base[moe]}
[[ ! $full ]] || narrow 'fp8 mxfp8' fp8 --hidden-size 96 --num-attention-heads 6 \
    --num-query-groups 3 --ffn-hidden-size 160
narrow fp8 fp8 --hidden-size 288 --num-attention-heads 6 --ffn-hidden-size 352
narrow mxfp8 moe --hidden-size 96 --moe-ffn-hidden-size 144
base[fp8]=$base_before base[moe]=$base_moe_before

# ---- drafts, with every way of sampling and every format ---------------------------------------
if [[ $full ]]; then
    for recipe in bf16 moe; do
        base_before=${base[$recipe]}
        for way in '--rollout-top-p 0.8' '--rollout-stop ["1","77"]' '--rollout-temperature 0.5' \
            '--dtype fp32' '--dtype fp8' '--dtype mxfp8' '--dtype int4'; do
            read -ra flags <<<"$way --rollout-max-response-len 8 --num-rollout 10"
            train "$recipe-drawn-$runs" "$recipe" --threads 1 "${flags[@]}"
            base[$recipe]=$bits
            same_with_drafts "$recipe" "${flags[@]}"
        done
        base[$recipe]=$base_before
    done
fi

# ---- each free key alone ------------------------------------------------------------------------
# alone RECIPE FLAG VALUE ...: checks each value of a free key; by default only the first value,
# because all keys together have been checked above.
alone() {
    local recipe=$1 flag=$2 value values=("${@:3}")
    [[ $full ]] || values=("$3")
    for value in "${values[@]}"; do
        # shellcheck disable=SC2086 # several words
        same "$recipe" $flag "$value"
    done
}
for recipe in $both; do
    alone "$recipe" --threads 2 3
    alone "$recipe" '--threads 1 --micro-batch-size' 7 1 20
    alone "$recipe" '--threads 1 --use-dynamic-batch-size --max-tokens-per-gpu' 100 1 100000
    alone "$recipe" '--threads 1 --rollout-concurrency' 5 1 64
    alone "$recipe" '--threads 1 --chunked-prefill-size' 3 1 1000
    alone "$recipe" '--threads 1 --page-size' 5 1 64
    alone "$recipe" '--threads 1 --log-probs-chunk-size' 7 1
    same "$recipe" --threads 1 --disable-prefix-sharing
    same "$recipe" --threads 1 --recompute-granularity full
    same "$recipe" --threads 1 --trace "$folder/trace.json"
done
for recipe in bf16 moe; do
    same_with_drafts "$recipe"
done

# ---- diagnosis changes what is recorded, not what is computed ----------------------------------
levels=full
[[ ! $full ]] || levels='point full'
for level in $levels; do
    train "determinism-$level" bf16 --debug-determinism "$level" --log-passrate \
        --debug-dump train.logp --debug-dump-dir "$folder/dump-$level"
    [[ ${bits% *} == "${base[bf16]% *}" ]] || complain "diagnosis, level $level: another chain"
    exact "determinism-$level"
done

# ---- rollouts from files -----------------------------------------------------------------------
for recipe in $both; do
    files="$folder/$recipe-rollouts-{rollout_id}"
    same "$recipe" --save-debug-rollout-data "$files"
    same "$recipe" --load-debug-rollout-data "$files" --debug-train-only --threads 3
    [[ $(member compared "$folder/$recipe-$((runs - 1)).json") == true ]] ||
        complain "$recipe: own rollouts from files are not compared"
done
# Rollouts of another run have log-probs that nothing in this run has to be equal to.
train others bf16 --load-debug-rollout-data "$folder/bf16-rollouts-{rollout_id}" --seed 7
[[ $(member compared "$folder/others.json") == false ]] || complain "rollouts of others: compared"
[[ $(member worst_diff "$folder/others.json") == null ]] || complain "rollouts of others: a value"
"$invar" ledger query logprob-gap --run "$folder/others" --json >/dev/null 2>&1
(($? == 6)) || complain "rollouts of others: samples that were compared"

# ---- stopped and resumed -----------------------------------------------------------------------
resumed_after=0
[[ ! $full ]] || resumed_after=2
for recipe in $both; do
    run=$recipe-resumed saved=$folder/$recipe-checkpoints
    for part in $parts; do
        train "$run" "$recipe" --debug-exit-after-rollout "$part" --save "$saved" --load "$saved"
        [[ $(member steps "$folder/$run.json") == "$part" ]] || complain "$run: not $part steps"
    done
    train "$run" "$recipe" --save "$saved" --load "$saved" --threads 2 --micro-batch-size 2
    [[ $bits == "${base[$recipe]}" ]] || complain "$run: $bits, not ${base[$recipe]}"
    [[ $(member resumed_after "$folder/$run.json") == "$resumed_after" ]] ||
        complain "$run: not after step $resumed_after"
    exact "$run"
    # A finished run has nothing to do and reports the same bits.
    train "$run" "$recipe" --save "$saved" --load "$saved"
    [[ $bits == "${base[$recipe]}" && $(member steps "$folder/$run.json") == 0 ]] ||
        complain "$run, started again when it was done: $(<"$folder/$run.json")"
    exact "$run"
done
# Without checkpoints the run starts again from the first step. By default, only the test train.life
# checks this.
if [[ $full ]]; then
    train bf16 bf16
    [[ $bits == "${base[bf16]}" && $(member steps "$folder/bf16.json") == "$rollouts" ]] ||
        complain "bf16, started again: $(<"$folder/bf16.json")"
    exact bf16
fi

# ---- spans of attention: they change the bits only of longer samples -----------------------------
tiny_recipe 2 |
    sed -e 's/^max-position-embeddings.*/max-position-embeddings = 256\nvocab-size = 4096/' \
        -e 's/^rollout-max-response-len.*/rollout-max-response-len = 200/' >"$folder/spans.ini"
printf '[grpo]\nentropy-coef = 0.01\n[optimizer]\nlr = 0.01\n' >>"$folder/spans.ini"
# spans RUN FLAG ...: sets `chain` to the chain of a run whose longest sample has 204 tokens.
spans() {
    train "spans-$1" "$(realpath "$folder")/spans" --num-rollout 1 "${@:2}"
    exact "spans-$1"
    chain=${bits% *}
}
free_keys=(--micro-batch-size 3 --page-size 3 --chunked-prefill-size 3 --recompute-granularity full)
spans default
one=$chain
if [[ $full ]]; then
    spans longer --kv-span 256 --q-span 256
    [[ $chain == "$one" ]] || complain "spans longer than all samples: $chain, not $one"
    spans none --kv-span 0 --q-span 0
    [[ $chain == "$one" ]] || complain "one span: $chain, not $one"
fi
seen=$one
span_flags=('--q-span 128' '--kv-span 128 --q-span 128')
[[ ! $full ]] || span_flags=('--kv-span 128' "${span_flags[@]}")
for flags in "${span_flags[@]}"; do
    # shellcheck disable=SC2086 # several words
    spans "${flags// /}" $flags
    [[ " $seen " != *" $chain "* ]] || complain "$flags: a chain that was there before"
    seen+=" $chain"
done
spans ways --kv-span 128 --q-span 128 "${free_keys[@]}" --audit 20
[[ $seen == *" $chain" ]] || complain "spans, executed in another way: $chain"

# ---- what must change the bits -----------------------------------------------------------------
differs bf16 --seed 1235
differs bf16 --rollout-seed 43
differs bf16 --lr 0.0020001
differs bf16 --kl-loss-coef 0.0010001
differs moe --unit-count 16
differs moe --unit-rows 20
# Control: one flipped bit of one weight must change the bits.
train exported bf16 --num-rollout 1 --save "$folder/exported-checkpoints" \
    --save-hf "$folder/hf-{rollout_id}"
one=(--threads 1 --num-rollout 1)
train from-export bf16 --ref-load "$folder/hf-0" "${one[@]}"
base[export]=$bits
train from-export-2 bf16 --ref-load "$folder/hf-0" "${one[@]}"
[[ $bits == "${base[export]}" ]] || complain "the same weights: $bits, not ${base[export]}"
cp -r "$folder/hf-0" "$folder/hf-flipped"
python3 - "$folder"/hf-flipped/*.safetensors <<'FLIP' || complain "no weight to change"
import sys

with open(sys.argv[1], "r+b") as file:
    file.seek(-2, 2)
    low = file.read(1)[0]
    file.seek(-2, 2)
    file.write(bytes([low ^ 1]))
FLIP
train flipped bf16 --ref-load "$folder/hf-flipped" "${one[@]}"
[[ $bits != "${base[export]}" ]] || complain "one bit of one weight: the same chain"

# ---- two runs in one folder --------------------------------------------------------------------
refused 2 "another run" --run "$folder/bf16" --seed 7
refused 2 "another run" --run "$folder/bf16-resumed" --load "$folder/bf16-checkpoints" --seed 7
exact bf16

# steps RUN: prints the number of steps in its ledger.
steps() {
    sqlite3 -readonly "$folder/$1/ledger.db" 'SELECT count(DISTINCT step) FROM step' 2>/dev/null
}

# ---- Ctrl-C, with a second writer in the meantime ----------------------------------------------
saved=$folder/stopped-checkpoints
"$invar" train recipes/bf16.ini --num-rollout 1000000 --run "$folder/stopped" --save "$saved" \
    --load "$saved" --no-report --json >"$folder/stopped.json" 2>"$folder/stopped.err" &
pid=$!
for ((i = 0; i < 600; i++)); do
    done_steps=$(steps stopped)
    ((${done_steps:-0} >= 2)) && break
    sleep 0.1
done
refused 2 "has a writer already" --run "$folder/stopped"
kill -INT "$pid"
rc=0
wait "$pid" || rc=$?
[[ $rc == 130 && $(member stopped "$folder/stopped.json") == true ]] ||
    complain "Ctrl-C: exit code $rc, $(<"$folder/stopped.json")"
exact stopped
done_steps=$(steps stopped)
train stopped bf16 --num-rollout "$((done_steps + 2))" --save "$saved" --load "$saved" \
    --golden recipes/bf16.golden
[[ $(member resumed_after "$folder/stopped.json") == "$((done_steps - 1))" ]] ||
    complain "after Ctrl-C: $(<"$folder/stopped.json")"
exact stopped

((failed)) || echo "$runs runs of $rollouts rollouts: all as expected"
exit "$failed"
