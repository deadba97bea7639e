#!/usr/bin/env python3
# hostile.py INVAR - invar serve against clients that attack its memory, connections or framing.
#
# All requests use raw sockets on the loopback. Every loop is bounded, and no check depends on
# timing. With INVAR_TEST_FULL=1 more kinds of texts exceed the memory budget.
# SPDX-License-Identifier: Apache-2.0
import json
import os
import pathlib
import select
import shutil
import socket
import sys
import tempfile
import threading

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from client import JSON, Server, expect, finish  # noqa: E402

INVAR = sys.argv[1]
MODEL = "tests/oracle/folders/4.57.6/qwen3-fp16"
FULL = bool(os.environ.get("INVAR_TEST_FULL"))
# The model has no chat template: servers of it start no Python, which takes most of their time.
PLAIN = tempfile.TemporaryDirectory()
WORDS = ["--hf-checkpoint", PLAIN.name, "--dtype", "fp32", "--threads", "1"]
TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
# Sanitizers need extra memory, and keep freed memory.
SANITIZED = any(name in pathlib.Path(INVAR).read_bytes()
                for name in (b"__asan_init", b"__tsan_init"))


# ---- memory -------------------------------------------------------------------------------------


def peak_mib(server):
    """Returns the peak memory of the server's process in MiB."""
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line) >> 10


