#!/usr/bin/env bash
# convert.sh INVAR FOLDER - invar convert: no weight is lost, and equal input gives equal bytes.
#
# Models are converted between folders, shards and checkpoints and back, and compared with the
# originals and with the exports of the runs. Control: rounding to bf16 changes weights.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$1 folder=$2
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
expect_verb=(convert)
data=$PWD/tests/unit/engine/files/hf/data folders=$PWD/tests/oracle/folders
rm -rf "$folder"
mkdir -p "$folder" && cd "$folder" || exit 2

# same A B [OPTION ...]: compares two folders, with options of diff.
same() {
    checks=$((checks + 1))
    diff -r "${@:3}" "$1" "$2" >difference ||
        complain "$1 and $2 are not the same:" "$(<difference)"
}

# scores OUT DIR: writes the log-prob bits of a model to OUT.
printf '{"tokens":[1,2,3,4,5,6,7,8,9,10]}\n{"tokens":[39,0,17]}\n' >tokens
scores() {
    "$invar" score --hf-checkpoint "$2" --dtype fp32 --tokens tokens --json >"$1" ||
        complain "$2 cannot be scored"
}

# ---- round trips --------------------------------------------------------------------------------
for model in qwen3 llama qwen2 qwen3_moe; do
    expect 0 "written   $model.a" "$data/$model" $model.a
    expect 0 "written   $model.b" $model.a $model.b
    same $model.a $model.b
    expect 0 "written   $model.c" $model.a $model.c --to-checkpoint
    expect 0 "read      $model.c/iter_0000000" $model.c $model.d
    same $model.a $model.d
    expect 0 "written   $model.e" "$data/$model" $model.e --max-shard-bytes 3000
    [[ -f $model.e/model.safetensors.index.json && ! -e $model.e/model.safetensors ]] ||
        complain "$model.e has no shards"
    expect 0 "written   $model.f" $model.e $model.f
    same $model.a $model.f
    scores original "$data/$model"
    for other in a d e; do
        scores other $model.$other
        cmp -s original other || complain "$model.$other computes other bits than the original"
    done
    # Rounding to bf16 twice is rounding once.
    expect 0 "rounded to bf16" $model.a $model.g --dtype bf16
    expect 0 "rounded to bf16" $model.g $model.h --dtype bf16
    same $model.g $model.h
    expect 0 "written" $model.g $model.i
    expect 0 "rounded" $model.i $model.j --dtype bf16
    same $model.g $model.j
    grep -q '"bfloat16"' $model.g/config.json || complain "$model.g: config.json names no bf16"
done
# The file config.json is the original except for the type.
cmp "$data/qwen3/config.json" qwen3.a/config.json || complain "qwen3 has another config.json"
expect 0 "written" "$data/llama" llama.k --dtype bf16
cmp "$data/llama/config.json" llama.k/config.json || complain "llama has another config.json"
for key in bos_token_id pad_token_id; do
    grep -q "$key" "$data/llama/config.json" || complain "llama has no $key to lose"
done
sed 's/"bfloat16"/"float32"/' "$data/llama/config.json" | cmp - llama.a/config.json ||
    complain "llama.a has another config.json"
# Control: rounding changes weights that are not bf16.
files_differ "rounded weights" qwen3.a/model.safetensors qwen3.i/model.safetensors

expect 0 "written   critic.a" "$data/critic" critic.a
expect 0 "written   critic.b" critic.a critic.b --to-checkpoint
expect 0 "written   critic.c" critic.b critic.c
same critic.a critic.c

# ---- files that are copied along with the weights -----------------------------------------------
cp -r llama.a whole
for name in tokenizer.json tokenizer_config.json special_tokens_map.json added_tokens.json \
    tokenizer.model vocab.json merges.txt chat_template.jinja chat_template.json; do
    echo "{} $name" >whole/$name
done
mkdir whole/additional_chat_templates
for name in tool_use rag a; do
    echo "{{ $name }}" >whole/additional_chat_templates/$name.jinja
done
echo secret | tee whole/other.txt >whole/additional_chat_templates/other.txt
expect 0 "written" whole along
rm whole/other.txt whole/additional_chat_templates/other.txt
same whole along
expect 0 "written" whole along.checkpoint --to-checkpoint
expect 0 "written" along.checkpoint along.back
same whole along.back
expect 0 "written" llama.c along.given --tokenizer whole
same whole along.given
# A template that cannot be copied, and those after the 48th name, are left out with a message.
cp -r whole many
echo x >'many/additional_chat_templates/two words.jinja'
expect 0 'additional_chat_templates: 1 chat template is not handed on, as "two words.jinja": a' \
    many along.many
