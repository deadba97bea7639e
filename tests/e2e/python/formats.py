#!/usr/bin/env python3
# formats.py - fp8, mxfp8 and int4 in PyTorch: linear layers, experts and models.
#
# mxfp8 and int4 compute the bf16 product of the values that the codes represent, and must have its
# bits; fp8 scales its partial sums, and is compared with double precision. Control: the formats
# change bits. No sample may depend on its batch. gpu.py runs all of it on a GPU.
# SPDX-License-Identifier: Apache-2.0
"""Tests of the formats of invar.torch."""
import copy
import sys
import unittest

import torch

import invar
import invar.ops
import invar.torch
from invar.torch import dequantise, linear, moe, quantise
import invariant
from invariant import FAMILIES, bits, build

FORMATS = ("fp8", "mxfp8", "int4")
SHAPES = ((1, 32, 48), (37, 160, 96), (64, 256, 128), (130, 416, 272))  # tokens, inputs, outputs


def leaf(*shape, factor=1.0):
    return (torch.randn(*shape) * factor).bfloat16().requires_grad_()


def values(x, name, weight=False):
    """Returns the values that an operand of a product represents, as bf16."""
    if name == "int4" and not weight:
        return x
    return dequantise(quantise(x.detach(), name, weight=weight))


class Products(unittest.TestCase):
    """Linear layers and experts."""

    def setUp(self):
        torch.manual_seed(2)

    def tearDown(self):
        invar.torch.set_device(invar.ops.Device("cpu"))

    def same(self, one, other):
        self.assertTrue(torch.equal(bits(one), bits(other)))

    def test_linear(self):
        for numerics in ("ieee", "sm90"):
            invar.torch.set_device(invar.ops.Device("cpu", numerics=numerics))
            for name in FORMATS:
                for tokens, inputs, outputs in SHAPES:
                    with self.subTest(name, numerics=numerics, shape=(tokens, inputs, outputs)):
                        self.linear(name, leaf(tokens, inputs), leaf(outputs, inputs))

    def linear(self, name, x, w):
        y = linear(x, w, None, name)
        g = torch.randn_like(y)
        dx, dw = torch.autograd.grad(y, (x, w), g)
        vx, vw, vg = values(x, name), values(w, name, True), values(g, name)
        if name == "fp8":
            self.close(y, vx.double() @ vw.double().T)
            self.close(dx, vg.double() @ vw.double())
        else:
            self.same(y, linear(vx, vw))
            self.same(dx, torch.ops.invar.linear_dx(vg, vw))
        # The gradient of the weight is that of the stored weight.
        plain = torch.autograd.grad(linear(x, w), w, g)[0]
        self.same(dw, plain)
        if y.numel() > 100:  # control: the format makes a difference
            self.assertFalse(torch.equal(bits(y), bits(linear(x, w))))

    def close(self, mine, exact):
        scale = float(exact.abs().max()) or 1.0
        self.assertLess(float((mine.double() - exact).abs().max()), 1e-2 * scale)

    def test_rows_do_not_see_their_batch(self):
        x, w = leaf(64, 160), leaf(96, 160)
        r, gate_up, down = leaf(6, 160), leaf(6, 192, 160, factor=.1), leaf(6, 160, 96, factor=.1)
        for name in FORMATS:
            for f in (lambda a, n=name: linear(x[a], w, None, n),
                      lambda a, n=name: moe(x[a], r, gate_up, down, 2, True, n)):
                whole = bits(f(slice(None)))
                for count in (1, 2, 31, 63):
                    self.same(f(slice(64 - count, 64)), whole[-count:].view(torch.bfloat16))

    def test_experts(self):
        for inner in (64, 96, 128):
            x, r = leaf(40, 160), leaf(6, 160, factor=.05)
            gate_up, down = leaf(6, 2 * inner, 160, factor=.1), leaf(6, 160, inner, factor=.1)
            leaves = (x, r, gate_up, down)
            exact = moe(x, r, gate_up, down, 2)
            g = torch.randn_like(exact)
            plain = torch.autograd.grad(exact, leaves, g)
            for name in FORMATS:
                out = moe(*leaves, 2, True, name)
                made = torch.autograd.grad(out, leaves, g)
                for one, other in zip((out, *made), (exact, *plain)):
                    size = float(other.detach().double().norm())
                    error = float((one.detach().double() - other.detach().double()).norm())
                    self.assertLess(error, (0.3 if name == "int4" else 0.12) * size)
                    self.assertGreater(error, 0)
            # int4 is the plain layer with the weights that the codes represent.
            weights = [torch.stack([values(e, "int4", True) for e in w]) for w in (gate_up, down)]
            self.same(moe(*leaves, 2, True, "int4"), moe(x, r, *weights, 2))

    def test_codes_are_kept_and_renewed(self):
        x, w = leaf(5, 64), leaf(32, 64)
        with torch.no_grad():
            first = linear(x, w, None, "fp8")
            kept = w._invar_codes.codes[0]
            self.same(linear(x, w, None, "fp8"), first)
            self.assertIs(w._invar_codes.codes[0], kept)  # computed once
            w.mul_(-1)
            self.same(linear(x, w, None, "fp8"), -first)
            self.assertIsNot(w._invar_codes.codes[0], kept)
            self.same(linear(x, w, None, "int4"), linear(x, values(w, "int4", True)))

    def test_opcheck(self):
        x, w = leaf(5, 32), leaf(48, 32)
        for name in FORMATS:
            q = quantise(w.detach(), name, weight=True)
            # The tensors are viewed as bytes, because opcheck cannot compare 8-bit floats.
            codes, scale = (t.view(torch.uint8) if t.itemsize == 1 else t
                            for t in (q.codes, q.scale))
            torch.library.opcheck(torch.ops.invar.linear.default,
                                  (x, w, None, codes, scale, name))

    def test_refused(self):
        x, w = leaf(3, 48), leaf(4, 48)
        with self.assertRaisesRegex(invar.Error, "multiple of 32"):
            linear(x, w, None, "int4")
        with self.assertRaisesRegex(invar.Error, "fp8, mxfp8, int4"):
            linear(x, w, None, "fp4")
        with self.assertRaisesRegex(NotImplementedError, "bfloat16"):
            linear(x.float(), w.float(), None, "fp8")
        q = quantise(w.detach(), "fp8", weight=True)
        for wrong in (invar.ops.Quantised("fp8", q.codes, q.scale.repeat(2, 1), 128),
                      invar.ops.Quantised("fp8", q.codes, q.scale, 7),
                      invar.ops.Quantised("fp8", q.codes, q.scale, 128, -1),
                      invar.ops.Quantised("mxfp8", q.codes, q.scale)):
            with self.assertRaises(invar.Error):
                dequantise(wrong)
        with self.assertRaisesRegex(NotImplementedError, "bfloat16"):
            invar.torch.make_invariant(build("llama"), "fp8")
        with self.assertRaisesRegex(invar.Error, "fp4"):
            invar.torch.make_invariant(build("llama").bfloat16(), "fp4")


class Whole(unittest.TestCase):
    """Models in a number format; the sweep is that of invariant.py."""

    setUp, batch = invariant.Models.setUp, invariant.Models.batch
    differing = invariant.Models.differing

    def test_sweep(self):
        for family in FAMILIES:
            for name in FORMATS:
                with self.subTest(family, format=name):
                    model = build(family, moe_intermediate_size=32).bfloat16().eval()
                    plain = invar.torch.make_invariant(copy.deepcopy(model))
                    invar.torch.make_invariant(model, name)
                    self.assertEqual(self.differing(model, (1, 2, 7, 33, 64)), 0)
                    ids = self.samples[9][None]
                    one, other = (m(input_ids=ids).logits.float() for m in (model, plain))
                    self.assertGreater(float((one - other).detach().abs().max()), 0)
                    self.assertLess(float((one - other).detach().abs().max()), 0.3)
                    model(input_ids=ids, labels=ids).loss.backward()
                    for p in model.parameters():
                        self.assertTrue(p.grad is None or bool(p.grad.isfinite().all()))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
