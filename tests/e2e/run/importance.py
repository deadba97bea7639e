#!/usr/bin/env python3
# importance.py INVAR FOLDER - importance weights of runs that train on samples of other weights.
#
# A run samples in another format than it trains in (rollout-dtype), or with earlier weights
# (rollout-lag), or both, or trains on saved rollouts of another dtype. The test takes the log-probs
# of its rollout files and dumps, and computes the formulas of docs/arithmetic.md (section 13) again
# in float64: differences, weights of TIS and MIS, rejections of RS, their metrics, and the policy
# loss. Metrics, gauges and samples of the ledger must agree. Controls: weights of 1, and inverted
# ratios, must give another loss. In a layout of ranks such a run has the chain of one rank;
# with INVAR_TEST_FULL=1 in more layouts, and with more settings of lagged runs.
# SPDX-License-Identifier: Apache-2.0
import copy
import json
import math
import os
import pathlib
import shutil
import sqlite3
import struct
import subprocess
import sys

INVAR, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])
FULL = bool(os.environ.get("INVAR_TEST_FULL"))
NEAR = 2e-5  # tolerance for float32 sums over a rollout
ROLLOUTS = 2  # rollouts of a run that samples in another format
LAGGED = 4    # rollouts of a run that samples with earlier weights; rollout 0 does not
failures = []


def expect(holds, what):
    if not holds:
        failures.append(what)
        print(what, file=sys.stderr)


