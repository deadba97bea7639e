#!/usr/bin/env python3
# branches.py LEDGER - the samples of a run are what the recorded sessions make of them.
#
# The rule, once more and by itself: calls in the order of their prompts; one whose prompt begins
# with all tokens of a branch goes on with the longest such, any other begins a branch.
# SPDX-License-Identifier: Apache-2.0
"""Compares samples of a ledger with the sessions that it has of them."""
import json
import sqlite3
import sys


def branches_of(calls):
    """Lists of [tokens, drawn]."""
    out = []
    for call in sorted(calls, key=lambda c: (len(c["prompt"]), c["prompt"], "number" in c,
                                             c.get("number", c.get("occurrence")))):
        fits = [b for b in out if call["prompt"][:len(b[0])] == b[0]]
        branch = max(fits, key=lambda b: len(b[0]), default=None)
        if branch is None:
            branch = [[], 0]
            out.append(branch)
        branch[0] = call["prompt"] + call["response"]
        branch[1] += len(call["response"])
    return out


def main():
    ledger = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
    rows = ledger.execute("SELECT s.prompt_tokens, s.tokens, s.reward, r.data FROM samples s "
                          "JOIN reply r ON r.step = s.step AND r.call = s.idx").fetchall()
    several = 0
    for prompt, tokens, reward, data in rows:
        session = json.loads(data)
        branches = branches_of(session["calls"])
        assert prompt == min(len(c["prompt"]) for c in session["calls"]), session
        assert tokens == sum(len(b[0]) for b in branches), (tokens, branches)
        assert sum(b[1] for b in branches) == sum(len(c["response"]) for c in session["calls"])
        total = session["end"]["reward"]
        assert reward == (total["total"] if isinstance(total, dict) else total), session
        several += len(branches) > 1
    assert rows
    print(len(rows), "samples,", several, "of several branches")


if __name__ == "__main__":
    main()
