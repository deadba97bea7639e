#!/usr/bin/env python3
# loss.py - a loss plug-in whose loss depends on the log-probs of training.
# SPDX-License-Identifier: Apache-2.0
import json
import sys

json.loads(sys.stdin.readline())
print(json.dumps({"invar": 1, "name": "loss", "kinds": ["loss"]}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    tokens = list(zip(request["advantage"], request["logp"]))
    reply = {"id": request["id"], "loss": [-a * p for a, p in tokens],
             "dlogp": [-a + 0.125 * p for a, p in tokens]}
    print(json.dumps(reply), flush=True)
