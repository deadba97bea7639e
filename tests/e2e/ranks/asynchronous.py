#!/usr/bin/env python3
# asynchronous.py - shared by the tests of asynchronous rollouts: a recipe, runs, scores, kills.
#
# The importing scripts have the arguments INVAR BENT HINDERED FOLDER: the program, one that records
# the log-prob of an in-flight token wrong, and one with random delays.
# SPDX-License-Identifier: Apache-2.0
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import time

INVAR, BENT, HINDERED = map(os.path.abspath, sys.argv[1:4])
FOLDER = pathlib.Path(sys.argv[4]).absolute()
HERE = pathlib.Path(__file__).absolute().parent
FULL = bool(os.environ.get("INVAR_TEST_FULL"))
ROLLOUTS = 6
OVERLAP = ["--rollout-overlap", "true"]
failures = []
RECIPE = """
[model]
num-layers = 2
hidden-size = 64
ffn-hidden-size = 128
num-attention-heads = 4
num-query-groups = 2
max-position-embeddings = 48
init-method-std = 0.08
[rollout]
prompt-data = task:max
rollout-shuffle = true
rollout-batch-size = 4
n-samples-per-prompt = 3
rollout-max-response-len = 11
rm-type = overlap
[optimizer]
lr = 0.02
[engine]
numerics = ieee
"""
EXPERTS = "[model]\nmodel-type = qwen3_moe\nnum-experts = 4\nmoe-ffn-hidden-size = 64\n"


def expect(holds, what):
    if not holds:
        failures.append(what)
        print(what, file=sys.stderr)


def command(name, *words, recipe="dense", rollouts=ROLLOUTS, program=INVAR):
    return [program, "train", str(FOLDER / f"{recipe}.ini"), "--num-rollout", str(rollouts),
            "--run", str(FOLDER / name), "--no-report", "--json", *words]


def train(name, *words, code=0, says="", env=None, **how):
    """Trains and returns the JSON output; its chain is None if the run fails."""
    done = subprocess.run(command(name, *words, **how), capture_output=True, text=True, cwd=FOLDER,
                          env={**os.environ, **(env or {})})
    expect(done.returncode == code and says in done.stderr,
           f"{name}: exit code {done.returncode}, expected {code} and '{says}': {done.stderr}")
    return json.loads(done.stdout) if done.returncode == 0 else {"chain": None}


def score(name, recipe, weights, samples):
    """Returns the log-probs of the responses, as bits, by the weights of a version."""
    tokens = FOLDER / "tokens"
    tokens.write_text("".join(json.dumps({"tokens": s["tokens"]}) + "\n" for s in samples))
    run = ["--run", str(FOLDER / name), "--ckpt-step", str(weights - 1)] if weights else []
    done = subprocess.run([INVAR, "score", str(FOLDER / f"{recipe}.ini"), *run, "--tokens",
                           str(tokens), "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"score of {name}, version {weights}: {done.stderr}")
    rows = [json.loads(line)["logprobs"] for line in done.stdout.splitlines()]
    return [[bits(x) for x in r[s["prompt_tokens"] - 1:]] for r, s in zip(rows, samples)]


def score_rollouts(name, recipe, rollouts, wanted):
    """Returns for each list of samples its log-probs by each of the versions that it wants; scores
    all samples of a version at once."""
    scores = [{} for _ in rollouts]
    for weights in sorted(set().union(*wanted)):
        of = [i for i, versions in enumerate(wanted) if weights in versions]
        rows = iter(score(name, recipe, weights, [s for i in of for s in rollouts[i]]))
        for i in of:
            scores[i][weights] = [next(rows) for _ in rollouts[i]]
    return scores


def bits(value):
    return struct.pack("f", value)


def check_replay(name, step):
    done = subprocess.run([INVAR, "replay", str(FOLDER / name), "--step", str(step)],
                          capture_output=True, text=True)
    expect(done.returncode == 0, f"{name}: replay of step {step}: {done.stdout}{done.stderr}")


def newest(run):
    """Returns the step of the newest checkpoint; -1 if there is none."""
    latest = FOLDER / run / "checkpoints/latest_checkpointed_iteration.txt"
    try:
        return int(latest.read_text())
    except (FileNotFoundError, ValueError):
        return -1


def kill(name, how, wanted):
    """Kills the run `wanted` times, each time shortly after a new checkpoint, and returns its
    chain. Every other start samples during training. A run that reaches its end begins again."""
    rng, hits = random.Random(7), 0
    while hits < wanted:
        before = newest(name)
        beside = OVERLAP if hits % 2 == 0 and "--rollout-lag" in how else []
        run = subprocess.Popen(command(name, *how, *beside), stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
        while run.poll() is None and newest(name) == before:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.05))
        if run.poll() is None:
            hits += 1
        run.kill()
        run.wait()
        if newest(name) >= ROLLOUTS - 1:
            shutil.rmtree(FOLDER / name)
    return train(name, *how)["chain"]


def begin():
    """Creates the folder with the recipes."""
    os.environ.pop("INVAR_LEDGER", None)
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    (FOLDER / "dense.ini").write_text(RECIPE)
    (FOLDER / "experts.ini").write_text(RECIPE.replace("[model]\n", EXPERTS, 1))


def end():
    """Prints the number of failures and returns the exit code."""
    print(f"{len(failures)} failures")
    return 1 if failures else 0
