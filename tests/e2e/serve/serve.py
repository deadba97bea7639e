#!/usr/bin/env python3
# serve.py INVAR FOLDER - invar serve: responses, rejections, streams, limits, and bits under load.
#
# Responses are compared with `invar generate` and `invar score`, streams with complete responses,
# and all responses of 64 clients with those of a client alone. Control: another seed or sample must
# differ. With INVAR_TEST_FULL=1 clients have more requests, and one does not read its stream.
# SPDX-License-Identifier: Apache-2.0
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from client import JSON, Server, expect, finish  # noqa: E402

INVAR, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])
FULL = bool(os.environ.get("INVAR_TEST_FULL"))
MODEL = "tests/oracle/folders/4.57.6/qwen3-fp16"
ADAPTED = "tests/oracle/folders/4.57.6/llama-fp16-tied"
WORDS = ["--hf-checkpoint", MODEL, "--dtype", "fp32", "--threads", "1"]
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"


def program(*words, stdin=None):
    done = subprocess.run([INVAR, *words], capture_output=True, text=True, input=stdin)
    expect(done.returncode == 0, f"invar {words}: {done.returncode} {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def generated(*words):
    """Returns response tokens and log-probs of `invar generate`."""
    return [(line["tokens"][line["prompt_tokens"]:], line["logprobs"])
            for line in program("generate", *words, "--json")]


def choices(reply):
    """Returns response tokens and log-probs of a completion with logprobs and return_token_ids."""
    return [(c["token_ids"], c["logprobs"]["token_logprobs"]) for c in reply["choices"]]


# ---- the same tokens as generate and score ------------------------------------------------------


def check_generate(server):
    wanted = dict(prompt="Hello", max_tokens=20, logprobs=0, return_token_ids=True)
    base = [*WORDS, "--prompt", "Hello", "--rollout-max-response-len", "20"]
    variants = [({}, []), ({"seed": 7, "n": 3}, ["--rollout-seed", "7", "--n", "3"]),
            ({"temperature": 0}, ["--rollout-temperature", "0"]),
            ({"temperature": 0.7, "top_p": 0.8, "seed": 0},
             ["--rollout-temperature", "0.7", "--rollout-top-p", "0.8", "--rollout-seed", "0"]),
            ({"temperature": 0.001, "top_p": 1e-6, "min_p": 1e-40},
             ["--rollout-temperature", "0.001", "--rollout-top-p", "1e-6", "--rollout-min-p",
              "1e-40"]),
            ({"top_k": 5, "min_p": 0.02, "seed": 4294967295},
             ["--rollout-top-k", "5", "--rollout-min-p", "0.02", "--rollout-seed", "4294967295"])]
    seen = []
    for fields, words in variants:
        reply = server.complete(**wanted, **fields)
        expect(choices(reply) == generated(*base, *words), f"{fields}: not what generate gives")
        expect(reply["invar"]["seed"] == fields.get("seed", 42), "the seed of a reply")
        expect(reply["invar"]["samples"] == list(range(fields.get("n", 1))), "its samples")
        seen.append(choices(reply)[0])
    expect(len({str(s) for s in seen}) == len(variants), "control: other settings, other tokens")
    three = choices(server.complete(**wanted, seed=7, n=3))
    expect(len({str(c) for c in three}) == 3, "control: the samples of a prompt differ")
    # The position in a list of prompts does not matter.
    several = choices(server.complete(**{**wanted, "prompt": ["x", "Hello", "yz"]}, seed=7))
    expect(several[1] == three[0], "a prompt in a list is another one")
    say = [{"role": "user", "content": "Hi"}]
    reply = server.chat(messages=say, max_tokens=9, logprobs=True, return_token_ids=True)
    alone = generated(*WORDS, "--prompt", "Hi", "--apply-chat-template", "true",
                      "--rollout-max-response-len", "9")
    content = reply["choices"][0]["logprobs"]["content"]
    expect([(reply["choices"][0]["token_ids"], [t["logprob"] for t in content])] == alone,
           "a chat is not what generate gives")
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    again = server.chat(messages=parts, max_tokens=9, logprobs=True, return_token_ids=True)
    expect(again["choices"] == reply["choices"], "text in parts is another prompt")
    expect(server.chat(messages=say)["choices"][0]["finish_reason"] in ("length", "stop"),
           "a chat without a length ends with the context")


def check_score(server):
    ids = [[5, 6, 7, 8, 9, 10], [42, 71, 78, 78, 81]]
    lines = "".join(json.dumps({"tokens": t}) + "\n" for t in ids)
    scored = [line["logprobs"] for line in
              program("score", *WORDS, "--tokens", "-", "--json", stdin=lines)]
    reply = server.complete(prompt=ids, max_tokens=0, echo=True, logprobs=0)
    for choice, expected in zip(reply["choices"], scored):
        expect(choice["logprobs"]["token_logprobs"] == [None, *expected], "echo is no score")
    expect(reply["choices"][1]["text"] == "Hello", "the echo of tokens is their text")
    expect(reply["usage"]["completion_tokens"] == 0, "a score generates nothing")
    both = server.complete(prompt="Hello", max_tokens=4, echo=True, logprobs=0)["choices"][0]
    only = server.complete(prompt="Hello", max_tokens=4, logprobs=0)["choices"][0]
    expect(both["text"] == "Hello" + only["text"], "the text behind an echo")
    expect(both["logprobs"]["token_logprobs"] ==
           [None, *scored[1], *only["logprobs"]["token_logprobs"]], "log-probs behind an echo")
    expect(both["logprobs"]["text_offset"][:6] == [0, 1, 2, 3, 4, 5], "the offsets of an echo")


# ---- streams, stops, tools ----------------------------------------------------------------------


def joined(events):
    """Joins the events of a stream. Returns text, log-probs, token ids and finish reason per
    choice."""
    out = {}
    for event in events:
        for c in event["choices"]:
            said = c.get("text") or c.get("delta", {}).get("content") or ""
            now = out.setdefault(c["index"], ["", [], [], None])
            now[0] += said
            now[1] += (c["logprobs"] or {}).get("token_logprobs", [])
            now[2] += c.get("token_ids", [])
            expect(now[3] is None, "nothing comes behind the end of a choice")
            now[3] = c["finish_reason"]
    return [out[i] for i in sorted(out)]


def check_streams(server):
    asked = dict(prompt=["Hello", "abc"], n=2, max_tokens=12, logprobs=0, return_token_ids=True)
    whole = server.complete(**asked)
    events = server.events(TEXT, **asked, stream_options={"include_usage": True})
    expected = [[c["text"], c["logprobs"]["token_logprobs"], c["token_ids"], c["finish_reason"]]
                for c in whole["choices"]]
    expect(joined(events) == expected, "a stream is another reply")
    expect(events[-1]["usage"] == whole["usage"] and not events[-1]["choices"], "its usage")
    expect(all(e["id"] == events[0]["id"] for e in events), "one stream, one id")
    echo = server.events(TEXT, prompt="Hello", max_tokens=3, echo=True)
    expect(joined(echo)[0][0].startswith("Hello"), "the echo of a stream")
    say = [{"role": "user", "content": "Hi"}]
    chat = server.events(CHAT, messages=say, max_tokens=12, seed=3)
    whole = server.chat(messages=say, max_tokens=12, seed=3)
    expect(joined(chat)[0][0] == whole["choices"][0]["message"]["content"], "a chat as a stream")
    expect(chat[0]["choices"][0]["delta"]["role"] == "assistant", "the role comes first")


def bytes_of_tokens():
    """Returns the bytes of each id of MODEL: those of byte-level BPE, and of added tokens."""
    tokenizer = json.loads(pathlib.Path(MODEL, "tokenizer.json").read_text(encoding="utf-8"))
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(byte): byte for byte in shown}
    moved = (byte for byte in range(256) if byte not in shown)
    letters |= {chr(256 + i): byte for i, byte in enumerate(moved)}
    known = {number: bytes(letters[letter] for letter in word)
             for word, number in tokenizer["model"]["vocab"].items()}
    return known | {one["id"]: one["content"].encode() for one in tokenizer["added_tokens"]}