def send_at_once(server, body, count, path=TEXT):
    """Sends the same request from several clients at once. Returns their responses."""
    replies = []
    clients = [threading.Thread(target=lambda: replies.append(server.raw("POST", path, body)))
               for _ in range(count)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return replies


def check_values():
    """Small JSON values must not need hundreds of times their size."""
    server = Server(INVAR, *WORDS)
    server.complete(prompt="a", max_tokens=1)
    before = peak_mib(server)
    for small in ("[],", "{},", "1,", '"",') if FULL else ("{},",):
        many = small * ((4 << 20) // len(small) - 16)
        for status, _, body in send_at_once(server, '{"user": [' + many.rstrip(",") + "]}", 8):
            message = json.loads(body)["error"]["message"]
            expect(status == 400 and "more than 131200 JSON values" in message,
                   f"many {small}: {status} {message}")
    grown = peak_mib(server) - before
    expect(grown < 256, f"8 requests of 4 MiB have taken {grown} MiB")
    most = ",".join(["1"] * 131000)  # any prompt of tokens fits
    status, _, body = server.raw("POST", TEXT, '{"prompt": [[' + most + "]]}")
    expect(status == 400 and "the longest that is taken" in body.decode(), f"{status} {body}")
    server.stop()


def copy_with_longer_context(folder, tokens):
    """Copies the model with a longer context, so that texts are tokenized before they are
    rejected."""
    shutil.copytree(MODEL, folder)
    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    config["max_position_embeddings"] = tokens
    (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))


def check_texts():
    """Tokenizing texts, chats and tool-call arguments stays within the memory budget."""
    server = Server(INVAR, *WORDS)
    status, _, body = server.raw("POST", TEXT, json.dumps({"prompt": "x" * 4000000}))
    message = json.loads(body)["error"]["message"]
    expect(status == 400 and "4000000 bytes of text, at least " in message and
           "the longest that is taken has 127" in message, f"a text too long: {status} {message}")
    server.stop()
    long = 4 * 1000 * 1000

    def chat(**message):
        return CHAT, {"messages": [{"role": "assistant", "content": "", **message}]}

    arguments = "[" + "[]," * (long // 3) + "1]"
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    with tempfile.TemporaryDirectory() as scratch:
        copy_with_longer_context(f"{scratch}/model", 39000)
        server = Server(INVAR, "--hf-checkpoint", f"{scratch}/model", *WORDS[2:],
                        "--max-memory-bytes", str(64 << 20))
        server.complete(prompt="a", max_tokens=1)
        server.chat(messages=[{"role": "user", "content": "a"}], max_tokens=1)
        before = peak_mib(server)
        # One text per reader: a text, a list of texts, tool calls and many messages.
        cases = [(TEXT, {"prompt": "\u4f60" * (long // 6)}),
                 (TEXT, {"prompt": ["x" * 3000] * 1000 + ["x" * 100000]}),
                 chat(tool_calls=[call]),
                 (CHAT, {"messages": [{"role": "user", "content": "a"}] * 40000})]
        if FULL:
            cases += [(TEXT, {"prompt": "x" * long}),
                      (TEXT, {"prompt": " " * long}),
                      (TEXT, {"prompt": "the" * (long // 3)}),
                      chat(content="x" * long),
                      chat(content=[{"type": "text", "text": "x" * long}])]
        for path, fields in cases:
            fields["max_tokens"] = 1
            for status, _, body in send_at_once(server, json.dumps(fields), 12, path):
                message = json.loads(body).get("error", {}).get("message", "")
                expect((status == 400 and ("--max-memory-bytes" in message or
                                           "the longest that is taken" in message)) or
                       (status == 429 and "memory that this one needs" in message),
                       f"beyond the budget: {str(fields)[:99]}: {status} {message}")
        # Each of these fits alone: the requests wait for each other, and none gets status 429.
        for fields in ({"prompt": "x" * 400000}, {"prompt": ["x" * 3000] * 100 + ["x" * 100000]}):
            for status, _, body in send_at_once(server, json.dumps(fields), 12):
                expect(status == 400 and "the longest that is taken has 38999" in body.decode(),
                       f"within the budget: {str(fields)[:99]}: {status} {body}")
        grown = peak_mib(server) - before  # threads and connections need some more
        expect(SANITIZED or grown < 64 + 8,
               f"a budget of 64 MiB, and requests have taken {grown} MiB")
        server.stop()


def start_request(server, headers, data=b""):
    """Returns a connection whose request was admitted and whose body begins with this data."""
    s = socket.create_connection(("127.0.0.1", server.port))
    s.settimeout(120)
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost:%d\r\nExpect: 100-continue\r\n"
              b"Content-Type: application/json\r\n%s\r\n" % (server.port, headers))
    got = b""
    while not got.endswith(b"\r\n\r\n") and (more := s.recv(1)):
        got += more
    expect(got.startswith(b"HTTP/1.1 100 "), f"a request that has only begun: {got}")
    s.sendall(data)
    return s


def check_unsent():
    """Bodies that do not arrive take no memory from other requests."""
    server = Server(INVAR, *WORDS, "--max-memory-bytes", str(1 << 20))
    chunked = b"Transfer-Encoding: chunked\r\n"
    held = [start_request(server, headers, data) for _ in range(30) for headers, data in (
        (chunked, b"1\r\n{\r\n"), (b"Content-Length: 500000\r\n", b"{"))]
    body = b'{"prompt":"a","max_tokens":1}'
    long = json.dumps({"prompt": "a", "max_tokens": 1, "user": "x" * 60000})
    status, _, reply = server.raw("POST", TEXT, long)
    expect(status == 200, f"beside {len(held)} bodies that do not arrive: {status} {reply}")
    for headers, data, code in (
            (b"Connection: close\r\n" + chunked, b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body), 200),
            (b"Content-Length: 0\r\n", b"", 400)):
        got = exchange(server.port, b"POST /v1/completions HTTP/1.1\r\nHost: localhost:%d\r\n"
                       b"Content-Type: application/json\r\n%s\r\n%s" % (server.port, headers, data))
        expect(got.startswith(b"HTTP/1.1 %d " % code) and b"memory" not in got,
               f"a short body, {headers}: {got}")
    for s in held:
        s.close()
    server.stop()


def check_budget():
    """Requests that together exceed the memory budget get status 429."""
    server = Server(INVAR, *WORDS, "--max-memory-bytes", str(1 << 20))
    text = json.dumps({"prompt": "a", "max_tokens": 1, "user": "x" * 60000})
    expect(server.raw("POST", TEXT, text)[0] == 200, "a request that fits")
    status, _, body = server.raw("POST", TEXT, json.dumps({"user": "x" * 600000}))
    expect(status == 400 and "--max-memory-bytes" in body.decode(), f"a body: {status} {body}")
    status, _, body = server.raw("POST", TEXT, '{"user": [' + ",".join(["1"] * 4000) + "]}")
    expect(status == 400 and "--max-memory-bytes" in body.decode(), f"values: {status} {body}")
    # The server sees the small request first in some rounds; in others the large one has the
    # memory.
    for _ in range(50):
        held = start_request(server, b"Content-Length: 524000\r\n")
        held.sendall(b"x" * 500000)  # the rest is never sent
        for _ in range(10):  # time for the server to receive these bytes
            server.raw("GET", "/health")
        status, headers, body = server.raw("POST", TEXT, text)
        if status != 200:
            break
        held.close()
    expect(status == 429 and headers["Retry-After"] == "1" and b"memory" in body,
           f"beside a large request: {status} {body}")
    expect(server.raw("GET", "/health")[0] == 200, "what has no body needs no memory")
    held.close()
    for _ in range(500):  # until the server notices that the client has gone
        status = server.raw("POST", TEXT, text)[0]
        if status != 429:
            break
    expect(status == 200, f"the memory of a client that has gone is not given back: {status}")
    server.stop()


# ---- connections --------------------------------------------------------------------------------


def open_idle(port, count, data=b""):
    """Opens connections that send this data and then nothing."""
    held = []
    for _ in range(count):
        s = socket.create_connection(("127.0.0.1", port))
        s.sendall(data)
        held.append(s)
    return held


def check_idle():
    """Connections without a complete request do not block other clients."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost:%d\r\n"
    key = {"INVAR_API_KEY": "secret"}
    for env in ({}, key) if FULL else ({},):
        server = Server(INVAR, *WORDS, "--client-seconds", "600", "--max-requests", "4", env=env)
        good = {**JSON, **({"Authorization": "Bearer secret"} if env else {})}
        start = head % server.port
        held = []
        for data in (b"", start, start + b"Content-Type: application/json\r\nContent-Length: 9"
                     b"\r\n\r\n{"):
            held += open_idle(server.port, 200, data)  # 68 connections are served at a time
            for _ in range(3):
                status, _, body = server.raw("POST", TEXT, '{"prompt": "a", "max_tokens": 1}', good)
                expect(status == 200, f"behind {len(held)} idle connections: {status} {body}")
        for s in held:
            s.close()
        server.stop()


def check_files():
    """Idle connections block no client if the process may open only few files."""
    for files in (40, 256) if FULL else (40,):
        server = Server(INVAR, *WORDS, "--client-seconds", "600", files=files)
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost:%d\r\n" % server.port
        body = b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        for data in (b"", head, head + body):
            held = open_idle(server.port, 300, data)
            for _ in range(3):
                status, _, body = server.raw("POST", TEXT, '{"prompt": "a", "max_tokens": 1}')
                expect(status == 200, f"{files} files, {data}: {status} {body}")
            for s in held:
                s.close()
        server.stop()


def is_open(s):
    """Returns whether the server has left the connection open and sent nothing."""
    s.setblocking(False)
    try:
        return s.recv(1) is None
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    finally:
        s.setblocking(True)


def check_full_table():
    """A full connection table closes no connection while no other client connects."""
    server = Server(INVAR, *WORDS, "--client-seconds", "600", "--max-requests", "1")
    held = open_idle(server.port, 128, b"GET")  # the table has 129 rows
    expect(server.raw("GET", "/health")[0] == 200, "the last row of the table")
    expect(all(is_open(s) for s in held), "a connection was closed although no other came")
    for s in held:
        s.close()
    server.stop()


def read_to_close(s):
    """Returns all bytes until the server closes the connection."""
    got = b""
    s.settimeout(60)
    try:
        while more := s.recv(1 << 16):
            got += more
    except (ConnectionError, TimeoutError):
        pass
    s.close()
    return got


def check_keyed():
    """Clients with the key lose no connection to others, and wait in the order of arrival."""
    key, body = b"Authorization: Bearer secret\r\n", b'{"prompt":"a","max_tokens":1}'
    length = b"Content-Length: %d\r\n" % len(body)
    server = Server(INVAR, *WORDS, "--client-seconds", "600", "--max-requests", "1",
                    env={"INVAR_API_KEY": "secret"})
    # the maximum that is served
    keyed = [start_request(server, key + length, body[:1]) for _ in range(65)]
    head = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
            b"application/json\r\n" + length)
    waiting = open_idle(server.port, 1, head + b"\r\n" + body)
    waiting += open_idle(server.port, 3, head + key + b"Expect: 100-continue\r\n\r\n")
    for _ in range(3):  # rejected by the thread that has checked the others before
        expect(b" 400 " in exchange(server.port, b"GET /\n"), "a head without CR")
    expect(all(is_open(s) for s in keyed), "a client with the key has lost its connection")
    expect(all(is_open(s) for s in waiting), "a client was not made to wait")
    keyed[0].sendall(body[1:])
    expect(keyed[0].recv(12) == b"HTTP/1.1 200", "a client with the key that sends its body")
    expect(select.select(waiting, [], [], 120)[0] == waiting[1:2], "not the oldest with the key")
    for s in keyed[1:] + waiting[1:]:
        s.close()
    expect(b" 401 " in read_to_close(waiting[0]), "the client without the key is not served")
    for s in keyed + waiting:
        s.close()
    server.stop()


def check_set_aside():
    """Clients without the key cannot use all connections, whatever they send."""
    key = b"Authorization: Bearer secret\r\n"
    server = Server(INVAR, *WORDS, "--client-seconds", "600", "--max-requests", "4", files=256,
                    env={"INVAR_API_KEY": "secret"})
    head = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\n")
    good = {**JSON, "Authorization": "Bearer secret"}
    keyed = [start_request(server, key + b"Content-Length: 9\r\n", b"{") for _ in range(40)]
    held = []
    for data in (b"", head, head + b"Content-Length: 9\r\n\r\n{",
                 head + b"Authorization: Bearer wrong\r\nContent-Length: 9\r\n\r\n{"):
        held += open_idle(server.port, 150, data)  # 68 are served, 124 are polled
        for _ in range(3):
            status, _, body = server.raw("POST", TEXT, '{"prompt": "a", "max_tokens": 1}', good)
            expect(status == 200, f"{len(held)} clients without the key, {data}: {status} {body}")
    expect(all(is_open(s) for s in keyed), "a client with the key has lost its connection")
    for s in held:
        s.close()
    keyed += [start_request(server, key + b"Content-Length: 9\r\n", b"{") for _ in range(28)]
    # none of them is served
    waiting = open_idle(server.port, 300, head + b"Content-Length: 0\r\n\r\n")
    last = open_idle(server.port, 1, head + key + b"Expect: 100-continue\r\n"
                  b"Content-Length: 9\r\n\r\n")
    for _ in range(3):  # rejected by the thread that has checked the others before
        expect(b" 400 " in exchange(server.port, b"GET /\n"), "a head without CR")
    keyed[0].close()
    last[0].settimeout(120)
    expect(last[0].recv(12) == b"HTTP/1.1 100", "a client with the key waits behind others")
    for s in waiting:
        s.setblocking(False)
        try:
            expect(s.recv(12) != b"HTTP/1.1 401", "a client without the key was served before")
        except (BlockingIOError, ConnectionError):
            pass  # it waits, or was closed to make room
    for s in keyed + waiting + last:
        s.close()
    server.stop()


# ---- framing ------------------------------------------------------------------------------------


def exchange(port, data):
    """Returns all bytes until the server closes the connection."""
    s = socket.create_connection(("127.0.0.1", port))
    s.sendall(data)
    return read_to_close(s)


def check_framing():
    """Ambiguous framing is rejected, and bytes after a request are never a second request."""
    server = Server(INVAR, *WORDS)
    head = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost:%d\r\nContent-Type: "
            b"application/json\r\n" % server.port)
    body = b'{"prompt":"a","max_tokens":1}'
    length = b"Content-Length: %d\r\n" % len(body)
    chunked = b"Transfer-Encoding: chunked\r\n"
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    other = b"GET /health HTTP/1.1\r\nHost: localhost:%d\r\n\r\n" % server.port
    for data, code, why in (
            (head + length + b"\r\n" + body, 200, ""),
            (head + chunked + b"\r\n" + chunks, 200, ""),
            # The HTTP library decodes chunks and ignores bytes after them: there must be only one
            # response.
            (head + chunked + b"\r\n" + chunks + other, 200, ""),
            (head + chunked + b"\r\n" + chunks.replace(b"\r\n", b"\n") + other, 200, ""),
            (head + chunked + b"\r\n" + chunks[:-2] + length + b"\r\n" + other, 200, ""),
            (head + length + length + b"\r\n" + body, 400, "two headers Content-Length"),
            (head + length + b"Content-Length: 3\r\n\r\n" + body, 400, "two headers"),
            (head + length + chunked + b"\r\n" + chunks, 400, "and Content-Length"),
            (head + chunked + length + b"\r\n" + chunks, 400, "and Content-Length"),
            (head + b"X: a\0b\r\n" + length + b"\r\n" + body, 400, "NUL"),
            (head + b"X\0: b\r\n" + length + b"\r\n" + body, 400, "NUL"),
            (head + b"Content-Length : 29\r\n\r\n" + body, 400, "a blank in its name"),
            (head + length + b"X: a\r\n b\r\n\r\n" + body, 400, "two lines"),
            (head + length + b"\r\n" + body + other, 400, "bytes behind it"),
            (head + b"\r\n" + body, 400, "bytes behind it"),
            (other + other, 400, "bytes behind it"),
            (b"GET / HTTP/1.1\nHost: a\n\n", 400, "CR LF"),
            (b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\n\r\n", 431, "too long"),
            (b"\x16\x03\x01\x02\x00\x01\n", 400, "CR LF")):
        got = exchange(server.port, data).decode()
        expect(got.startswith(f"HTTP/1.1 {code} ") and got.count("HTTP/1.1") == 1 and why in got,
               f"{data[:300]}: {got}, expected {code} {why}")
    late = start_request(server, length)  # the head is read before the rest is sent
    late.sendall(body + other)
    got = read_to_close(late)
    expect(got.startswith(b"HTTP/1.1 200 ") and got.count(b"HTTP/1.1") == 1,
           f"bytes behind a body that arrive after the head: {got}")
    server.stop()


def main():
    shutil.copytree(MODEL, PLAIN.name, dirs_exist_ok=True)
    (pathlib.Path(PLAIN.name) / "chat_template.jinja").unlink()
    check_values()
    check_texts()
    check_budget()
    check_unsent()
    check_idle()
    check_files()
    check_full_table()
    check_keyed()
    check_set_aside()
    check_framing()
    finish()


main()
