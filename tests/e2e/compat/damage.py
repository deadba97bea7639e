#!/usr/bin/env python3
# damage.py INVAR BENT FOLDER - runs whose own records are damaged between stop and restart.
#
# Records of runs (make.py) are edited, or single bits are flipped; then the run is restarted and
# executes recorded steps again. It must end with the chain of the undamaged run ("harmless"), or
# with an error and a reason ("found"); anything else is "silent" and a failure. By default all
# edits of one journal, some of the other and a flip per kind of record are tried; with
# INVAR_TEST_FULL=1 all edits and 270 flips per kind. Tests of the readers flip every bit of a
# journal (unit.engine.files.journal, unit.engine.sample.agent.session_journal). BENT, whose
# rollouts have a wrong log-prob, stands for any other cause of a differing step.
# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import random
import re
import shutil
import sqlite3
import subprocess
import sys

from make import make, train

INVAR, BENT = map(os.path.abspath, sys.argv[1:3])
FOLDER = pathlib.Path(sys.argv[3]).absolute()
FULL = bool(os.environ.get("INVAR_TEST_FULL"))
FLIPS = 270 if FULL else 1
AGAIN = {"clock": ["--ckpt-step", "1"], "agents": [], "judge": ["--until", "2"],
         "plain": ["--ckpt-step", "1"]}
counts = {}
failures = []


def expect(holds, what):
    if not holds:
        failures.append(what)
        print(what, file=sys.stderr)


# ---- one case ------------------------------------------------------------------------------------

def try_damage(group, what, name, damage, chain, must=None):
    """Damages a copy of a run and restarts it. `must` is the required outcome, and a text of its
    message."""
    run = FOLDER / "case"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(FOLDER / name, run)
    (FOLDER / "asked").unlink(missing_ok=True)
    damage(run)
    code, said, answer = train(INVAR, FOLDER, name, *AGAIN[name], run="case")
    if code == 0:
        outcome = "harmless" if answer.get("chain") == chain else "silent"
    else:
        outcome = "found" if code in (1, 2) and "invar: " in said else "silent"
    found = counts.setdefault(group, {"tried": 0, "found": 0, "harmless": 0, "silent": 0})
    found["tried"] += 1
    found[outcome] += 1
    expect(outcome != "silent", f"{what}: silent: exit code {code}, chain {answer.get('chain')}, "
           f"expected {chain}: {said}")
    if must:
        expect(outcome == must[0] and must[1] in said,
               f"{what}: {outcome}, expected {must}: {said}")


# ---- journals ------------------------------------------------------------------------------------

def lines_of(path):
    return path.read_text().splitlines(keepends=True)


def edit(file, change):
    """Returns a damage that maps the lines of a journal to other lines."""
    def damage(run):
        path = run / file
        path.write_text("".join(change(lines_of(path))))
    return damage


def at(number, change):
    """Returns a function that changes one of the lines."""
    def apply(lines):
        new = change(lines[number])
        assert new != lines[number], lines[number]
        return [*lines[:number], new, *lines[number + 1:]]
    return apply


def without_sums(lines, file):
    """Returns the lines as version 1 had them."""
    kind = {"schedule.jsonl": "invar_schedule", "sessions.jsonl": "invar_sessions"}[file]
    lines = [re.sub(r',"sum":"[0-9a-f]{32}"}$', "}", x) for x in lines]
    return [re.sub(r',"uuid":"[0-9a-f]{32}"', "", lines[0].replace(f'"{kind}":2', f'"{kind}":1')),
            *lines[1:]]