def check_stream_tokens(server):
    """An event has exactly the tokens of its text; tokens that share a character come together."""
    asked = dict(max_tokens=40, min_tokens=40, skip_special_tokens=False, n=2)
    known = bytes_of_tokens()
    shared = torn = 0
    for seed in range(4):
        chat = server.events(CHAT, messages=[GOOD], logprobs=True, seed=seed, **asked)
        for c in (c for event in chat for c in event["choices"]):
            said = c["delta"].get("content")
            entries = (c["logprobs"] or {"content": []})["content"]
            text = b"".join(bytes(e["bytes"]) for e in entries).decode(errors="replace")
            shared += any(e["bytes"] and e["bytes"][0] >= 128 for e in entries)
            expect(said == text if said else c["logprobs"] is None,
                   f"an event says {said!r}, and its tokens {text!r}")
        plain = server.events(TEXT, prompt="Hello", logprobs=0, seed=seed, echo=seed % 2 == 1,
                              return_token_ids=True, **asked)
        for c in (c for event in plain for c in event["choices"]):
            tokens = (c["logprobs"] or {"tokens": []})["tokens"]
            echoed = c.get("prompt_token_ids", []) if seed % 2 == 1 else []
            parts = [known[number] for number in (*echoed, *c["token_ids"])]
            text = b"".join(parts).decode(errors="replace")
            expect(c["text"] == text and
                   tokens == [part.decode(errors="replace") for part in parts],
                   f"an event says {c['text']!r}, its tokens {tokens}, and its ids {text!r}")
            torn += text != "".join(tokens)
    expect(shared > 0 and torn > 0, "control: no token is a part of a character")


