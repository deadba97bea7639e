#!/usr/bin/env python3
# generate.py [--seed N] [--out FILE] | --check [FILE] - fixtures of ops by PyTorch and
# transformers.
#
# Writes inputs and expected results; tests/oracle/ops/compare.c runs Invar's ops on the inputs and
# compares. With --check it computes FILE again, from the seed named in it, and compares: inputs and
# bits must be equal, results equal up to the noise of float64. FILE is by default fixtures.bin in
# this folder; README.md describes the cases.
#
# Results come from third-party code: torch and its autograd, modules of transformers. Inputs are
# rounded to f32 or bf16 first, so both sides compute from the same numbers; everything after that
# is float64.
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the oracle tests."""
import argparse
import math
import pathlib
import re
import sys

import torch
import torch.nn.functional as F
import transformers
from transformers import masking_utils
from transformers.generation import logits_process
from transformers.models.deepseek_v2 import modeling_deepseek_v2 as deepseek_v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek_v3
from transformers.models.llama import modeling_llama as llama
from transformers.models.qwen3 import modeling_qwen3 as qwen3
from transformers.models.qwen3_moe import modeling_qwen3_moe as qwen3_moe

from fixture import STORAGE, Case, Wide, agree, decode, difference, encode, single

HERE = pathlib.Path(__file__).resolve().parent

# ---- conversions and low precision -------------------------------------------------------------

def to_fp8(x, dtype):
    largest = torch.finfo(dtype).max
    return x.clamp(-largest, largest).to(dtype)


def convert(case):
    """Conversions: all codes, all midpoints of adjacent e4m3 or e5m2 codes, and random bits."""
    codes = torch.arange(256).to(torch.uint8)
    points = [torch.randint(-2**31, 2**31, (3000,), generator=case.generator).to(torch.int32)]
    for name, dtype in ("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2):
        values = codes.view(dtype).float()
        case.put(f"from_{name}", values)
        finite = values[values.isfinite()].sort().values
        halfway = torch.cat([finite, (finite[1:] + finite[:-1]) / 2]).view(torch.int32)
        points += [halfway, halfway + 1, halfway - 1]
    case.put("from_e8m0", codes.view(torch.float8_e8m0fnu).float())
    special = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, 1e-45, 3.4e38, 465.0,
                            61440.0], dtype=torch.float32)
    x = torch.cat(points).view(torch.float32)
    x = torch.cat([x, special])
    case.put("x", x)
    case.put("bf16", x.to(torch.bfloat16))
    case.put("e4m3", to_fp8(x, torch.float8_e4m3fn).view(torch.uint8))
    case.put("e5m2", to_fp8(x, torch.float8_e5m2).view(torch.uint8))


def blocks(x, rows, cols):
    """Returns x (R, C) as (R / rows, C / cols, rows, cols)."""
    return x.unflatten(0, (-1, rows)).unflatten(2, (-1, cols)).transpose(1, 2)


def amax(x, rows, cols):
    return blocks(x, rows, cols).abs().amax((2, 3))


def spread(scale, rows, cols):
    return scale.repeat_interleave(rows, 0).repeat_interleave(cols, 1)


def quantise_fp8(x, rows=1):
    scale = amax(x, rows, 128).clamp(min=2.0**-96) / 448
    q = to_fp8(x / spread(scale, rows, 128), torch.float8_e4m3fn)
    return q.view(torch.uint8), scale, q.double() * spread(scale, rows, 128).double()


def quantise_mxfp8(x):
    largest = amax(x, 1, 32).double()
    exponent = torch.where(largest > 0, (largest / 448).log2().ceil(), -200).clamp(-118, 118)
    scale = spread(exponent.exp2(), 1, 32)
    q = to_fp8((x.double() / scale).float(), torch.float8_e4m3fn)
    e8m0 = exponent.exp2().to(torch.float8_e8m0fnu)
    return q.view(torch.uint8), e8m0.view(torch.uint8), q.double() * scale


def quantise_int4(x):
    scale = (amax(x, 1, 32) / 7).clamp(min=2.0**-24).to(torch.bfloat16)
    wide = spread(scale, 1, 32).float()
    q = (x / wide).round().clamp(-7, 7).to(torch.int8)
    nibbles = (q + 8).view(torch.uint8)
    packed = nibbles[:, 0::2] | nibbles[:, 1::2] << 4
    return packed, scale, (q * wide).to(torch.bfloat16).double()


def quantise(case):
    """Scales from 2^-140 to 2^100 per block, an empty block, values that are powers of two."""
    scale = torch.linspace(-140, 100, 16).round().reshape(8, 2).repeat_interleave(128, 1).exp2()
    x = case.draw(8, 256) * scale
    x[3, :128] = 0
    x[4, :64] = (x[4, :64].abs().log2().round()).exp2()
    x = x.float()
    case.put("x", x)
    for name, (q, s, back) in {"fp8": quantise_fp8(x), "mxfp8": quantise_mxfp8(x),
                               "int4": quantise_int4(x)}.items():
        case.put(name, q)
        case.put(f"{name}.scale", s)
        case.put(f"{name}.back", back.float())


# ---- linear layers -----------------------------------------------------------------------------

def linear(case):
    units = [131, 3]  # the first unit is longer than a token block of 128
    x = case.normal("x", 134, 64)
    w = case.normal("w", 32, 64, scale=0.2)
    bias = case.normal("bias", 32)
    dy = case.normal("dy", 134, 32)
    case.segments("units", units)
    y = F.linear(x, w, bias)
    case.expect(y=y, y_without_bias=F.linear(x, w))
    case.expect_gradients([(y, dy)], {"dx": x, "dw": w, "dbias": bias})


def linear_low(case):
    """Dequantizes, then multiplies. The weight has two scale blocks of 128 in each direction."""
    size = torch.tensor([[0.05, 0.2], [0.4, 0.1]]).repeat_interleave(128, 0)
    w = case.draw(256, 256) * size.repeat_interleave(128, 1)
    w = case.given("w", w, torch.bfloat16).detach().float()
    x = case.normal("x", 5, 256, dtype=torch.bfloat16).detach().float()
    dy = case.normal("dy", 5, 256, dtype=torch.bfloat16).detach().float()
    formats = {"fp8": (quantise_fp8(w, 128), quantise_fp8(x)[-1], quantise_fp8(dy)[-1]),
               "mxfp8": (quantise_mxfp8(w), quantise_mxfp8(x)[-1], quantise_mxfp8(dy)[-1]),
               "int4": (quantise_int4(w), x.double(), dy.double())}
    for name, ((q, scale, back), x_back, dy_back) in formats.items():
        case.put(f"{name}.w", q)
        case.put(f"{name}.w.scale", scale)
        case.expect(**{f"{name}.y": x_back @ back.T, f"{name}.dx": dy_back @ back})


# ---- rows --------------------------------------------------------------------------------------

def embedding(case):
    table = case.normal("table", 23, 12)
    ids = torch.randint(0, 23, (40,), generator=case.generator)
    case.integers("ids", ids)
    out = F.embedding(ids, table)
    case.put("out", out.to(case.type))
    case.expect_gradients([(out, case.normal("dout", 40, 12))], {"dtable": table})
    b = case.normal("b", 40, 12)
    case.put("sum", (out + b).to(case.type))


def rmsnorm(case, units, heads, dim, eps, scale):
    tokens, eps = sum(units), single(eps)
    case.segments("units", units)
    case.number("eps", eps)
    x = case.normal("x", tokens, heads, dim, scale=scale)
    norm = qwen3.Qwen3RMSNorm(dim, eps)
    norm.weight = torch.nn.Parameter(case.normal("weight", dim))
    with Wide():
        y = norm(x)
    agree(y, F.rms_norm(x, (dim,), norm.weight, eps))
    case.expect(y=y)
    dy = case.normal("dy", tokens, heads, dim)
    case.expect_gradients([(y, dy)], {"dx": x, "dweight": norm.weight})


def rope(case, parameters, heads, dim):
    config = transformers.LlamaConfig(hidden_size=dim, num_attention_heads=1, head_dim=dim,
                                      max_position_embeddings=131072, rope_parameters=parameters)
    for key in "rope_theta", "factor", "low_freq_factor", "high_freq_factor", \
            "original_max_position_embeddings":
        case.number(key, float(parameters.get(key, 0)))
    positions = torch.tensor([0, 1, 2, 77, 1000, 8191, 8192, 39999])
    case.integers("positions", positions)
    x = case.normal("x", len(positions), heads, dim)
    with Wide():
        cosine, sine = llama.LlamaRotaryEmbedding(config)(x, positions[None])
        y, _ = llama.apply_rotary_pos_emb(x[None], x[None], cosine, sine, unsqueeze_dim=2)
    case.put("cosine", cosine[0, :, :dim // 2], exact=False)
    case.put("sine", sine[0, :, :dim // 2], exact=False)
    case.expect(y=y[0])
    case.expect_gradients([(y[0], case.normal("dy", *x.shape))], {"dx": x})


def swiglu(case):
    gate, up = case.normal("gate", 5, 300, scale=5.0), case.normal("up", 5, 300)
    y = transformers.activations.ACT2FN["silu"](gate) * up
    case.expect(y=y)
    case.expect_gradients([(y, case.normal("dy", 5, 300))], {"dgate": gate, "dup": up})


# ---- attention ---------------------------------------------------------------------------------

def visible(lengths, window):
    """Returns the mask of packed causal samples, as transformers makes it."""
    samples = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    causal = masking_utils.causal_mask_function
    if window:
        causal = masking_utils.sliding_window_causal_mask_function(window)
    mask = masking_utils.and_masks(
        causal, masking_utils.packed_sequence_mask_function(samples[None]))
    row = torch.arange(len(samples))
    return mask(0, 0, row[:, None], row[None, :])


def attention(case, lengths, heads, kv_heads, dim, window=0, scale=0.0, paged=True):
    tokens = sum(lengths)
    case.segments("samples", lengths)
    case.number("window", window)
    case.number("scale", single(scale))
    q = case.normal("q", tokens, heads, dim)
    k = case.normal("k", tokens, kv_heads, dim)
    v = case.normal("v", tokens, kv_heads, dim)
    d_o = case.normal("d_o", tokens, heads, dim)
    mask = visible(lengths, window)
    factor = single(scale) or 1 / math.sqrt(dim)
    o = F.scaled_dot_product_attention(*(t.transpose(0, 1)[None] for t in (q, k, v)),
                                       attn_mask=mask, scale=factor, enable_gqa=True)[0]
    wide_k, wide_v = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, wide_k) * factor
    scores = scores.masked_fill(~mask, -math.inf)
    agree(o, torch.einsum("hqk,khd->hqd", scores.softmax(-1), wide_v))
    case.expect(o=o.transpose(0, 1), lse2=scores.logsumexp(-1).T / math.log(2))
    case.expect_gradients([(o.transpose(0, 1), d_o)], {"dq": q, "dk": k, "dv": v})
    if paged:
        pages(case, lengths, k, v)


def pages(case, lengths, k, v, size=16):
    """Places keys and values in a paged cache, in random order and with two unused pages."""
    need = [-(-n // size) for n in lengths]
    order = case.permutation(sum(need) + 2)
    table = torch.full((len(lengths), max(need)), -1)
    caches = [torch.zeros(len(order), size, *t.shape[1:]) for t in (k, v)]
    first = 0
    for s, n in enumerate(lengths):
        table[s, :need[s]], order = order[:need[s]], order[need[s]:]
        position = torch.arange(n)
        for cache, t in zip(caches, (k, v)):
            cache[table[s, position // size], position % size] = t.detach()[first:first + n]
        first += n
    case.integers("pages", table)
    case.put("k_cache", caches[0].to(case.type))
    case.put("v_cache", caches[1].to(case.type))


# ---- mixture of experts ------------------------------------------------------------------------

ROUTER = {"sigmoid": 0, "groups": 1, "groups_kept": 1, "group_score_top": 1, "normalise": 0,
          "normalise_eps": 0.0, "scale": 1.0}


def router_qwen3(experts):
    config = transformers.Qwen3MoeConfig(hidden_size=experts, num_experts=experts,
                                         num_experts_per_tok=4, norm_topk_prob=True)
    return qwen3_moe.Qwen3MoeTopKRouter(config), {**ROUTER, "normalise": 1}


def deepseek_v3_config(hidden, experts, slots):
    config = transformers.DeepseekV3Config(
        hidden_size=hidden, moe_intermediate_size=16, n_routed_experts=experts, n_group=4,
        topk_group=2, num_experts_per_tok=slots, n_shared_experts=1, norm_topk_prob=True,
        routed_scaling_factor=2.5)
    return config, {"sigmoid": 1, "groups": 4, "groups_kept": 2, "group_score_top": 2,
                    "normalise": 1, "normalise_eps": single(1e-20), "scale": 2.5}


def router_deepseek_v3(experts):
    config, attributes = deepseek_v3_config(experts, experts, 4)
    return deepseek_v3.DeepseekV3TopkRouter(config), attributes


def router_deepseek_v2(experts):
    config = transformers.DeepseekV2Config(
        hidden_size=experts, num_attention_heads=1, n_routed_experts=experts, n_group=4,
        topk_group=2, num_experts_per_tok=3, topk_method="group_limited_greedy",
        routed_scaling_factor=1.5)
    return deepseek_v2.DeepseekV2TopkRouter(config), {**ROUTER, "groups": 4, "groups_kept": 2,
                                                      "scale": 1.5}


def scores_of(logits, attributes):
    return logits.sigmoid() if attributes["sigmoid"] else logits.softmax(-1)


def choose(router, x, attributes):
    """Returns the router's experts and weights, best first; topk(sorted=False) leaves the order
    open."""
    with Wide():
        logits, weights, ids = router(x)
    choice = scores_of(logits, attributes) + getattr(router, "e_score_correction_bias", 0)
    order = choice.gather(1, ids).argsort(-1, descending=True)
    return weights.gather(1, order), ids.gather(1, order)


def settled(case, router, attributes, shape):
    """Draws router inputs whose choice of experts no rounding can change; other rows are drawn
    again."""
    x = case.draw(*shape)
    while True:
        ids = choose(router, x.to(case.type).double(), attributes)[1]
        close = torch.zeros(shape[0], dtype=torch.bool)
        for _ in range(8):
            near = x.to(case.type).double() * (1 + 1e-3 * case.draw(*shape))
            close |= (choose(router, near, attributes)[1] != ids).any(-1)
        if not close.any():
            return x
        x[close] = case.draw(int(close.sum()), *shape[1:])


def put_router(case, router, attributes):
    for name, value in attributes.items():
        case.number(name, value)
    if hasattr(router, "e_score_correction_bias"):
        bias = case.draw(router.num_experts, scale=0.1).float()
        case.put("bias", bias)
        router.e_score_correction_bias = torch.nn.Buffer(bias.double())


def route(case, make):
    """Tests a router alone: its weight is the identity, so that its input is the logits."""
    tokens, experts = 30, 16
    router, attributes = make(experts)
    router.weight.data = torch.eye(experts)
    put_router(case, router, attributes)
    logits = case.given("logits", settled(case, router, attributes, (tokens, experts)))
    weights, ids = choose(router, logits, attributes)
    case.integers("ids", ids)
    case.expect(weights=weights, scores=scores_of(logits, attributes))
    dweights = case.normal("dweights", *ids.shape)
    case.expect_gradients([(weights, dweights)], {"dlogits": logits})

    replay = torch.stack([case.permutation(experts)[:ids.shape[1]] for _ in range(tokens)])
    case.integers("replay", replay)
    scores = scores_of(logits, attributes).gather(1, replay)
    if attributes["normalise"]:
        scores = scores / (scores.sum(-1, keepdim=True) + attributes["normalise_eps"])
    weights = scores * attributes["scale"]
    case.expect(**{"replay.weights": weights})
    case.expect_gradients([(weights, dweights)], {"replay.dlogits": logits})


def moe_ops(case):
    """Permutation, grouped linear and combination, each on given inputs; expert 3 has no token."""
    tokens, slots, experts, width, outputs = 35, 2, 5, 32, 16
    names = torch.tensor([0, 1, 2, 4])
    ids = torch.stack([names[case.permutation(4)[:slots]] for _ in range(tokens)])
    order = ids.flatten().argsort(stable=True)
    rows = torch.empty_like(order)
    rows[order] = torch.arange(tokens * slots)
    rows = rows.reshape(tokens, slots)
    token, expert = order // slots, ids.flatten()[order]
    case.number("experts", experts)
    case.integers("ids", ids)
    case.integers("row_token", token)
    case.integers("slot_row", rows)
    case.segments("expert_start", torch.bincount(expert, minlength=experts).tolist())
    case.segments("units", [7, 0, 20, 8])

    x = case.normal("x", tokens, width)
    w = case.normal("w", experts * outputs, width, scale=0.2)
    dy = case.normal("dy", tokens * slots, outputs)
    gathered = x[token]
    y = torch.einsum("pk,pnk->pn", gathered, w.reshape(experts, outputs, width)[expert])
    case.put("gathered", gathered.to(case.type))
    case.expect(y=y)
    case.expect_gradients([(y, dy)], {"dgathered": gathered, "dw": w})
    dgathered = case.normal("dgathered_given", tokens * slots, width)
    case.expect_gradients([(x[token], dgathered)], {"dx": x})

    y = case.normal("y_given", tokens * slots, outputs)
    weights = case.normal("weights", tokens, slots, dtype=torch.float32)
    shared = case.normal("shared", tokens, outputs)
    out = (weights[..., None] * y[rows]).sum(1)
    case.expect(out=out, out_with_shared=out + shared)
    dout = case.normal("dout", tokens, outputs)
    case.expect_gradients([(out, dout)], {"dy_given": y, "dweights": weights})


def gate_up_down(case, module, gradients, prefix=""):
    """Records the weights of a gated layer or its experts, and the gradients by Invar's names."""
    for name in "gate", "up", "down":
        weight = getattr(module, f"{name}_proj").weight
        weight.data = case.normal(f"w{name}{prefix}", *weight.shape, scale=0.3).detach()
        gradients[f"dw{name}{prefix}"] = weight


