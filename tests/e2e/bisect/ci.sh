#!/usr/bin/env bash
# ci.sh INVAR FOLDER - invar ci: record, check, review, accept and status, under git bisect run and
# as a hook.
#
# Every verdict and exit code occurs. The programs under test are INVAR itself and scripts that run
# it with another learning rate, but write the expected identity into the ledger: other bits for the
# same recipe. With INVAR_TEST_FULL=1 more goldens of other lengths are checked, verdicts are
# checked again after every change, and git bisects more commits.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$(realpath "$1") folder=$2 source=$PWD
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
rm -rf "$folder"
mkdir -p "$folder/tmp" "$folder/cases" && cd "$folder" || exit 2
folder=$PWD
export TMPDIR=$folder/tmp XDG_CACHE_HOME=$folder/cache
as_ada

# ci CODE TEXT ARGUMENT ...: checks the exit code of `invar ci`, and that TEXT is printed.
ci() {
    local code=$1 text=$2 rc=0
    shift 2
    checks=$((checks + 1))
    timeout 300 "$invar" ci "$@" >output 2>errors </dev/null || rc=$?
    if ((rc != code)) || ! grep -qF -- "$text" output errors; then
        complain "invar ci $*: exit code $rc, expected $code with \"$text\":" "$(cat output errors)"
    fi
}

# finds CONDITION WHAT: checks a condition for [[ ]]; WHAT names it in the message.
finds() {
    checks=$((checks + 1))
    eval "[[ $1 ]]" || complain "$2: not so: $1" "$(cat output errors)"
}

# hashes: prints the digests of all files of the cases.
hashes() {
    (cd cases && find . -type f -print0 | sort -z | xargs -0 sha256sum)
}

# The recipe has few steps and small batches. fake NAME CODE: writes a program that runs it with the
# changes of CODE, which may set `lr` and add to `more`.
sed 's/^num-rollout = .*/num-rollout = 3/; s/^rollout-batch-size = .*/rollout-batch-size = 4/
    s/^n-samples-per-prompt = .*/n-samples-per-prompt = 8/' "$source/recipes/bf16.ini" >cases/a.ini
fake() {
    cat >"$1" <<FAKE
#!/usr/bin/env bash
lr='' more=() count=$folder/count run=''
identity=\$(sed -n 's/^identity //p' "$folder/cases/a.golden") || exit 1
for word in "\$@"; do
    [[ \$last != --run ]] || run=\$word
    last=\$word
done
$2
[[ -z \$lr ]] || more+=(--lr "\$lr")
"$invar" "\$@" "\${more[@]}" || exit
[[ \$lr ]] || exit 0
trigger=\$(sqlite3 "\$run/ledger.db" "SELECT sql FROM sqlite_schema WHERE name = 'run_change'")
sqlite3 "\$run/ledger.db" "BEGIN; DROP TRIGGER run_change; UPDATE run SET identity = x'\$identity';
    \$trigger; COMMIT"
FAKE
    chmod +x "$1"
}
# shellcheck disable=SC2016 # expanded by the program
{
    fake changed 'lr=0.003'
    fake fickle 'calls=0
[[ ! -e $count ]] || calls=$(wc -c <"$count")
printf x >>"$count"
lr=$(printf "0.%03d" $((3 + calls)))'
    fake chunky '[[ " $*" != *" --page-size="* ]] || lr=0.003'
    # The program fails after one step because log-probs differ, unless on-mismatch makes it
    # continue.
    fake parting 'if [[ " $*" == *" --on-mismatch"* ]]; then
    lr=0.003
else
    "'"$invar"'" "$@" --until 0
    exit 1
fi'
    fake crashing 'echo "no numbers today" >&2; exit 1'
}
printf '#!/bin/sh\nexec sleep 60\n' >slow && chmod +x slow

