#!/usr/bin/env python3
# compare.py INVAR BASES FOLDER ... - compares Invar's reading of the adapters of make.py with peft.
#
# In each FOLDER every NAME.json belongs to a peft folder NAME. Log-probabilities, computed by Invar
# in fp32, may differ by LIMIT. Control: the base model alone must differ by more. Needs no peft.
# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of adapters that peft wrote."""
import json
import pathlib
import subprocess
import sys
import tempfile

LIMIT = 1e-4
invar, bases = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])


def score(about, *flags):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps({"tokens": tokens}) + "\n" for tokens, _ in about["samples"])
        file.flush()
        done = subprocess.run([invar, "score", "--hf-checkpoint", bases / about["base"], "--dtype",
                               "fp32", "--json", *flags, "--tokens", file.name],
                              capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{about['base']}: {done.stderr}"
    return [json.loads(line)["logprobs"] for line in done.stdout.splitlines()]


def distance(got, about):
    return max(abs(a - b) for line, (_, right) in zip(got, about["samples"], strict=True)
               for a, b in zip(line, right, strict=True))


def more(about):
    """Returns the additional keys of the recipe."""
    return [word for key, value in about.items()
            if key in ("use_rslora", "rank_pattern", "alpha_pattern")
            for word in (f"--{key.replace('_', '-')}", json.dumps(value))]


def main():
    count = 0
    for path in sorted(p for top in sys.argv[3:] for p in pathlib.Path(top).glob("*.json")):
        about = json.loads(path.read_text(encoding="utf-8"))
        off = distance(score(about, "--lora-rank", str(about["rank"]), "--lora-alpha",
                             str(about["alpha"]), "--target-modules", ",".join(about["layers"]),
                             *more(about),
                             "--lora-adapter-path", path.with_suffix("")), about)
        control = distance(score(about), about)
        print(f"{about['peft']:8} {path.stem:18} log-probs differ by {off:.1e}")
        assert off <= LIMIT < control, f"{path}: log-probs differ by {off}, limit {LIMIT}"
        count += 1
    assert count > 0, "there are no adapters"
    print(f"{count} adapters, as peft has them")


main()
