#!/usr/bin/env python3
# trainer.py FOLDER - the callback in a stock Trainer: logs, evaluations, checkpoints, faults.
# SPDX-License-Identifier: Apache-2.0
"""Tests of invar.huggingface with a stock Trainer."""
import gc
import pathlib
import shutil
import subprocess
import sys
import unittest

import torch
import transformers

import invar
from invar.huggingface import LedgerCallback

FOLDER = pathlib.Path(sys.argv[1])
transformers.logging.set_verbosity_error()


class Counting(torch.utils.data.Dataset):
    """Sequences n, n + 1, n + 2, ... of tokens."""

    def __init__(self, first=0):
        self.first = first

    def __len__(self):
        return 32

    def __getitem__(self, index):
        ids = (torch.arange(index, index + 8) + self.first) % 64
        return {"input_ids": ids, "labels": ids}


class Fault(transformers.TrainerCallback):
    """Raises an exception at the end of a step."""

    def __init__(self, step, error):
        self.step, self.error = step, error

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step - 1 == self.step:
            raise self.error


def trainer(ledger, *others, first=0, evaluated=None, **options):
    """Returns a Trainer of a tiny model."""
    transformers.set_seed(7)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=16))
    arguments = {"output_dir": str(FOLDER / "out"), "max_steps": 6, "report_to": [],
                 "per_device_train_batch_size": 2, "learning_rate": 1e-2, "logging_steps": 1,
                 "save_strategy": "no", "use_cpu": True, "disable_tqdm": True, **options}
    return transformers.Trainer(model=model, args=transformers.TrainingArguments(**arguments),
                                train_dataset=Counting(first), eval_dataset=evaluated,
                                callbacks=[ledger, *others])


def train(name, *others, resume=None, **options):
    """Trains a run in FOLDER/NAME."""
    with LedgerCallback(FOLDER / name) as ledger:
        trainer(ledger, *others, **options).train(resume_from_checkpoint=resume)
    return FOLDER / name


def numbers(run):
    with invar.read(run) as opened:
        return list(opened.steps()["step"])


