#!/usr/bin/env bash
# score.sh INVAR FOLDER - invar score: the same log-prob bits with every mode and batching.
#
# Modes, batch sizes, prefill chunks and threads must not change a bit, for models from folders and
# from recipes, in every format. Control: another format, numerics or model has other bits.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$1 folder=$2
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
expect_verb=(score)
data=$PWD/tests/unit/engine/files/hf/data
rm -rf "$folder"
mkdir -p "$folder" && cd "$folder" || exit 2

# ---- tokens: lines of 1 to 47 tokens below 40 ---------------------------------------------------
word=7
line() {
    local text='' i
    for ((i = 0; i < $1; i++)); do
        word=$(((word * 1103515245 + 12345) % 2147483648))
        text+=${text:+,}$((word / 65536 % 40))
    done
    printf '{"tokens":[%s]}\n' "$text"
}
for n in 9 1 47 2 16 33 5; do line "$n"; done >tokens

# ---- a wide model, for formats with scale blocks, from a recipe with random weights -------------
wide() {
    cat >"$1.ini" <<END
[model]
num-layers = 2
hidden-size = 128
ffn-hidden-size = 128
num-attention-heads = 4
num-query-groups = 4
kv-channels = 32
vocab-size = 40
max-position-embeddings = 64
init-method-std = 0.1
$2
[rollout]
prompt-data = task:sort
END
}
wide dense ''
wide experts $'model-type = qwen3_moe\nnum-experts = 4'

# ---- one model, one format: every execution variant ---------------------------------------------

# variants NUMBER: prints mode, batch size, prefill chunk and threads; all combinations, or two of a
# selection in which each value occurs. NUMBER selects the two, so that the four sweeps of a format
# have the complete selection.
variants() {
    local mode batch chunk threads some=('train 3 0 2' 'prefill 1 1 3' 'train 64 0 3'
        'prefill 3 2 1' 'decode 3 0 3' 'prefill 64 7 2')
    if [[ ${INVAR_TEST_FULL-} ]]; then
        for mode in train prefill decode; do
            for batch in 1 3 64; do
                for chunk in 1 2 7; do
                    for threads in 1 2 3; do echo "$mode $batch $chunk $threads"; done
                done
            done
        done
    else
        printf '%s\n' "${some[@]:$1 % 3 * 2:2}"
    fi
}

# sweep NAME ARGUMENT ...: compares the output of all variants, and leaves it in NAME.
sweep() {
    local name=$1 mode batch chunk threads
    shift
    "$invar" score "$@" --tokens tokens --json --threads 1 --batch-size 1 >"$name" ||
        complain "invar score $* failed"
    while read -r mode batch chunk threads; do
        checks=$((checks + 1))
        "$invar" score "$@" --tokens tokens --json --mode "$mode" --batch-size "$batch" \
            --chunk "$chunk" --threads "$threads" >other
        cmp -s "$name" other ||
            complain "$name: other bits with $mode, batch $batch, chunk $chunk, threads $threads"
    done < <(variants "$sweeps")
    sweeps=$((sweeps + 1))
}

for numerics in ieee sm90; do
    [[ $numerics == ieee ]] && sweeps=0 || sweeps=1
    for model in qwen3 llama qwen2 qwen3_moe; do
        sweep "$model.$numerics" --hf-checkpoint "$data/$model" --dtype fp32 --numerics $numerics
    done
    sweep qwen3.bf16.$numerics --hf-checkpoint "$data/qwen3" --dtype bf16 --numerics $numerics
    for dtype in fp32 bf16 fp8 mxfp8 int4; do
        for recipe in dense experts; do
            sweep "$recipe.$dtype.$numerics" $recipe.ini --dtype $dtype --numerics $numerics
        done
    done
done
# Control: another computation has other bits.
for other in experts.bf16.ieee dense.fp32.ieee dense.fp8.ieee dense.mxfp8.ieee dense.int4.ieee; do
    files_differ "bits of another computation" dense.bf16.ieee $other
done

# ---- output -------------------------------------------------------------------------------------

# There is one number per prediction, and `bits` has the bits of `logprobs`.
checks=$((checks + 1))
python3 - <<'END' || complain "numbers and bits do not belong together"
import json, struct
lines = [json.loads(line) for line in open("tokens")]
answers = [json.loads(line) for line in open("qwen3.ieee")]
assert len(lines) == len(answers)
for line, answer in zip(lines, answers):
    assert list(answer) == ["logprobs", "bits"]
    assert len(answer["logprobs"]) == len(line["tokens"]) - 1
    for value, bits in zip(answer["logprobs"], answer["bits"]):
        assert value < 0 and struct.unpack(">f", bytes.fromhex(bits))[0] == value
END
expect 0 "per token" --hf-checkpoint "$data/qwen3" --tokens tokens

