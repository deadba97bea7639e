#!/usr/bin/env python3
# failing.py - a reward plug-in that fails after the number of requests in the file `left`.
# SPDX-License-Identifier: Apache-2.0
import json
import sys

left = int(open("left", encoding="ascii").read())
json.loads(sys.stdin.readline())
print(json.dumps({"invar": 1, "name": "failing", "kinds": ["reward"]}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if left == 0:
        sys.exit("out of order")
    left -= 1
    rewards = [s["index"] % 3 / 2 for s in request["samples"]]
    print(json.dumps({"id": request["id"], "rewards": rewards}), flush=True)