def journal_edits(file, other):
    """Returns the edits of a journal: name, damage, required outcome."""
    sum_of, bad = ("found", "the sum does not follow"), ("found", "")
    digit = lambda x: re.sub(r"(\d)\]", lambda m: f"{(int(m[1]) + 1) % 10}]", x, count=1)
    return [
        ("head: another run", edit(file, at(0, lambda x: re.sub(r'"run":"..', '"run":"zz', x))),
         sum_of),
        ("head: another uuid", edit(file, at(0, lambda x: re.sub(r'"uuid":"..', '"uuid":"zz', x))),
         sum_of),
        ("head: version 3", edit(file, at(0, lambda x: x.replace('":2,', '":3,', 1))), sum_of),
        ("head: version 1", edit(file, at(0, lambda x: x.replace('":2,', '":1,', 1))), sum_of),
        ("head: no sum", edit(file, at(0, lambda x: re.sub(r',"sum":".*"}', "}", x))),
         ("found", "has a sum in every line")),
        ("head removed", edit(file, lambda x: x[1:]), bad),
        ("head twice", edit(file, lambda x: [x[0], *x]), sum_of),
        ("a number changed", edit(file, at(1, digit)), sum_of),
        ("a space added", edit(file, at(2, lambda x: x.replace(":", ": ", 1))), sum_of),
        ("a sum changed", edit(file, at(2, lambda x: re.sub(r'"sum":"..', '"sum":"zz', x))),
         sum_of),
        ("a sum removed", edit(file, at(2, lambda x: re.sub(r',"sum":".*"}', "}", x))), sum_of),
        ("a line removed", edit(file, lambda x: [*x[:2], *x[3:]]), sum_of),
        ("two lines removed", edit(file, lambda x: [x[0], *x[3:]]), sum_of),
        ("two lines swapped", edit(file, lambda x: [x[0], x[2], x[1], *x[3:]]), sum_of),
        ("a line twice", edit(file, lambda x: [*x[:2], *x[1:]]), sum_of),
        ("an empty line", edit(file, lambda x: [*x[:2], "\n", *x[2:]]), sum_of),
        ("a line added at the end", edit(file, lambda x: [*x, x[1]]), sum_of),
        ("the last newline changed", edit(file, lambda x: [*x[:-1], x[-1][:-1] + "\v"]),
         ("found", "the newline after the line was changed")),
        ("lines that end with CR LF", edit(file, lambda x: [y[:-1] + "\r\n" for y in x]), bad),
        ("half a line at the end", edit(file, lambda x: [*x, x[1][:20]]), ("harmless", "")),
        ("another run's file", lambda run: shutil.copy(other, run / file), bad),
        ("another run's line", edit(file, lambda x: [*x[:2], lines_of(other)[2], *x[3:]]), sum_of),
        ("no sums, nothing changed", edit(file, lambda x: without_sums(x, file)),
         ("harmless", "without sums: the lines are unchecked")),
    ]


def shorter(file):
    """Returns damages that remove lines at the end; only the ledger can detect them."""
    return [("cut in the last line", edit(file, lambda x: [*x[:-1], x[-1][:9]])),
            ("the last line removed", edit(file, lambda x: x[:-1])),
            ("the last two lines removed", edit(file, lambda x: x[:-2])),
            ("nothing but the head", edit(file, lambda x: x[:1])),
            ("an empty file", edit(file, lambda x: [])),
            ("no file", lambda run: (run / file).unlink())]


