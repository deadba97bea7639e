# fixture.py - shared by the tests of this folder: a tiny run that is started, killed and queried.
# SPDX-License-Identifier: Apache-2.0
"""Tiny runs and their ledgers."""
import pathlib
import shutil
import sqlite3
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import tiny  # noqa: E402  pylint: disable=wrong-import-position

EVAL = {"eval-prompt-data": "test task:max", "eval-interval": 4, "eval-max-response-len": 2,
        "n-samples-per-eval-prompt": 1}


class Fixture:
    """A folder with a recipe, and the program."""

    def __init__(self, invar, folder, rollouts):
        self.invar, self.folder, self.failed = invar, pathlib.Path(folder), 0
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.recipe = self.folder / "tiny.ini"
        text = tiny.recipe(rollouts, rollout={"num-steps-per-rollout": 2}, eval=EVAL)
        self.recipe.write_text(text, encoding="ascii")

    def expect(self, holds, what):
        if not holds:
            print(what)
            self.failed += 1

    def words(self, run, *flags):
        return [self.invar, "train", str(self.recipe), "--run", str(self.folder / run), "--name",
                run, "--no-report", "--json", *map(str, flags)]

    def train(self, run, *flags, code=0):
        """Trains the run to its end. Returns its standard error."""
        done = subprocess.run(self.words(run, *flags), capture_output=True, text=True, timeout=300,
                              check=False)
        self.expect(done.returncode == code,
                    f"{run} {flags}: exit code {done.returncode}, not {code}: {done.stderr}")
        return done.stderr

    def kill_at(self, step, run, *flags):
        """Kills the run with SIGKILL when its ledger has the step."""
        with subprocess.Popen(self.words(run, *flags), stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as child:
            while self.last_step(run) < step and child.poll() is None:
                time.sleep(0.005)
            self.expect(child.poll() is None, f"{run}: it had ended before it was killed")
            child.kill()

    def select(self, run, sql):
        ledger = self.folder / run / "ledger.db"
        with sqlite3.connect(f"file:{ledger}?mode=ro", uri=True, timeout=60) as db:
            return db.execute(sql).fetchall()

    def last_step(self, run):
        try:
            return self.select(run, "SELECT coalesce(max(step), -1) FROM step")[0][0]
        except sqlite3.OperationalError:
            return -1

    def chain(self, run):
        return self.select(run, "SELECT hex(chain) FROM timeline ORDER BY step DESC LIMIT 1")
