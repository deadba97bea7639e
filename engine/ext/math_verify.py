# math_verify.py - rewards by the package math-verify: is the answer worth what the label is?
#
# A plug-in (docs/plugins.md) that is part of the program; it has no single quote, see
# embedded_script.c.
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


def read(text, *kinds):
    """Parses without a time limit: on a busy machine it would make a right answer a wrong one. The
    only limit is plugin-timeout."""
    return parse(text, list(kinds), parsing_timeout=None)


def judge(sample):
    """Returns 1 if both have the same value, 0 if not or if one of them cannot be parsed."""
    gold = read("\\boxed{" + sample["label"] + "}", LatexExtractionConfig())
    answer = read(sample["response"], ExprExtractionConfig(), LatexExtractionConfig())
    return 1.0 if gold and answer and verify(gold, answer, timeout_seconds=None) else 0.0


def main():
    version = importlib.metadata.version("math-verify")
    if [int(n) for n in version.split(".")[:2]] < [0, 8]:
        sys.exit(f"math-verify {version} judges by the clock; pip install math-verify>=0.8")
    sys.stdin.readline()
    print(json.dumps({"invar": 1, "name": f"math-verify {version}", "kinds": ["reward"]}),
          flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        rewards = [judge(sample) for sample in request["samples"]]
        print(json.dumps({"id": request["id"], "rewards": rewards}), flush=True)


main()