# ---- record and check --------------------------------------------------------------------------
ci 4 "no golden yet" check a --cases cases
holds grep -qF "next    $invar ci record cases/a.ini" output
ci 6 "no case with a golden" check --cases cases
ci 0 "recorded, 3 steps" record a --cases cases
finds "-s cases/a.golden && -s cases/a.points && ! -e cases/a.golden.new" "record"
grep -qx "# invar golden 2" cases/a.golden || complain "no golden: $(head -1 cases/a.golden)"
ci 2 "has a golden" record a --cases cases
ci 0 "same" check --cases cases
ci 0 "same" check cases/a.ini
bash -c "trap '' CHLD; exec '$invar' ci check a --cases cases" >output 2>errors ||
    complain "a parent that ignores SIGCHLD:" "$(cat output errors)"
ci 0 "3 of 3 steps" check a --cases cases --chaos 1 --jobs 2
ci 0 '"compared": 2,' check a --cases cases --steps 2 --json
ci 0 "good" status --cases cases
ci 0 '"accepted": 0' status --cases cases --json
ci 0 "nothing is pending" review --cases cases
ci 2 "'invar ci check cases/a.ini' writes what differs" accept a --cases cases --reason why
ci 2 "nothing is pending" review --cases cases --reject a
ci 2 "cannot be listed" check --cases nowhere
ci 2 "there is no recipe" check b --cases cases
for verb in check review accept record; do
    ci 129 "is no recipe" "$verb" ./b.txt
done
# Outputs are checked before anything is run.
cp cases/a.ini kept.xml
ci 129 "kept.xml: a file of another kind lies there" check a --cases cases --junit kept.xml
ci 2 "nowhere/bits.xml: its folder does not exist" check a --cases cases --junit nowhere/bits.xml
finds "! -s output" "an output that is refused: something was run"
cmp -s cases/a.ini kept.xml || complain "kept.xml was replaced"
ci 129 "" check --unknown
ci 129 "needs --golden" check --bisect a
[[ -z $(ls -A tmp) ]] || complain "left behind: $(ls tmp)"

# ---- changed: located, pending, reviewed, accepted ---------------------------------------------
before=$(hashes)
CI=true ci 1 "from step 0, point weight.model" check a --cases cases --program ./changed
holds grep -qF "optimizer, adamw" output
ci 1 '"pending": false' check a --cases cases --program ./changed --steps 2 --json
more ci 1 "from step 0" check a --cases cases --program ./changed --golden cases/a.golden
ci 1 "from step 0" check a --cases cases --program ./parting --no-write
ci 2 "exit code 1" record a --cases cases --program ./parting --force
CI=1 ci 2 "CI is set" accept a --cases cases --reason why
CI=1 ci 2 "CI is set" record a --cases cases --force
[[ $(hashes) == "$before" ]] || complain "CI wrote into the cases: $(ls cases)"
CI=false ci 1 "$invar ci review cases/a.ini" check a --cases cases --program ./changed
finds "-s cases/a.golden.new && -s cases/a.points.new" "pending"
ci 0 "pending" status --cases cases
ci 0 "from step 0, point weight.model" review --cases cases
ci 0 '"first": 0' review --cases cases --json
mkdir recipes
ci 0 "nothing is pending in recipes; a case elsewhere is named by its path" review
for word in cases/a.ini cases/a.golden ./cases/a.golden.new; do
    ci 0 "from step 0, point weight.model" review "$word"
done
ci 0 '"first": 0' review cases/a.golden --json
ci 129 "a reason is needed" accept a --cases cases
ci 129 "one line" accept a --cases cases --reason $'two\nlines'
ci 0 "rejected" review --cases cases --reject a
[[ $(hashes) == "$before" ]] || complain "a rejected golden left something: $(ls cases)"
ci 1 "changed" check a --cases cases --program ./changed
# The bits are those of the golden again: nothing is pending any more.
ci 0 "same" check a --cases cases
[[ $(hashes) == "$before" ]] || complain "what is pending was not taken back: $(ls cases)"
ci 1 "changed" check a --cases cases --program ./changed
git init -q . && git add cases/a.ini && git commit -qm first
ci 0 "accepted" accept a --cases cases --reason 'a higher rate, on purpose'
who="Ada <ada@example.org>, $(git rev-parse --short=12 HEAD)"
grep -qxF "accepted 1: $who, a higher rate, on purpose" cases/a.golden ||
    complain "no history: $(grep accepted cases/a.golden)"
