#!/usr/bin/env python3
# merged.py INVAR FOLDER EXPECTED - compares a folder with a merged adapter with peft's adapter.
#
# EXPECTED is of make.py; log-probabilities in fp32 may differ by LIMIT.
# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of a merged model."""
import json
import subprocess
import sys
import tempfile

LIMIT = 1e-4
with open(sys.argv[3], encoding="utf-8") as expected:
    samples = json.load(expected)["samples"]
with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
    file.writelines(json.dumps({"tokens": tokens}) + "\n" for tokens, _ in samples)
    file.flush()
    done = subprocess.run([sys.argv[1], "score", "--hf-checkpoint", sys.argv[2], "--dtype", "fp32",
                           "--json", "--tokens", file.name],
                          capture_output=True, text=True, check=True)
got = [json.loads(line)["logprobs"] for line in done.stdout.splitlines()]
off = max(abs(a - b) for line, (_, right) in zip(got, samples, strict=True)
          for a, b in zip(line, right, strict=True))
print(f"log-probs differ by {off:.1e}")
sys.exit(off > LIMIT)
