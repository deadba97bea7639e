#!/usr/bin/env python3
# chooser.py LOG [FAULT] - a plug-in that chooses prompts, drops old groups from the buffer, and
# reports metrics from its hooks. LOG gets a line per call; FAULT selects a faulty behavior.
# SPDX-License-Identifier: Apache-2.0
import json
import sys

FAULT = sys.argv[2] if len(sys.argv) > 2 else ""


def prompts(request):
    lines = [(request["first"] + i) * 7 % request["lines"] for i in range(request["count"])]
    faults = {"few": lines[1:], "far": [request["lines"]] + lines[1:], "below": [-1] + lines[1:],
              "text": ["0"] + lines[1:], "real": [0.5] + lines[1:], "none": None}
    return {"prompts": faults.get(FAULT, lines)}


def buffer_filter(request):
    verdicts = ["drop" if since < request["rollout"] - 1 else "take" for since in request["since"]]
    assert len(verdicts) == len(request["samples"]) and request["wanted"] > 0
    if FAULT == "mixed":
        verdicts[0] = "wait"
    if FAULT == "keep":
        verdicts[0] = "keep"
    if FAULT == "wait":
        verdicts = ["wait"] * len(verdicts)
    return {"verdicts": verdicts}


def hook(request):
    if request["hook"] == "before_train_step":
        return {"loss_factor": 0.5} if request["step"] % 2 else {}
    samples = request.get("samples", [])
    if request["hook"] == "after_eval" and FAULT != "measures":
        with open(sys.argv[1] + ".eval", "a", encoding="ascii") as log:
            rewards = [s["reward"] for s in samples]
            print(request["step"], request["set"], len(rewards), sum(rewards), file=log)
        return {}
    if not samples:
        return {}
    mean = 0.0
    for sample in samples:
        mean += sample["reward"] / len(samples)
    return {"metrics": {"reward": mean, "samples": len(samples)}}


CALLS = {"prompts": prompts, "buffer_filter": buffer_filter, "hook": hook}
sys.stdin.readline()
print(json.dumps({"invar": 1, "name": "chooser", "kinds": list(CALLS)}), flush=True)
for line in sys.stdin:
    question = json.loads(line)
    with open(sys.argv[1], "a", encoding="ascii") as log:
        print(question["call"], question["step"], file=log)
    print(json.dumps({"id": question["id"], **CALLS[question["call"]](question)}), flush=True)