finds "! -e cases/a.golden.new && ! -e cases/a.points.new" "accept"
ci 0 "same" check a --cases cases --program ./changed
more ci 1 "changed" check a --cases cases
# A name with blanks: the printed commands can be used as they stand.
mkdir 'my cases' && cp cases/a.ini 'my cases/a b.ini' && cp cases/a.golden 'my cases/a b.golden'
ci 1 "ci review 'my cases/a b.ini'" check 'my cases/a b.ini'
holds grep -qF "bisect --good REV 'my cases/a b.ini'" output
ci 0 "commit 'my cases/a b.golden' and 'my cases/a b.points'" accept 'my cases/a b.ini' \
    --reason why
ci 0 "recorded" record a --cases cases --force
grep -q '^accepted 1: Ada' cases/a.golden || complain "recorded anew, the history is gone"
finds "! -e cases/a.golden.new" "recorded anew"
rm -rf .git

# ---- nondeterministic, and chaos ---------------------------------------------------------------
before=$(hashes)
ci 3 "two runs of the same program" check a --cases cases --program ./fickle
ci 3 "varied  page-size" check a --cases cases --program ./chunky --chaos
more ci 3 "nondeterministic" record a --cases cases --program ./chunky --force
rm -f count
ci 3 "nondeterministic" record a --cases cases --program ./fickle --force
ci 0 "same" check a --cases cases --program ./chunky
[[ $(hashes) == "$before" ]] || complain "nondeterministic bits were written: $(ls cases)"

# ---- obsolete goldens, missing steps, errors ---------------------------------------------------
mkdir other stopped
cp cases/a.ini cases/a.golden stopped/
sed 's/^lr = .*/lr = 0.004/' cases/a.ini >other/a.ini
cp cases/a.golden cases/a.points other/
ci 4 "another identity" check a --cases other
finds "-s other/a.golden.new" "obsolete"
ci 0 "obsolete: the golden is of another identity" review a --cases other
ci 0 "accepted" accept a --cases other --reason 'another rate'
more ci 0 "same" check a --cases other
rm other/a.ini
ci 4 "remove the golden" check --cases other
ci 0 "obsolete" status --cases other
cp cases/a.ini other/
sed 's/^num-rollout = 3/num-rollout = 2/' cases/a.ini >other/a.ini
cp cases/a.golden cases/a.points other/
ci 4 "the golden is of another length: it has 3 steps, the run 2" \
    check a --cases other --no-write
more ci 4 "it has 3 steps, the run 2" check a --cases other --no-write --steps 3
# A golden with fewer steps than the run is obsolete, even if its steps match.
sed '/^2 /d' cases/a.golden >other/a.golden
cp cases/a.ini other/
ci 0 "same" check a --cases other --steps 2
more ci 4 "it has 2 steps, the run 3" check a --cases other --steps 3
ci 4 "it has 2 steps, the run 3" check a --cases other
ci 0 "obsolete: the golden is of another length" review a --cases other
cp cases/a.golden other/
more ci 0 "same" check a --cases other
sed 's/^num-rollout = 3/num-rollout = 4/' cases/a.ini >other/a.ini
more ci 4 "it has 3 steps, the run 4" check a --cases other --no-write
cp cases/a.ini other/
printf '# invar golden 1\n# a\nidentity %032d\n0 %032d\n' 0 0 >other/a.golden
ci 4 "version 1" check a --cases other --no-write
grep -v '^[0-9]' cases/a.golden >other/a.golden
rm -f other/a.golden.new other/a.points.new
ci 6 "not one step" check a --cases other
sed 's/^0 ./0 z/' cases/a.golden >other/a.golden
ci 2 "a.golden:" check a --cases other
: >other/a.golden
ci 2 "a.golden is empty, no golden: record it again ('invar ci record --force')" \
    check a --cases other
ci 0 "recorded" record a --cases other --force
# Ctrl-C: the case is reported as stopped, without an error.
verbs=check commits=6 bad=4 untestable=3
[[ ! ${INVAR_TEST_FULL:-} ]] || verbs='check record' commits=14 bad=9 untestable=7
for verb in $verbs; do
    rc=0 checks=$((checks + 1))
    timeout --signal INT 1 "$invar" ci "$verb" a --cases stopped --program ./slow \
        >output 2>errors || rc=$?
    grep -qx "a: stopped" output || complain "$verb, Ctrl-C, exit code $rc:" "$(cat output errors)"
    rm -f stopped/a.golden
