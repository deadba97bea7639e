#!/usr/bin/env python3
# reward.py - an example of a plug-in as a program: rewards, a filter, a loss and hooks.
#
#     custom-rm-path = python3 engine/ext/example/reward.py
#
# One line in, one line out, both JSON: docs/plugins.md. Standard error goes to the run's log.
# SPDX-License-Identifier: Apache-2.0
"""Rewards responses that contain the label, the shorter the better."""
import json
import sys
import time

BEGAN = time.monotonic()


def judge(sample):
    right = 1.0 if sample["label"] in sample["response"] else 0.0
    return right - 0.01 * (len(sample["tokens"]) - sample["prompt_tokens"])


def reward(request):
    return {"rewards": [judge(sample) for sample in request["samples"]]}


def group_reward(request):
    """Only the best of the group is rewarded; the first one where several are."""
    scores = reward(request)["rewards"]
    best = scores.index(max(scores))
    return {"rewards": [1.0 if i == best else 0.0 for i in range(len(scores))]}


def keep(request):
    """Truncated answers stay out of the loss."""
    samples = request["samples"]
    return {"verdicts": ["remove" if s["finish"] == "length" else "keep" for s in samples]}


def loss(request):
    """REINFORCE, as loss.c has it."""
    pairs = list(zip(request["advantage"], request["logp"]))
    return {"dlogp": [-a for a, _ in pairs], "loss": [-(a * logp) for a, logp in pairs]}


def hook(request):
    print("reward.py:", request["hook"], "of step", request["step"], file=sys.stderr)
    return {"metrics": {"seconds": round(time.monotonic() - BEGAN, 3)}}


ANSWERS = {"reward": reward, "group_reward": group_reward, "filter": keep, "loss": loss,
           "hook": hook}


def main():
    json.loads(sys.stdin.readline())  # {"invar": 1, ...}
    print(json.dumps({"invar": 1, "name": "short-and-right", "kinds": list(ANSWERS)}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = ANSWERS[request["call"]](request)
        except (KeyError, ValueError) as problem:
            reply = {"error": str(problem)}
        print(json.dumps({"id": request["id"], **reply}), flush=True)


if __name__ == "__main__":
    main()
