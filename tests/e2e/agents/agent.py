#!/usr/bin/env python3
# agent.py MOOD - an agent for task:guess; MOOD selects correct or faulty behavior.
# SPDX-License-Identifier: Apache-2.0
"""Plays samples over HTTP; each mood behaves differently."""
import http.client
import json
import os
import random
import socket
import sys
import threading
import time
import urllib.parse

LAST = []  # finished tasks
OPEN_CONNECTIONS = []  # open connections


def request(task, path, fields, key=None, **more):
    """Returns status and body of the response; `more` are headers."""
    where = urllib.parse.urlsplit(task["base_url"])
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=60)
    headers = {"Content-Type": "application/json",
               "Authorization": "Bearer " + (key or task["api_key"]), **more}
    connection.request("POST", where.path + path, json.dumps(fields), headers)
    reply = connection.getresponse()
    status, body = reply.status, reply.read()
    connection.close()
    return status, body


def ask(task, prompt, **fields):
    status, body = request(task, "/completions", {"prompt": prompt, "max_tokens": 1, **fields})
    assert status == 200, (status, body)
    return json.loads(body)["choices"][0]["text"]


def expect(status, word, got):
    assert got[0] == status and word in got[1].decode(), got


def stream(task, prompt, **fields):
    """Returns the text of a streamed response."""
    fields = {"prompt": prompt, "max_tokens": 1, "stream": True, **fields}
    status, body = request(task, "/completions", fields)
    events = body.decode().split("\n\n")
    assert status == 200 and events[-2:] == ["data: [DONE]", ""], (status, body)
    return "".join(json.loads(e.removeprefix("data: "))["choices"][0]["text"] for e in events[:-2])


def at_once(task, prompt, count):
    """Makes the same call several times at once. Returns the sorted responses."""
    out = [None] * count

    def one(i):
        out[i] = ask(task, prompt)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(out)


def play(task):
    """Continues the conversation; odd samples also make two calls at once, number calls, and
    retry."""
    said, secret, odd = task["prompt"], task["label"], task["id"] % 2
    for turn in range(3):
        if odd and turn == 1:
            first = ask(task, said, seed=5)
            assert ask(task, said, seed=5) == first == stream(task, said, seed=5)
            ask(task, said, seed=6)
            at_once(task, said, 2)
        guess = ask(task, said)
        if guess == secret:
            return {"found": 1.0, "quick": 1.0 / (1 + turn), "total": 1.0}
        said += guess + ("<" if secret < guess else ">")
    return {"found": 0.0, "quick": 0.0, "total": 0.0}


def forget(task):
    """Drops its first guess, like templates that strip old reasoning; this starts a branch."""
    first = ask(task, task["prompt"])
    second = ask(task, task["prompt"] + "<" + first)
    ask(task, task["prompt"] + "<" + first + second + ">")
    return float(first == task["label"])


def chat(task):
    """Two turns of a chat, whose template decides how much of the first turn is in the second
    prompt."""
    messages, content = [{"role": "user", "content": "Hello"}], ""
    for _ in range(2):
        fields = {"messages": messages, "max_completion_tokens": 4, "logprobs": True}
        status, body = request(task, "/chat/completions", fields)
        assert status == 200, (status, body)
        content = json.loads(body)["choices"][0]["message"]["content"]
        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": "!"}]
    return len(content) / 10


def probe(task):
    """Checks rejected calls and their messages; the session continues."""
    good = {"prompt": "?", "max_tokens": 1}
    for field, value in [("temperature", 0.5), ("top_p", 0.9), ("top_k", 3), ("min_p", 0.5),
                         ("min_tokens", 1), ("n", 2), ("echo", True)]:
        expect(400, field, request(task, "/completions", {**good, field: value}))
    expect(400, "prompt", request(task, "/completions", {**good, "prompt": ["?", "?"]}))
    expect(400, "max_tokens", request(task, "/completions", {**good, "max_tokens": 0}))
    expect(400, "agent-max-calls", [ask(task, "?", seed=i) for i in range(4)] and
           request(task, "/completions", {**good, "seed": 9}))
    expect(401, "key", request(task, "/completions", good, key="invar-0"))
    foreign_host(task, good)
    flood_connections(task, 300)  # more than the port allows: other clients still get a connection
    if LAST:
        expect(401, "key", request(LAST[-1], "/completions", good))
    return 0.5


