#!/usr/bin/env python3
# lag.py BENCH.LAG FOLDER [OPTION ...] - time saved by asynchronous rollouts (rollout-lag).
#
# Trains with rollout-lag 0, and with a lag and rollout-overlap, on the same prompts. BENCH.LAG
# (tests/bench/lag.c) gives responses the lengths of the list of bench.sampling: the same in all
# runs, from 100 to 4000 tokens, most of them short. Prints the mean seconds of a complete rollout,
# from its begin to that of the next one, and of its phases, for the rollouts that have all their
# ticks. Weights are random, and hardly change (lr is tiny).
#
# With --in-turn the same schedule also runs without overlap, and must have the same chain. With
# --recorded the clock decides during training (rollout-schedule = recorded): the batches then have
# other samples, so times are also compared for equal numbers of tokens, and a run that follows the
# record without overlap must have the same chain.
#
# Exit code: 0 done, 1 the runs had other samples or chains.
# SPDX-License-Identifier: Apache-2.0
import argparse
import json
import os
import pathlib
import shutil
import sqlite3
import statistics
import subprocess
import sys

SHAPES = {
    "qwen3-0.6b": dict(device="cuda", numerics="sm90", layers=28, hidden=1024, ffn=3072, heads=16,
                       groups=8, width=128, vocab=151936, shortest=100, longest=4000, prompts=8),
    "tiny": dict(device="cpu", numerics="ieee", layers=2, hidden=64, ffn=128, heads=4, groups=2,
                 width=16, vocab=4000, shortest=5, longest=200, prompts=4),
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
n-samples-per-prompt = 8
rollout-max-response-len = {longest}
rm-type = deterministic_random
[perf]
device = {device}
[optimizer]
lr = 1e-9
[engine]
numerics = {numerics}
"""


def train(program, recipe, run, rollouts, lag, shape, options):
    """Trains and returns the chain. Ends before the last rollouts, so that ticks are complete."""
    shutil.rmtree(run, ignore_errors=True)
    done = subprocess.run([program, "train", str(recipe), "--run", str(run), "--save", "none",
                           "--num-rollout", str(rollouts + lag), "--debug-exit-after-rollout",
                           str(rollouts), "--no-report", "--json", *options],
                          stdout=subprocess.PIPE, text=True, check=False,
                          env={**os.environ,
                               "BENCH_LENGTHS": f"{shape['shortest']} {shape['longest']}"})
    if done.returncode:
        sys.exit(f"{' '.join(options)}: exit code {done.returncode}")
    return json.loads(done.stdout)["chain"]


def measure(run, first):
    """Returns seconds of each rollout from `first` on, of their phases, and response tokens."""
    with sqlite3.connect(run / "ledger.db") as ledger:
        phases = list(ledger.execute("SELECT step, phase, start_ns, duration_ns FROM timing"))
        tokens = dict(ledger.execute("SELECT step, sum(tokens - prompt_tokens) FROM samples "
                                     "GROUP BY step"))
    steps = sorted(tokens)
    begin = {s: min(t0 for step, p, t0, _ in phases if (step, p) == (s, "score")) for s in steps}
    out = {"all": [], "tokens": [tokens[s] for s in steps]}
    for s in range(first, steps[-1]):
        out["all"].append((begin[s + 1] - begin[s]) / 1e9)
        for name in {p for _, p, _, _ in phases}:
            spent = sum(ns for step, p, _, ns in phases if (step, p) == (s + 1, name))
            out.setdefault(name, []).append(spent / 1e9)
    return out


def mean_tokens(found):
    """Mean response tokens of the timed rollouts."""
    return statistics.mean(found["tokens"][-len(found["all"]):])


def print_times(title, found):
    phases = ", ".join(f"{name} {statistics.mean(v):.2f}" for name, v in sorted(found.items())
                       if name not in ("all", "tokens"))
    print(f"{title:12} {statistics.mean(found['all']):8.2f} s a rollout ({phases}), "
          f"{statistics.mean(found['tokens']):.0f} tokens; each: "
          f"{' '.join(f'{x:.2f}' for x in found['all'])}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--prompts", type=int, help="of a rollout, with 8 samples each")
    parser.add_argument("--rollouts", type=int, default=3, help="that are timed")
    parser.add_argument("--lag", type=int, default=4)
    parser.add_argument("--segment", type=int, help="default: the longest response / lag")
    parser.add_argument("--in-turn", action="store_true")
    parser.add_argument("--recorded", action="store_true", help="also by the clock")
    parser.add_argument("--delay", type=int, default=2, help="rollout-max-delay of --recorded")
    parser.add_argument("--keys", nargs=argparse.REMAINDER, default=[], help="of all runs")
    given = parser.parse_args()
    shape = dict(SHAPES[given.shape])
    shape["prompts"] = given.prompts or shape["prompts"]
    segment = given.segment or -(-shape["longest"] // given.lag)
    given.folder.mkdir(parents=True, exist_ok=True)
    recipe = given.folder / "lag.ini"
    recipe.write_text(RECIPE.format(positions=shape["longest"] + 64, **shape))
    lag = ["--rollout-lag", str(given.lag), "--rollout-segment-tokens", str(segment)]
    option_sets = {"no lag": [], "overlapped": [*lag, "--rollout-overlap", "true"]}
    if given.in_turn:
        option_sets["in turn"] = lag
    if given.recorded:
        clock = ["--rollout-lag", str(given.lag), "--rollout-schedule", "recorded",
                 "--rollout-max-delay", str(given.delay)]
        option_sets["recorded"] = [*clock, "--rollout-overlap", "true"]
        option_sets["obeyed"] = [*clock, "--rollout-record", str(given.folder / "recorded")]
    print(f"{given.shape}: {shape['prompts']} x 8 samples of {shape['shortest']} to "
          f"{shape['longest']} tokens, lag {given.lag}, {segment} tokens a tick", flush=True)
    chains, found = {}, {}
    for title, keys in option_sets.items():
        run = given.folder / title.replace(" ", "-")
        chains[title] = train(given.program, recipe, run, given.rollouts + given.lag + 1, given.lag,
                              shape, [*keys, *given.keys])
        found[title] = measure(run, given.lag)
        print_times(title, found[title])
    for title in list(option_sets)[1:]:
        ratio = statistics.mean(found[title]["all"]) / statistics.mean(found["no lag"]["all"])
        print(f"{title:12} {ratio:8.3f} of the time without lag, "
              f"{ratio * mean_tokens(found['no lag']) / mean_tokens(found[title]):8.3f} "
              "for equal tokens")
        if title not in ("recorded", "obeyed") and \
                found[title]["tokens"] != found["no lag"]["tokens"]:
            sys.exit("the runs have samples of other lengths")
    for one, other in (("in turn", "overlapped"), ("obeyed", "recorded")):
        if one in chains and chains[one] != chains[other]:
            sys.exit(f"the chains differ: {chains}")


main()