same whole along.many
rm many/additional_chat_templates/*
for ((i = 10; i < 60; i++)); do
    echo $i >many/additional_chat_templates/$i.jinja
done
expect 0 '2 chat templates are not handed on' many along.most --to-checkpoint
expect 0 'written' along.most along.most.back
rm many/additional_chat_templates/5[89].jinja
same many along.most.back
# An error is reported if the folder of chat templates cannot be listed.
rm -r many/additional_chat_templates
echo x >many/additional_chat_templates
expect 2 'many/additional_chat_templates: cannot be listed: Not a directory' many along.error
expect 2 "has no tokenizer" llama.c along.nothing --tokenizer llama.c

# ---- checkpoints of a run -----------------------------------------------------------------------
tiny_recipe 2 >tiny.ini
printf '[optimizer]\nlr = 0.01\n' >>tiny.ini
"$invar" train tiny.ini --run run --no-report --save saved --save-interval 1 \
    --save-hf 'hf_{rollout_id}' >train.log 2>&1 || complain "training failed:" "$(<train.log)"
expect 0 "read      saved/iter_0000001" saved run.new
same run.new hf_1
expect 0 "read      saved/iter_0000000" saved run.old --ckpt-step 0
same run.old hf_0
files_differ "weights after a step" run.new/model.safetensors run.old/model.safetensors
# The folder of a run stands for the checkpoints in it.
"$invar" train tiny.ini --run kept --no-report --save-interval 1 >train.log 2>&1 ||
    complain "training failed:" "$(<train.log)"
expect 0 "read      kept/checkpoints/iter_0000001" kept kept.new
same kept.new run.new
expect 0 "read      kept/checkpoints/iter_0000000" kept kept.old --ckpt-step 0
same kept.old run.old
# If the checkpoints are elsewhere, the ledger of the run names their folder.
expect 0 "read      saved/iter_0000001" run run.elsewhere
same run.elsewhere run.new
for verb in 'generate tiny.ini --prompt 3,7=' 'eval tiny.ini --eval-prompt-data "max task:max"'; do
    checks=$((checks + 1))
    eval "$invar $verb --run run" >told.log 2>&1
    grep -q 'from *saved/iter_0000001$' told.log || complain "$verb: not the weights of the run"
done
# Our checkpoints can start a run: the first rollout samples with exactly their weights.
expect 0 "written" run.new start --to-checkpoint
for from in run.new start saved; do
    checks=$((checks + 1))
    "$invar" generate tiny.ini --ref-load $from --prompt '3,7=' --json >"start.$from" ||
        complain "$from cannot be a start"
    cmp -s start.run.new "start.$from" || complain "$from starts with other weights"
done
# The checkpoints of a run are not replaced; checkpoints without an owner are.
cp -r saved saved.before
expect 2 "saved holds checkpoints of run " qwen3.a saved --to-checkpoint --force
expect 2 "which --force does not replace; give another folder" qwen3.a saved --to-checkpoint --force
same saved.before saved
rm saved.before/owner # older versions wrote none: the checkpoints themselves name their run
expect 2 "saved.before holds checkpoints of run " qwen3.a saved.before --to-checkpoint --force
cp -r start start.again
expect 0 "written" run.old start.again --to-checkpoint --force
files_differ "checkpoint that --force replaced" start/iter_0000000/model.safetensors \
    start.again/iter_0000000/model.safetensors
expect 2 "iter_0000007: there is no such checkpoint; choose another with ckpt-step: 0, 1" saved no \
    --ckpt-step 7
# A checkpoint that is named by its own folder is verified by every command, too.
expect 0 "read      saved/iter_0000001" saved/iter_0000001 run.named
same run.new run.named
printf xxxx | dd of=saved/iter_0000001/model.safetensors bs=1 seek=3000 conv=notrunc 2>dd.log
damaged='saved/iter_0000001: model.safetensors: tensor "'
expect 2 "$damaged" saved no
expect 2 "ckpt-step: 0" saved no
expect 2 "$damaged" saved/iter_0000001 no
expect_verb=()
for key in load ref-load; do
    expect 2 "$damaged" generate tiny.ini --prompt '3,7=' --$key saved/iter_0000001
done
expect 2 "$damaged" score --hf-checkpoint saved/iter_0000001 --tokens tokens
# The message advises a checkpoint that exists, even if the header is damaged.
printf '[' | dd of=saved/iter_0000001/model.safetensors bs=1 seek=8 conv=notrunc 2>dd.log
damaged='iter_0000001/model.safetensors: the header does not begin with {; the file is damaged'
earlier='use an earlier checkpoint: saved/iter_0000000'
expect 2 "$damaged; choose another with ckpt-step: 0" convert saved no
expect 2 "$damaged; $earlier" convert saved/iter_0000001 no
expect 2 "$damaged; $earlier" generate tiny.ini --prompt '3,7=' --ref-load saved
expect 2 "$damaged; $earlier" score --hf-checkpoint saved/iter_0000001 --tokens tokens
expect_verb=(convert)
expect 0 "read      saved/iter_0000000" saved run.older --ckpt-step 0

# ---- a run that starts from a folder: exports and checkpoints copy the folder's files -----------
real=$folders/4.57.6/llama-fp16-tied
"$invar" train "$folders/train.ini" --hf-checkpoint "$real" --prompt-data "$folders/train.jsonl" \
    --run run.real --no-report --save saved.real --save-hf 'real_{rollout_id}' >train.log 2>&1 ||
    complain "training failed:" "$(<train.log)"
expect 0 "read      saved.real/iter_0000001" run.real real.new
same real.new real_1
# Without the run, or if its base model is gone, config.json has only the keys that describe the
# model.
expect 0 "read      saved.real/iter_0000001" saved.real real.alone
same real.alone real_1 -x config.json
lacks bos_token_id real.alone/config.json # a checkpoint alone has no other keys
# An export changes only the type in config.json.
sed 's/"float16"/"float32"/' "$real/config.json" | cmp - real_1/config.json ||
    complain "real_1 has another config.json than $real"
for path in "$real"/*; do
    case ${path##*/} in
    config.json | model.safetensors) files_differ "export" "$path" "real_1/${path##*/}" ;;
    *) holds cmp "$path" "real_1/${path##*/}" ;;
    esac
