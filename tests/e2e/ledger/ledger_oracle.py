#!/usr/bin/env python3
# ledger_oracle.py INVAR LEDGER_MAKE FOLDER - the ledger's hashes against a second implementation.
#
# Ledgers of all kinds are verified and sealed by Invar and by tests/oracle/ledger_hashes.py, which
# must agree in every character. Then every column of every table (by default every third) is
# changed in one row by raw SQL: both must detect it, so that no column is outside the hashes.
# SPDX-License-Identifier: Apache-2.0
import json
import os
import pathlib
import shutil
import sqlite3
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "oracle"))
import ledger_hashes  # noqa: E402

INVAR, LEDGER_MAKE, FOLDER = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
FULL = bool(os.environ.get("INVAR_TEST_FULL"))
EVERY, STEPS, CRASH, RESUME = (1, 12, 8, 4) if FULL else (3, 6, 4, 2)
FAULTS = ("fault=dirty:0", "fault=nan:8:layer.1.mlp.out", "fault=logp_mismatch:1:2:-0.0")
failures = []


def expect(holds, what):
    if not holds:
        failures.append(what)
        print(what, file=sys.stderr)


def call(*command, code=0):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != code:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}:\n{done.stderr}")
    return done.stdout


def invar(*words, code=0):
    return call(INVAR, "ledger", *words, code=code)


def make(name, *options):
    path = FOLDER / f"{name}.db"
    call(LEDGER_MAKE, path, f"name={name}", *options)
    return path


def shell(path, script):
    """Runs raw SQL without the triggers, and restores them."""
    with sqlite3.connect(path) as db:
        triggers = db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' "
                              "ORDER BY rowid").fetchall()
        db.execute("PRAGMA synchronous = OFF")
        db.executescript("".join(f"DROP TRIGGER {name};" for name, _ in triggers) + script
                         + ";".join(sql for _, sql in triggers))
    db.close()


# ---- both implementations agree ------------------------------------------------------------------


def compare(path):
    """Compares both implementations on a ledger. Returns content, integrity and seal of each
    run."""
    ours = json.loads(invar("verify", path, "--json"))
    theirs = ledger_hashes.Audit(path)
    expect(ours["clean"] and not theirs.findings, f"{path}: {ours['first']}, {theirs.findings}")
    for count, value in theirs.counts.items():
        expect(ours[count] == value, f"{path}: {count}: {ours[count]}, oracle: {value}")
    runs = [dict(zip(("uuid", "name", "content", "integrity"), (run.uuid, run.name, *run.hashes())))
            for run in theirs.runs]
    expect(ours["runs"] == runs, f"{path}: {ours['runs']}\noracle: {runs}")
    for run in theirs.runs:
        sealed = invar("seal", f"{path}:{run.uuid}", code=2 if run.pruned else 0).strip()
        expect(sealed == run.seal(), f"{path}: {sealed}\noracle: {run.seal()}")
    return [(*run.hashes(), run.seal()) for run in theirs.runs]


def bits(path, column, table):
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    found = [row[0] for row in db.execute(f"SELECT {column}_bits FROM {table}")]
    db.close()
    return found


RENUMBER = """
UPDATE series SET series = 1000 - series;
UPDATE metric SET series = 1000 - series;
UPDATE gauge SET series = 1000 - series;
UPDATE reward_part SET series = 1000 - series;
UPDATE evaluation SET series = 1000 - series;
UPDATE manifest SET manifest = manifest + 7;
UPDATE point SET manifest = manifest + 7;
UPDATE digest SET manifest = manifest + 7;
"""


def interrupted_and_finer():
    """Runs with the same steps have one content, but other integrity and seals if their histories
    differ."""
    found = [compare(make("plain", f"steps={STEPS}")),
             compare(make("crashed", f"steps={STEPS}", f"crash={CRASH}", f"resume={RESUME}")),
             compare(make("finer", f"steps={STEPS}", "finer=1"))]
    for which, count in enumerate((1, 3, 3)):
        expect(len({runs[0][which] for runs in found}) == count, f"hashes of the same run: {found}")


def sealed_on_the_way():
    """Seals of earlier entries hold, before and after steps that were executed again."""
    path = FOLDER / "crashed.db"
    run = ledger_hashes.Audit(path).runs[0]
    for n in range(1, len(run.entries) + 1, EVERY):
        invar("verify", path, "--seal", run.seal(n))
    last = run.seal(n)
    invar("verify", path, "--seal", last[:-1] + ("0" if last[-1] != "0" else "1"), code=1)