# Control: another last token changes the last number of its line and nothing else.
sed '3s/,[0-9]*\]/,39]/' tokens >changed
files_differ "another token" tokens changed
checks=$((checks + 1))
"$invar" score --hf-checkpoint "$data/llama" --dtype fp32 --tokens changed --json >other ||
    complain "the changed tokens cannot be scored"
python3 - <<'END' || complain "another token did not change exactly its own number"
import json
a = [json.loads(line)["bits"] for line in open("llama.ieee")]
b = [json.loads(line)["bits"] for line in open("other")]
changed = [(i, j) for i in range(len(a)) for j in range(len(a[i])) if a[i][j] != b[i][j]]
assert changed == [(2, len(a[2]) - 1)], changed
END

# Tokens are read from standard input, and from a pipe.
for way in - /dev/stdin; do
    checks=$((checks + 1))
    "$invar" score --hf-checkpoint "$data/llama" --dtype fp32 --tokens $way --json <tokens |
        cmp -s - llama.ieee || complain "--tokens $way does not read standard input"
done
checks=$((checks + 1))
"$invar" score --hf-checkpoint "$data/llama" --dtype fp32 --tokens <(cat tokens) --json |
    cmp -s - llama.ieee || complain "--tokens does not read a pipe"
checks=$((checks + 1)) rc=0
"$invar" score --hf-checkpoint "$data/llama" --dtype fp32 --tokens tokens --json \
    >/dev/full 2>errors || rc=$?
{ ((rc == 2)) && grep -q 'written' errors; } ||
    complain "score on a full disk: exit code $rc:" "$(<errors)"

# ---- bad input ----------------------------------------------------------------------------------
model=(--hf-checkpoint "$data/qwen3" --dtype fp32)
expect 129 "--tokens FILE is missing" "${model[@]}"
expect 2 "nowhere: cannot be opened: no such file" "${model[@]}" --tokens nowhere
expect 2 "cannot be read" "${model[@]}" --tokens .
expect 129 "--mode frob: there are train, prefill and decode" "${model[@]}" --tokens tokens \
    --mode frob
expect 129 "--batch-size: -1" "${model[@]}" --tokens tokens --batch-size -1
expect 129 "unknown option '--frob'" "${model[@]}" --tokens tokens --frob
expect 2 "no such folder" --hf-checkpoint nowhere --tokens tokens
expect 129 "no tokenizer" --tokens tokens
expect 129 "critic" --hf-checkpoint "$data/critic" --tokens tokens --dtype fp32
expect 2 "int4 needs multiples of 16 x 32" --hf-checkpoint "$data/qwen3" --tokens tokens \
    --dtype int4
expect 129 "dtype" --hf-checkpoint "$data/qwen3" --tokens tokens --dtype fp31

# bad LINE TEXT: checks that a bad third line of four is rejected with TEXT.
bad() {
    printf '{"tokens":[1,2]}\n{"tokens":[3]}\n%s\n{"tokens":[4]}\n' "$1" >bad
    expect 129 "$2" "${model[@]}" --tokens bad
}
bad '{"tokens":[1,2' "bad:3: column 14 is not JSON"
bad '' "bad:3: it is empty; expected JSON"
bad $'\xef\xbb\xbf{"tokens":[1,2]}' "bad:3: it begins with a byte order mark"
bad '[1,2]' 'bad:3: "tokens" is missing'
bad '{"token":[1,2]}' 'bad:3: "tokens" is missing; a line is {"tokens": [1, 2, 3]}'
bad '{"tokens":[]}' 'bad:3: "tokens" is empty'
bad '{"tokens":1}' 'bad:3: "tokens" is no list'
bad '{"tokens":[1,40]}' "bad:3: \"tokens\"[1] is 40; this model's tokens are 0 to 39: make the ids"
bad '{"tokens":[-1]}' 'bad:3: "tokens"[0] is -1; '
bad '{"tokens":[1.0]}' 'bad:3: "tokens"[0] is no integer'
bad '{"tokens":["1"]}' 'bad:3: "tokens"[0] is no integer'
bad '{"tokens":[18446744073709551617]}' 'bad:3'
bad '{"tokens":[1],"tokens":[2]}' 'bad:3'
bad "$(line 65)" 'bad:3: 65 tokens; the model takes 64 at most'
expect 129 "standard input has no line to score" "${model[@]}" --tokens -
: >bad
expect 129 "bad has no line to score" "${model[@]}" --tokens bad
printf '\n\n' >bad
expect 129 "bad has no line to score" "${model[@]}" --tokens bad
# A line that generate --json wrote is valid input: its text may contain any character.
printf '{"tokens":[1,2],"text":"a\\u0000b"}\n' >bad
expect 0 '{"logprobs":' "${model[@]}" --tokens bad --json
printf '{"tokens":[1,2]}\n\n\n' >bad
expect 0 "per token" "${model[@]}" --tokens bad

((failed)) || echo "$checks checks, all as expected"
exit "$failed"
