#!/usr/bin/env python3
# profile.py INVAR FOLDER RECIPE [--FLAG VALUE ...] - cost of profiling a window of steps.
#
# One run, a third of whose steps, in the middle, is profiled. For each phase, compares the median
# time of the steps in the window with that of the steps outside. The first steps, in which memory
# and graphs settle, are left out. Prints one line of JSON per phase.
# SPDX-License-Identifier: Apache-2.0
import json
import shutil
import sqlite3
import statistics
import subprocess
import sys
from pathlib import Path

SETTLE, OUTSIDE, INSIDE = 3, 8, 8

invar, folder, recipe = (Path(word).resolve() for word in sys.argv[1:4])
first, end = SETTLE + OUTSIDE, SETTLE + OUTSIDE + INSIDE
shutil.rmtree(folder, ignore_errors=True)
folder.mkdir(parents=True)
subprocess.run([invar, "train", recipe, "--no-report", "--run", "profile", "--save", "none",
                "--trace", "trace.json", "--num-rollout", str(end + OUTSIDE),
                "--profile-step-start", str(first), "--profile-step-end", str(end), *sys.argv[4:]],
               cwd=folder, check=True, stdout=sys.stderr)
with sqlite3.connect(folder / "profile/ledger.db") as ledger:
    rows = list(ledger.execute("SELECT phase, step, duration_ns FROM timing"))
    ops, = ledger.execute("SELECT total(calls) FROM op_times").fetchone()
    spent = dict(ledger.execute("SELECT phase, total(duration_ns) / 1e9 FROM op_times GROUP BY 1"))
for phase in dict.fromkeys(name for name, _, _ in rows):
    times = {False: [], True: []}
    for name, step, ns in rows:
        if name == phase and step >= SETTLE:
            times[first <= step < end].append(ns / 1e9)
    if times[False] and times[True]:
        outside, inside = statistics.median(times[False]), statistics.median(times[True])
        print(json.dumps({"phase": phase, "outside_s": round(outside, 6),
                          "inside_s": round(inside, 6), "ratio": round(inside / outside, 3),
                          "ops_share": round(spent.get(phase, 0) / sum(times[True]), 3)}))
print(json.dumps({"ops_a_step": round(ops / INSIDE)}))
