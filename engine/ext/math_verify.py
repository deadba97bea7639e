# math_verify.py - rewards by the package math-verify: is the answer worth what the label is?
#
# A plug-in (docs/plugins.md) that is part of the program; it has no single quote, see script.c.
# SPDX-License-Identifier: Apache-2.0
import importlib.metadata
import json
import logging
import sys

try:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
except ImportError as error:
    sys.exit(f"python3 has no math_verify ({error}); pip install math-verify")

logging.disable(logging.CRITICAL)


def judge(sample):
    """1 where both are the same value. What it cannot read is wrong."""
    gold = parse("\\boxed{" + sample["label"] + "}", [LatexExtractionConfig()])
    answer = parse(sample["response"], [ExprExtractionConfig(), LatexExtractionConfig()])
    return 1.0 if gold and answer and verify(gold, answer) else 0.0


def main():
    version = importlib.metadata.version("math-verify")
    sys.stdin.readline()
    print(json.dumps({"invar": 1, "name": f"math-verify {version}", "kinds": ["reward"]}),
          flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        rewards = [judge(sample) for sample in request["samples"]]
        print(json.dumps({"id": request["id"], "rewards": rewards}), flush=True)


main()
