#!/usr/bin/env python3
# ab_numbers.py INVAR ANSWER.json [PAGE.html] - computes the effects of `invar ab` again.
#
# The effects are computed from the runs' ledgers with exact fractions: the JSON must agree to
# rounding, and with doubles in the documented order in every bit. The query ab-effect on the
# experiment's ledger and the data of the page must have the same numbers.
# SPDX-License-Identifier: Apache-2.0
import fractions
import json
import math
import re
import sqlite3
import struct
import subprocess
import sys

METRICS = """
SELECT name, step, bits FROM metrics UNION ALL
SELECT iif(name LIKE 'eval/' || dataset || '%', name, 'eval/' || dataset || '/' || name), step,
    value_bits FROM evaluation JOIN series USING(series)
ORDER BY 1, 2"""


def check(condition, *what):
    if not condition:
        sys.exit("ab_numbers: " + " ".join(map(str, what)))


def real(bits):
    return struct.unpack("<d", struct.pack("<q", bits))[0]


def read(path):
    """Returns {metric: {step: bits}} of a ledger with one run and one segment."""
    out = {}
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as ledger:
        for name, step, bits in ledger.execute(METRICS):
            out.setdefault(name, {})[step] = bits
    return out


def check_sum(said, pairs, what):
    """Checks the statistics of one effect; `pairs` has (a, b) of each seed as doubles."""
    usable = [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    n = len(usable)
    check(said["pairs"] == n, what, "pairs", said, n)
    if n == 0:
        check(said["mean"] is None and said["error"] is None, what, said)
        return
    exact = [fractions.Fraction(b) - fractions.Fraction(a) for a, b in usable]
    mean = sum(exact) / n
    check(abs(fractions.Fraction(said["mean"]) - mean) <= max(map(abs, exact)) * 1e-15 * n,
          what, "mean", said["mean"], float(mean))
    check(said["higher"] == sum(d > 0 for d in exact), what, "higher", said)
    check(said["lower"] == sum(d < 0 for d in exact), what, "lower", said)
    check(said["equal"] == sum(d == 0 for d in exact), what, "equal", said)
    # Doubles in the documented order: every bit agrees.
    differences = [b - a for a, b in usable]
    total = 0.0
    for d in differences:
        total += d
    check(said["mean"] == total / n, what, "mean", said["mean"], total / n)
    if n < 2:
        check(said["error"] is None, what, said)
        return
    squares = 0.0
    for d in differences:
        squares += (d - total / n) * (d - total / n)
    check(said["error"] == math.sqrt(squares / (n * (n - 1))), what, "error", said)
    variance = sum((d - mean) ** 2 for d in exact) / (n - 1)
    noise = (1e-15 * n * float(max(map(abs, exact)))) ** 2 # error of the rounded mean
    check(math.isclose(said["error"] ** 2 * n, float(variance), rel_tol=1e-9, abs_tol=noise), what,
          "error", said["error"], "variance", float(variance))


def tail(series_a, series_b, steps):
    both = [(real(series_a[s]), real(series_b[s])) for s in steps
            if s in series_a and s in series_b]
    both = [(a, b) for a, b in both if math.isfinite(a) and math.isfinite(b)]
    if not both:
        return math.nan, math.nan
    sums = [0.0, 0.0]
    for pair in both:
        sums = [sums[0] + pair[0], sums[1] + pair[1]]
    return sums[0] / len(both), sums[1] / len(both)


def check_effects(answer):
    seeds = [(read(one["a"]["ledger"]), read(one["b"]["ledger"])) for one in answer["seeds"]]
    names = sorted({name for pair in seeds for side in pair for name in side})
    said = {one["name"]: one for one in answer["effects"]}
    same = [name for name in names if all(a.get(name) == b.get(name) for a, b in seeds)]
    check(sorted(answer["equal_metrics"]) == same, "equal metrics", answer["equal_metrics"], same)
    check(sorted(said) == [name for name in names if name not in same], "metrics", sorted(said))
    steps = answer["steps"]
    window = range(steps["tail_first"], steps["last"] + 1)
    count = steps["last"] - steps["first"] + 1
    check(len(window) == -(-count // 10), "the last tenth", steps)
    for name, one in said.items():
        values = [(a.get(name, {}), b.get(name, {})) for a, b in seeds]
        common = [s for a, b in values for s in a if s in b]
        check(one["step"] == (max(common) if common else None), name, "step", one["step"])
        if common:
            at = max(common)
            check_sum(one["last"], [(real(a[at]), real(b[at])) for a, b in values], name)
        check_sum(one["tail"], [tail(a, b, window) for a, b in values], name + ", tail")
    return said


def query(invar, answer, name, step):
    out = subprocess.run([invar, "ledger", "query", "ab-effect", "--ledger", answer["ledger"],
                          "--experiment", answer["experiment"], "--metric", name, "--step",
                          str(step), "--json"], capture_output=True, text=True, check=False)
    check(out.returncode == 0, name, "query:", out.stderr)
    rows = json.loads(out.stdout)
    rows = rows["rows"] if isinstance(rows, dict) else rows
    check(len(rows) == 1, name, "query:", out.stdout)
    return rows[0]


def check_query(invar, answer, said):
    asked = 0
    for name, one in said.items():
        last = one["last"]
        if name.startswith("eval/") or last["pairs"] < 2:
            continue
        row = query(invar, answer, name, one["step"])
        check(row["pairs"] == last["pairs"], name, row, last)
        scale = abs(last["mean_a"]) + abs(last["mean_b"])
        check(abs(row["mean_difference"] - last["mean"]) <= 1e-14 * scale, name, row, last)
        check(abs(row["mean_a"] - last["mean_a"]) <= 1e-14 * scale, name, row, last)
        check(abs(row["mean_b"] - last["mean_b"]) <= 1e-14 * scale, name, row, last)
        check((row["b_higher"], row["b_lower"], row["equal"]) ==
              (last["higher"], last["lower"], last["equal"]), name, row, last)
        asked += 1
    return asked


def check_page(path, answer):
    with open(path, encoding="utf-8") as file:
        page = file.read()
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    check(len(found) == 1, "the page has no data")
    data = json.loads(found[0])
    for key in ("verdict", "headline", "facts", "effects", "place", "seeds", "equal_metrics"):
        check(data[key] == answer[key], "the page says something else:", key)
    check(len(data["runs"]) == 2 * len(answer["seeds"]), "runs on the page", len(data["runs"]))
    for run in data["runs"]:
        one = next(s for s in answer["seeds"] if s["seed"] == run["seed"])
        values = read(one[run["side"]]["ledger"])
        check({s["name"] for s in run["series"]} == set(values), "series on the page")
        for series in run["series"]:
            steps = [sum(series["at"][:i + 1]) for i in range(len(series["at"]))]
            bits = [series["bits"][16 * i:16 * i + 16] for i in range(len(steps))]
            check({s: int(b, 16) for s, b in zip(steps, bits)} ==
                  {s: b % (1 << 64) for s, b in values[series["name"]].items()},
                  "curve of", series["name"])


def main():
    with open(sys.argv[2], encoding="utf-8") as file:
        answer = json.load(file)
    said = check_effects(answer)
    asked = check_query(sys.argv[1], answer, said)
    if len(sys.argv) > 3:
        check_page(sys.argv[3], answer)
    print(f"{len(said)} effects, {len(answer['equal_metrics'])} equal metrics, {asked} queries")


main()
