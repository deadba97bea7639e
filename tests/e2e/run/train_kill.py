#!/usr/bin/env python3
# train_kill.py INVAR FOLDER [DEVICE] - a run is killed at random moments and restarted; it has the
# bits of an uninterrupted run.
#
# The run saves after every rollout and is killed (SIGKILL) 3 times, or 50 times with
# INVAR_TEST_FULL=1, at moments drawn with a fixed seed. At its end it must have the chain and
# content of a run that was not killed, and match the golden. The ledger must verify after every
# kill, and no unfinished file may be left at the end. With DEVICE cuda, INVAR is a program with the
# fake GPU: checkpoints are copied as late as possible and written by a thread while the run
# continues.
# SPDX-License-Identifier: Apache-2.0
import json
import os
import random
import shutil
import subprocess
import sys
import time

RECIPE = "moe"
# the fake GPU unprotects its memory around each op, which is slow
ROLLOUTS = {"cpu": 25, "cuda": 8}
failed = []


def command(invar, device, run, saved):
    recipe = f"recipes/{RECIPE}.ini"
    return [invar, "train", recipe, "--num-rollout", str(ROLLOUTS[device]), "--threads", "2",
            "--device", device, "--run", run, "--save", saved, "--load", saved,
            "--save-interval", "1", "--keep-checkpoints", "3", "--no-report", "--json",
            "--golden", f"recipes/{RECIPE}.golden"]


def finish(arguments):
    """Runs the command to its end. Returns its JSON output and the seconds it took."""
    begin = time.monotonic()
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout), time.monotonic() - begin


def kill_after(arguments, seconds):
    """Kills the command after `seconds`. Returns whether that was before its end."""
    run = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        code = run.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        run.kill()
        run.wait()
        return True
    if code != 0:
        sys.exit(f"{' '.join(arguments)}: exit code {code}")
    return False


def verify(invar, run):
    ledger = os.path.join(run, "ledger.db")
    if not os.path.exists(ledger):
        return
    done = subprocess.run([invar, "ledger", "verify", ledger], capture_output=True, text=True)
    if done.returncode != 0:
        failed.append(f"the ledger after a kill: {done.stdout}{done.stderr}")


def leftovers(*folders):
    """Returns the paths whose names mark unfinished files."""
    names = []
    for folder in folders:
        for path, inner, files in os.walk(folder):
            names += [os.path.join(path, n) for n in inner + files if "tmp" in n or ".new" in n]
    return names


def main():
    invar, folder = sys.argv[1], sys.argv[2]
    device = sys.argv[3] if len(sys.argv) > 3 else "cpu"
    kills = 50 if os.environ.get("INVAR_TEST_FULL") else 3
    os.environ.pop("INVAR_LEDGER", None)
    os.environ["INVAR_TEST_DELAY"] = "20"
    shutil.rmtree(folder, ignore_errors=True)
    whole = os.path.join(folder, "whole")
    killed, saved = os.path.join(folder, "killed"), os.path.join(folder, "killed-checkpoints")
    expected, seconds = finish(command(invar, device, whole, whole + "-checkpoints"))
    arguments = command(invar, device, killed, saved)
    rng = random.Random(20)
    hits = ends = 0
    while hits < kills:
        # The interval becomes shorter, so that later kills hit resuming and saving.
        if kill_after(arguments, rng.uniform(0, seconds / (2 if hits < 3 else 4))):
            hits += 1
            verify(invar, killed)
        else:
            # The run has finished: compare it, and begin again without its files.
            ends += 1
            answer, _ = finish(arguments)
            check(answer, expected)
            shutil.rmtree(killed)
            shutil.rmtree(saved)
    answer, _ = finish(arguments)
    check(answer, expected)
    verify(invar, killed)
    failed.extend(f"left behind: {name}" for name in leftovers(killed, saved))
    for line in failed:
        print(line, file=sys.stderr)
    print(f"{hits} kills, {ends + 1} times to the end, {len(failed)} failures")
    return 1 if failed else 0


def check(answer, expected):
    if answer["golden"]["verdict"] != "identical":
        failed.append(f"the golden: {answer['golden']}")
    for name in ("chain", "content", "last_step"):
        if answer[name] != expected[name]:
            failed.append(f"{name}: {answer[name]}, without kills {expected[name]}")
    if answer["steps"] and answer["worst_diff"] != 0:
        failed.append(f"log-probabilities differ by {answer['worst_diff']}")


sys.exit(main())
