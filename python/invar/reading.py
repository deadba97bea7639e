# reading.py - reading ledgers: tables, diff, verification, seals, the report.
# SPDX-License-Identifier: Apache-2.0
"""Readers of ledgers, of runs that any program has written."""
from __future__ import annotations

import contextlib
import json
import math
import struct
from ctypes import byref, c_int64, c_void_p, create_string_buffer
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Iterable, Optional, Type

from invar import _library as lib
from invar.ledger import Opened, Path

Rows = list[dict[str, Any]]


def _double(bits: int) -> float:
    """Returns the number with these bits: NaN and -0 keep theirs, unlike in SQLite's REAL."""
    value: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return value


def frame(rows: Rows, columns: Iterable[str]) -> Any:
    """Returns a pandas.DataFrame, or the rows themselves if pandas is not installed."""
    try:
        import pandas  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        return rows
    return pandas.DataFrame(rows, columns=list(columns))


# Columns of a sample before those of its reward parts, and after them.
_ABOUT = ("step", "group", "sample", "line", "prompt", "response", "label", "label_bytes",
          "reward", "advantage", "finish")
_OF_TOKENS = ("prompt_tokens", "tokens", "pieces", "logp", "advantages", "drawn")


def _numbers(values: list[Optional[float]]) -> list[float]:
    """Restores numbers that are not finite, which were written as null."""
    return [math.nan if value is None else float(value) for value in values]