def check_stops(server):
    tried = 0
    for seed in range(40):
        asked = dict(prompt="Hello", max_tokens=40, seed=seed)
        text = server.complete(**asked)["choices"][0]["text"]
        stops = re.findall("[ -~]{2}", text[3:])
        if not stops:
            continue
        tried += 1
        stop = stops[-1]
        cut = server.complete(**asked, stop=[stop, "never this"])["choices"][0]
        expect(cut["text"] == text[:text.index(stop)], f"stop {stop!r}: {cut['text']!r}")
        expect(cut["finish_reason"] == "stop", "the reason of a stop string")
        stream = joined(server.events(TEXT, **asked, stop=stop))[0]
        expect(stream[0] == cut["text"] and stream[3] == "stop", "a stop string of a stream")
        if tried == 4:
            break
    expect(tried == 4, "too few texts had something to stop at")
    ids = server.complete(prompt="Hello", max_tokens=9, return_token_ids=True)
    third = ids["choices"][0]["token_ids"][2]
    first = ids["choices"][0]["token_ids"].index(third)
    ended = server.complete(prompt="Hello", max_tokens=9, return_token_ids=True,
                            stop_token_ids=[third])["choices"][0]
    expect(len(ended["token_ids"]) == first + 1 and ended["finish_reason"] == "stop",
           "a stop id ends a choice")
    late = server.complete(prompt="Hello", max_tokens=9, min_tokens=6, return_token_ids=True,
                           stop_token_ids=[third])["choices"][0]
    expect(len(late["token_ids"]) >= 6 and third not in late["token_ids"][:6],
           "no stop id among the first tokens")


def check_tools():
    template = FOLDER / "tools.jinja"
    template.write_text("{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}"
                        "{% for m in messages %}{{ m.role }}:{{ m.content }}"
                        "{% for c in m.tool_calls or [] %}({{ c.function.arguments.a }})"
                        "{% endfor %}{% endfor %}")
    server = Server(INVAR, *WORDS, "--chat-template-path", str(template))
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 5}'}}
    conversation = [{"role": "developer", "content": "x"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "6"}]
    for fields, text in (({"tools": tools}, "[add]system:xassistant:(5)tool:6"),
                         ({"tools": tools, "tool_choice": "none"}, "system:xassistant:(5)tool:6"),
                         ({}, "system:xassistant:(5)tool:6")):
        got = server.chat(messages=conversation, max_tokens=1, return_token_ids=True, **fields)
        plain = server.complete(prompt=text, max_tokens=1, return_token_ids=True)
        expect(got["choices"][0]["prompt_token_ids"] == plain["choices"][0]["prompt_token_ids"],
               f"the template gets {fields}")
    server.stop()
    # Tools that do not change the prompt would be dropped silently, so they are rejected.
    for text, uses in (("{% for m in messages %}{{ m.content }}{% endfor %}", False),
                       ("{{ raise_exception('no tools') if not tools }}x", True)):
        template.write_text(text)
        server = Server(INVAR, *WORDS, "--chat-template-path", str(template))
        status, reply = server.post(CHAT, messages=[GOOD], max_tokens=1, tools=tools)
        refusal = reply.get("error", {})
        expect(status == 200 if uses else
               status == 400 and refusal["param"] == "tools" and
               refusal["type"] == "invalid_request_error" and
               "does not use tools" in refusal["message"], f"tools, {text}: {status} {reply}")
        if not uses:
            server.chat(messages=[GOOD], max_tokens=1, tools=[])
            server.chat(messages=[GOOD], max_tokens=1, tools=tools, tool_choice="none")
        server.stop()


# ---- rejected requests --------------------------------------------------------------------------

