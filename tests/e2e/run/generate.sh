#!/usr/bin/env bash
# generate.sh INVAR FOLDER - generate and eval repeat single samples and evaluations of training,
# bit by bit.
#
# A training run records samples and evaluations. Each sample is sampled again alone from its
# coordinates, completions are compared over free keys and drafts, and with invar score. Controls:
# another temperature, seed, format or checkpoint must give another result.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$1 folder=$2
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
judge="python3 $PWD/engine/ext/example/reward.py"
rm -rf "$folder"
mkdir -p "$folder" && cd "$folder" || exit 2

# equal WHAT A B: checks that two files have the same bytes and are not empty.
equal() {
    checks=$((checks + 1))
    { [[ -s $2 ]] && cmp -s "$2" "$3"; } || complain "$1: $2 and $3 differ"
}

# rows OUT SQL: writes the result of a query on the run's ledger, without its header.
rows() {
    "$invar" ledger sql "$2" run --csv | sed 1d | tr -d '"\r' >"$1"
    [[ -s $1 ]] || complain "the ledger has no answer to: $2"
}

cat >test.jsonl <<'END'
{"input": "3,7=", "label": "7"}
{"input": "9,1=", "label": "9"}
{"input": "5,5=", "label": "5"}
END
cat >tiny.ini <<'END'
[model]
dtype = bf16
num-layers = 2
hidden-size = 32
ffn-hidden-size = 32
num-attention-heads = 2
max-position-embeddings = 16
init-method-std = 0.1
[rollout]
prompt-data = task:max
task-size = 12
rollout-shuffle = true
num-rollout = 3
rollout-batch-size = 3
n-samples-per-prompt = 4
num-steps-per-rollout = 2
rollout-max-response-len = 5
rollout-top-p = 0.95
rm-type = overlap
[eval]
eval-prompt-data = own task:max file test.jsonl
eval-label-key = label
eval-interval = 1
eval-temperature = 0.7
n-samples-per-eval-prompt = 4
[optimizer]
lr = 0.02
[engine]
numerics = sm90
END
"$invar" train tiny.ini --run run --no-report --save saved --save-interval 1 >log 2>&1 ||
    complain "training failed:" "$(<log)"

# ---- recorded samples, sampled again alone ------------------------------------------------------
pick='(step * 7 + idx) % 9 = 0'
rows coords "SELECT rng FROM sample WHERE ${INVAR_TEST_FULL:+1 OR} $pick ORDER BY step, idx"
threads=1
while read -r rng; do
    expect 0 "identical: prompt, tokens and log-probabilities" generate tiny.ini --sample "$rng" \
        --save saved --run run --threads $threads --chunked-prefill-size $threads
    threads=$((threads % 3 + 1))
done <coords
(($(wc -l <coords) >= 3)) || complain "too few samples were made again"
rows last "SELECT rng FROM sample ORDER BY step DESC, idx DESC LIMIT 1"
last=$(<last)
first=$(head -n 1 coords)
sample=(generate tiny.ini --save saved --run run --sample)
expect 0 '"ledger":"identical"' "${sample[@]}" "$last" --json
expect 0 'identical' generate tiny.ini --load saved --ledger run/ledger.db --sample "$last"
expect 0 '' generate tiny.ini --sample "$first" # the initial weights need no checkpoint
expect 129 "--ckpt-step would be ignored" generate tiny.ini --sample "$first" --ckpt-step 1
# Controls: other results are reported as different.
expect 1 "different: " "${sample[@]}" "$last" --rollout-temperature 0.5
expect 1 "different: " "${sample[@]}" "$last" --rollout-top-p 0.3
# Only what differs is named: a sharper distribution gives other log-probs for the same tokens.
expect 1 "different: log-probabilities" "${sample[@]}" "$last" --rollout-temperature 0.999
expect 1 '"ledger":"different","differs":["log-probabilities"]}' "${sample[@]}" "$last" --json \
    --rollout-temperature 0.999
expect 1 "different: tokens and log-probabilities" "${sample[@]}" "$last" \
    --rollout-max-response-len 1