def flip_file(file, bit):
    def damage(run):
        data = bytearray((run / file).read_bytes())
        data[bit // 8] ^= 1 << bit % 8
        (run / file).write_bytes(data)
    return damage


# ---- the ledger ----------------------------------------------------------------------------------

def tamper(*statements):
    """Returns a damage by SQL without the triggers, which are restored."""
    def damage(run):
        db = sqlite3.connect(run / "ledger.db", isolation_level=None)
        triggers = db.execute("SELECT name, sql FROM sqlite_master "
                              "WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            db.execute(f"DROP TRIGGER {name}")
        for text in statements:
            words = (text,) if isinstance(text, str) else text
            assert db.execute(*words).rowcount > 0, text
        for _, text in triggers:
            db.execute(text)
        db.close()
    return damage


def reply_of(run):
    """Returns the columns of the reply in step 2, as bytes."""
    with sqlite3.connect(run / "ledger.db") as db:
        row = db.execute("SELECT plugin, call, request, data, sum FROM reply WHERE step = 2")
        plugin, call, request, data, total = row.fetchone()
    return {"plugin": plugin.encode(), "call": call.to_bytes(8, "little"), "request": request,
            "data": data, "sum": total.to_bytes(8, "little", signed=True)}


def flip_reply(bit):
    def damage(run):
        place, name = bit, ""
        for name, value in reply_of(run).items():
            if place < 8 * len(value):
                break
            place -= 8 * len(value)
        new = bytearray(value)
        new[place // 8] ^= 1 << place % 8
        if name == "plugin":
            new = new.decode("latin-1")
        elif name in ("call", "sum"):
            new = int.from_bytes(new, "little", signed=True)
        tamper((f"UPDATE reply SET {name} = ? WHERE step = 2", (new,)))(run)
    return damage


def ledger_edits():
    sums = ("found", "do not give its sum")
    return [
        ("reply: other rewards", tamper("UPDATE reply SET data = CAST(replace(CAST(data AS TEXT), "
                                        "'0.', '1.') AS BLOB) WHERE step = 2"), sums),
        ("reply: another request", tamper("UPDATE reply SET request = zeroblob(16) WHERE step = 2"),
         sums),
        ("reply: another plug-in", tamper("UPDATE reply SET plugin = 'x' WHERE step = 2"), sums),
        ("reply: another call", tamper("UPDATE reply SET call = 7 WHERE step = 2"), sums),
        ("reply: another sum", tamper("UPDATE reply SET sum = sum + 1 WHERE step = 2"), sums),
        ("reply: another step's answer",
         tamper("UPDATE reply SET data = (SELECT data FROM reply WHERE step = 1) WHERE step = 2"),
         sums),
        ("reply: another step's row",
         tamper("DELETE FROM reply WHERE step = 2", "UPDATE reply SET step = 2 WHERE step = 1"),
         sums),
        ("reply: removed", tamper("DELETE FROM reply WHERE step = 2"), None),
        ("step: another root", tamper("UPDATE step SET root = zeroblob(16) WHERE step = 2"), sums),
        ("step: another content", tamper("UPDATE step SET content = zeroblob(16) WHERE step = 2"),
         sums),
        ("step: another chain", tamper("UPDATE step SET chain = zeroblob(16) WHERE step = 2"),
         sums),
    ]


# ---- all cases -----------------------------------------------------------------------------------

def check_journal(name, file, chains, other, rng):
    base = FOLDER / name
    # Both journals have one format and one reader.
    some = ("head: another run", "a number changed", "a line removed", "half a line at the end",
            "another run's file", "no sums, nothing changed", "the last line removed", "no file")
    for what, damage, must in journal_edits(file, other):
        if FULL or name == "clock" or what in some:
            try_damage("edits", f"{file}, {what}", name, damage, chains[name], must)
    for what, damage in shorter(file):
        if FULL or name == "clock" or what in some:
            try_damage("edits", f"{file}, {what}", name, damage, chains[name])
    bits = 8 * (base / file).stat().st_size
    for bit in sorted(rng.sample(range(bits), min(FLIPS, bits))):
        try_damage(f"flips of {file}", f"{file}, bit {bit}", name, flip_file(file, bit),
                   chains[name], ("found", file))


def check_bent():
    """If a step differs for any reason, the first point is named, and the ledger keeps its rows."""
    ways = [[], ["--ranks", "2"], ["--debug-determinism", "full"]]
    for words in ways if FULL else [ways[1] + ways[2]]:
        shutil.rmtree(FOLDER / "case", ignore_errors=True)
        shutil.copytree(FOLDER / "plain", FOLDER / "case")
        os.environ["INVAR_TEST_WRONG_LOGPROB"] = "9"
        code, said, _ = train(BENT, FOLDER, "plain", "--on-mismatch", "record", "--ckpt-step", "1",
                              *words, run="case")
        del os.environ["INVAR_TEST_WRONG_LOGPROB"]
        expect(code == 1 and "step 2 was executed again and differs from segment 0 of the ledger: "
               "the first point that differs is rollout.logp" in said,
               f"bent {words}: exit code {code}: {said}")
        with sqlite3.connect(FOLDER / "case/ledger.db") as db:
            expect(db.execute("SELECT count(*) FROM step").fetchone() == (4,), "bent: a step more")
        done = subprocess.run([INVAR, "ledger", "verify", "case/ledger.db"], cwd=FOLDER,
                              capture_output=True, text=True)
        expect(done.returncode == 0, f"bent: {done.stdout}{done.stderr}")


def main():
    rng = random.Random(38)
    others = {}
    for name in ("other", "mine"):  # two sets of runs of the same recipes; one of them is damaged
        chains = make(INVAR, FOLDER, ("agents", "clock") if name == "other" else tuple(AGAIN))
        if name == "other":
            keep = FOLDER.parent / (FOLDER.name + "-other")
            shutil.rmtree(keep, ignore_errors=True)
            shutil.move(FOLDER, keep)
            others = {"clock": keep / "clock/schedule.jsonl",
                      "agents": keep / "agents/sessions.jsonl"}
    with sqlite3.connect(FOLDER / "judge/ledger.db") as db:
        row = db.execute("SELECT lower(hex(chain)) FROM step WHERE step = 2")
        chains["judge"] = row.fetchone()[0]
    for name in AGAIN:
        try_damage("undamaged", name, name, lambda run: None, chains[name], ("harmless", ""))
    check_journal("clock", "schedule.jsonl", chains, others["clock"], rng)
    check_journal("agents", "sessions.jsonl", chains, others["agents"], rng)
    for what, damage, must in ledger_edits():
        try_damage("edits", what, "judge", damage, chains["judge"], must)
    bits = 8 * sum(map(len, reply_of(FOLDER / "judge").values()))
    for bit in sorted(rng.sample(range(bits), FLIPS)):
        try_damage("flips of replies", f"reply, bit {bit}", "judge", flip_reply(bit),
                   chains["judge"], ("found", "sum"))
    flight = "checkpoints/iter_0000001/flight.jsonl"
    try_damage("edits", "flight.jsonl, a bit", "clock", flip_file(flight, 4000), chains["clock"],
               ("found", ""))
    check_bent()
    for group, found in counts.items():
        print(f"{group}: " + ", ".join(f"{n} {what}" for what, n in found.items()))
    return 1 if failures else 0


sys.exit(main())