def moe_module(case, module, attributes, tokens, hidden, experts):
    """Tests a complete block of experts. Invar keeps the weights of gate and up separate."""
    module.experts.config._experts_implementation = "eager"
    router, gradients = module.gate, {}
    router.weight.data = case.normal("wrouter", experts, hidden, scale=0.3).detach()
    gradients["dwrouter"] = router.weight
    put_router(case, router, attributes)
    inner = module.experts.intermediate_dim
    parts = {name: case.normal(f"w{name}", experts * rows, cols, scale=0.3)
             for name, rows, cols in (("gate", inner, hidden), ("up", inner, hidden),
                                      ("down", hidden, inner))}
    gradients.update({f"dw{name}": part for name, part in parts.items()})
    gate_up = torch.cat([parts[n].reshape(experts, inner, hidden) for n in ("gate", "up")], 1)
    del module.experts.gate_up_proj, module.experts.down_proj
    module.experts.gate_up_proj = gate_up
    module.experts.down_proj = parts["down"].reshape(experts, hidden, inner)
    if hasattr(module, "shared_experts"):
        gate_up_down(case, module.shared_experts, gradients, "_shared")
    case.segments("units", [tokens // 3, tokens - tokens // 3])

    x = case.given("x", settled(case, router, attributes, (tokens, hidden)))
    case.integers("ids", choose(router, x, attributes)[1])
    gradients["dx"] = x
    with Wide():
        y = module(x[None])[0]
    case.expect(y=y)
    case.expect_gradients([(y, case.normal("dy", tokens, hidden))], gradients)


def moe_qwen3(case):
    config = transformers.Qwen3MoeConfig(hidden_size=32, moe_intermediate_size=16, num_experts=6,
                                         num_experts_per_tok=2, norm_topk_prob=True)
    moe_module(case, qwen3_moe.Qwen3MoeSparseMoeBlock(config), {**ROUTER, "normalise": 1}, 25, 32,
               6)


def moe_deepseek_v3(case):
    config, attributes = deepseek_v3_config(16, 8, 3)
    moe_module(case, deepseek_v3.DeepseekV3MoE(config), attributes, 25, 16, 8)


# ---- a complete layer --------------------------------------------------------------------------

def layer(case):
    """Qwen3DecoderLayer over two packed samples."""
    lengths, hidden = [13, 7], 32
    config = transformers.Qwen3Config(
        hidden_size=hidden, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, rms_norm_eps=single(1e-6), attention_dropout=0.0,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    case.segments("samples", lengths)
    case.number("eps", config.rms_norm_eps)
    case.number("rope_theta", 10000.0)
    module, gradients = qwen3.Qwen3DecoderLayer(config, 0), {}
    for name, part in (("q", module.self_attn.q_proj), ("k", module.self_attn.k_proj),
                       ("v", module.self_attn.v_proj), ("o", module.self_attn.o_proj)):
        part.weight.data = case.normal(f"w{name}", *part.weight.shape, scale=0.3).detach()
        gradients[f"dw{name}"] = part.weight
    gate_up_down(case, module.mlp, gradients)
    for name, part in (("in", module.input_layernorm), ("post", module.post_attention_layernorm),
                       ("q", module.self_attn.q_norm), ("k", module.self_attn.k_norm)):
        weight = 1 + case.draw(*part.weight.shape, scale=0.2)
        part.weight.data = case.given(f"norm_{name}", weight).detach()
        gradients[f"dnorm_{name}"] = part.weight

    x = case.normal("x", sum(lengths), hidden)
    gradients["dx"] = x
    positions = torch.cat([torch.arange(n) for n in lengths])
    mask = torch.zeros(sum(lengths), sum(lengths)).masked_fill(~visible(lengths, 0), -math.inf)
    results = []
    for implementation in "sdpa", "eager":
        config._attn_implementation = implementation
        with Wide():
            rotation = qwen3.Qwen3RotaryEmbedding(config)(x, positions[None])
            results.append(module(x[None], attention_mask=mask[None, None],
                                  position_embeddings=rotation)[0])
    agree(*results)
    case.expect(y=results[1])
    case.expect_gradients([(results[1], case.normal("dy", sum(lengths), hidden))], gradients)


# ---- head, sampling, optimizer -----------------------------------------------------------------

def logprob(case, tokens, vocabulary, temperature, scale):
    temperature = single(temperature)
    case.number("temperature", temperature)
    logits = case.normal("logits", tokens, vocabulary, scale=scale)
    targets = torch.randint(0, vocabulary, (tokens,), generator=case.generator)
    targets[0], targets[-1] = 0, vocabulary - 1
    case.integers("targets", targets)
    logp = F.log_softmax(logits / temperature, -1).gather(1, targets[:, None])[:, 0]
    entropy = torch.distributions.Categorical(logits=logits / temperature).entropy()
    case.expect(logp=logp, entropy=entropy)
    dlogp, dentropy = case.normal("dlogp", tokens), case.normal("dentropy", tokens)
    case.expect_gradients([(logp, dlogp)], {"dlogits_of_logp": logits})
    logp = F.log_softmax(logits / temperature, -1).gather(1, targets[:, None])[:, 0]
    case.expect_gradients([(logp, dlogp), (entropy, dentropy)], {"dlogits": logits})


def sample(case):
    """Records the distribution left after each filter; every filter removes some tokens."""
    settings = {"temperature": single(0.8), "top_k": 20, "top_p": single(0.85),
                "min_p": single(0.2)}
    filters = [logits_process.TemperatureLogitsWarper(settings["temperature"]),
               logits_process.TopKLogitsWarper(settings["top_k"]),
               logits_process.TopPLogitsWarper(settings["top_p"]),
               logits_process.MinPLogitsWarper(settings["min_p"])]
    kept = []
    while len(set(kept)) < len(filters):
        logits = case.draw(1, 300, scale=2.0).float()
        stages = [logits.double()]
        for warp in filters:
            stages.append(warp(None, stages[-1]))
        kept = [int(stage.isfinite().sum()) for stage in stages[1:]]
    case.put("logits", logits)
    case.integers("best", logits.argmax(-1))
    for (name, value), stage in zip(settings.items(), stages[1:]):
        case.number(name, value)
        case.expect(**{f"after_{name}": stage.softmax(-1)[0]})


def optimizer(case):
    """Three steps; the second gradient is small, so that its norm is below the clipping limit."""
    settings = {key: single(value) for key, value in
                {"lr": 0.05, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}.items()}
    for name, value in settings.items():
        case.number(name, value)
    case.number("max_norm", 1.5)
    weights = [torch.nn.Parameter(case.normal(f"master.{i}", n).detach())
               # the first is longer than a chunk of the reduce kernel
               for i, n in enumerate((4100, 37))]
    adamw = torch.optim.AdamW(weights, lr=settings["lr"], eps=settings["eps"],
                              betas=(settings["beta1"], settings["beta2"]),
                              weight_decay=settings["weight_decay"])
    norms, clips = [], []
    for step, scale in enumerate((0.1, 0.001, 1.0)):
        for i, weight in enumerate(weights):
            weight.grad = case.normal(f"grad.{step}.{i}", len(weight), scale=scale).detach()
        norms.append(torch.nn.utils.clip_grad_norm_(weights, 1.5))
        clips.append(torch.nn.utils.get_total_norm([w.grad for w in weights]) / norms[-1])
        adamw.step()
    case.expect(norms=torch.stack(norms), clips=torch.stack(clips))
    for i, weight in enumerate(weights):
        state = adamw.state[weight]
        case.expect(**{f"after.{i}": weight, f"m.{i}": state["exp_avg"],
                       f"v.{i}": state["exp_avg_sq"]})


# ---- the file ----------------------------------------------------------------------------------

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
BOTH = list(STORAGE)  # inputs differ with the storage type
ONE = [None]          # inputs are f32 for every storage type

CASES = [
    ("convert", ONE, convert, ()),
    ("quantise", ONE, quantise, ()),
    ("linear", BOTH, linear, ()),
    ("linear.low", ONE, linear_low, ()),
    ("embedding", BOTH, embedding, ()),
    ("rmsnorm", BOTH, rmsnorm, ([130, 1], 2, 12, 1e-6, 1.0)),
    ("rmsnorm.wide", BOTH, rmsnorm, ([3], 1, 300, 1e-5, 0.01)),
    ("rope.default", BOTH, rope, ({"rope_type": "default", "rope_theta": 1e6}, 3, 64)),
    ("rope.llama3", BOTH, rope, (LLAMA3, 1, 128)),
    ("swiglu", BOTH, swiglu, ()),
    ("attention.gqa", BOTH, attention, ([1, 130, 9], 4, 2, 16)),
    ("attention.window", BOTH, attention, ([258, 5], 2, 1, 8, 100, 0.5)),
    ("attention.wide", BOTH, attention, ([65], 1, 1, 130, 0, 0.0, False)),
    ("route.qwen3", ONE, route, (router_qwen3,)),
    ("route.deepseek_v2", ONE, route, (router_deepseek_v2,)),
    ("route.deepseek_v3", ONE, route, (router_deepseek_v3,)),
    ("moe.ops", BOTH, moe_ops, ()),
    ("moe.qwen3", BOTH, moe_qwen3, ()),
    ("moe.deepseek_v3", BOTH, moe_deepseek_v3, ()),
    ("layer", BOTH, layer, ()),
    ("logprob", ONE, logprob, (5, 1283, 0.7, 2.0)),
    ("logprob.peaked", ONE, logprob, (3, 1000, 1.0, 12.0)),
    ("sample", ONE, sample, ()),
    ("optimizer", ONE, optimizer, ()),
]


def compute(seed):
    """Returns all tensors by name, and the names of those that must be equal bit for bit."""
    torch.set_default_dtype(torch.float64)
    tensors, exact = {}, set()
    for name, storages, make, arguments in CASES:
        for storage in storages:
            make(Case(tensors, exact, seed, name, storage), *arguments)
    return dict(sorted(tensors.items())), exact


def check(path):
    old, origin = decode(path.read_bytes())
    new, exact = compute(int(re.match(r"seed (\d+),", origin).group(1)))
    found = [f"{name}: only here" for name in old.keys() - new.keys()]
    found += [f"{name}: missing" for name in new.keys() - old.keys()]
    found += [d for name in old.keys() & new.keys()
              if (d := difference(name, old[name], new[name], name in exact))]
    print(*sorted(found), sep="\n", end="\n" if found else "")
    print(f"{path.name}: {len(old)} tensors ({origin}), {len(found)} differences")
    return 1 if found else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "fixtures.bin")
    parser.add_argument("--check", type=pathlib.Path, nargs="?", const=HERE / "fixtures.bin")
    args = parser.parse_args()
    if args.check:
        return check(args.check)
    data = encode(compute(args.seed)[0], args.seed)
    args.out.write_bytes(data)
    print(f"{args.out}: {len(data)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
