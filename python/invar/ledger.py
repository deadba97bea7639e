# ledger.py - writing a ledger from any training loop.
# SPDX-License-Identifier: Apache-2.0
"""The writer of a ledger."""
from __future__ import annotations

import json
import os
import pathlib
import threading
import time
from ctypes import byref, c_int64, c_void_p, create_string_buffer
from types import TracebackType
from typing import Any, Callable, Iterator, Mapping, Optional, Type, Union

from invar import _library as lib
from invar import program
from invar.hashing import KINDS, Digests, hash_tensors

Path = Union[str, "os.PathLike[str]"]


def ledger_file(run: Path) -> pathlib.Path:
    """The ledger of a run: a file RUN.db, or ledger.db in a folder."""
    if not isinstance(run, (str, os.PathLike)) or not os.fspath(run):
        raise lib.Error("INVALID", f"the path of a run is a folder or a file NAME.db, not {run!r}")
    path = pathlib.Path(run)
    if path.suffix == ".db" and not path.is_dir():
        return path
    return path / "ledger.db"


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested keys as "optimizer.lr"; values as text, exact for numbers."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, str):
            yield f"{prefix}{key}", value
        else:
            yield f"{prefix}{key}", json.dumps(value, default=str, ensure_ascii=False)


def _number(name: str, value: Any) -> float:
    """A number of Python, numpy or torch."""
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise lib.Error("INVALID", f"{name} is a number, not {value!r}: {error}") from error


def _metric(name: str) -> str:
    """Names without a group belong to training, as the report and the queries expect."""
    return name if "/" in str(name) else f"train/{name}"


def _numbers(*sources: Mapping[str, Any], name_of: Callable[[str], str]) -> dict[str, float]:
    """Numbers by their whole names, each of which may be there once."""
    found: dict[str, float] = {}
    for source in sources:
        for key, value in source.items():
            name = name_of(key)
            if name in found:
                raise lib.Error("INVALID", f"{name} is given twice: {found[name]} and {value!r}")
            found[name] = _number(name, value)
    return found


class Opened:
    """A ledger that is open; it belongs to the process that opened it."""

    def __init__(self, run: Path) -> None:
        self._handle: Optional[c_void_p] = None
        self._process = os.getpid()
        self.file = ledger_file(run)

    def _open(self) -> c_void_p:
        if self._handle is None:
            raise lib.Error("STATE", f"{self.file}: the ledger is closed")
        if self._process != os.getpid():
            raise lib.Error("STATE", f"{self.file}: belongs to process {self._process}, which "
                            "opened it; a child after fork cannot use it")
        return self._handle

    def close(self) -> None:
        """Gives the file back. Without `finish` a run that is written counts as killed."""
        handle, self._handle = self._handle, None
        if handle is not None and self._process == os.getpid():  # a child leaves it alone
            lib.LIBRARY.invar_api_ledger_close(handle)

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()


