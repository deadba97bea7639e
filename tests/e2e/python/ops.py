#!/usr/bin/env python3
# ops.py LIBRARY - the kernels by name, with the standard library alone.
#
# Rows keep their bits in every batch, with any number of threads, in both numerics. Control: a sum
# in another order has other bits. Wrong calls are rejected before anything is written. A device may
# be closed, and the process forked, while other threads use it.
# SPDX-License-Identifier: Apache-2.0
"""Tests of invar.ops."""
import array
import contextlib
import gc
import mmap
import os
import random
import signal
import sys
import tempfile
import threading
import types
import unittest
import unittest.mock

import built

os.environ["INVAR_MODULES"] = "/nowhere"  # a GPU of this machine is not used
built.use(sys.argv[1])

import invar  # noqa: E402  pylint: disable=wrong-import-position
from invar import _library as library  # noqa: E402  pylint: disable=wrong-import-position
from invar import ops  # noqa: E402  pylint: disable=wrong-import-position

WIDTH, OUT = 96, 10


def matrix(values, rows, columns, letter="f"):
    """Returns a writable tensor."""
    return memoryview(array.array(letter, values)).cast("B").cast(letter, (rows, columns))


def empty(rows, columns):
    return matrix([float("nan")] * (rows * columns), rows, columns)


class Products(unittest.TestCase):
    """linear.fwd, as an example of all ops."""

    def setUp(self):
        draw = random.Random(7)
        self.x = [[draw.uniform(-1, 1) for _ in range(WIDTH)] for _ in range(64)]
        self.w = [draw.uniform(-1, 1) for _ in range(OUT * WIDTH)]

    def product(self, device, rows, order=None):
        order = order or list(range(WIDTH))
        x = [row[k] for row in rows for k in order]
        w = [self.w[n * WIDTH + k] for n in range(OUT) for k in order]
        y = empty(len(rows), OUT)
        device.run("linear.fwd", {
            "y": y, "x": matrix(x, len(rows), WIDTH), "w": matrix(w, OUT, WIDTH), "n_more": 0,
            "k_shards": 1, "bias": None})
        return [bytes(y.cast("B")[4 * OUT * i:4 * OUT * (i + 1)]) for i in range(len(rows))]

    def test_rows_do_not_see_their_batch(self):
        for numerics in ("ieee", "sm90"):
            with self.subTest(numerics):
                device = ops.Device(numerics=numerics, threads=1)
                alone = [self.product(device, [row])[0] for row in self.x]
                for threads in (1, 2, 5):
                    device = ops.Device(numerics=numerics, threads=threads)
                    for count in (2, 3, 7, 16, 33, 64):
                        self.assertEqual(self.product(device, self.x[-count:]), alone[-count:])
        backwards = self.product(device, self.x, list(range(WIDTH))[::-1])
        self.assertNotEqual(backwards, alone)  # control: the same terms in another order

    def test_close_to_exact(self):
        row = array.array("f", self.product(ops.Device(), self.x[:1])[0])
        for n in range(OUT):
            exact = sum(self.x[0][k] * self.w[n * WIDTH + k] for k in range(WIDTH))
            self.assertAlmostEqual(row[n], exact, places=5)


