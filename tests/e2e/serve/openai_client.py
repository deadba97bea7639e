#!/usr/bin/env python3
# openai_client.py INVAR - invar serve with the package openai, then 10,000 requests of 64 clients.
#
# No response may be lost, or differ from that of a client alone. Prints percentiles of the response
# time.
# SPDX-License-Identifier: Apache-2.0
import pathlib
import random
import sys
import threading
import time

import openai

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from client import Server, expect, finish  # noqa: E402

MODEL = "tests/oracle/folders/4.57.6/qwen3-fp16"
CLIENTS, REQUESTS = 64, 10000
HI = [{"role": "user", "content": "Hi"}]


def check_package(client, name):
    expect([m.id for m in client.models.list()] == [name], "the list of models")
    expect(client.models.retrieve(name).id == name, "a model")
    whole = client.chat.completions.create(model=name, messages=HI, max_tokens=12, seed=3, n=2,
                                           logprobs=True)
    expect(len(whole.choices) == 2 and whole.usage.completion_tokens > 2, "a chat")
    expect(all(t.logprob <= 0 for t in whole.choices[0].logprobs.content), "its log-probs")
    expect(whole.model_extra["invar"]["seed"] == 3 and whole.system_fingerprint, "its coordinates")
    text = ""
    for event in client.chat.completions.create(model=name, messages=HI, max_tokens=12, seed=3,
                                                stream=True,
                                                stream_options={"include_usage": True}):
        text += (event.choices[0].delta.content or "") if event.choices else ""
    expect(text == whole.choices[0].message.content, "a chat as a stream")
    expect(event.usage.prompt_tokens == whole.usage.prompt_tokens, "the usage of a stream")
    scored = client.completions.create(model=name, prompt=[[5, 6, 7]], max_tokens=0, echo=True,
                                       logprobs=0)
    expect(len(scored.choices[0].logprobs.token_logprobs) == 3, "log-probs of given tokens")
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    expect(client.chat.completions.create(model=name, messages=HI, max_tokens=4, tools=tools,
                                          tool_choice="none").choices[0].finish_reason, "tools")
    # The template of this model does not use tools, so that they cannot be called.
    for fields, error in (({"model": "other"}, openai.NotFoundError),
                          ({"tools": tools}, openai.BadRequestError),
                          ({"temperature": 1000}, openai.BadRequestError),
                          ({"logit_bias": {"5": 1}}, openai.BadRequestError)):
        try:
            client.chat.completions.create(**{"model": name, "messages": HI, **fields})
            expect(False, f"{fields} was not refused")
        except error:
            expect(True, "")


def ask(client, name, i):
    if i % 3 == 0:
        reply = client.chat.completions.create(model=name, messages=HI, seed=i, logprobs=True,
                                               max_tokens=1 + i % 30)
    else:
        reply = client.completions.create(model=name, prompt="abc" * (1 + i % 9), seed=i,
                                          logprobs=0, echo=i % 2 == 0, max_tokens=1 + i % 30)
    return reply.to_json()


def check_load(server):
    address = f"http://127.0.0.1:{server.port}/v1"
    first = openai.OpenAI(base_url=address, api_key="none")
    alone = [ask(first, server.name, i) for i in range(60)]
    expect(len(set(alone)) == len(alone), "control: different requests, different replies")
    seconds, wrong = [], []

    def client(number):
        rng = random.Random(number)
        own = openai.OpenAI(base_url=address, api_key="none", max_retries=0)
        for _ in range(REQUESTS // CLIENTS + (number < REQUESTS % CLIENTS)):
            i = rng.randrange(len(alone))
            begin = time.monotonic()
            try:
                same = ask(own, server.name, i) == alone[i]
            except openai.OpenAIError as error:
                same, i = False, error
            seconds.append(time.monotonic() - begin)
            if not same:
                wrong.append(i)

    threads = [threading.Thread(target=client, args=(i,)) for i in range(CLIENTS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    expect(len(seconds) == REQUESTS, f"{len(seconds)} replies of {REQUESTS}")
    expect(not wrong, f"{len(wrong)} replies are lost or wrong: {wrong[:3]}")
    expect(server.load() == 0, "requests are left")
    seconds.sort()
    print(f"{REQUESTS} requests of {CLIENTS} clients: p50 {seconds[REQUESTS // 2]:.3f} s, "
          f"p99 {seconds[REQUESTS * 99 // 100]:.3f} s, longest {seconds[-1]:.3f} s")


def main():
    server = Server(sys.argv[1], "--hf-checkpoint", MODEL, "--dtype", "fp32", "--threads", "1")
    check_package(openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none"),
                  server.name)
    check_load(server)
    server.stop()
    finish()


main()
