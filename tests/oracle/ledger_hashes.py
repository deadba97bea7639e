#!/usr/bin/env python3
# ledger_hashes.py LEDGER - computes every hash of a ledger with an independent implementation.
#
# Follows docs/ledger.md, sections Hashes and Invariants; columns and keys come from the schema in
# the file itself. Shares no code with Invar: SQLite by way of Python, SHA-256 of hashlib, XXH3-128
# of the program xxhsum. Prints identity, content, integrity and seal of each run; problems go to
# standard error, with exit code 1. tests/e2e/ledger/ledger_oracle.py imports it as a module.
# SPDX-License-Identifier: Apache-2.0
"""A second implementation of the ledger's hashes."""
import hashlib
import pathlib
import sqlite3
import struct
import subprocess
import sys
import tempfile
from collections import defaultdict

ZERO = bytes(16)
NOT_CONTENT = {"seg", "entry", "content", "arrival"}
CONTENT_TABLES = ("step", "metric", "sample", "reply", "reward_part")
ENTRY_COLUMNS = ("n", "kind", "ns", "rows", "total")
AT_ONCE = 4096  # files per call of xxhsum


class Text(bytes):
    """The bytes of a TEXT, distinct from a BLOB; in a damaged file they need not be UTF-8."""

    def __str__(self):
        return self.decode("utf-8", "replace")


# ---- bytes and hashes ----------------------------------------------------------------------------


def canonical(value):
    if value is None:
        return b"\0"
    if isinstance(value, int):
        return b"\1" + struct.pack("<q", value)
    return (b"\2" if isinstance(value, Text) else b"\3") + struct.pack("<Q", len(value)) + value


def canonical_all(values):
    return b"".join(map(canonical, values))


_hashes = {}  # bytes -> XXH3-128, cached while the program runs


def _hash_files(inputs):
    with tempfile.TemporaryDirectory() as folder:
        names = [str(i) for i in range(len(inputs))]
        for name, data in zip(names, inputs):
            (pathlib.Path(folder) / name).write_bytes(data)
        answer = subprocess.run(["xxhsum", "-H2", *names], cwd=folder, check=True,
                                capture_output=True, text=True).stdout
    lines = [line.split() for line in answer.splitlines()]
    assert [line[1] for line in lines] == names, answer
    return [bytes.fromhex(line[0]) for line in lines]


def xxh3(inputs):
    """Returns the XXH3-128 of each input, in canonical form."""
    new = list(dict.fromkeys(data for data in inputs if data not in _hashes))
    for at in range(0, len(new), AT_ONCE):
        some = new[at:at + AT_ONCE]
        _hashes.update(zip(some, _hash_files(some)))
    return [_hashes[data] for data in inputs]


def first_half(digest):
    """Returns the first 8 bytes, as SQLite's INTEGER."""
    return int.from_bytes(digest[:8], "big", signed=True)


def modulo(number):
    """Returns a sum modulo 2^64, as SQLite's INTEGER."""
    return (number + 2**63) % 2**64 - 2**63


# ---- the file ------------------------------------------------------------------------------------


class Table:
    """A table whose rows are hashed: its hashed columns, and those of them that are its key."""

    def __init__(self, db, name):
        info = db.execute(f"PRAGMA table_info({name})").fetchall()
        stored = [row[1] for row in info]
        self.name = name
        self.summed = "sum" in stored
        self.twins = [column for column in stored if f"{column}_bits" in stored]
        self.columns = [c for c in stored if c not in ("run", "sum", *self.twins)]
        self.content = [c for c in self.columns if c not in NOT_CONTENT]
        primary = sorted((row[5], row[1]) for row in info if row[5])
        self.key = [column for _, column in primary if column in self.columns]
        if not self.key:  # the rowid is not the key, but the unique columns are
            self.key = self._unique(db)

    def _unique(self, db):
        for index in db.execute(f"PRAGMA index_list({self.name})").fetchall():
            if index[2]:
                columns = db.execute(f"PRAGMA index_info({index[1]})").fetchall()
                return [row[2] for row in columns if row[2] in self.columns]
        return []

    def order(self, row):
        return [(row[column] is not None, row[column]) for column in self.key]

    def bytes(self, row):
        return canonical(Text(self.name.encode())) + canonical_all(row[c] for c in self.columns)

    def content_bytes(self, row):
        return canonical(Text(self.name.encode())) + canonical_all(row[c] for c in self.content)

    def describe(self, row):
        shown = (f"{c} {row[c] if isinstance(row[c], (int, Text)) else '?'}" for c in self.key)
        return f"{self.name} ({', '.join(shown)})"


