#!/usr/bin/env python3
# life.py INVAR LIBRARY FOLDER - the life of runs: how they end, resume, and are shared by threads.
#
# Exceptions of every kind leave the block of a Ledger unchanged. A diff reports configs, facts, and
# what a run has not recorded. States of another past are rejected.
# SPDX-License-Identifier: Apache-2.0
"""Tests of the package invar: ends, resumption, threads, configs and facts."""
import array
import copy
import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import threading
import unittest
import unittest.mock
import warnings

import built

INVAR, LIBRARY, FOLDER = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
built.use(LIBRARY)

import invar  # noqa: E402  pylint: disable=wrong-import-position

def weights(value):
    return invar.hash_tensors({"w": array.array("f", [value])})


class Ends(unittest.TestCase):
    """An exception leaves the block unchanged and is recorded."""

    def left(self, name, error):
        """Returns how the run ended, and its events."""
        with self.assertRaises(type(error)) as caught:
            with invar.Ledger(FOLDER / name) as ledger:
                ledger.step(loss=1)
                raise error
        self.assertIs(caught.exception, error)
        with invar.read(FOLDER / name) as run:
            ends = run.sql("SELECT exit_code, reason FROM finish")
            return (ends[0]["exit_code"], ends[0]["reason"]) if ends else None, run.events()

    def test_any_message(self):
        for i, (text, recorded) in enumerate((
                ("\x1b[31mred", "ValueError: \\x1b[31mred"), ("a\0b", "ValueError: a\\x00b"),
                ("\ud800", "ValueError: \\ud800"), ("two\nlines\u2028", "ValueError: two lines"),
                ("größe", "ValueError: größe"), ("x" * 3000000, "ValueError: " + "x" * 1988))):
            end, events = self.left(f"message{i}", ValueError(text))
            self.assertEqual(end, (2, "failure"))
            self.assertEqual((events[-1]["kind"], events[-1]["message"]), ("failure", recorded))

    def test_exits(self):
        for code, end in ((0, (0, "exit")), (None, (0, "exit")), (3, (3, "failure")),
                          (256 + 7, (7, "failure")), ("words", (1, "failure"))):
            found, events = self.left(f"exit{code}", SystemExit(code))
            self.assertEqual(found, end)
            self.assertEqual(len(events), end[0] != 0)
        self.assertEqual(self.left("ctrl-c", KeyboardInterrupt()), ((130, "interrupted"), []))

    def test_what_cannot_be_recorded(self):
        """An exception that cannot be recorded is raised all the same."""
        for action in ("always", "error"):
            with warnings.catch_warnings(record=True) as said, self.assertRaises(ZeroDivisionError):
                warnings.simplefilter(action)
                with invar.Ledger(FOLDER / f"unrecorded-{action}") as ledger:
                    ledger.note = lambda *_, **__: [][1]
                    print(1 / 0)
            self.assertEqual(len(said), action == "always")

    def test_errors_travel(self):
        """Errors can be pickled and copied."""
        with self.assertRaises(invar.Error) as caught:
            invar.read(FOLDER / "nowhere")
        for other in (pickle.loads(pickle.dumps(caught.exception)), copy.copy(caught.exception)):
            self.assertEqual((type(other), other.status, str(other)),
                             (invar.Error, "NOTFOUND", str(caught.exception)))

    def test_no_folder(self):
        (FOLDER / "file").write_text("x", "utf-8")
        for path in (FOLDER / "file", FOLDER / "file" / "x", "/proc/nothing/x"):
            with self.assertRaisesRegex(invar.Error, "cannot be made") as caught:
                invar.Ledger(path)
            self.assertEqual(caught.exception.status, "IO")