GOOD = {"role": "user", "content": "Hi"}
BAD = [
    (TEXT, {}, "prompt", "prompt is missing"),
    (TEXT, {"prompt": ""}, "prompt", "is empty"),
    (TEXT, {"prompt": []}, "prompt", "a list of 0"),
    (TEXT, {"prompt": [[]]}, "prompt", "not one of"),
    (TEXT, {"prompt": [1, "a"]}, "prompt", "item 1 is no token"),
    (TEXT, {"prompt": [1, -1]}, "prompt", "item 1 is no token"),
    (TEXT, {"prompt": [300]}, "prompt", "token 300; the vocabulary has 300"),
    (TEXT, {"prompt": "x" * 200}, "prompt", "the longest that is taken has 127"),
    (TEXT, {"prompt": ["a"] * 1025}, "prompt", "a list of 1025"),
    (TEXT, {"prompt": ["a"] * 600, "n": 2}, "n", "at most 1024"),
    (TEXT, {"prompt": "a", "temperature": -1}, "temperature", "expected 0 to 100"),
    (TEXT, {"prompt": "a", "max_tokens": 1, "temperature": 1e-39}, "temperature", "at least 0.001"),
    (TEXT, {"prompt": "a", "temperature": 1e-60}, "temperature", "at least 0.001"),
    (TEXT, {"prompt": "a", "temperature": "hot"}, "temperature", "a finite number"),
    (TEXT, {"prompt": "a", "top_p": 0}, "top_p", "expected"),
    (TEXT, {"prompt": "a", "n": 0}, "n", "not in 1 to"),
    (TEXT, {"prompt": "a", "seed": -1}, "seed", "not in 0 to 4294967295"),
    (TEXT, {"prompt": "a", "seed": 2**70}, "seed", "not in 0 to 4294967295"),
    (TEXT, {"prompt": "a", "max_tokens": 0}, "max_tokens", "\"echo\": true"),
    (TEXT, {"prompt": "Hello", "max_tokens": 100000}, "max_tokens",
     "the context has 128 tokens: ask for at most 123"),
    (TEXT, {"prompt": ["a", "Hello"], "max_tokens": 124}, "max_tokens", "prompt 1 has 5 tokens"),
    (CHAT, {"messages": [GOOD], "max_completion_tokens": 128}, "max_completion_tokens",
     "the context has 128 tokens"),
    (TEXT, {"prompt": "a", "max_tokens": 2, "min_tokens": 3}, "min_tokens", "more than"),
    (TEXT, {"prompt": "a", "stop": ""}, "stop", "not empty"),
    (TEXT, {"prompt": "a", "stop": ["x"] * 17}, "stop", "at most 16"),
    (TEXT, {"prompt": "a", "stop_token_ids": [300]}, "stop_token_ids", "the vocabulary has"),
    (TEXT, {"prompt": "a", "logprobs": 5}, "logprobs", "no alternatives"),
    (TEXT, {"prompt": "a", "logit_bias": {"5": 1}}, "logit_bias", "not offered"),
    (TEXT, {"prompt": "a", "presence_penalty": 0.5}, "presence_penalty", "not offered"),
    (TEXT, {"prompt": "a", "best_of": 2}, "best_of", "not offered"),
    (TEXT, {"prompt": "a", "messages": [GOOD]}, "messages", "'messages' is no field"),
    (TEXT, {"prompt": "a", "temprature": 1}, "temprature", "did you mean 'temperature'?"),
    (TEXT, {"prompt": "a", "stream_options": {}}, "stream_options", "needs"),
    (TEXT, {"prompt": "a", "stream": 1}, "stream", "true or false"),
    (CHAT, {"messages": []}, "messages", "at least one"),
    (CHAT, {"messages": [{"role": "king", "content": "x"}]}, "messages", "messages[0].role"),
    (CHAT, {"messages": [GOOD, {"role": "user"}]}, "messages", "messages[1].content"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages",
     "images and sound"),
    (CHAT, {"messages": [GOOD], "top_logprobs": 3}, "top_logprobs", "no alternatives"),
    (CHAT, {"messages": [GOOD], "tools": [{"type": "x"}]}, "tools", "tools[0]"),
    (CHAT, {"messages": [GOOD], "tool_choice": "required"}, "tool_choice", "forced"),
    (CHAT, {"messages": [GOOD], "response_format": {"type": "json_object"}}, "response_format",
     "not offered"),
    (CHAT, {"messages": [GOOD], "max_tokens": 2, "max_completion_tokens": 3},
     "max_completion_tokens", "give one of them"),
    (CHAT, {"messages": [GOOD], "echo": True}, "echo", "'echo' is no field"),
    (TEXT, {"prompt": "a", "x" * 5000: 1}, None, "is no field"),
]