def train(name, *words, recipe="recipes/bf16.ini", rollouts=ROLLOUTS, refused=None):
    """Trains and returns the chain. With `refused`, checks that the run is rejected with this
    text."""
    command = [INVAR, "train", recipe, "--num-rollout", str(rollouts), "--run",
               str(FOLDER / name), "--save", "none", "--no-report", "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if refused:
        expect(done.returncode == 129 and refused in done.stderr,
               f"{name}: exit code {done.returncode}, not refused: {done.stderr}")
        return None
    expect(done.returncode == 0, f"{name}: exit code {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)["chain"] if done.returncode == 0 else None


def floats(path):
    """Returns the numbers of a .npy file of float32."""
    data = path.read_bytes()
    head = 10 + int.from_bytes(data[8:10], "little")
    assert data[:6] == b"\x93NUMPY" and b"<f4" in data[:head], path
    return struct.unpack(f"<{(len(data) - head) // 4}f", data[head:])


class Step:
    """The first optimizer step of a rollout, whose old log-probs are those of training."""

    def __init__(self, name, number):
        lines = (FOLDER / f"{name}-{number}").read_text(encoding="utf-8").splitlines()[1:]
        trained = iter(floats(FOLDER / name / f"dump/step_{number}/train.logp.npy"))
        samples = [s["logprobs"] for s in map(json.loads, lines) if "logprobs" in s]
        # The log-probs in the file are the shortest decimals of float32 values.
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

    def inverted(self):
        """Returns a copy with inverted ratios, as if sampling and training were confused."""
        other = copy.copy(self)
        other.x = self.of(lambda x: -x)
        return other

    def mean(self, values):
        """Returns the mean over samples of the mean over their tokens."""
        return sum(sum(v) / len(v) for v in values) / len(values)

    def mean_of_samples(self, values):
        return sum(values) / len(self.x)

    def of(self, f):
        return [[f(x) for x in sample] for sample in self.x]

    def loss(self, weights, keep):
        return self.mean([[-a * w * k for w, k in zip(ws, ks)]
                          for (a, _), ws, ks in zip(self.samples, weights, keep)])


def close(a, b):
    return abs(a - b) <= NEAR * (1 + abs(b))


def ratio(x):
    return math.exp(min(max(x, -20), 20))


def rest(x):
    return math.exp(x) - 1 - x


def compare(name, step, expected):
    for metric, value in expected.items():
        found = step.metrics.get(metric, step.gauges.get(metric))
        expect(found is not None and close(found, value),
               f"{name}: {metric} is {found}, {value} in float64")


def check_differences(name, step, lagged, formatted):
    """Checks the metrics of the differences. Samples of lagged weights have no recorded difference;
    a difference that must be 0 is a metric, any other a gauge."""
    largest = [max(map(abs, x)) for x in step.x]
    compare(name, step, {
        "train/logp_diff_max": max(largest),
        "train/train_rollout_logprob_abs_diff": step.mean(step.of(abs)),
        "train/train_rollout_kl": step.mean(step.of(lambda x: min(rest(x), 10)))})
    expect(("train/logp_diff_max" in step.metrics) == (not lagged and not formatted),
           f"{name}: is the difference a metric?")
    expect(max(largest) > 1e-3 if lagged or formatted else max(largest) == 0,
           f"{name}: log-probs differ by {max(largest)}")
    for (_, diff), most in zip(step.samples, largest):
        expect(diff is None if lagged else diff is not None and close(diff, most),
               f"{name}: a sample's diff is {diff}")


def levels(step, level):
    """Returns the ratio of each token at a level."""
    if level == "token":
        return step.of(ratio)
    part = {"sequence": lambda x: 1, "geometric": len}[level]
    return [[ratio(sum(x) / part(x))] * len(x) for x in step.x]


def inside(low, high):
    return lambda rows: [[float(low <= r <= high) for r in row] for row in rows]


def each(f, rows):
    return [[f(r) for r in row] for row in rows]


def ones(step):
    return step.of(lambda x: 1.0)


def tis(step, low, high, icepop):
    ratios = step.of(ratio)
    cut = (lambda r: r if low <= r <= high else 0.0) if icepop else \
        (lambda r: min(max(r, low), high))
    weights = each(cut, ratios)
    return {"train/tis": step.mean(ratios),
            "train/tis_abs": step.mean(each(lambda r: abs(r - 1), ratios)),
            "train/tis_clipfrac": step.mean(each(lambda r: float(not low <= r <= high), ratios)),
            "train/pg_loss": step.loss(weights, ones(step))}


def share(step, holds, rows):
    return step.mean(each(lambda r: float(holds(r)), rows))


def perplexities(step):
    old, rollout = ([sum(s) / len(s) for s in lp] for lp in (step.old, step.rollout))
    apart = [r - o for o, r in zip(old, rollout)]
    values = {"training_log_ppl": [-o for o in old], "training_ppl": [math.exp(-o) for o in old],
              "rollout_log_ppl": [-r for r in rollout],
              "rollout_ppl": [math.exp(-r) for r in rollout],
              "log_ppl_diff": apart, "log_ppl_abs_diff": [abs(d) for d in apart],
              "ppl_ratio": [math.exp(d) for d in apart],
              "chi2_token": [sum(ratio(x) ** 2 for x in s) / len(s) - 1 for s in step.x],
              "chi2_seq": [ratio(sum(s)) ** 2 - 1 for s in step.x]}
    return {f"train/mis_{name}": step.mean_of_samples(v) for name, v in values.items()}


def rejection(step, level, low, high, veto):
    """Returns the mask of RS and its metrics."""
    ratios = levels(step, level)
    keep = inside(low, high)(ratios)
    seen = {"train/mis_rs_mask_fraction_low": share(step, lambda r: r < low, ratios),
            "train/mis_rs_mask_fraction_high": share(step, lambda r: r > high, ratios)}
    if veto:
        bad = step.of(lambda x: float(x < math.log(veto)))
        seen["train/mis_rs_catastrophic_token_fraction"] = step.mean(bad)
        seen["train/mis_rs_catastrophic_seq_fraction"] = step.mean_of_samples(map(max, bad))
        keep = [[0.0 if max(b) else k for k in ks] for ks, b in zip(keep, bad)]
    return keep, seen


def mis(step, level, mode, low, high, rs=None, normalize=False):
    ratios = levels(step, level)
    cut = {"truncate": lambda r: min(r, high), "clip": lambda r: min(max(r, low), high),
           "mask": lambda r: r}[mode]
    weights, keep, seen = each(cut, ratios), ones(step), perplexities(step)
    above = share(step, lambda r: r > high, ratios)
    if mode == "truncate":
        seen["train/mis_tis_truncate_fraction"] = above
    else:
        seen[f"train/mis_tis_{mode}_fraction_low"] = share(step, lambda r: r < low, ratios)
        seen[f"train/mis_tis_{mode}_fraction_high"] = above
    if mode == "mask":
        keep = inside(low, high)(ratios)
    if rs:
        kept, more = rejection(step, *rs)
        seen |= more
        keep = [[a * b for a, b in zip(p, q)] for p, q in zip(keep, kept)]
    seen |= {"train/mis_tis_weight_before_bound": step.mean(ratios),
             "train/mis_tis_weight_after_bound": step.mean(weights),
             "train/mis_is_ratio_mean_after_tis_rs": step.mean(weights),
             "train/mis_kl": step.mean(step.of(lambda x: -x)),
             "train/mis_k3_kl": step.mean(step.of(rest))}
    if normalize:
        tokens = [w for row in weights for w in row]
        mu = sum(tokens) / len(tokens) if level == "token" else step.mean(weights)
        seen["train/mis_batch_norm_factor"] = mu
        weights = each(lambda w: w / mu, weights)
    return seen | {"train/mis_is_ratio_mean_final": step.mean(weights),
                   "train/mis_is_ratio_min_final": step.mean_of_samples(map(min, weights)),
                   "train/mis_is_ratio_max_final": step.mean_of_samples(map(max, weights)),
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
           lambda s: mis(s, "token", "truncate", 0.5, HIGH, ("geometric", 0.98, 1.02, 0))),
}

# Weights of earlier versions: the first tokens of a response may be older than the last.
UP = ("--use-mis", "--mis-upper-bound", "1.25")
BOTH = (*UP, "--mis-lower-bound", "0.8", "--mis-mode")


def lagging(lag, segment, *words):
    return ("--rollout-lag", str(lag), "--rollout-segment-tokens", str(segment), "--lr", "0.01",
            "--rollout-max-response-len", "8", *words)


def rejecting(level, low, high, veto):
    return ("--use-rs", "--rs-level", level, "--rs-lower-bound", str(low), "--rs-upper-bound",
            str(high), "--rs-veto-threshold", str(veto))


LAGS = {
    "lag-tis": (lagging(1, 0, "--use-tis", "--tis-clip", "1.5", "--tis-clip-low", "0.5"),
                lambda s: tis(s, 0.5, 1.5, False)),
    "lag-icepop": (lagging(2, 3, *CLIPS, "--tis-mode", "icepop"),
                   lambda s: tis(s, LOW, HIGH, True)),
    "lag-mis": (lagging(2, 3, *BOTH, "clip", "--mis-batch-normalize"),
                lambda s: mis(s, "token", "clip", 0.8, 1.25, normalize=True)),
    "lag-mask": (lagging(3, 1, *BOTH, "mask", "--mis-level", "geometric"),
                 lambda s: mis(s, "geometric", "mask", 0.8, 1.25)),
    "lag-rs": (lagging(3, 0, *UP, *rejecting("sequence", 0.1, 10, 0.05)),
               lambda s: mis(s, "token", "truncate", 0, 1.25, ("sequence", 0.1, 10, 0.05))),
    "lag-rs-token": (lagging(2, 2, *UP, "--mis-level", "sequence", "--mis-batch-normalize",
                             *rejecting("token", 0.9, 1.1, 0)),
                     lambda s: mis(s, "sequence", "truncate", 0, 1.25, ("token", 0.9, 1.1, 0),
                                   normalize=True)),
    "lag-recorded": (("--rollout-lag", "2", "--rollout-schedule", "recorded", "--lr", "0.01",
                      "--rollout-max-response-len", "8", *BOTH, "mask", "--mis-level", "sequence"),
                     lambda s: mis(s, "sequence", "mask", 0.8, 1.25)),
    "lag-fp8": (lagging(1, 4, "--rollout-dtype", "fp8", *BOTH, "clip",
                        *rejecting("geometric", 0.7, 1.4, 0)),
                lambda s: mis(s, "token", "clip", 0.8, 1.25, ("geometric", 0.7, 1.4, 0))),
}


if not FULL:  # CASES have both modes of TIS, and lag-recorded has the mode "mask"
    LAGS = {name: LAGS[name] for name in LAGS if name not in ("lag-tis", "lag-icepop", "lag-mask")}

# The weights that sample exist on every rank, in its partition of the model, or are sent to it.
LAYOUTS = {
    "data": ("--ranks", "2"),
    "apart": ("--ranks", "3", "--rollout-num-gpus", "1"),
    "tensor": ("--ranks", "4", "--tensor-model-parallel-size", "2", "--rollout-num-gpus", "2",
               "--rollout-num-gpus-per-engine", "2"),
    "pipeline": ("--ranks", "2", "--pipeline-model-parallel-size", "2"),
}


def check_layouts():
    recipe = "tests/e2e/ranks/sharded_model.ini"
    same = ("--rollout-dtype", "fp8", "--threads", "1", *CLIPS)
    rollouts = 2 if FULL else 1
    one = train("one", *same, recipe=recipe, rollouts=rollouts)
    for name, words in LAYOUTS.items() if FULL else [("tensor", LAYOUTS["tensor"])]:
        chain = train(name, *same, *words, recipe=recipe, rollouts=rollouts)
        expect(chain == one, f"{name}: another chain than on one rank: {chain}")
    # A logical shard is narrower than its scale blocks.
    train("narrow", "--rollout-dtype", "fp8", "--logical-tp", "2", *LAYOUTS["apart"],
          refused="begins inside of a block of 128 columns with one scale")


def check(name, words, formulas, rollouts, files="--save-debug-rollout-data"):
    train(name, *words, "--debug-dump", "train.logp", files,
          str(FOLDER / (name + "-{rollout_id}")), rollouts=rollouts)
    for number in range(rollouts):
        step, at = Step(name, number), f"{name}, step {number}"
        lags, formatted = "--rollout-lag" in words, "--rollout-dtype" in words
        lagged = lags and number > 0 or files.startswith("--load")
        check_differences(at, step, lagged, formatted)
        compare(at, step, formulas(step))
        differs = lagged or formatted
        rejected = sum(v for k, v in step.metrics.items() if k.startswith("train/mis_rs_mask_"))
        expect(rejected < 1 and (rejected > 0) == ("--use-rs" in words and lagged == lags),
               f"{at}: RS rejects {rejected} of all tokens")
        # Controls: weights that are all 1, or inverted ratios, give another loss.
        loss = step.metrics["train/pg_loss"]
        for other, what in ((step.loss(ones(step), ones(step)), "weights of 1"),
                            (formulas(step.inverted())["train/pg_loss"], "upside down")):
            expect(close(loss, other) != differs, f"{at}: {what}: loss {other}, found {loss}")


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for name, (words, formulas) in CASES.items():
        check(name, words, formulas, ROLLOUTS)
    for name, (words, formulas) in LAGS.items():
        check(name, words, formulas, LAGGED)
    # These weights in another format are another policy: its samples are off-policy data.
    train("source", "--save-debug-rollout-data", str(FOLDER / "saved-{rollout_id}"))
    check("saved", ("--dtype", "fp32", *CLIPS), lambda s: tis(s, LOW, HIGH, False), ROLLOUTS,
          files="--load-debug-rollout-data")
    check_layouts()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
