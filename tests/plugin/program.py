#!/usr/bin/env python3
# program.py MODE [FILE] - a plug-in program that misbehaves in the way that MODE names.
#
# The greeting is correct except in the modes that begin with "greet-" and in "exit-at-once". An
# unknown MODE gives correct replies, as the control.
# SPDX-License-Identifier: Apache-2.0
"""A plug-in program with one fault, selected by name."""
import json
import os
import signal
import sys
import time

KINDS = ["reward", "group_reward", "filter", "loss", "hook"]


def send(text):
    sys.stdout.write(text)
    sys.stdout.flush()


def greet(mode):
    greeting = {"invar": 1, "name": "program " + mode, "kinds": KINDS}
    if mode == "exit-at-once":
        sys.exit(3)
    if mode == "greet-rubbish":
        send("hello\n")
        time.sleep(600)
    if mode == "greet-version":
        greeting["invar"] = 2
    if mode == "greet-nameless":
        del greeting["name"]
    if mode == "greet-kinds":
        greeting["kinds"] = ["filter", 7, "dance"]
    sys.stdin.readline()
    send(json.dumps(greeting) + "\n")


def make_reply(request):
    n = len(request.get("samples", []))
    count = len(request.get("logp", []))
    reply = {"id": request["id"]}
    if request["call"] == "filter":
        reply["verdicts"] = ["keep", "remove", "drop"][:n] + ["keep"] * (n - 3)
    elif request["call"] == "loss":
        reply["dlogp"] = request["logp"]
        reply["loss"] = request["old"][:count]
    elif request["call"] != "hook":
        reply["rewards"] = [s["index"] / 8 for s in request["samples"]]
    return reply


def crash(_):
    print("first line", file=sys.stderr)
    print("Traceback: it hurts\n", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def exit_code(_):
    print("no model: cannot judge", file=sys.stderr, flush=True)
    sys.exit(3)


def rubbish(_):
    send("\xff this is no JSON\n")


def deep(_):
    send("[" * 100000 + "\n")


def partial(reply):
    send(json.dumps(reply)[:-3])
    sys.exit(0)


def huge(_):
    block = "x" * (1 << 20)
    while True:
        send(block)


def wrong_id(reply):
    send(json.dumps({**reply, "id": reply["id"] + 1}) + "\n")


def no_id(reply):
    del reply["id"]
    send(json.dumps(reply) + "\n")


def close_output(_):
    os.close(1)
    time.sleep(600)


def flood(reply):
    """Writes 2 MB to standard error, then a correct reply."""
    for _ in range(2000):
        sys.stderr.write("y" * 999 + "\n")
    send(json.dumps(reply) + "\n")


def two_lines(reply):
    send((json.dumps(reply) + "\n") * 2)


def print_one(_):
    """Prints the repr of a dict instead of a reply, like a print() that is flushed early."""
    send("{'a': 1}\n")


def print_reply(reply):
    """Prints a line that reaches the caller together with the reply, like a buffered print()."""
    send(f"judging {len(reply['rewards'])} samples\n" + json.dumps(reply) + "\n")


def reply_print(reply):
    """Prints a line after the reply."""
    send(json.dumps(reply) + "\n[0.5, 1.0]\n")


def count(reply):
    send(json.dumps({**reply, "rewards": [1.0]}) + "\n")


def nan(reply):
    send(json.dumps(reply).replace("0.125", "NaN") + "\n")


def overflow(reply):
    send(json.dumps(reply).replace("0.125", "1e999") + "\n")


def text(reply):
    send(json.dumps(reply).replace("0.125", '"1"') + "\n")


def nothing(reply):
    send(json.dumps({"id": reply["id"]}) + "\n")


def refuse(reply):
    send(json.dumps({"id": reply["id"], "error": "the judge is\nout"}) + "\n")


def environment(reply):
    """Replies with the number of descriptors above 2, and 1.0 if it leads its process group."""
    fds = len([fd for fd in os.listdir("/proc/self/fd") if int(fd) > 2]) - 1
    leads = 1.0 if os.getpgid(0) == os.getpid() else 0.0
    reply["rewards"][:2] = [fds, leads]
    send(json.dumps(reply) + "\n")


def early():
    """Replies before it has read the complete request."""
    sys.stdin.read(1)
    send('{"id":0,"rewards":[]}\n')
    time.sleep(600)


def late(reply):
    """Writes the reply twice, then creates FILE to show that both lines are written."""
    send(json.dumps(reply) + "\n")
    send(json.dumps(reply) + "\n")
    with open(sys.argv[2], "w", encoding="ascii") as file:
        file.write("done")


def mortal(reply):
    """Exits while the count in FILE is positive, decrementing it; then replies correctly."""
    with open(sys.argv[2], encoding="ascii") as file:
        left = int(file.read())
    with open(sys.argv[2], "w", encoding="ascii") as file:
        file.write(str(left - 1))
    if left > 0:
        sys.exit(3)
    send(json.dumps(reply) + "\n")


MODES = {"mortal": mortal, "crash": crash, "exit": exit_code, "rubbish": rubbish, "deep": deep,
         "partial": partial,
         "huge": huge, "wrong-id": wrong_id, "no-id": no_id, "close": close_output,
         "flood": flood, "two-lines": two_lines, "late": late, "count": count, "nan": nan,
         "overflow": overflow, "text": text, "nothing": nothing, "refuse": refuse,
         "environment": environment, "print": print_one, "print-reply": print_reply,
         "reply-print": reply_print}


def main():
    mode = sys.argv[1]
    greet(mode)
    if mode == "leave":
        sys.exit(0)
    if mode == "early":
        early()
    for line in sys.stdin:
        reply = make_reply(json.loads(line))
        if mode in MODES:
            MODES[mode](reply)
        else:
            send(json.dumps(reply) + "\n")
    if mode == "stay":
        time.sleep(600)


if __name__ == "__main__":
    main()
