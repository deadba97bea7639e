#!/usr/bin/env python3
# libraries.py FOLDER - the package invar with tensors of torch and numpy, and tables of pandas.
# SPDX-License-Identifier: Apache-2.0
"""Tests of the package invar with torch, numpy and pandas."""
import pathlib
import shutil
import sys
import unittest

import numpy
import pandas
import torch

import invar

FOLDER = pathlib.Path(sys.argv[1])
GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "golden/ledger-5.db"


def digest(tensor):
    return invar.hash_tensors({"x": tensor})["x"]


class Tensors(unittest.TestCase):
    """Equal bytes have equal digests in every library."""

    def test_torch_and_numpy_agree(self):
        generator = numpy.random.default_rng(7)
        for name in ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8",
                     "bool", "complex64"):
            for shape in ((), (0, 3), (5,), (3, 4), (2, 3, 4), (200, 301)):
                array = (generator.standard_normal(shape) * 50).astype(name)
                one, other = digest(array), digest(torch.from_numpy(numpy.atleast_1d(array))
                                                   .reshape(shape))
                self.assertEqual(one, other, (name, shape))
                self.assertEqual(one.digest, digest(array.tobytes()).digest)

    def test_layouts(self):
        base = torch.arange(2 * 6 * 10, dtype=torch.float32).reshape(2, 6, 10)
        views = [base, base.permute(2, 0, 1), base[:, ::2], base[1, :, 3:7], base.expand(2, 6, 10),
                 base[:1].expand(4, 6, 10), base.transpose(0, 1)[3], base[..., 4]]
        for view in views:
            self.assertEqual(digest(view), digest(view.contiguous().clone()))
            self.assertEqual(digest(view), digest(view.numpy()))
        for flipped in (base.numpy()[::-1], base.numpy()[:, ::-2]):
            self.assertEqual(digest(flipped), digest(flipped.copy()))
        self.assertNotEqual(digest(base), digest(base + 1))

    def test_other_types(self):
        x = torch.randn(64, 8)
        for dtype, name in ((torch.bfloat16, "bf16"), (torch.float8_e4m3fn, "f8_e4m3fn"),
                            (torch.float8_e5m2, "f8_e5m2"), (torch.uint16, "u16")):
            found = digest(x.abs().to(dtype))
            self.assertEqual(found.dtype, name)
            self.assertEqual(found.digest, digest(x.abs().to(dtype).view(torch.uint8)).digest)
        conjugate = torch.randn(5, dtype=torch.complex64).conj()
        self.assertEqual(digest(conjugate), digest(conjugate.resolve_conj().numpy()))
        needs = torch.nn.Parameter(x)
        self.assertEqual(digest(needs), digest(x))
        frozen = x.numpy().copy()
        frozen.flags.writeable = False
        self.assertEqual(digest(frozen), digest(x))
        for wrong in (numpy.array(["a"]), numpy.zeros(2, ">f4"), numpy.zeros(2, object)):
            with self.assertRaises((TypeError, ValueError)):
                digest(wrong)
        for wrong in (x.to_sparse(), torch.empty(3, device="meta")):
            with self.assertRaisesRegex(TypeError, "'x'"):
                digest(wrong)

    def test_batches(self):
        """A tuple is never a pair of a name and a tensor, whatever the batch size."""
        for size in (1, 2, 4):
            x, y = torch.randn(size, 3000), torch.arange(size)
            other = x.clone()
            other[0, 1000] += 1
            one = invar.hash_tensors((x, y), kind="data")
            self.assertEqual([t.name for t in one], ["0", "1"])
            self.assertNotEqual(one.digest(), invar.hash_tensors((other, y), kind="data").digest())

    def test_optimizers(self):
        for make in (lambda p: torch.optim.AdamW(p), lambda p: torch.optim.SGD(p, lr=0.1)):
            model = torch.nn.Linear(3, 2)
            optimizer = make(model.parameters())
            digests = []
            for _ in range(2):
                model(torch.ones(2, 3)).sum().backward()
                optimizer.step()
                digests.append(invar.hash_tensors(optimizer, kind="opt"))
            if isinstance(optimizer, torch.optim.AdamW):
                self.assertEqual(digests[0]["state[1].exp_avg"].shape, (2,))
                self.assertNotEqual(digests[0].digest(), digests[1].digest())
            else:
                self.assertEqual(len(digests[1]), 0)  # plain SGD has no state

    def test_module(self):
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        names = [t.name for t in invar.hash_tensors(model)]
        self.assertEqual(names, list(model.state_dict()))
        self.assertEqual(len(invar.hash_gradients(model)), 0)
        model(torch.randn(8, 3)).sum().backward()
        self.assertEqual([t.name for t in invar.hash_gradients(model)],
                         ["0.weight.grad", "0.bias.grad", "1.weight.grad", "1.bias.grad"])


class Frames(unittest.TestCase):
    """Tables are DataFrames if pandas is installed."""

    def test_frames(self):
        with invar.Ledger(FOLDER / "frames") as ledger:
            for step in range(5):
                ledger.step(loss=torch.tensor(step / 2, requires_grad=True),
                            metrics={"late": 1.0} if step > 2 else {},
                            digests=invar.hash_tensors({"w": torch.ones(3)}))
        with invar.read(FOLDER / "frames") as run:
            steps, digests = run.steps(), run.digests(0)
            self.assertIsInstance(run.sql("SELECT 1 AS x"), pandas.DataFrame)
            self.assertEqual(len(run.events()), 0)
        self.assertEqual(list(steps["train/loss"]), [0, 0.5, 1, 1.5, 2])
        self.assertEqual(int(steps["train/late"].isna().sum()), 3)
        self.assertEqual(list(steps.columns)[:4], ["step", "chain", "root", "batch"])
        self.assertEqual(digests["shape"][0], (3,))

    def test_samples(self):
        with invar.read(GOLDEN, "whole") as run:
            samples = run.samples()
        self.assertIsInstance(samples, pandas.DataFrame)
        self.assertEqual(list(samples.columns)[:6], ["step", "group", "sample", "line", "prompt",
                                                     "response"])
        self.assertEqual(list(samples.columns)[-1], "drawn")


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    unittest.main(argv=sys.argv[:1])
