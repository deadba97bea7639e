#!/usr/bin/env python3
# bug_report.py INVAR FOLDER - invar bug-report of runs: complete, damaged, failed, in progress.
# SPDX-License-Identifier: Apache-2.0
"""Checks the archive's files, and that it has no secrets, texts, weights or files behind links."""
import errno
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import tiny  # noqa: E402  pylint: disable=wrong-import-position

INVAR, FOLDER = (pathlib.Path(word).resolve() for word in sys.argv[1:])
MEMBERS = ["version.txt", "doctor.txt", "run.txt", "last-step.txt", "verify.txt", "triage.txt",
           "report.html", "recipe.ini", "train.log", "files.txt", "contents.txt"]


def invar(*words, code=0):
    done = subprocess.run([INVAR, *words], cwd=FOLDER, stdin=subprocess.DEVNULL, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == code, f"{words}: {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def train(run, *words, code=0):
    return invar("train", "tiny.ini", "--run", run, "--no-report", *words, code=code)


def read_to_end(terminal):
    """Returns the output of a terminal until the last program closes it."""
    shown = b""
    try:
        while more := os.read(terminal, 4096):
            shown += more
    except OSError as error:
        assert error.errno == errno.EIO
    return shown.decode("utf-8")


def report(run, *words):
    """Returns {name: text}, {name: note} and the path of the archive."""
    said = json.loads(invar("bug-report", str(run), "--json", "--out", f"{len(made)}.tar", *words))
    path = FOLDER / said["file"]
    made.append(path)
    with tarfile.open(path) as tar:
        texts = {m.name: tar.extractfile(m).read().decode("utf-8") for m in tar.getmembers()
                 if m.isreg()}
        assert len(texts) == len(tar.getmembers())
    assert [m["name"] for m in said["members"]] == MEMBERS
    assert {m["name"]: m["bytes"] for m in said["members"] if m["bytes"]} == {
        name: len(text.encode()) for name, text in texts.items()}
    for m in said["members"]:  # the list in the archive agrees with the JSON output
        if m["name"] != "contents.txt":
            assert f"  {m['name']} " in texts["contents.txt"]
            assert m["note"] is None or m["note"] in texts["contents.txt"]
    return texts, {m["name"]: m["note"] for m in said["members"]}, path


made = []


class BugReport(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        (FOLDER / "dies.py").write_text(
            'print(\'{"invar": 1, "name": "dies", "kinds": ["reward"]}\', flush=True)\n'
            'input(), input()\n'
            'raise SystemExit("at HF_TOKEN=hf_plainsecret")\n')
        (FOLDER / "tiny.ini").write_text(tiny.recipe(2), encoding="ascii")
        train("whole", "--save-interval", "1",
              "--debug-rollout-print-every", "1", "--name", "user:hunter2pass@host")

    def test_whole(self):
        texts, notes, path = report("whole")
        self.assertEqual(set(texts), set(MEMBERS))
        self.assertFalse([note for note in notes.values() if note])
        self.assertIn("commit", texts["version.txt"])
        self.assertIn("cpu ", texts["doctor.txt"])
        self.assertIn("step 1 of ", texts["last-step.txt"])
        self.assertIn(": clean", texts["verify.txt"])
        self.assertIn("num-rollout = 2", texts["recipe.ini"])
        self.assertIn("done: 2 steps", texts["train.log"])
        self.assertIn("  checkpoints/iter_0000001/model.safetensors\n", texts["files.txt"])
        self.assertLess(path.stat().st_size, 2 << 20)
        # Control: the log of the run, and the archive with samples, contain the prompts.
        prompts = re.findall(r"rollout \d+, sample \d+: (\S+=) -> ",
                             (FOLDER / "whole/train.log").read_text(encoding="utf-8"))
        self.assertEqual(len(prompts), 2)
        more = report("whole", "--samples")[0]
        for prompt in prompts:
            self.assertIn(prompt, more["train.log"])
            self.assertIn(prompt, more["report.html"])
        for name, text in texts.items():
            for prompt in prompts:
                self.assertNotIn(prompt, text, name)
            self.assertNotIn("hunter2pass", text, name)
        self.assertIn("user:***@host", texts["run.txt"])
        shown = invar("bug-report", "whole")
        self.assertIn("tar xf bug-report-whole.tar --one-top-level=bug-report\n", shown)
        self.assertTrue((FOLDER / "bug-report-whole.tar").exists())

    def test_progress(self):
        reader, terminal = pty.openpty()
        with subprocess.Popen([INVAR, "bug-report", "whole", "--out", "shown.tar"], cwd=FOLDER,
                              stdout=subprocess.PIPE, stderr=terminal, text=True,
                              env=dict(os.environ, TERM="xterm", NO_COLOR="1")) as process:
            os.close(terminal)
            shown = read_to_end(reader)
            self.assertIn("written   shown.tar\n", process.stdout.read())
        self.assertEqual(process.returncode, 0)
        self.assertRegex(shown, r"^\rbug-report  \[.*\]  0/7 parts  0%  version.txt")
        self.assertRegex(shown, r"\r[^\r]*  7/7 parts  100%  [^\r]*\r\n$")

    def test_replies(self):
        (FOLDER / "judge.py").write_text(
            'import json\n'
            'json.loads(input())\n'
            'print(\'{"invar": 1, "name": "judge", "kinds": ["reward"]}\', flush=True)\n'
            'while True:\n'
            '    request = json.loads(input())\n'
            '    rewards = [0.5] * len(request["samples"])\n'
            '    reply = {"why": "of a prompt", "id": request["id"], "rewards": rewards}\n'
            '    print(json.dumps(reply), flush=True)\n', encoding="ascii")
        train("judged", "--rm-type", "none", "--custom-rm-path",
              f"{sys.executable} judge.py -k sk-proj-plainsecret12345")
        with_texts = report("judged", "--samples")[0]
        without, notes, _ = report("judged")
        self.assertIn("of a prompt", with_texts["last-step.txt"])
        self.assertNotIn("of a prompt", "".join(without.values()))
        self.assertIn("\nreplies\n", without["last-step.txt"])
        self.assertFalse([note for note in notes.values() if note])
        self.assertNotIn("plainsecret", "".join(with_texts.values()))
        for words, there in ((), True), (("--no-samples",), False):
            shown = json.loads(invar("ledger", "show", "judged", "--step", "1", "--json", *words))
            self.assertEqual([row["data_begins"] is not None for row in shown["replies"]], [there])

    def test_log_that_a_shell_keeps(self):
        (FOLDER / "kept").mkdir()
        with open(FOLDER / "kept/train.log", "w", encoding="utf-8") as log:
            subprocess.run([INVAR, "train", "tiny.ini", "--run", "kept", "--no-report",
                            "--debug-rollout-print-every", "1"], cwd=FOLDER, check=True,
                           stdout=subprocess.DEVNULL, stderr=log)
        self.assertIn("sample 0: ", (FOLDER / "kept/train.log").read_text(encoding="utf-8"))
        self.assertNotIn("sample 0: ", report("kept")[0]["train.log"])
        self.assertIn("sample 0: ", report("kept", "--samples")[0]["train.log"])

    def test_no_checkpoint_and_death_at_step_0(self):
        train("dead", "--rm-type", "none", "--custom-rm-path",
              f"{sys.executable} dies.py --api-key plainsecret2", code=2)
        self.assertIn("plainsecret", (FOLDER / "dead/train.log").read_text(encoding="utf-8"))
        texts, notes, _ = report("dead")
        self.assertEqual(notes["last-step.txt"], "the ledger names no step")
        self.assertNotIn("last-step.txt", texts)
        self.assertIn("HF_TOKEN=***", texts["train.log"])
        self.assertIn("failed", texts["run.txt"])
        self.assertNotIn("plainsecret", "".join(texts.values()))
        train("plain")
        shutil.rmtree(FOLDER / "plain/checkpoints")
        self.assertNotIn("checkpoints/", report("plain")[0]["files.txt"])

    def test_damaged(self):
        shutil.copytree(FOLDER / "whole", FOLDER / "damaged")
        with open(FOLDER / "damaged/ledger.db", "r+b") as ledger:
            ledger.seek(8192)
            ledger.write(b"x" * 65536)
        texts, notes, _ = report("damaged")
        for name in ("run.txt", "verify.txt", "triage.txt", "report.html"):
            self.assertRegex(notes[name], "exit code 2: .*ledger.db")
        self.assertIn("num-rollout = 2", texts["recipe.ini"])
        self.assertIn("done: 2 steps", texts["train.log"])

    def test_links_and_sizes(self):
        shutil.copytree(FOLDER / "whole", FOLDER / "hostile")
        (FOLDER / "secret.txt").write_text("behind a link\n" * 100)
        log, recipe = FOLDER / "hostile/train.log", FOLDER / "hostile/recipe.ini"
        recipe.unlink()
        recipe.symlink_to(FOLDER / "secret.txt")
        (FOLDER / "hostile/away").symlink_to(FOLDER)
        log.unlink()
        os.mkfifo(log)
        texts, notes, _ = report("hostile")
        self.assertNotIn("behind a link", "".join(texts.values()))
        self.assertEqual(notes["recipe.ini"], "a link, not followed")
        self.assertEqual(notes["train.log"], "not a plain file")
        self.assertIn("  away  (a link, not followed)\n", texts["files.txt"])
        self.assertNotIn("away/", texts["files.txt"])
        log.unlink()
        log.write_text("".join(f"line {i}\n" for i in range(100000)))
        (FOLDER / "hostile/many").mkdir()
        for i in range(1100):
            (FOLDER / f"hostile/many/{i}").touch()
        texts, notes, _ = report("hostile")
        self.assertLessEqual(len(texts["train.log"]), 65536)
        self.assertTrue(texts["train.log"].startswith("line "))
        self.assertTrue(texts["train.log"].endswith("line 99999\n"))
        self.assertRegex(notes["train.log"], r"the last \d+ of \d+ bytes")
        self.assertEqual(texts["files.txt"].count("\n"), 1000)
        self.assertEqual(notes["files.txt"], "the first 1000 files")

    def test_in_progress(self):
        with subprocess.Popen([INVAR, "train", "tiny.ini", "--run", "long", "--num-rollout",
                               "1000000", "--no-report"], cwd=FOLDER, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as process:
            while not (FOLDER / "long/train.log").exists() and process.poll() is None:
                time.sleep(0.05)
            texts = report("long")[0]
            self.assertIsNone(process.poll())
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(300), 130)
        self.assertIn("running", texts["run.txt"])

    def test_refusals(self):
        (FOLDER / "empty").mkdir()
        for run in ("empty", "nowhere"):
            invar("bug-report", run, code=2)
        self.assertFalse((FOLDER / "bug-report-empty.tar").exists())
        self.assertIn("RUN", invar("bug-report", code=129))
        before = (FOLDER / "whole/ledger.db").read_bytes()
        invar("bug-report", "whole", "--out", "whole/ledger.db", code=129)
        invar("bug-report", "whole", "--out", "nowhere/a.tar", code=2)
        self.assertEqual((FOLDER / "whole/ledger.db").read_bytes(), before)


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    unittest.main(argv=sys.argv[:1])
