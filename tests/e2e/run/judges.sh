#!/usr/bin/env bash
# judges.sh INVAR FOLDER - rewards that other programs compute: an HTTP server, math-verify.
#
# A slow or busy server leads to the same chain as a fast one. Its responses are recorded, so that a
# replay needs no server. A server that sends invalid responses, or none, ends the run with one
# clear message. math-verify is a stub; with INVAR_TEST_FULL=1 the real package is installed and
# used, too.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$(readlink -f "$1") folder=$2
unset http_proxy HTTP_PROXY
here=$PWD/tests/e2e/run
rm -rf "$folder"
mkdir -p "$folder" && cd "$folder" || exit 2
# shellcheck source=tests/e2e/expect.sh
source "$OLDPWD/tests/e2e/expect.sh"
expect_logs=(out err)

tiny_recipe 3 | sed '/^rm-type/d' >tiny.ini

# ---- a server ----------------------------------------------------------------------------------
if [[ ! -e $(dirname "$invar")/invar-http.so ]]; then
    expect 2 'invar-http.so is not beside the program; servers are asked through it' \
        train tiny.ini --rm-type remote_rm --rm-url http://127.0.0.1:1/
    ((failed)) || echo "$checks checks, none with a server: there is no libcurl"
    exit "$failed"
fi
python3 "$here/judge_server.py" port &
server=$!
trap 'kill $server 2>/dev/null' EXIT
for ((i = 0; i < 100; i++)); do
    [[ -e port ]] && break
    sleep 0.1
done
url=http://127.0.0.1:$(<port)
remote=(train tiny.ini --no-report --rm-type remote_rm)
# chain RUN: prints the chain of its last step.
chain() {
    sqlite3 -readonly "$1/ledger.db" 'SELECT hex(chain) FROM step ORDER BY step DESC LIMIT 1'
}
expect 0 'steps     3 executed' "${remote[@]}" --run sum --rm-url "$url/parts"
whole=$(chain sum)
holds [ "$(sqlite3 -readonly sum/ledger.db "SELECT count(*), count(DISTINCT name), max(value) > 0
    FROM reward_parts")" = '24|2|1' ]
for kind in flaky slow; do
    expect 0 'steps     3 executed' "${remote[@]}" --run "$kind" --rm-url "$url/$kind"
    holds [ "$(chain "$kind")" = "$whole" ]
done
expect 0 'steps     3 executed' "${remote[@]}" --run right --rm-url "$url/parts" --reward-key right
right=$(chain right)
expect 0 'steps     3 executed' "${remote[@]}" --run number --rm-url "$url/number"
holds [ "$(chain number)" = "$right" ]
holds [ "$right" != "$whole" ]
expect 0 'steps     3 executed' "${remote[@]}" --run ranks --rm-url "$url/parts" --ranks 2
holds [ "$(chain ranks)" = "$whole" ]

# The query of a URL may contain a secret: it is sent, but must not be in any file of the run. The
# secret is assembled here, so that no file of the tree contains it as sent: a ledger holds the diff
# of the tree.
secret=hunter$((1 + 1))
expect 0 'steps     3 executed' "${remote[@]}" --run secret --rm-url "$url/parts?key=$secret&v=1"
holds [ "$(chain secret)" = "$whole" ]
holds [ "$(column secret "SELECT value FROM identity WHERE key = 'rm-url'")" = \
    "$url/parts?key=...&v=..." ]
expect 0 'identical' replay secret --step 2
expect 0 'steps     1 executed' "${remote[@]}" --run secret --rm-url "$url/parts?key=$secret&v=2" \
    --num-rollout 4
expect 2 "rm-url: $url/gone?key=... answers with status 404" "${remote[@]}" --run lost \
    --rm-url "$url/gone?key=$secret"
holds [ -e lost/ledger.db ]
if grep -rqa "$secret" secret lost; then
    complain 'a secret is in a run:' "$(grep -rla "$secret" secret lost)"
fi