class Resumption(unittest.TestCase):
    """A run resumes from its own past with its own config."""

    @staticmethod
    def continue_run(name, losses, resume=None, **options):
        with invar.Ledger(FOLDER / name, resume=resume, **options) as ledger:
            states = []
            for loss in losses:
                ledger.step(weights(loss), loss=loss)
                states.append(ledger.state())
            return states

    def test_abandoned_steps(self):
        first = self.continue_run("ways", range(5))
        other = self.continue_run("ways", [99], first[2])
        for step in (3, 4):
            words = f"step {step} is abandoned.* another step 3"
            with self.assertRaisesRegex(invar.Error, words) as caught:
                self.continue_run("ways", [], first[step])
            self.assertEqual(caught.exception.status, "STATE")
        self.continue_run("ways", [2], first[1])  # a repeated step is not another one
        with self.assertRaisesRegex(invar.Error, "abandoned"):
            self.continue_run("ways", [], first[4])
        self.assertEqual(self.continue_run("ways", [4], other[0])[0]["step"], 4)

    def test_repeated_steps(self):
        """Steps that were repeated with the same bits leave later ones unchanged."""
        first = self.continue_run("again", range(5))
        self.continue_run("again", [3], first[2])
        self.continue_run("again", [], first[1])
        self.assertEqual(self.continue_run("again", [5], first[4])[0]["step"], 5)
        with invar.read(FOLDER / "again") as run:
            self.assertEqual([row["train/loss"] for row in run.steps()], [0, 1, 2, 3, 4, 5])

    def test_what_a_run_keeps(self):
        config = {"lr": 0.5, "model": {"layers": 2}}
        state = self.continue_run("kept", [1], config=config, run="mine", kind="eval")[0]
        for words, options in (
                ("config lr was '0.5' and is '5'", {"config": {**config, "lr": 5}}),
                ("config extra was None and is '1'", {"config": {**config, "extra": 1}}),
                ("config lr was '0.5' and is None", {"config": {}}),
                ("run was 'mine' and is 'other'", {"run": "other"}),
                ("kind was 'eval' and is 'train'", {"kind": "train"})):
            with self.assertRaisesRegex(invar.Error, words) as caught:
                self.continue_run("kept", [], state, **options)
            self.assertEqual(caught.exception.status, "MISMATCH")
        with invar.Ledger(FOLDER / "kept", resume=state) as ledger:
            self.assertEqual(ledger.name, "mine")
        self.continue_run("kept", [2], state, config=config, run="mine", kind="eval")


