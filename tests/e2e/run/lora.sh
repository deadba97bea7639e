#!/usr/bin/env bash
# lora.sh INVAR FOLDER - runs that train LoRA adapters on a frozen base.
#
# Free keys and layouts of ranks must not change the chain, and a resumed run must keep it; other
# ranks, alphas, modules and patterns must change it. Checkpoints hold adapters only. Folders in
# peft's format are exported, imported, converted and merged; adapters that do not fit the recipe or
# the base are rejected. With INVAR_TEST_FULL=1 all formats and combinations run in all layouts.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$1 folder=$2
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
# shellcheck source=tests/e2e/bit_equal_runs.sh
source "$(dirname "$0")/../bit_equal_runs.sh"
full=${INVAR_TEST_FULL:-}
rm -rf "$folder"
mkdir -p "$folder" || exit 2
exact_recipe 256 4 512 lora-rank=4 lora-alpha=6 >"$folder/dense.ini"
sed -e 's/^ffn-hidden-size.*/&\nmodel-type = qwen3_moe\nnum-experts = 4\nmoe-router-topk = 2/' \
    "$folder/dense.ini" >"$folder/experts.ini"

# check_free_keys NAME RECIPE FLAG ...: checks that the free keys keep the chain of the run; sets
# `chain`.
check_free_keys() {
    local name=$1 seen
    shift
    train "$name" "$@"
    seen=$chain
    train "$name-ways" "$@" "${free_keys[@]}"
    [[ $chain == "$seen" ]] || complain "$name: in another way $chain, not $seen"
}

check_free_keys fp8 dense --dtype fp8 --kv-channels 128
check_free_keys experts experts
if [[ $full ]]; then
    check_free_keys fp32 dense --dtype fp32 --numerics ieee
    check_free_keys mxfp8 dense --dtype mxfp8 --kv-channels 32
    check_free_keys int4 dense --dtype int4 --kv-channels 32
    check_free_keys pieces dense --logical-tp 2
    check_free_keys some dense --target-modules q_proj,v_proj
    check_free_keys reference dense --kl-loss-coef 0.01 --use-kl-loss
fi
check_free_keys bf16 dense
seen=$chain
for flags in '--lora-rank 5' '--lora-alpha 7' '--target-modules down_proj' '--use-rslora' \
    '--lora-rank 0'; do
    cp "$folder/dense.ini" "$folder/other.ini"
    [[ $flags == *"rank 0" ]] && sed -i '/^lora-alpha/d' "$folder/other.ini"
    # shellcheck disable=SC2086 # several words
    train "other${flags//[ -]/}" other $flags
    [[ " $seen " != *" $chain "* ]] || complain "$flags: $chain again"
    seen+=" $chain"
done
seen=${seen%% *}

# ---- each free key alone, two ranks, resumed, replayed -----------------------------------------
for flags in '--optimizer-cpu-offload' '--debug-determinism full' '--ranks 2'; do
    # shellcheck disable=SC2086 # several words
    train "alone${flags//[ -]/}" dense $flags
    [[ $chain == "$seen" ]] || complain "$flags: $chain, not $seen"
done
saved=$folder/checkpoints
train resumed dense --save "$saved" --load "$saved" --debug-exit-after-rollout 1
train resumed dense --save "$saved" --load "$saved" "${free_keys[@]}"
[[ $chain == "$seen" ]] || complain "resumed: $chain, not $seen"
"$invar" replay "$folder/resumed" --step 1 --threads 2 >"$folder/replay" 2>&1 ||
    complain "replay: exit code $?" "$(<"$folder/replay")"
newest=("$saved"/iter_*)
[[ -s ${newest[0]}/adapter.safetensors && ! -e ${newest[0]}/model.safetensors ]] ||
    complain "a checkpoint of adapters has:" "$(ls "${newest[0]}")"