def _sample(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row of `samples` for a kept sample that the library has checked."""
    kept = json.loads(row["json"])
    of_tokens = (kept["prompt_tokens"], kept["tokens"], kept["response"], _numbers(kept["logp"]),
                 _numbers(kept["advantage"]), kept["drawn"])
    reward, advantage = (None if row[bits] is None else _double(row[bits])
                         for bits in ("reward_bits", "advantage_bits"))
    about = (row["step"], kept.get("group"), row["sample"], row["line"], kept["prompt"],
             "".join(kept["response"]), kept.get("label"), kept.get("label_bytes"), reward,
             advantage, row["finish"])
    return dict(zip((*_ABOUT, *_OF_TOKENS), about + of_tokens))


@dataclass(frozen=True)
class Verdict:
    """The result of `verify`, which computes every hash again."""
    runs: int
    entries: int
    rows: int
    steps: int
    bad: int
    first: str

    @property
    def clean(self) -> bool:
        """True if no problem was found."""
        return self.bad == 0

    def __bool__(self) -> bool:
        return self.clean


class Run(Opened):
    """One run of a ledger, for reading; `invar.read(path)` opens it.

    path    a folder with ledger.db, or a file NAME.db
    which   name, number or uuid of the run; None for the only one
    """

    def __init__(self, path: Path, which: Optional[str] = None) -> None:
        super().__init__(path)
        handle = c_void_p()
        lib.call("ledger_open", byref(handle), lib.encode(str(self.file), "a path"), lib.READ,
                 None)
        self._handle = handle
        number = c_int64()
        try:
            lib.call("ledger_find", byref(number), handle, lib.optional(which, "a run"))
        except lib.Error:
            self.close()
            raise
        self.number = number.value

    # ---- tables --------------------------------------------------------------------------------

    def _table(self, statement: str, limit_ms: int = 0) -> tuple[list[str], Rows]:
        names, rows = self._select(statement, limit_ms)
        for name in names:
            if names.count(name) > 1:
                raise lib.Error("INVALID", f"two columns have the name {name!r}: call one of them "
                                "by another, with AS")
        return names, [dict(zip(names, row)) for row in rows]

    def sql(self, statement: str, *, limit_ms: int = 10000) -> Any:
        """Returns the result of one read-only statement: a DataFrame, or a list of dicts.

        limit_ms   ends a statement that takes longer; 0 for no limit. Ctrl-C waits for its end.
        """
        names, rows = self._table(statement, limit_ms)
        return frame(rows, names)

    def _rows(self, statement: str) -> Rows:
        return self._table(statement)[1]

    def steps(self) -> Any:
        """One row per step: its number, chain, root, batch, and every metric by its name."""
        rows = self._rows("SELECT step, chain, root, batch FROM timeline "
                          f"WHERE run = {self.number} ORDER BY step")
        columns = ["step", "chain", "root", "batch"]
        by_step = {row["step"]: row for row in rows}
        names: dict[str, None] = {}
        for metric in self._rows("SELECT step, name, bits FROM metrics "
                                 f"WHERE run = {self.number} ORDER BY step, name"):
            if metric["step"] in by_step:  # otherwise a writer has added the step since
                by_step[metric["step"]][metric["name"]] = _double(metric["bits"])
                names[metric["name"]] = None
        return frame(rows, [*columns, *sorted(names)])

    def _check_step(self, step: int) -> None:
        """Checks that the run has this step. Raises Error (NOTFOUND) otherwise."""
        known = self._rows("SELECT min(step) AS first, max(step) AS last, coalesce(sum(step = "
                           f"{step}), 0) AS found FROM step WHERE run = {self.number}")[0]
        if known["found"] == 0:
            steps = "it has none" if known["first"] is None else (
                f"its steps are {known['first']} to {known['last']}")
            raise lib.Error("NOTFOUND", f"{self.file}: the run has no step {step}; {steps}")

    def digests(self, step: int) -> Any:
        """One row per tensor that the step recorded: name, kind, layer, type, shape, hash."""
        number = lib.integer(step, "a step", 0, (1 << 63) - 1)
        columns = ["name", "kind", "phase", "layer", "dtype", "shape", "hash"]
        rows = self._rows(
            "SELECT d.name, d.kind, d.phase, d.layer, p.dtype, p.shape, d.hash FROM digests d "
            "JOIN timeline t USING(run, step, seg) JOIN point p USING(manifest, ord) "
            f"WHERE d.run = {self.number} AND d.step = {number} AND d.rank = 0 ORDER BY d.ord")
        if not rows:
            self._check_step(number)
        for row in rows:
            row["shape"] = tuple(json.loads(row["shape"]))
        return frame(rows, columns)

    def evaluations(self) -> Any:
        """One row per result on a data set: step, data set, name, value."""
        rows = self._rows(
            "SELECT e.step, e.dataset, n.name, e.value_bits AS value FROM evaluation e "
            f"JOIN series n USING(series) WHERE e.run = {self.number} AND e.seg = "
            "(SELECT max(x.seg) FROM evaluation x WHERE x.run = e.run AND x.step = e.step "
            "AND x.dataset = e.dataset AND x.series = e.series) ORDER BY e.step, e.dataset, n.name")
        for row in rows:
            row["value"] = _double(row["value"])
        return frame(rows, ["step", "dataset", "name", "value"])

    def events(self) -> Any:
        """One row per event: step, level, kind, message, data."""
        columns = ["step", "level", "kind", "message", "data"]
        return frame(self._rows("SELECT step, level, kind, message, data FROM event "
                                f"WHERE run = {self.number} ORDER BY entry, i"), columns)

    def samples(self, step: Optional[int] = None, *, skip_damaged: bool = False) -> Any:
        """One row per sample that was kept with its text (keep-samples), by step and sample.

        step           the samples of this step only; None for all steps
        skip_damaged   skip damaged samples. Otherwise the first one raises Error (CORRUPT).

        The columns are step, group, sample (its number in the step), line (of the data set),
        prompt, response, label, label_bytes (of the whole label if it was cut, else None), reward,
        a column reward/NAME for each part, advantage, finish, and lists: prompt_tokens; and of each
        token of the response tokens, pieces (its text), logp, advantages, drawn (0: inserted by a
        plug-in). group and label are None if the ledger is of version 0.1.0. If nothing was kept,
        that is an Error (NOTFOUND).
        """
        at = "" if step is None else f" AND step = {lib.integer(step, 'a step', 0, (1 << 63) - 1)}"
        kept = self._rows(
            "SELECT k.step, k.idx AS sample, s.prompt AS line, s.finish, s.reward_bits, "
            "s.advantage_bits, sample_text(k.data, 'json') AS json, "
            "sample_text(k.data, 'damage') AS damage FROM kept_samples k "
            "LEFT JOIN sample s USING(run, step, seg, idx) "
            f"WHERE run = {self.number}{at} ORDER BY step, sample")
        if not kept and step is not None:
            self._check_step(step)
        if not kept:
            raise lib.Error("NOTFOUND", f"{self.file}: {self._why_no_samples(step)}")
        rows = {(one["step"], one["sample"]): _sample(one) for one in kept if not one["damage"]}
        damaged = [one for one in kept if one["damage"]]
        if damaged and not skip_damaged:
            raise lib.Error("CORRUPT", f"{self.file}: what is kept of sample {damaged[0]['sample']}"
                            f" of step {damaged[0]['step']} {damaged[0]['damage']}; "
                            "skip_damaged=True leaves it out, `invar ledger verify` says more")
        parts: dict[str, None] = {}
        for part in self._rows("SELECT step, idx, 'reward/' || name AS name, bits FROM reward_parts"
                               " JOIN kept_samples USING(run, step, seg, idx)"
                               f" WHERE run = {self.number}{at} ORDER BY step, idx, name"):
            if (part["step"], part["idx"]) in rows:
                rows[part["step"], part["idx"]][part["name"]] = _double(part["bits"])
                parts[part["name"]] = None
        return frame(list(rows.values()), [*_ABOUT, *sorted(parts), *_OF_TOKENS])

    def _why_no_samples(self, step: Optional[int]) -> str:
        if step is not None:
            return (f"no sample of step {step} is kept with its text; samples() has those of other "
                    "steps")
        if self._rows(f"SELECT 1 FROM sample WHERE run = {self.number} LIMIT 1"):
            return ("the run has kept no samples with their text: it ran with keep-samples = 0, or "
                    "each sample was too long")
        return ("there are no samples in it: they were left out of this copy (ledger backup "
                "--keep-last), or another trainer wrote it")

    # ---- what the run is -----------------------------------------------------------------------

    def _one(self, column: str) -> Any:
        return self._rows(f"SELECT {column} AS x FROM run WHERE run = {self.number}")[0]["x"]

    @property
    def name(self) -> str:
        """The name of the run."""
        return str(self._one("name"))

    @property
    def uuid(self) -> str:
        """32 digits that no other run has."""
        return str(self._one("uuid"))

    @property
    def config(self) -> dict[str, str]:
        """The identity of the run: the configuration that it was asked to compute."""
        return {row["key"]: row["value"] for row in self._rows(
            f"SELECT key, value FROM identity WHERE run = {self.number} ORDER BY key")}

    @property
    def facts(self) -> dict[str, str]:
        """SCOPE.KEY and value of the facts of the last segment."""
        return {f"{row['scope']}.{row['key']}": row["value"] for row in self._rows(
            f"SELECT scope, key, value FROM fact WHERE run = {self.number} AND seg = "
            f"(SELECT max(seg) FROM segment WHERE run = {self.number}) ORDER BY scope, key")}

    @property
    def chain(self) -> Optional[str]:
        """The hash of all steps; None if there is none."""
        rows = self._rows(f"SELECT chain FROM timeline WHERE run = {self.number} "
                          "ORDER BY step DESC LIMIT 1")
        return rows[0]["chain"] if rows else None

    @property
    def content(self) -> str:
        """The hash of the run's bits: steps, metrics, evaluations."""
        out = create_string_buffer(lib.DIGEST_BYTES)
        with self._open() as handle:
            lib.call("ledger_content", out, handle, self.number)
        return out.raw.hex()

    # ---- integrity, diff, report ---------------------------------------------------------------

    def verify(self, seal: Optional[str] = None) -> Verdict:
        """Computes every hash again. With a seal: raises Error (MISMATCH) if it is broken."""
        found = lib.Verified()
        with self._open() as handle:
            lib.call("ledger_verify", byref(found), handle)
            if seal is not None:
                lib.call("ledger_seal_check", handle, lib.encode(seal, "a seal"))
        return Verdict(found.runs, found.entries, found.rows, found.steps, found.bad,
                       found.first.decode("utf-8", "replace"))

    def seal(self) -> str:
        """Returns the line that pins the run as it is now; keep it elsewhere to verify with it."""
        text = c_void_p()
        with self._open() as handle:
            lib.call("ledger_seal", byref(text), handle, self.number)
        return lib.take_text(text)

    def diff(self, other: "Run") -> "Diff":
        """Returns the divergence of the other run from this one."""
        if not isinstance(other, Run):
            raise lib.Error("INVALID", f"a run is compared with a Run, not {other!r:.200}")
        text = c_void_p()
        # always the same order, or two threads would wait for each other
        with contextlib.ExitStack() as stack:
            handles = {run: stack.enter_context(run._open())
                       for run in sorted({self, other}, key=id)}
            lib.call("ledger_diff", byref(text), handles[self], self.number, handles[other],
                     other.number)
        return Diff(json.loads(lib.take_text(text)))

    def report(self, path: Path) -> None:
        """Writes the run as one HTML page."""
        with self._open() as handle:
            lib.call("ledger_report", handle, self.number, lib.encode(str(path), "a path"))

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()


@dataclass(frozen=True)
class Compared:
    """Steps compared bit by bit; `data` is the output of the program with --json."""
    data: dict[str, Any]

    @property
    def verdict(self) -> str:
        """identical, different, nondeterministic (of two runs), or nothing (no step compared)."""
        return str(self.data["verdict"])

    @property
    def identical(self) -> bool:
        """True if every bit of every compared step is equal."""
        return self.verdict == "identical"


@dataclass(frozen=True)
class Diff(Compared):
    """Two runs compared; `data` is the output of `invar diff --json`."""

    @property
    def step(self) -> Optional[int]:
        """The first step that differs."""
        step = self.data["step"]
        return None if step < 0 and not self.data["evaluations"] else int(step)

    @property
    def tensor(self) -> Optional[str]:
        """The first tensor that differs in that step."""
        culprit = self.data["culprit"]
        return str(culprit["name"]) if culprit else None

    @property
    def tensors(self) -> list[str]:
        """All tensors that differ in that step, in order."""
        return [str(point["name"]) for point in self.data["points"]]

    @property
    def metrics(self) -> list[str]:
        """The metrics that differ in that step."""
        return [str(metric["name"]) for metric in self.data["metrics"]]

    def __str__(self) -> str:
        return str(self.data["headline"])


def read(run: Path, which: Optional[str] = None) -> Run:
    """Opens a run for reading: a folder, or a file NAME.db."""
    return Run(run, which)


def diff(a: Path, b: Path) -> Diff:
    """Returns where two runs diverge: step, tensor, metrics, and the provenance that differs."""
    with read(a) as first, read(b) as second:
        return first.diff(second)


def verify(run: Path, seal: Optional[str] = None) -> Verdict:
    """Computes every hash of a run again."""
    with read(run) as opened:
        return opened.verify(seal)
