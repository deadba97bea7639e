#!/usr/bin/env python3
# agent.py - an agent that makes one call, returns a reward computed from the sample number, and
# appends the number to the file `asked`.
#
# If the file kill-at-10 exists, sample 10 kills the process named in the file `victim`, after the
# sessions of samples 8 and 9 have ended.
# SPDX-License-Identifier: Apache-2.0
import http.client
import json
import os
import signal
import sys
import urllib.parse


def ask(task):
    where = urllib.parse.urlsplit(task["base_url"])
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=60)
    connection.request("POST", where.path + "/completions",
                       json.dumps({"prompt": task["prompt"], "max_tokens": 2}),
                       {"Content-Type": "application/json",
                        "Authorization": "Bearer " + task["api_key"]})
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    assert reply.status == 200, (reply.status, body)


def main():
    sys.stdin.readline()
    print(json.dumps({"invar": 1, "name": "agent", "kinds": ["agent"]}), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        with open("asked", "a", encoding="ascii") as file:
            file.write(f"{task['id']}\n")
        if task["id"] == 10 and os.path.exists("kill-at-10"):
            with open("victim", encoding="ascii") as file:
                os.kill(int(file.read()), signal.SIGKILL)
        ask(task)
        print(json.dumps({"id": task["id"], "reward": task["id"] * 37 % 64 / 64}), flush=True)


if __name__ == "__main__":
    main()
