#!/usr/bin/env python3
# profile.py INVAR FAR FOLDER - profiles of the ops of chosen steps, in the trace and the ledger.
#
# A profile must not change chain or content: on one rank, on several, on the fake GPU of FAR, whose
# calls return before their ops have run, and with overlapped sampling. The profile must be true:
# each op of the window and none outside, on a track of its own, inside of its phase, without
# overlaps, as often as the model has layers; and the ledger must have the sums of the trace.
# SPDX-License-Identifier: Apache-2.0
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

INVAR, FAR, FOLDER = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), Path(sys.argv[3])
RECIPE = Path("tests/e2e/ranks/small.ini").resolve()
LAYERS, STEPS, FIRST_RANK = 4, 4, 10
SLACK = 2000  # microseconds: phases and ops are timed by two clocks
checks = 0
failures = []


def expect(good, what):
    global checks
    checks += 1
    if not good:
        failures.append(what)
        print(f"profile.py: {what}", file=sys.stderr)


def run(*words, program=INVAR, code=0, before=()):
    env = dict(os.environ, NO_COLOR="1", OMPI_ALLOW_RUN_AS_ROOT="1",
               OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    done = subprocess.run([*before, str(program), *map(str, words)], cwd=FOLDER, env=env, text=True,
                          capture_output=True, stdin=subprocess.DEVNULL, timeout=300, check=False)
    expect(done.returncode == code, f"{words}: exit code {done.returncode}: {done.stderr}")
    return done


def train(name, *words, **how):
    run("train", RECIPE, "--no-report", "--run", name, "--save", "none", *words, **how)
    with sqlite3.connect(FOLDER / name / "ledger.db") as ledger:
        chain, = ledger.execute("SELECT hex(chain) FROM timeline ORDER BY step DESC").fetchone()
    shown = json.loads(run("ledger", "verify", name, "--json").stdout)
    return chain, shown["runs"][0]["content"]


def profiled(name, first, end, *words, **how):
    result = train(name, *words, "--trace", f"{name}.json", "--profile-step-start", first,
                   "--profile-step-end", end, **how)
    return result, json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def ops_of(events, rank=0):
    return [e for e in events if e["pid"] == FIRST_RANK + rank and e["ph"] == "X"]


def check_window(name, events, steps, ranks=1):
    """Checks that each rank has ops of these steps only, on tracks without overlaps."""
    for rank in range(ranks):
        ops = ops_of(events, rank)
        expect({e["args"]["step"] for e in ops} == set(steps),
               f"{name}: rank {rank} has ops of steps { {e['args']['step'] for e in ops} }")
        names = [e["args"]["name"] for e in events
                 if e["pid"] == FIRST_RANK + rank and e["name"] == "process_name"]
        expect(len(names) == 1, f"{name}: rank {rank} is called {names}")
        tracks = defaultdict(list)
        for e in ops:
            tracks[e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
        for track, spans in tracks.items():
            expect(spans == sorted(spans), f"{name}: rank {rank}, track {track}: out of order")
            worst = max((a[1] - b[0] for a, b in zip(spans, spans[1:])), default=0)
            expect(worst < 0.002, f"{name}: rank {rank}, track {track}: ops overlap by {worst} us")
        memory = [e["args"]["MiB"] for e in events
                  if e["pid"] == FIRST_RANK + rank and e["ph"] == "C"]
        expect(memory and min(memory) > 0, f"{name}: rank {rank}: memory {memory}")


def check_phases(name, events):
    """Checks that each op of rank 0 lies inside of its phase."""
    phases = defaultdict(list)
    for e in events:
        if e["pid"] == 1 and e["ph"] == "X":
            phases[e["name"], e["args"]["step"]].append((e["ts"], e["ts"] + e["dur"]))
    outside = Counter()
    for e in ops_of(events):
        inside = any(a - SLACK <= e["ts"] and e["ts"] + e["dur"] <= b + SLACK
                     for a, b in phases[e["args"]["phase"], e["args"]["step"]])
        outside[e["args"]["phase"]] += not inside and e["args"]["phase"] not in ("other", "ahead")
    expect(not +outside, f"{name}: ops outside of their phase: {+outside}")


def check_counts(name, events, steps):
    """Checks counts that are known independently: one backward pass per layer and micro-batch, here
    one."""
    calls = Counter((e["name"], e["args"]["step"]) for e in ops_of(events))
    for step in steps:
        expect(calls["attention.bwd", step] == LAYERS,
               f"{name}: step {step}: {calls['attention.bwd', step]} times attention.bwd")
        expect(calls["moe.route.bwd", step] == LAYERS,
               f"{name}: step {step}: {calls['moe.route.bwd', step]} times moe.route.bwd")
        expect(calls["grad.norm", step] == 1, f"{name}: step {step}: grad.norm")


def check_sums(name, events, ranks=1):
    """Checks that the ledger and the query have the sums of the trace."""
    told = defaultdict(lambda: [0, 0.0, 0.0])
    for rank in range(ranks):
        for e in ops_of(events, rank):
            sum_ = told[e["args"]["step"], rank, e["args"]["phase"], e["name"]]
            sum_[0] += 1
            sum_[1] += e["dur"]
            sum_[2] = max(sum_[2], e["dur"])
    with sqlite3.connect(FOLDER / name / "ledger.db") as ledger:
        rows = list(ledger.execute("SELECT step, rank, phase, op, calls, duration_ns, longest_ns "
                                   "FROM op_times"))
    expect(len(rows) == len(told) > 0, f"{name}: {len(rows)} rows of the ledger, not {len(told)}")
    for step, rank, phase, op, calls, spent, longest in rows:
        seen = told[step, rank, phase, op]
        expect(seen[0] == calls and abs(seen[1] - spent / 1e3) < 1e-2 * calls + 1
               and abs(seen[2] - longest / 1e3) < 2,
               f"{name}: {step, rank, phase, op}: ledger {calls, spent, longest}, trace {seen}")
    shown = json.loads(run("ledger", "query", "slow-ops", name, "--json").stdout)
    rows_of_query = shown["rows"] if isinstance(shown, dict) else shown
    expect(len(rows_of_query) > 10, f"{name}: slow-ops has {len(rows_of_query)} rows")


def check_one(plain):
    for first, end in ((0, 1), (1, 3), (2, 100)):
        name, steps = f"w{first}-{end}", range(first, min(end, STEPS))
        result, events = profiled(name, first, end)
        expect(result == plain, f"{name}: {result}, without a profile {plain}")
        check_window(name, events, steps)
        check_phases(name, events)
        check_counts(name, events, steps)
        check_sums(name, events)


def check_variants(plain):
    mpirun = shutil.which("mpirun")
    variants = {"ranks": (2, ["--ranks", "2"], INVAR, []),
            "tensor": (2, ["--ranks", "2", "--tensor-model-parallel-size", "2"], INVAR, []),
            "sampler": (2, ["--ranks", "2", "--rollout-num-gpus", "1"], INVAR, [])}
    if mpirun:
        variants["mpirun"] = (2, [], INVAR, [mpirun, "--oversubscribe", "-n", "2"])
    for name, (ranks, words, program, before) in variants.items():
        result, events = profiled(name, 1, 3, *words, program=program, before=before)
        expect(result == plain, f"{name}: {result}, without a profile {plain}")
        check_window(name, events, (1, 2), ranks)
        check_sums(name, events, ranks)


def check_fake_gpu():
    """Calls return before their ops have run. Decoding uses captured graphs, except in the profiled
    window."""
    words = ["--device", "cuda", "--numerics", "sm90"]
    plain = train("far-plain", *words, program=FAR)
    result, events = profiled("far", 1, 3, *words, program=FAR)
    expect(result == plain, f"far: {result}, without a profile {plain}")
    check_window("far", events, (1, 2))
    check_phases("far", events)
    check_counts("far", events, (1, 2))
    check_sums("far", events)
    near, shown = profiled("near", 1, 3, "--numerics", "sm90")
    expect(near == plain, f"near: {near}, far {plain}")
    count = [Counter(e["name"] for e in ops_of(t) if "operands" in e["args"])
             for t in (events, shown)]
    expect(count[0]["attention.paged"] == count[1]["attention.paged"] > 0,
           f"ops of decoding: far {count[0]['attention.paged']}, near "
           f"{count[1]['attention.paged']}")


def check_overlap():
    words = ["--rollout-lag", "1", "--rollout-overlap", "true"]
    plain = train("beside-plain", *words)
    result, events = profiled("beside", 0, STEPS, *words)
    expect(result == plain, f"beside: {result}, without a profile {plain}")
    tracks = {e["tid"] for e in ops_of(events)}
    expect(tracks == {0, 1}, f"beside: ops on tracks {tracks}")
    ahead = [e for e in ops_of(events) if e["tid"] == 1]
    expect({e["args"]["phase"] for e in ahead} == {"ahead"}, "beside: phases of what is ahead")


def check_without_file(plain):
    """Without --trace only the ledger gets op times; a run without a window has none."""
    result = train("ledger-only", "--profile-step-end", "1")
    expect(result == plain, f"ledger-only: {result}, without a profile {plain}")
    for name, some in (("ledger-only", True), ("plain", False)):
        with sqlite3.connect(FOLDER / name / "ledger.db") as ledger:
            rows, = ledger.execute("SELECT count(*) FROM op_time").fetchone()
        expect((rows > 0) == some, f"{name}: {rows} rows of ops")
    late = run("train", RECIPE, "--no-report", "--run", "late", "--save", "none",
               "--profile-step-start", "50", "--profile-step-end", "60")
    expect("no op was measured" in late.stderr, f"a window that was not reached: {late.stderr}")
    wrong = run("train", RECIPE, "--run", "wrong", "--profile-step-start", "2",
                "--profile-step-end", "2", code=129)
    expect("profile-step-end" in wrong.stderr, f"an empty window: {wrong.stderr}")
    expect(not (FOLDER / "wrong").exists(), "a run that was refused left a folder")


shutil.rmtree(FOLDER, ignore_errors=True)
FOLDER.mkdir(parents=True)
PLAIN = train("plain")
check_one(PLAIN)
check_variants(PLAIN)
check_fake_gpu()
check_overlap()
check_without_file(PLAIN)
print(f"profile.py: {checks} checks, {len(failures)} failures")
sys.exit(bool(failures))