# bad ROUTE TEXT: checks that responses of this route end the run with TEXT.
bad() {
    expect 2 "$2" "${remote[@]}" --run "bad-${1#/}" --rm-url "$url$1" "${@:3}"
}
none='is no number and no object of named numbers: '
bad /nonsense "plug-in rm-url: the answer for sample 0 $none\"<html>oops\""
bad /list "$none\"[1]\""
bad /text "$none"
bad /empty "$none\"\""
bad /two "$none"
bad /nan "$none\"NaN\""
bad /nothing 'a reward has no named part'
bad /gone "rm-url: $url/gone answers with status 404: no?[31m"
expect 129 'reward-key = wrong: the reward of sample 0 has no such part' "${remote[@]}" \
    --run wrong --rm-url "$url/parts" --reward-key wrong
if [[ -n ${INVAR_TEST_FULL:-} ]]; then # these retry, with a pause after every call
    bad /closes "rm-url: no answer from $url/closes after 5 calls: "
    bad /late 'after 5 calls: ' --plugin-timeout 1
fi
expect 129 "--rm-url: 'rm-url' is no address of a server; expected http://" "${remote[@]}" \
    --rm-url judge:80
expect 129 "'rm-url' is missing: rm-type = remote_rm asks it" "${remote[@]}"
expect 129 'would be ignored: it needs rm-type = remote_rm' train tiny.ini --rm-type math \
    --rm-url "$url"

# A replay needs no server. A new step without one fails.
kill "$server" && wait "$server" 2>/dev/null
expect 0 'identical' replay sum --step 2
expect 2 "rm-url: no answer from $url/parts after 5 calls: " "${remote[@]}" --run sum \
    --rm-url "$url/parts" --num-rollout 4

# ---- math-verify -------------------------------------------------------------------------------
# A stub package of that name, and a python3 that finds it: the script is started with -I.
mkdir -p stub/math_verify-9.9.dist-info bin
printf 'Metadata-Version: 2.1\nName: math-verify\nVersion: 9.9\n' \
    >stub/math_verify-9.9.dist-info/METADATA
cat >stub/math_verify.py <<'STUB'
class ExprExtractionConfig: pass
class LatexExtractionConfig: pass
def parse(text, config, parsing_timeout=5):
    assert parsing_timeout is None
    return [c for c in text if c.isdigit()]
def verify(gold, answer, timeout_seconds=5):
    assert timeout_seconds is None
    return bool(set(gold) & set(answer))
STUB
cat >bin/python3 <<WRAPPER
#!/bin/sh
shift
PYTHONPATH='$PWD/stub' exec '$(command -v python3)' "\$@"
WRAPPER
chmod +x bin/python3
verify=(train tiny.ini --no-report --rm-type math_verify)
PATH=$PWD/bin:$PATH expect 0 'steps     3 executed' "${verify[@]}" --run verify
holds [ "$(sqlite3 -readonly verify/ledger.db "SELECT value FROM fact
    WHERE scope = 'plugin-name' AND key = 'math_verify'")" = 'math-verify 9.9' ]
holds [ "$(sqlite3 -readonly verify/ledger.db "SELECT count(*) FROM reply
    WHERE plugin = 'math_verify'")" = 3 ]
expect 0 'identical' replay verify --step 2
sed -i 's/9[.]9/0.7.1/' stub/math_verify-9.9.dist-info/METADATA
PATH=$PWD/bin:$PATH expect 2 'math-verify 0.7.1 judges by the clock' "${verify[@]}" --run early
python3 -I -c 'import math_verify' 2>/dev/null || expect 2 'pip install math-verify' "${verify[@]}"

if [[ -n ${INVAR_TEST_FULL:-} ]]; then
    holds python3 -m venv venv
    holds venv/bin/pip -q install math-verify
    tr -d '\n' >question <<'QUESTION'
{"id":0,"samples":[
{"label":"\\frac{1}{2}","response":"so \\boxed{0.5}"},
{"label":"1+x","response":"it is $x+1$"},
{"label":"72","response":"the answer is 72"},
{"label":"72","response":"the answer is 73"}]}
QUESTION
    { echo '{}'; cat question; echo; } |
        venv/bin/python3 -I -X utf8 "$here/../../../engine/ext/math_verify.py" >answer 2>err
    holds grep -q '"name": "math-verify [0-9.]*"' answer
    holds grep -q '"rewards": \[1.0, 1.0, 1.0, 0.0\]' answer
    PATH=$PWD/venv/bin:$PATH expect 0 'steps     3 executed' "${verify[@]}" --run real
fi

((failed)) || echo "$checks checks"
exit "$failed"
