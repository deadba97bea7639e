#!/usr/bin/env python3
# plugin.py - a plug-in of every kind, for pairs.py: it keeps all samples and responds at once.
# SPDX-License-Identifier: Apache-2.0
"""Responds to every call of a run with the simplest valid values."""
import http.client
import json
import sys
import urllib.parse

KINDS = ["reward", "group_reward", "generate", "agent", "filter", "buffer_filter", "prompts",
         "loss", "hook"]


def complete(task):
    """Makes one call to the model, as an agent does."""
    where = urllib.parse.urlsplit(task["base_url"])
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=60)
    connection.request("POST", where.path + "/completions",
                       json.dumps({"prompt": task["prompt"], "max_tokens": 2}),
                       {"Content-Type": "application/json",
                        "Authorization": "Bearer " + task["api_key"]})
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    assert reply.status == 200, body
    return {"reward": {"right": task["id"] % 2, "total": task["id"] % 2}}


def answer(request):
    """Returns the reply without its id."""
    call, samples = request["call"], request.get("samples", [])
    if call in ("reward", "group_reward"):
        return {"rewards": [{"right": s["index"] % 2} for s in samples]}
    if call == "generate":
        return {"turns": [{"insert": ""} if s["turn"] == 1 and not s["last"] else
                          {"end": True, "reward": {"right": s["index"] % 2}} for s in samples]}
    if call == "agent":
        return complete(request)
    if call == "filter":
        return {"verdicts": ["keep"] * len(samples)}
    if call == "buffer_filter":
        return {"verdicts": ["take"] * len(samples)}
    if call == "prompts":
        return {"prompts": [(request["first"] + i) % request["lines"]
                            for i in range(request["count"])]}
    if call == "loss":
        return {"dlogp": [0.0] * len(request["logp"]), "loss": [0.0] * len(request["logp"])}
    return {}


def main():
    sys.stdin.readline()
    print(json.dumps({"invar": 1, "name": "every kind", "kinds": KINDS}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps({"id": request["id"], **answer(request)}), flush=True)


if __name__ == "__main__":
    main()
