#!/usr/bin/env python3
# model.py [--seed N] [--out FOLDER] [--large] | --check [FOLDER] - fixtures of models by
# transformers.
#
# Writes one Hugging Face folder per case with save_pretrained, and fixtures.bin: token sequences,
# their log-probabilities and entropies, gradients of every parameter for two GRPO losses, and a
# step of AdamW. tests/oracle/model/compare.c runs the engine on the folders and compares. FOLDER is
# by default model/ in this folder; README.md there describes it.
#
# Weights are drawn, rounded to the type of the files and saved; everything after that is float64.
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the oracle for complete models."""
import argparse
import contextlib
import json
import pathlib
import re
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from fixture import Case, Wide, agree, decode, difference, encode, single

HERE = pathlib.Path(__file__).resolve().parent / "model"

# ---- models ------------------------------------------------------------------------------------

SMALL = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, intermediate_size=48, max_position_embeddings=256)
LARGE = dict(vocab_size=384, hidden_size=128, num_hidden_layers=4, num_attention_heads=8,
             num_key_value_heads=2, intermediate_size=256, max_position_embeddings=512)
WIDE = dict(vocab_size=64, hidden_size=128, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, head_dim=64, intermediate_size=128)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
BF16, F32 = torch.bfloat16, torch.float32

# name: class, additional configuration, type of the files, how the folder is written
CASES = {
    "llama": ("Llama", dict(rope_parameters=LLAMA3, rms_norm_eps=1e-5), BF16, ()),
    "llama_tied": ("Llama", dict(rope_parameters=LLAMA3, tie_word_embeddings=True, head_dim=8,
                                 num_attention_heads=8), F32, ("sharded", "old")),
    "qwen2": ("Qwen2", dict(tie_word_embeddings=True, eos_token_id=[5, 7]), F32, ("old",)),
    "qwen2_window": ("Qwen2", dict(use_sliding_window=True, sliding_window=16,
                                   max_window_layers=1), BF16, ()),
    "qwen3": ("Qwen3", dict(head_dim=16, tie_word_embeddings=True,
                            rope_parameters={"rope_type": "default", "rope_theta": 1e6}), BF16, ()),
    "qwen3_wide": ("Qwen3", WIDE, BF16, ()),
    "qwen3_moe": ("Qwen3Moe", dict(head_dim=16, num_experts=8, num_experts_per_tok=2,
                                   moe_intermediate_size=16, norm_topk_prob=True,
                                   mlp_only_layers=[0]), BF16, ()),
    "qwen3_moe_step": ("Qwen3Moe", dict(head_dim=16, num_experts=8, num_experts_per_tok=2,
                                        moe_intermediate_size=16, norm_topk_prob=False,
                                        decoder_sparse_step=2), BF16, ("old", "sharded")),
}
WHOLE = ("llama", "qwen3_moe")  # cases with complete gradients
LENGTHS = (1, 2, 3, 7, 16, 33, 40, 146)
TRAINED = range(2, 8)  # these samples are a batch of two groups
TEMPERATURES = (1.0, 0.7)


def make_config(name, large):
    kind, extra, dtype, _ = CASES[name]
    sizes = LARGE if large else SMALL
    if large and "moe_intermediate_size" in extra:
        extra = extra | dict(moe_intermediate_size=128)
    if large and name == "qwen3_wide":
        extra = {}
    config = getattr(transformers, kind + "Config")(**(sizes | extra))
    config.dtype = dtype
    return config


def build(config, dtype, attention):
    """Returns a model that computes in `dtype` throughout, with the parameters that its class
    makes."""
    config._experts_implementation = "eager"
    torch.set_default_dtype(dtype)
    try:
        with Wide() if dtype == torch.float64 else contextlib.nullcontext():
            model = AutoModelForCausalLM.from_config(config, dtype=dtype,
                                                     attn_implementation=attention)
        if dtype == torch.float64:
            assert all(x.dtype == dtype for x in [*model.parameters(), *model.buffers()])
    finally:
        torch.set_default_dtype(torch.float64)
    return model.eval()


def draw_weights(case, model, dtype):
    """Draws weights that matter: attention far from uniform, norms not 1, biases not 0."""
    values = {}
    for name, parameter in sorted(model.named_parameters()):
        value = case.draw(*parameter.shape)
        if parameter.dim() == 1:
            value = 0.3 * value if name.endswith("bias") else 1 + 0.2 * value
        else:
            gain = 2.0 if name.endswith("mlp.gate.weight") else 1.2
            value = value * gain / parameter.shape[-1] ** 0.5
        values[name] = value.to(dtype)
    return values


def old_style(folder):
    """Rewrites config.json like older published models: rope_theta, rope_scaling, torch_dtype."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    config["torch_dtype"] = config.pop("dtype")
    config.pop("layer_types", None)
    if "num_local_experts" in config:
        config["num_experts"] = config.pop("num_local_experts")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def save(folder, config, values, dtype, options):
    model = build(config, dtype, "eager")
    assign(model, values)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    size = sum(v.nbytes for v in values.values())
    model.save_pretrained(folder, max_shard_size=size // 3 if "sharded" in options else "1GB")
    if "old" in options:
        old_style(folder)
    for path in folder.iterdir():
        path.chmod(0o644)


def assign(model, values):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(values[name])


def score(model, samples, targets, temperature):
    """Returns the log-probability of each target, and the entropy. Samples run one at a time."""
    with Wide() if model.dtype == torch.float64 else contextlib.nullcontext():
        logits = torch.cat([model(torch.tensor(s)[None]).logits[0] for s in samples])
        table = (logits / temperature).log_softmax(-1)
    assert table.dtype == model.dtype
    picked = table.gather(1, torch.tensor(targets)[:, None])[:, 0]
    return picked, -(table.exp() * table).sum(1)


# ---- losses ------------------------------------------------------------------------------------

LOSSES = {
    "sample": dict(temperature=1.0, eps_clip=0.2, eps_clip_high=0.28, eps_clip_c=0.0,
                   kl_loss_coef=0.05, unbiased_kl=0, entropy_coef=0.05, per_token=0),
    "token": dict(temperature=0.7, eps_clip=0.1, eps_clip_high=0.1, eps_clip_c=1.5,
                  kl_loss_coef=0.2, unbiased_kl=1, entropy_coef=0.2, per_token=1),
}


def beside(values, *edges):
    """Returns where rounding could move a value across an edge of the formula."""
    return torch.stack([(values - edge).abs() < 1e-3 for edge in edges]).any(0)


def advantages(rewards, groups):
    out = torch.empty_like(rewards)
    for group in set(groups.tolist()):
        r = rewards[groups == group]
        out[groups == group] = (r - r.mean()) / (r.std(correction=1) + 1e-6)
    return out


def policy_loss(o, logp, entropy, batch):
    """Clipped policy gradient, low_var_kl against a reference, entropy; all in float64."""
    advantage = batch["advantage"]
    ratio = (logp - batch["old"]).exp()
    low, high = 1 - o["eps_clip"], 1 + o["eps_clip_high"]
    assert not beside(ratio, low, high, o["eps_clip_c"]).any()
    loss = torch.maximum(-ratio * advantage, -ratio.clamp(low, high) * advantage)
    assert (ratio > high)[advantage > 0].any() and (ratio < low)[advantage < 0].any()
    if o["eps_clip_c"]:
        assert (ratio > o["eps_clip_c"])[advantage < 0].any()
        loss = torch.where(advantage < 0, torch.minimum(-o["eps_clip_c"] * advantage, loss), loss)
    x = logp - batch["ref"]
    kl = (-x).clamp(-20, 20).exp() - 1 + x
    if o["unbiased_kl"]:
        kl = ratio * kl
    assert (kl > 10).any() and not beside(kl, 10).any()
    kl = kl.clamp(-10, 10)
    loss = loss + o["kl_loss_coef"] * kl - o["entropy_coef"] * entropy
    mask, start = batch["mask"].double(), batch["start"].tolist()
    if o["per_token"]:
        return (loss * mask).sum() / mask.sum()
    parts = [(loss * mask)[a:b].sum() / mask[a:b].sum() for a, b in zip(start, start[1:])]
    return sum(parts) / len(parts)


def draw_batch(case, samples):
    """Draws masks, rewards and groups; records and returns them."""
    prompts = [max(1, len(samples[i]) // 3) for i in TRAINED]
    responses = [len(samples[i]) - p for i, p in zip(TRAINED, prompts)]
    case.integers("prompt", prompts, torch.int64)
    case.segments("response", responses)
    groups = torch.arange(len(prompts)) // 3
    case.integers("group", groups, torch.int64)
    start = case.tensors[case.prefix + "response"]
    mask = torch.randint(0, 8, (sum(responses),), generator=case.generator) > 0
    mask[start[:-1]] = True
    case.put("mask", mask.to(torch.uint8))
    reward = case.given("reward", case.draw(len(prompts)), F32).detach()
    advantage = advantages(reward, groups).repeat_interleave(torch.tensor(responses))
    return dict(start=start, mask=mask, advantage=advantage)


def draw_others(case, kind, o, logp, ref):
    """Draws log-probabilities of the sampling weights and of the reference."""
    noise = case.draw(len(logp), scale=0.2)
    noise[::5] *= 5
    edges = 1 - o["eps_clip"], 1 + o["eps_clip_high"], o["eps_clip_c"]
    noise = torch.where(beside((-noise).exp(), *edges), noise + 0.01, noise)
    ref[::37] += 4  # large enough that low_var_kl is clamped
    old, ref = (logp.detach() + noise).to(F32), ref.to(F32)
    case.put(f"{kind}.old", old, exact=False)
    case.put(f"{kind}.ref", ref, exact=False)
    return dict(old=old.double(), ref=ref.double())


def response_rows(samples):
    """Returns the rows of all packed samples whose next token belongs to a response."""
    begin = torch.tensor([0, *map(len, samples)]).cumsum(0).tolist()
    return torch.cat([torch.arange(begin[i] + max(1, len(samples[i]) // 3) - 1, begin[i + 1] - 1)
                      for i in TRAINED])


# ---- recorded gradients ------------------------------------------------------------------------

def signs(count):
    """Returns (16, count) of +1 and -1, from the bits of a mixed index as in model/subject.c."""
    h = torch.arange(count, dtype=torch.int64)
    for shift, factor in (0, 2654435761), (15, 2246822519), (13, 3266489917):
        h = (h ^ h >> shift if shift else h) * factor & 0xFFFFFFFF
    h ^= h >> 16
    return torch.stack([1 - 2 * (h >> j & 1) for j in range(16)]).double()


def engine_names(named):
    """Returns the parameters by the engine's names: experts stacked, gate and up separate."""
    out = {}
    for name, value in named.items():
        if name.endswith("experts.gate_up_proj"):
            gate, up = value.chunk(2, 1)
            stem = name[:-len("gate_up_proj")]
            out[stem + "gate_proj.weight"] = gate.flatten(0, 1)
            out[stem + "up_proj.weight"] = up.flatten(0, 1)
        elif name.endswith("experts.down_proj"):
            out[name + ".weight"] = value.flatten(0, 1)
        else:
            out[name] = value
    return out


def record(case, name, named, whole=False):
    """Records (parameters, 17): norm and 16 projections of each, to estimate any difference."""
    named, rows = engine_names(named), []
    for key, value in named.items():
        flat = value.detach().reshape(-1)
        assert flat.norm() > 0, f"{name}: {key} is zero"
        rows.append(torch.cat([flat.norm()[None], signs(len(flat)) @ flat]))
        if whole:
            case.expect(**{f"{name}/{key}": value})
    case.expect(**{name: torch.stack(rows)})


def record_step(case, model, gradients):
    """
    Records one step of AdamW from zero moments, with a clipping limit below the norm. The first
    step is g / (|g| + eps). With a tiny eps that is the sign of g, even if g is mostly rounding
    error, so eps is as large as the gradients are.
    """
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for name, p in model.named_parameters():
        p.grad = gradients[name].clone()
    norm = torch.cat([g.reshape(-1) for g in gradients.values()]).norm()
    limit = single(norm / 2)
    eps = single(limit / sum(g.numel() for g in gradients.values()) ** 0.5)
    torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
    torch.optim.AdamW(model.parameters(), lr=single(1e-3), betas=(single(0.9), single(0.95)),
                      eps=eps, weight_decay=single(0.1)).step()
    case.expect(grad_norm=norm[None])
    case.put("max_norm", torch.tensor([limit], dtype=F32), exact=False)
    case.put("eps", torch.tensor([eps], dtype=F32), exact=False)
    record(case, "step", {n: p - before[n] for n, p in model.named_parameters()})
    assign(model, before)


# ---- a case ------------------------------------------------------------------------------------

def routers_are_clear(model, samples):
    """Returns True if no choice of experts depends on rounding."""
    for layer in model.model.layers:
        gate = getattr(layer.mlp, "gate", None)
        if gate is None:
            continue
        seen = []
        hook = gate.register_forward_hook(lambda m, i, o: seen.append(i[0].detach()))
        for s in samples:
            model(torch.tensor(s)[None])
        hook.remove()
        logits = torch.cat([x.reshape(-1, x.shape[-1]) for x in seen]) @ gate.weight.detach().T
        best = logits.sort(descending=True).values
        if (best[:, gate.top_k - 1] - best[:, gate.top_k]).min() < 2e-5:
            return False
    return True


def draw_samples(case, model, vocab):
    while True:
        samples = [torch.randint(0, vocab, (n,), generator=case.generator).tolist()
                   for n in LENGTHS]
        if routers_are_clear(model, samples):
            return samples


def compute_case(name, seed, folder, tensors, exact, large):
    case = Case(tensors, exact, seed, name, None)
    _, _, dtype, options = CASES[name]
    config = make_config(name, large)
    model = build(config, torch.float64, "eager")
    values = draw_weights(case, model, dtype)
    save(folder / name, config, values, dtype, options)
    assign(model, values)

    with Wide(), torch.no_grad():
        samples = draw_samples(case, model, config.vocab_size)
    last = torch.randint(0, config.vocab_size, (len(samples),), generator=case.generator).tolist()
    targets = sum((s[1:] + [t] for s, t in zip(samples, last)), [])
    case.segments("samples", LENGTHS)
    case.integers("tokens", sum(samples, []))
    case.integers("targets", targets)
    names = "\n".join(engine_names(dict(model.named_parameters())))
    case.integers("params", list(names.encode()), torch.uint8)

    other = build(config, torch.float64, "sdpa")
    assign(other, values)
    for temperature in TEMPERATURES:
        with torch.no_grad():
            logp, entropy = score(model, samples, targets, temperature)
            agree(logp, score(other, samples, targets, temperature)[0])
        case.put(f"logp.{temperature}", logp, exact=False)
        case.put(f"entropy.{temperature}", entropy, exact=False)
    rows = response_rows(samples)
    whole = name in WHOLE and not large
    assign(other, {n: v * (1 + case.draw(*v.shape, scale=0.03)) for n, v in values.items()})
    batch = draw_batch(case, samples)
    for kind, o in LOSSES.items():
        for key, value in o.items():
            case.number(f"{kind}.{key}", value)
        o = {key: single(value) for key, value in o.items()}
        with torch.no_grad():
            ref = score(other, samples, targets, o["temperature"])[0][rows]
        model.zero_grad()
        logp, entropy = score(model, samples, targets, o["temperature"])
        batch |= draw_others(case, kind, o, logp[rows], ref)
        loss = policy_loss(o, logp[rows], entropy[rows], batch)
        case.expect(**{f"{kind}.loss": loss[None]})
        loss.backward()
        gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
        record(case, f"grad.{kind}", gradients, whole and kind == "sample")
        if kind == "sample":
            record_step(case, model, gradients)
    narrow(case, folder / name, samples, targets)


def narrow(case, folder, samples, targets):
    """Records the float32 error of transformers itself, from the files, to compare Invar's with."""
    torch.set_default_dtype(F32)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=F32, attn_implementation="eager")
    with torch.no_grad():
        logp, _ = score(model.eval(), samples, targets, 1.0)
    torch.set_default_dtype(torch.float64)
    worst = (logp.double() - case.tensors[case.prefix + "logp.1.0"]).abs().max()
    assert worst < 1e-4
    print(f"{folder.name}: float32 of transformers is off by at most {worst:.2e}")


def compute(seed, folder, large):
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(2)
    tensors, exact = {}, set()
    for name in CASES:
        compute_case(name, seed, folder, tensors, exact, large)
    return dict(sorted(tensors.items())), exact


# ---- main --------------------------------------------------------------------------------------

def weights_of(folder):
    out = {}
    for path in sorted(folder.glob("*.safetensors")):
        out |= load_file(path)
    return out


def compare_folders(old, new):
    found = []
    for name in CASES:
        a, b = weights_of(old / name), weights_of(new / name)
        if a.keys() != b.keys() or any(not a[k].equal(b[k]) for k in a):
            found.append(f"{name}: other weights")
        for file in sorted((new / name).glob("*.json")):
            if file.read_text() != (old / name / file.name).read_text():
                found.append(f"{name}: {file.name} differs")
    return found


def check(folder):
    old, origin = decode((folder / "fixtures.bin").read_bytes())
    with tempfile.TemporaryDirectory() as fresh:
        new, exact = compute(int(re.match(r"seed (\d+),", origin).group(1)), pathlib.Path(fresh),
                             False)
        found = compare_folders(folder, pathlib.Path(fresh))
    found += [f"{name}: only on one side" for name in old.keys() ^ new.keys()]
    found += [d for name in old.keys() & new.keys()
              if (d := difference(name, old[name], new[name], name in exact))]
    print(*sorted(found), sep="\n", end="\n" if found else "")
    print(f"{folder}: {len(old)} tensors ({origin}), {len(found)} differences")
    return 1 if found else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, default=HERE)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--check", type=pathlib.Path, nargs="?", const=HERE)
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if args.check:
        return check(args.check)
    data = encode(compute(args.seed, args.out, args.large)[0], args.seed)
    (args.out / "fixtures.bin").write_bytes(data)
    print(f"{args.out}: {len(data)} bytes of fixtures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
