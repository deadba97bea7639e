#!/usr/bin/env bash
# ledger_cli.sh INVAR LEDGER_MAKE FOLDER - the commands over the ledger, with good and bad input.
#
# Runs of ledger_make are named, listed, shown, queried, verified, sealed, imported, exported,
# compared and watched. Output is checked as text, JSON and CSV. Damaged, foreign, read-only and
# hostile files, full disks, time limits and killed writers must end with the right exit code, and
# change nothing. INVAR_TEST_FULL=1 prints every named query as text too, passes every foreign file
# to every command, and adds larger answers, more columns and more forms of output.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$1 make=$2 folder=$3
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
terminal=$(cd "$(dirname "$0")/.." && pwd)/terminal.py
rm -rf "$folder"
mkdir -p "$folder/tmp" && cd "$folder" || exit 2
export TMPDIR=$folder/tmp

# One Python process evaluates the expressions of `answers`: it reads the paths of a JSON file and
# of a file with an expression, and prints whether the expression holds for the JSON d.
coproc evaluator {
    exec python3 -uc 'import json, sys
for paths in iter(sys.stdin.readline, ""):
    file, text = paths.rstrip("\n").split("\t")
    try:
        d = json.load(open(file, encoding="utf-8"))
        print(bool(eval("(" + open(text, encoding="utf-8").read() + ")")))
    except Exception as error:
        print("error:", repr(error))'
}
scratch=$PWD

# answers CODE EXPRESSION ARGUMENT ...: checks the exit code, and that the Python expression holds
# for the JSON output d.
answers() {
    local code=$1 expression=$2 rc=0 result=""
    shift 2
    checks=$((checks + 1))
    "$invar" "$@" >json 2>errors </dev/null || rc=$?
    ((rc == code)) || complain "invar $*: exit code $rc, expected $code:" "$(<errors)"
    printf '%s' "$expression" >"$scratch/expression"
    printf '%s\t%s\n' "$PWD/json" "$scratch/expression" >&"${evaluator[1]}"
    read -r result <&"${evaluator[0]}"
    [[ $result == True ]] ||
        complain "invar $*: not so: $expression: $result" "$(head -c 800 json)"
}

# value EXPRESSION ARGUMENT ...: prints one value of the JSON output.
value() {
    "$invar" "${@:2}" | python3 -c 'import json, sys
d = json.load(sys.stdin)
print(eval(sys.argv[1]))' "$1"
}

# refuses_full ARGUMENT ...: checks that the command fails if its output cannot be written.
refuses_full() {
    local rc=0
    checks=$((checks + 1))
    "$invar" "$@" >/dev/full 2>errors || rc=$?
    { ((rc == 2)) && grep -q 'written' errors; } ||
        complain "invar $* on a full disk: exit code $rc:" "$(<errors)"
}

"$make" runs/a/ledger.db 2>/dev/null && complain "ledger_make made a ledger in no folder"
mkdir -p runs/{a,b,c,same,other}
"$make" runs/a/ledger.db steps=30 name=a || exit 2
"$make" runs/same/ledger.db steps=30 name=same crash=20 resume=12 || exit 2
"$make" runs/b/ledger.db steps=30 name=b fault=diverges:17:layer.1.mlp.out || exit 2
"$make" runs/other/ledger.db steps=30 name=other seed=7 || exit 2
"$make" runs/c/ledger.db steps=5 name=c killed=1 || exit 2
uuid=$(value 'd[0]["uuid"]' ledger ls runs/a --json)
[[ $uuid ]] || exit 2

# ---- help ------------------------------------------------------------------------------------
"$invar" help ledger >listed
subs=(ls show query sql verify seal import export backup report watch)
for sub in "${subs[@]}"; do
    expect 0 "usage: invar ledger $sub" ledger "$sub" --help
    holds grep -qF "  $sub " listed
    more expect 0 "usage: invar ledger $sub" help ledger "$sub"
    more expect 129 "unknown option '--frob'" ledger "$sub" --frob
done
expect 0 "usage: invar ledger seal" help ledger seal
expect 129 "unknown option '--frob'" ledger seal --frob
expect 129 "usage: invar ledger VERB" ledger
expect 0 "usage: invar ledger VERB" ledger --help
expect 0 "FILE:WHICH" ledger --help
expect 129 "no verb 'frob'" ledger frob
expect 129 "no verb 'frob'" help ledger frob
expect 129 "unexpected argument 'more'" help ledger ls more
expect 0 "usage: invar diff A B" help diff

# ---- naming a run ----------------------------------------------------------------------------
for run in runs/a runs/a/ ./runs/a/ledger.db runs/a:1 runs/a/ledger.db:a "runs/a:${uuid:0:4}" \
    "${uuid:0:8}" "$uuid"; do
    expect 0 "$uuid" ledger show "$run"
done
for run in runs/a "runs/a:${uuid:0:4}" "$uuid"; do
    expect 0 "clean" ledger verify "$run"
