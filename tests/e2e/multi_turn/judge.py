#!/usr/bin/env python3
# judge.py - a group reward plug-in; it checks the rewards of environment.py, and gives other ones.
# SPDX-License-Identifier: Apache-2.0
import json
import sys

sys.stdin.readline()
print(json.dumps({"invar": 1, "name": "judge", "kinds": ["group_reward"]}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    group = request["samples"]
    if len(group) != 2 or len({s["group"] for s in group}) != 1:
        sys.exit("judge.py: not a whole group")
    if [s["reward"] for s in group if s["index"] % 2 == 0] != [0.25]:
        sys.exit("judge.py: the environment's reward is not shown")
    rewards = [{"rank": 10.0 + s["index"], "seen": s["reward"]} for s in group]
    print(json.dumps({"id": request["id"], "rewards": rewards}), flush=True)