class Ledger:
    """All rows of the file, with names instead of the numbers that only this file uses."""

    def __init__(self, path):
        wal = pathlib.Path(f"{path}-wal")
        # no WAL: the file can be opened without writing beside it
        alone = not wal.exists() or wal.stat().st_size == 0
        mode = "immutable=1" if alone else "mode=ro"
        db = sqlite3.connect(f"file:{path}?{mode}", uri=True, isolation_level=None)
        db.execute("BEGIN")
        names = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY rowid")
        tables = [Table(db, row[0]) for row in names.fetchall()]
        db.text_factory = Text
        self.tables = {table.name: table for table in tables if table.summed}
        stored = {table.name: self._read(db, table.name) for table in tables}
        db.close()
        self.entries, self.pruned = stored["entry"], stored["pruned"]
        self.manifests, self.points = stored["manifest"], stored["point"]
        self.hash_of = {row["manifest"]: row["hash"] for row in self.manifests}
        self.number_of = {row["hash"]: row["manifest"] for row in self.manifests}
        series = {row["series"]: row["name"] for row in stored["series"]}
        self.rows = {name: stored[name] for name in self.tables}
        for rows in self.rows.values():
            for row in rows:
                if "series" in row:
                    row["series"] = series.get(row["series"])
                if "manifest" in row:
                    row["manifest"] = self.hash_of.get(row["manifest"])

    @staticmethod
    def _read(db, name):
        cursor = db.execute(f"SELECT * FROM {name}")
        columns = [column[0] for column in cursor.description]
        return [dict(zip(columns, row)) for row in cursor]

    def points_of(self, manifest):
        """Returns the points of the manifest with this number, in order."""
        found = [row for row in self.points if row["manifest"] == manifest]
        return sorted(found, key=lambda row: row["ord"])

    def point_bytes(self, manifest):
        return b"".join(canonical_all(value for column, value in point.items()
                                      if column != "manifest")
                        for point in self.points_of(manifest))


class Run:
    """The rows of one run by table, in the order in which they are hashed."""

    def __init__(self, ledger, number):
        self.ledger = ledger
        self.number = number
        self.tables = ledger.tables
        self.rows = {}
        for name, table in ledger.tables.items():
            mine = [row for row in ledger.rows[name] if row["run"] == number]
            self.rows[name] = sorted(mine, key=table.order)
        mine = [row for row in ledger.entries if row["run"] == number]
        self.entries = sorted(mine, key=lambda row: row["n"])
        self.pruned = [row for row in ledger.pruned if row["run"] == number]
        self.run = self.rows["run"][0]
        self.uuid, self.name = str(self.run["uuid"]), str(self.run["name"])
        self.steps = {(row["step"], row["seg"]): row for row in self.rows["step"]}

    def entry_of(self, row):
        """Returns the entry that a row belongs to; None if its step is missing."""
        if "entry" in row:
            return row["entry"]
        step = self.steps.get((row["step"], row["seg"]))
        return step and step["entry"]

    def until(self, name, entries):
        """Returns the rows of a table that belong to the first `entries` entries."""
        for row in self.rows[name]:
            entry = self.entry_of(row)
            if entry is not None and entry < entries:
                yield row

    def content_bytes(self, entries):
        """Returns the bytes whose hash is the run's content after the first `entries` entries."""
        steps, evaluations = {}, {}
        for row in sorted(self.until("step", entries), key=lambda row: row["seg"]):
            steps[row["step"]] = row["content"]
        for row in sorted(self.until("evaluation", entries), key=lambda row: row["seg"]):
            evaluations[row["step"], row["dataset"], row["series"] or b""] = row["value_bits"]
        return b"".join(
            [canonical_all(pair) for pair in sorted(steps.items())] +
            [canonical_all((*key, bits)) for key, bits in sorted(evaluations.items())])

    def content(self, entries):
        return xxh3([self.content_bytes(entries)])[0]

    def integrity(self, entries):
        return self.entries[entries - 1]["chain"]

    def sha256(self, entries):
        sha = hashlib.sha256()
        for row in self.entries[:entries]:
            sha.update(canonical_all(row[c] for c in (*ENTRY_COLUMNS, "chain")))
        for name, table in self.tables.items():
            for row in self.until(name, entries):
                sha.update(table.bytes(row))
        named = {row["manifest"] for row in self.until("digest", entries)}
        for manifest in sorted(named & self.ledger.number_of.keys()):
            sha.update(self.ledger.point_bytes(self.ledger.number_of[manifest]))
        return sha.digest()

    def hashes(self, entries=None):
        """Returns content and integrity, in hexadecimal."""
        n = entries or len(self.entries)
        return self.content(n).hex(), self.integrity(n).hex()

    def seal(self, entries=None):
        """Returns the line that pins the run; empty if rows were left out of this copy."""
        if self.pruned:
            return ""
        n = entries or len(self.entries)
        return f"invar-seal 1 {self.uuid} {n} {' '.join(self.hashes(n))} {self.sha256(n).hex()}"


