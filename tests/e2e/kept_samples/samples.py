#!/usr/bin/env python3
# samples.py INVAR LIBRARY FOLDER - the texts of kept samples in Python and in SQL.
#
# A run of a model with a real tokenizer has hostile prompts and labels. Run.samples and the view
# sample_texts are compared with the rollout file of the run. Damaged and missing samples must be
# reported. The example of docs/ledger.md runs.
# SPDX-License-Identifier: Apache-2.0
"""Tests of Run.samples, sample_texts and sample_text."""
import gzip
import json
import math
import os
import pathlib
import shutil
import sqlite3
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
INVAR, FOLDER = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[3])
sys.path[:0] = [str(ROOT / "tests/e2e/python"), str(ROOT / "tests/e2e/tutorial")]

import built  # noqa: E402  pylint: disable=wrong-import-position
import tutorial  # noqa: E402  pylint: disable=wrong-import-position

built.use(sys.argv[2], str(INVAR))
# tables are lists of dicts; tests/e2e/python/libraries.py tests pandas
sys.modules["pandas"] = None

import invar  # noqa: E402  pylint: disable=wrong-import-position

HOSTILE = ["it's \"quoted\"; DROP TABLE run; --", "</script><b>&amp;<!--", "\u202etxt.exe",
           "tab\tand\nlines\r", "\x1b[2Jä\U0001f600", "%s%n{}[]\\u0041"]
GOOD = {"group": 3, "label": "a\0b", "prompt": "p\0", "prompt_tokens": [1], "tokens": [2, 3],
        "response": ["x", "\0y"], "logp": [-0.5, None], "advantage": [1, 2], "drawn": [1, 0]}


