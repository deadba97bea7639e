#!/usr/bin/env python3
# chosen.py INVAR PLUGIN FOLDER - plug-ins that choose prompts and groups of the buffer, and hooks
# that report metrics: as a program (chooser.py) and as a shared object (PLUGIN), with one chain.
#
# The ledger must have the chosen prompts and the reported values; dropped groups must not be
# trained on. However a run is executed, stopped and resumed, it has one chain, and the plug-in is
# not called again for a recorded step, as the program's log shows.
# SPDX-License-Identifier: Apache-2.0
import json
import os
import pathlib
import shutil
import sqlite3
import struct
import subprocess
import sys

INVAR, PLUGIN = map(os.path.abspath, sys.argv[1:3])
FOLDER = pathlib.Path(sys.argv[3]).absolute()
PROGRAM = f"python3 {pathlib.Path(__file__).absolute().parent / 'chooser.py'}"
ROLLOUTS = 6
failures = []
RECIPE = """
[model]
num-layers = 1
hidden-size = 32
ffn-hidden-size = 64
num-attention-heads = 2
max-position-embeddings = 32
[rollout]
prompt-data = task:max
rollout-batch-size = 4
n-samples-per-prompt = 3
rollout-max-response-len = 5
rm-type = deterministic_random
dynamic-sampling-filter = nonzero_std
over-sampling-batch-size = 9
over-sampling-keep-surplus = true
[optimizer]
lr = 0.01
[engine]
numerics = ieee
"""


def expect(holds, what):
    if not holds:
        failures.append(what)
        print(what, file=sys.stderr)


def train(name, *words, code=0, says="", rollouts=ROLLOUTS):
    done = subprocess.run([INVAR, "train", "chosen.ini", "--num-rollout", str(rollouts), "--run",
                           name, "--no-report", "--json", *words],
                          capture_output=True, text=True, cwd=FOLDER)
    expect(done.returncode == code and says in done.stderr,
           f"{name}: exit code {done.returncode}, expected {code} and '{says}': {done.stderr}")
    return json.loads(done.stdout) if done.returncode == 0 else {"chain": None}


def select(name, sql):
    with sqlite3.connect(FOLDER / name / "ledger.db") as ledger:
        return list(ledger.execute(sql))


def calls_of(call):
    """Returns the steps of the logged calls, and clears the log."""
    log = FOLDER / "log"
    lines = log.read_text(encoding="ascii").splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return [int(step) for what, step in map(str.split, lines) if what == call]


def replay(name, step):
    done = subprocess.run([INVAR, "replay", name, "--step", str(step)], capture_output=True,
                          text=True, cwd=FOLDER)
    expect(done.returncode == 0, f"{name}: replay of step {step}: {done.stdout}{done.stderr}")


def check_executions(name, keys, chain, call):
    """One chain on other ranks, in pieces, and again from a checkpoint; no call is repeated."""
    for way, words in (("ranks", ["--ranks", "2"]), ("threads", ["--threads", "1"])):
        got = train(f"{name}-{way}", *keys, *words, "--save", "none")["chain"]
        expect(got == chain, f"{name}, {way}: chain {got}, expected {chain}")
    calls_of(call)
    for rollouts in (2, 3, ROLLOUTS):
        got = train(f"{name}-pieces", *keys, "--save-interval", "1", rollouts=rollouts)["chain"]
    expect(got == chain, f"{name}, in pieces: chain {got}, expected {chain}")
    steps = calls_of(call)
    expect(steps == sorted(steps) and steps[-1] > 3, f"{name}: it was asked in steps {steps}")
    got = train(f"{name}-pieces", *keys, "--ckpt-step", "2")["chain"]
    expect(got == chain and not calls_of(call), f"{name}, again: chain {got}, or it was asked")
    replay(f"{name}-pieces", 4)
    expect(not calls_of(call), f"{name}: a replay has asked")


def check_source():
    key = ["--data-source-path", f"{PROGRAM} log"]
    plain = train("plain", "--save", "none")["chain"]
    chain = train("source", *key, "--save", "none")["chain"]
    expect(chain not in (None, plain), "chosen prompts change nothing")
    first = select("source", "SELECT prompt FROM samples WHERE step = 0 ORDER BY idx")
    expect(all(line % 7 == 0 and line < 63 for line, in first), f"the first prompts: {first}")
    check_executions("source", key, chain, "prompts")
    for ways in (["--data-source-path", PLUGIN], ["--data-source-path", f"{PROGRAM} other"]):
        got = train(f"source-{len(ways[1])}", *ways, "--save", "none")["chain"]
        expect(got == chain, f"{ways}: chain {got}, expected {chain}")
    late = ["--rollout-lag", "2", "--rollout-segment-tokens", "2"]
    lagged = train("source-lag", *key, *late, "--save", "none")["chain"]
    check_executions("source-lag", [*key, *late], lagged, "prompts")
    for fault, says in (("few", "\"prompts\" has 8 values, expected 9"),
                        ("far", "prompt 0 is line 256 of prompt-data, which has 256"),
                        ("below", "prompt 0 is line -1"), ("text", "no integer at 0"),
                        ("real", "no integer at 0"), ("none", "no list \"prompts\"")):
        train(f"source-{fault}", "--data-source-path", f"{PROGRAM} log {fault}", code=2, says=says)
    for word in (["--rollout-shuffle", "true"], ["--load-debug-rollout-data", "x-{rollout_id}",
                                                 "--over-sampling-keep-surplus", "false"]):
        train("x", *key, *word, code=129)


