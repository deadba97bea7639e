# ledger.py - writing a ledger from any training loop.
# SPDX-License-Identifier: Apache-2.0
"""The writer of a ledger."""
from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pathlib
import re
import threading
import time
import warnings
from ctypes import byref, c_int64, c_void_p, create_string_buffer
from types import TracebackType
from typing import Any, Callable, Iterator, Mapping, Optional, Type, Union

from invar import _library as lib
from invar import _provenance
from invar.hashing import KINDS, Digests, hash_tensors

Path = Union[str, "os.PathLike[str]"]


def ledger_file(run: Path) -> pathlib.Path:
    """Returns the path of a run's ledger: a file RUN.db, or ledger.db in a folder."""
    if not isinstance(run, (str, os.PathLike)) or not os.fspath(run):
        raise lib.Error("INVALID", f"the path of a run is a folder or a file NAME.db, not {run!r}")
    path = pathlib.Path(run)
    if path.suffix == ".db" and not path.is_dir():
        return path
    return path / "ledger.db"


def _plain(value: Any) -> Any:
    """Converts a value that JSON lacks to one whose text is the same in every process."""
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=_text)
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "item"):  # a number of numpy or torch; a larger tensor raises in item()
        return value.item()
    text = str(value)
    if re.search(r" at 0x[0-9a-fA-F]+", text):
        raise TypeError(f"{text} has another text in every process; give a text of your own")
    return text


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, default=_plain, ensure_ascii=False)


