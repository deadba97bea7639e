#!/usr/bin/env bash
# ab_self.sh INVAR FOLDER - invar ab on this repository itself.
#
# HEAD against HEAD is identical. Against a work tree with another default learning rate it differs,
# and the step, point, fact and effect are named. Against a refactored tree it is identical again.
# The page is opened in Chromium if there is one.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$1 folder=$2
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
here=$(cd "$(dirname "$0")" && pwd) root=$PWD
# The repository is a clone, because the folder of this test may be inside the real one.
rm -rf "$folder"
mkdir -p "$folder" || exit 2
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1

# ab CODE TEXT NAME ARGUMENT ...: checks the exit code, and that the answer FOLDER/NAME.json
# contains TEXT.
ab() {
    local code=$1 text=$2 name=$3 rc=0
    shift 3
    "$invar" ab --repo "$folder/repo" --work "$folder/work" --steps 6 "$@" "$folder/recipe.ini" \
        --html "$folder/$name.html" --json >"$folder/$name.json" 2>"$folder/$name.err" || rc=$?
    if ((rc != code)) || ! grep -qF -e "$text" "$folder/$name.json"; then
        complain "ab $*: exit code $rc, expected $code with \"$text\":" \
            "$(head -n 40 "$folder/$name.json")" "$(tail -n 3 "$folder/$name.err")"
    fi
    ((rc > 1)) || "$here/ab_numbers.py" "$invar" "$folder/$name.json" "$folder/$name.html" ||
        complain "$name: the numbers are others"
}

# field NAME EXPRESSION: prints a Python expression over the answer `a`.
field() {
    python3 -c "import json, sys; a = json.load(open(sys.argv[1])); print($2)" "$folder/$1.json"
}

# clone NAME: clones HEAD into FOLDER/NAME, to be changed.
clone() {
    git clone -q --no-hardlinks "$root" "$folder/$1" || exit 2
}

clone repo
sed '/^lr = /d' recipes/bf16.ini >"$folder/recipe.ini"

ab 0 'identical: 3 seeds, 6 steps each' same --a HEAD --b HEAD

clone changed
sed -i '/^INVAR_KEY(LR, /s/"1e-06"/"2e-06"/' "$folder/changed/engine/config/keys.def"
[[ $(git -C "$folder/changed" diff --numstat | cut -f1,2) == $'1\t1' ]] ||
    complain "the learning rate is not where it was: $(git -C "$folder/changed" diff --numstat)"
ab 1 'different: from step 0, point ' changed --a HEAD --b "$folder/changed"
[[ $(field changed '[f["key"] for f in a["facts"] if f["scope"] == "identity"]') == "['lr']" ]] ||
    complain "facts: $(field changed 'a["facts"]')"
[[ $(field changed 'a["place"]["op"], a["place"]["phase"], a["different"]') == \
    "adamw optimizer 3" ]] || complain "place: $(field changed 'a["place"]')"
[[ $(field changed '[e["last"]["mean"] > 0 and e["last"]["higher"]
    for e in a["effects"] if e["name"].startswith("train/lr")]') == '[3]' ]] ||
    complain "effects: $(field changed 'a["effects"]')"

clone refactored
sed -i 's/make_trainer(/make_the_trainer(/' "$folder/refactored/engine/run/setup/models.c"
sed -i '1a\ * A remark.' "$folder/refactored/engine/train/optimizer.c"
[[ $(git -C "$folder/refactored" diff --numstat | cut -f1,2) == $'2\t2\n1\t0' ]] ||
    complain "nothing to refactor: $(git -C "$folder/refactored" diff --numstat)"
ab 0 'identical: 3 seeds, 6 steps each' refactored --a HEAD --b "$folder/refactored"

if browser=$(command -v chromium || command -v chromium-browser); then
    for name in same changed; do
        timeout 120 "$browser" --headless --no-sandbox --disable-gpu --virtual-time-budget=5000 \
            --user-data-dir="$folder/chromium" --dump-dom "file://$folder/$name.html" \
            >"$folder/$name.dom" 2>"$folder/chromium.err"
        grep -qE 'id="verdict">(3 seeds|From step 0)' "$folder/$name.dom" ||
            complain "$name.html did not draw itself: $(tail -n 1 "$folder/chromium.err")"
        ! grep -oE 'data-failed="[^"]*"' "$folder/$name.dom" || complain "$name.html failed"
    done
    grep -q 'class="value">2e-06' "$folder/changed.dom" || complain "the page has no facts"
fi

((failed)) || echo "HEAD, another learning rate, another name: all as expected"
exit "$failed"