done
expect 0 "name       c" ledger show @last
expect 2 "no run 'nowhere'" ledger show nowhere
expect 2 "no run 'abc'" ledger show abc
expect 2 "no run 'ffffffffffffffff'" ledger show ffffffffffffffff
expect 2 "no run has the number, name or uuid" ledger show runs/a:frob
expect 129 "which run?" ledger show
deep=$(printf 'long-name-of-a-folder/%.0s' {1..12})missing.db # the message has the complete path
expect 2 "$deep" ledger show a --ledger "$deep"
deep=${deep%/*}
mkdir -p "$deep" && cp runs/a/ledger.db "$deep" && echo frob >"$deep/wrong.ini"
expect 2 "ledger $deep/ledger.db: no run has the number" ledger show "$deep:frob"
expect 129 "$deep/wrong.ini:1: neither [section]" train "$deep/wrong.ini"
expect 2 "$deep/none: no such folder" convert "$deep/none" converted
expect 129 "$deep/ledger.db: there is a file of that name" ledger backup runs/a \
    --out "$deep/ledger.db"
rm -r "${deep%%/*}"
expect 129 "unexpected argument 'runs/b'" ledger show runs/a runs/b
expect 0 "2 runs imported" ledger import runs/a runs/b/ledger.db --into two.db
expect 129 "two.db has several: " ledger show two.db
expect 0 "name       b" ledger show two.db:b
expect 0 "name       b" ledger show 2 --ledger two.db
expect 0 "name       b" ledger show --ledger=two.db b
expect 0 "name       b" ledger show @last --ledger two.db
expect 2 "no run has the number, name or uuid" ledger show runs/a --ledger two.db
expect 2 "missing.db" ledger show a --ledger missing.db
INVAR_LEDGER=two.db expect 0 "name       b" ledger show b
INVAR_LEDGER=two.db expect 0 "name       a" ledger show a --ledger runs/a
mkdir -p twins/runs/{x,y}
cp runs/a/ledger.db twins/runs/x/
sqlite3 runs/b/ledger.db ".backup twins/runs/y/ledger.db"
# The uuid of this second run begins like that of the first.
triggers=$(sqlite3 twins/runs/y/ledger.db "SELECT sql || ';' FROM sqlite_master
    WHERE type = 'trigger' AND tbl_name = 'run'")
sqlite3 twins/runs/y/ledger.db "$(sqlite3 twins/runs/y/ledger.db "SELECT 'DROP TRIGGER ' || name ||
    ';' FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'run'")
    UPDATE run SET uuid = '${uuid:0:8}' || substr(uuid, 9); $triggers"
cd twins || exit 2
expect 129 "'${uuid:0:6}' fits several runs: ${uuid:0:12} in runs/x/ledger.db, " \
    ledger show "${uuid:0:6}"
expect 0 "$uuid" ledger show "$uuid"
# A run with copies: the message names the ledger that is used.
mkdir runs/z && cp runs/x/ledger.db runs/z/
expect 0 "in several ledgers: runs/x/ledger.db, runs/z/ledger.db; taken is runs/x/ledger.db; to" \
    ledger show "$uuid"
expect 0 "taken is runs/x/ledger.db" ledger verify "$uuid"
"$invar" ledger seal runs/z --store >out 2>&1 || complain "no seal in a copy:" "$(<out)"
expect 0 "taken is runs/z/ledger.db" ledger show "$uuid"
expect 0 "$uuid" ledger show runs/x
"$invar" ledger show runs/x >out 2>&1
lacks "several ledgers" out
cd .. || exit 2

# ---- ls --------------------------------------------------------------------------------------
expect 0 "next: $invar ledger show ${uuid:0:8}" ledger ls
answers 0 'sorted((r["name"], r["state"], r["exit_code"], r["steps"], r["segments"]) for r in d) ==
 [("a", "finished", 0, 30, 1), ("b", "finished", 0, 30, 1), ("c", "killed", None, 5, 1),
  ("other", "finished", 0, 30, 1), ("same", "finished", 0, 30, 2)]' ledger ls --json
answers 0 '[r["name"] for r in d] == ["a", "b"]' ledger ls two.db --json
answers 0 '[r["name"] for r in d] == ["c", "a", "b"]' ledger ls runs/c two.db --json
answers 0 'len(d) == 5' ledger ls runs --json
INVAR_LEDGER=two.db answers 0 'len(d) == 2' ledger ls --json
expect 2 "nowhere: No such file" ledger ls nowhere
expect 2 "neither it nor a folder in it" ledger ls tmp
mkdir empty
cd empty || exit 2
expect 0 "no ledger below runs/" ledger ls
answers 0 'd == []' ledger ls --json
expect 2 "no run '@last'" ledger show @last
mkdir -p bare/x
expect 2 "nowhere: No such file" ledger import nowhere --into fresh.db
[[ -z $(find . -name 'fresh.db*') ]] || complain "a failed import leaves $(echo fresh.db*)"
: >fresh.db # an existing file stays, and is now a ledger
expect 2 "nowhere: No such file" ledger import nowhere --into fresh.db
cp fresh.db bare/x/ledger.db
expect 0 "the ledger holds no run" ledger ls fresh.db
expect 0 "the ledger holds no run" ledger ls bare
expect 0 "the ledgers hold no run" ledger ls bare fresh.db
answers 0 'd == []' ledger ls fresh.db --json
expect 6 "fresh.db: no run in it, so nothing was checked" ledger verify fresh.db
answers 6 'd["runs"] == [] and d["runs_checked"] == 0' ledger verify fresh.db --json
cd .. || exit 2

# ---- show ------------------------------------------------------------------------------------
expect 0 "next: $invar ledger show runs/a --step 29" ledger show runs/a
"$invar" ledger show runs/a >shown
python3 - <<'P' || complain "show: metrics and chosen keys do not come first:" "$(<shown)"
text = open("shown", encoding="utf-8").read()
titles = ("last metrics", "identity", "segments", "facts")
order = [text.index("\n" + title + "\n") for title in titles]
assert order == sorted(order) and "0x" not in text
P
expect 0 "0x3f" ledger show runs/a --exact
# Keys at their default are counted, and listed with --all; this ledger has such keys.
cp runs/a/ledger.db plain.db
triggers=$(sqlite3 plain.db "SELECT group_concat(sql, ';') FROM sqlite_master
    WHERE type = 'trigger' AND tbl_name = 'identity'")
drop=$(sqlite3 plain.db "SELECT group_concat('DROP TRIGGER ' || name, ';')
    FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'identity'")
sqlite3 plain.db "$drop; UPDATE identity SET key = 'eps-clip', value = '0.2'
    WHERE key = (SELECT min(key) FROM identity); $triggers"
expect 0 "1 key or op stands at its default; --all shows it" ledger show plain.db
[[ $("$invar" ledger show plain.db) != *eps-clip* ]] || complain "show: a default without --all"
expect 0 "eps-clip" ledger show plain.db --all
answers 0 '"eps-clip" in [i["key"] for i in d["identity"]]' ledger show plain.db --json
# Checkpoints are looked up in the current folder of the run. The hash identifies them; here it is
# that of an empty list.
make_checkpoint() {
    mkdir -p "$1" && : >"$1/hashes.xxh"
}
make_checkpoint 'moved here/checkpoints/000029'
mkdir -p 'moved here/checkpoints/000019' && echo other >'moved here/checkpoints/000019/hashes.xxh'
cp runs/a/ledger.db 'moved here'
drop=$(sqlite3 'moved here/ledger.db' "SELECT group_concat('DROP TRIGGER ' || name, ';')
    FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'checkpoint'")
triggers=$(sqlite3 'moved here/ledger.db' "SELECT group_concat(sql, ';') FROM sqlite_master
    WHERE type = 'trigger' AND tbl_name = 'checkpoint'")
sqlite3 'moved here/ledger.db' "$drop; UPDATE checkpoint
    SET hash = x'99aa06d3014798d86001c324468d497f'; $triggers"
for words in "show" "query restore-points"; do
    # shellcheck disable=SC2086
    expect 0 "  moved here/checkpoints/000029 " ledger $words 'moved here'
    # shellcheck disable=SC2086
    expect 0 "  checkpoints/000019 " ledger $words 'moved here' # missing here: shown as recorded
done
make_checkpoint 'moved here/checkpoints/000009'
answers 0 'd[0]["checkpoint"] == "moved here/checkpoints/000009"' \
    ledger query policy-of-sample 'moved here' --step 15 --sample 0 --json
answers 0 'd[0]["path"] == "checkpoints/000009"' \
    ledger sql "SELECT path FROM checkpoint ORDER BY entry" 'moved here' --json
# If the recorded path exists and has the hash, it is used, regardless of the files next to the
# ledger.
make_checkpoint checkpoints/000029
answers 0 'd[0]["path"] == "checkpoints/000029"' ledger query restore-points 'moved here' --json
rm -r checkpoints
expect 2 "has no step 30, but 0 to 29" ledger show runs/a --step 30
expect 129 "--step: -1; expected 0 to" ledger show runs/a --step -1
expect 129 "'x' is not a whole number" ledger show runs/a --step x
answers 0 'd["run"]["name"] == "same" and [s["steps"] for s in d["segments"]] == [20, 18] and
 d["segments"][0]["ended"] == "killed" and len(d["metrics"]) > 10' ledger show runs/same --json
answers 0 'len(d["digests"]) == 15 and len(d["samples"]) == 8 and len(d["executions"]) == 2 and
 d["executions"][0]["chain"] == d["executions"][1]["chain"]' ledger show runs/same --step 15 --json
answers 0 'all(int(m["value_bits"], 16) == int.from_bytes(__import__("struct").pack(">d",
 float(m["value"])), "big") for m in d["metrics"])' ledger show runs/a --step 3 --json
"$make" odd.db steps=20 fault=nan:5:layer.1.mlp.out || exit 2
answers 0 '[m["value"] for m in d["metrics"] if m["name"] == "train/loss"] == ["nan"]' \
    ledger show odd.db --step 5 --json

# ---- query -----------------------------------------------------------------------------------
expect 0 "first-divergence" ledger query
answers 0 'len(d) >= 25 and all(q["question"] and q["sql"] for q in d)' ledger query --json
expect 129 "not --csv" ledger query --csv
expect 129 'no named query "frob"' ledger query frob
expect 129 "query first-divergence needs --b RUN" ledger query first-divergence --a runs/a
expect 129 "unexpected argument 'runs/c'" ledger query first-divergence runs/a runs/b runs/c
expect 129 "unknown option '--frob'" ledger query first-divergence runs/a runs/b --frob 1
for count in x 1e3 '' ' '; do
    expect 129 "'$count' is not a whole number" ledger query last-words runs/a --count "$count"
done
for count in 0 -1; do
    expect 129 "--count: $count; expected 1 or more" ledger query last-words runs/a --count $count
done
expect 129 "--prompt: -1; expected 0 or more" ledger query prompt-history runs/a --prompt=-1
expect 129 "--factor: nan; expected a number of 0 or" ledger query slow-steps runs/a --factor nan
expect 129 "--factor: -1; expected a number of 0 or" ledger query slow-steps runs/a --factor -1
expect 129 "--factor: inf; expected a number of 0 or" ledger query slow-steps runs/a --factor inf
expect 129 "--limit: nan; expected a number" \
    ledger query first-threshold runs/a --metric train/loss --limit nan
expect 129 "'1e999' is not a number" \
    ledger query first-threshold runs/a --metric train/loss --limit 1e999
# No number exceeds infinity: the only match is NaN.
answers 0 'd == []' ledger query first-threshold runs/a --metric train/loss --limit inf --json
answers 0 '[(r["step"], r["detail"]) for r in d if r["what"] == "threshold"] ==
 [(5, "train/loss = NaN")]' \
    ledger query first-threshold odd.db --metric train/loss --limit inf --json
answers 0 'd[0]["step"] == 0' \
    ledger query first-threshold runs/a --metric train/loss --limit=-inf --json
expect 0 "next: " ledger query first-threshold runs/a --metric train/loss --limit -1
expect 129 "--json and --csv do not go together" ledger query last-words runs/a --json --csv
expect 129 "which ledger?" ledger query nondet-twins
answers 0 'd[0]["first_step"] == 17 and d[0]["compared_steps"] == 30' \
    ledger query first-divergence --a runs/a --b runs/b --json
answers 0 'd[0]["first_step"] == 17' ledger query first-divergence two.db:a two.db:2 --json
answers 0 'd[0]["first_step"] == 17' ledger query first-divergence 1 2 --ledger two.db --json
answers 0 'd[0]["first_step"] is None' ledger query first-divergence runs/a runs/same --json
expect 129 "hold the same run" ledger query first-divergence runs/a two.db:a
expect 129 "--limit-ms: -1" ledger query last-words runs/a --limit-ms -1
expect 0 "next: " ledger query first-divergence runs/a runs/b --limit-ms 60000
# An unknown name is an error, not an empty result; and an empty result is reported.
expect 129 'no named query "last-wrods" (did you mean '"'last-words'?)" \
    ledger query last-wrods runs/a
expect 129 "no metric 'train/los' (did you mean 'train/loss'?)" \
    ledger query metric-jump runs/a --metric train/los
expect 129 "more; 'invar ledger query metric-summary RUN' shows them" \
    ledger query metric-jump runs/a --metric frob
expect 129 "no step '99'; there is 0 to 29" ledger query moved-first runs/a --step 99
expect 129 "no prompt '12345'" ledger query prompt-history runs/a --prompt 12345
expect 129 "no metric 'train_loss' (did you mean 'train/loss'?)" \
    ledger query metric-jump runs/a --metric train_loss
# Without any data to check, the result is exit code 6, not "none found".
expect 6 'no run of the ledger is a case of CI' ledger query numerics-blame --case frob runs/a
expect 6 'ci check --archive' ledger query ci-history runs/a
answers 6 'd == []' ledger query ci-history runs/a --json
expect 129 "unknown option '--metrci' (did you mean '--metric'?)" \
    ledger query metric-jump runs/a --metrci train/loss
expect 0 "none found" ledger query metric-jump runs/a --metric train/loss
answers 0 'd == []' ledger query metric-jump runs/a --metric train/loss --json
expect 0 "none found" ledger sql "SELECT 1 WHERE 0" runs/a
expect 0 "0.3333" ledger sql "SELECT 1 / 3.0" runs/a
expect 0 "0.3333333333333333" ledger sql "SELECT 1 / 3.0" runs/a --exact
expect 0 "12345678" ledger sql "SELECT 12345678.0" runs/a
[[ -z $(ls -A tmp) ]] || complain "a merged ledger was left in $TMPDIR:" "$(ls tmp)"
TMPDIR=$folder/nowhere expect 2 "no folder for a merged ledger" \
    ledger query first-divergence runs/a runs/b
# Every named query returns values of the right types.
"$invar" ledger query --json | python3 -c 'import json, sys
for q in json.load(sys.stdin):
    if {"case", "experiment"} & {p["name"] for p in q["parameters"]}:
        continue  # these ledgers have none
    words, runs = [q["name"]], ["two.db:1", "two.db:2"]
    for p in q["parameters"]:
        if not p["optional"]:
            values = {"RUN": runs, "INTEGER": ["3"], "NUMBER": ["0.5"], "TEXT": ["train/loss"]}
            words += ["--" + p["name"], values[p["type"]].pop(0)]
    print(*(words if any(p["type"] == "RUN" for p in q["parameters"]) else words + ["two.db"]))' \
    >queries
queries=0
while read -ra words; do
    "$invar" ledger query "${words[@]}" --json >"tmp/${words[0]}" 2>errors
    code=$?
    case $code in
    0)
        # as text with INVAR_TEST_FULL=1, else every eighth query
        if [[ ${INVAR_TEST_FULL:-} ]] || ((queries++ % 8 == 0)); then
            expect 0 "next: " ledger query "${words[@]}"
        fi
        ;;
    6) expect 6 "query ${words[0]} has nothing to look at: " ledger query "${words[@]}" ;;
    *) complain "invar ledger query ${words[*]} --json: $code" "$(<errors)" ;;
    esac
done <queries
python3 -c 'import json, os, sys
answers = [json.load(open("tmp/" + name, encoding="utf-8")) for name in os.listdir("tmp")]
rows = [row for answer in answers for row in answer]
sys.exit(len(answers) < 25 or len(rows) < 25 or not all(isinstance(row, dict) for row in rows))' ||
    complain "an answer to a named query is not JSON"
rm tmp/*

# ---- sql -------------------------------------------------------------------------------------
before=$(sha256sum runs/a/ledger.db)
answers 0 'd == [{"i": 9007199254740993, "b": "00ff", "n": None, "r": 0.1, "inf": "inf",
 "zero": -0.0, "t": "\x1b[31m\u00e4"}] and str(d[0]["zero"]) == "-0.0"' ledger sql \
    "SELECT 9007199254740993 AS i, x'00ff' AS b, NULL AS n, 0.1 AS r, 1e999 AS inf, -0.0 AS zero,
     char(27) || '[31mä' AS t" runs/a --json
expect 0 '\x1b[31m' ledger sql "SELECT char(27) || '[31m'" runs/a
expect 0 '\xff' ledger sql "SELECT CAST(x'ff' AS TEXT)" runs/a
answers 0 'd == [{"t": "\\xff"}]' ledger sql "SELECT CAST(x'ff' AS TEXT) AS t" runs/a --json
answers 0 'd == []' ledger sql "SELECT 1 AS a WHERE 0" runs/a --json
"$invar" ledger sql "SELECT 1 AS a, 'x,\"y' || char(10) || 'z' AS b, NULL AS c" runs/a --csv |
    python3 -c 'import csv, sys
sys.exit(list(csv.reader(open(0, newline=""))) != [["a", "b", "c"], ["1", "x,\"y\nz", ""]])' ||
    complain "sql --csv: not what a CSV reader expects"
expect 129 "two columns are called 'a'" ledger sql "SELECT 1 AS a, 2 AS a" runs/a --json
expect 0 "30" ledger sql "SELECT count(*) FROM step" --ledger runs/a
expect 129 "which ledger?" ledger sql "SELECT 1"
expect 129 'expected "SELECT ..."' ledger sql
expect 129 'invar ledger sql "SELECT ..." runs/a' ledger sql runs/a "select 1"
for text in "DELETE FROM step" "UPDATE run SET name = 'x'" "DROP TABLE step" "CREATE TABLE t(a)" \
    "INSERT INTO series VALUES(99, 'x')" "ATTACH 'other.db' AS o" "PRAGMA journal_mode = DELETE" \
    "PRAGMA writable_schema = 1" "SELECT load_extension('x')" "SELECT 1; DELETE FROM step" \
    "BEGIN IMMEDIATE" "SELEC 1" "" "SELECT :x"; do
    expect 129 "invar: " ledger sql "$text" runs/a
done
expect 129 "only a SELECT is allowed" ledger sql "VACUUM INTO 'copy.db'" runs/a
forever="WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM t) SELECT count(*) FROM t"
expect 2 "the time limit was reached" ledger sql "$forever" runs/a --limit-ms 200
# A single instruction of SQLite takes hours: the process itself is ended at the time limit.
start=$SECONDS
forever="SELECT instr(zeroblob(60000000), CAST(zeroblob(30000000) || x'01' AS BLOB))"
expect 2 "the time limit of 300 ms was reached; " ledger sql "$forever" runs/a --limit-ms 300
forever="SELECT instr(printf('%.*c', 60000000, 'a'), printf('%.*c', 30000000, 'a') || 'b')"
more expect 2 "the time limit of 300 ms was reached; " ledger sql "$forever" runs/a --limit-ms 300
# At the time limit a document is complete, or there is none; memory and output are limited, too.
endless="WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM t) SELECT i FROM t"
rc=0
"$invar" ledger sql "$endless" runs/a --json --limit-ms 300 >torn 2>errors || rc=$?
{ ((rc == 2)) && [[ ! -s torn ]]; } || complain "torn, exit code $rc:" "$(head -c 99 torn)"
text="printf('%.*c', 1000000, 'x')"
expect 2 "the answer has more than 64 MiB; ask for less" \
    ledger sql "${endless/SELECT i FROM/SELECT $text FROM}" runs/a --limit-ms 0
more expect 2 "the answer has more than 128 MiB" \
    ledger sql "${endless/SELECT i FROM/SELECT $text AS x FROM}" runs/a --json --limit-ms 0
endless="${endless/SELECT i FROM/SELECT $text || i AS x FROM} LIMIT 700"
# By default, unit.ledger.query.select reaches this limit.
more expect 2 "it needs more than 512 MiB of memory" \
    ledger sql "SELECT x FROM ($endless) ORDER BY x" runs/a --limit-ms 0
expect 129 "too complex" ledger sql \
    "SELECT printf('%.*c', 60000000, 'a') LIKE '%' || printf('%.*c', 49000, 'a') || 'b'" runs/a
((SECONDS - start < 60)) || complain "time limits of 300 ms took $((SECONDS - start)) s"
[[ $(sha256sum runs/a/ledger.db) == "$before" && ! -e other.db && ! -e copy.db ]] ||
    complain "sql has written"

# ---- verify and seal -------------------------------------------------------------------------
answers 0 'd["clean"] and d["steps"] == 60 and len(d["runs"]) == 2' ledger verify two.db --json
content() { "$invar" ledger verify "$1" --json | sed -n 's/.*"content": "\([^"]*\)".*/\1/p'; }
first=$(content runs/a)
[[ $first && $first == "$(content runs/same)" ]] || complain "equal runs, different content"
[[ $first != "$(content runs/b)" ]] || complain "different runs, equal content"
line=$("$invar" ledger seal runs/a 2>hint)
[[ $line == "invar-seal 1 $uuid "* && $(wc -l <<<"$line") == 1 ]] || complain "seal: $line"
grep -qF "git notes --ref=invar add -m '$line'" hint || complain "seal: $(<hint)"
expect 0 "seal: as sealed" ledger verify runs/a --seal "$line"
"$invar" ledger verify two.db --seal - <<<"$line" | grep -q "as sealed" ||
    complain "a seal does not hold after an import"
[[ $line == *0 ]] && broken=${line%?}1 || broken=${line%?}0
expect 1 "is not what the seal says" ledger verify runs/a --seal "$broken"
answers 1 'd["clean"] and d["seal"] == "different"' ledger verify runs/a --seal "$broken" --json
expect 1 "is not in it" ledger verify runs/b --seal "$line"
answers 1 'd["clean"] and d["seal"] == "different"' ledger verify runs/b --seal "$line" --json
expect 129 "not a seal" ledger verify runs/a --seal frob
expect 129 "no line on standard input" ledger verify runs/a --seal -
cp runs/a/ledger.db sealed.db
expect 0 "invar-seal 1 $uuid" ledger seal sealed.db --store
answers 0 'd["seals"] == 1 and d["clean"]' ledger verify sealed.db --json
expect 0 "seal: as sealed" ledger verify sealed.db --seal "$line"
[[ ! -s sealed.db-wal ]] || complain "seal --store left its log behind"
# One bit is flipped in the middle of a metric's bits.
cp runs/a/ledger.db flipped.db
python3 - "$(sqlite3 runs/a/ledger.db "SELECT value_bits FROM metric WHERE step = 9 LIMIT 1")" <<'P'
import sys
bits = (int(sys.argv[1]) & (2**64 - 1)).to_bytes(8, "big")
data = open("flipped.db", "rb").read()
assert bits in data
at = data.index(bits)
open("flipped.db", "wb").write(data[:at + 6] + bytes([data[at + 6] ^ 16]) + data[at + 7:])
P
expect 2 "CORRUPT" ledger verify flipped.db
answers 2 'not d["clean"] and d["bad"] >= 1 and "metric" in d["first"]' \
    ledger verify flipped.db --json
expect 129 "not a seal" ledger verify flipped.db --seal frob # found before the ledger is read
expect 2 "seal: different" ledger verify flipped.db --seal "$line"
answers 2 'not d["clean"] and d["seal"] == "different"' \
    ledger verify flipped.db --seal "$line" --json
expect 2 "metric" ledger import flipped.db --into none.db
[[ -z $(find . -name 'none.db*') ]] || complain "a failed import leaves $(echo none.db*)"

# ---- import and backup -----------------------------------------------------------------------
answers 0 'd["imported"] == 0' ledger import runs/a --into two.db --json
expect 129 "expected FILE" ledger import --into two.db
expect 129 "import needs --into FILE" ledger import runs/a
for name in out output to; do
    expect 129 "did you mean '--into'?" ledger import runs/a --$name two.db
done
expect 129 "did you mean '--out'?" ledger backup runs/a --into copy.db
expect 129 "did you mean '--out'?" ledger report runs/a --output page.html
expect 129 "did you mean '--output'?" pack runs/a --step 1 --into step.pack
expect 0 "1 run imported" ledger import runs/a --into one.db
expect 0 "checked: 1 run, " ledger verify one.db
# The ledger of a run keeps this run only; a collection may have any name.
sum=$(sha256sum runs/b/ledger.db)
mkdir runs/b/checkpoints && ln -s runs/b/ledger.db linked.db
mv runs/b/ledger.db-lock lock # the files next to it identify it, too, also through a link
for into in runs/b/ledger.db linked.db; do
    expect 2 "$into is the ledger of a run" ledger import runs/a --into $into
done
mv lock runs/b/ledger.db-lock && rmdir runs/b/checkpoints && rm linked.db
[[ $(sha256sum runs/b/ledger.db) == "$sum" ]] || complain "an import changed the ledger of a run"
mkdir collection
expect 0 "1 run imported" ledger import runs/a --into collection/ledger.db
rm collection/ledger.db-lock
expect 0 "1 run imported" ledger import runs/b --into collection/ledger.db
expect 2 "nowhere: No such file" ledger import nowhere --into two.db
mkdir kept
expect 0 "kept/ledger.db: written" ledger backup runs/a --out kept/ledger.db
expect 0 "0 runs imported" ledger import runs/a --into kept/ledger.db
expect 0 "1 run imported" ledger import runs/b --into kept/ledger.db
expect 0 "copy.db: written" ledger backup two.db --out copy.db
expect 129 "there is a file of that name already" ledger backup two.db --out copy.db
expect 129 "backup needs --out FILE" ledger backup two.db
expect 129 "without --keep-last" ledger backup two.db --out less.db --keep-every 5
expect 2 "nowhere" ledger backup two.db --out nowhere/copy.db
answers 0 'd["ledger"] == "less.db"' ledger backup runs/a --out less.db --keep-last 2 --json
answers 0 'd["clean"] and d["pruned"] > 100' ledger verify less.db --json
expect 2 "rows were left out of this copy" ledger verify less.db --seal "$line"
answers 2 'd["clean"] and d["seal"] == "cannot be checked"' \
    ledger verify less.db --seal "$line" --json
[[ $(content less.db) == "$first" ]] || complain "a shorter copy has other content"
expect 1 "different: " diff runs/other less.db

# ---- export and report -----------------------------------------------------------------------
expect 129 "export needs --csv" ledger export runs/a
expect 129 "are both x" ledger export runs/a --csv x --jsonl x
expect 2 "nowhere/x" ledger export runs/a --csv nowhere/x
# A ledger given as an output file is a mistake.
for words in 'export runs/a --csv' 'export runs/a --jsonl' 'report runs/a --out'; do
    # shellcheck disable=SC2086
    expect 129 "a ledger or another database lies there" ledger $words runs/other/ledger.db
done
expect 0 "clean" ledger verify runs/other/ledger.db
# A file of another kind is not replaced, but an older output of the same kind is.
echo precious >mine
for words in 'ledger export runs/a --csv' 'ledger export runs/a --jsonl' \
    'ledger report runs/a --out' 'diff runs/a runs/a --html'; do
    # shellcheck disable=SC2086
    expect 129 "mine: a file of another kind lies there and is not replaced" $words mine
    for ((i = 0; i < 2; i++)); do
        # shellcheck disable=SC2086
        expect 0 "" $words "again${words##*--}"
    done
done
[[ $(<mine) == precious ]] || complain "an output replaced a file of another kind"
printf '<!DOCTYPE html>\n<!-- saved from url=(0021)http://example.org/ -->\n' >saved.html
expect 129 "saved.html: a file of another kind lies there" ledger report runs/a --out saved.html
# A default is no misspelling.
expect 0 "none found" ledger query events --run runs/a --text nothing-of-this-kind
"$invar" ledger export runs/a --csv - --jsonl a.jsonl --tensorboard board 2>/dev/null |
    python3 -c 'import csv, json, os, sys
rows = list(csv.DictReader(open(0, newline="")))
kinds = [json.loads(line)["kind"] for line in open("a.jsonl", encoding="utf-8")]
events = os.listdir("board/a")
sys.exit(not (rows[0]["step"] == "0" and kinds.count("step") == 30 and
              len(events) == 1 and events[0].startswith("events.out.tfevents.")))' ||
    complain "export: not what its readers expect"
expect 0 "next: " ledger export runs/a --tensorboard deep/er/board
[[ -d deep/er/board/a ]] || complain "export made no folders for TensorBoard"
# Outputs neither follow nor replace a link, and a pipe needs a reader.
echo precious >target
ln -s target link
ln -s nowhere dangling
# By default, each command gets one kind of link.
for link in link dangling; do
    for to in "export runs/a --csv" "export runs/a --jsonl" "report runs/a --out"; do
        [[ ${INVAR_TEST_FULL:-} || $link == link || $to == *--csv ]] || continue
        # shellcheck disable=SC2086 # words
        expect 129 "$link: is a symbolic link, and is not replaced or followed" ledger $to $link
    done
    [[ -L $link ]] || complain "$link was replaced"
done
[[ $(<target) == precious && ! -e nowhere ]] || complain "an export went through a link"
mkfifo pipe
expect 2 "pipe: no process reads this pipe" ledger export runs/a --csv pipe
head -c 5 pipe >begun &
# head may begin to read later than the program writes
until "$invar" ledger export runs/a --csv pipe 2>pipe.err || ! grep -q "no process" pipe.err; do
    sleep 0.02
done
wait $!
[[ $(<begun) == "step," ]] || complain "a pipe with a reader: $(<begun)"
expect 0 "next: " ledger export runs/a --csv /dev/null
expect 2 "written" ledger export runs/a --csv /dev/full
[[ -p pipe && -c /dev/null && -c /dev/full ]] || complain "a device or pipe is gone"
[[ $("$invar" ledger export runs/a --csv /dev/stdout 2>/dev/null | head -c 5) == "step," ]] ||
    complain "/dev/stdout is not written"
# Files that killed writers left are removed by the next one.
sh -c 'exit 0' &
wait $!
echo half >"page.html.new-$!"
mkdir "late.db.partial-$!" && echo half >"late.db.partial-$!/copy"
echo mine >page.html.new-x
expect 0 "page.html: written" ledger report runs/a --out page.html
expect 0 "late.db: written" ledger backup runs/a --out late.db
[[ $(compgen -G '*.new-*') == page.html.new-x && -z $(compgen -G '*.partial-*') ]] ||
    complain "left by killed writers:" "$(ls)"
rm page.html page.html.new-x
expect 129 "report needs --out" ledger report runs/a
expect 2 "no run 'nowhere'" ledger report runs/a nowhere --out page.html
[[ ! -e page.html ]] || complain "a failed report left a file"
printf '<!DOCTYPE html>\n<!-- report.html - the page of `invar old' >page.html
expect 0 "page.html: written" ledger report runs/a runs/b --out page.html
grep -q '</html>' page.html || complain "report: $(head -c 200 page.html)"
expect 2 "nowhere/page.html" ledger report runs/a --out nowhere/page.html
# The disk becomes full while writing: the previous file stays.
cp page.html before.html
for words in 'report runs/a --out page.html' 'export runs/a --jsonl full.jsonl'; do
    rc=0 checks=$((checks + 1))
    (
        trap '' XFSZ
        ulimit -f 40 # KiB; SQLite needs 32 to share a log
        # shellcheck disable=SC2086
        "$invar" ledger $words
    ) >/dev/null 2>errors || rc=$?
    { ((rc == 2)) && grep -qE 'cannot (write|be written)' errors; } ||
        complain "ledger $words on a full disk: exit code $rc:" "$(<errors)"
done
{ cmp -s page.html before.html && [[ -z $(compgen -G '*.new-*') && ! -e full.jsonl ]]; } ||
    complain "a full disk left something half-written:" "$(ls)"

# ---- suggested commands can be used as printed -------------------------------------------------
# expect_next_commands ARGUMENT ...: checks that every suggested command works here.
declare -A followed=()
expect_next_commands() {
    local line rc lines
    "$invar" "$@" >output 2>&1 </dev/null
    lines=$(sed -n "s|^next: \($invar \)|\1|p; s|^  \($invar \)|\1|p" output)
    [[ $lines ]] || complain "invar $*: no next command:" "$(<output)"
    while read -r line; do
        rc=0
        [[ -z ${followed[$line]:-} ]] || continue # run before
        followed[$line]=1
        checks=$((checks + 1))
        bash -c "$line" >followed 2>&1 </dev/null || rc=$?
        ((rc <= 1)) || complain "invar $*: next: $line: exit code $rc:" "$(<followed)"
    done <<<"$lines"
}
expect_next_commands ledger ls
more expect_next_commands ledger ls two.db
expect_next_commands ledger show runs/a
expect_next_commands ledger show b --ledger two.db --step 3
expect_next_commands ledger query
expect_next_commands ledger query lineage runs/a
expect_next_commands ledger sql "SELECT 1" runs/a
expect_next_commands ledger verify runs/a
more expect_next_commands ledger verify two.db
expect_next_commands ledger seal runs/a
expect_next_commands ledger import runs/a --into next.db
expect_next_commands ledger backup runs/a --out next-copy.db
expect_next_commands ledger export runs/a --csv next.csv
expect_next_commands ledger report runs/a runs/b --out next.html
expect_next_commands diff runs/a runs/same
expect_next_commands diff runs/a runs/b
expect_next_commands doctor
mkdir elsewhere
cp -r runs/b 'elsewhere/two words'
expect_next_commands ledger ls elsewhere
expect_next_commands diff runs/a 'elsewhere/two words'
rm -r next.db next-copy.db next.csv next.html elsewhere

# ---- diff ------------------------------------------------------------------------------------
expect 0 "identical: 30 steps" diff runs/a runs/same
expect 0 "next: $invar ledger verify runs/a" diff runs/a runs/same
expect 3 "step 17, point layer.1.mlp.out" diff runs/a runs/b
expect 1 "different: " diff runs/a runs/other
answers 3 'd["verdict"] == "nondeterministic" and d["step"] == 17' diff runs/a runs/b --json
expect 3 "step 17" diff 1 2 --ledger two.db
expect 0 "identical" diff two.db:a runs/a
# On a narrow terminal details are left out, but no name or hash is truncated.
for columns in ${INVAR_TEST_FULL:+40} 60 250; do
    checks=$((checks + 1))
    "$terminal" "$columns" "$invar" diff runs/a runs/b >shown 2>&1
    (($? == 3)) || complain "diff on $columns columns: another exit code" "$(<shown)"
    python3 - "$columns" <<'P' || complain "diff is not made for $columns:" "$(<shown)"
import re, subprocess, sys
columns, lines = int(sys.argv[1]), open("shown", encoding="utf-8").read().split("\n")
points = [line for line in lines if re.search(r" [0-9a-f]{8} \| [0-9a-f]{8}", line)]
metrics = [line for line in lines if re.search(r" ulp \(fp(32|64)\)$", line)]
names = {line[2:].split()[0] for line in points}
assert len(points) == 9 and {"layer.1.mlp.out", "layer.0.attn.weight"} <= names, names
assert len(metrics) == 7 and metrics[0].split()[0] == "train/entropy_loss"
# Type and bits are shown only if there is enough width.
assert all(("[1024,64]" in line) == (columns > 200) for line in points), points
assert all((len(line.split()) == 8) == (columns > 200) for line in metrics), metrics
assert columns != 60 or all(len(line) <= columns for line in points)
P
done
expect 1 "different" diff runs/a runs/other --html diff.html
grep -q '</html>' diff.html || complain "diff --html: $(head -c 200 diff.html)"
"$make" none.db steps=0 || exit 2
expect 6 "nothing" diff runs/a none.db
expect 129 "expected A B" diff runs/a
expect 129 "unexpected argument 'runs/c'" diff runs/a runs/b runs/c
expect 2 "no run 'nowhere'" diff runs/a nowhere

# ---- files that are not ledgers, or not ours -------------------------------------------------
echo "a text" >text.db
: >empty.db
sqlite3 foreign.db "CREATE TABLE t(a); INSERT INTO t VALUES(1)"
cp runs/a/ledger.db newer.db
sqlite3 newer.db "PRAGMA user_version = 99"
head -c 20000 runs/a/ledger.db >cut.db
sums=$(sha256sum text.db empty.db foreign.db newer.db cut.db)
# By default, every file is imported, and given to two or three of the other commands.
turn=0
for file in text empty foreign newer cut missing; do
    for verb in "ledger ls" "ledger show" "ledger verify" "ledger seal" "ledger watch" \
        "ledger export --csv -" "ledger backup --out never.db" "ledger sql SELECT(1)" \
        "diff runs/a"; do
        if [[ ${INVAR_TEST_FULL:-} ]] || ((turn++ % 4 == 0)); then
            # shellcheck disable=SC2086
            expect 2 "$file" $verb $file.db
        fi
    done
    expect 2 "$file" ledger import $file.db --into never.db
done
expect 2 "99" ledger show newer.db
for file in text foreign newer; do
    expect 2 "$file" ledger import runs/a --into $file.db
done
[[ $(sha256sum text.db empty.db foreign.db newer.db cut.db) == "$sums" ]] ||
    complain "a file that is no ledger was changed"
[[ -z $(find . -name 'text.db-*' -o -name 'foreign.db-*') ]] ||
    complain "beside what is no ledger: $(echo text.db-* foreign.db-*)"
mkdir -p runs/text
cp text.db runs/text/ledger.db
expect 2 "finished 0" ledger ls
"$invar" ledger ls >out 2>/dev/null
grep -q "unreadable .* runs/text/ledger.db" out || complain "no row for a damaged ledger" "$(<out)"
answers 2 'len(d) == 6 and [(r["ledger"], r["uuid"]) for r in d if r["state"] == "unreadable"] ==
 [("runs/text/ledger.db", None)] and len({frozenset(r) for r in d}) == 1 and
 [r["error"] is None for r in d] == [r["steps"] is not None for r in d] and
 "text" in [r for r in d if r["error"]][0]["error"]' \
    ledger ls --json
expect 0 "left out: " ledger show @last
rm -r runs/text

# ---- a folder that cannot be written ---------------------------------------------------------
mkdir sealed
cp runs/a/ledger.db sealed/
chmod 555 sealed && chmod 444 sealed/ledger.db
if (($(id -u) == 0)); then # permissions do not stop root
    nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups -- "$@"; }