expect 129 "--n would be ignored" "${sample[@]}" "$last" --n 3
expect 1 '"ledger":"different"' "${sample[@]}" "$last" --numerics ieee --dtype fp32 --json
expect 6 "nothing was compared" "${sample[@]}" "${last/draw=11/draw=12}"
# The message names what is missing.
weights=${last##*=}
expect 2 "the weights $weights are missing" generate tiny.ini --sample "$last"
expect 2 " (from 0) is not in the recipe's prompt-data" "${sample[@]}" \
    "${last/prompt=/prompt=9}"
expect 129 "rollout-seed = 42" "${sample[@]}" "${last/seed=42/seed=43}"
expect 2 "purpose=1: only samples of training" "${sample[@]}" "${last/purpose=0/purpose=1}"
expect 2 "nowhere" generate tiny.ini --sample "$last" --save saved --run nowhere
expect 2 "nothing is sampled" "${sample[@]}" "$last" --loss-type sft_loss
for bad in '' 'seed=42' "$last," "x$last" "${last/seed=42/seed=042}" "${last/seed=42/seed=-42}" \
    "${last/seed=42/seed=4294967296}" "${last%?}" "${last/draw/Draw}" "${last/,/, }"; do
    expect 129 "are no coordinates" "${sample[@]}" "$bad"
done
# A damaged checkpoint is not used.
cp -r saved damaged
for file in damaged/iter_*/model.safetensors; do printf x >>"$file"; done
expect 2 "are missing" generate tiny.ini --sample "$last" --save damaged

# ---- completions --------------------------------------------------------------------------------
complete=(generate tiny.ini --load saved --prompts test.jsonl --n 3)
"$invar" "${complete[@]}" --json --threads 1 >one || complain "generate failed"
for way in "--rollout-concurrency 1" "--rollout-concurrency 5 --threads 2" \
    "--chunked-prefill-size 1 --page-size 3 --threads 3" "--disable-prefix-sharing" \
    "--speculative-algorithm ngram --speculative-ngram-min-match-window-size 1"; do
    # shellcheck disable=SC2086 # several words
    "$invar" "${complete[@]}" --json $way >other
    equal "generate with $way" one other
done
"$invar" "${complete[@]}" --speculative-algorithm ngram \
    --speculative-ngram-min-match-window-size 1 >/dev/null 2>told
grep -qE 'speculation: [0-9]+ of [0-9]+ guessed tokens were drawn, [1-9]\.[0-9]+ tokens a' told ||
    complain "generate does not say what guesses did"
(($(wc -l <one) == 9)) || complain "3 prompts, 3 completions each, are not $(wc -l <one) lines"
"$invar" "${complete[@]}" --json --rollout-seed 43 >other || complain "generate failed"
files_differ "completions of another seed" one other
"$invar" generate tiny.ini --prompts test.jsonl --n 3 --json >other || complain "generate failed"
files_differ "completions of other weights" one other
# A response has the same log-probs when its tokens are scored.
"$invar" score tiny.ini --ref-load saved --tokens one --json >scored || complain "score failed"
checks=$((checks + 1))
python3 - <<'END' || complain "generate and score disagree, or a line has not what it should"
import json
lines = [json.loads(line) for line in open("one")]
scores = [json.loads(line) for line in open("scored")]
assert len(lines) == len(scores)
for line, score in zip(lines, scores):
    n = line["prompt_tokens"]
    assert line["bits"] == score["bits"][n - 1:] and line["logprobs"] == score["logprobs"][n - 1:]
    assert len(line["tokens"]) == n + len(line["bits"]) and 1 <= len(line["bits"]) <= 5
    assert line["finish"] in ("stop", "length") and line["weights"] in line["coords"]
    assert line["prompt"] == lines.index(line) // 3 and len(line["prompt_hash"]) == 32
END
# Weights come from load, from a run, or are the initial ones; score accepts the same flags, and
# both print the source.
for from in "--load saved" "--load saved/iter_0000005" "--load saved --ckpt-step 5" \
    "--run run --save saved"; do
    # shellcheck disable=SC2086 # several words
    "$invar" score tiny.ini $from --tokens one --json >other || complain "score $from failed"
    equal "score with $from" scored other
    # shellcheck disable=SC2086
    "$invar" generate tiny.ini --prompts test.jsonl --n 3 $from --json >other
    equal "generate with $from" one other
    # shellcheck disable=SC2086
    expect 0 "from    saved/iter_0000005" score tiny.ini $from --tokens one
    # shellcheck disable=SC2086
    expect 0 "weights from saved/iter_0000005" generate tiny.ini $from --prompt '3,7='
done
"$invar" score tiny.ini --load saved --ckpt-step 1 --tokens one --json >other ||
    complain "score --ckpt-step failed"
files_differ "scores of another checkpoint" scored other
"$invar" score tiny.ini --tokens one --json >other || complain "score of initial weights failed"
files_differ "scores of the initial weights" scored other
expect 0 "from    the initial ones (seed)" score tiny.ini --run run --load= --tokens one
expect 0 "weights from the initial ones (seed)" generate tiny.ini --prompt '3,7='
expect 0 "runs/tiny has trained ones: --run runs/tiny takes them" score tiny.ini --tokens one \
    --save saved
for verb in "score --tokens one" "generate --prompt 3,7="; do
    # shellcheck disable=SC2086
    expect 2 "load: nope: no such folder ($PWD/nope); 'invar ledger ls' lists" $verb tiny.ini \
        --load nope
    # shellcheck disable=SC2086
    expect 2 "run: a/b: no such folder ($PWD/a/b); 'invar ledger ls' lists the runs" $verb \
        tiny.ini --run a/b
    # shellcheck disable=SC2086
    expect 129 "'ckpt-step' would be ignored: it needs run or load" $verb tiny.ini --ckpt-step 1
done
# A completion is repeated from its coordinates.
"$invar" generate tiny.ini --load saved --prompts task:max --n 2 --json | sed -n 5p >line
own=$(sed 's/.*"coords":"//; s/".*//' line)
"$invar" generate tiny.ini --load saved --sample "$own" --json >again
equal "a completion by its coordinates" line again
# A single completion is printed as its text; several have headings.
"$invar" generate tiny.ini --load saved --prompt '3,7=' >text
(($(wc -l <text) == 1)) || complain "one completion is not one line:" "$(<text)"
expect 0 "prompt 0, draw 1: " generate tiny.ini --load saved --prompt '3,7=' --n 2
expect 129 "one of --prompt TEXT" generate tiny.ini
expect 129 "one of --prompt TEXT" generate tiny.ini --prompt '3,7=' --prompts test.jsonl
expect 129 "is not in the built-in alphabet" generate tiny.ini --prompt 'x'
expect 129 "prompt" generate tiny.ini --prompt ''
expect 129 "no prompt is left" generate tiny.ini --prompt '1,1,1,1,1,1,1,1,1,1='
expect 2 "no such file" generate tiny.ini --prompts nowhere.jsonl
expect 2 "nowhere" generate tiny.ini --load nowhere --prompt '3,7='
expect 129 "no tokenizer" generate --prompt x
checks=$((checks + 1)) rc=0
"$invar" "${complete[@]}" >/dev/full 2>told || rc=$?
{ ((rc == 2)) && grep -q 'written' told; } ||
    complain "generate on a full disk: exit code $rc:" "$(<told)"

# ---- a byte-level tokenizer: any text can be sampled, and only safe text is printed -------------
"$invar" train tiny.ini --vocab-size 300 --run run.bytes --no-report --num-rollout 1 \
    --eval-interval 0 --save bytes >log 2>&1 || complain "training failed:" "$(<log)"
"$invar" convert bytes model >log 2>&1 || complain "no folder with a model:" "$(<log)"
python3 - <<'END'
import json
def name(byte, moved=iter(range(0x100, 0x200))):
    printable = 0x20 < byte < 0x7F or 0xA0 < byte != 0xAD
    return chr(byte) if printable else chr(next(moved))
end = {"id": 256, "content": "<end>", "single_word": False, "lstrip": False, "rstrip": False,
       "normalized": False, "special": True}
split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [end],
           "normalizer": None, "pre_tokenizer": split, "post_processor": None, "decoder": split,
           "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False,
                     "continuing_subword_prefix": None, "end_of_word_suffix": None,
                     "byte_fallback": False, "vocab": {name(b): b for b in range(256)},
                     "merges": []}}, open("model/tokenizer.json", "w"))
