#!/usr/bin/env python3
# algorithms.py INVAR FOLDER - the recipes of docs/algorithms.md, on a small random model.
#
# Works in FOLDER, with the model and the data of tutorial.py. Every recipe is written and every
# command is run as the page prints it, except that a program here gives the rewards: the texts of a
# random model have no words of the labels. Each algorithm has to move the weights in its own way.
# SPDX-License-Identifier: Apache-2.0
"""Runs every recipe of docs/algorithms.md."""
import os
import pathlib
import shutil
import sqlite3
import sys

from tutorial import PAGE, ROOT, blocks, make_data, make_model, run

JUDGE = """import json, sys
sys.stdin.readline()
print(json.dumps({"invar": 1, "name": "length", "kinds": ["reward"]}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    rewards = [len(sample["response"]) % 7 for sample in asked["samples"]]
    print(json.dumps({"id": asked["id"], "rewards": rewards}), flush=True)
"""


def outcome(folder):
    """The largest norm of the gradient of a run, and its chain."""
    with sqlite3.connect(f"file:{folder}/ledger.db?mode=ro", uri=True) as base:
        return base.execute("SELECT max(value), (SELECT chain FROM timeline ORDER BY step DESC "
                            "LIMIT 1) FROM metrics WHERE name = 'train/grad_norm'").fetchone()


def main():
    invar, folder = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    shutil.rmtree(folder, ignore_errors=True)
    make_model(folder / "models/actor")
    make_data(folder / "data/gsm8k")
    (folder / "judge.py").write_text(JUDGE, encoding="ascii")
    prepare, = [text for _, name, text in blocks(PAGE) if name == "prepare.py"]
    run([sys.executable, "-c", prepare], folder, os.environ)
    (folder / "bin").mkdir()
    (folder / "bin/invar").symlink_to(invar)
    environment = {name: value for name, value in os.environ.items() if name != "INVAR_LEDGER"}
    environment["PATH"] = f"{(folder / 'bin').resolve()}:{environment['PATH']}"
    judged = " --rm-type none --custom-rm-path 'python3 judge.py'"
    chains = {}
    for language, name, text in blocks(ROOT / "docs/algorithms.md"):
        if name:
            (folder / name).write_text(text, encoding="utf-8")
        for command in text.splitlines() if language == "sh" else ():
            word = command.split()[-1]
            rewarded = word.endswith(".ini") and word not in ("sft.ini", "distill.ini")
            run(["bash", "-c", command + judged * rewarded], folder, environment)
            if word.endswith(".ini"):
                norm, chain = outcome(folder / "runs" / word[:-4])
                print(f"{word}: |g| {norm}, chain {chain}")
                if not norm > 0:
                    sys.exit(f"{word}: the gradient is {norm}")
                if chain in chains:
                    sys.exit(f"{word}: the chain is that of {chains[chain]}")
                chains[chain] = word
    return 0 if len(chains) == 7 else 1


if __name__ == "__main__":
    sys.exit(main())