else
    nobody() { "$@"; }
fi
if nobody test -r sealed/ledger.db -a -x "$invar"; then
    { nobody "$invar" ledger verify sealed >out 2>&1 && grep -q clean out; } ||
        complain "verify in a read-only folder:" "$(<out)"
    nobody "$invar" ledger show sealed --step 3 >out 2>&1 || complain "show there:" "$(<out)"
    nobody "$invar" ledger seal sealed --store >out 2>&1
    (($? == 2)) || complain "seal --store in a read-only folder:" "$(<out)"
    nobody "$invar" ledger import runs/b --into sealed/ledger.db >out 2>&1
    (($? == 2)) || complain "import into a read-only folder:" "$(<out)"
else
    echo "not tried as another user: a read-only folder"
fi
chmod 755 sealed

# ---- with an active writer -------------------------------------------------------------------
# start_writer: starts a writer of runs/live, sets `pid`, and stops the writer when the ledger has
# some steps.
start_writer() {
    rm -rf runs/live && mkdir runs/live
    "$make" runs/live/ledger.db steps=20000 name=live &
    pid=$!
    until [[ $("$invar" ledger sql "SELECT count(*) > 2 AS n FROM step" runs/live --csv \
        2>/dev/null) == *1* ]]; do
        kill -0 $pid || exit 2
    done
    kill -STOP $pid
}

