#!/usr/bin/env python3
# invariant.py - Invar's operators in PyTorch, and transformers models that use them.
#
# Operators and their gradients are compared with PyTorch's in double precision, the only comparison
# with a tolerance. All guarantees are compared bit by bit. Control: stock models differ. Tests use
# PyTorch's default device, so gpu.py runs them on a GPU. The file is not called kernels, because
# transformers would import it in place of a package of that name.
# SPDX-License-Identifier: Apache-2.0
"""Tests of invar.torch."""
import sys
import unittest

import torch
import transformers
from torch.nn import functional

import invar.ops
import invar.torch

TYPES = ((torch.float32, 3e-6), (torch.bfloat16, 2e-2))
SIZES = {"vocab_size": 160, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
         "max_position_embeddings": 128}


def bits(x):
    return x.detach().contiguous().view(torch.int16 if x.dtype == torch.bfloat16 else torch.int32)


def build(family, **more):
    sizes = {**SIZES, **more}
    if family == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    if family == "qwen2":
        model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes))
        for name, value in model.named_parameters():
            # transformers initializes biases with zeros, which hide errors
            if name.endswith(".bias"):
                torch.nn.init.normal_(value, std=0.5)
        return model
    if family == "qwen3":
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes))
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
        num_experts=8, num_experts_per_tok=2, norm_topk_prob=True,
        **{"moe_intermediate_size": 48, **sizes}))


FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe")


