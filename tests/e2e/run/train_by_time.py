#!/usr/bin/env python3
# train_by_time.py INVAR FOLDER [--seconds S --minutes M] [--kills K] [--rollouts N] - a run with
# checkpoints by time only is killed repeatedly; it ends with the same chain, and a kill costs at
# most one interval.
#
# Without --seconds the interval is so short that a checkpoint by time follows each rollout. The
# kill (SIGKILL) comes at a new checkpoint or up to 0.1 s later, so it loses at most the step that
# is being saved. With --seconds the run is killed every S seconds and saves every M minutes, as a
# user would set it: a kill loses at most that time, one rollout and one save. Prints one line of
# tab-separated columns for each kill.
# SPDX-License-Identifier: Apache-2.0
import argparse
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time

RECIPE = "recipes/quickstart.ini"
failed = []


def complain(line):
    failed.append(line)
    print(line, file=sys.stderr)


def command(o, name, minutes):
    return [o.invar, "train", RECIPE, "--num-rollout", str(o.rollouts), "--threads", "1",
            "--no-report", "--json", "--run", str(o.folder / name), "--save-interval-minutes",
            str(minutes)]


def start(words):
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(run):
    out, err = run.communicate()
    if run.returncode != 0:
        sys.exit(f"{' '.join(run.args)}: exit code {run.returncode}\n{err}")
    return json.loads(out)


def newest(folder):
    """Returns the step and the time of the newest checkpoint; step -1 if there is none."""
    file = folder / "checkpoints/latest_checkpointed_iteration.txt"
    try:
        return int(file.read_text()), file.stat().st_mtime
    except FileNotFoundError:
        return -1, 0.0


def last_step(o, folder):
    shown = subprocess.run([o.invar, "ledger", "ls", str(folder), "--json"], capture_output=True,
                           text=True, check=True)
    return json.loads(shown.stdout)[0]["last_step"]


def wait_for_kill(o, run, folder, rng):
    """Waits for the moment of the next kill. Returns False if the run ends before."""
    begin, known = time.monotonic(), newest(folder)[0]
    new = rng.randint(1, 3)
    while run.poll() is None:
        if o.seconds and time.monotonic() - begin >= o.seconds:
            return True
        now = newest(folder)[0]
        if now != known and not o.seconds:
            known, new = now, new - 1
            if new == 0:
                time.sleep(rng.choice((0.0, rng.uniform(0, 0.1))))
                return True
        time.sleep(0.002)
    return False


def check_time_checkpoints(folder):
    """Checks that two checkpoints by time are kept, or three if a kill prevented a removal."""
    count = len(list((folder / "checkpoints").glob("iter_*.by-time")))
    if count > 3:
        complain(f"{count} checkpoints by time are kept")


def kill(o, folder, number, rng):
    run = start(command(o, "killed", o.minutes))
    if not wait_for_kill(o, run, folder, rng):
        sys.exit(f"the run ended before kill {number}: give it more --rollouts\n{finish(run)}")
    run.kill()
    run.communicate()
    killed = time.time()
    step, saved = newest(folder)
    last = last_step(o, folder)
    check_time_checkpoints(folder)
    print(number, last, step, last - step, f"{killed - saved:.1f}", sep="\t", flush=True)
    if step < 0:
        complain(f"kill {number}: there is no checkpoint")
    if not o.seconds and last - step > 1:
        complain(f"kill {number}: {last - step} steps are lost")
    if o.seconds and killed - saved > 60 * o.minutes + o.most:
        complain(f"kill {number}: {killed - saved:.1f} seconds are lost")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("invar")
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("--seconds", type=float, default=0.0)
    p.add_argument("--minutes", type=float, default=0.00001)
    p.add_argument("--most", type=float, default=10.0, help="seconds of a rollout and a save")
    full = bool(os.environ.get("INVAR_TEST_FULL"))
    p.add_argument("--kills", type=int, default=40 if full else 4)
    p.add_argument("--rollouts", type=int, default=250 if full else 30)
    o = p.parse_args()
    for name in ("INVAR_LEDGER", "INVAR_SAVE"):
        os.environ.pop(name, None)
    shutil.rmtree(o.folder, ignore_errors=True)
    o.folder.mkdir(parents=True)
    folder, rng = o.folder / "killed", random.Random(45)
    whole = start(command(o, "whole", 0))
    print("kill", "last step", "resumed after", "steps lost", "seconds lost", sep="\t")
    for number in range(1, o.kills + 1):
        kill(o, folder, number, rng)
    got, expected = finish(start(command(o, "killed", o.minutes))), finish(whole)
    for name in ("chain", "content", "last_step"):
        if got[name] != expected[name]:
            complain(f"{name}: {got[name]}, without kills {expected[name]}")
    if list((o.folder / "whole/checkpoints").glob("*.by-time")):
        complain("save-interval-minutes = 0 saved by time")
    print(f"chain {got['chain']}, {o.kills} kills, {len(failed)} failures")
    return 1 if failed else 0


sys.exit(main())
