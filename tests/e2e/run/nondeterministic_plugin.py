#!/usr/bin/env python3
# nondeterministic_plugin.py COUNT - a plug-in whose responses depend on the number of its starts,
# which the file COUNT holds.
# SPDX-License-Identifier: Apache-2.0
"""Computes rewards, verdicts and losses that differ at every start."""
import json
import pathlib
import sys


def judge(start, index):
    """Returns the reward of a sample; for even indices it is an object of reward parts, with an
    explicit total unless the index is a multiple of 4."""
    reward = (start * 7 + index * 3) % 5 / 4
    parts = {"taste": reward / 2, "mood": reward / 4, **({"total": reward} if index % 4 else {})}
    return parts if index % 2 == 0 else reward


def answer(request, start, role):
    if request["call"] == "reward":
        return {"rewards": [judge(start, s["index"]) for s in request["samples"]]}
    if request["call"] == "filter":
        word = "drop" if role == "dynamic-sampling-filter-path" else "remove"
        return {"verdicts": [word if (s["index"] + start) % 7 == 0 else "keep"
                             for s in request["samples"]]}
    if request["call"] == "hook":
        return {"metrics": {"start": start}, "loss_factor": 1 + start / 8}
    return {"dlogp": [-a * start for a in request["advantage"]],
            "loss": [-a * start for a in request["advantage"]]}


def main():
    count = pathlib.Path(sys.argv[1])
    start = int(count.read_text(encoding="ascii")) + 1 if count.exists() else 1
    count.write_text(str(start), encoding="ascii")
    role = json.loads(sys.stdin.readline())["plugin"]
    kinds = ["reward", "filter", "loss", "hook"]
    print(json.dumps({"invar": 1, "name": "fickle", "kinds": kinds}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps({"id": request["id"], **answer(request, start, role)}), flush=True)


if __name__ == "__main__":
    main()
