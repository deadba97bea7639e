#!/usr/bin/env python3
# running.py INVAR LIBRARY FOLDER - train, generate and score from Python, with a tiny model.
# SPDX-License-Identifier: Apache-2.0
"""Tests of invar.train, invar.generate and invar.score."""
import os
import pathlib
import shutil
import sys
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
            self.assertNotIn(trained.chain, chains)  # the control

    def test_generate_and_score(self):
        made = invar.generate(["12=", "3"], self.recipe, n=2)
        self.assertEqual([one["prompt"] for one in made], [0, 0, 1, 1])
        for mode in ("train", "prefill", "decode"):
            scored = invar.score([one["tokens"] for one in made], self.recipe, mode=mode)
            for one, other in zip(made, scored):
                self.assertEqual(one["bits"], other["bits"][-len(one["bits"]):])
        other = invar.score([made[0]["tokens"]], self.recipe, seed=99)  # other weights
        self.assertNotEqual(other[0]["bits"][-2:], made[0]["bits"])

    def test_errors(self):
        for call, words in (
                (lambda: invar.train(self.recipe, run=FOLDER / "bad", no_key=1), "no-key"),
                (lambda: invar.train(FOLDER / "none.ini", run=FOLDER / "bad"), "none.ini"),
                (lambda: invar.generate(["\u00e9"], self.recipe), "alphabet"),
                (lambda: invar.score([[1, 9999]], self.recipe), "token 1 is no number")):
            with self.assertRaises(invar.Error) as caught:
                call()
            self.assertEqual(caught.exception.status, "EXIT")
            self.assertIn(words, str(caught.exception))
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
