#!/usr/bin/env python3
# ledger.py INVAR LIBRARY FOLDER - the Python package with the standard library alone: hashes,
# ledgers, readers.
#
# The program INVAR also checks everything that is written here. Errors are planted and must be
# rejected or detected: broken DLPack tensors, a second writer, a damaged file, an edited script.
# SPDX-License-Identifier: Apache-2.0
"""Tests of the package invar, with the standard library alone."""
import array
import ctypes
import json
import math
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import unittest

import built

INVAR, LIBRARY, FOLDER = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
built.use(LIBRARY)

import invar  # noqa: E402  pylint: disable=wrong-import-position
from invar import tensors  # noqa: E402  pylint: disable=wrong-import-position


def program(*arguments):
    """Runs the program INVAR. Returns its exit code and output."""
    result = subprocess.run([INVAR, *map(str, arguments)], capture_output=True, text=True,
                            stdin=subprocess.DEVNULL, check=False)
    return result.returncode, result.stdout + result.stderr


class Packed:
    """A tensor with only the DLPack interface, made from a ctypes array."""

    def __init__(self, data, shape, strides=None, *, code=2, bits=32, device=1, lanes=1,
                 ndim=None, offset=0):
        self.data = data
        dims = len(shape)
        self.shape, self.strides = (ctypes.c_int64 * dims)(*shape), None
        if strides is not None:
            self.strides = (ctypes.c_int64 * dims)(*strides)
        self.tensor = tensors.DLTensor(
            ctypes.addressof(data), device, 0, dims if ndim is None else ndim, code, bits, lanes,
            self.shape, self.strides, offset)

    def __dlpack__(self, **_):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p,
                                                       ctypes.c_void_p]
        return new(ctypes.addressof(self.tensor), b"dltensor", None)


