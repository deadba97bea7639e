#!/usr/bin/env python3
# guess.py - an example of a plug-in that leads samples turn by turn: a number is guessed.
#
#     custom-generate-function-path = python3 engine/ext/example/guess.py
#     prompt-data = task:guess
#
# The label is the secret. Each turn is one guess; after a wrong one the model reads whether the
# secret is lower, "<", or higher, ">". The reward is 1 if it is found: recipes/guess.ini.
# SPDX-License-Identifier: Apache-2.0
"""Answers guesses with higher or lower."""
import json
import sys


def follow(sample):
    guess, secret = sample["text"], sample["label"]
    if guess == secret or sample["last"]:
        return {"end": True, "reward": 1.0 if guess == secret else 0.0}
    return {"insert": "<" if secret < guess else ">"}


def main():
    json.loads(sys.stdin.readline())  # {"invar": 1, ...}
    print(json.dumps({"invar": 1, "name": "guess", "kinds": ["generate"]}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        turns = [follow(sample) for sample in request["samples"]]
        print(json.dumps({"id": request["id"], "turns": turns}), flush=True)


if __name__ == "__main__":
    main()
