#!/usr/bin/env python3
# environment.py MOOD - an environment plug-in for task:guess, as in recipes/guess.ini; MOOD selects
# correct or faulty behavior.
# SPDX-License-Identifier: Apache-2.0
"""Responds to guesses; each mood behaves differently."""
import json
import os
import sys
import time

DIGITS = "0123456789<>?"


def play(sample):
    """Returns the hint as text, or for odd samples as token ids, and finally a reward with
    parts."""
    guess, secret = sample["text"][-1:], sample["label"]
    if guess == secret or sample["last"]:
        found = 1.0 if guess == secret else 0.0
        return {"end": True, "reward": {"found": found, "quick": 1.0 / (1 + sample["turn"]),
                                        "total": found}}
    hint = "<" if secret < guess else ">"
    return {"insert": [DIGITS.index(hint)] if sample["index"] % 2 else hint,
            "max_tokens": 1 + sample["turn"] % 2, "why": "it is not " + guess,
            **({"stop": [secret]} if sample["index"] % 3 == 0 else {})}


def respond_to_sample(mood, sample):
    if mood == "mute":  # no reward
        return {"end": True}
    # rewards one sample of each group, and both of the first two groups
    if mood == "half" and sample["last"]:
        half = sample["index"] % 2 == 0
        return {"end": True, **({"reward": {"led": 0.25}} if half or sample["group"] < 2 else {})}
    if mood == "half":
        return {"insert": "<"}
    if mood == "endless":  # inserts text until the response is full, and more than fits
        return {"end": True, "reward": 0.5} if sample["last"] else {"insert": "?" * 3}
    if mood == "deaf":
        return {"insert": ">"}
    if mood == "alien":
        return {"insert": [99]}
    if mood == "foreign":
        return {"insert": "x"}
    if mood == "other" and sample["index"] == 5 and not sample["last"]:
        return {"insert": "?"}
    return play(sample)


def answer(mood, request):
    turns = [respond_to_sample(mood, sample) for sample in request["samples"]]
    if mood == "short":
        turns = turns[1:]
    if mood == "dies":
        sys.exit("environment.py: it dies")
    if mood == "hangs":
        time.sleep(600)
    return json.dumps({"id": request["id"], "turns": turns})


def log_and_block(step):
    """Logs the call. After step 1, it blocks while the file `stuck` exists."""
    with open("asked", "a", encoding="ascii") as file:
        file.write(f"{step}\n")
    while step > 1 and os.path.exists("stuck"):
        time.sleep(0.05)


def main():
    mood = sys.argv[1]
    sys.stdin.readline()
    print(json.dumps({"invar": 1, "name": "environment", "kinds": ["generate"]}), flush=True)
    for line in sys.stdin:
        log_and_block(json.loads(line)["step"])
        print("rubbish" if mood == "rubbish" else answer(mood, json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