class Callback(unittest.TestCase):
    """The callback changes nothing else of a script."""

    def test_logging_is_part_of_the_identity(self):
        base = train("base")
        again = train("again", save_strategy="steps", save_steps=2)
        self.assertTrue(invar.diff(base, again).identical)
        for name, options in (("three", {"logging_steps": 3}), ("no", {"logging_strategy": "no"}),
                              ("epoch", {"logging_strategy": "epoch"})):
            found = invar.diff(base, train(name, **options))
            self.assertEqual((found.verdict, found.tensors), ("different", []), name)

    def test_epochs(self):
        """Logs of an epoch come after checkpoints of steps, and do not depend on them."""
        options = {"logging_strategy": "epoch", "max_steps": -1, "num_train_epochs": 2,
                   "per_device_train_batch_size": 8}
        plain = train("plain", **options)
        saved = train("saved", save_strategy="steps", save_steps=2, **options)
        self.assertTrue(invar.diff(plain, saved).identical)
        with invar.read(saved) as run:
            rows = run.evaluations()
        self.assertEqual(list(rows[rows["name"] == "loss"]["step"]), [3, 7])
        self.assertEqual(set(rows["dataset"]), {"epoch"})

    def test_data_is_recorded(self):
        one, same, other = train("one"), train("same"), train("other", first=1)
        self.assertTrue(invar.diff(one, same).identical)
        found = invar.diff(one, other)
        self.assertEqual((found.step, found.data["same_batch"]), (0, False))
        both = [train(name, gradient_accumulation_steps=2, learning_rate=rate)
                for name, rate in (("many1", 1e-2), ("many2", 1e-3))]
        self.assertEqual(invar.diff(*both).data["same_batch"], True)

    def test_evaluations(self):
        sets = {"a": Counting(), "b": Counting(3)}
        runs = [train(name, evaluated=sets, eval_strategy="steps", eval_steps=3)
                for name in ("evaluated", "evaluated2")]
        with invar.read(runs[0]) as run:
            rows = run.evaluations()
        self.assertEqual([tuple(row) for row in rows[["step", "dataset", "name"]].values], [
            (2, "eval_a", "loss"), (2, "eval_b", "loss"), (5, "eval_a", "loss"),
            (5, "eval_b", "loss")])
        self.assertTrue(invar.diff(*runs).identical)
        with invar.read(train("single", evaluated=sets["a"], eval_strategy="steps", eval_steps=3,
                              eval_on_start=True)) as run:
            self.assertEqual(list(run.evaluations()["step"]), [-1, 2, 5])

    def test_resume(self):
        out = {"output_dir": str(FOLDER / "checkpoints"), "save_strategy": "steps", "save_steps": 2}
        whole = train("whole", **out)
        fault = Fault(4, ValueError("stop"))
        with self.assertRaises(ValueError):
            train("halves", fault, **out)
        self.assertEqual(numbers(FOLDER / "halves"), [0, 1, 2, 3])
        checkpoint = str(FOLDER / "checkpoints" / "checkpoint-4")
        for restore in (False, True):
            halves = train("halves", resume=checkpoint,
                           restore_callback_states_from_checkpoint=restore, **out)
            self.assertTrue(invar.diff(whole, halves).identical)
            self.assertTrue(invar.verify(halves))
        with self.assertRaisesRegex(invar.Error, "learning_rate was '0.01' and is '0.02'"):
            train("halves", resume=checkpoint, learning_rate=2e-2, **out)
        with self.assertRaisesRegex(invar.Error, "has a run already"):
            train("halves")
        train("others", first=1, **{**out, "output_dir": str(FOLDER / "others-out")})
        with self.assertRaises(invar.Error) as caught:  # a checkpoint of another run
            train("others", resume=checkpoint, first=1, **out)
        self.assertEqual(caught.exception.status, "MISMATCH")

    def test_the_rest_of_a_run(self):
        """A ledger that begins at a checkpoint has another identity, and can be resumed."""
        out = {"output_dir": str(FOLDER / "rest-out"), "save_strategy": "steps", "save_steps": 2}
        whole = train("rest-whole", **out)
        chain = invar.read(whole).steps()["chain"][1]
        rest = train("rest", resume=str(FOLDER / "rest-out" / "checkpoint-2"), **out)
        with invar.read(rest) as run:
            self.assertEqual((run.config["checkpoint.step"], run.config["checkpoint.chain"]),
                             ("2", chain))
        self.assertEqual(numbers(rest), [0, 1, 2, 3])
        self.assertEqual(invar.diff(whole, rest).verdict, "different")
        before = invar.read(rest).chain
        train("rest", resume=str(FOLDER / "rest-out" / "checkpoint-4"), **out)
        self.assertEqual((numbers(rest), invar.read(rest).chain), ([0, 1, 2, 3], before))

    def test_faults(self):
        """A finished step is recorded; if its log is missing, an event has its digest."""
        for name, error, every, steps, kinds, end in (
                ("boom", ValueError("boom\x1b"), 4, [0, 1, 2], ["failure"], (2, "failure")),
                ("early", ValueError("boom"), 1, [0, 1], ["step", "failure"], (2, "failure")),
                ("stopped", KeyboardInterrupt(), 4, [0, 1, 2], [], (130, "interrupted"))):
            with self.assertRaises(type(error)):
                train(name, Fault(2, error), logging_steps=every)
            with invar.read(FOLDER / name) as run:
                ends = run.sql("SELECT exit_code, reason FROM finish").values.tolist()
                self.assertEqual([tuple(row) for row in ends], [end])
                self.assertEqual(list(run.steps()["step"]), steps)
                self.assertEqual(list(run.events()["kind"]), kinds)

    def test_without_a_block(self):
        ledger = LedgerCallback(FOLDER / "left")
        failing = trainer(ledger, Fault(2, ValueError("boom")))
        with self.assertRaises(ValueError):
            failing.train()
        # there is no other writer
        with self.assertRaisesRegex(invar.Error, "has a run already"):
            failing.train()
        self.assertEqual(numbers(FOLDER / "left"), [0, 1])
        with invar.read(FOLDER / "left") as run:
            self.assertEqual(list(run.events()["kind"]), ["step", "failure"])
        del failing, ledger
        gc.collect()
        script = FOLDER / "script.py"
        text = pathlib.Path(__file__).read_text("utf-8").split("class Callback")[0]
        script.write_text(text + "trainer(LedgerCallback(FOLDER / 'script'), "
                          "Fault(1, ValueError('boom'))).train()\n", "utf-8")
        done = subprocess.run([sys.executable, "-W", "ignore", script, FOLDER], check=False,
                              capture_output=True, text=True)
        self.assertIn("ValueError: boom", done.stderr)
        with invar.read(FOLDER / "script") as run:
            self.assertEqual(list(run.steps()["step"]), [0])
            self.assertIn("the program ended", run.events()["message"][1])


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    unittest.main(argv=sys.argv[:1])
