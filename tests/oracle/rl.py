#!/usr/bin/env python3
# rl.py [--seed N] [--out FILE] | --check - advantages, losses and their gradients by PyTorch.
#
# Writes batches, options and the results of PyTorch in float64, with gradients by its autograd;
# tests/unit/engine/rl/torch.c compares. FILE is by default rl.json in this folder. With --check it
# computes that file again and compares numbers up to the noise of float64. The formulas are those
# of docs/arithmetic.md section 13, written with complete tensors and without an order of
# operations.
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of engine/rl."""
import argparse
import json
import math
import pathlib
import random
import sys

import numpy
import torch

HERE = pathlib.Path(__file__).resolve().parent
LENGTHS = [5, 1, 9, 4, 7, 3, 6]
GROUPS = [0, 0, 0, 1, 1, 1, 1]
LIMIT = 20.0

BASE = {"loss": "policy", "estimator": "grpo", "rewards_normalization": True,
        "std_normalization": True, "eps_clip": 0.2, "eps_clip_high": 0.28}
KL = {"use_kl_loss": True, "kl_loss_coef": 0.05}
MIS = {"use_mis": True, "mis_low": 0.7, "mis_high": 1.4}

CASES = {
    "grpo": {},
    "grpo.centred": {"std_normalization": False},
    "grpo.raw": {"rewards_normalization": False, "entropy_coef": 0.01},
    "grpo.per_token": {"per_token_loss": True, "entropy_coef": 0.02, **KL, "kl_type": "k3"},
    "grpo.constant": {"constant_divisor": 100.0, **KL, "kl_type": "k2"},
    "grpo.dual": {"eps_clip_c": 1.3},
    "grpo.whitened": {"normalize_advantages": True},
    "grpo.k1": {**KL, "kl_type": "k1"},
    "grpo.k3.unbiased": {**KL, "kl_type": "k3", "unbiased_kl": True},
    "grpo.low_var": {**KL, "kl_type": "low_var_kl"},
    "grpo.low_var.unbiased": {**KL, "kl_type": "low_var_kl", "unbiased_kl": True},
    "grpo.far": {**KL, "kl_type": "low_var_kl", "far": True},
    "gspo": {"estimator": "gspo", "eps_clip": 0.05, "eps_clip_high": 0.05},
    "gspo.opsm": {"estimator": "gspo", "use_opsm": True, "opsm_delta": 0.02, **KL,
                  "kl_type": "k3", "per_token_loss": True},
    "opsm": {"use_opsm": True, "opsm_delta": 0.02},
    "tis": {"use_tis": True, "tis_clip": 1.2, "tis_clip_low": 0.9},
    "tis.icepop": {"use_tis": True, "tis_clip": 1.2, "tis_clip_low": 0.9, "tis_icepop": True},
    "mis.token": {**MIS, "mis_mode": "truncate", "mis_batch_normalize": True},
    "mis.sequence": {**MIS, "mis_level": "sequence", "mis_mode": "clip",
                     "mis_batch_normalize": True},
    "mis.geometric": {**MIS, "mis_level": "geometric", "mis_mode": "clip", "mis_low": 0.98,
                      "mis_high": 1.02, "per_token_loss": True},
    "mis.mask": {**MIS, "mis_low": 0.9, "mis_high": 1.1, "mis_mode": "mask",
                 "entropy_coef": 0.01, **KL, "kl_type": "k3"},
    "mis.rejection": {**MIS, "mis_mode": "truncate", "mis_rs": True, "mis_rs_level": "geometric",
                      "mis_rs_low": 0.92, "mis_rs_high": 1.05, "mis_veto": 0.8},
    "mis.rejection.gspo": {**MIS, "estimator": "gspo", "mis_mode": "truncate", "mis_rs": True,
                           "mis_rs_low": 0.85, "mis_rs_high": 1.15},
    "reinforce_plus_plus": {"estimator": "reinforce_plus_plus", "gamma": 0.97, "kl_coef": 0.1,
                            "kl_type": "k2"},
    "reinforce_plus_plus_baseline": {"estimator": "reinforce_plus_plus_baseline", "kl_coef": 0.1,
                                     "kl_type": "k1"},
    "ppo": {"estimator": "ppo", "gamma": 0.98, "lambd": 0.9, "kl_coef": 0.05, "kl_type": "k3",
            "normalize_advantages": True},
    "distillation": {"estimator": "on_policy_distillation", "opd_kl_coef": 1.0},
    "grpo.distillation": {"opd_kl_coef": 0.3},
    "sft": {"loss": "sft"},
    "sft.per_token": {"loss": "sft", "per_token_loss": True},
    "value": {"loss": "value", "estimator": "ppo", "gamma": 1.0, "lambd": 0.95, "value_clip": 0.2},
    "value.open": {"loss": "value", "estimator": "ppo", "gamma": 1.0, "lambd": 1.0,
                   "per_token_loss": True},
}


# ---- inputs ------------------------------------------------------------------------------------

def draw(rng, far):
    """Draws one batch: flat arrays of fp32 numbers."""
    def flat(make):
        return [float(numpy.float32(make())) for _ in range(sum(LENGTHS))]

    def near(base, scale):
        return [float(numpy.float32(min(x + rng.gauss(0, scale), -1e-3))) for x in base]

    old = flat(lambda: -rng.expovariate(1.0))
    batch = {"old_logp": old, "now": near(old, 12.0 if far else 0.3), "rollout_logp": near(old, .2),
             "ref_logp": near(old, 12.0 if far else 0.4), "teacher_logp": near(old, 0.5),
             "values": flat(lambda: rng.gauss(0, 1)), "entropy": flat(lambda: rng.expovariate(1)),
             "mask": [int(rng.random() < 0.8) for _ in range(sum(LENGTHS))],
             "start": [sum(LENGTHS[:i]) for i in range(len(LENGTHS) + 1)], "group": GROUPS,
             "reward": [float(rng.randint(0, 3)) / 4 for _ in LENGTHS]}
    # a sample without trained tokens
    batch["mask"][batch["start"][5]:batch["start"][6]] = [0] * LENGTHS[5]
    return batch


class Batch:
    """A batch as tensors, and sums over samples."""

    def __init__(self, raw):
        for name, values in raw.items():
            setattr(self, name, torch.tensor(values, dtype=torch.float64))
        self.start = [int(x) for x in raw["start"]]
        self.group = torch.tensor(raw["group"])
        self.of = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
        self.count = self.sums(self.mask)

    def sums(self, x):
        return torch.zeros(len(LENGTHS), dtype=torch.float64).index_add(0, self.of, x)

    def means(self, x):
        """Returns the mean over the trained tokens of each sample."""
        return self.sums(x * self.mask) / self.count.clamp(min=1)

    def spread(self, x):
        return x[self.of]


def kl(kind, logp, base, ratio=None):
    x = logp - base
    if kind == "k1":
        k = x
    elif kind == "k2":
        k = x ** 2 / 2
    else:
        y = (-x).clamp(-LIMIT, LIMIT) if kind == "low_var_kl" else -x
        k = torch.expm1(y) - y
    k = k if ratio is None else ratio * k
    return k.clamp(-10, 10) if kind == "low_var_kl" else k


# ---- advantages --------------------------------------------------------------------------------

def normalized(o, b):
    estimator = o["estimator"]
    if not o.get("rewards_normalization") or estimator in ("ppo", "reinforce_plus_plus"):
        return b.reward
    out = b.reward.clone()
    for g in b.group.unique():
        r = b.reward[b.group == g]
        std = r.std()
        scale = std + 1e-6 if estimator in ("grpo", "gspo") and o["std_normalization"] else 1
        out[b.group == g] = (r - r.mean()) / scale
    return out


def advantages(o, b):
    """Returns (advantage, returns), zero where the mask is zero."""
    estimator = o["estimator"]
    coef = o.get("kl_coef", 0.0)
    penalty = coef * kl(o["kl_type"], b.old_logp, b.ref_logp) if coef else 0 * b.old_logp
    reward = normalized(o, b)
    a, returns = torch.zeros_like(b.mask), torch.zeros_like(b.mask)
    for i in range(len(LENGTHS)):
        at = range(b.start[i], b.start[i + 1])
        counted = [t for t in at if b.mask[t]]
        if estimator == "ppo":
            value, total = 0.0, 0.0
            for t in reversed(counted):
                g = -penalty[t] + (reward[i] if t == counted[-1] else 0)
                total = g + o["gamma"] * value - b.values[t] + o["gamma"] * o["lambd"] * total
                value = b.values[t]
                a[t], returns[t] = total, total + value
        elif estimator == "reinforce_plus_plus":
            total = 0.0
            for t in reversed(at):
                g = (-penalty[t] + (reward[i] if t == counted[-1] else 0)) if b.mask[t] else 0.0
                total = g + o["gamma"] * total
                a[t] = total
        elif estimator != "on_policy_distillation":
            baseline = estimator == "reinforce_plus_plus_baseline"
            a[at.start:at.stop] = reward[i] - (penalty[at.start:at.stop] if baseline else 0)
    a = a * b.mask
    returns = returns if estimator == "ppo" else a
    if o.get("opd_kl_coef"):
        a = (a - o["opd_kl_coef"] * (b.old_logp - b.teacher_logp)) * b.mask
    if o.get("normalize_advantages") or estimator.startswith("reinforce"):
        x = a[b.mask.bool()]
        a = (a - x.mean()) / (x.var() + 1e-8).sqrt() * b.mask
    return a, returns


# ---- losses ------------------------------------------------------------------------------------

def reducer(o, b):
    if o.get("per_token_loss"):
        return lambda x, mask: (x * mask).sum() / b.mask.sum()
    return lambda x, mask: (b.sums(x * mask) / b.count.clamp(min=1)).sum() / len(LENGTHS)


def mis(o, b, mean):
    """Returns the weights, the remaining mask, and metrics."""
    def ratio(level):
        x = b.old_logp - b.rollout_logp
        if level == "sequence":
            x = b.spread(b.sums(x * b.mask))
        elif level == "geometric":
            x = b.spread(b.means(x))
        return x.clamp(-LIMIT, LIMIT).exp()

    def of_samples(x):
        return mean(b.spread(x), b.mask)

    low, high, mode = o["mis_low"], o["mis_high"], o["mis_mode"]
    rs_low, rs_high = o.get("mis_rs_low", low), o.get("mis_rs_high", high)
    level = o.get("mis_level", "token")
    old, rollout = b.means(b.old_logp), b.means(b.rollout_logp)
    x = b.old_logp - b.rollout_logp
    out = {"training_log_ppl": of_samples(-old), "training_ppl": of_samples((-old).exp()),
           "rollout_log_ppl": of_samples(-rollout), "rollout_ppl": of_samples((-rollout).exp()),
           "kl": mean(-x, b.mask), "k3_kl": mean(torch.expm1(x) - x, b.mask),
           "log_ppl_diff": of_samples(rollout - old),
           "log_ppl_abs_diff": of_samples((rollout - old).abs()),
           "ppl_ratio": of_samples((rollout - old).exp()),
           "chi2_token": of_samples(b.means((2 * x).exp()) - 1),
           "chi2_seq": of_samples((2 * b.sums(x * b.mask)).exp() - 1)}
    w = ratio(level)
    keep = b.mask.clone()
    if o.get("mis_rs"):
        rs = ratio(o.get("mis_rs_level", "token"))
        out["rs_mask_fraction_low"] = mean((rs < rs_low).double(), b.mask)
        out["rs_mask_fraction_high"] = mean((rs > rs_high).double(), b.mask)
        keep = keep * ((rs >= rs_low) & (rs <= rs_high))
        if o.get("mis_veto"):
            bad = (x < math.log(o["mis_veto"])).double() * b.mask
            any_bad = (b.sums(bad) > 0).double()
            out["rs_catastrophic_token_fraction"] = mean(bad, b.mask)
            out["rs_catastrophic_seq_fraction"] = of_samples(any_bad)
            keep = keep * (1 - b.spread(any_bad))
    out["tis_weight_before_bound"] = mean(w, b.mask)
    below, above = (w < low).double(), (w > high).double()
    if mode == "truncate":
        out["tis_truncate_fraction"] = mean(above, b.mask)
        w = w.clamp(max=high)
    elif mode == "clip":
        out["tis_clip_fraction_low"] = mean(below, b.mask)
        out["tis_clip_fraction_high"] = mean(above, b.mask)
        w = w.clamp(low, high)
    else:
        out["tis_mask_fraction_low"] = mean(below, b.mask)
        out["tis_mask_fraction_high"] = mean(above, b.mask)
        keep = keep * (1 - below) * (1 - above)
    out["tis_weight_after_bound"] = out["is_ratio_mean_after_tis_rs"] = mean(w, b.mask)
    if o.get("mis_batch_normalize"):
        token = level == "token"
        norm = (w * b.mask).sum() / b.mask.sum() if token else b.means(w).mean()
        w = w / norm
        out["batch_norm_factor"] = of_samples(norm.expand(len(LENGTHS)))
    out["is_ratio_mean_final"] = mean(w, b.mask)
    extremes = [w[(b.of == i) & b.mask.bool()] for i in range(len(LENGTHS))]
    out["is_ratio_min_final"] = of_samples(torch.stack([x.min() if len(x) else x.sum()
                                                        for x in extremes]))
    out["is_ratio_max_final"] = of_samples(torch.stack([x.max() if len(x) else x.sum()
                                                        for x in extremes]))
    return w, keep, {f"mis_{k}": v for k, v in out.items()}


def policy(o, b, advantage, now, entropy):
    mean = reducer(o, b)
    a = advantage * b.mask
    metrics, weight, keep = {}, 1.0, b.mask
    distance = b.means(b.old_logp - now)
    d = b.spread(distance) if o["estimator"] == "gspo" else b.old_logp - now
    ratio = (-d * b.mask).clamp(-LIMIT, LIMIT).exp()
    plain, cut = -ratio * a, -ratio.clamp(1 - o["eps_clip"], 1 + o["eps_clip_high"]) * a
    pg = torch.maximum(plain, cut)
    clipped = (cut > plain).double()
    if o.get("eps_clip_c"):
        pg = torch.where(a < 0, torch.minimum(-o["eps_clip_c"] * a, pg), pg)
    if o.get("use_opsm"):
        dropped = ((a < 0) & (b.spread(distance) > o["opsm_delta"])).double().detach()
        pg = pg * (1 - dropped)
        shares = b.means(dropped).sum()  # like Miles: per sample, divided as the loss is
        metrics["opsm_clipfrac"] = shares / (b.mask.sum() if o.get("per_token_loss")
                                             else len(LENGTHS))
    if o.get("use_mis"):
        weight, keep, extra = mis(o, b, mean)
        metrics.update(extra)
    elif o.get("use_tis"):
        raw = (b.old_logp - b.rollout_logp).exp()
        weight = raw.clamp(o["tis_clip_low"], o["tis_clip"])
        if o.get("tis_icepop"):
            weight = raw * (weight == raw)
        metrics.update(tis=mean(raw, b.mask), tis_abs=mean((raw - 1).abs(), b.mask),
                       tis_clipfrac=mean((weight != raw).double(), b.mask))
    if o.get("use_mis") or o.get("use_tis"):
        metrics["ois"] = mean(ratio, b.mask)
    pg = pg * weight
    divisor = o.get("constant_divisor")
    pg_loss = (pg * keep).sum() / divisor / len(LENGTHS) if divisor else mean(pg, keep)
    entropy_loss = mean(entropy, keep)
    loss = pg_loss - o.get("entropy_coef", 0.0) * entropy_loss
    if o.get("use_kl_loss"):
        factor = (now - b.old_logp).clamp(-LIMIT, LIMIT).exp() if o.get("unbiased_kl") else None
        kl_loss = mean(kl(o["kl_type"], now, b.ref_logp, factor), keep)
        loss = loss + o["kl_loss_coef"] * kl_loss
        metrics["kl_loss"] = kl_loss
    w = ratio * b.mask
    ess = b.sums(w) ** 2 / (b.count.clamp(min=1) * b.sums(w * w).clamp(min=1e-8))
    metrics.update(
        loss=loss, pg_loss=pg_loss, entropy_loss=entropy_loss, pg_clipfrac=mean(clipped, keep),
        ppo_kl=mean(d * b.mask, keep), ess_ratio=mean(b.spread(ess), b.mask),
        train_rollout_logprob_abs_diff=mean((b.old_logp - b.rollout_logp).abs(), b.mask),
        train_rollout_kl=mean(kl("low_var_kl", b.rollout_logp, b.old_logp), b.mask),
        opd_reverse_kl=mean(b.old_logp - b.teacher_logp, b.mask))
    return loss, metrics


def value(o, b, returns, now):
    mean = reducer(o, b)
    off, clip = (now - returns) ** 2, o.get("value_clip")
    cut, far = off, torch.zeros_like(off)
    if clip:
        far = ((now - b.values).abs() > clip).double()
        cut = (torch.minimum(torch.maximum(now, b.values - clip), b.values + clip) - returns) ** 2
    loss = mean(torch.maximum(off, cut), b.mask)
    return loss, {"loss": loss, "value_loss": loss,
                  "value_clipfrac": mean(far, b.mask)}


def solve(name, extra, seed):
    """Computes one case: inputs and expected results."""
    o = {**BASE, **extra}
    raw = draw(random.Random(f"{seed}/{name}"), o.pop("far", False))
    b = Batch(raw)
    now, entropy = b.now.clone().requires_grad_(), b.entropy.clone().requires_grad_()
    advantage, returns = advantages(o, b)
    # the loss starts from fp32 advantages, like the engine
    a32, r32 = advantage.float().double(), returns.float().double()
    if o["loss"] == "sft":
        loss = -reducer(o, b)(now, b.mask)
        metrics = {"loss": loss, "sft_loss": loss}
    elif o["loss"] == "value":
        loss, metrics = value(o, b, r32, now)
    else:
        loss, metrics = policy(o, b, a32, now, entropy)
    dnow, dentropy = torch.autograd.grad(loss, (now, entropy), allow_unused=True)
    expect = {"advantage": advantage.tolist(), "returns": returns.tolist(), "dnow": dnow.tolist(),
              "metrics": {f"train/{k}": float(v.detach()) for k, v in sorted(metrics.items())}}
    if o.get("entropy_coef"):
        expect["dentropy"] = dentropy.tolist()
    return {"name": name, "options": o, "batch": raw, "expect": expect}


# ---- the file ----------------------------------------------------------------------------------

def difference(old, new, path=""):
    """Returns the place where two documents differ by more than the noise of float64, or None."""
    if isinstance(old, dict):
        if old.keys() != new.keys():
            return f"{path}: other keys"
        found = [difference(old[k], new[k], f"{path}/{k}") for k in old]
    elif isinstance(old, list):
        if len(old) != len(new):
            return f"{path}: another length"
        found = [difference(a, b, f"{path}/{i}") for i, (a, b) in enumerate(zip(old, new))]
    elif isinstance(old, float):
        same = math.isclose(old, new, rel_tol=1e-9, abs_tol=1e-12)
        return None if same else f"{path}: {old} {new}"
    else:
        return None if old == new else f"{path}: {old} {new}"
    return next((x for x in found if x), None)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default=str(HERE / "rl.json"))
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    document = {"origin": f"seed {args.seed}, torch {torch.__version__}",
                "cases": [solve(name, extra, args.seed) for name, extra in CASES.items()]}
    if args.check:
        old = json.loads(pathlib.Path(args.out).read_text(encoding="utf-8"))
        found = difference(old["cases"], document["cases"])
        if found:
            sys.exit(f"{args.out}: {found}")
        return
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in document["cases"])
    pathlib.Path(args.out).write_text(
        f'{{"origin":{json.dumps(document["origin"])},"cases":[\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