class Ledger(Opened):
    """Records the steps of one run.

        with invar.Ledger("runs/a", config={"lr": 1e-3}) as ledger:
            ledger.step(loss=loss, digests=invar.hash_tensors(model))

    path     a folder, in which ledger.db is made, or a file NAME.db
    run      the name of the run; None: that of the folder
    config   what may change the bits: seed, data, hyper-parameters. Nested keys become "a.b". Runs
             with equal configs have one identity, and `invar diff` expects equal bits of them.
    kind     train, eval, ci, ab, bisect or replay
    facts    circumstances that do not change bits, shown by a diff
    resume   the `state()` that was saved with a checkpoint: goes on with the run behind that step

    When `step` has returned, the step survives the death of the process. Leaving the `with` block
    ends the run; an exception is recorded as an event of kind `failure`.
    """

    def __init__(self, path: Path, *, run: Optional[str] = None,
                 config: Optional[Mapping[str, Any]] = None, kind: str = "train",
                 facts: Optional[Mapping[str, Any]] = None,
                 resume: Optional[Mapping[str, Any]] = None) -> None:
        super().__init__(path)
        self.name = run or (self.file.parent.resolve().name if self.file.name == "ledger.db"
                            else self.file.stem)
        self._lock = threading.Lock()
        self._points: Optional[tuple[tuple[str, str, tuple[int, ...], str], ...]] = None
        self._since = time.time_ns()
        known = program.facts()
        known.update({("user", key): value for key, value in _flat(lib.mapping(facts, "facts"))})
        config = lib.mapping(config, "config")
        self.file.parent.mkdir(parents=True, exist_ok=True)
        handle = c_void_p()
        lib.call("ledger_open", byref(handle), lib.encode(str(self.file), "a path"), lib.CREATE,
                 lib.encode(f"python, run {self.name}", "a run's name"))
        self._handle = handle
        try:
            self._begin(kind, config, known, resume)
        except BaseException:
            self.close()
            raise

    def _begin(self, kind: str, config: Mapping[str, Any], facts: program.Facts,
               resume: Optional[Mapping[str, Any]]) -> None:
        rows = (lib.Fact * len(facts))(*(
            lib.Fact(*(lib.encode(text, "a fact") for text in (*key, value)))
            for key, value in facts.items()))
        if resume is not None:
            step, chain = self._state(resume)
            lib.call("ledger_resume", self._handle, step, chain, rows, len(rows))
            return
        if self._has_run():
            raise lib.Error("STATE", f"{self.file}: has a run already; choose another folder, or "
                                     "give resume= the state() that its checkpoint has")
        pairs = [lib.Pair(lib.encode(k, "a key"), lib.encode(v, "a value"))
                 for k, v in _flat(config)]
        lib.call("ledger_begin", self._handle, lib.encode(self.name, "a run's name"),
                 lib.encode(kind, "a kind"), (lib.Pair * len(pairs))(*pairs), len(pairs), rows,
                 len(rows))

    @staticmethod
    def _state(resume: Mapping[str, Any]) -> tuple[int, bytes]:
        """Step and chain of what `state()` has made."""
        try:
            step, chain = int(resume["step"]), bytes.fromhex(resume["chain"])
        except (KeyError, TypeError, ValueError) as error:
            raise lib.Error("INVALID", "resume is what state() returned, a dict of step and chain; "
                            f"not {resume!r}") from error
        if len(chain) != lib.DIGEST_BYTES or not -1 <= step < 1 << 63:
            raise lib.Error("INVALID", f"resume has a step or a chain that no run has: {resume!r}")
        return step, chain

    def _has_run(self) -> bool:
        number = c_int64()
        try:
            lib.call("ledger_find", byref(number), self._handle, None)
        except lib.Error as error:
            if error.status == "NOTFOUND":
                return False
            raise
        return True

    # ---- steps ---------------------------------------------------------------------------------

    def step(self, digests: Optional[Digests] = None, *, batch: Any = None,
             metrics: Optional[Mapping[str, Any]] = None,
             gauges: Optional[Mapping[str, Any]] = None, **values: Any) -> None:
        """Records one step, the next one; they are numbered from 0.

        digests   of the tensors that the step computed: `invar.hash_tensors(model)`
        batch     what the step was trained on: tensors, or bytes, or their Digests
        metrics   numbers by name, part of the run's content; so are all other keyword arguments:
                  `loss=0.5` is `train/loss`, `metrics={"rollout/raw_reward": 1.0}` is as it says
        gauges    numbers that may differ between equal runs: speeds, memory
        """
        named = _numbers(lib.mapping(metrics, "metrics"), values, name_of=_metric)
        measured = _numbers(lib.mapping(gauges, "gauges"), name_of=_metric)
        if digests is not None and not isinstance(digests, Digests):
            raise lib.Error("INVALID", "digests are what hash_tensors returns, not "
                            f"{type(digests).__name__}")
        if batch is not None and not isinstance(batch, Digests):
            batch = hash_tensors(batch, kind="data")
        if digests is None:
            digests = Digests()
        with self._lock:
            self._append(digests, batch.digest() if batch is not None else None, named, measured)

    def _append(self, digests: Digests, batch: Optional[bytes], metrics: Mapping[str, float],
                gauges: Mapping[str, float]) -> None:
        handle = self._open()
        self._define(handle, digests)
        now = time.time_ns()
        metric_rows, n_metrics = lib.numbers(metrics.items(), "a metric")
        gauge_rows, n_gauges = lib.numbers(gauges.items(), "a gauge")
        entry = lib.Step(self._chain()[0] + 1, b"".join(t.digest for t in digests), batch,
                         metric_rows, n_metrics, gauge_rows, n_gauges, self._since,
                         max(1, now - self._since))
        lib.call("ledger_append", handle, byref(entry))
        self._since = now

    def _define(self, handle: c_void_p, digests: Digests) -> None:
        """The points of a step, where they are not those of the step before."""
        points = tuple((t.name, t.dtype, t.shape, t.kind) for t in digests)
        if points == self._points:
            return
        rows = []
        for t in digests:
            phase, op = KINDS[t.kind]
            texts = (lib.encode(text, "a tensor's name")
                     for text in (t.name, phase, op, t.kind, t.dtype))
            rows.append(lib.Point(*texts, (c_int64 * len(t.shape))(*t.shape), len(t.shape),
                                  t.layer, 0))
        lib.call("ledger_define", handle, (lib.Point * len(rows))(*rows), len(rows))
        self._points = points

    def _chain(self) -> tuple[int, bytes]:
        step, chain = c_int64(), create_string_buffer(lib.DIGEST_BYTES)
        lib.call("ledger_chain", byref(step), chain, self._open())
        return step.value, chain.raw

    @property
    def last_step(self) -> int:
        """The last step that is recorded; -1: none."""
        return self._chain()[0]

    @property
    def chain(self) -> str:
        """The hash of all steps so far."""
        return self._chain()[1].hex()

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, so that a later Ledger can go on: Ledger(..., resume=state)."""
        step, chain = self._chain()
        return {"step": step, "chain": chain.hex()}

    # ---- beside steps --------------------------------------------------------------------------

    def evaluate(self, dataset: str, results: Optional[Mapping[str, Any]] = None,
                 **values: Any) -> None:
        """Results on a data set after the last step: ledger.evaluate("gsm8k", accuracy=0.5)."""
        named = _numbers(lib.mapping(results, "results"), values, name_of=str)
        rows, count = lib.numbers(named.items(), "a result")
        with self._lock:
            lib.call("ledger_evaluate", self._open(), lib.encode(dataset, "a data set"), rows,
                     count)

    def note(self, kind: str, message: str, *, level: str = "info", data: Any = None) -> None:
        """An event; level is debug, info, warning or error; data becomes JSON."""
        try:
            text = None if data is None else json.dumps(data, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise lib.Error("INVALID", f"an event's data becomes JSON: {error}") from error
        with self._lock:
            lib.call("ledger_note", self._open(), lib.encode(level, "a level"),
                     lib.encode(kind, "a kind"), lib.encode(message, "a message"),
                     lib.optional(text, "an event's data"))

    # ---- the end -------------------------------------------------------------------------------

    def finish(self, exit_code: int = 0, reason: str = "done") -> None:
        """The end of the run, durable; then closes. The exit code is 0 to 255, as a shell's."""
        code = lib.integer(exit_code, "an exit code", 0, 255)
        with self._lock:
            lib.call("ledger_finish", self._open(), code, lib.encode(reason, "a reason"))
        self.close()

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        if self._handle is None or self._process != os.getpid():
            return
        try:
            if kind is None:
                self.finish()
            elif issubclass(kind, KeyboardInterrupt):
                self.finish(130, "interrupted")
            else:
                words = " ".join(f"{kind.__name__}: {error}".split())
                self.note("failure", words, level="error")
                self.finish(2, "failure")
        finally:
            self.close()