# ---- the audit -----------------------------------------------------------------------------------


class Audit:
    """The problems of a ledger. One call of xxhsum computes all collected hashes."""

    def __init__(self, path):
        self.ledger = Ledger(path)
        self.findings = []
        self.claims = []  # (bytes, expected hash, message if the hash differs)
        self.counts = dict.fromkeys(
            ("runs_checked", "entries", "rows", "steps", "pruned", "seals", "seals_pruned"), 0)
        numbers = sorted(row["run"] for row in self.ledger.rows["run"])
        self.runs = [Run(self.ledger, number) for number in numbers]
        self._check_manifests()
        for run in self.runs:
            self._check_run(run)
        self._check_orphans(set(numbers))
        for (_, holds, what), digest in zip(self.claims, xxh3([c[0] for c in self.claims])):
            if not holds(digest):
                self.findings.append(what)

    def _claim(self, data, stored, what):
        self.claims.append((data, lambda digest: digest == stored, what))

    def _expect(self, holds, what):
        if not holds:
            self.findings.append(what)

    def _check_manifests(self):
        for row in self.ledger.manifests:
            number = row["manifest"]
            what = f"manifest {number}: its points are not those that it was hashed from"
            self._claim(self.ledger.point_bytes(number), row["hash"], what)
            self._expect(len(self.ledger.points_of(number)) == row["points"], what)

    def _check_orphans(self, numbers):
        everything = {**self.ledger.rows, "entry": self.ledger.entries,
                      "pruned": self.ledger.pruned}
        for name, rows in everything.items():
            lost = sum(row["run"] not in numbers for row in rows)
            self._expect(not lost, f"{name}: {lost} rows belong to no run")
        lost = sum(row["manifest"] not in self.ledger.hash_of for row in self.ledger.points)
        self._expect(not lost, f"point: {lost} rows belong to no manifest")

    def _check_run(self, run):
        self.counts["runs_checked"] += 1
        self._check_rows(run)
        self._check_entries(run)
        self._check_identity(run)
        self._check_steps(run)
        self._check_references(run)
        self._check_seals(run)

    def _check_rows(self, run):
        """Checks invariant L2."""
        for name, table in run.tables.items():
            for row in run.rows[name]:
                what = f"run {run.number}: {table.describe(row)}: "
                self.claims.append((table.bytes(row),
                                    lambda digest, row=row: first_half(digest) == row["sum"],
                                    what + "its values do not give its sum"))
                self._expect(all(readable(row[f"{c}_bits"], row[c]) for c in table.twins),
                             what + "what is there to be read is not what the bits say")
                self._expect(run.entry_of(row) in range(len(run.entries)),
                             what + "it belongs to no entry")
                self.counts["rows"] += run.entry_of(row) in range(len(run.entries))

    def _check_entries(self, run):
        """Checks invariants L1 and L3."""
        rows, total = defaultdict(int), defaultdict(int)
        for name in run.tables:
            for row in run.rows[name]:
                rows[run.entry_of(row)] += 1
                total[run.entry_of(row)] += row["sum"]
        of_steps = {row["entry"] for row in run.rows["step"]}
        for row in run.pruned:
            self.counts["pruned"] += row["rows"]
            rows[row["entry"]] += row["rows"]
            total[row["entry"]] += row["total"]
            self._expect(row["entry"] in of_steps and row["rows"] > 0,
                         f"run {run.number}: pruned (entry {row['entry']}): no step's rows can be "
                         "missing there")
        before = ZERO
        for n, row in enumerate(run.entries):
            what = f"run {run.number}: entry (n {n}): "
            self.counts["entries"] += 1
            self._expect(row["n"] == n, f"run {run.number}: entry {n} is missing")
            self._claim(before + canonical_all(row[c] for c in ENTRY_COLUMNS), row["chain"],
                        what + "its chain does not follow")
            self._expect((rows[n], modulo(total[n])) == (row["rows"], row["total"]),
                         what + f"it wrote {row['rows']} rows, not the {rows[n]} that are here")
            before = row["chain"]

    def _check_identity(self, run):
        pairs = [(row["key"], row["value"]) for row in run.rows["identity"]]
        self._claim(b"".join(map(canonical_all, pairs)), run.run["identity"],
                    f"run {run.number}: run: its identity is not the hash of its keys")
        for row in run.rows["object"]:
            self._claim(bytes(row["data"]), row["hash"],
                        f"run {run.number}: object (hash ?): its data do not give its hash")

    def _check_steps(self, run):
        """Checks invariant L6, and the hashes of steps."""
        segments = {row["seg"]: row for row in run.rows["segment"]}
        pruned = {row["entry"] for row in run.pruned}
        parts = defaultdict(list)  # (step, seg) -> content bytes of its rows
        for name in CONTENT_TABLES:
            for row in run.rows.get(name, ()):  # a ledger of an older version lacks some tables
                parts[row["step"], row["seg"]].append(run.tables[name].content_bytes(row))
        for (step, seg), row in run.steps.items():
            what = f"run {run.number}: {run.tables['step'].describe(row)}: "
            self.counts["steps"] += 1
            before = run.steps.get((step - 1, seg), {}).get("chain")
            if seg in segments and segments[seg]["after_step"] == step - 1:
                before = segments[seg]["chain"]
            self._expect(before is not None, what + "the step before it is missing")
            self._claim((before or b"") + row["root"], row["chain"],
                        what + "its chain does not follow")
            if row["entry"] not in pruned:
                self._claim(b"".join(parts[step, seg]), row["content"],
                            what + "its metrics, samples and replies do not give its content")
        for row in run.rows["digest"]:
            if row["rank"] == 0 and (row["step"], row["seg"]) in run.steps:
                self._claim(self._rooted(row), run.steps[row["step"], row["seg"]]["root"],
                            f"run {run.number}: {run.tables['digest'].describe(row)}: "
                            "it does not give the step's root")

    def _rooted(self, digest):
        """Returns the digests that belong to the root, concatenated."""
        points = self.ledger.points_of(self.ledger.number_of.get(digest["manifest"]))
        if len(digest["data"]) != 16 * len(points):
            return b"damaged"
        return b"".join(digest["data"][16 * point["ord"]:16 * point["ord"] + 16]
                        for point in points if point["level"] == 0)

    def _check_references(self, run):
        """Checks invariant L7."""
        for row in run.rows["segment"]:
            made = any(row["chain"] == step["chain"] for (number, seg), step in run.steps.items()
                       if number == row["after_step"] and seg < row["seg"])
            self._expect(made or (row["after_step"] == -1 and row["chain"] == ZERO),
                         f"run {run.number}: segment (seg {row['seg']}): it builds on a step that "
                         "nobody made")
        for row in run.rows["checkpoint"]:
            made = any(row["chain"] == step["chain"] for (number, seg), step in run.steps.items()
                       if number == row["step"] and seg <= row["seg"])
            self._expect(made or row["step"] == -1,
                         f"run {run.number}: checkpoint (step {row['step']}): no step has the "
                         "chain that it has")

    def _check_seals(self, run):
        """Checks invariant L10."""
        for row in run.rows["seal"]:
            n = row["entry"]
            if run.pruned:
                self.counts["seals_pruned"] += 1
                continue
            holds = n in range(1, len(run.entries) + 1) and (
                row["content"], row["integrity"], row["sha256"]) == (
                run.content(n), run.integrity(n), run.sha256(n))
            self.counts["seals"] += holds
            self._expect(holds, f"run {run.number}: seal (entry {n}): the entries before it are "
                         "not those that it sealed")


def readable(bits, twin):
    """Returns whether the readable column agrees with the bits: NaN is NULL, and -0 reads as 0."""
    value = struct.unpack("<d", struct.pack("<q", bits))[0]
    return twin is None if value != value else twin == value


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: ledger_hashes.py LEDGER")
    result = Audit(sys.argv[1])
    for run in result.runs:
        content, integrity = run.hashes()
        print(f"identity {run.uuid} {run.run['identity'].hex()}")
        print(f"content {run.uuid} {content}")
        print(f"integrity {run.uuid} {integrity}")
        if not run.pruned:
            print(run.seal())
    if result.findings:
        sys.exit("\n".join(result.findings))


if __name__ == "__main__":
    main()
