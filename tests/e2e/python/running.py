#!/usr/bin/env python3
# running.py INVAR LIBRARY FOLDER - train, generate and score from Python, with a tiny model.
# SPDX-License-Identifier: Apache-2.0
"""Tests of invar.train, invar.generate and invar.score."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest

import built

INVAR, FOLDER = sys.argv[1], pathlib.Path(sys.argv[3])
built.use(sys.argv[2], INVAR)

import tiny  # noqa: E402  pylint: disable=wrong-import-position
import invar  # noqa: E402  pylint: disable=wrong-import-position


class Running(unittest.TestCase):
    """Calls that run the program."""

    def setUp(self):
        self.recipe = FOLDER / "tiny.ini"
        self.recipe.write_text(tiny.recipe(2), "utf-8")

    def test_train(self):
        chains = set()
        for run, threads in (("one", 1), ("two", 2)):
            with invar.train(self.recipe, run=FOLDER / run, threads=threads) as trained:
                chains.add(trained.chain)
                self.assertEqual(len(trained.steps()), 2)
                self.assertTrue(trained.verify())
        self.assertEqual(len(chains), 1)
        self.assertTrue(invar.diff(FOLDER / "one", FOLDER / "two").identical)
        with invar.train(self.recipe, run=FOLDER / "other", rollout_seed=9) as trained:
            self.assertNotIn(trained.chain, chains)  # control

    def test_generate_and_score(self):
        made = invar.generate(["12=", "3"], self.recipe, n=2)
        self.assertEqual([one["prompt"] for one in made], [0, 0, 1, 1])
        for mode in ("train", "prefill", "decode"):
            scored = invar.score([one["tokens"] for one in made], self.recipe, mode=mode)
            for one, other in zip(made, scored):
                self.assertEqual(one["bits"], other["bits"][-len(one["bits"]):])
        other = invar.score([made[0]["tokens"]], self.recipe, seed=99)  # control: other weights
        self.assertNotEqual(other[0]["bits"][-2:], made[0]["bits"])

    def test_any_text(self):
        """A text may contain characters that Python treats as the end of a line."""
        texts = ["a\u2028b\u0085c", "\x0b\x0c\x1c\r", "\u2029"]
        made = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
        try:
            os.environ["INVAR_PROGRAM"] = self.program(
                "lines", f"sys.stdout.buffer.write({made.encode()!r})")
            self.assertEqual([one["text"] for one in invar.generate(["x"])], texts)
            os.environ["INVAR_PROGRAM"] = self.program("words", "print('{')")
            with self.assertRaisesRegex(invar.Error, "no JSON") as caught:
                invar.generate(["x"])
            self.assertEqual(caught.exception.status, "EXIT")
        finally:
            os.environ["INVAR_PROGRAM"] = INVAR

    @staticmethod
    def program(name, *lines):
        """Writes a script that stands for `invar`. Returns its path."""
        path = FOLDER / name
        path.write_text("\n".join((f"#!{sys.executable}", "import sys", *lines)) + "\n", "utf-8")
        path.chmod(0o755)
        return str(path)

    def test_interrupt(self):
        """Ctrl-C lets the program save and end, also if both processes get the signal."""
        recipe = FOLDER / "long.ini"
        recipe.write_text(tiny.recipe(100000), "utf-8")
        script = ("import sys, invar\n"
                  "try:\n"
                  "    invar.train(sys.argv[1], run=sys.argv[2])\n"
                  "except KeyboardInterrupt:\n"
                  "    print('interrupted')\n")
        for name, send in (("alone", os.kill), ("together", os.killpg)):
            run = FOLDER / name
            with subprocess.Popen(
                    [sys.executable, "-c", script, recipe, run], stdout=subprocess.PIPE, text=True,
                    start_new_session=True,
                    env={**os.environ, "PYTHONPATH": str(built.PACKAGE)}) as process:
                try:
                    until = time.monotonic() + 60
                    while time.monotonic() < until and not self.steps(run):
                        time.sleep(0.1)
                    send(process.pid, signal.SIGINT)
                    self.assertEqual(process.communicate(timeout=60)[0], "interrupted\n")
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
            with invar.read(run) as ended:
                self.assertEqual(ended.sql("SELECT exit_code FROM finish"), [{"exit_code": 130}])
                self.assertGreater(len(ended.sql("SELECT step FROM checkpoint")), 0)

    @staticmethod
    def steps(run):
        try:
            with invar.read(run) as opened:
                return len(opened.steps())
        except invar.Error:
            return 0

    def test_errors(self):
        for call, words in (
                (lambda: invar.train(self.recipe, run=FOLDER / "bad", no_key=1), "no-key"),
                (lambda: invar.train(FOLDER / "none.ini", run=FOLDER / "bad"), "none.ini"),
                (lambda: invar.generate(["\u00e9"], self.recipe), "alphabet"),
                (lambda: invar.score([[1, 9999]], self.recipe), "this model's tokens are 0 to 12")):
            with self.assertRaises(invar.Error) as caught:
                call()
            self.assertEqual(caught.exception.status, "EXIT")
            self.assertIn(words, str(caught.exception))
        for tokens in ([[1.0, 2.9]], ["12"], [[1, "2"]], [7], [None]):
            with self.assertRaises(invar.Error, msg=repr(tokens)) as caught:
                invar.score(tokens, self.recipe)
            self.assertEqual(caught.exception.status, "INVALID")
        os.environ["INVAR_PROGRAM"] = str(FOLDER / "nothing")
        try:
            with self.assertRaisesRegex(invar.Error, "cannot be run"):
                invar.score([[1, 2]], self.recipe)
        finally:
            os.environ["INVAR_PROGRAM"] = INVAR


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    unittest.main(argv=sys.argv[:1])