weights=$(sqlite3 -readonly "$folder/resumed/ledger.db" "SELECT count(*) FROM point
    WHERE name LIKE 'weight.%' AND name NOT LIKE '%.lora\__.weight' ESCAPE '\'" 2>&1)
[[ $weights == 0 ]] || complain "points of frozen weights: $weights"

# ---- ranks that divide the model ---------------------------------------------------------------
tp='--tensor-model-parallel-size 2' pp='--pipeline-model-parallel-size 2'
# layouts NAME RECIPE FLAG ...: compares the chain on one rank with those on ranks that divide the
# model; by default only with the last layout.
layouts() {
    local name=$1 one layout layouts=()
    shift
    [[ ! $full ]] || layouts=("--ranks 2 $tp" "--ranks 2 $pp" "--ranks 4 $tp")
    train "$name" "$@" --logical-tp 2
    one=$chain
    for layout in "${layouts[@]}" "--ranks 4 $tp $pp"; do
        # shellcheck disable=SC2086 # several words
        train "$name${layout//[ -]/}" "$@" --logical-tp 2 $layout
        [[ $chain == "$one" ]] || complain "$name $layout: $chain, not $one"
    done
}
layouts divided dense
one=$(member chain "$folder/divided.json")
beside=("--ranks 4 --rollout-num-gpus 2 --rollout-num-gpus-per-engine 2 $tp")
[[ ! $full ]] || beside+=('--ranks 2 --rollout-num-gpus 1' "--ranks 4 --rollout-num-gpus 2 $pp")
for layout in "${beside[@]}"; do
    # shellcheck disable=SC2086 # several words
    train "beside${layout//[ -]/}" dense --logical-tp 2 $layout
    [[ $chain == "$one" ]] || complain "$layout: $chain, not $one"
done
layouts divided-fp8 dense --dtype fp8 --kv-channels 128 --target-modules q_proj,o_proj,down_proj
layouts divided-experts experts --dtype mxfp8 --kv-channels 32 --logical-etp 2 \
    --expert-tensor-parallel-size 1
train ep-one experts --logical-etp 2
one=$chain
ep_layouts=('--ranks 4 --context-parallel-size 2')
[[ ! $full ]] || ep_layouts+=('--ranks 2' "--ranks 4 $pp")
for layout in "${ep_layouts[@]}"; do
    # shellcheck disable=SC2086 # several words
    train "ep${layout//[ -]/}" experts --logical-etp 2 --expert-model-parallel-size 2 $layout
    [[ $chain == "$one" ]] || complain "experts of other ranks, $layout: $chain, not $one"
done
layouts divided-int4 dense --dtype int4 --kv-channels 32 --model-type qwen2 --use-kl-loss \
    --kl-loss-coef 0.01
train apart dense --logical-tp 2 --save-hf "$folder/apart-{rollout_id}"
one=$chain halves=("--ranks 4 $tp $pp" "--ranks 2 $tp --lora-adapter-path $folder/apart-1")
# shellcheck disable=SC2086 # several words
train half dense --logical-tp 2 --save "$folder/half-saved" --load "$folder/half-saved" \
    --debug-exit-after-rollout 1 ${halves[0]}
train half dense --logical-tp 2 --save "$folder/half-saved" --load "$folder/half-saved" \
    --save-hf "$folder/half-{rollout_id}"
[[ $chain == "$one" ]] || complain "begun on 4 ranks: $chain, not $one"
# shellcheck disable=SC2086 # several words
train came dense --logical-tp 2 --num-rollout 1 --debug-disable-optimizer ${halves[1]} \
    --save-hf "$folder/came-{rollout_id}"
for file in half-1 came-0; do
    cmp "$folder/apart-1/adapter_model.safetensors" "$folder/$file/adapter_model.safetensors" ||
        complain "$file: other adapters"
done
"$invar" plan "$folder/experts.ini" --logical-tp 2 --logical-etp 2 --gpus 4 --memory 10GB --all \
    >"$folder/out" 2>&1 || complain "plan: exit code $?" "$(<"$folder/out")"
awk '$1 == 4 && $3 > 1' "$folder/out" | grep -q . || complain "plan has no expert-parallel layout"

# ---- identity of the run, and rejected recipes -------------------------------------------------
# refused TEXT FLAG ...: checks that training with these flags fails with TEXT.
refused() {
    local text=$1 flags=(--run "$folder/none" --save none)
    shift
    [[ " $* " == *" --run "* ]] && flags=()
    "$invar" train "$folder/dense.ini" "${flags[@]}" "$@" >"$folder/out" 2>&1 &&
        complain "not refused: $*"
    grep -qF -- "$text" "$folder/out" || complain "$*:" "$(<"$folder/out")"
}
refused "another run" --run "$folder/resumed" --lora-rank 5 --save "$saved" --load "$saved"
refused "another run" --run "$folder/resumed" --seed 5 --save "$saved" --load "$saved"
refused "'head' is no linear layer with an adapter" --target-modules head
refused "'lora-alpha' would be ignored: it needs lora-rank above 0" --lora-rank 0
sed '/^lora-/d' "$folder/dense.ini" >"$folder/whole.ini"
"$invar" train "$folder/whole.ini" --run "$folder/none" --save none --ref-load "$saved" \
    >"$folder/out" 2>&1 && complain "adapters alone are a model"
grep -q "has adapters alone: give the lora-rank" "$folder/out" ||
    complain "adapters alone:" "$(<"$folder/out")"

# ---- folders in peft's format: exported, imported, and exported again --------------------------
train exported dense --save-hf "$folder/peft-{rollout_id}" --ranks 2
[[ $chain == "$seen" ]] || complain "with save-hf: $chain, not $seen"
train imported dense --lora-adapter-path "$folder/peft-1" --num-rollout 1 \
    --debug-disable-optimizer --save-hf "$folder/again-{rollout_id}"
cmp "$folder"/peft-1/adapter_model.safetensors "$folder"/again-0/adapter_model.safetensors ||
    complain "adapters that came in do not go out"
"$invar" pack "$folder/imported" --step 0 --output "$folder/imported.pack" >"$folder/out" 2>&1 ||
    complain "a pack with an adapter:" "$(<"$folder/out")"
mv "$folder/peft-1" "$folder/away"
(cd "$folder" && "$invar" replay imported.pack) >"$folder/out" 2>&1 ||
    complain "a pack with an adapter, executed:" "$(<"$folder/out")"
"$invar" plan "$folder/dense.ini" --lora-adapter-path "$folder/peft-1" >"$folder/out" 2>&1 &&
    complain "a plan with an adapter that is not there"
grep -q 'lora-adapter-path: .*: no such folder' "$folder/out" || complain "$(<"$folder/out")"
mv "$folder/away" "$folder/peft-1"
refused '"r" is 4, but lora-rank is 3' --lora-adapter-path "$folder/peft-1" --lora-rank 3

# ---- rsLoRA: 6 / sqrt(4) is 12 / 4 --------------------------------------------------------------
train rslora dense --use-rslora --save-hf "$folder/rslora-{rollout_id}" --save "$folder/rs-saved"
train twice dense --lora-alpha 12 --save-hf "$folder/twice-{rollout_id}"
cmp "$folder"/{rslora,twice}-1/adapter_model.safetensors || complain "rsLoRA has another factor"
refused '"use_rslora" is true, but use-rslora is false' --lora-adapter-path "$folder/rslora-1"
refused '"use_rslora" is not true, but use-rslora is true' --lora-adapter-path "$folder/peft-1" \
    --use-rslora
refused "use-rslora true, and the recipe asks for 4, 6, q_proj,k_proj,v_proj,o_proj,gate_proj,up_" \
    --ref-load "$folder/rs-saved"
train rs-in dense --use-rslora --lora-adapter-path "$folder/rslora-1" --num-rollout 1
wanted=$chain
train rs-load dense --use-rslora --ref-load "$folder/rs-saved" --num-rollout 1 --ranks 2
[[ $chain == "$wanted" ]] || complain "rsLoRA of ref-load: $chain, not $wanted"
"$invar" convert "$folder/rs-saved" "$folder/rs-alone" >"$folder/out" 2>&1 ||
    complain "$(<"$folder/out")"
for file in adapter_model.safetensors adapter_config.json; do
    cmp "$folder/rslora-1/$file" "$folder/rs-alone/$file" || complain "rsLoRA, converted, differs"
done

# ---- patterns: another rank and alpha for some layers -------------------------------------------
patterns=(--rank-pattern '{"layers.0.self_attn.q_proj": 17, "down_proj": 2}'
    --alpha-pattern '{"k_proj": 2.5}')
check_free_keys patterns dense "${patterns[@]}"
wanted=$chain
[[ $chain != "$seen" ]] || complain "patterns have the chain without them"
layouts patterns-divided dense "${patterns[@]}"
check_free_keys patterns-experts experts "${patterns[@]}"
[[ $chain != "$wanted" ]] || complain "experts have the chain of a dense model"
train patterns-out dense "${patterns[@]}" --save-hf "$folder/patterns-{rollout_id}" \
    --save "$folder/pt-saved"
[[ $chain == "$wanted" ]] || complain "patterns with save-hf: $chain, not $wanted"
refused "of the recipe's rank-pattern" --lora-adapter-path "$folder/patterns-1"
refused "has adapters of rank-pattern '{\"layers.0" --ref-load "$folder/pt-saved"
refused "rank-pattern: 'layers.7.mlp.up_proj' names no layer" --rank-pattern \
    '{"layers.7.mlp.up_proj": 2}'
train patterns-in dense "${patterns[@]}" --lora-adapter-path "$folder/patterns-1" --num-rollout 1
wanted=$chain
train patterns-load dense "${patterns[@]}" --ref-load "$folder/pt-saved" --num-rollout 1 --ranks 2
[[ $chain == "$wanted" ]] || complain "patterns of ref-load: $chain, not $wanted"
"$invar" convert "$folder/pt-saved" "$folder/pt-alone" >"$folder/out" 2>&1 ||
    complain "$(<"$folder/out")"
for file in adapter_model.safetensors adapter_config.json; do
    cmp "$folder/patterns-1/$file" "$folder/pt-alone/$file" || complain "patterns, converted"
done

# ---- a checkpoint of adapters: as the start of another run, forked, exported --------------------
train from-peft dense --lora-adapter-path "$folder/peft-1" --num-rollout 1
wanted=$chain
check_free_keys from-checkpoint dense --ref-load "$saved" --num-rollout 1
[[ $chain == "$wanted" ]] || complain "adapters of ref-load: $chain, not $wanted"
train from-step dense --ref-load "${newest[-1]}" --num-rollout 1 --ranks 2
[[ $chain == "$wanted" ]] || complain "adapters of one checkpoint: $chain, not $wanted"
layouts from-divided dense --ref-load "$saved" --num-rollout 1
train whole-3 dense --num-rollout 3
wanted=$chain
train forked dense --fork "$saved" --num-rollout 3 --save "$folder/forked/save"
[[ $chain == "$wanted" ]] || complain "a fork of adapters: $chain, not $wanted"
refused "'lora-adapter-path' would be ignored: ref-load names adapters" --ref-load "$saved" \
    --lora-adapter-path "$folder/peft-1"
fork=(--fork "$saved" --num-rollout 3 --run "$folder/none")
for start in "--ref-load $saved" "${fork[*]}"; do
    for flags in '--lora-rank 5' '--lora-alpha 7' '--target-modules q_proj' '--use-rslora'; do
        # shellcheck disable=SC2086 # several words
        refused "has adapters of lora-rank 4, lora-alpha 6, target-modules q_proj" $start $flags
    done
    # shellcheck disable=SC2086 # several words
    refused "has adapters of another base: give the hf-checkpoint" $start --seed 5
done
"$invar" eval "$folder/dense.ini" --eval-prompt-data 'm task:max' --load "$saved" --seed 5 \
    >"$folder/out" 2>&1 && complain "evaluated with another base"
grep -q "has adapters of another base" "$folder/out" || complain "$(<"$folder/out")"
# An earlier version wrote checkpoints without the settings of the adapters.
cp -r "${newest[-1]}" "$folder/early"
python3 - "$folder/early/state.json" <<'EDIT'
import json, pathlib, sys
file = pathlib.Path(sys.argv[1])
state = json.loads(file.read_text())
del state["adapters"]
file.write_text(json.dumps(state))
EDIT
hash=$(cd "$folder/early" && xxhsum -H2 state.json)
sed -i "s/^[0-9a-f]*  state.json$/${hash%% *}  state.json/" "$folder/early/hashes.xxh"
refused "does not say how its adapters were trained: an earlier version" --ref-load "$folder/early"
"$invar" convert "$saved" "$folder/alone" >"$folder/out" 2>&1 || complain "$(<"$folder/out")"
for file in adapter_model.safetensors adapter_config.json; do
    cmp "$folder/peft-1/$file" "$folder/alone/$file" || complain "converted adapters differ"
done
"$invar" convert "${newest[-1]}" "$folder/one" >"$folder/out" 2>&1 || complain "$(<"$folder/out")"
cmp "$folder"/{one,alone}/adapter_model.safetensors || complain "one checkpoint, converted, differs"
"$invar" convert "$saved" "$folder/never" --dtype bf16 >"$folder/out" 2>&1 &&
    complain "adapters in bf16"
grep -q 'folder of peft in fp32: leave out --dtype' "$folder/out" || complain "$(<"$folder/out")"

# ---- the exported name of the base is the name in the recipe ------------------------------------
folders=$PWD/tests/oracle/folders named=tests/oracle/folders/4.57.6/llama-fp16-tied
"$invar" train "$folders/train.ini" --hf-checkpoint $named --prompt-data "$folders/train.jsonl" \
    --run "$folder/named" --no-report --num-rollout 1 --lora-rank 2 --target-modules q_proj \
    --save-hf "$folder/named-{rollout_id}" >"$folder/out" 2>&1 || complain "$(<"$folder/out")"
"$invar" convert "$folder/named" "$folder/named-run" >"$folder/out" 2>&1 ||
    complain "$(<"$folder/out")"
for file in adapter_model.safetensors adapter_config.json; do
    cmp "$folder/named-0/$file" "$folder/named-run/$file" || complain "the run of $named, converted"
done
grep -qF "\"base_model_name_or_path\": \"$named\"" "$folder/named-run/adapter_config.json" ||
    complain "no base:" "$(<"$folder/named-run/adapter_config.json")"
"$invar" convert "$folder/named/checkpoints" "$folder/named-inside" >"$folder/out" 2>&1 ||
    complain "$(<"$folder/out")"
cmp "$folder"/named-{run,inside}/adapter_config.json || complain "checkpoints of the run, converted"
mkdir "$folder/far"
cp -r "$folder/named/checkpoints" "$folder/far"
"$invar" convert "$folder/far/checkpoints" "$folder/named-none" >"$folder/out" 2>&1 ||
    complain "$(<"$folder/out")"
grep -q '"base_model_name_or_path": null' "$folder/named-none/adapter_config.json" ||
    complain "checkpoints alone know a base"

# ---- files as the base: new adapters, which are zero, do not change its bits -------------------
echo '{"tokens": [1, 2, 3, 4, 5, 9, 8, 7, 6, 5, 4, 3]}' >"$folder/tokens"
for model in 'qwen3_wide int4' 'qwen3_wide mxfp8' 'qwen3_moe fp8' 'qwen3_moe bf16'; do
    flags=(--hf-checkpoint "$(dirname "$0")/../../oracle/model/${model% *}" --dtype "${model#* }"
        --numerics sm90 --tokens "$folder/tokens" --json)
    "$invar" score "${flags[@]}" >"$folder/plain" 2>&1 || complain "$model:" "$(<"$folder/plain")"
    "$invar" score "${flags[@]}" --lora-rank 3 >"$folder/out" 2>&1
    cmp -s "$folder/plain" "$folder/out" || complain "$model as a base:" "$(<"$folder/out")"
done

# ---- a full model's checkpoint as the base -----------------------------------------------------
"$invar" train "$folder/whole.ini" --run "$folder/whole" --no-report >"$folder/out" 2>&1 ||
    complain "the base: exit code $?" "$(<"$folder/out")"
check_free_keys on-top dense --ref-load "$folder/whole/checkpoints"
[[ $chain != "$seen" ]] || complain "another base has the chain of the first"
train topped dense --ref-load "$folder/whole/checkpoints" --save-hf "$folder/top-{rollout_id}"
for dtype in 'fp32 1e-5' 'bf16 0.1'; do
    bound=${dtype#* } dtype=${dtype% *}
    "$invar" convert "$folder/whole/checkpoints" "$folder/merged-$dtype" --dtype "$dtype" \
        --merge "$folder/top-1" >"$folder/out" 2>&1 || complain "merging:" "$(<"$folder/out")"
    sed -n 's/^log-probs \([0-9.e-]*\) is the largest.*/\1/p' "$folder/out" |
        awk -v most="$bound" '{ good = $1 <= most } END { exit !good }' ||
        complain "merged in $dtype:" "$(<"$folder/out")"
done
# An adapter with a NaN is rejected.
cp -r "$folder/top-1" "$folder/nan"
printf '\377\377\377\177' | dd of="$folder/nan/adapter_model.safetensors" bs=1 conv=notrunc \
    seek=$(($(stat -c %s "$folder/nan/adapter_model.safetensors") - 4)) status=none
"$invar" convert "$folder/whole/checkpoints" "$folder/never" --merge "$folder/nan" \
    >"$folder/out" 2>&1
rc=$?
[[ $rc == 2 && ! -e $folder/never ]] || complain "a NaN was merged: $rc" "$(<"$folder/out")"
grep -q 'not finite, and nothing is written' "$folder/out" || complain "$(<"$folder/out")"
((failed)) || echo "adapters alone are trained, one chain for all ways: as expected"
exit "$failed"
