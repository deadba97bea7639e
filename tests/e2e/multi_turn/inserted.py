#!/usr/bin/env python3
# inserted.py ROLLOUTS REPLIES - checks that inserted tokens are in the samples, but not in the
# loss.
#
# ROLLOUTS is a file of save-debug-rollout-data; REPLIES has the replies of environment.py for its
# step, as `ledger sql` prints them.
# SPDX-License-Identifier: Apache-2.0
"""Compares tokens, masks and log-probs of samples with the recorded replies."""
import json
import sys

DIGITS = "0123456789<>?"
EOS = len(DIGITS)


def masked_tokens(sample, kind):
    """Returns the tokens of the response whose mask is `kind`."""
    tokens = sample["tokens"][sample["prompt_tokens"]:]
    return [t for t, m in zip(tokens, sample["mask"]) if m == kind]


def inserted(replies, count):
    """Returns for each sample the tokens that the recorded replies insert, in order."""
    active, out = list(range(count)), [[] for _ in range(count)]
    for reply in replies:
        assert len(reply["turns"]) == len(active), (len(reply["turns"]), len(active))
        for sample, turn in zip(active, reply["turns"]):
            insert = turn.get("insert", [])
            out[sample] += [DIGITS.index(c) for c in insert] if isinstance(insert, str) else insert
        active = [s for s, turn in zip(active, reply["turns"]) if "insert" in turn]
    assert not active
    return out


def check(sample, tokens):
    assert masked_tokens(sample, 0) == tokens, sample
    assert all((p == 0.0) == (m == 0) for p, m in zip(sample["logprobs"], sample["mask"])), sample
    assert sample["mask"][0] == 1 and sample["mask"][-1] == 1, sample
    text = "".join(DIGITS[t] for t in masked_tokens(sample, 1) if t != EOS)
    assert sample["response"] == text, sample


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    samples = [line for line in lines if "tokens" in line]
    with open(sys.argv[2], encoding="utf-8") as file:
        replies = [json.loads(line) for line in file]
    want = inserted(replies, len(samples))
    assert any(want) and len(replies) > 2
    for sample, tokens in zip(samples, want):
        check(sample, tokens)
    print(len(samples), "samples")


if __name__ == "__main__":
    main()