def with_everything():
    """Returns a ledger with rows in every table, also with a seal and an imported shortened run."""
    path = make("every", "steps=10", "crash=3", "resume=2", "finer=1", *FAULTS)
    expect(-2**63 in bits(path, "diff", "sample"), "no -0 in a sample")
    expect(0x7FF8 << 48 in bits(path, "value", "metric"), "no NaN in a metric")
    compare(path)
    invar("seal", path, "--store")
    fork = make("fork", "steps=3", "seed=7", "killed=1", "fork=4",
                "parent=00112233445566778899aabbccddeeff")
    short = FOLDER / "short.db"
    invar("backup", fork, "--out", short, "--keep-last", "1")
    expect([run[:2] for run in compare(fork)] == [run[:2] for run in compare(short)],
           "other hashes without old detail")
    before = compare(path) + compare(short)
    invar("import", short, "--into", path)
    expect(compare(path) == before, "other hashes after an import")
    return path


def numbered_otherwise():
    """Runs keep their hashes under other numbers, and in a file with other runs."""
    two, merged = make("two", "steps=3", "seed=5"), FOLDER / "merged.db"
    call(LEDGER_MAKE, two, "add=1", "name=more", "steps=2", "seed=6", "finer=1")
    before = compare(two)
    shell(two, RENUMBER)
    expect(compare(two) == before, "other hashes under other numbers")
    invar("import", FOLDER / "finer.db", two, "--into", merged)
    expect(compare(merged)[1:] == before, "other hashes in a merged ledger")


# ---- every column is hashed ----------------------------------------------------------------------


def columns(path):
    """Yields (table, column, declared type, key columns) of all tables."""
    with sqlite3.connect(path) as db:
        for (table,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'"):
            info = db.execute(f"PRAGMA table_info({table})").fetchall()
            key = [row[1] for row in info if row[5]] or ["rowid"]
            for _, column, declared, *_ in info:
                yield table, column, declared, key
    db.close()


def changed_value(value, declared):
    """Returns a changed value: one flipped bit of an integer, and a value that no key has."""
    if value is None:
        return {"INTEGER": 1, "REAL": 1.0, "TEXT": "x"}[declared]
    if isinstance(value, int):
        return value ^ 1 << 30
    if isinstance(value, float):
        return value + 1
    if isinstance(value, bytes):
        return bytes([value[0] ^ 1]) + value[1:]
    return {"intent": "complete", "complete": "intent"}.get(value, value + "x")


def change_cell(path, table, column, declared, key):
    """Changes one cell, in the middle of the table."""
    with sqlite3.connect(path) as db:
        names, marks = ", ".join(key), ", ".join("?" * len(key))
        (count,) = db.execute(f"SELECT count(*) FROM {table}").fetchone()
        old, *which = db.execute(f"SELECT {column}, {names} FROM {table} ORDER BY {names} "
                                 f"LIMIT 1 OFFSET {count // 2}").fetchone()
        (trigger,) = db.execute("SELECT sql FROM sqlite_schema WHERE name = ?",
                                [f"{table}_change"]).fetchone()
        db.execute("PRAGMA synchronous = OFF")
        db.execute(f"DROP TRIGGER {table}_change")
        db.execute(f"UPDATE {table} SET {column} = ? WHERE ({names}) = ({marks})",
                   [changed_value(old, declared), *which])
        db.execute(trigger)
    db.close()


def finding_row(finding):
    """Returns the row that a finding names."""
    return finding.split(": its ")[0].split(": it ")[0]


def changed_cells(path):
    damaged = FOLDER / "damaged.db"
    chosen = list(columns(path))[::EVERY]
    for table, column, *rest in chosen:
        shutil.copy(path, damaged)
        change_cell(damaged, table, column, *rest)
        done = subprocess.run([INVAR, "ledger", "verify", damaged, "--json"], capture_output=True,
                              text=True)
        ours, theirs = json.loads(done.stdout), ledger_hashes.Audit(damaged)
        where = f"{table}.{column} changed"
        expect(done.returncode == 2 and not ours["clean"], f"{where}: Invar did not notice")
        expect(theirs.findings, f"{where}: the oracle did not notice")
        expect(finding_row(ours["first"] or "") in map(finding_row, theirs.findings),
               f"{where}: Invar: {ours['first']}\noracle: {theirs.findings}")
    return len(chosen)


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    interrupted_and_finer()
    sealed_on_the_way()
    every = with_everything()
    numbered_otherwise()
    count = changed_cells(every)
    expect(count > 150 // EVERY, f"only {count} columns")
    print(f"{count} columns changed, {len(failures)} failures")
    sys.exit(bool(failures))


main()