done
ci 2 "no numbers today" check a --cases cases --program ./crashing
ci 2 "" check a --cases cases --program ./absent
ci 2 "trouble: there is no recipe" check nowhere --cases cases
ci 2 "no end within" check a --cases cases --timeout 0.001
# The exit code is that of the gravest verdict of several cases.
cp cases/a.ini cases/a.golden cases/a.points other/
cp cases/a.ini other/b.ini
ci 4 "b" check a b --cases other
ci 0 "a" check --cases other

# ---- formats for CI services -------------------------------------------------------------------
line=$(grep -n '^0 ' cases/a.golden | cut -d: -f1)
name=$'x,y:%<&"\xc3\xa9'
for ending in ini golden points; do
    cp "cases/a.$ending" "other/$name.$ending"
done
GITHUB_ACTIONS=true GITHUB_STEP_SUMMARY=summary.md CI=true \
    ci 1 "::error file=other/a.golden,line=" check --cases other --program ./changed \
    --junit bits.xml
shown='x%2Cy%3A%25<&"é'
grep -qF "::error file=other/$shown.golden,line=$line,title=$shown changed::from step 0, " output ||
    complain "annotations: $(grep ^:: output)"
(($(grep -c '^::error' output) == 2)) || complain "not one annotation a case: $(grep ^:: output)"
grep -qF '| a | changed | from step 0, point weight.model.embed&#95;tokens' summary.md ||
    complain "$(<summary.md)"
python3 - "$name" <<'PYTHON' || failed=1
import sys, xml.etree.ElementTree as tree
root = tree.parse("bits.xml").getroot()
suite = root.find("testsuite")
assert [suite.get(k) for k in ("tests", "failures", "errors")] == ["2", "2", "0"], suite.attrib
case = [c for c in suite if c.get("name") == sys.argv[1]][0]
assert case.find("failure").get("type") == "changed"
assert case.find("failure").get("message").startswith("from step 0, point weight.model")
values = {p.get("name"): p.get("value") for p in case.find("properties")}
assert values["first divergent step"] == "0" and len(values["chain"]) == 32, values
assert values["chain"] != values["chain golden"]
assert "point " in case.find("system-out").text
PYTHON
ci 0 "" check a --cases cases --junit bits.xml
python3 -c 'import xml.etree.ElementTree as tree
assert not tree.parse("bits.xml").getroot().findall(".//failure")' || failed=1
# The name of a case may be any bytes, also invalid UTF-8.
cp cases/a.ini $'other/\xff\x01.ini'
ci 4 "" check $'\xff\x01' --cases other --junit bits.xml
python3 -c 'import xml.etree.ElementTree as tree
assert tree.parse("bits.xml").getroot().find(".//testcase").get("name") == r"\xff\x01"' || failed=1

# ---- interactive review on a terminal ----------------------------------------------------------
ci 1 "changed" check a --cases cases --program ./changed
python3 - "$invar" <<'PYTHON' || failed=1
import os, pty, sys
def run(answers):
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(sys.argv[1], [sys.argv[1], "ci", "review", "--cases", "cases"])
    for answer in answers:
        os.write(fd, answer)
    text = b""
    while True:
        try:
            piece = os.read(fd, 4096)
        except OSError:
            break
        if not piece:
            break
        text += piece
    assert os.waitpid(pid, 0)[1] == 0, text
    return text
# An unknown key repeats the prompt; without a reason nothing is accepted.
assert b"a reason is needed" in run([b"x\n", b"a\n", b"\n"])
assert os.path.exists("cases/a.golden.new")
run([b"s\n"])
assert os.path.exists("cases/a.golden.new")
assert b"accepted" in run([b"a\n", b"by hand\n"])
assert not os.path.exists("cases/a.golden.new")
assert ", by hand\n" in open("cases/a.golden").read()
PYTHON
ci 0 "recorded" record a --cases cases --force