done
(($(find "$real" -type f | wc -l) == $(find real_1 -type f | wc -l))) ||
    complain "real_1 has other files than $real: $(ls real_1)"

# Chat templates are those that the run was trained with: of the folder, or of a file.
cp -r "$real" more
mkdir more/additional_chat_templates
echo '{{ messages[0].content }} tools' >more/additional_chat_templates/tool_use.jinja
echo '{{ messages[0].content }} mine' >mine.jinja
echo '{"messages": [{"role": "user", "content": "12 + 30 ="}], "label": "42"}' >chat.jsonl
chat() {
    "$invar" train "$folders/train.ini" --hf-checkpoint more --prompt-data chat.jsonl --no-report \
        --input-key messages --apply-chat-template --run "run.$1" --save "saved.$1" \
        --save-hf "$1_{rollout_id}" "${@:2}" >train.log 2>&1 ||
        complain "$1 failed:" "$(<train.log)"
    expect 0 "written" "run.$1" "$1.new"
    same "$1.new" "$1_1"
}
chat all
mv more gone
expect 0 "warning: more ($PWD/more), which the run started from, does not exist" run.all all.gone
mv gone more
# A relative path of the base model is resolved in the current folder; the folder that is used is
# printed.
expect 0 "config    more ($PWD/more)" run.all all.named
mkdir elsewhere
cp -r saved.all run.all/checkpoints
cd elsewhere || exit 2
expect 0 "to keep them, convert in the folder that the run was started in" ../run.all ../all.far
cp -r "$data/llama" more
expect 0 "more ($PWD/more), which the run started from, is another model" ../run.all ../all.other
cd .. || exit 2
same all.gone all_1 -x config.json
same more/additional_chat_templates all_1/additional_chat_templates
cmp more/chat_template.jinja all_1/chat_template.jinja || complain "another chat template"
python3 -c 'import json
with open("more/tokenizer_config.json", "r+", encoding="utf-8") as file:
    config = json.load(file) | {"chat_template": "old", "model_max_length": int(1e30)}
    file.seek(0)
    json.dump(config, file)
    file.truncate()'
