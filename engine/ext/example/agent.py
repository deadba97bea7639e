#!/usr/bin/env python3
# agent.py - an example of an agent: it leads samples by itself, and asks the model over HTTP.
#
#     custom-agent-path = python3 engine/ext/example/agent.py
#     prompt-data = task:guess
#
# The game of guess.py: the label is a secret number, and after a wrong guess the model reads
# whether the secret is lower, "<", or higher, ">". Here this program holds the conversation. It
# needs nothing but Python; agent_openai.py does the same with the package openai.
# SPDX-License-Identifier: Apache-2.0
"""Plays higher or lower with the model, one session after another."""
import json
import sys
import urllib.request

GUESSES = 4


def complete(task, prompt):
    """Returns the model's next character."""
    body = json.dumps({"model": task["model"], "prompt": prompt, "max_tokens": 1})
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + task["api_key"]}
    request = urllib.request.Request(task["base_url"] + "/completions", body.encode(), headers)
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["text"]


def play(task, ask):
    """Plays one session. The text only grows, so each prompt continues the one before."""
    said, secret = task["prompt"], task["label"]
    for _ in range(GUESSES):
        guess = ask(task, said)
        if guess == secret:
            return 1.0
        said += guess + ("<" if secret < guess else ">")
    return 0.0


def lead(ask):
    json.loads(sys.stdin.readline())  # {"invar": 1, ...}
    print(json.dumps({"invar": 1, "name": "guess", "kinds": ["agent"]}), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        print(json.dumps({"id": task["id"], "reward": play(task, ask)}), flush=True)


if __name__ == "__main__":
    lead(complete)