class Formats(unittest.TestCase):
    """Quantized values, compared with what they represent."""

    def setUp(self):
        self.device = ops.Device(threads=1)
        self.x = matrix([float(k % 15 - 7) for k in range(64)], 2, 32)

    def test_there_and_back(self):
        for name, codes, scale in (("fp8", bytearray(64), array.array("f", [0] * 2)),
                                   ("mxfp8", bytearray(64), bytearray(2)),
                                   ("int4", bytearray(32), array.array("H", [0] * 2))):
            columns = 16 if name == "int4" else 32
            q = ops.Quantised(name, memoryview(codes).cast("B", (2, columns)), scale)
            self.assertEqual(ops.Quantised.scales(name, 2, 32), (2, 1))
            back = empty(2, 32)
            self.device.run("quantise", {"q": q, "x": self.x})
            self.device.run("dequantise", {"q": q, "x": back})
            if name == "fp8":  # the scales of fp8 are not powers of two
                for one, other in zip(sum(back.tolist(), []), sum(self.x.tolist(), [])):
                    self.assertAlmostEqual(one, other, delta=0.3)
            else:
                self.assertEqual(back.tolist(), self.x.tolist())
            self.assertNotEqual(sum(codes), 0)

    def test_shapes_of_scales(self):
        for rows, columns, per, period, expected in (
                (300, 200, 128, 0, (3, 2)), (300, 200, 1, 0, (300, 2)),
                (300, 128, 128, 100, (3, 1)), (600, 128, 128, 200, (6, 1)),
                (0, 128, 128, 0, (0, 1))):
            self.assertEqual(ops.Quantised.scales("fp8", rows, columns, per, period), expected)

    def test_refused(self):
        codes, scale = memoryview(bytearray(64)).cast("B", (2, 32)), array.array("f", [0] * 2)
        for q, words in ((ops.Quantised("fp4", codes, scale), "fp4"),
                         (ops.Quantised("mxfp8", codes, scale), "8 bits"),
                         (ops.Quantised("fp8", codes, scale, 128), "as many"),
                         (ops.Quantised("fp8", codes, scale, 2), "1 or 128"),
                         (ops.Quantised("fp8", codes, scale, 1, -1), "31 bits"),
                         (ops.Quantised("fp8", codes, scale, 1, 1 << 40), "31 bits"),
                         (ops.Quantised("fp8", codes, array.array("f", [0] * 3)), "as many"),
                         (ops.Quantised("fp8", bytearray(64), scale), "rows")):
            with self.assertRaisesRegex(invar.Error, words):
                self.device.run("quantise", {"q": q, "x": self.x})
        with self.assertRaisesRegex(invar.Error, "without the tensor"):
            self.device.run("quantise", {"q": ops.Quantised("fp8", codes, scale), "x": self.x,
                                         "x.scale_rows": 1})
        self.assertEqual(codes.tobytes(), bytes(64))  # nothing was written


class Refusals(unittest.TestCase):
    """Calls that must not reach a kernel."""

    def refused(self, op, fields, words):
        with self.assertRaises(invar.Error, msg=words) as caught:
            self.device.run(op, fields)
        self.assertIn(words, str(caught.exception))

    def setUp(self):
        self.device = ops.Device(threads=1)
        self.y, self.x, self.w = empty(2, 3), matrix([1.0] * 8, 2, 4), matrix([1.0] * 12, 3, 4)
        self.good = {"y": self.y, "x": self.x, "w": self.w, "n_more": 0, "k_shards": 1}

    def test_calls(self):
        self.device.run("linear.fwd", self.good)
        self.assertEqual(self.y.tolist(), [[4.0] * 3] * 2)
        good = self.good
        self.refused("linear.forward", good, "there is no op")
        self.refused("linear.fwd", {**good, "x": None}, "x: is missing")
        self.refused("linear.fwd", {**good, "k_shards": None}, "k_shards: is missing")
        self.refused("linear.fwd", {**good, "weight": self.w}, "weight: is no argument")
        self.refused("linear.fwd", {**good, "k_shards": 1.0}, "is an integer")
        self.refused("linear.fwd", {**good, "k_shards": 1 << 40}, "32 bits")
        self.refused("linear.fwd", {**good, "k_shards": 3, "k_atom": 1}, "3")
        self.refused("linear.fwd", {**good, "x": 7}, "is a tensor")
        self.refused("linear.fwd", {**good, "w": matrix([1.0] * 15, 3, 5)}, "w")
        self.refused("linear.fwd", {**good, "x": array.array("d", [1, 2])}, "none of f32")
        self.refused("linear.fwd", {**good, "y": self.x}, "y")  # the memory of an input
        self.refused("rmsnorm.fwd", {"y": self.y, "x": self.x, "weight": self.w, "eps": 1},
                     "floating-point")
        self.assertEqual(self.y.tolist(), [[4.0] * 3] * 2)  # nothing was written

    def test_segments_and_arrays(self):
        ids = matrix([0, 1, 1, 0], 2, 2, "i")
        fields = {"row_token": array.array("i", [0] * 4), "slot_row": matrix([0] * 4, 2, 2, "i"),
                  "expert_start": array.array("q", [0] * 3), "ids": ids, "experts": 2}
        self.device.run("moe.plan", fields)
        self.assertEqual(list(fields["expert_start"]), [0, 2, 4])
        for wrong in (array.array("q", [0] * 2), array.array("q", [0] * 4),
                      array.array("i", [0] * 3), memoryview(array.array("q", [0] * 6))[::2]):
            self.refused("moe.plan", {**fields, "expert_start": wrong}, "expert_start: the array")
        self.refused("moe.plan", {**fields, "experts": -5}, "")
        self.refused("moe.plan", {**fields, "experts": 1 << 62}, "")
        total = {"out": array.array("f", [0] * 4), "x": self.x, "units": array.array("q", [0, 2])}
        self.device.run("token.sum", total)
        self.assertEqual(list(total["out"]), [2.0] * 4)
        for wrong in ([0, 3], [1, 2], [0, 2, 1], [-1, 2], []):
            self.refused("token.sum", {**total, "units": array.array("q", wrong)}, "units")
        self.refused("token.sum", {**total, "units": array.array("i", [0, 2])}, "vector of i64")
        self.refused("grad.norm", {"grads": self.x, "count": 1, "max_norm": 1.0}, "lists of")

    def test_devices(self):
        for kind, numerics, threads, words in (
                ("tpu", "ieee", 1, "tpu"), ("cpu", "fast", 1, "fast"), ("cpu", "ieee", -1, ""),
                ("cpu:0", "ieee", 1, "cuda:N"), ("cuda:x", "ieee", 1, "cuda:N"),
                ("cuda", "ieee", 1, "invar-cuda.so is not in the folder INVAR_MODULES")):
            with self.assertRaisesRegex(invar.Error, words):
                ops.Device(kind, numerics=numerics, threads=threads)
        with self.assertRaisesRegex(invar.Error, "no streams"):
            self.device.run("linear.fwd", self.good, stream=0)
        self.device.close()
        with self.assertRaisesRegex(invar.Error, "closed"):
            self.device.run("linear.fwd", self.good)
        self.assertGreaterEqual(ops.revision("attention.fwd"), 3)
        with self.assertRaises(invar.Error):
            ops.revision("attention")