start_writer
answers 0 '[r["state"] for r in d] == ["running"]' ledger ls runs/live --json
expect 0 "name       live" ledger show runs/live
expect 0 "name       live" ledger show @last
expect 0 "clean" ledger verify runs/live
expect 2 "it has a writer already: pid $pid" ledger seal runs/live --store
expect 2 "it has a writer already: pid $pid" ledger import runs/a --into runs/live/ledger.db
expect 0 "written" ledger backup runs/live --out live-copy.db
expect 0 "clean" ledger verify live-copy.db
expect 0 "step 1 " ledger watch runs/live --until-step 1
expect 0 "raw_reward " ledger watch runs/live --until-step 1
if [[ ${INVAR_TEST_FULL:-} ]]; then
    timeout 1 "$invar" ledger watch runs/live --interval 0.05 >watched 2>/dev/null
    { (($? == 124)) && grep -q '^step .*raw_reward ' watched; } || complain "watch:" "$(<watched)"
fi
"$invar" ledger watch runs/live --interval 0.02 --metrics train/loss >watched 2>errors &
watcher=$!
kill -CONT $pid
sleep 0.5
kill -KILL $pid
wait $pid 2>/dev/null
wait $watcher
{ (($? == 2)) && grep -q "was killed after step" errors; } || complain "watch:" "$(<errors)"
last=$(value 'd["run"]["last_step"]' ledger show runs/live --json)
# Every step is printed once, in order. The last one may be missing if the writer was killed between
# the log and its index; the next reader finds that step in the log.
sed -n 's/^step \([0-9]*\) .*train\/loss .*/\1/p' watched >told
python3 - "$last" <<'P' || complain "watch told steps $(head -1 told) to $(tail -1 told) of $last"
import sys
told = [int(line) for line in open("told")]
last = int(sys.argv[1])
sys.exit(not told or told[-1] < last - 1 or told != list(range(told[0], told[-1] + 1)))
P
answers 0 '[r["state"] for r in d] == ["killed"]' ledger ls runs/live --json
# The log may be truncated anywhere: complete steps are lost, or, if a part of the log was already
# in the file, verify reports that the two do not match.
[[ -s runs/live/ledger.db-wal ]] || complain "the killed writer left no log"
for part in 3 2; do
    mkdir -p cut-$part
    cp runs/live/ledger.db runs/live/ledger.db-wal cut-$part/
    truncate -s $(($(stat -c %s runs/live/ledger.db-wal) / part + 77)) cut-$part/ledger.db-wal
    "$invar" ledger verify cut-$part >cut.txt 2>&1
    rc=$?
    { ((rc == 0)) && grep -q clean cut.txt; } || { ((rc == 2)) && grep -q CORRUPT cut.txt; } ||
        complain "a cut log: exit code $rc, $(cat cut.txt)"