def check_refusals(server):
    for path, fields, param, text in BAD:
        status, reply = server.post(path, **fields)
        error = reply.get("error", {})
        expect(status == 400 and error.get("type") == "invalid_request_error" and
               error.get("param") == param and text in error.get("message", ""),
               f"{fields}: {status} {reply}, expected 400 {param} {text}")
    status, reply = server.post(TEXT, model="other", prompt="a")
    expect(status == 404 and reply["error"]["code"] == "model_not_found", "an unknown model")
    for method, path, body, headers, code in (
            ("GET", "/", None, {}, 404), ("GET", TEXT, None, {}, 405),
            ("POST", "/health", "{}", JSON, 405), ("GET", "/v1/models/other", None, {}, 404),
            ("POST", TEXT, '{"prompt": "a"}', {}, 400), ("POST", TEXT, "{", JSON, 400),
            ("POST", TEXT, "[]", JSON, 400), ("POST", TEXT, '{"n":1,"n":1}', JSON, 400),
            ("POST", TEXT, b'{"prompt": "\xff"}', JSON, 400), ("POST", TEXT, "", JSON, 400)):
        status, _, reply = server.raw(method, path, body, headers)
        expect(status == code and "message" in json.loads(reply)["error"],
               f"{method} {path} {body}: {status} {reply}, expected {code}")
    # A page of another origin (DNS rebinding) is rejected by its Host header.
    for host, code in ((f"localhost:{server.port}", 200), (f"[::1]:{server.port}", 200),
                       (f"LOCALHOST:{server.port}", 200), (f"evil.example:{server.port}", 403),
                       ("localhost", 403), (f"localhost:{server.port}.evil.example", 403),
                       (f"localhost.evil.example:{server.port}", 403), ("", 403)):
        for method, path in (("GET", "/health"), ("GET", "/v1/models")):
            status, _, reply = server.raw(method, path, headers={"Host": host})
            expect(status == code and (code == 200 or json.loads(reply)["error"]["code"] ==
                                       "host_not_allowed"), f"Host {host}: {status} {reply}")
    # The longest completion that fits the context is accepted.
    full = server.complete(prompt="Hello", max_tokens=123, min_tokens=123)
    expect(full["usage"]["completion_tokens"] == 123, f"a full context: {full['usage']}")
    # Fields without an effect are accepted.
    server.complete(prompt="a", max_tokens=1, user="me", logit_bias={}, presence_penalty=0.0,
                    best_of=1, suffix=None, model=server.name)
    server.chat(messages=[GOOD], max_completion_tokens=1, response_format={"type": "text"},
                parallel_tool_calls=True, tools=[], store=False, metadata={"a": "b"})
    models = json.loads(server.raw("GET", "/v1/models")[2])["data"]
    expect([m["id"] for m in models] == ["qwen3-fp16"], f"the models are {models}")
    one = json.loads(server.raw("GET", "/v1/models/qwen3-fp16")[2])
    expect(one == models[0] and one["max_model_len"] == 128, f"a model is {one}")


# ---- load ---------------------------------------------------------------------------------------


def requests():
    """Yields different requests: lengths, settings, streams, scores, chats."""
    rng = random.Random(5)
    for i in range(24):
        fields = {"max_tokens": rng.randint(1, 60), "seed": rng.randint(0, 3),
                  "temperature": rng.choice([0, 0.5, 1, 1.3]), "top_p": rng.choice([1, 0.9]),
                  "n": rng.choice([1, 1, 3]), "stream": i % 4 == 1}
        if i % 3 == 2:
            text = "".join(rng.choices("abc xyz", k=rng.randint(1, 40)))
            yield CHAT, {**fields, "messages": [{"role": "user", "content": text}],
                         "logprobs": True}
        else:
            ids = [[rng.randint(3, 299) for _ in range(rng.randint(1, 60))] for _ in range(2)]
            yield TEXT, {**fields, "prompt": ids, "logprobs": 0, "echo": i % 2 == 0,
                         "return_token_ids": True}


def canonical(body):
    """Returns a stream as its joined choices, because its division into events depends on
    timing."""
    if not body.startswith(b"data: "):
        return re.sub(rb'"created":\d+', b"", body)
    events = [json.loads(e[6:]) for e in body.decode().split("\n\n")[:-2]]
    out = {}
    for e in events:
        for c in e["choices"]:
            now = out.setdefault(c["index"], ["", [], [], None])
            now[0] += c.get("text") or c.get("delta", {}).get("content") or ""
            probs = c["logprobs"] or {}
            now[1] += probs.get("content") or probs.get("token_logprobs") or []
            now[2] += c.get("token_ids", [])
            now[3] = c["finish_reason"]
    return json.dumps([events[0]["id"], out]).encode()


def check_load(server, clients, each):
    """Compares responses under load with those to single requests, which are returned."""
    asked = [(path, json.dumps(fields)) for path, fields in requests()]
    alone = [canonical(server.raw("POST", path, body)[2]) for path, body in asked]
    expect(len(set(alone)) == len(alone), "control: different requests, different replies")
    wrong, done = [], []

    def client(number):
        rng = random.Random(number)
        connection = server.connect()
        for _ in range(each):
            i = rng.randrange(len(asked))
            connection.request("POST", asked[i][0], asked[i][1], JSON)
            reply = connection.getresponse()
            body = reply.read()
            done.append(i)
            if reply.status != 200 or canonical(body) != alone[i]:
                wrong.append((i, reply.status, body[:300]))
        connection.close()

    threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    expect(len(done) == clients * each, f"{len(done)} replies of {clients * each}")
    expect(not wrong, f"{len(wrong)} replies under load differ: {wrong[:2]}")
    expect(server.load() == 0, "requests are left")
    return alone


