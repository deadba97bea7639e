# running.py - train, generate, score, pack and replay as calls: they run the program `invar`.
#
# The program is a process of its own, so a call has the bits, the refusals and the messages of the
# command line, and a crash of it is an error here.
# SPDX-License-Identifier: Apache-2.0
"""Train, generate, score, pack and replay with the program `invar`."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any, Iterable, Optional, Sequence, Union

from invar._library import Error
from invar.ledger import Path
from invar.packs import Pack, read_pack
from invar.reading import Compared, Run, read


def _program() -> str:
    """INVAR_PROGRAM, or `invar` on the PATH."""
    found = os.environ.get("INVAR_PROGRAM") or shutil.which("invar")
    if not found:
        raise Error("NOTFOUND", "the program `invar` is not on the PATH; let INVAR_PROGRAM name it")
    return found


def _options(keys: dict[str, Any]) -> list[str]:
    """Recipe keys as options: rollout_seed=7 is --rollout-seed 7."""
    words = []
    for key, value in keys.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        words += ["--" + key.replace("_", "-"), text]
    return words


def _run(verb: str, recipe: Optional[Path], words: list[str], keys: dict[str, Any],
         given: str = "", shown: bool = False, good: Sequence[int] = (0,)) -> str:
    command = [_program(), verb, *([] if recipe is None else [os.fspath(recipe)]), *words,
               *_options(keys)]
    try:
        done = subprocess.run(command, input=given, text=True, check=False,
                              stdout=None if shown else subprocess.PIPE,
                              stderr=None if shown else subprocess.PIPE)
    except OSError as error:
        raise Error("NOTFOUND", f"{command[0]}: cannot be run: {error}") from error
    if done.returncode not in good:
        lines = (done.stderr or "").strip().splitlines() or ["see its messages above"]
        raise Error("EXIT", f"invar {verb} ended with exit code {done.returncode}: {lines[-1]}")
    return done.stdout or ""


def _lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def train(recipe: Path, *, run: Path, progress: bool = False, **keys: Any) -> Run:
    """Trains a recipe in the folder `run`, or resumes it, and opens its ledger.

    keys       any key of a recipe, `num_rollout=3`: docs/recipes.md
    progress   whether the program's own output is shown
    """
    _run("train", recipe, ["--run", os.fspath(run), "--no-report"], keys, shown=progress)
    return read(run)


def generate(prompts: Iterable[str], recipe: Optional[Path] = None, *, n: int = 1,
             **keys: Any) -> list[dict[str, Any]]:
    """Completes prompts: of each result text, tokens, logprobs, bits, finish and coords.

    `hf_checkpoint=FOLDER` names a model; other keys are those of a recipe. `n` completions of the
    first prompt come first, then those of the second; `prompt` is its number.
    """
    if isinstance(prompts, str):
        raise Error("INVALID", "prompts are a list of texts, not one text")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "prompts.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps({"input": prompt}) + "\n" for prompt in prompts)
        words = ["--prompts", path, "--n", str(n), "--json"]
        return _lines(_run("generate", recipe, words, {"input_key": "input", **keys}))


def score(tokens: Iterable[Sequence[int]], recipe: Optional[Path] = None, *, mode: str = "train",
          **keys: Any) -> list[dict[str, Any]]:
    """The log-prob of every token but the first, of each sequence: logprobs, and their bits.

    mode   which forward pass: train, prefill or decode. All three give the same bits.
    """
    try:
        given = "".join(json.dumps({"tokens": [int(t) for t in row]}) + "\n" for row in tokens)
    except (TypeError, ValueError) as error:
        raise Error("INVALID", f"tokens are sequences of integers: {error}") from error
    return _lines(_run("score", recipe, ["--tokens", "-", "--mode", mode, "--json"], keys, given))


def pack(run: Path, step: int, output: Path, **keys: Any) -> Pack:
    """Writes all that a recorded step needs into one file, and opens it.

    run    a folder, a ledger, or what else `invar pack` takes
    keys   free keys of a recipe, and paths of files that have moved
    """
    _run("pack", run, ["--step", str(step), "--output", os.fspath(output)], keys)
    return read_pack(output)


@dataclass(frozen=True)
class Replay(Compared):
    """Steps executed again and compared; `data` is what `invar replay --json` prints."""

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
    return Replay(json.loads(_run("replay", path, words, keys, good=(0, 1, 6))))