json.dump({"eos_token": "<end>",
           "chat_template": "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"},
          open("model/tokenizer_config.json", "w"))
END
hf=(generate --hf-checkpoint model --prompt Hi --n 20 --rollout-max-response-len 13)
checks=$((checks + 1))
"$invar" "${hf[@]}" >shown || complain "generate failed"
"$invar" "${hf[@]}" --json >told || complain "generate --json failed"
python3 - <<'END' || complain "what is shown is not safe, or not what is told"
import json
shown = open("shown", "rb").read().decode()
assert all(c == "\n" or (c.isprintable() and c != "\x1b") or ord(c) >= 0xA0 for c in shown)
texts = [json.loads(line)["text"] for line in open("told")]
assert len(texts) == 20 and any(ord(c) < 32 and c != "\n" for t in texts for c in t), "no control"
assert all(json.loads(line)["tokens"][:2] == [72, 105] for line in open("told"))
END
# Drafts of a draft model that is the model itself.
draft=(--speculative-algorithm draft --speculative-draft-model-path)
"$invar" "${hf[@]}" --json "${draft[@]}" model >other
equal "generate with a draft model" told other
"$invar" "${hf[@]}" "${draft[@]}" model --rollout-stop-token-ids 1 >/dev/null 2>other
grep -q '^invar: speculation: .* tokens a pass' other ||
    complain "no word of a draft model:" "$(<other)"