# ---- limits -------------------------------------------------------------------------------------


def slow_words():
    """Returns the recipe of a model that is slow and never has to stop."""
    recipe = FOLDER / "slow.ini"
    recipe.write_text("[model]\ndtype = fp32\nnum-layers = 4\nhidden-size = 256\n"
                      "ffn-hidden-size = 512\nnum-attention-heads = 4\n"
                      "max-position-embeddings = 8192\n[rollout]\nprompt-data = task:max\n"
                      "[perf]\nthreads = 1\n[engine]\nnumerics = ieee\n")
    return [str(recipe)]


LONG = json.dumps({"prompt": "3,7=", "max_tokens": 8000, "min_tokens": 8000})
SOME = {"prompt": "3,7=", "max_tokens": 400, "min_tokens": 400}
FEW = SOME if FULL else {"prompt": "3,7=", "max_tokens": 40, "min_tokens": 40}


def start_long(server, body=LONG):
    connection = server.connect()
    connection.request("POST", TEXT, body, JSON)
    return connection


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def check_disconnects(server):
    held = [start_long(server), start_long(server, LONG.replace("{", '{"stream": true, ', 1))]
    expect(wait_for(lambda: server.load() == 2), "two long requests run")
    status, headers, body = server.raw("POST", TEXT, json.dumps(SOME))
    expect(status == 429 and headers["Retry-After"] == "1", f"a third one: {status} {body}")
    held[0].close()
    held[1].sock.recv(200)  # the first of its events
    held[1].close()
    expect(wait_for(lambda: server.load() == 0), "requests of clients that have gone run on")
    again = [server.complete(**FEW) for _ in range(2)]
    expect(again[0] == again[1], "the server goes on as before")


def dripping(server, head, seconds):
    """Sends a request byte by byte. Returns whether the server ends the connection in time."""
    s = socket.create_connection(("127.0.0.1", server.port))
    s.settimeout(0.05)
    begin = time.monotonic()
    for i in range(1000):
        try:
            s.sendall(head[i:i + 1] or b"x")
            if s.recv(1) == b"":
                break
        except TimeoutError:
            pass
        except OSError:
            break
        if time.monotonic() - begin > seconds:
            return False
    s.close()
    return True


def check_limits(server):
    status, _, body = server.raw("POST", TEXT, json.dumps({"prompt": "3" * 3000}))
    expect(status == 413, f"a long body: {status} {body}")
    connection = server.connect()
    connection.request("POST", TEXT, iter([b"{" + b" " * 1500, b" " * 1500]), JSON,
                       encode_chunked=True)
    expect(connection.getresponse().status == 413, "a long body in chunks")
    connection.close()
    expect(dripping(server, b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nX: ", 8),
           "a slow head is borne for ever")
    expect(dripping(server, b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: "
                    b"application/json\r\nContent-Length: 900\r\n\r\n", 12),
           "a slow body is borne for ever")
    status, _, body = server.raw("POST", TEXT, LONG)
    expect(status == 503 and "longer than 2 s" in body.decode(), f"too long: {status} {body}")
    expect(wait_for(lambda: server.load() == 0), "what took too long runs on")


def check_patience(words):
    """A stream may wait longer for its turn than --client-seconds."""
    server = Server(INVAR, *words, "--client-seconds", "1", "--rollout-concurrency", "1")
    alone = server.events(TEXT, **FEW)
    held = start_long(server)
    expect(wait_for(lambda: server.load() == 1), "a long request runs")
    begin = time.monotonic()
    threading.Timer(2.5 if FULL else 2, held.close).start()
    late = server.events(TEXT, **FEW)
    expect(time.monotonic() - begin > 1.9, "control: the stream has waited")
    expect(joined(late) == joined(alone), "a stream that waited is another one")
    server.stop()


def check_idlers():
    """A client that does not read its stream is disconnected."""
    server = Server(INVAR, *WORDS, "--client-seconds", "1")
    body = json.dumps({"prompt": "Hello", "n": 512, "max_tokens": 100, "min_tokens": 100,
                       "logprobs": 0, "stream": True}).encode()
    ends = []
    for idles in (False, True):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", server.port))
        s.settimeout(60)
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost:%d\r\nConnection: close\r\n"
                  b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                  % (server.port, len(body)) + body)
        s.recv(1000)
        if idles:  # wait until all is sampled, then longer than the client may idle
            expect(wait_for(lambda: server.load() == 0, 300), "an idler holds the model for ever")
            time.sleep(3)
        got = b""
        try:
            while more := s.recv(1 << 20):
                got = got[-100:] + more
        except ConnectionError:
            pass
        ends.append(b"data: [DONE]" in got)
        s.close()
    expect(ends == [True, False], f"streams that are read, and not read, end: {ends}")
    server.stop()


