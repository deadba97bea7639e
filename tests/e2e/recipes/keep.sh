#!/usr/bin/env bash
# keep.sh INVAR FOLDER - recipe.ini and train.log in the folder of a run.
#
# Checks their content, that a resumed run appends, and that foreign files are not changed.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$(realpath "$1") folder=$2
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
rm -rf "$folder"
mkdir -p "$folder" && cd "$folder" || exit 2
expect_verb=(train)

# lines PATTERN FILE: prints the number of matching lines.
lines() { grep -c -e "$1" "$2"; }

tiny_recipe 3 >tiny.ini
expect 0 'chain ' tiny.ini --no-report --lr 0.25
run=runs/tiny
# Training recipe.ini again is the same run, which is finished.
identity() { "$invar" train "$@" --dry-run | sed -n 's/^identity  //p'; }
own=$(identity tiny.ini --lr 0.25)
holds [ ${#own} -eq 32 ]
holds [ "$(identity $run/recipe.ini)" = "$own" ]
holds grep -qx 'lr = 0.25' $run/recipe.ini
holds grep -qx 'name = tiny' $run/recipe.ini
holds grep -qx 'eval-interval = 0' $run/recipe.ini
cp $run/recipe.ini was.ini && cp $run/train.log was.log
expect 0 'the run is finished' $run/recipe.ini --no-report
holds cmp -s was.ini $run/recipe.ini
holds cmp -s was.log $run/train.log
# The log has all lines from the start to the chain, each with a time.
chain=$(column $run 'SELECT lower(hex(chain)) FROM step ORDER BY step DESC LIMIT 1')
holds grep -q "done: 3 steps, the last is 2, chain $chain\$" $run/train.log
holds grep -q 'step 0, rollout 1 of 3: reward ' $run/train.log
holds [ "$(grep -cvE '^20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z ' $run/train.log)" = 0 ]
holds grep -q "identity $own" $run/train.log

# A resumed run appends to the log. With other free keys it writes a new recipe.ini and keeps the
# earlier one.
expect 0 'chain ' tiny.ini --no-report --lr 0.25 --num-rollout 4
holds [ "$(head -c "$(stat -c %s was.log)" $run/train.log | cmp - was.log && echo same)" = same ]
holds grep -q 'goes on after step 2' $run/train.log
holds grep -q 'recipe.ini has changed: the earlier one is recipe.1.ini' $run/train.log
holds cmp -s was.ini $run/recipe.1.ini
holds grep -qx 'num-rollout = 4' $run/recipe.ini
expect 0 'chain ' tiny.ini --no-report --lr 0.25 --num-rollout 5
holds [ -e $run/recipe.2.ini ]
holds [ "$(lines 'goes on after' $run/train.log)" = 2 ]

# Foreign files are not changed.
mkdir -p other && printf '[mine]\n' >other/recipe.ini && echo mine >other/train.log
expect 0 'chain ' tiny.ini --no-report --run other
holds [ "$(cat other/recipe.ini)" = '[mine]' ]
holds [ "$(head -1 other/train.log)" = mine ]
holds grep -q 'recipe.ini is not of this run and stays as it is' other/train.log
mkdir -p odd/train.log
expect 2 'odd/train.log: ' tiny.ini --no-report --run odd
mkdir -p pipe && mkfifo pipe/train.log
expect 2 'pipe/train.log: ' tiny.ini --no-report --run pipe
mkdir -p link && echo mine >notes && ln -s ../notes link/train.log
expect 2 'link/train.log: it is a link' tiny.ini --no-report --run link
holds [ "$(cat notes)" = mine ]

# If the caller redirects the output to train.log, it has each line once.
mkdir -p shell && "$invar" train tiny.ini --run shell --no-report >shell/train.log 2>&1
holds [ "$(lines 'chain ' shell/train.log)" = 1 ]

# A failure is logged; values in a URL are not.
if [ -e "${invar%/*}/invar-http.so" ]; then # a build without libcurl uses no servers
    sed 's|^rm-type.*|rm-type = remote_rm\nrm-url = http://127.0.0.1:9/?key=s3cret|' \
        tiny.ini >url.ini
    "$invar" train url.ini --no-report --run url --plugin-timeout 1 >/dev/null 2>&1
    holds grep -q ' failed: .*127.0.0.1' url/train.log
    holds grep -q ' ended: 0 steps' url/train.log
    holds grep -q '^rm-url = http://127.0.0.1:9/' url/recipe.ini
    holds [ "$(cat url/*.ini url/*.log | lines s3cret -)" = 0 ]
fi

# Only one rank writes.
expect 0 'chain ' tiny.ini --no-report --run ranks --ranks 2
holds [ "$(lines 'done: 3 steps' ranks/train.log)" = 1 ]
holds [ "$(lines 'run ' ranks/train.log)" = 1 ]
# A replay does not change the log.
cp ranks/train.log was.log
expect_verb=()
expect 0 identical replay ranks --step 1
holds cmp -s was.log ranks/train.log

echo "$checks checks"
exit $failed