done
expect 0 "clean" ledger verify runs/live
rm -rf runs/live cut-? live-copy.db

expect 0 "finished with exit code 0" ledger watch runs/a
expect 2 "was killed after step 4" ledger watch runs/c
expect 0 "step 29 " ledger watch runs/same
# The last ten steps may be of several segments; steps that a resume discarded are not printed.
mkdir resumed
"$make" resumed/ledger.db steps=25 crash=20 resume=17 || exit 2
"$invar" ledger watch resumed >watched || complain "watch of a resumed run: exit code $?"
sed -n 's/^\(step [0-9]*\|segment 1 begins\).*/\1/p' watched >told
{ printf 'step %d\n' 15 16 && echo "segment 1 begins" && printf 'step %d\n' {17..24}; } |
    cmp - told || complain "watch of a resumed run:" "$(<told)"
expect 0 "step 15 " ledger watch resumed --until-step 15
holds test "$("$invar" ledger watch resumed --until-step 15 | grep -c '^s')" -eq 10
rm -r resumed
# A metric that the run does not have is an error; the list of metrics may be long.
expect 129 "--metrics: there is no metric 'train/los' (did you mean 'train/loss'?)" \
    ledger watch runs/a --metrics train/grad_norm,train/los
long=$(printf 'train/grad_norm,%.0s' {1..200})train/loss
expect 0 "train/loss" ledger watch runs/a --metrics "$long"
expect 129 "'x' is not a number" ledger watch runs/a --interval x
expect 129 "--interval: -1; expected 0 to 3600" ledger watch runs/a --interval=-1
expect 129 "--interval: nan; expected 0 to 3600" ledger watch runs/a --interval nan

