#!/usr/bin/env python3
# gpu.py INVAR [--op NAME] [--burst MS ...] [--peer FILE.so] [--models] - ops against cuBLAS, cuDNN.
#
# Runs the program bench.peers beside INVAR, which times our ops and the peer's alternately, prints
# the rows, and checks the goals once for each length of burst. The peer is FILE, or
# tests/bench/peer.cpp, which is then compiled. ratio is the peer's time divided by ours. With
# --models, complete models follow (model.py). Exit code 1: a goal was missed, or elements differ
# from the CPU's.
# SPDX-License-Identifier: Apache-2.0
"""Times of our ops and of the vendor's, as ratios, in one run."""
import argparse
import json
import math
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import model  # noqa: E402

# in ms: short ones, and long ones, in which power limits the GPU's clock to the one of each op
BURSTS = ("10", "200")
# name, ops, type, goal for the geometric mean of the ratios, goal for the smallest ratio
GOALS = (("bf16 products of cuBLAS", ("linear.fwd", "linear.dw"), "bf16", 0.95, 0.85),
         ("fp8 products of cuBLAS, scales of blocks", ("linear.fwd",), "fp8", None, 1.05),
         ("attention.fwd of cuDNN", ("attention.fwd",), "bf16", None, 0.85),
         ("attention.bwd of cuDNN, deterministic mode", ("attention.bwd",), "bf16", None, 0.9),
         ("hash.tree of a copy", ("hash.tree",), "bf16", None, 0.6))


def print_row(row):
    bits = "DIFFERENT" if row["different"] else "equal" if row["compared"] else ""
    left = (f"{row['op']:16} {row['type']:6} {row['shape']:24} {row['seconds'] * 1e6:10.1f} "
            f"{row['rate']:8.1f} {row['unit']:8} {bits:9}")
    if not row["peers"]:
        print(left.rstrip(), flush=True)
    for peer in row["peers"]:
        print(f"{left:87} {peer['seconds'] * 1e6:10.1f} {peer['ratio']:7.3f}  {peer['name']}",
              flush=True)
        left = ""


def measure(invar, peer, *more):
    """Measures all rows, then prints them. Returns the rows and the exit code."""
    command = [model.peers_of(invar), "--device", "cuda", "--json", "--peer", peer, *more]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    found = json.loads(ran.stdout)
    print(f"{'op':16} {'type':6} {'shape':24} {'us':>10} {'rate':>8} {'':8} {'bits':9} "
          f"{'peer us':>10} {'ratio':>7}  peer")
    for row in found["rows"]:
        print_row(row)
    if found.get("error"):
        print(found["error"])
    return found["rows"], ran.returncode


def check_goals(rows):
    """Prints the goals, by the first peer of each row. Returns whether all are met."""
    all_met = True
    print(f"\n{'goal':42} {'rows':>4} {'mean':>7} {'goal':>5} {'least':>7} {'goal':>5}")
    for what, ops, kind, mean_goal, least_goal in GOALS:
        ratios = [row["peers"][0]["ratio"] for row in rows
                  if row["op"] in ops and row["type"] == kind and row["peers"]
                  and " V" not in row["shape"]]  # peers have no shards
        if not ratios:
            continue
        mean, least = math.exp(sum(map(math.log, ratios)) / len(ratios)), min(ratios)
        met = mean >= (mean_goal or 0) and least >= least_goal
        all_met = all_met and met
        print(f"{what:42} {len(ratios):4} {mean:7.3f} {mean_goal or '':5} {least:7.3f} "
              f"{least_goal:5}  {'met' if met else 'MISSED'}")
    return all_met


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("invar")
    parser.add_argument("--op", default="")
    parser.add_argument("--burst", nargs="+", default=BURSTS)
    parser.add_argument("--peer")
    parser.add_argument("--models", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        peer = args.peer or model.make_peer(folder)
        codes = []
        for burst in args.burst:
            print(f"bursts of {burst} ms")
            rows, code = measure(args.invar, peer, "--op", args.op, "--burst", burst)
            codes += [code, int(not check_goals(rows))]
            print()
        if args.models:
            model.compare(args.invar, peer=peer)
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
