#!/usr/bin/env python3
# stories.py INVAR FOLDER - scripts/word-problems and tests/bench/learn.py, on a small random model.
#
# Works in FOLDER. The story files must have the hashes that docs/tutorial.md states. Solutions and
# labels are computed again from the text. Then the complete experiment runs on the CPU with a few
# steps and questions: SFT, export, GRPO, the repetition, the replay, the control.
# SPDX-License-Identifier: Apache-2.0
"""The stories of the tutorial, and the experiment with them."""
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import sys

from tutorial import PAGE, ROOT, make_model

SIGNS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


def check_hashes(folder):
    """Checks that the page has a line with the hash of each file."""
    page = PAGE.read_text(encoding="utf-8")
    for path in sorted(folder.iterdir()):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if f"| `{path.name}` | `{digest}` |" not in page:
            sys.exit(f"{path.name} has the hash {digest}, which docs/tutorial.md does not state")


def check_solutions(path):
    """Checks that every equation holds and uses known numbers, and that the last one gives the
    label."""
    for line in path.read_text(encoding="ascii").splitlines():
        entry = json.loads(line)
        story, solution = (message["content"] for message in entry["messages"])
        known = set(map(int, re.findall(r"\d+", story)))
        *equations, box = solution.split("\n")
        for equation in equations:
            left, sign, right, result = re.fullmatch(r"(\d+) ([-+*]) (\d+) = (\d+)",
                                                     equation).groups()
            if not {int(left), int(right)} <= known:
                sys.exit(f"{story}\n{equation}: a number from nowhere")
            if SIGNS[sign](int(left), int(right)) != int(result):
                sys.exit(f"{story}\n{equation}: wrong")
            known.add(int(result))
        if box != f"\\boxed{{{result}}}" or result != entry["label"]:
            sys.exit(f"{story}\n{box}: not the last result, or not the label {entry['label']}")


def shape(story):
    """Returns the story without names and things, so that its kind and numbers remain."""
    return re.sub(r"\b[A-Z][a-z]+\b|\b[a-z]+s\b", "", story)


def check_disjoint(folder):
    """Checks that no test story is a training story, even with other names."""
    shapes = {path.stem: [shape(json.loads(line)["messages"][0]["content"])
                          for line in path.read_text(encoding="ascii").splitlines()]
              for path in folder.iterdir()}
    trained = set(shapes["sft"]) | set(shapes["train"])
    for name in ("test", "unseen"):
        both = trained & set(shapes[name])
        if both:
            sys.exit(f"{name}: {len(both)} stories are trained on: {both.pop()}")


def main():
    invar, folder = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    shutil.rmtree(folder, ignore_errors=True)
    stories = folder / "data/stories"
    subprocess.run([ROOT / "scripts/word-problems", stories], check=True)
    check_hashes(stories)
    check_solutions(stories / "sft.jsonl")
    check_disjoint(stories)
    make_model(folder / "models/SmolLM2-135M-Instruct")
    few = "--rollout-batch-size 2 --eval-interval 2"
    result = subprocess.run(
        [ROOT / "tests/bench/learn.py", invar, folder, "--device", "cpu", "--seeds", "1",
         "--questions", "2", "--replay", "2", "--all", "--dtype fp32 --numerics ieee",
         "--sft", f"{few} --num-rollout 2 --eval-max-response-len 4",
         # Reading all training stories takes longer than these steps; the SFT run reads all of its.
         "--grpo", f"{few} --num-rollout 3 --n-samples-per-prompt 2 --rollout-max-response-len 4 "
                   "--prompt-data data/stories/train.jsonl@[0:8]"],
        stdout=subprocess.PIPE, text=True, check=False)
    print(result.stdout)
    if result.returncode:
        sys.exit(f"learn.py: exit code {result.returncode}")
    rows = (folder / "runs.tsv").read_text(encoding="ascii").splitlines()[1:]
    names = [row.split("\t")[0] for row in rows]
    if names != ["sft-1", "grpo-1", "grpo-1-again", "control-fp8"]:
        sys.exit(f"runs.tsv has the runs {names}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