# ---- hostile names ---------------------------------------------------------------------------
mkdir -p hostile
cp runs/a/ledger.db hostile/
triggers=$(sqlite3 hostile/ledger.db "SELECT group_concat(sql, ';') FROM sqlite_master
    WHERE type = 'trigger' AND tbl_name IN ('run', 'event', 'fact')")
drop=$(sqlite3 hostile/ledger.db "SELECT group_concat('DROP TRIGGER ' || name, ';')
    FROM sqlite_master WHERE type = 'trigger' AND tbl_name IN ('run', 'event', 'fact')")
sqlite3 hostile/ledger.db "$drop; UPDATE run SET name = char(27) || '[31mred' || char(10, 155, 7);
    UPDATE event SET message = char(27) || ']0;title' || char(7);
    UPDATE fact SET value = char(27) || '[2J' WHERE key = 'cpu'; $triggers"
expect 0 '\x1b[31mred\x0a' ledger ls hostile
expect 0 '\x1b]0;title\x07' ledger show hostile
expect 0 "step 3 of \\x1b[31mred" ledger show hostile --step 3
expect 2 "CORRUPT" ledger verify hostile
expect 0 "facts: " diff runs/a hostile
expect 0 '\x1b[2J' ledger query run-diff runs/b hostile
answers 0 'd[0]["name"] == "\x1b[31mred\n\x9b\x07"' ledger ls hostile --json

# ---- a metric without its name ---------------------------------------------------------------
cp runs/a/ledger.db nameless.db
triggers=$(sqlite3 nameless.db "SELECT group_concat(sql, ';') FROM sqlite_master
    WHERE type = 'trigger' AND tbl_name = 'series'")
drop=$(sqlite3 nameless.db "SELECT group_concat('DROP TRIGGER ' || name, ';')
    FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'series'")
sqlite3 nameless.db "$drop; DELETE FROM series WHERE name = 'train/loss'; $triggers"
for form in csv jsonl tensorboard; do
    expect 2 "a value has no name" ledger export nameless.db --$form nameless.out
    [[ ! -f nameless.out ]] || complain "a failed export left a file"
done
expect 2 "CORRUPT" ledger verify nameless.db
answers 0 '[m["name"] for m in d["metrics"]].count(None) == 1 and len(d["metrics"]) > 10' \
    ledger show nameless.db --step 3 --json

# ---- output that cannot be written -----------------------------------------------------------
refuses_full ledger ls
refuses_full ledger ls --json
refuses_full ledger show runs/a
refuses_full ledger show runs/a --step 3 --json
refuses_full ledger query
refuses_full ledger query last-words runs/a
refuses_full ledger sql "SELECT * FROM metric" runs/a --csv
refuses_full ledger verify runs/a
refuses_full ledger seal runs/a
refuses_full ledger export runs/a --jsonl -
refuses_full ledger export runs/a --csv -
refuses_full ledger report runs/a --out -
refuses_full ledger watch runs/a
refuses_full diff runs/a runs/b
refuses_full diff runs/a runs/b --json

((failed)) || echo "all $checks as expected"
exit "$failed"
