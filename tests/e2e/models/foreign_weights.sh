#!/usr/bin/env bash
# foreign_weights.sh INVAR FOLDER - a command that uses the weights of a run uses those of this run.
#
# The ledger records the checkpoint folder as the user named it, often as a relative path, which
# leads elsewhere from another folder. A run of the same shape there must not be used instead.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$(readlink -f "$1") folder=$2
rm -rf "$folder"
mkdir -p "$folder/a" "$folder/b" && cd "$folder" || exit 2
# shellcheck source=tests/e2e/expect.sh
source "$OLDPWD/tests/e2e/expect.sh"

tiny_recipe 2 >a/tiny.ini
sed 's/^num-rollout.*/num-rollout = 4/' a/tiny.ini >a/more.ini
cp a/*.ini b

# ---- two runs of one shape, in two folders, with the same relative path ------------------------
cd a || exit 2
expect 0 'chain' train tiny.ini --run x --save ckpt --no-report
expect 0 'read      ckpt/iter_0000001' convert x x.hf
cd ../b || exit 2
expect 0 'chain' train tiny.ini --run y --save ckpt --seed 9 --no-report
refusal='were saved in ckpt, and here that folder has no checkpoint of this run; work in the folder'
expect 2 "$refusal" convert ../a/x out
expect 2 "$refusal" eval tiny.ini --run ../a/x
expect 2 "$refusal" eval tiny.ini --run ../a/x --save ckpt
expect 2 "$refusal" generate tiny.ini --run ../a/x --prompt '3,7='
expect 2 "$refusal" train more.ini --fork ../a/x --run z --no-report
holds [ ! -e out ]
expect 0 'read      ckpt/iter_0000001' convert y y.hf
expect 0 'read      ../a/ckpt/iter_0000001' convert ../a/ckpt x.hf
holds cmp ../a/x.hf/model.safetensors x.hf/model.safetensors
mkdir ../c && cd ../c || exit 2
expect 2 'and here that folder does not exist' convert ../a/x out

# ---- a run that continued with another checkpoint folder ---------------------------------------
cd ../a || exit 2
expect 0 'chain' train tiny.ini --run st --no-report
expect 0 'chain' train more.ini --run st --load st/checkpoints --save st.other --no-report
expect 0 'read      st.other/iter_0000003' convert st st.hf
expect 0 'st.other' generate more.ini --run st --prompt '3,7='
expect 0 'read      st/checkpoints/iter_0000001' convert st st.old --ckpt-step 1
mv st.other moved
expect 0 'newest checkpoint of the run was saved as st.other/iter_0000003, and is not there' \
    convert st st.less
holds cmp st.old/model.safetensors st.less/model.safetensors
# A run that was moved with all its files is found.
mv st ../c/st
mv moved ../c/st/checkpoints.new && rm -r ../c/st/checkpoints
mv ../c/st/checkpoints.new ../c/st/checkpoints
cd ../c || exit 2
expect 0 'read      st/checkpoints/iter_0000003' convert st st.hf
holds cmp ../a/st.hf/model.safetensors st.hf/model.safetensors

((failed)) || echo "$checks checks: all as expected"
exit "$failed"