chat own --chat-template-path mine.jinja
python3 -c 'import json
old, new = (json.load(open(f"{name}/tokenizer_config.json", encoding="utf-8"))
            for name in ("more", "own_1"))
assert old.pop("chat_template") == "old"
assert old == new, (old, new)' || complain "tokenizer_config.json: another template is left in it"
cmp mine.jinja own_1/chat_template.jinja || complain "not the chat template of chat-template-path"
[[ ! -e own_1/additional_chat_templates ]] || complain "a template that was not trained with"

# ---- rejected conversions -----------------------------------------------------------------------
expect 129 "llama.b: not empty; --force" qwen3.a llama.b
same llama.a llama.b
expect 0 "written   llama.b" qwen3.a llama.b --force
same qwen3.a llama.b
expect 129 "the same folder" qwen3.a ./qwen3.a --force
# One file replaces several shards: none of the shards stays.
expect 0 "written" qwen3.a shards.b --max-shard-bytes 20000
(($(find shards.b -name 'model-0*' | wc -l) > 1)) || complain "no shards: $(ls shards.b)"
touch shards.b/model-card.safetensors
expect 0 "written" qwen3.a shards.b --force
[[ $(cd shards.b && echo *.safetensors*) == "model-card.safetensors model.safetensors" ]] ||
    complain "of an earlier export: $(ls shards.b)"
same qwen3.a llama.b
expect 129 "an argument is missing" qwen3.a
expect 129 "unexpected argument" qwen3.a b c
expect 129 "--dtype fp8: there are fp32 and bf16" qwen3.a no --dtype fp8
expect 129 "a checkpoint is fp32" qwen3.a no --to-checkpoint --dtype bf16
expect 129 "FROM has no checkpoints" qwen3.a no --ckpt-step 3
expect 2 "nowhere: no such folder" nowhere no
expect 2 "'hf download Qwen/Qwen3-0.6B --local-dir models/Qwen3-0.6B' and name that folder" \
    Qwen/Qwen3-0.6B no
mkdir empty
expect 2 "FROM: empty is no folder of a model: it has no config.json" empty no
expect 2 "it may also be a run, a checkpoint or a folder of checkpoints" empty no
expect 2 "FROM: tiny.ini is a file, not a folder" tiny.ini no
cp -r qwen3.e bare
rm bare/model.safetensors.index.json
expect 2 "is a shard, and its index is missing" bare no
cp -r qwen3.a damaged
bytes=$(stat -c %s damaged/model.safetensors)
truncate -s -1 damaged/model.safetensors
said="the file is incomplete: by its header it has $bytes bytes, and there are $((bytes - 1))"
expect 2 "damaged/model.safetensors: $said; download or copy it again" damaged no
echo 'version https://git-lfs.github.com/spec/v1' >damaged/model.safetensors
said="it is a pointer of git-lfs in the place of the file: run 'git lfs pull' in its folder"
expect 2 "damaged/model.safetensors: $said" damaged no
echo '{' >damaged/config.json
expect 129 "config.json" damaged no
expect 2 "cannot be written to" qwen3.a tiny.ini
[[ ! -e no ]] || complain "a refused conversion left something: $(ls no)"
if [[ $(id -u) != 0 ]]; then
    mkdir locked && chmod a-w locked
    expect 2 "locked" qwen3.a locked/x
fi

# ---- an adapter, merged --------------------------------------------------------------------------
adapters=$folders/../peft
for name in llama-all:llama-fp16-tied qwen3_moe-mlp:qwen3_moe-bf16-shards; do
    base=$folders/4.57.6/${name#*:} adapter=$adapters/${name%:*}
    expect 0 "is the largest difference from base and adapter, of 252 tokens" "$base" \
        "merged-${name%:*}" --merge "$adapter"
    python3 "$adapters/merged.py" "$invar" "merged-${name%:*}" "$adapter.json" >out 2>&1 ||
        complain "merged ${name%:*}:" "$(<out)"
    python3 "$adapters/merged.py" "$invar" "$base" "$adapter.json" >out 2>&1 &&
        complain "the base of ${name%:*} has the log-probs of its adapter"
done
expect 2 "is no adapter of this model" "$folders/4.57.6/qwen3-fp16" no \
    --merge "$adapters/qwen3_moe-mlp"

((failed)) || echo "$checks checks, all as expected"
exit "$failed"