class Operators(unittest.TestCase):
    """Compares values and gradients with PyTorch in double precision."""

    def setUp(self):
        torch.manual_seed(7)

    def close(self, mine, reference, leaves, tolerance):
        weights = torch.randn(mine.shape, dtype=torch.float64)
        ours = torch.autograd.grad((mine.double() * weights).sum(), leaves)
        theirs = torch.autograd.grad((reference * weights).sum(), leaves)
        for one, other in zip((mine, *ours), (reference, *theirs)):
            scale = float(other.detach().double().abs().max())
            difference = float((one.double() - other.double()).detach().abs().max())
            self.assertLessEqual(difference, tolerance * max(scale, 0.5))

    def leaves(self, dtype, *shapes):
        return [(torch.randn(*shape) * 0.5).to(dtype).requires_grad_() for shape in shapes]

    def test_operators(self):
        for dtype, tolerance in TYPES:
            for tokens in (1, 5, 130):
                with self.subTest(dtype=dtype, tokens=tokens):
                    self.dense(dtype, tolerance, tokens)
                    self.attention(dtype, tolerance, tokens)
                    self.experts(dtype, tolerance, tokens)

    def dense(self, dtype, tolerance, tokens):
        x, w, b, n, u = self.leaves(dtype, (tokens, 48), (20, 48), (20,), (48,), (tokens, 48))
        self.close(invar.torch.linear(x, w, b),
                   functional.linear(x.double(), w.double(), b.double()), [x, w, b], tolerance)
        self.close(invar.torch.rmsnorm(x, n, 1e-6),
                   functional.rms_norm(x.double(), (48,), n.double(), 1e-6), [x, n], tolerance)
        self.close(invar.torch.swiglu(x, u), functional.silu(x.double()) * u.double(), [x, u],
                   tolerance)
        ids = torch.randint(0, 20, (tokens,))
        self.close(invar.torch.embedding(ids, w), functional.embedding(ids, w.double()), [w],
                   tolerance)
        targets = torch.randint(0, 48, (tokens,))
        expected = torch.log_softmax(x.double(), -1).gather(1, targets[:, None])[:, 0]
        self.close(invar.torch.logprob(x, targets), expected, [x], tolerance)

    def attention(self, dtype, tolerance, tokens):
        q, k, v = self.leaves(dtype, (tokens, 4, 16), (tokens, 2, 16), (tokens, 2, 16))
        starts = torch.tensor([0, tokens // 3, tokens // 3, tokens])
        outs = []
        for a, b in zip(starts[:-1], starts[1:]):
            parts = (x[a:b].double().transpose(0, 1)[None] for x in (q, k, v))
            outs.append(functional.scaled_dot_product_attention(
                *parts, is_causal=True, enable_gqa=True)[0].transpose(0, 1))
        self.close(invar.torch.attention(q, k, v, starts), torch.cat(outs), [q, k, v], tolerance)

    def experts(self, dtype, tolerance, tokens):
        x, r, gate_up, down = self.leaves(dtype, (tokens, 48), (6, 48), (6, 24, 48), (6, 48, 12))
        scores = torch.softmax(x.double() @ r.double().T, -1)
        value, index = torch.topk(scores, 2, -1)
        value = value / value.sum(-1, keepdim=True)
        expected = torch.zeros(tokens, 48, dtype=torch.float64)
        for e in range(6):
            h = x.double() @ gate_up[e].double().T
            y = (functional.silu(h[:, :12]) * h[:, 12:]) @ down[e].double().T
            expected = expected + y * ((index == e) * value).sum(-1, keepdim=True)
        self.close(invar.torch.moe(x, r, gate_up, down, 2), expected, [x, r, gate_up, down],
                   tolerance)

    def test_opcheck(self):
        x, w, n, u = self.leaves(torch.float32, (5, 8), (3, 8), (8,), (5, 8))
        q, k, v = self.leaves(torch.float32, (5, 2, 8), (5, 1, 8), (5, 1, 8))
        r, gate_up, down = self.leaves(torch.float32, (4, 8), (4, 6, 8), (4, 8, 3))
        named = torch.ops.invar
        for op, arguments in (
                (named.linear, (x, w, None)), (named.rmsnorm, (x, n, 1e-6)),
                (named.swiglu, (x, u)), (named.moe, (x, r, gate_up, down, [], 2, True, "")),
                (named.embedding, (torch.tensor([1, 0, 2, 1]), w, 0)),
                (named.attention, (q, k, v, torch.tensor([0, 2, 5]), 0.3)),
                (named.logprob, (x, torch.tensor([1, 2, 3, 4, 5], dtype=torch.int32), 1.0))):
            torch.library.opcheck(op.default, arguments)

    def test_rows_do_not_see_their_batch(self):
        for dtype, _ in TYPES:
            x, w, n, u = self.leaves(dtype, (64, 48), (20, 48), (48,), (64, 48))
            r, gate_up, down = self.leaves(dtype, (6, 48), (6, 24, 48), (6, 48, 12))
            for f in (lambda a: invar.torch.linear(x[a], w),
                      lambda a: invar.torch.rmsnorm(x[a], n, 1e-6),
                      lambda a: invar.torch.swiglu(x[a], u[a]),
                      lambda a: invar.torch.moe(x[a], r, gate_up, down, 2)):
                whole = bits(f(slice(None)))
                for count in (1, 2, 3, 31, 63):
                    self.assertTrue(torch.equal(bits(f(slice(64 - count, 64))), whole[-count:]))

    def test_refused(self):
        half = torch.randn(3, 4).half()
        with self.assertRaisesRegex(invar.Error, "none of f32"):
            invar.torch.linear(half, half)
        with self.assertRaises(invar.Error):
            invar.torch.linear(torch.randn(3, 4), torch.randn(3, 4).bfloat16())
        x, y = torch.randn(3, 4), torch.zeros(3, 4)
        where = invar.torch.device(str(x.device))
        with self.assertRaisesRegex(invar.Error, "out: .*negated view, and was copied"):
            where.run("add", {"out": torch._neg_view(y), "a": x, "b": x})
        where.run("add", {"out": y, "a": torch._neg_view(x), "b": x})  # an input may be a copy
        self.assertFalse(bool(y.any()))
        for kind in ("tpu", "cpu:1", "cuda:x", "cuda:", ""):
            with self.assertRaises(invar.Error, msg=kind):
                invar.torch.device(kind)
        with self.assertRaisesRegex(invar.Error, "'cpu'"):
            invar.torch.set_device("cpu")
        # Messages name the arguments of the functions, not those of the ops.
        q, r, gate_up, down = (torch.randn(*shape) for shape in (
            (3, 1, 8), (4, 8), (4, 10, 8), (4, 8, 5)))
        x = q[:, 0]
        table = torch.zeros(1, 1, dtype=torch.int64)
        if not q.is_cuda:  # a GPU finds wrong offsets when it runs, and reports them later
            with self.assertRaisesRegex(invar.Error, ": starts: segments cover"):
                invar.torch.attention(q, q, q, torch.tensor([0, 2]))
        for told, call in (
                ("pages: type i64", lambda: torch.ops.invar.attention_paged(
                    q, q[None], q[None], table, torch.tensor([0, 3]), torch.tensor([3]), 1.0)),
                ("top_k: 5; expected 1 to 4", lambda: invar.torch.moe(x, r, gate_up, down, 5)),
                ("top_k: -1;", lambda: invar.torch.moe(x, r, gate_up, down, -1)),
                ("router: ", lambda: invar.torch.moe(x, r[:, :7], gate_up, down, 2)),
                ("gate_up: ", lambda: invar.torch.moe(x, r[:3], gate_up, down, 2)),
                ("down: ", lambda: invar.torch.moe(x, r, gate_up, down[:, :7], 2))):
            with self.assertRaisesRegex(invar.Error, rf": {told}"):
                call()

    def test_numbers_are_not_bent(self):
        """Targets and ids are integers in their range, in every type."""
        logits, table = torch.randn(2, 5), torch.randn(5, 4)
        where = invar.torch.device(str(logits.device))
        for call in (lambda x: invar.torch.logprob(logits, x),
                     lambda x: invar.torch.embedding(x, table)):
            for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
                self.assertTrue(torch.equal(bits(call(torch.tensor([1, 4], dtype=dtype))),
                                            bits(call(torch.tensor([1, 4])))))
            for value, told in ((7, "7"), (5, "5"), (-100, "-100"), (2 ** 32 + 1, "2147483647"),
                                (-2 ** 32, "-2147483648"), (2 ** 62, "2147483647")):
                with self.assertRaisesRegex(invar.Error, rf"(?<![\d-]){told}\b"):
                    call(torch.tensor([0, value]))
                    where.wait()  # a GPU reports it late
            for wrong in (torch.tensor([0, 1.7]), torch.tensor([True, False]),
                          torch.tensor([0.0, 1.0]).bfloat16()):
                with self.assertRaisesRegex(invar.Error, "integers"):
                    call(wrong)


def batch_of(samples, side, width):
    """Returns ids and mask of samples that are padded on the left or on the right."""
    ids = torch.zeros(len(samples), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, sample in enumerate(samples):
        at = 0 if side == "right" else width - len(sample)
        ids[i, at:at + len(sample)] = sample
        mask[i, at:at + len(sample)] = 1
    return ids, mask


class Models(unittest.TestCase):
    """Batch size, padding, position and cache of transformers models change no bit."""

    def setUp(self):
        torch.manual_seed(11)
        self.samples = [torch.randint(0, 160, (3 + 7 * i % 29,)) for i in range(64)]

    def batch(self, model, samples, width, side):
        ids, mask = batch_of(samples, side, width)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        logits = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits
        return [logits[i][mask[i].bool()] for i in range(len(samples))]

    def differing(self, model, sizes):
        """Returns the number of samples that, in batches of these sizes, have other bits than
        alone."""
        with torch.no_grad():
            alone = [bits(model(input_ids=sample[None]).logits[0]) for sample in self.samples]
            bad = 0
            for size in sizes:
                for side in ("left", "right"):
                    first = (5 * size) % (65 - size)
                    group = self.samples[first:first + size]
                    width = max(map(len, group)) + size % 4
                    for i, logits in enumerate(self.batch(model, group, width, side)):
                        bad += not torch.equal(bits(logits), alone[first + i])
        return bad

    def test_sweep(self):
        control = 0
        for family in FAMILIES:
            for dtype, tolerance in TYPES:
                with self.subTest(family=family, dtype=dtype):
                    model = build(family).to(dtype).eval()
                    control += self.differing(model, (2, 7, 33, 64))
                    before = model(input_ids=self.samples[9][None]).logits
                    self.assertIs(invar.torch.make_invariant(model), model)
                    self.assertEqual(self.differing(model, range(1, 65)), 0)
                    after = model(input_ids=self.samples[9][None]).logits
                    self.assertLess(float((after - before).abs().max()), 10 * tolerance)
        self.assertGreater(control, 0)  # control: the sweep finds differences of stock models

    def test_cache(self):
        for family in FAMILIES:
            for dtype, _ in TYPES:
                model = invar.torch.make_invariant(build(family).to(dtype).eval())
                ids = torch.stack([self.samples[8][:12], self.samples[4][:12]])
                mask = torch.ones_like(ids)
                mask[1, :5] = 0  # left padding
                positions = (mask.cumsum(1) - 1).clamp(min=0)
                with torch.no_grad():
                    whole = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits
                    cache, pieces = None, []
                    for a, b in ((0, 6), (6, 7), (7, 10), (10, 11), (11, 12)):
                        out = model(input_ids=ids[:, a:b], attention_mask=mask[:, :b],
                                    position_ids=positions[:, a:b], past_key_values=cache,
                                    use_cache=True)
                        cache = out.past_key_values
                        pieces.append(out.logits)
                keep = mask.bool()
                self.assertTrue(torch.equal(bits(torch.cat(pieces, 1))[keep], bits(whole)[keep]))

    def test_generate(self):
        model = invar.torch.make_invariant(build("qwen3").eval())
        prompts = self.samples[3:6]
        alone = [model.generate(p[None], attention_mask=torch.ones_like(p[None]),
                                max_new_tokens=6, do_sample=False, pad_token_id=0)[0]
                 for p in prompts]
        width = max(map(len, prompts))
        ids = torch.stack([functional.pad(p, (width - len(p), 0)) for p in prompts])
        mask = torch.stack([functional.pad(torch.ones_like(p), (width - len(p), 0))
                            for p in prompts])
        together = model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False,
                                  pad_token_id=0)
        for one, row in zip(alone, together):
            self.assertEqual(one[-6:].tolist(), row[-6:].tolist())

    def test_gradients(self):
        """Gradients repeat with any number of threads, and are those of the stock model up to
        rounding."""
        for family in FAMILIES:
            model = build(family, pad_token_id=3)  # its row gets no gradient
            ids = torch.randint(0, 160, (3, 20))
            reference = self.gradients(model, ids)
            invar.torch.make_invariant(model)
            first = self.gradients(model, ids)
            invar.torch.set_device(invar.ops.Device(threads=3))
            again = self.gradients(model, ids)
            for name, gradient in first.items():
                self.assertTrue(torch.equal(bits(gradient), bits(again[name])), name)
                scale = float(reference[name].abs().max())
                difference = float((gradient - reference[name]).abs().max())
                self.assertLess(difference, 1e-4 * scale + 1e-8, name)
            table = first["model.embed_tokens.weight"]
            self.assertFalse(bool(table[3].any()))
            self.assertTrue(bool(table[ids[ids != 3][0]].any()))

    def gradients(self, model, ids):
        model.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    def test_refused(self):
        make = invar.torch.make_invariant
        gpt = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            n_embd=16, n_layer=1, n_head=2, vocab_size=32, n_positions=16))
        for model, words in ((gpt, "gpt2"), (build("llama").half(), "float16"),
                             (build("llama", hidden_act="gelu"), "gelu"),
                             (build("qwen3", use_sliding_window=True, sliding_window=4,
                                    max_window_layers=0), "sliding"),
                             (torch.nn.Linear(2, 2), "Linear")):
            with self.assertRaisesRegex(NotImplementedError, words):
                make(model)
        model = make(build("llama"))
        ids = self.samples[0][None]
        with self.assertRaises(NotImplementedError):
            model(input_ids=ids, attention_mask=torch.ones(1, 1, ids.shape[1], ids.shape[1]))
        packed = torch.cat([torch.arange(2), torch.arange(ids.shape[1] - 2)])[None]
        with self.assertRaises(NotImplementedError):
            model(input_ids=ids, position_ids=packed, use_cache=False)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
