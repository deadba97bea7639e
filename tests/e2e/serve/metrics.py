#!/usr/bin/env python3
# metrics.py INVAR - /metrics of invar serve has the counts of what clients received.
# SPDX-License-Identifier: Apache-2.0
"""Compares /metrics with the usage that responses report."""
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "track")]
import prometheus_text  # noqa: E402
from client import JSON, Server, expect, finish  # noqa: E402

WORDS = ["--hf-checkpoint", "tests/oracle/folders/4.57.6/qwen3-fp16", "--dtype", "fp32",
         "--threads", "1"]
TEXT = "/v1/completions"


def scrape(server):
    """Returns the metric families of /metrics."""
    status, headers, body = server.raw("GET", "/metrics")
    expect(status == 200 and headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8",
           f"/metrics: {status} {headers}")
    return prometheus_text.read(body.decode())


def check_metrics():
    prometheus_text.check_itself()
    server = Server(sys.argv[1], *WORDS)
    first = scrape(server)
    expect(first["invar_serve_generated_tokens_total"].values == {(): 0}, "tokens at the start")
    usage = [server.complete(prompt="ab", max_tokens=n, n=2)["usage"] for n in (1, 3, 5)]
    server.events(TEXT, prompt="ab", max_tokens=2)
    server.raw("POST", TEXT, "{", JSON)
    server.raw("GET", "/nowhere")
    then = scrape(server)
    made = then["invar_serve_generated_tokens_total"].values[()]
    read = then["invar_serve_prompt_tokens_total"].values[()]
    expect(made > sum(u["completion_tokens"] for u in usage), f"{made} tokens generated")
    expect(read == sum(u["prompt_tokens"] for u in usage) * 4 / 3, f"{read} tokens of prompts")
    requests = {labels: n for labels, n in then["invar_serve_requests_total"].values.items()}
    for route, code, count in ((TEXT, 200, 4), (TEXT, 400, 1), ("other", 404, 1),
                               ("/metrics", 200, 1)):
        found = requests.get((("code", str(code)), ("route", route)))
        expect(found == count, f"{route} {code}: {found} requests, expected {count}")
    expect(then["invar_serve_requests_in_flight"].values == {(): 0}, "requests in flight")
    expect(then["invar_serve_info"].values, "no info")
    server.stop()


check_metrics()
finish()