def _walk(config: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _walk(value, f"{prefix}{key}.")
            continue
        try:
            yield f"{prefix}{key}", _text(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise lib.Error("INVALID", f"{prefix}{key} has no stable text: "
                            f"{lib.one_line(error)}") from error


def flat(config: Optional[Mapping[str, Any]], what: str) -> list[tuple[str, str]]:
    """Flattens nested keys to "optimizer.lr"; values become text, which is exact for numbers."""
    try:
        return list(_walk(lib.mapping(config, what), ""))
    except RecursionError as error:
        raise lib.Error("INVALID", f"{what} contains itself") from error


def _number(name: str, value: Any) -> float:
    """Converts a number of Python, numpy or torch."""
    try:
        if isinstance(value, (str, bytes, bytearray)):
            raise TypeError("it is a text")
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise lib.Error("INVALID", f"{name} is a number, not {value!r:.200}: "
                        f"{lib.one_line(error)}") from error


def _metric(name: str) -> str:
    """Adds the group "train/" to a name without a group, as the report and the queries expect."""
    return name if "/" in str(name) else f"train/{name}"


def _numbers(*sources: Mapping[str, Any], name_of: Callable[[str], str]) -> dict[str, float]:
    """Collects numbers by their full names; a name that occurs twice is an error."""
    found: dict[str, float] = {}
    for source in sources:
        for key, value in source.items():
            name = name_of(key)
            if name in found:
                raise lib.Error("INVALID", f"{name} is given twice: {found[name]} and {value!r}")
            found[name] = _number(name, value)
    return found


def _cell(value: lib.Value) -> Any:
    if value.type == lib.INT:
        return value.integer
    if value.type == lib.REAL:
        return value.real
    if value.type in (lib.TEXT, lib.BLOB):
        data = ctypes.string_at(value.data, value.bytes) if value.bytes else b""
        return data.decode("utf-8", "replace") if value.type == lib.TEXT else data
    return None


class Opened:
    """An open ledger, usable by all threads of the process that opened it."""

    def __init__(self, run: Path) -> None:
        self._handle: Optional[c_void_p] = None
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._busy = False
        self.file = ledger_file(run)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Serializes the calls of several threads, including close()."""
        with self._lock:
            if self._busy:  # a signal handler has interrupted a call of this thread
                raise lib.Error("STATE", f"{self.file}: this thread is in a call already")
            self._busy = True
            try:
                yield
            finally:
                self._busy = False

    @contextlib.contextmanager
    def _open(self) -> Iterator[c_void_p]:
        """Yields the handle for the time of a call."""
        if self._process != os.getpid():
            raise lib.Error("STATE", f"{self.file}: belongs to process {self._process}, which "
                            "opened it; a child after fork cannot use it")
        with self._alone():
            if self._handle is None:
                raise lib.Error("STATE", f"{self.file}: the ledger is closed")
            yield self._handle

    def _select(self, statement: str, limit_ms: int = 0) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Returns the names of columns, and the rows."""
        names: list[str] = []
        rows: list[tuple[Any, ...]] = []
        failed: list[BaseException] = []

        def take(_: Any, columns: Any, values: Any, count: int) -> int:
            try:
                if not values:
                    names.extend(columns[i].decode("utf-8", "replace") for i in range(count))
                else:
                    rows.append(tuple(_cell(values[i]) for i in range(count)))
            except BaseException as error:  # pylint: disable=broad-except
                failed.append(error)  # an exception must not pass through C
                return 1
            return 0

        try:
            with self._open() as handle:
                lib.call("ledger_select", handle, lib.encode(statement, "a statement"),
                         lib.integer(limit_ms, "limit_ms", 0, (1 << 63) - 1), lib.Row(take), None)
        except lib.Error:
            if failed:
                raise failed[0]
            raise
        return names, rows

    def close(self) -> None:
        """Closes the file. A run that was not finished before counts as killed."""
        if self._process != os.getpid():  # a child process must not close it
            self._handle = None
            return
        with self._alone():
            handle, self._handle = self._handle, None
            if handle is not None:
                lib.LIBRARY.invar_api_ledger_close(handle)

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()


def _exit_code(error: BaseException) -> int:
    """Returns the exit code that a shell sees: for sys.exit() its number, or 1 for a text."""
    if not isinstance(error, SystemExit):
        return 2
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    return 1


class Ledger(Opened):
    """Records the steps of one run.

        with invar.Ledger("runs/a", config={"lr": 1e-3}) as ledger:
            ledger.step(loss=loss, digests=invar.hash_tensors(model))

    path     a folder, in which ledger.db is created, or a file NAME.db
    run      the name of the run; None for the name of the folder
    config   what may change the bits: seed, data, hyper-parameters. Nested keys become "a.b". Runs
             with equal configs have one identity, and `invar diff` expects equal bits of them.
    kind     train (None), eval, ci, ab, bisect or replay
    facts    provenance that does not change bits, shown by a diff
    resume   the `state()` that was saved with a checkpoint: continues the run after that step.
             The run keeps its name, config and kind; other values are rejected.

    When `step` has returned, the step survives the death of the process. Leaving the `with` block
    ends the run; an exception is recorded as an event of kind `failure`.
    """

    def __init__(self, path: Path, *, run: Optional[str] = None,
                 config: Optional[Mapping[str, Any]] = None, kind: Optional[str] = None,
                 facts: Optional[Mapping[str, Any]] = None,
                 resume: Optional[Mapping[str, Any]] = None) -> None:
        super().__init__(path)
        self.name = run or (self.file.parent.resolve().name if self.file.name == "ledger.db"
                            else self.file.stem)
        self._points: Optional[tuple[tuple[str, str, tuple[int, ...], str], ...]] = None
        self._since = time.time_ns()
        known = _provenance.facts()
        known.update({("user", key): value for key, value in flat(facts, "facts")})
        identity = None if config is None else flat(config, "config")
        self._make_folder()
        handle = c_void_p()
        lib.call("ledger_open", byref(handle), lib.encode(str(self.file), "a path"), lib.CREATE,
                 lib.encode(f"python, run {self.name}", "a run's name"))
        self._handle = handle
        try:
            rows = (lib.Fact * len(known))(*(
                lib.Fact(*(lib.encode(text, "a fact") for text in (*key, value)))
                for key, value in known.items()))
            if resume is None:
                self._begin("train" if kind is None else kind, identity or [], rows)
            else:
                self._resume(resume, rows, run, kind, identity)
        except BaseException:
            self.close()
            raise

    def _make_folder(self) -> None:
        folder = self.file.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise lib.Error("IO", f"{lib.one_line(folder)}: cannot be made: {error.strerror}; a "
                            "run is a folder or a file NAME.db") from error

    def _begin(self, kind: str, identity: list[tuple[str, str]], facts: Any) -> None:
        if self._run() is not None:
            raise lib.Error("STATE", f"{self.file}: has a run already; choose another folder, or "
                            "resume it with the state() that its checkpoint has (in a Trainer: "
                            "resume_from_checkpoint)")
        pairs = [lib.Pair(lib.encode(k, "a key"), lib.encode(v, "a value")) for k, v in identity]
        lib.call("ledger_begin", self._handle, lib.encode(self.name, "a run's name"),
                 lib.encode(kind, "a kind"), (lib.Pair * len(pairs))(*pairs), len(pairs), facts,
                 len(facts))

    def _resume(self, state: Mapping[str, Any], facts: Any, run: Optional[str],
                kind: Optional[str], identity: Optional[list[tuple[str, str]]]) -> None:
        step, chain = self._state(state)
        number = self._run()
        if number is not None:  # otherwise the library reports it
            self._check_same(number, run, kind, identity)
            self._check_line(number, step, chain)
        lib.call("ledger_resume", self._handle, step, chain, facts, len(facts))

    def _check_same(self, number: int, run: Optional[str], kind: Optional[str],
                    identity: Optional[list[tuple[str, str]]]) -> None:
        """Checks that a resumed run keeps the values it began with."""
        name, was_kind = self._select(f"SELECT name, kind FROM run WHERE run = {number}")[1][0]
        was = {("run", ""): name, ("kind", ""): was_kind}
        now = {("run", ""): name if run is None else run,
               ("kind", ""): was_kind if kind is None else kind}
        if identity is not None:
            was.update({("config", key): value for key, value in self._select(
                f"SELECT key, value FROM identity WHERE run = {number}")[1]})
            now.update({("config", key): value for key, value in identity})
        for what in sorted({*was, *now}):
            if was.get(what) != now.get(what):
                raise lib.Error(
                    "MISMATCH", f"{self.file}: {' '.join(what).strip()} was {was.get(what)!r:.200} "
                    f"and is {now.get(what)!r:.200}; a run that is resumed keeps it, other runs "
                    "have other folders")
        self.name = name

    def _check_line(self, number: int, step: int, chain: bytes) -> None:
        """Checks that no later segment of the run has replaced the step or an earlier one."""
        older = (f"SELECT max(seg) FROM step WHERE run = {number} AND step = {step} "
                 f"AND chain = x'{chain.hex()}'")
        other = self._select(
            f"SELECT min(n.step) FROM step n WHERE n.run = {number} AND n.step <= {step} AND "
            f"n.seg > ({older}) AND n.chain <> (SELECT o.chain FROM step o WHERE o.run = n.run AND "
            f"o.step = n.step AND o.seg <= ({older}) ORDER BY o.seg DESC LIMIT 1)")[1][0][0]
        if other is not None:
            raise lib.Error("STATE", f"{self.file}: this step {step} is abandoned: the run was "
                            f"resumed before it, and has another step {other} now; resume with a "
                            "state of the steps that count")

    @staticmethod
    def _state(resume: Mapping[str, Any]) -> tuple[int, bytes]:
        """Returns step and chain of a `state()`."""
        try:
            step, chain = int(resume["step"]), bytes.fromhex(resume["chain"])
        except (KeyError, TypeError, ValueError) as error:
            raise lib.Error("INVALID", "resume is what state() returned, a dict of step and chain; "
                            f"not {resume!r}") from error
        if len(chain) != lib.DIGEST_BYTES or not -1 <= step < 1 << 63:
            raise lib.Error("INVALID", f"resume has a step or a chain that no run has: {resume!r}")
        return step, chain

    def _run(self) -> Optional[int]:
        """Returns the number of the run in the ledger; None if there is none."""
        number = c_int64()
        try:
            lib.call("ledger_find", byref(number), self._handle, None)
        except lib.Error as error:
            if error.status == "NOTFOUND":
                return None
            raise
        return number.value

    # ---- steps ---------------------------------------------------------------------------------

    def step(self, digests: Optional[Digests] = None, *, batch: Any = None,
             metrics: Optional[Mapping[str, Any]] = None,
             gauges: Optional[Mapping[str, Any]] = None, **values: Any) -> None:
        """Records the next step. Steps are numbered from 0.

        digests   digests of the tensors that the step computed: `invar.hash_tensors(model)`
        batch     the data that the step was trained on: tensors, or bytes, or their Digests
        metrics   numbers by name, part of the run's content; so are all other keyword arguments:
                  `loss=0.5` is `train/loss`; `metrics={"rollout/raw_reward": 1.0}` keeps its name
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
        hashed = batch.digest() if batch is not None else None
        with self._open() as handle:
            self._append(handle, digests, hashed, named, measured)

    def _append(self, handle: c_void_p, digests: Digests, batch: Optional[bytes],
                metrics: Mapping[str, float], gauges: Mapping[str, float]) -> None:
        self._define(handle, digests)
        now = time.time_ns()
        metric_rows, n_metrics = lib.numbers(metrics.items(), "a metric")
        gauge_rows, n_gauges = lib.numbers(gauges.items(), "a gauge")
        entry = lib.Step(self._chain(handle)[0] + 1, b"".join(t.digest for t in digests), batch,
                         metric_rows, n_metrics, gauge_rows, n_gauges, self._since,
                         max(1, now - self._since))
        lib.call("ledger_append", handle, byref(entry))
        self._since = now

    def _define(self, handle: c_void_p, digests: Digests) -> None:
        """Defines the points of a step, if they are not the points of the previous step."""
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

    @staticmethod
    def _chain(handle: c_void_p) -> tuple[int, bytes]:
        step, chain = c_int64(), create_string_buffer(lib.DIGEST_BYTES)
        lib.call("ledger_chain", byref(step), chain, handle)
        return step.value, chain.raw

    @property
    def last_step(self) -> int:
        """The last recorded step; -1 if there is none."""
        return int(self.state()["step"])

    @property
    def chain(self) -> str:
        """The hash of all steps so far."""
        return str(self.state()["chain"])

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint must keep to resume with Ledger(..., resume=state)."""
        with self._open() as handle:
            step, chain = self._chain(handle)
        return {"step": step, "chain": chain.hex()}

    # ---- evaluations and events ----------------------------------------------------------------

    def evaluate(self, dataset: str, results: Optional[Mapping[str, Any]] = None,
                 **values: Any) -> None:
        """Records results after the last step: ledger.evaluate("gsm8k", accuracy=0.5)."""
        named = _numbers(lib.mapping(results, "results"), values, name_of=str)
        rows, count = lib.numbers(named.items(), "a result")
        with self._open() as handle:
            lib.call("ledger_evaluate", handle, lib.encode(dataset, "a data set"), rows, count)

    def note(self, kind: str, message: str, *, level: str = "info", data: Any = None) -> None:
        """Records an event; level is debug, info, warning or error; data is stored as JSON."""
        try:
            text = None if data is None else json.dumps(data, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise lib.Error("INVALID", f"an event's data becomes JSON: {error}") from error
        with self._open() as handle:
            lib.call("ledger_note", handle, lib.encode(level, "a level"),
                     lib.encode(kind, "a kind"), lib.encode(message, "a message"),
                     lib.optional(text, "an event's data"))

    # ---- the end -------------------------------------------------------------------------------

    def finish(self, exit_code: int = 0, reason: str = "done") -> None:
        """Records the end of the run durably, then closes the ledger. The exit code is 0 to 255."""
        code = lib.integer(exit_code, "an exit code", 0, 255)
        with self._open() as handle:
            lib.call("ledger_finish", handle, code, lib.encode(reason, "a reason"))
        self.close()

    def fail(self, error: BaseException) -> None:
        """Ends the run with an exception, which is recorded as an event `failure`.

        KeyboardInterrupt and SystemExit end a run with the exit codes that a shell sees, others
        with 2. Never raises, as the exception matters more; a warning names what is not recorded.
        """
        try:
            if isinstance(error, KeyboardInterrupt):
                self.finish(130, "interrupted")
                return
            code = _exit_code(error)
            if code == 0:
                self.finish(0, "exit")
                return
            self.note("failure", lib.one_line(f"{type(error).__name__}: {error}"), level="error")
            self.finish(code, "failure")
        except Exception as other:  # pylint: disable=broad-except
            with contextlib.suppress(Warning):  # the filter may turn the warning into an exception
                warnings.warn(f"{self.file}: how the run ended is not recorded: {other}",
                              RuntimeWarning, stacklevel=3)
        finally:
            self.close()

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        if self._handle is None or self._process != os.getpid():
            return
        if error is not None:
            self.fail(error)
            return
        try:
            self.finish()
        finally:
            self.close()
