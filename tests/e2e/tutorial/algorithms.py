#!/usr/bin/env python3
# algorithms.py INVAR FOLDER - the recipes of docs/algorithms.md, on a small random model.
#
# Works in FOLDER, which stands for a clone. Model and data are made, every recipe is written, and
# every command runs as printed, except that rewards are those that the page suggests for a random
# model. Each algorithm must have a nonzero gradient and a chain of its own.
# SPDX-License-Identifier: Apache-2.0
"""Runs every recipe of docs/algorithms.md."""
import os
import pathlib
import shutil
import sqlite3
import sys

from tutorial import ROOT, blocks, run


def outcome(folder):
    """Returns the largest gradient norm of a run, and its chain."""
    with sqlite3.connect(f"file:{folder}/ledger.db?mode=ro", uri=True) as base:
        return base.execute("SELECT max(value), (SELECT chain FROM timeline ORDER BY step DESC "
                            "LIMIT 1) FROM metrics WHERE name = 'train/grad_norm'").fetchone()


def main():
    invar, folder = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "build").mkdir(parents=True)
    (folder / "build/invar").symlink_to(invar)
    (folder / "tests").symlink_to(ROOT / "tests")
    folder = folder.resolve()
    environment = {name: value for name, value in os.environ.items() if name != "INVAR_LEDGER"}
    chains = {}
    for language, name, text in blocks(ROOT / "docs/algorithms.md"):
        if name:
            (folder / "algorithms" / name).write_text(text, encoding="utf-8")
        elif language == "bash":
            run(["bash", "-e", "-c", text], folder, environment)
            environment["PATH"] = f"{folder / 'build'}:{environment['PATH']}"
        for command in text.splitlines() if language == "sh" else ():
            word = command.split()[-1]
            rewarded = word.endswith(".ini") and word not in ("sft.ini", "distill.ini")
            run(["bash", "-c", command + " --rm-type deterministic_random" * rewarded],
                folder / "algorithms", environment)
            if word.endswith(".ini"):
                norm, chain = outcome(folder / "algorithms/runs" / word[:-4])
                print(f"{word}: |g| {norm}, chain {chain}")
                if not norm > 0:
                    sys.exit(f"{word}: the gradient is {norm}")
                if chain in chains:
                    sys.exit(f"{word}: the chain is that of {chains[chain]}")
                chains[chain] = word
    return 0 if len(chains) == 7 else 1


if __name__ == "__main__":
    sys.exit(main())
