#!/usr/bin/env python3
# judge.py - a reward plug-in with random rewards that can kill its run.
#
# If the file kill-at-3 exists, the fourth request kills the process named in the file `victim`, so
# that a run always ends at the same step.
# SPDX-License-Identifier: Apache-2.0
import json
import os
import random
import signal
import sys

json.loads(sys.stdin.readline())
print(json.dumps({"invar": 1, "name": "judge", "kinds": ["reward"]}), flush=True)
for number, line in enumerate(sys.stdin):
    if number == 3 and os.path.exists("kill-at-3"):
        with open("victim", encoding="ascii") as file:
            os.kill(int(file.read()), signal.SIGKILL)
    request = json.loads(line)
    rewards = [random.randrange(64) / 64 for _ in request["samples"]]
    print(json.dumps({"id": request["id"], "rewards": rewards}), flush=True)
