#!/usr/bin/env python3
# hostile.py INVAR - invar serve against clients that want its memory, connections or framing.
#
# All requests go over raw sockets on the loopback. Every loop is bounded, and no check depends on
# how long something takes.
# SPDX-License-Identifier: Apache-2.0
import json
import pathlib
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from client import JSON, Server, expect, finish  # noqa: E402

INVAR = sys.argv[1]
MODEL = "tests/oracle/folders/4.57.6/qwen3-fp16"
WORDS = ["--hf-checkpoint", MODEL, "--dtype", "fp32", "--threads", "1"]
TEXT = "/v1/completions"


# ---- memory -------------------------------------------------------------------------------------


def peak_mib(server):
    """The most memory that the server's process has had."""
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line) >> 10


def at_once(server, body, count):
    """The statuses and headers of the same request, sent by several clients at the same time."""
    replies = []
    clients = [threading.Thread(target=lambda: replies.append(server.raw("POST", TEXT, body)))
               for _ in range(count)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return replies


def check_values():
    """Small JSON values cannot take hundreds of times their size."""
    server = Server(INVAR, *WORDS)
    server.complete(prompt="a", max_tokens=1)
    before = peak_mib(server)
    for small in ("[],", "{},", "1,", '"",'):
        many = small * ((4 << 20) // len(small) - 16)
        for status, _, body in at_once(server, '{"user": [' + many.rstrip(",") + "]}", 8):
            message = json.loads(body)["error"]["message"]
            expect(status == 400 and "more than 131200 JSON values" in message,
                   f"many {small}: {status} {message}")
    grown = peak_mib(server) - before
    expect(grown < 256, f"8 requests of 4 MiB have taken {grown} MiB")
    most = ",".join(["1"] * 131000)  # any prompt of tokens fits
    status, _, body = server.raw("POST", TEXT, '{"prompt": [[' + most + "]]}")
    expect(status == 400 and "the longest that is taken" in body.decode(), f"{status} {body}")
    server.stop()


def check_budget():
    """Requests that together need more memory than there is are told to come again."""
    server = Server(INVAR, *WORDS, "--max-memory-bytes", str(1 << 20))
    text = json.dumps({"prompt": "a", "max_tokens": 1, "user": "x" * 20000})
    expect(server.raw("POST", TEXT, text)[0] == 200, "a request that fits")
    status, _, body = server.raw("POST", TEXT, json.dumps({"user": "x" * 600000}))
    expect(status == 400 and "--max-memory-bytes" in body.decode(), f"a body: {status} {body}")
    status, _, body = server.raw("POST", TEXT, '{"user": [' + ",".join(["1"] * 4000) + "]}")
    expect(status == 400 and "--max-memory-bytes" in body.decode(), f"values: {status} {body}")
    held = server.connect()  # its body never comes
    held.putrequest("POST", TEXT)
    for name, value in {**JSON, "Content-Length": "500000", "Expect": "100-continue"}.items():
        held.putheader(name, value)
    held.endheaders()
    held.sock.recv(12)  # 100 Continue: the memory is reserved
    status, headers, body = server.raw("POST", TEXT, text)
    expect(status == 429 and headers["Retry-After"] == "1" and b"memory" in body,
           f"beside a large request: {status} {body}")
    expect(server.raw("GET", "/health")[0] == 200, "what has no body needs none")
    held.close()
    for _ in range(500):  # until the server has seen that the client has gone
        status = server.raw("POST", TEXT, text)[0]
        if status != 429:
            break
    expect(status == 200, f"the memory of a client that has gone is not given back: {status}")
    server.stop()


def main():
    check_values()
    check_budget()
    finish()


main()