def check_buffer():
    key = ["--buffer-filter-path", f"{PROGRAM} log"]
    late = ["--rollout-lag", "2", "--rollout-segment-tokens", "2"]
    plain = train("kept", *late, "--save", "none", "--save-debug-rollout-data",
                  "kept-{rollout_id}")["chain"]
    chain = train("buffer", *key, *late, "--save", "none", "--save-debug-rollout-data",
                  "buffer-{rollout_id}")["chain"]
    expect(chain not in (None, plain), "a filter of the buffer changes nothing")
    ages = {}
    for name in ("kept", "buffer"):
        ages[name] = [rollout - sample["rollout"] for rollout in range(ROLLOUTS)
                      for sample in map(json.loads, open(FOLDER / f"{name}-{rollout}",
                                                         encoding="utf-8")) if "tokens" in sample]
    expect(max(ages["buffer"]) == 1 < max(ages["kept"]), "groups are too old, or never old")
    check_executions("buffer", [*key, *late], chain, "buffer_filter")
    got = train("buffer-object", "--buffer-filter-path", PLUGIN, *late, "--save", "none")["chain"]
    expect(got == chain, f"a shared object: chain {got}, expected {chain}")
    train("buffer-wait", "--buffer-filter-path", f"{PROGRAM} log wait", *late, "--save", "none")
    expect(sum(v for v, in select("buffer-wait", "SELECT value FROM metrics WHERE name = "
                                  "'rollout/over_sampling/reused'")) == 0, "groups did not wait")
    for fault, says in (("mixed", "is not that on the others of group"),
                        ("keep", "\"verdicts\" has neither take, wait nor drop at 0")):
        train(f"buffer-{fault}", "--buffer-filter-path", f"{PROGRAM} log {fault}", *late, code=2,
              says=says)
    train("x", *key, "--over-sampling-keep-surplus", "false", code=129,
          says="over-sampling-keep-surplus")


def check_evaluations():
    held = ["--eval-prompt-data", "held task:max", "--eval-interval", "2", "--save", "none"]
    key = "--custom-eval-rollout-log-function-path"
    plain = train("eval", *held)
    for who, spec in (("program", f"{PROGRAM} log"), ("object", PLUGIN)):
        told = train(f"eval-{who}", *held, key, spec)
        expect((told["chain"], told["content"]) == (plain["chain"], plain["content"]),
               f"{who}: a hook that is told of evaluations changes the run")
    means = select("eval", "SELECT step, value_bits FROM evaluation JOIN series USING (series) "
                   "WHERE name = 'eval/held' ORDER BY step")
    rows = [line.split() for line in (FOLDER / "log.eval").read_text().splitlines()]
    said = [float(total) / float(count) for _, name, count, total in rows if name == "held"]
    true = [struct.unpack("<d", struct.pack("<q", bits))[0] for _, bits in means]
    expect(said == true and len(said) == 1 + ROLLOUTS // 2, f"after_eval: {said}, not {true}")
    train("eval-measures", *held, key, f"{PROGRAM} log measures", code=2,
          says="they would belong to no step")
    train("x", key, PLUGIN, code=129, says="eval-prompt-data")


def check_hooks():
    plain = train("unhooked", "--save", "none")
    for who, spec in (("program", f"{PROGRAM} log"), ("object", PLUGIN)):
        log = ["--custom-rollout-log-function-path", spec]
        done = train(f"log-{who}", *log)
        expect((done["chain"], done["content"]) == (plain["chain"], plain["content"]),
               f"{who}: a hook that measures changes the run")
        said = select(f"log-{who}", "SELECT step, value FROM gauge JOIN series USING (series) "
                      "WHERE name = 'hook/after_rollout/reward' ORDER BY step")
        true = select(f"log-{who}", "SELECT step, value FROM metrics WHERE name = "
                      "'rollout/raw_reward' ORDER BY step")
        expect(len(said) == ROLLOUTS and all(abs(a[1] - b[1]) < 1e-12 for a, b in zip(said, true)),
               f"{who}: rewards {said}, expected {true}")
        weigh = ["--custom-before-train-step-hook-path", spec]
        chain = train(f"weigh-{who}", *weigh, "--save-interval", "1")["chain"]
        expect(chain not in (None, plain["chain"]), f"{who}: a factor changes nothing")
        again = train(f"weigh-{who}", *weigh, "--ckpt-step", "1")["chain"]
        expect(again == chain, f"{who}: resumed, chain {again}, expected {chain}")
        replay(f"weigh-{who}", 3)
        factors = select(f"weigh-{who}", "SELECT value FROM metrics WHERE name = "
                         "'train/loss_factor' AND step < 6 ORDER BY step")
        expect([f for f, in factors].count(0.5) >= 3, f"{who}: factors {factors}")
        if who == "program":
            first = chain
        expect(chain == first, f"weigh: {chain} of the object, {first} of the program")
    check_evaluations()
    train("weigh-nan", "--custom-before-train-step-hook-path", PLUGIN, rollouts=9, code=2,
          says="is not finite")
    train("refused", "--custom-rollout-log-function-path", PLUGIN, "--name", "refused", code=2,
          says="it refuses: not this run")


def main():
    os.environ.pop("INVAR_LEDGER", None)
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    (FOLDER / "chosen.ini").write_text(RECIPE)
    check_source()
    check_buffer()
    check_hooks()
    print(f"{len(failures)} failures")
    return 1 if failures else 0


sys.exit(main())