# ---- git bisect run ----------------------------------------------------------------------------
mkdir tree && cp cases/a.golden pinned.golden && cp cases/a.ini pinned.ini
(
    cd tree && git init -q .
    for ((i = 1; i <= commits; i++)); do
        rate=0.002
        ((i < bad)) || rate=0.003
        printf '#!/bin/sh\n# %s\nexec "%s" "$@" --lr %s\n' "$i" "$invar" "$rate" >program
        # One commit cannot be tested.
        ((i != untestable)) || printf '#!/bin/sh\nexit 3\n' >program
        chmod +x program
        git add program && git commit -qm "commit $i"
    done
    git bisect start HEAD "HEAD~$((commits - 1))" >/dev/null &&
        git bisect run sh -c "'$invar' ci check --bisect --golden ../pinned.golden ../pinned.ini \
            --program ./program --steps 2" >../bisect.log 2>&1
    git log -1 --format=%s refs/bisect/bad >../culprit
)
grep -qx "commit $bad" culprit || complain "git bisect run found $(<culprit):" "$(<bisect.log)"
ci 125 "no numbers today" check --bisect --golden pinned.golden pinned.ini --program ./crashing
for flag in --bisect --no-write; do
    ci 129 "--golden absent.golden: there is no such file" \
        check "$flag" --golden absent.golden pinned.ini
done
ci 125 "nondeterministic" check --bisect --golden pinned.golden pinned.ini --program ./fickle
more ci 1 "changed" check --bisect --golden pinned.golden pinned.ini --program ./changed
more ci 0 "same" check --bisect --golden pinned.golden pinned.ini

# ---- as a hook ---------------------------------------------------------------------------------
git init -q --bare remote.git && git init -q pushing
cp -r cases pushing/recipes && cp "$source/docs/ci/pre-push" pushing/.git/hooks/
(
    cd pushing && git remote add origin ../remote.git && git add . && git commit -qm one
    INVAR=$invar git push -q origin HEAD:main >../push.log 2>&1
) || complain "the hook refuses good bits: $(<push.log)"
(
    cd pushing && git commit -qm two --allow-empty
    ! INVAR=$folder/changed-here git push -q origin HEAD:main >../push.log 2>&1
) || complain "a hook without its program lets a push pass"
printf '#!/bin/sh\nexec "%s" "$@" --program "%s"\n' "$invar" "$folder/changed" >changed-here
chmod +x changed-here
(cd pushing && ! INVAR=$folder/changed-here git push -q origin HEAD:main >../push.log 2>&1) ||
    complain "the hook lets changed bits pass: $(<push.log)"
grep -q "from step 0" push.log || complain "the hook does not say where: $(<push.log)"
# A program built in the work tree must be of the commit that is pushed.
mkdir pushing/build && printf '/build/\n' >pushing/.git/info/exclude
cat >pushing/build/invar <<HOOKED
#!/bin/sh
[ "\$1" != --version ] || exec printf 'invar 1\ncommit    %s\n' "\$(cat "$folder/built")"
exec "$invar" "\$@"
HOOKED
chmod +x pushing/build/invar
tip=$(git -C pushing rev-parse HEAD)
for built in "$(git -C pushing rev-parse HEAD~1)" "$tip, modified" ""; do
    printf '%s' "$built" >built
    (cd pushing && ! git push -q origin HEAD:main >../push.log 2>&1) ||
        complain "the hook lets a build of '$built' pass"
    grep -qF "build/invar is of ${built:-no known commit}, what is pushed is $tip" push.log ||
        complain "the hook does not say what is stale: $(<push.log)"
done
printf '%s, untracked' "$tip" >built
(cd pushing && git tag -am one one && git push -q origin HEAD:main one >../push.log 2>&1) ||
    complain "the hook refuses the build of what is pushed: $(<push.log)"
(cd pushing && INVAR=/bin/false git push -q origin :main >../push.log 2>&1) ||
    complain "the hook minds a branch that is removed: $(<push.log)"
[[ -z $(ls -A tmp) ]] || complain "left behind: $(ls tmp)"

((failed)) || echo "$checks checks passed"
exit "$failed"
