#!/usr/bin/env python3
# importance.py INVAR FOLDER - weights of importance of runs that sample in another format.
#
# A run trains in one format and samples in another (rollout-dtype). From the log-probs of its
# rollout files and those that it dumps, the formulas of docs/arithmetic.md (section 13) are
# computed again in float64: differences, weights of TIS and MIS, what RS rejects, the policy loss.
# Metrics, gauges and samples of the ledger must say the same; weights of 1 must not give the same
# loss. In every layout of ranks such a run has the chain of one rank.
# SPDX-License-Identifier: Apache-2.0
import json
import math
import pathlib
import shutil
import sqlite3
import struct
import subprocess
import sys

INVAR, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])
NEAR = 2e-5  # of float32 sums over a rollout
ROLLOUTS = 2
failures = []


def expect(holds, what):
    if not holds:
        failures.append(what)
        print(what, file=sys.stderr)


def train(name, *words, recipe="recipes/bf16.ini", refused=None):
    """The chain of a run, or the words with which it is refused."""
    command = [INVAR, "train", recipe, "--num-rollout", str(ROLLOUTS), "--run",
               str(FOLDER / name), "--save", "none", "--no-report", "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if refused:
        expect(done.returncode == 129 and refused in done.stderr,
               f"{name}: exit code {done.returncode}, not refused: {done.stderr}")
        return None
    expect(done.returncode == 0, f"{name}: exit code {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)["chain"] if done.returncode == 0 else None


def floats(path):
    """The numbers of a .npy file of float32."""
    data = path.read_bytes()
    head = 10 + int.from_bytes(data[8:10], "little")
    assert data[:6] == b"\x93NUMPY" and b"<f4" in data[:head], path
    return struct.unpack(f"<{(len(data) - head) // 4}f", data[head:])


class Step:
    """The first optimizer step of a rollout: old log-probs are those of training."""

    def __init__(self, name, number):
        lines = (FOLDER / f"{name}-{number}").read_text(encoding="utf-8").splitlines()[1:]
        trained = iter(floats(FOLDER / name / f"dump/step_{number}/train.logp.npy"))
        samples = [s["logprobs"] for s in map(json.loads, lines) if "logprobs" in s]
        # float32 log-probs, as their shortest decimals name them
        self.rollout = [struct.unpack(f"{len(s)}f", struct.pack(f"{len(s)}f", *s))
                        for s in samples]
        self.old = [[next(trained) for _ in s] for s in samples]
        expect(next(trained, None) is None, f"{name}: {number}: more tokens were trained")
        with sqlite3.connect(FOLDER / name / "ledger.db") as ledger:
            self.metrics = dict(ledger.execute(
                "SELECT name, value FROM metrics WHERE step = ?", (number,)))
            self.gauges = dict(ledger.execute(
                "SELECT n.name, g.value FROM gauge g JOIN series n ON n.series = g.series "
                "WHERE g.step = ?", (number,)))
            self.samples = list(ledger.execute(
                "SELECT advantage, diff FROM samples WHERE step = ? ORDER BY idx", (number,)))
        self.x = [[o - r for o, r in zip(a, b)] for a, b in zip(self.old, self.rollout)]

    def mean(self, values):
        """Over the tokens of each sample, then over samples."""
        return sum(sum(v) / len(v) for v in values) / len(values)

    def of(self, f):
        return [[f(x) for x in sample] for sample in self.x]

    def loss(self, weights, keep):
        return self.mean([[-a * w * k for w, k in zip(ws, ks)]
                          for (a, _), ws, ks in zip(self.samples, weights, keep)])


def close(a, b):
    return abs(a - b) <= NEAR * (1 + abs(b))


def compare(name, step, expected):
    for metric, value in expected.items():
        found = step.metrics.get(metric, step.gauges.get(metric))
        expect(found is not None and close(found, value),
               f"{name}: {metric} is {found}, {value} in float64")


def check_differences(name, step):
    largest = [max(map(abs, x)) for x in step.x]
    compare(name, step, {
        "train/logp_diff_max": max(largest),
        "train/train_rollout_logprob_abs_diff": step.mean(step.of(abs)),
        "train/train_rollout_kl": step.mean(step.of(lambda x: math.exp(x) - 1 - x))})
    expect("train/logp_diff_max" not in step.metrics, f"{name}: the difference is a metric")
    expect(max(largest) > 1e-3, f"{name}: nothing differs")
    for (_, diff), most in zip(step.samples, largest):
        expect(diff is not None and close(diff, most), f"{name}: a sample's diff is {diff}")


def levels(step, level):
    """The ratio of each token at a level."""
    if level == "token":
        return step.of(math.exp)
    share = {"sequence": lambda x: 1, "geometric": len}[level]
    return [[math.exp(sum(x) / share(x))] * len(x) for x in step.x]


def inside(low, high):
    return lambda rows: [[float(low <= r <= high) for r in row] for row in rows]


def each(f, rows):
    return [[f(r) for r in row] for row in rows]


def ones(step):
    return step.of(lambda x: 1.0)


def tis(step, low, high, icepop):
    ratios = step.of(math.exp)
    cut = (lambda r: r if low <= r <= high else 0.0) if icepop else \
        (lambda r: min(max(r, low), high))
    weights = each(cut, ratios)
    return {"train/tis": step.mean(ratios),
            "train/tis_abs": step.mean(each(lambda r: abs(r - 1), ratios)),
            "train/tis_clipfrac": step.mean(each(lambda r: float(not low <= r <= high), ratios)),
            "train/pg_loss": step.loss(weights, ones(step))}


def mis(step, level, mode, low, high, rs=None):
    ratios = levels(step, level)
    cut = {"truncate": lambda r: min(r, high), "clip": lambda r: min(max(r, low), high),
           "mask": lambda r: r}[mode]
    weights, keep = each(cut, ratios), ones(step)
    if mode == "mask":
        keep = inside(low, high)(ratios)
    if rs:
        rejected = inside(*rs[1:])(levels(step, rs[0]))
        keep = [[a * b for a, b in zip(p, q)] for p, q in zip(keep, rejected)]
    return {"train/mis_tis_weight_before_bound": step.mean(ratios),
            "train/mis_tis_weight_after_bound": step.mean(weights),
            "train/mis_kl": step.mean(step.of(lambda x: -x)),
            "train/pg_loss": step.loss(weights, keep)}


LOW, HIGH = 0.95, 1.05
BOUNDS = ("--mis-lower-bound", str(LOW), "--mis-upper-bound", str(HIGH))
RS = ("--use-rs", "--rs-level", "geometric", "--rs-lower-bound", "0.98", "--rs-upper-bound", "1.02")
CLIPS = ("--use-tis", "--tis-clip", str(HIGH), "--tis-clip-low", str(LOW))
CASES = {
    "tis": (("--rollout-dtype", "int4", *CLIPS), lambda s: tis(s, LOW, HIGH, False)),
    "icepop": (("--rollout-dtype", "fp8", *CLIPS, "--tis-mode", "icepop"),
               lambda s: tis(s, LOW, HIGH, True)),
    "mis": (("--rollout-dtype", "mxfp8", "--use-mis", "--mis-level", "sequence", "--mis-mode",
             "clip", *BOUNDS), lambda s: mis(s, "sequence", "clip", LOW, HIGH)),
    "mask": (("--rollout-dtype", "fp8", "--use-mis", "--mis-mode", "mask", *BOUNDS),
             lambda s: mis(s, "token", "mask", LOW, HIGH)),
    "rs": (("--rollout-dtype", "int4", "--use-mis", "--mis-upper-bound", str(HIGH), *RS),
           lambda s: mis(s, "token", "truncate", 0.5, HIGH, ("geometric", 0.98, 1.02))),
}


# the weights that sample are made on every rank, in its part of the model, or travel
LAYOUTS = {
    "data": ("--ranks", "2"),
    "apart": ("--ranks", "3", "--rollout-num-gpus", "1"),
    "tensor": ("--ranks", "4", "--tensor-model-parallel-size", "2", "--rollout-num-gpus", "2",
               "--rollout-num-gpus-per-engine", "2"),
    "pipeline": ("--ranks", "2", "--pipeline-model-parallel-size", "2"),
}


def check_layouts():
    recipe = "tests/e2e/ranks/divided.ini"
    same = ("--rollout-dtype", "fp8", "--threads", "1", *CLIPS)
    one = train("one", *same, recipe=recipe)
    for name, words in LAYOUTS.items():
        chain = train(name, *same, *words, recipe=recipe)
        expect(chain == one, f"{name}: another chain than on one rank: {chain}")
    # narrower than its blocks of scales
    train("narrow", "--rollout-dtype", "fp8", "--logical-tp", "2", *LAYOUTS["apart"],
          refused="begins inside of a block of 128 columns with one scale")


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for name, (words, formulas) in CASES.items():
        train(name, *words, "--debug-dump", "train.logp", "--save-debug-rollout-data",
              str(FOLDER / (name + "-{rollout_id}")))
        for number in range(ROLLOUTS):
            step = Step(name, number)
            check_differences(name, step)
            compare(name, step, formulas(step))
            # the control: weights that are all 1 give another loss
            plain = step.loss(ones(step), ones(step))
            expect(not close(step.metrics["train/pg_loss"], plain), f"{name}: weights of 1 will do")
    check_layouts()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