def check_end(words):
    server = Server(INVAR, *words)
    kept = server.connect()
    kept.request("GET", "/health")
    kept.getresponse().read()
    alone = server.raw("POST", TEXT, json.dumps(SOME))[2]
    held = start_long(server, json.dumps(SOME))
    expect(wait_for(lambda: server.load() == 1, 5), "a request runs")
    server.process.send_signal(signal.SIGTERM)
    reply = held.getresponse()
    expect((reply.status, reply.read()) == (200, alone), "what is in flight is finished")
    server.said += server.process.stderr.read()
    expect(server.process.wait(20) == 143, "SIGTERM: exit code 143")
    expect("finishing the requests that are there" in server.said, server.said)
    server = Server(INVAR, "--hf-checkpoint", MODEL + "//", *WORDS[2:])
    expect(server.name == "qwen3-fp16", f"slashes behind a folder: {server.name}")
    server.stop(signal.SIGINT, 130)


def check_scorer():
    """A prompt that cannot be scored fails alone, and the server continues."""
    folder = FOLDER / "damaged"
    shutil.copytree(MODEL, folder)
    weights = bytearray((folder / "model.safetensors").read_bytes())
    head = int.from_bytes(weights[:8], "little")
    row = json.loads(weights[8:8 + head])["model.embed_tokens.weight"]["data_offsets"][0]
    row += 8 + head + 250 * 16 * 2
    weights[row:row + 2] = b"\x00\x7e"  # the embedding of token 250 becomes NaN
    (folder / "model.safetensors").write_bytes(weights)
    server = Server(INVAR, "--hf-checkpoint", str(folder), *WORDS[2:], "--kv-pages", "4",
                    "--page-size", "16")
    score = dict(max_tokens=0, echo=True, logprobs=0)
    good = server.complete(prompt=[5, 6, 7, 8], **score)
    for prompt, code, text in (([9] * 128, 400, "has room to score 65"),
                               ([9, 250, 9], 500, "logits are not finite")):
        status, reply = server.post(TEXT, prompt=prompt, **score)
        expect(status == code and text in reply["error"]["message"],
               f"a score of {prompt}: {status} {reply}, expected {code} {text}")
    expect(server.complete(prompt=[5, 6, 7, 8], **score) == good, "a score after failures")
    server.complete(prompt=[9] * 65, **score)
    server.stop()


# ---- starting -----------------------------------------------------------------------------------


def refused(code, text, *words, env=None):
    done = subprocess.run([INVAR, "serve", *words], capture_output=True, text=True, timeout=60,
                          env={**os.environ, **(env or {})})
    expect(done.returncode == code and text in done.stderr and "serving" not in done.stderr,
           f"serve {words}: {done.returncode} {done.stderr}, expected {code} {text}")


def check_nul(server):
    """A text comes back as it was sent, also with the character NUL."""
    fields = {"max_tokens": 4, "temperature": 0}
    for prompt in ("a\0b", ["a", "a\0"]):
        reply = server.complete(prompt=prompt, echo=True, **fields)
        texts = prompt if isinstance(prompt, list) else [prompt]
        for text, choice in zip(texts, reply["choices"]):
            expect(choice["text"].startswith(text), f"{text!r} comes back as {choice['text']!r}")
    chats = [json.loads(server.raw("POST", CHAT, json.dumps(
        {**fields, "messages": [{"role": "user", "content": text}]}))[2])
             for text in ("a\0b", "a", "ab")]
    counts = [chat["usage"]["prompt_tokens"] for chat in chats]
    expect(counts[0] > counts[1], f"a chat is cut at NUL: {counts}")
    for name, value in (("stop", "a\0"), ("model", "\0"), ("user", "x\0")):
        status, _, body = server.raw("POST", TEXT, json.dumps(
            {"prompt": "a", **fields, name: value}))
        expect(status == 400 and b"NUL" in body and name.encode() in body,
               f"{name} with NUL: {status} {body}")


