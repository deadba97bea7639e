# _commands.py - train, generate, score, pack and replay as calls that run the program `invar`.
#
# The program is a separate process, so a call has the bits, the errors and the messages of the
# command line, and a crash of the program is an exception here.
# SPDX-License-Identifier: Apache-2.0
"""Train, generate, score, pack and replay with the program `invar`."""
from __future__ import annotations

import json
import operator
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from typing import Any, Iterable, Optional, Sequence, Union

from invar._library import Error, one_line
from invar.ledger import Path
from invar.packs import Pack, read_pack
from invar.reading import Compared, Run, read


def _program() -> str:
    """Returns INVAR_PROGRAM, or `invar` on the PATH."""
    found = os.environ.get("INVAR_PROGRAM") or shutil.which("invar")
    if not found:
        raise Error("NOTFOUND", "the program `invar` is not on the PATH; let INVAR_PROGRAM name it")
    return found


def _options(keys: dict[str, Any]) -> list[str]:
    """Returns recipe keys as options: rollout_seed=7 becomes --rollout-seed 7."""
    words = []
    for key, value in keys.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        words += ["--" + key.replace("_", "-"), text]
    return words


class _Interrupts:
    """Leaves Ctrl-C to a running program: it stops in its own way, and the call waits for it.

    Afterwards Python's own handler gets the signal, which raises KeyboardInterrupt. A terminal
    sends the signal to the program, too; the program takes two within 200 ms as one.
    """

    def __init__(self) -> None:
        self._process: Optional["subprocess.Popen[bytes]"] = None
        self._before: Any = None
        self._caught = False

    def __enter__(self) -> "_Interrupts":
        before = signal.getsignal(signal.SIGINT)
        if callable(before) and threading.current_thread() is threading.main_thread():
            self._before = before
            signal.signal(signal.SIGINT, self._take)
        return self

    def pass_on(self, process: "subprocess.Popen[bytes]") -> None:
        """Passes signals on to this process from now on."""
        self._process = process
        if self._caught:
            process.send_signal(signal.SIGINT)

    def _take(self, *_: Any) -> None:
        self._caught = True
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)

    def __exit__(self, *_: Any) -> None:
        if self._before is None:
            return
        signal.signal(signal.SIGINT, self._before)
        if self._caught:
            self._before(signal.SIGINT, None)


def _run(verb: str, recipe: Optional[Path], words: list[str], keys: dict[str, Any],
         given: str = "", shown: bool = False, good: Sequence[int] = (0,)) -> bytes:
    command = [_program(), verb, *([] if recipe is None else [os.fspath(recipe)]), *words,
               *_options(keys)]
    pipe = None if shown else subprocess.PIPE
    try:
        with _Interrupts() as interrupts, subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=pipe, stderr=pipe) as process:
            try:
                interrupts.pass_on(process)
                out, err = process.communicate(given.encode())
            except BaseException:  # raised by the handler of another signal
                process.kill()
                raise
    except OSError as error:
        raise Error("NOTFOUND", f"{command[0]}: cannot be run: {error}") from error
    if process.returncode not in good:
        said = (err or b"").decode("utf-8", "replace").strip()
        why = one_line(said.rpartition("\n")[2]) or "see its messages above"
        raise Error("EXIT", f"invar {verb} ended with exit code {process.returncode}: {why}")
    return out or b""


def _json(verb: str, text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:  # the program has another version
        raise Error("EXIT", f"invar {verb} printed what is no JSON: {one_line(error)}") from error


def _lines(verb: str, text: bytes) -> list[dict[str, Any]]:
    """Parses one JSON value per line. Only a newline ends a line: texts may contain U+2028 and
    others."""
    return [_json(verb, line) for line in text.split(b"\n") if line]


def train(recipe: Path, *, run: Path, progress: bool = False, **keys: Any) -> Run:
    """Trains a recipe in the folder `run`, or resumes it, and opens its ledger.

    keys       any key of a recipe, `num_rollout=3`: docs/keys.md
    progress   show the program's own output
    """
    _run("train", recipe, ["--run", os.fspath(run), "--no-report"], keys, shown=progress)
    return read(run)


def generate(prompts: Iterable[str], recipe: Optional[Path] = None, *, n: int = 1,
             **keys: Any) -> list[dict[str, Any]]:
    """Completes prompts. Each result has text, tokens, logprobs, bits, finish and coords.

    `hf_checkpoint=FOLDER` names a model; other keyword arguments are keys of a recipe. The `n`
    completions of the first prompt come first, then those of the second; `prompt` is the index.
    """
    if isinstance(prompts, str):
        raise Error("INVALID", "prompts are a list of texts, not one text")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "prompts.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps({"input": prompt}) + "\n" for prompt in prompts)
        words = ["--prompts", path, "--n", str(n), "--json"]
        return _lines("generate", _run("generate", recipe, words,
                                        {"input_key": "input", **keys}))


def score(tokens: Iterable[Sequence[int]], recipe: Optional[Path] = None, *, mode: str = "train",
          **keys: Any) -> list[dict[str, Any]]:
    """Returns, for each sequence, the log-prob of every token but the first, and their bits.

    mode   which forward pass: train, prefill or decode. All three give the same bits.
    """
    try:
        given = "".join(json.dumps({"tokens": [operator.index(t) for t in row]}) + "\n"
                        for row in tokens)
    except TypeError as error:
        raise Error("INVALID", f"tokens are sequences of integers: {one_line(error)}") from error
    words = ["--tokens", "-", "--mode", mode, "--json"]
    return _lines("score", _run("score", recipe, words, keys, given))


def pack(run: Path, step: int, output: Path, **keys: Any) -> Pack:
    """Writes everything that a recorded step needs into one file, and opens it.

    run    a folder, a ledger, or another argument that `invar pack` accepts
    keys   free keys of a recipe, and paths of files that have moved
    """
    _run("pack", run, ["--step", str(step), "--output", os.fspath(output)], keys)
    return read_pack(output)


@dataclass(frozen=True)
class Replay(Compared):
    """Steps executed again and compared; `data` is the output of `invar replay --json`."""

    @property
    def step(self) -> Optional[int]:
        """The first step that differs."""
        return None if self.data["differs"] < 0 else int(self.data["differs"])

    @property
    def chain(self) -> str:
        """The hash of all steps up to the last one that was executed."""
        return str(self.data["chain"])


def replay(source: Union[Path, Pack], step: Optional[int] = None, **keys: Any) -> Replay:
    """Executes a recorded step again and compares every bit with the ledger.

    source   a pack, or a run with its `step`
    keys     free keys of a recipe, and paths of files that have moved
    """
    words = ["--json"] if step is None else ["--json", "--step", str(step)]
    path = source.path if isinstance(source, Pack) else source
    return Replay(_json("replay", _run("replay", path, words, keys, good=(0, 1, 6))))