"$invar" convert saved other_model >log 2>&1 || complain "no folder with a model:" "$(<log)"
expect 129 "has another vocabulary than the model" "${hf[@]}" "${draft[@]}" other_model
cp -r model same_size && sed -i 's/<end>/<over>/' same_size/tokenizer*.json
expect 129 "has another tokenizer than the model" "${hf[@]}" "${draft[@]}" same_size
expect 2 "nowhere" "${hf[@]}" "${draft[@]}" nowhere
expect 0 "draft: weights" plan tiny.ini "${draft[@]}" other_model
"$invar" train tiny.ini --run run.draft --save none --no-report "${draft[@]}" other_model \
    >log 2>&1 || complain "training with a draft model failed:" "$(<log)"
expect 0 "identical" diff run run.draft
if python3 -c 'import jinja2' 2>/dev/null; then
    checks=$((checks + 1))
    "$invar" generate --hf-checkpoint model --prompt Hi --apply-chat-template --json \
        --rollout-max-response-len 2 >told
    python3 -c 'import json
line = json.loads(open("told").read())
assert bytes(line["tokens"][:line["prompt_tokens"]]) == b"<user>Hi", line' ||
        complain "the chat template was not applied"
fi

# ---- evaluation ---------------------------------------------------------------------------------

# recorded OUT STEP: writes the evaluation that training recorded after this step.
recorded() {
    rows "$1" "SELECT dataset, name, printf('%016x', value_bits) FROM evaluation
        JOIN series USING (series) WHERE step = $2 ORDER BY dataset, name"
}

# evaluated OUT ARGUMENT ...: writes the results of invar eval in the same form.
evaluated() {
    "$invar" eval tiny.ini --json "${@:2}" >json || complain "invar eval ${*:2} failed"
    python3 - >"$1" <<'END'
import json, struct
for dataset, results in sorted(json.load(open("json"))["sets"].items()):
    for name, value in sorted(results.items()):
        print(dataset, name, struct.pack(">d", value).hex(), sep=",")
END
}
recorded want -1
evaluated have --threads 1
equal "evaluation of the initial weights" want have
for step in 1 3 5; do
    recorded want $step
    evaluated have --load saved --ckpt-step $step --rollout-concurrency $step
    equal "evaluation after step $step" want have
    evaluated have --load saved/iter_000000$step
    equal "evaluation of the folder of step $step" want have
done
expect 129 "'ckpt-step' would be ignored: saved/iter_0000003 is no folder of checkpoints" \
    eval tiny.ini --load saved/iter_0000003 --ckpt-step 1
expect 2 "no such checkpoint; choose another with ckpt-step: 1, 3, 5" eval tiny.ini --load saved \
    --ckpt-step 7
evaluated have --load saved
equal "evaluation of the newest weights" want have
evaluated other --load saved --rollout 1
files_differ "results of other draws" want other
expect 0 "eval/file-pass@4" eval tiny.ini --load saved
# 4 significant digits are printed, or all with --exact.
"$invar" eval tiny.ini --load saved >short 2>/dev/null
"$invar" eval tiny.ini --load saved --exact >long 2>/dev/null
"$invar" eval tiny.ini --load saved --json >json 2>/dev/null
python3 - <<'END' || complain "eval: not 4 digits, or not all with --exact:" "$(cat short long)"
import json
want = {n: v for s in json.load(open("json"))["sets"].values() for n, v in s.items()}
rows = [{w[1]: w[2] for w in map(str.split, open(f)) if len(w) == 3 and w[1] in want}
        for f in ("short", "long")]
assert set(rows[0]) == set(rows[1]) == set(want), rows
assert all(float(rows[1][n]) == v for n, v in want.items())
assert all(rows[0][n] == "%.4g" % v for n, v in want.items())
assert any(float(rows[0][n]) != v for n, v in want.items()), "no value that 4 digits cut"
END
expect 129 "neither eval-prompt-data nor eval-config" eval tiny.ini --eval-prompt-data= \
    --eval-interval 0 --n-samples-per-eval-prompt 1 --eval-temperature -1 --eval-label-key=
expect 129 "rollout-batch-size" eval --num-rollout 1
expect 2 "nowhere" eval tiny.ini --load nowhere
expect 129 "ckpt-step" eval tiny.ini --ckpt-step 1
# A plug-in computes the rewards, one by one and by groups.
for group in false true; do
    plugin=(--custom-rm-path "$judge" --group-rm "$group" --rm-type none)
    rm -rf run saved
    "$invar" train tiny.ini --run run --no-report --save saved --num-rollout 1 "${plugin[@]}" \
        >log 2>&1 || complain "training with a plug-in failed:" "$(<log)"
    recorded "plugin.$group" 1
    evaluated have --load saved "${plugin[@]}"
    equal "evaluation by a plug-in, groups: $group" "plugin.$group" have
done
files_differ "rewards with group-rm" plugin.false plugin.true

((failed)) || echo "$checks checks, all as expected"
exit "$failed"