class Memory(unittest.TestCase):
    """Outputs must be writable memory; inputs need not be."""

    def setUp(self):
        self.device = ops.Device(threads=1)
        self.x = matrix([1.0, 2.0, 3.0, 4.0], 1, 4)

    def test_read_only(self):
        fixed = bytes(16)
        with tempfile.TemporaryFile() as file:
            file.write(bytes(16))
            file.flush()
            mapped = mmap.mmap(file.fileno(), 16, access=mmap.ACCESS_READ)
            for memory in (memoryview(fixed), self.x.toreadonly().cast("B"), memoryview(mapped)):
                out = memory.cast("f", (1, 4))
                with self.assertRaisesRegex(invar.Error, "add: out: is read-only memory"):
                    self.device.run("add", {"out": out, "a": self.x, "b": self.x})
                y = empty(1, 4)  # reading it is no error
                self.device.run("add", {"out": y, "a": out, "b": self.x})
                self.assertEqual(y.tolist()[0], [a + b for a, b in zip(out.tolist()[0],
                                                                       self.x.tolist()[0])])
                del out, memory
            mapped.close()
        self.assertEqual(fixed, bytes(16))
        self.assertEqual(self.x.tolist(), [[1.0, 2.0, 3.0, 4.0]])

    def test_read_only_codes(self):
        x = matrix([1.0] * 32, 1, 32)
        for codes, scale in ((bytes(32), bytearray(1)), (bytearray(32), bytes(1))):
            q = ops.Quantised("mxfp8", memoryview(codes).cast("B", (1, 32)), scale)
            with self.assertRaisesRegex(invar.Error, "quantise: q.*: is read-only memory"):
                self.device.run("quantise", {"q": q, "x": x})
            self.device.run("dequantise", {"q": q, "x": empty(1, 32)})
            self.assertEqual(sum(codes) + sum(scale), 0)

    def test_what_is_written(self):
        """The library reports which arguments an op writes: outputs, sums, inputs, scales, unknown
        names."""
        for op, name, expected in (("add", b"out", 1), ("add", b"a", 0), ("quantise", b"q", 1),
                                   ("quantise", b"q.scale", 1), ("dequantise", b"q.scale", 0),
                                   ("embedding.bwd", b"dtable", 1), ("linear.fwd", b"w", 0),
                                   ("linear.fwd", b"k_shards", 0), ("add", b"nothing", 0),
                                   ("moe.plan", b"expert_start", 1)):
            found = library.LIBRARY.invar_api_op_writes(op.encode(), name)
            self.assertEqual(found, expected, (op, name))
        self.assertLess(library.LIBRARY.invar_api_op_writes(b"none", b"x"), 0)

    def test_scratch_is_asked_for_twice(self):
        """If PyTorch caches a GPU's memory, it is asked to free it once; other failures are
        final."""
        emptied, calls = [], []
        cuda = types.SimpleNamespace(empty_cache=lambda: emptied.append(1))

        def call(name, *_):
            calls.append(name)
            if len(calls) == 1:
                raise invar.Error("NOMEM", message)

        for gpu, message, wanted in ((0, "scratch of ops: 9 MiB do not fit", 2),
                                     (0, "add: CUDA: out of memory", 1),
                                     (None, "scratch of ops: 9 MiB do not fit", 1)):
            del calls[:], emptied[:]
            with unittest.mock.patch.multiple(
                    self.device, gpu=gpu, _current=contextlib.nullcontext,
                    _stream=lambda asked: None), unittest.mock.patch.object(
                    ops, "_torch_cuda", lambda: cuda), unittest.mock.patch.object(
                    library, "call", call), contextlib.suppress(invar.Error):
                self.device.run("add", {"out": self.x, "a": self.x, "b": self.x})
            self.assertEqual((len(calls), len(emptied)), (wanted, wanted - 1))


