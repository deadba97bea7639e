#!/usr/bin/env python3
# lag.py INVAR FOLDER [--shape NAME] [--lag L] [--segment K] [-- KEYS] - what rollout-lag saves.
#
# Trains twice, without and with rollout-lag, on rollouts of long-tailed lengths, and prints the
# seconds of a rollout with all that belongs to it, and of its phases. The model has random weights,
# which nearly keep their bits (lr is tiny): a set of stop ids ends a response with a probability of
# 1 in `mean` at each token, so lengths are exponential, up to the longest. Prompts and random
# numbers of both runs are the same, and of each the same rollouts are timed: those of which all
# ticks are there. The chain of the run with lag is compared with that of a second way to execute
# it, if KEYS, which that way has in addition, are given.
# SPDX-License-Identifier: Apache-2.0
import argparse
import json
import pathlib
import shutil
import sqlite3
import statistics
import subprocess
import sys

SHAPES = {
    "qwen3-0.6b": dict(device="cuda", numerics="sm90", layers=28, hidden=1024, ffn=3072, heads=16,
                       groups=8, width=128, vocab=151936, mean=1000, longest=4000, prompts=32,
                       each=8),
    "tiny": dict(device="cpu", numerics="ieee", layers=2, hidden=64, ffn=128, heads=4, groups=2,
                 width=16, vocab=4000, mean=50, longest=200, prompts=4, each=8),
}
RECIPE = """
[model]
num-layers = {layers}
hidden-size = {hidden}
ffn-hidden-size = {ffn}
num-attention-heads = {heads}
num-query-groups = {groups}
kv-channels = {width}
vocab-size = {vocab}
max-position-embeddings = {positions}
[rollout]
prompt-data = task:max
rollout-batch-size = {prompts}
n-samples-per-prompt = {each}
rollout-max-response-len = {longest}
rollout-stop-token-ids = {stops}
rm-type = overlap
[perf]
device = {device}
[optimizer]
lr = 1e-9
[engine]
numerics = {numerics}
"""


def write_recipe(path, shape):
    count = shape["vocab"] // shape["mean"]
    stops = ",".join(str(100 + i * shape["mean"] % (shape["vocab"] - 100)) for i in range(count))
    path.write_text(RECIPE.format(positions=shape["longest"] + 64, stops=stops, **shape))


def train(invar, recipe, run, rollouts, lag, words):
    """The chain. The run ends before its last rollouts, so that every tick has all its work."""
    shutil.rmtree(run, ignore_errors=True)
    done = subprocess.run([invar, "train", str(recipe), "--run", str(run), "--save", "none",
                           "--num-rollout", str(rollouts + lag), "--debug-exit-after-rollout",
                           str(rollouts), "--no-report", "--json", *words],
                          stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"exit code {done.returncode}")
    return json.loads(done.stdout)["chain"]


def measure(run, first):
    """Seconds of each rollout from `first` on, of their phases, and response tokens."""
    with sqlite3.connect(run / "ledger.db") as ledger:
        phases = list(ledger.execute("SELECT step, phase, start_ns, duration_ns FROM timing"))
        tokens = dict(ledger.execute("SELECT step, sum(tokens - prompt_tokens) FROM samples "
                                     "GROUP BY step"))
    steps = sorted(tokens)
    begin = {s: min(t0 for step, _, t0, _ in phases if step == s) for s in steps}
    end = {s: max(t0 + ns for step, _, t0, ns in phases if step == s) for s in steps}
    begin[steps[-1] + 1] = end[steps[-1]]
    out = {"all": [], "tokens": []}
    for s in (s for s in steps if s >= first):
        out["all"].append((begin[s + 1] - begin[s]) / 1e9)
        out["tokens"].append(tokens[s])
        for name in {p for _, p, _, _ in phases}:
            spent = sum(ns for step, p, _, ns in phases if (step, p) == (s, name))
            out.setdefault(name, []).append(spent / 1e9)
    return out


def show(title, found):
    phases = ", ".join(f"{name} {statistics.mean(v):.2f}" for name, v in sorted(found.items())
                       if name not in ("all", "tokens"))
    print(f"{title:22} {statistics.mean(found['all']):8.2f} s a rollout ({phases}), "
          f"{statistics.mean(found['tokens']):.0f} tokens", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("invar")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--lag", type=int, default=3)
    parser.add_argument("--segment", type=int, default=1000)
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    given = parser.parse_args(words[:at])
    given.folder.mkdir(parents=True, exist_ok=True)
    recipe = given.folder / "lag.ini"
    write_recipe(recipe, SHAPES[given.shape])
    lag = ["--rollout-lag", str(given.lag), "--rollout-segment-tokens", str(given.segment)]
    ways = {"no lag": [], f"lag {given.lag}, {given.segment} tokens": lag}
    if words[at + 1:]:
        ways["the same, " + " ".join(words[at + 1:])] = lag + words[at + 1:]
    chains, seconds = [], []
    for i, (title, keys) in enumerate(ways.items()):
        run = given.folder / f"run-{i}"
        chains.append(train(given.invar, recipe, run, given.rollouts, given.lag, keys))
        found = measure(run, given.lag)
        show(title, found)
        seconds.append(statistics.mean(found["all"]))
    for title, mean in list(zip(ways, seconds))[1:]:
        print(f"{title:22} {mean / seconds[0]:8.3f} of the time without lag")
    if len(set(chains[1:])) > 1:
        sys.exit(f"the chains differ: {chains[1:]}")


main()