class Configs(unittest.TestCase):
    """Texts of values are the same in every process; facts describe this one."""

    def test_values(self):
        class Odd:
            """Has a text that contains its address."""

        with invar.Ledger(FOLDER / "config", config={
                "set": {"b", "a", "c"}, "sets": [{3, 1, 2}], "path": pathlib.Path("x"),
                "none": None, "list": [1, (2.5, True)]}):
            pass
        with invar.read(FOLDER / "config") as run:
            self.assertEqual(run.config, {
                "set": '["a", "b", "c"]', "sets": "[[1, 2, 3]]", "path": '"x"', "none": "null",
                "list": "[1, [2.5, true]]"})
        itself = {}
        itself["it"] = itself
        for wrong in ({"a": Odd()}, {"a": [Odd()]}, {"a": {"b": lambda: 0}}, {"a": {Odd()}}, itself,
                      {"a": [{(1, 2): 3}]}):
            with self.assertRaises(invar.Error, msg=repr(wrong)) as caught:
                invar.Ledger(FOLDER / "refused", config=wrong)
            self.assertEqual(caught.exception.status, "INVALID")
        self.assertFalse((FOLDER / "refused").exists())

    def test_circumstances(self):
        """Settings that often change the bits of libraries are facts, and a diff shows them."""
        place = FOLDER / "facts"
        place.mkdir()
        (place / "torch.py").write_text(
            "import os\n"
            "def get_num_threads(): return int(os.environ['OMP_NUM_THREADS'])\n"
            "def are_deterministic_algorithms_enabled(): raise RuntimeError('not here')\n"
            "class Tensor: pass\n", "utf-8")
        (place / "train.py").write_text(
            "import sys, torch, invar\n"
            "with invar.Ledger(sys.argv[1]) as ledger: ledger.step(loss=torch.get_num_threads())\n",
            "utf-8")
        for number in ("1", "2"):
            subprocess.run([sys.executable, place / "train.py", place / number, "an argument"],
                           check=True, env={**os.environ, "OMP_NUM_THREADS": number,
                                            "PYTHONPATH": str(built.PACKAGE)})
        with invar.read(place / "1") as one, invar.read(place / "2") as two:
            self.assertEqual(one.facts["torch.threads"], "1")
            self.assertEqual(one.facts["env.OMP_NUM_THREADS"], "1")
            self.assertEqual(one.facts["python.arguments"], f"{place / '1'} 'an argument'")
            self.assertNotIn("torch.deterministic", one.facts)
            found = one.diff(two)
        self.assertEqual(found.verdict, "nondeterministic")
        differ = {f"{fact['scope']}.{fact['key']}" for fact in found.data["facts"]}
        self.assertLessEqual({"torch.threads", "env.OMP_NUM_THREADS"}, differ)

    def test_not_recorded(self):
        """A diff makes no statement about batches that one or both sides have not recorded."""
        for name, value, batch in (("plain", 1, None), ("other", 2, None), ("batch", 2, b"1"),
                                   ("same", 3, b"1"), ("data", 3, b"2")):
            with invar.Ledger(FOLDER / "recorded" / name) as ledger:
                for step in range(3):
                    ledger.step(weights(value + step), batch=batch and batch + bytes([step]))
        for a, b, expected in (("plain", "other", None), ("plain", "batch", None),
                               ("batch", "same", True), ("batch", "data", False)):
            a, b = FOLDER / "recorded" / a, FOLDER / "recorded" / b
            found = invar.diff(a, b).data
            self.assertEqual((found["same_batch"], found["same_rng"]), (expected, None))
            text = subprocess.run([INVAR, "diff", a, b], capture_output=True, text=True,
                                  check=False).stdout
            word = {None: "not recorded", True: "yes", False: "no"}[expected]
            self.assertIn(f"same data: {word}, same random numbers: not recorded", text)
        for query in ("repeated-batch", "rng-reuse"):
            text = subprocess.run([INVAR, "ledger", "query", query, FOLDER / "recorded" / "plain",
                                   "--json"], capture_output=True, text=True, check=True).stdout
            self.assertEqual(json.loads(text), [], query)


class Threads(unittest.TestCase):
    """Several threads share one object: calls run one after another, and close() waits for them."""

    def test_readers(self):
        with invar.Ledger(FOLDER / "threads") as ledger:
            for step in range(20):
                ledger.step(weights(step), loss=step)
        failed = []

        def work(run, other):
            try:
                for _ in range(5):
                    assert len(run.steps()) == 20 and run.verify() and run.content
                    assert run.diff(other).identical and run.diff(run).identical
            except BaseException as error:  # pylint: disable=broad-except
                failed.append(error)

        with invar.read(FOLDER / "threads") as one, invar.read(FOLDER / "threads") as two:
            threads = [threading.Thread(target=work, args=pair)
                       for pair in ((one, two), (two, one)) * 3]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(failed, [])

    def test_close_waits(self):
        """A statement reads its first value only after another thread has asked to close."""
        with invar.Ledger(FOLDER / "closing") as ledger:
            ledger.step(loss=1)
        run = invar.read(FOLDER / "closing")
        reading, closing = threading.Event(), threading.Event()
        found = []
        # pylint: disable=protected-access
        lock, cell = run._lock, invar.ledger._cell

        class Announced:
            """Announces close() when it is about to wait for the lock of the run."""

            def __enter__(self):
                if reading.is_set():
                    closing.set()
                return lock.__enter__()

            def __exit__(self, *failure):
                return lock.__exit__(*failure)

        def read_late(value):
            reading.set()
            found.append(closing.wait(60))
            return cell(value)

        thread = threading.Thread(target=lambda: found.append(run.sql("SELECT 7 AS last")))
        run._lock = Announced()
        with unittest.mock.patch.object(invar.ledger, "_cell", read_late):
            thread.start()
            reading.wait()
            run.close()
            thread.join()
        self.assertEqual(found, [True, [{"last": 7}]])
        with self.assertRaisesRegex(invar.Error, "closed"):
            run.steps()


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    unittest.main(argv=sys.argv[:1])