def foreign_host(task, good):
    """A request with a foreign Host (DNS rebinding) is rejected, with and without a valid key."""
    port = urllib.parse.urlsplit(task["base_url"]).port
    for host in (f"evil.example:{port}", "evil.example", f"127.0.0.1.evil.example:{port}",
                 f"127.0.0.1:{port + 1}", "localhost"):
        for key in (None, "invar-0"):
            expect(403, "127.0.0.1", request(task, "/completions", good, key, Host=host))
    ask(task, "?", seed=0)


def flood_connections(task, count):
    """Opens connections without a key: half of them send nothing, half a part of a request."""
    where = urllib.parse.urlsplit(task["base_url"])
    for i in range(count):
        OPEN_CONNECTIONS.append(socket.create_connection((where.hostname, where.port)))
        OPEN_CONNECTIONS[-1].sendall(b"POST /v1/completions HTTP/1.1\r\n" * (i % 2))
    ask(task, "?", seed=0)
    while OPEN_CONNECTIONS:
        OPEN_CONNECTIONS.pop().close()


def branchy(task):
    for prompt in ["?<", "?>"]:
        ask(task, prompt)
    expect(400, "agent-max-branches", request(task, "/completions", {"prompt": "?0"}))
    return 0.5


def long(task):
    """Responses of several tokens; later prompts contain earlier responses."""
    said = task["prompt"]
    for _ in range(2):
        said += ask(task, said, max_tokens=5)
    return float(task["label"] in said)


def cool(task):
    """In evaluations the evaluation's temperature applies; only evaluations get a reward."""
    evaluation = task.get("evaluation", False)
    ask(task, task["prompt"], temperature=0.5 if evaluation else 1)
    refused = {"prompt": "?", "temperature": 1 if evaluation else 0.5}
    expect(400, "temperature", request(task, "/completions", refused))
    return float(evaluation)


def nothing(task):
    return 0.25


def lead(mood, task):
    """Returns the members of the last line."""
    log_call(task)
    if mood == "other" and task["id"] == 5:
        ask(task, "?<")
    if mood == "dies" and task["id"] == 2:
        ask(task, "?")
        sys.exit("agent.py: it dies")
    if mood == "sleeps" or (mood == "hangs" and task["id"] == 2):
        time.sleep(600)
    if mood == "alone" and task["id"] != 2:
        time.sleep(600)
    if mood in ("refuses", "alone") and task["id"] == 2:
        return {"error": "no such tool"}
    if mood == "mute":
        ask(task, "?")
        return {}
    if mood == "random":
        return {"reward": random.random() + 0 * len(ask(task, "?"))}
    if mood == "vast":
        return {"reward": 1e300}
    if mood == "odd":
        return {"reward": "much"}
    moods = {"forget": forget, "chat": chat, "probe": probe, "branchy": branchy, "nothing": nothing,
             "long": long, "cool": cool}
    return {"reward": moods.get(mood, play)(task), "why": mood}


def log_call(task):
    """Logs the call. After rollout 1, even samples block while the file `stuck` exists."""
    with open("examined" if "evaluation" in task else "asked", "a", encoding="ascii") as file:
        file.write(f"{task['rollout']} {task['id']}\n")
    while task["rollout"] > 1 and task["id"] % 2 == 0 and os.path.exists("stuck"):
        time.sleep(0.05)


def main():
    mood = sys.argv[1]
    sys.stdin.readline()
    kind = "reward" if mood == "stranger" else "agent"
    print(json.dumps({"invar": 1, "name": "agent", "kinds": [kind]}), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        words = {"id": task["id"] + (mood == "mixed"), **lead(mood, task)}
        print("rubbish" if mood == "rubbish" else json.dumps(words), flush=True)
        LAST.append(task)


if __name__ == "__main__":
    main()