def program(*arguments, code=0):
    """Returns the output of the program, which must end with this exit code."""
    done = subprocess.run([INVAR, *arguments], cwd=FOLDER, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, check=False)
    if done.returncode != code:
        raise AssertionError(f"{arguments}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout + (done.stderr if code else "")


def sql(run, statement):
    """Returns the rows of a statement, as the program prints them."""
    return json.loads(program("ledger", "sql", statement, run, "--json"))


def replaced(name, *changes):
    """Makes a copy of the run in which a kept sample has other bytes, or is missing."""
    (FOLDER / name).mkdir()
    shutil.copy(FOLDER / "run/ledger.db", FOLDER / name / "ledger.db")
    with sqlite3.connect(FOLDER / name / "ledger.db") as base:
        triggers = base.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'")
        for trigger, text in triggers.fetchall():
            base.execute(f"DROP TRIGGER {trigger}")
            changes += (text,)
        for change in changes:
            base.execute(*(change if isinstance(change, tuple) else (change,)))
    return name


def changed(data, step=0, idx=1):
    """Returns the statement that gives a sample these bytes."""
    return "UPDATE kept_sample SET data = ? WHERE step = ? AND idx = ?", (data, step, idx)


class Samples(unittest.TestCase):
    """One run, and copies of it."""

    @classmethod
    def setUpClass(cls):
        shutil.rmtree(FOLDER, ignore_errors=True)
        tutorial.make_model(FOLDER / "model")
        with open(FOLDER / "data.jsonl", "w", encoding="utf-8") as lines:
            for text in HOSTILE:
                lines.write(json.dumps({"ask": text, "answer": text[::-1]}) + "\n")
        (FOLDER / "run.ini").write_text(
            "[model]\nhf-checkpoint = model\ndtype = fp32\n"
            "[rollout]\nprompt-data = data.jsonl\ninput-key = ask\nlabel-key = answer\n"
            "rm-type = f1\nnum-rollout = 2\nrollout-batch-size = 3\nn-samples-per-prompt = 2\n"
            "rollout-max-response-len = 4\n[perf]\nthreads = 1\n[engine]\nnumerics = ieee\n"
            "keep-samples = 256\nsave-debug-rollout-data = {rollout_id}.jsonl\n", "utf-8")
        program("train", "run.ini", "--run", "run")

    def test_is_what_was_sampled(self):
        rows = {(row["step"], row["sample"]): row for row in self.samples("run")}
        self.assertEqual(len(rows), 12)
        self.assertEqual({row["label"][::-1] for row in rows.values()}, set(HOSTILE))
        for step in range(2):
            for idx, was in enumerate(invar.read_rollout(FOLDER / f"{step}.jsonl").samples):
                row = rows[step, idx]
                said = [text for text, drawn in zip(row["pieces"], row["drawn"]) if drawn]
                self.assertEqual(row["prompt"], was.prompt_text)
                self.assertEqual(row["label"], was.label)
                self.assertEqual(row["response"], "".join(said))
                self.assertIn(was.response, row["response"])
                self.assertEqual(row["prompt_tokens"] + row["tokens"], list(was.tokens))
                self.assertEqual((row["group"], row["line"]), (was.group, was.prompt))
                self.assertEqual((row["reward"], row["finish"]), (was.reward, was.finish))
                for a, b in zip(row["logp"], was.logprobs, strict=True):
                    self.assertAlmostEqual(a, b, places=6)

    @staticmethod
    def samples(run, *arguments, **options):
        """Returns the samples of a run."""
        with invar.read(FOLDER / run) as opened:
            return opened.samples(*arguments, **options)

    def test_sql(self):
        texts = sql("run", "SELECT * FROM sample_texts ORDER BY step, idx")
        for text, row in zip(texts, self.samples("run"), strict=True):
            self.assertEqual([text[name] for name in ("line", "reward", "response", "label")],
                             [row[name] for name in ("line", "reward", "response", "label")])
            self.assertEqual((text["prompt"], text["damage"]), (row["prompt"], None))
            self.assertEqual(text["tokens"], len(row["tokens"]))
        with invar.read(FOLDER / "run") as run:
            self.assertEqual(run.sql("SELECT count(*) AS n FROM sample_texts WHERE label = "
                                     f"'{HOSTILE[1][::-1]}'")[0]["n"], 2)
            self.assertEqual(run.sql("SELECT sample_text(NULL, 'label') AS x")[0]["x"], None)
        for wrong in ("sample_text(data, 'text')", "sample_text(data, NULL)",
                      "sample_text('a', 'json')", "sample_text(7, 'json')", "sample_text(data)"):
            said = program("ledger", "sql", f"SELECT {wrong} FROM kept_samples", "run", code=129)
            self.assertIn("sample_text", said)
        printed = program("ledger", "sql", "SELECT prompt, label FROM sample_texts", "run")
        self.assertNotIn("\x1b", printed)
        self.assertNotIn("\u202e", printed)

    def test_long_label(self):
        """A long label is cut between two characters, to leave room for other samples."""
        with open(FOLDER / "long.jsonl", "w", encoding="utf-8") as lines:
            for label in ("y" * 4096, "x" + "ä" * 3000, "\U0001f600" * 1025):
                lines.write(json.dumps({"ask": "?", "answer": label}) + "\n")
        program("train", "run.ini", "--run", "long", "--prompt-data", "long.jsonl",
                "--num-rollout", "1", "--save-debug-rollout-data", "")
        kept = {row["label"]: json.loads(row["json"]).get("label_bytes") for row in sql(
            "long", "SELECT sample_text(data, 'label') AS label, sample_text(data, 'json') AS json "
            "FROM kept_samples")}
        self.assertEqual(kept, {"y" * 4096: None, "x" + "ä" * 2047: 6001,
                                "\U0001f600" * 1024: 4100})
        self.assertEqual({row["label"]: row["label_bytes"] for row in self.samples("long")}, kept)

    def test_steps(self):
        self.assertEqual({row["step"] for row in self.samples("run", 1)}, {1})
        self.refused("NOTFOUND", "the run has no step 7; its steps are 0 to", "run", 7)
        self.refused("INVALID", "a step", "run", -1)

    def refused(self, status, text, run, *arguments):
        with self.assertRaisesRegex(invar.Error, text) as caught:
            self.samples(run, *arguments)
        self.assertEqual(caught.exception.status, status)

    def test_any_text(self):
        name = replaced("nul", changed(gzip.compress(json.dumps(GOOD).encode())))
        row = next(row for row in self.samples(name, 0) if row["sample"] == 1)
        self.assertEqual((row["group"], row["label"], row["prompt"]), (3, "a\0b", "p\0"))
        self.assertEqual((row["response"], row["pieces"]), ("x\0y", ["x", "\0y"]))
        self.assertTrue(math.isnan(row["logp"][1]))
        self.assertEqual((row["logp"][0], row["drawn"]), (-0.5, [1, 0]))
        text = sql(name, "SELECT prompt, response, label FROM sample_texts WHERE step = 0 AND "
                   "idx = 1")[0]
        self.assertEqual(text, {"prompt": "p\0", "response": "x\0y", "label": "a\0b"})
        old = {key: value for key, value in GOOD.items() if key not in ("group", "label")}
        name = replaced("old", changed(gzip.compress(json.dumps(old).encode())))
        row = next(row for row in self.samples(name, 0) if row["sample"] == 1)
        self.assertEqual((row["group"], row["label"]), (None, None))

    def test_damage(self):
        cases = {"bytes": b"\x1f\x8bnothing", "plain": json.dumps(GOOD).encode(), "empty": b"",
                 "bomb": gzip.compress(bytes(17 << 20)),
                 "utf8": gzip.compress(b'{"prompt":"\xff"}'),
                 "surrogate": gzip.compress(json.dumps({**GOOD, "prompt": "\ud800"}).encode()),
                 "nan": gzip.compress(json.dumps({**GOOD, "logp": [math.nan, 1]}).encode())}
        for key, value in (("tokens", [1]), ("tokens", [1, 2.5]), ("prompt_tokens", "1"),
                           ("label", 7), ("label_bytes", "7"), ("group", []),
                           ("drawn", [True, False]), ("prompt", None)):
            cases[f"{key}-{value}"] = gzip.compress(json.dumps({**GOOD, key: value}).encode())
        for number, (what, data) in enumerate(cases.items()):
            with self.subTest(what):
                name = replaced(f"damaged-{number}", changed(data))
                self.refused("CORRUPT", "sample 1 of step 0 is no .*skip_damaged", name)
                self.assertEqual(len(self.samples(name, skip_damaged=True)), 11)
                bad = sql(name, "SELECT * FROM sample_texts WHERE damage IS NOT NULL")
                self.assertEqual([(one["step"], one["idx"]) for one in bad], [(0, 1)])
                self.assertEqual((bad[0]["prompt"], bad[0]["response"], bad[0]["label"]),
                                 (None, None, None))
                self.assertEqual(bad[0]["finish"], "length")

    def test_absent(self):
        program("train", "run.ini", "--run", "none", "--keep-samples", "0",
                "--save-debug-rollout-data", "")
        self.refused("NOTFOUND", "keep-samples = 0", "none")
        self.assertEqual(sql("none", "SELECT * FROM sample_texts"), [])
        program("ledger", "backup", "run", "--out", "short.db", "--keep-last", "0")
        self.refused("NOTFOUND", "left out of this copy", "short.db")
        name = replaced("removed", "DELETE FROM kept_sample WHERE step = 0 AND idx = 1")
        self.assertEqual(len(self.samples(name)), 11)
        name = replaced("alone", "DELETE FROM sample WHERE step = 0 AND idx = 1")
        row = next(row for row in self.samples(name) if (row["step"], row["sample"]) == (0, 1))
        self.assertEqual((row["reward"], row["line"]), (None, None))

    def test_parts(self):
        name = replaced("parts", "INSERT INTO series(series, name) VALUES(900, 'form')",
                        "INSERT INTO reward_part VALUES(1, 0, 0, 1, 900, 4602678819172646912, 0.5, "
                        "0)")
        rows = {(row["step"], row["sample"]): row for row in self.samples(name)}
        self.assertEqual(rows[0, 1]["reward/form"], 0.5)
        self.assertNotIn("reward/form", rows[0, 0])

    def test_example_of_the_page(self):
        """The commands and their output, as docs/ledger.md prints them."""
        blocks = tutorial.blocks(ROOT / "docs/ledger.md")
        _, name, text = next(block for block in blocks if "sample_texts" in block[2])
        self.assertIsNone(name)
        *commands, output = text.replace("\\\n", "").split("$ ")[1:]
        command, _, output = output.partition("\n")
        environment = {**os.environ, "PATH": f"{FOLDER}/bin:{os.environ['PATH']}"}
        (FOLDER / "bin").mkdir()
        (FOLDER / "bin/invar").symlink_to(INVAR)
        (FOLDER / "recipes").symlink_to(ROOT / "recipes")
        printed = ""
        for line in [*commands, command]:
            printed = subprocess.run(["bash", "-c", line], cwd=FOLDER, env=environment, text=True,
                                     stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                     check=True).stdout
        self.assertEqual([line.rstrip() for line in printed.splitlines()],
                         [line.rstrip() for line in output.splitlines()])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