class Hashes(unittest.TestCase):
    """Digests of tensors."""

    def one(self, tensor):
        digests = invar.hash_tensors({"x": tensor})
        return digests["x"]

    def test_sources_agree(self):
        values = array.array("f", [i / 7 for i in range(24)])
        expected = self.one(values)
        plain = (ctypes.c_float * 24)(*values)
        self.assertEqual((expected.dtype, expected.shape), ("f32", (24,)))
        self.assertEqual(expected.digest, self.one(memoryview(values)).digest)
        self.assertEqual(expected.digest, self.one(bytes(values)).digest)
        shaped = self.one(memoryview(values).cast("B").cast("f", (4, 6)))
        self.assertEqual((shaped.digest, shaped.shape), (expected.digest, (4, 6)))
        packed = self.one(Packed(plain, (4, 6)))
        self.assertEqual((packed.digest, packed.dtype, packed.shape),
                         (expected.digest, "f32", (4, 6)))
        values[5] += 1
        self.assertNotEqual(expected.digest, self.one(values).digest)  # control

    def test_strides(self):
        values = array.array("i", range(24))
        plain = (ctypes.c_int32 * 24)(*values)
        turned = array.array("i", [row * 4 + column for column in range(4) for row in range(6)])
        self.assertEqual(self.one(memoryview(values)[::-3]).digest,
                         self.one(array.array("i", list(values)[::-3])).digest)
        self.assertEqual(self.one(Packed(plain, (4, 6), (1, 4), code=0)).digest,
                         self.one(turned).digest)
        self.assertEqual(self.one(Packed(plain, (3, 4), (8, 1), code=0, offset=16)).digest,
                         self.one(array.array("i", [4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23]))
                         .digest)

    def test_types(self):
        names = {"b": "i8", "B": "u8", "h": "i16", "H": "u16", "i": "i32", "I": "u32", "q": "i64",
                 "Q": "u64", "f": "f32", "d": "f64"}
        for letter, name in names.items():
            self.assertEqual(self.one(array.array(letter, [1, 2])).dtype, name)
        half = (ctypes.c_uint16 * 4)()
        self.assertEqual(self.one(Packed(half, (4,), code=4, bits=16)).dtype, "bf16")
        self.assertEqual(self.one(Packed(half, (4,), code=2, bits=16)).dtype, "f16")
        self.assertEqual(self.one(Packed(half, (8,), code=10, bits=8)).dtype, "f8_e4m3fn")
        self.assertEqual(self.one(array.array("f")).shape, (0,))

    def test_refused(self):
        plain = (ctypes.c_float * 24)()
        wrong = [Packed(plain, (24,), device=2), Packed(plain, (24,), lanes=4),
                 Packed(plain, (24,), code=3), Packed(plain, (24,), ndim=70),
                 Packed(plain, (24,), ndim=-1), 7, "text", object(),
                 memoryview(struct.pack("4s", b"abcd")).cast("c")]
        for tensor in wrong:
            with self.assertRaises(TypeError, msg=repr(tensor)) as caught:
                invar.hash_tensors({"fine": plain, "broken": tensor})
            self.assertIn("'broken'", str(caught.exception))
        for tensor in (Packed(plain, (2, -1)), Packed(plain, (24,), bits=12),
                       Packed(plain, (1 << 62, 9))):
            with self.assertRaises(invar.Error) as caught:
                self.one(tensor)
            self.assertEqual(caught.exception.status, "INVALID")
        big = (ctypes.c_float.__ctype_be__ * 2)(1, 2)
        with self.assertRaisesRegex(TypeError, "big-endian"):
            self.one(big)
        with self.assertRaises(ValueError):
            invar.hash_tensors({"x": plain}, kind="weights")

    def test_sets(self):
        a, b = array.array("f", [1]), array.array("f", [2])
        both = invar.hash_tensors({"a": a, "b": b}, threads=1)
        self.assertEqual(both.digest(), invar.hash_tensors([("b", b), ("a", a)]).digest())
        for other in ({"a": b, "b": a}, {"a": a, "c": b}, {"a": a},
                      {"a": a, "b": array.array("i", [0x40000000])}):
            self.assertNotEqual(both.digest(), invar.hash_tensors(other).digest())
        more = both + invar.hash_tensors({"model.layers.12.w": a}, prefix="old.")
        self.assertEqual([t.name for t in more], ["a", "b", "old.model.layers.12.w"])
        self.assertEqual([t.layer for t in more], [-1, -1, 12])
        self.assertEqual(len(invar.hash_tensors({})), 0)

    def test_sequences(self):
        """Items of a sequence are named by number, even if a tensor of two rows looks like a
        pair."""
        flat = array.array("f", range(4000))
        for rows in (1, 2, 4):
            x = memoryview(flat).cast("B").cast("f", (rows, 4000 // rows))
            y = array.array("q", range(rows))
            flat[1000] = 1
            for batch in ((x, y), [x, y], iter((x, y))):
                digests = invar.hash_tensors(batch, kind="data")
                self.assertEqual([(t.name, t.shape) for t in digests],
                                 [("0", (rows, 4000 // rows)), ("1", (rows,))])
                self.assertEqual(digests["0"].digest, self.one(x).digest)
            flat[1000] += 1
            self.assertNotEqual(digests.digest(), invar.hash_tensors((x, y)).digest())
        nested = invar.hash_tensors({"a": (y, {"mask": y}), "b": [("c", y)]})
        self.assertEqual([t.name for t in nested], ["a.0", "a.1.mask", "b.c"])
        for wrong in ({1: y}, {"a": {None: y}}, [(y, y), 7], {"a", "b"}, ("a", y), [1.0], None, 3):
            with self.assertRaises(TypeError, msg=repr(wrong)):
                invar.hash_tensors(wrong)

    def test_optimizers(self):
        class Optimizer:
            """Has the state of an optimizer of torch."""

            def state_dict(self):
                return {"state": {0: {"step": 3, "exp_avg": array.array("f", [1, 2]),
                                      "momentum_buffer": None},
                                  7: {"exp_avg": array.array("f", [3])}},
                        "param_groups": [{"lr": 0.5}]}

        digests = invar.hash_tensors(Optimizer(), kind="opt", prefix="adam.")
        self.assertEqual([(t.name, t.layer) for t in digests], [
            ("adam.state[0].step", -1), ("adam.state[0].exp_avg", -1),
            ("adam.state[7].exp_avg", -1)])
        self.assertEqual(digests["adam.state[0].step"].digest,
                         self.one(array.array("d", [3])).digest)


class Model:
    """Weights that steps change deterministically."""

    def __init__(self):
        self.weights = {"embed": array.array("f", [0.5] * 40),
                        "layers.1.w": array.array("f", range(30)),
                        "layers.2.w": array.array("d", range(20))}

    def state_dict(self):
        return self.weights

    def step(self, number):
        for weight in self.weights.values():
            for i, value in enumerate(weight):
                weight[i] = value * 0.75 + (i * 7 + number) % 5
        return sum(map(sum, self.weights.values()))


def train(run, steps=6, change=None, start=0, model=None, **options):
    """Writes a run; in the step `change`, one element of one weight differs."""
    model = model or Model()
    with invar.Ledger(FOLDER / run, config={"lr": 0.75, "model": {"layers": 2}}, **options) as it:
        for number in range(start, steps):
            loss = model.step(number)
            if number == change:
                model.weights["layers.2.w"][3] += 1
            it.step(loss=loss, metrics={"rollout/raw_reward": number / 3}, gauges={"speed": 9.0},
                    digests=invar.hash_tensors(model), batch=bytes([number]))
        return it.state()


class Ledgers(unittest.TestCase):
    """Writing and reading of ledgers."""

    def test_round_trip(self):
        state = train("a")
        with invar.read(FOLDER / "a") as run:
            steps = run.steps()
            self.assertEqual([row["step"] for row in steps], list(range(6)))
            self.assertEqual(steps[-1]["chain"], state["chain"])
            self.assertEqual(run.chain, state["chain"])
            self.assertEqual(steps[4]["rollout/raw_reward"], 4 / 3)
            self.assertGreater(steps[0]["train/loss"], 0)
            self.assertEqual(run.name, "a")
            self.assertEqual(run.config, {"lr": "0.75", "model.layers": "2"})
            self.assertEqual(run.facts["python.script"], str(pathlib.Path(__file__).resolve()))
            self.assertEqual(len(run.facts["build.binary"]), 32)
            self.assertIn("host.cpu", run.facts)
            digests = run.digests(5)
            self.assertEqual([row["name"] for row in digests],
                             ["embed", "layers.1.w", "layers.2.w"])
            self.assertEqual(digests[2]["dtype"], "f64")
            self.assertEqual(digests[2]["shape"], (20,))
            self.assertEqual(digests[2]["layer"], 2)
            self.assertTrue(run.verify(run.seal()))
            content = run.content
            run.report(FOLDER / "a" / "report.html")
            with self.assertRaises(invar.Error):
                run.report(FOLDER / "a" / "ledger.db")
        code, text = program("ledger", "verify", FOLDER / "a")
        self.assertEqual((code, content in text), (0, True), text)
        code, text = program("ledger", "show", FOLDER / "a")
        self.assertIn(state["chain"], text)
        code, text = program("ledger", "query", "metric-summary", FOLDER / "a")
        self.assertEqual((code, "train/loss" in text), (0, True), text)
        self.assertIn("<!DOCTYPE html>", (FOLDER / "a" / "report.html").read_text("utf-8"))

    def test_odd_numbers(self):
        odd = [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1e308]
        with invar.Ledger(FOLDER / "odd.db") as ledger:
            for value in odd:
                ledger.step(loss=value)
            ledger.evaluate("set", accuracy=-0.0, other=math.nan)
        with invar.read(FOLDER / "odd.db") as run:
            found = [row["train/loss"] for row in run.steps()]
            results = run.evaluations()
        self.assertEqual([struct.pack("d", x) for x in found],
                         [struct.pack("d", x) for x in odd])
        self.assertEqual([(row["dataset"], row["name"]) for row in results],
                         [("set", "accuracy"), ("set", "other")])
        self.assertEqual(math.copysign(1, results[0]["value"]), -1)

    def test_diff(self):
        train("d1")
        train("d2")
        train("d3", change=4)
        same, other = (invar.diff(FOLDER / "d1", FOLDER / x) for x in ("d2", "d3"))
        self.assertTrue(same.identical)
        self.assertIsNone(same.tensor)
        self.assertEqual((other.step, other.tensor, other.tensors), (4, "layers.2.w",
                                                                     ["layers.2.w"]))
        self.assertEqual(other.verdict, "nondeterministic")  # no recorded fact explains it
        self.assertIn("step 4, point layers.2.w", str(other))
        code, text = program("diff", FOLDER / "d1", FOLDER / "d2")
        self.assertEqual(code, 0, text)
        code, text = program("diff", FOLDER / "d1", FOLDER / "d3")
        self.assertEqual((code, "point layers.2.w" in text), (3, True), text)
        code, text = program("diff", FOLDER / "d1", FOLDER / "d3", "--json")
        self.assertEqual(json.loads(text)["culprit"], other.data["culprit"])

    def test_program(self):
        script = ("import array, invar, sys\n"
                  "w = array.array('f', [1, 2, 3])\n"
                  "with invar.Ledger(sys.argv[1]) as ledger:\n"
                  "    for step in range(3):\n"
                  "        w[1] += SUMMAND\n"
                  "        ledger.step(digests=invar.hash_tensors({'w': w}))\n")
        place = FOLDER / "program"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for run, summand in (("p1", "1"), ("p2", "1"), ("p3", "2")):
            (place / "train.py").write_text(script.replace("SUMMAND", summand), "utf-8")
            subprocess.run([sys.executable, place / "train.py", place / run], check=True,
                           env={**os.environ, "PYTHONPATH": str(built.PACKAGE)})
        self.assertTrue(invar.diff(place / "p1", place / "p2").identical)
        other = invar.diff(place / "p1", place / "p3")
        self.assertEqual((other.verdict, other.step, other.tensor), ("different", 0, "w"))
        self.assertIn("binary", [fact["key"] for fact in other.data["facts"]])

    def test_resume(self):
        whole = train("whole", steps=8)
        model = Model()
        state = train("halves", steps=5, model=model)
        self.assertEqual(state["step"], 4)
        with self.assertRaises(invar.Error) as caught:
            train("halves")
        self.assertIn("has a run already", str(caught.exception))
        wrong = {**state, "chain": "0" * 32}
        with self.assertRaises(invar.Error) as caught:
            train("halves", resume=wrong)
        self.assertEqual(caught.exception.status, "MISMATCH")
        self.assertEqual(train("halves", steps=8, start=5, model=model, resume=state), whole)
        self.assertTrue(invar.diff(FOLDER / "whole", FOLDER / "halves").identical)
        self.assertTrue(invar.verify(FOLDER / "halves"))

    def test_life(self):
        with self.assertRaisesRegex(ZeroDivisionError, "division"):
            with invar.Ledger(FOLDER / "fails") as ledger:
                ledger.step(loss=1)
                with self.assertRaises(invar.Error) as caught:
                    invar.Ledger(FOLDER / "fails")
                self.assertEqual(caught.exception.status, "BUSY")
                print(1 / 0)
        with self.assertRaisesRegex(invar.Error, "closed"):
            ledger.step(loss=2)
        with invar.read(FOLDER / "fails") as run:
            events = run.events()
        self.assertEqual((events[-1]["kind"], events[-1]["level"]), ("failure", "error"))
        self.assertIn("ZeroDivisionError", events[-1]["message"])
        code, text = program("ledger", "show", FOLDER / "fails")
        self.assertEqual((code, "exit code 2" in text), (0, True), text)
        killed = invar.Ledger(FOLDER / "killed")
        killed.step(loss=1)
        killed.close()
        code, text = program("ledger", "query", "dead-segments", FOLDER / "killed")
        self.assertEqual((code, "killed" in text), (0, True), text)

    def test_wrong_arguments(self):
        """A wrong argument gives a clear message and the status INVALID, and nothing is
        recorded."""
        with invar.Ledger(FOLDER / "arguments") as ledger:
            ledger.step(loss=1)
            for words, wrong in (
                    ("0 to 255", lambda: ledger.finish(300)),
                    ("0 to 255", lambda: ledger.finish(-1)),
                    ("an integer", lambda: ledger.finish("done")),
                    ("twice", lambda: ledger.step(loss=1, metrics={"train/loss": 2})),
                    ("twice", lambda: ledger.step(metrics={"loss": 1, "train/loss": 1})),
                    ("twice", lambda: ledger.step(gauges={"x": 1, "train/x": 1})),
                    ("twice", lambda: ledger.evaluate("d", {"a": 1}, a=1)),
                    ("is a dict", lambda: ledger.step(metrics=[1])),
                    ("hash_tensors", lambda: ledger.step({"w": 1})),
                    ("is a number", lambda: ledger.step(loss=[1])),
                    ("is a number", lambda: ledger.step(loss="0.5")),
                    ("is a number", lambda: ledger.step(loss=10 ** 400)),
                    ("with a Run", lambda: invar.read(FOLDER / "arguments").diff("a")),
                    ("is a text", lambda: ledger.note(1, "m")),
                    ("JSON", lambda: ledger.note("k", "m", data=object())),
                    ("path of a run", lambda: invar.Ledger("")),
                    ("path of a run", lambda: invar.read(None)),
                    ("is a dict", lambda: invar.Ledger(FOLDER / "none", config=[1])),
                    ("is a text", lambda: invar.Ledger(FOLDER / "none", kind=3)),
                    ("state()", lambda: invar.Ledger(FOLDER / "none", resume={})),
                    ("that no run has", lambda: invar.Ledger(
                        FOLDER / "none", resume={"step": 1, "chain": "ab"}))):
                with self.assertRaisesRegex(invar.Error, re.escape(words)) as caught:
                    wrong()
                self.assertEqual(caught.exception.status, "INVALID")
            self.assertEqual(ledger.last_step, 0)

    def test_a_forked_child_does_not_write(self):
        ledger = invar.Ledger(FOLDER / "forked")
        ledger.step(loss=1)
        child = os.fork()
        if child == 0:
            try:
                ledger.step(loss=2)
                os._exit(1)
            except invar.Error as error:
                ledger.close()  # must leave the file to the parent
                os._exit(0 if "fork" in str(error) and error.status == "STATE" else 2)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        ledger.step(loss=2)
        ledger.finish()
        self.assertEqual(len(invar.read(FOLDER / "forked").steps()), 2)
        self.assertTrue(invar.verify(FOLDER / "forked"))

    def test_points_may_change(self):
        with invar.Ledger(FOLDER / "points") as ledger:
            ledger.step(loss=1)
            ledger.step(digests=invar.hash_tensors({"a": b"1"}))
            ledger.step(digests=invar.hash_tensors({"a": b"12", "b": b"3"}))
            with self.assertRaisesRegex(invar.Error, "two points have the name"):
                ledger.step(digests=invar.hash_tensors([("a", b"1"), ("a", b"2")]))
            ledger.step(digests=invar.hash_tensors({"a": b"12", "b": b"3"}))
        with invar.read(FOLDER / "points") as run:
            self.assertEqual([len(run.digests(step)) for step in range(4)], [0, 1, 2, 2])
            for call in (run.digests, run.samples):
                with self.assertRaisesRegex(invar.Error, "no step 4; its steps are 0 to 3") as told:
                    call(4)
                self.assertEqual(told.exception.status, "NOTFOUND")
            self.assertTrue(run.verify())

    def test_reader_only_reads(self):
        train("reader")
        with invar.read(FOLDER / "reader") as run:
            self.assertEqual(run.sql("SELECT count(*) AS n FROM step"), [{"n": 6}])
            for statement in ("DELETE FROM step", "DROP TABLE step", "PRAGMA user_version = 9",
                              "ATTACH 'x' AS y", "SELECT 1; SELECT 2", "nonsense"):
                with self.assertRaises(invar.Error, msg=statement):
                    run.sql(statement)
            with self.assertRaisesRegex(invar.Error, "two columns have the name 'a'"):
                run.sql("SELECT 1 AS a, 2 AS b, 3 AS a")
            with self.assertRaisesRegex(invar.Error, "limit_ms is an integer"):
                run.sql("SELECT 1", limit_ms=1.5)
            with self.assertRaisesRegex(invar.Error, "time limit"):
                run.sql("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
                        "SELECT max(i) FROM n", limit_ms=50)
        with self.assertRaises(invar.Error) as caught:
            invar.read(FOLDER / "nowhere")
        self.assertEqual(caught.exception.status, "NOTFOUND")
        with self.assertRaises(invar.Error):
            invar.read(FOLDER / "reader", "another")

    def test_damage_is_found(self):
        train("damaged")
        with invar.read(FOLDER / "damaged") as run:
            seal = run.seal()
        data = bytearray((FOLDER / "damaged" / "ledger.db").read_bytes())
        at = data.index(b"rollout/raw_reward")
        data[at] ^= 0x20
        (FOLDER / "damaged" / "ledger.db").write_bytes(data)
        verdict = invar.verify(FOLDER / "damaged")
        self.assertFalse(verdict)
        self.assertGreater(verdict.bad, 0)
        self.assertNotEqual(verdict.first, "")
        with self.assertRaises(invar.Error) as caught:
            invar.verify(FOLDER / "a-other", seal)
        self.assertEqual(caught.exception.status, "NOTFOUND")
        train("sealed")
        with self.assertRaises(invar.Error) as caught:  # a run, but not that of the seal
            invar.verify(FOLDER / "sealed", seal)
        self.assertIn(caught.exception.status, ("MISMATCH", "NOTFOUND"))

    def test_hostile_texts(self):
        with self.assertRaisesRegex(invar.Error, "NUL"):
            invar.Ledger(FOLDER / "hostile", config={"a": "b\0c"})
        shutil.rmtree(FOLDER / "hostile", ignore_errors=True)
        with self.assertRaisesRegex(invar.Error, "control character"):
            invar.Ledger(FOLDER / "hostile", config={"a\x1b[2J": "b"})
        shutil.rmtree(FOLDER / "hostile", ignore_errors=True)
        with invar.Ledger(FOLDER / "hostile") as ledger:
            with self.assertRaises(invar.Error):
                ledger.step(metrics={"x" * 300: 1})
            with self.assertRaises(invar.Error):
                ledger.note("kind", "message", level="shout")
            with self.assertRaisesRegex(invar.Error, "train/loss is a number"):
                ledger.step(loss="much")
            ledger.step(metrics={"größe/µ": 1})
        with invar.read(FOLDER / "hostile") as run:
            self.assertEqual(run.steps()[0]["größe/µ"], 1.0)


class Library(unittest.TestCase):
    """The shared library."""

    def test_is_found_or_said(self):
        result = subprocess.run([sys.executable, "-c", "import invar"], capture_output=True,
                                text=True, check=False, env={
                                    **os.environ, "PYTHONPATH": str(built.PACKAGE),
                                    "INVAR_LIBRARY": str(FOLDER / "none.so")})
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("pip install ./python", result.stderr)

    def test_other_interface_is_refused(self):
        source, library = FOLDER / "other.c", FOLDER / "other.so"
        # another interface, and too small a number
        for abi, words in ((999, "interface 999"), (2, "one tree")):
            source.write_text(f"int invar_api_abi(void) {{ return {abi}; }}\n", "utf-8")
            subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
            result = subprocess.run([sys.executable, "-c", "import invar"], capture_output=True,
                                    text=True, check=False, env={
                                        **os.environ, "PYTHONPATH": str(built.PACKAGE),
                                        "INVAR_LIBRARY": str(library)})
            self.assertIn("ImportError", result.stderr)
            self.assertIn(words, result.stderr)


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    sys.dont_write_bytecode = True
    unittest.main(argv=sys.argv[:1])