def check_start(server):
    empty = FOLDER / "empty"
    empty.write_text("")
    refused(129, "give --api-key-file", *WORDS, "--host", "0.0.0.0", "--port", "0")
    refused(2, "no number of an address", *WORDS, "--host", "127.nowhere", "--port", "0")
    refused(2, "Address already in use", *WORDS, "--port", str(server.port))
    refused(129, "has no key", *WORDS, "--api-key-file", str(empty))
    refused(2, "nowhere", *WORDS, "--api-key-file", "nowhere")
    refused(129, "printable ASCII", *WORDS, env={"INVAR_API_KEY": "a b"})
    refused(2, "invar-serve.so is not in the folder INVAR_MODULES", *WORDS, "--port", "0",
            env={"INVAR_MODULES": str(FOLDER)})
    refused(129, "too near 0 to serve", *WORDS, "--rollout-temperature", "1e-39")
    refused(129, "leads no samples of a server", *WORDS, "--custom-generate-function-path", "./t",
            "--rm-type", "none")
    refused(129, "--n", *WORDS, "--n", "3")
    refused(129, "--served-model-name: the name is empty", *WORDS, "--served-model-name", "",
            "--host", "127.nowhere")


def check_key():
    key = FOLDER / "key"
    key.write_text("secret-1\n")
    server = Server(INVAR, *WORDS, "--host", "0.0.0.0", "--api-key-file", str(key),
                    "--served-model-name", "mine")
    for given, code in (("Bearer secret-1", 200), ("Bearer secret-2", 401), ("secret-1", 401),
                        ("Bearer secret-11", 401), ("Bearer ", 401), (None, 401)):
        headers = {**JSON, **({"Authorization": given} if given else {})}
        status = server.raw("POST", TEXT, '{"prompt":"a","max_tokens":1,"model":"mine"}',
                            headers)[0]
        expect(status == code, f"Authorization {given}: {status}, expected {code}")
    expect(server.raw("GET", "/health", headers={})[0] == 200, "health needs no key")
    expect(server.raw("GET", "/health", headers={"Host": "any.example"})[0] == 200,
           "a server with a key has any name")
    for route in ("/v1/models", "/metrics"):
        expect(server.raw("GET", route, headers={})[0] == 401, f"{route} needs one")
    server.stop()


def check_adapters():
    folder = next(p for p in sorted(pathlib.Path("tests/oracle/peft").iterdir())
                  if (p / "adapter_config.json").exists() and "llama" in p.name)
    config = json.loads((folder / "adapter_config.json").read_text())
    words = ["--hf-checkpoint", ADAPTED, "--dtype", "fp32", "--lora-adapter-path", str(folder),
             "--lora-rank", str(config["r"]), "--lora-alpha", str(config["lora_alpha"]),
             "--target-modules", ",".join(sorted(config["target_modules"])), "--threads", "1"]
    asked = dict(prompt="ab", max_tokens=12, logprobs=0, return_token_ids=True)
    server = Server(INVAR, *words)
    plain = Server(INVAR, "--hf-checkpoint", ADAPTED, "--dtype", "fp32", "--threads", "1")
    reply, other = server.complete(**asked), plain.complete(**asked)
    expect(choices(reply) == generated(*words, "--prompt", "ab", "--rollout-max-response-len",
                                       "12"), "adapters: not what generate gives")
    expect(choices(reply) != choices(other), "control: the base alone answers otherwise")
    expect(reply["invar"]["base"] != reply["invar"]["weights"] and
           reply["system_fingerprint"] != other["system_fingerprint"], "both hashes are said")
    server.stop()
    plain.stop()


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    if not (pathlib.Path(INVAR).parent / "invar-serve.so").exists():
        refused(2, "invar-serve.so is not beside the program; HTTP goes through it", *WORDS)
        finish()
    server = Server(INVAR, *WORDS)
    check_generate(server)
    check_score(server)
    check_streams(server)
    check_stream_tokens(server)
    check_stops(server)
    check_refusals(server)
    check_nul(server)
    check_start(server)
    plain = check_load(server, 64, 40 if FULL else 1)
    server.stop()
    for proposer in (["ngram", "--speculative-ngram-min-match-window-size", "1"],
                    ["draft", "--speculative-draft-model-path", WORDS[1]]):
        server = Server(INVAR, *WORDS, "--speculative-algorithm", *proposer)
        expect(check_load(server, 16, 40 if FULL else 1) == plain,
               f"guesses change replies: {proposer[0]}")
        server.stop()
    # Few pages and sequences: samples are preempted.
    server = Server(INVAR, *WORDS, "--kv-pages", "20", "--page-size", "8", "--rollout-concurrency",
                    "5", "--chunked-prefill-size", "9")
    check_load(server, 16, 40 if FULL else 1)
    server.stop()
    check_tools()
    check_key()
    check_adapters()
    check_scorer()
    slow = slow_words()
    server = Server(INVAR, *slow, "--max-requests", "2")
    check_disconnects(server)
    server.stop()
    server = Server(INVAR, *slow, "--max-body-bytes", "2000", "--request-seconds", "2",
                    "--client-seconds", "1")
    check_limits(server)
    server.stop()
    check_patience(slow)
    if FULL:
        check_idlers()
    check_end(slow)
    finish()


main()
