#!/usr/bin/env python3
# branches.py LEDGER - checks that the samples of a run follow from its recorded sessions.
#
# A second implementation of the rule: calls are sorted by their prompts; a call whose prompt begins
# with all tokens of a branch continues the longest such branch; any other call starts a branch.
# SPDX-License-Identifier: Apache-2.0
"""Compares the samples of a ledger with their recorded sessions."""
import json
import sqlite3
import sys


def branches_of(calls):
    """Returns the branches, as lists of [tokens, number of sampled tokens]."""
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