class Processes(unittest.TestCase):
    """A device in other threads, and after a fork."""

    def setUp(self):
        draw = random.Random(5)
        self.x = matrix([draw.uniform(-1, 1) for _ in range(512 * 64)], 512, 64)

    def product(self, device):
        y = empty(512, 512)
        device.run("linear.fwd", {"y": y, "x": self.x, "w": self.x, "n_more": 0, "k_shards": 1})
        return y.tobytes()

    def test_closed_during_calls(self):
        for _ in range(3):
            device, said, ran = ops.Device(threads=2), [], threading.Event()
            wanted = self.product(device)

            def work(device=device, said=said, ran=ran, wanted=wanted):
                try:
                    while True:
                        said.append(self.product(device) == wanted)
                        ran.set()
                except invar.Error as error:
                    said.append(str(error))

            threads = [threading.Thread(target=work) for _ in range(3)]
            for thread in threads:
                thread.start()
            ran.wait()
            device.close()
            for thread in threads:
                thread.join()
            self.assertEqual(set(said), {True, "the device is closed"})

    def child(self, work):
        """Returns the exit code of a forked child, which is killed if it hangs."""
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.alarm(30)
                code = work()
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def test_fork(self):
        for numerics in ("ieee", "sm90"):
            devices = [ops.Device(numerics=numerics, threads=3)]
            wanted = self.product(devices[0])  # its threads exist now

            def use(devices=devices, wanted=wanted, numerics=numerics):
                with unittest.mock.patch.object(library, "call", wraps=library.call) as calls:
                    if self.product(devices[0]) != wanted:
                        return 2
                name, _, *asked = calls.call_args_list[0].args
                if (name, *asked) != ("device_open", b"cpu", numerics.encode(), 3):
                    return 4
                devices[0].close()
                try:
                    self.product(devices[0])
                except invar.Error:
                    return 7
                return 3

            def drop(devices=devices):
                devices.clear()
                gc.collect()
                return 7

            def close(devices=devices):
                devices[0].close()
                return 7

            for work in (use, drop, close):
                self.assertEqual(self.child(work), 7, work.__name__)
            self.assertEqual(self.product(devices[0]), wanted)

    def test_fork_during_a_call(self):
        """The child does not wait for a thread that it does not have."""
        device, stop = ops.Device(threads=2), threading.Event()

        def work():
            while not stop.is_set():
                self.product(device)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for _ in range(5):
                self.assertEqual(self.child(lambda: 7 if self.product(device) else 5), 7)
        finally:
            stop.set()
            thread.join()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
