#!/usr/bin/env python3
# bisect_kill.py INVAR FOLDER - invar bisect is killed at any moment and resumed: same answer.
#
# A bisect over 16 commits, two trials at a time, is killed with SIGKILL in a checkout, in a run and
# in the confirmation, without its child processes, and one of a recipe in a run. Resumed, it must
# give the answer of an undisturbed bisect, repeat only unfinished trials, leave no process behind,
# and never change the repository. Also: SIGINT, and a state file that is truncated at some bytes or
# overwritten. With INVAR_TEST_FULL=1 a bisect over 60 commits is killed 30 times, also at its
# start, in a build and at moments drawn with a fixed seed; also SIGTERM, and more state files.
# SPDX-License-Identifier: Apache-2.0
"""Bisects that are killed or stopped."""
import glob
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import bisect_case
import bisect_repo

FULL = bool(os.environ.get("INVAR_TEST_FULL"))
COMMITS, CULPRIT, JOBS = (60, 41, 2) if FULL else (16, 11, 2)

# Processes that a trial starts must end with it, whether it waits for them or not.
BUILD = 'echo "build $INVAR_COMMIT" >>"{diary}"; sleep {brief}; cp value made'
TRIAL = ('echo "begin $INVAR_COMMIT" >>"{diary}"; (sleep 300 & sleep 300) & setsid sleep 300 & '
         'sleep {pause}; echo "end $INVAR_COMMIT" >>"{diary}"; test "$(cat made)" = good')
# The program of a recipe is a script of the tree, which writes to the diary file, too.
SCRIPT = ('echo "build $INVAR_COMMIT" >>"{diary}"; sed "s|DIARY|{diary}|" invar.sh '
          '>"$INVAR_BUILD/invar" && chmod +x "$INVAR_BUILD/invar"')
RECIPE = ["recipes/moe.ini", "--threads", "1", *([] if FULL else ["--num-rollout", "2"])]


class Bisect:
    """One bisect: its command, and the diary file that its trials write. A `plain` bisect has
    by default no build, and its trials only read a file."""

    def __init__(self, case, name, repo, ids, pause="0.1", trial=None,
                 plain=False):
        self.case, self.diary = case, case.path(name + ".diary")
        self.work = case.path(name)
        words = {"diary": self.diary, "pause": pause, "brief": float(pause) / 2}
        self.words = ["bisect", "--good", ids[0], "--bad", ids[-1], "--repo", repo,
                      *(trial or ["--run", TRIAL.format(**words)]),
                      "--build", (SCRIPT if trial else BUILD).format(**words),
                      "--jobs", str(JOBS), "--work", self.work]
        if plain and not FULL:
            self.words = ["bisect", "--good", ids[0], "--bad", ids[-1], "--repo", repo, "--run",
                          bisect_case.TRIAL, "--jobs", str(JOBS), "--work", self.work]
        self.discard_state()

    def discard_state(self):
        shutil.rmtree(self.work, ignore_errors=True)
        with open(self.diary, "wb"):
            pass

    def entries(self, word):
        with open(self.diary, encoding="ascii") as file:
            return [line.split()[1] for line in file if line.startswith(word)]

    def repeats(self):
        """Returns the number of trials of commits that had been tried before."""
        begun = self.entries("begin ")
        return len(begun) - len(set(begun))

    def start(self):
        return subprocess.Popen([self.case.invar, *self.words, "--json"], env=self.case.env,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, start_new_session=True)


def checking_out(bisect):
    return any(os.listdir(f) for f in glob.glob(os.path.join(bisect.work, "slots", "*", "source")))


def confirming(bisect):
    """Returns whether a trial has begun of a commit whose trial had ended."""
    ended = set()
    with open(bisect.diary, encoding="ascii") as file:
        for line in file:
            word, commit = line.split()
            if word == "begin" and commit in ended:
                return True
            if word == "end":
                ended.add(commit)
    return False


def more(word):
    """Returns a function that is true when the diary has a further entry."""
    def condition(bisect):
        return len(bisect.entries(word)) > condition.before
    condition.word = word
    return condition


MOMENTS = {"start": lambda b: True, "checkout": checking_out, "build": more("build "),
           "run": more("begin "), "end of a run": more("end "), "confirmation": confirming}


def kill_at(bisect, moment, delay):
    """Kills the bisect `delay` seconds after the moment. Returns False if it has ended before."""
    condition = MOMENTS.get(moment, MOMENTS["start"])
    if hasattr(condition, "word"):
        condition.before = len(bisect.entries(condition.word))
    process = bisect.start()
    while process.poll() is None and not condition(bisect):
        time.sleep(0.001)
    try:
        process.wait(timeout=delay)
    except subprocess.TimeoutExpired:
        process.kill()  # only the bisect itself: its children get no signal
        process.communicate()
        return True
    process.communicate()
    return False


def without_paths(value):
    if isinstance(value, dict):
        return {k: without_paths(v) for k, v in value.items() if not k.startswith("ledger_")}
    return value


def stable_part(answer):
    """Returns the part of an answer that a kill may not change."""
    return {key: without_paths(answer.get(key)) for key in
            ("verdict", "culprit", "range", "confirmed", "third", "suspects", "place",
             "first_parted")}


def draw_moments(kills, seconds, moments):
    """Yields (moment, delay): each kind of moment in turn; in the full test every second moment is
    arbitrary."""
    rng = random.Random(5)
    for i in range(kills):
        if FULL and i % 2:
            yield "any time", rng.uniform(0, seconds / 2)
        else:
            yield moments[(i // 2 if FULL else i) % len(moments)], rng.uniform(0, 0.06)


def check_kills(case, what, repo, culprit, kills, moments, make):
    """Runs the bisect `make(name)` once to its end, and once with kills at these moments."""
    picture = case.watch(repo)
    whole = make(f"{what}-whole")
    begin = time.monotonic()
    expected = case.finds(culprit, *whole.words)
    seconds = time.monotonic() - begin
    case.nobody_left(f"{what}: a bisect that nobody killed")
    allowed = whole.repeats()
    case.expect(expected.get("confirmed") and allowed > 0, f"{what}: it was not confirmed")

    killed = make(f"{what}-killed")
    hits = ends = lives = 0
    for moment, delay in draw_moments(kills, seconds, moments):
        while not kill_at(killed, moment, delay):
            # The bisect has ended: compare it, and begin again.
            check_end(case, killed, expected, allowed + lives * JOBS)
            killed.discard_state()
            ends, lives = ends + 1, 0
            if ends > 3 * kills:
                sys.exit(f"{what}: the kills come too late: {moment}")
        hits, lives = hits + 1, lives + 1
        case.unchanged(picture, f"{what}: after kill {hits} ({moment})")
    check_end(case, killed, expected, allowed + lives * JOBS)
    case.unchanged(picture, f"{what}: at the end")


def check_end(case, bisect, expected, repeats):
    culprit = expected["culprit"]["commit"]
    answer = case.finds(culprit, *bisect.words)
    case.expect(stable_part(answer) == stable_part(expected), "after kills another answer:",
                stable_part(answer), stable_part(expected))
    case.expect(bisect.repeats() <= repeats, f"{bisect.repeats()} trials repeated, "
                f"{repeats} are allowed:", bisect.entries("begin "))
    case.nobody_left("after kills")
    before = len(bisect.entries("begin "))
    case.finds(culprit, *bisect.words)
    case.expect(len(bisect.entries("begin ")) == before, "a bisect that has its answer ran again")


def check_signals(case, repo, ids, culprit):
    """A signal ends it with code 2, a hint and no process left; the same command then
    continues."""
    picture = case.watch(repo)
    for number in (signal.SIGINT, signal.SIGTERM) if FULL else (signal.SIGINT,):
        bisect = Bisect(case, f"signal-{number}", repo, ids, pause="0.2")
        process = bisect.start()
        while process.poll() is None and len(bisect.entries("begin ")) < 3:
            time.sleep(0.005)
        sent = time.monotonic()
        os.killpg(process.pid, number)  # a terminal does this, too
        out, err = (text.decode() for text in process.communicate(timeout=60))
        said = bisect_case.complaints(err)
        what = signal.Signals(number).name
        case.expect(process.returncode == 2 and time.monotonic() - sent < 10,
                    f"{what}: exit code {process.returncode}", out, err)
        case.expect(any("again" in line or "goes on" in line or "continue" in line
                        for line in said + out.split("\n")), f"{what}: how to go on?", out, err)
        case.nobody_left(what)
        case.unchanged(picture, what)
        before, ended = len(bisect.entries("begin ")), set(bisect.entries("end "))
        case.finds(culprit, *bisect.words)
        again = [c for c in bisect.entries("begin ")[before:] if c in ended]
        case.expect(len(again) <= 4, f"{what}: tested again: {again}")
        case.nobody_left(what)


def state_files(bisect):
    return glob.glob(os.path.join(bisect.work, "bisects", "*", "state"))


def check_torn(case, repo, ids, culprit):
    """The state file is truncated at any length: complete entries are used, and the answer is the
    same."""
    bisect = Bisect(case, "torn", repo, ids, pause="0", plain=True)
    expected = stable_part(case.finds(culprit, *bisect.words))
    files = state_files(bisect)
    case.expect(len(files) == 1, f"the state: {files}")
    if not files:
        return 0
    with open(files[0], "rb") as file:
        whole = file.read()
    head = whole.find(b"\n\n") + 2  # the question; the trials follow
    rng = random.Random(6)
    lengths = {head - 1, head + 1, len(whole) - 1, *([0, 1, head] if FULL else [])}
    while len(lengths) < min(40 if FULL else 4, len(whole)):
        lengths.add(rng.randrange(len(whole)))
    for length in sorted(lengths):
        with open(files[0], "wb") as file:
            file.write(whole[:length])
        answer = case.finds(culprit, *bisect.words)
        case.expect(stable_part(answer) == expected, f"state of {length} bytes: {answer}")
    case.nobody_left("torn states")
    return len(lengths)


def check_garbage(case, repo, ids, culprit):
    """An invalid state file is reported, and `reset` helps."""
    rng = random.Random(7)
    cases = (("bytes", rng.randbytes(4096)), ("line", b"x" * (1 << 20) + b"\n"),
             ("text", b"nothing of the kind\n" * 9), ("zeros", bytes(4096)))
    for name, content in cases[:None if FULL else 1]:
        bisect = Bisect(case, "garbage-" + name, repo, ids, pause="0", plain=True)
        case.finds(culprit, *bisect.words)
        files = state_files(bisect)
        case.expect(len(files) == 1, f"{name}: the state: {files}")
        for path in files:
            with open(path, "wb") as file:
                file.write(content)
        case.refuses(2, ["reset"], *bisect.words)
        place = ["--repo", repo, "--work", bisect.work]
        rc, out, err = case.call("bisect", "reset", *place)
        case.expect(rc == 0, f"{name}: reset: exit code {rc}", out, err)
        case.finds(culprit, *bisect.words)


def history():
    """Returns a history with enough files that a kill can hit a checkout."""
    result = bisect_repo.History()
    last = result.add([], value="good")
    for number in range(1, COMMITS + 1):
        files = {f"data/{n % 20}/{n}": f"{n} of {number}\n" * 50
                 for n in range((400 if FULL else 100) if number % 7 == 1 else 0)}
        last = result.add([last], value="bad" if number >= CULPRIT else "good", files=files)
    return result


def programs(case):
    """Returns a history with one program per commit; one commit changes the learning rate."""
    result = bisect_repo.History()
    last = []
    for number in range(12 if FULL else 8):
        rate = "--lr 0.004" if number >= 5 else ""
        text = f'#!/bin/sh\necho "begin {number}" >>"DIARY"\nexec "{case.invar}" "$@" {rate}'
        last = [result.add(last, files={"invar.sh": text})]
    return result


def main():
    case = bisect_case.Case(sys.argv[1], sys.argv[2])
    repo = case.path("user")
    ids = history().write(repo)
    moments = list(MOMENTS) if FULL else ["checkout", "run", "confirmation"]
    check_kills(case, "command", repo, ids[CULPRIT], 30 if FULL else 3, moments,
                lambda name: Bisect(case, name, repo, ids))
    trees = case.path("programs")
    made = programs(case).write(trees)
    check_kills(case, "recipe", trees, made[5], 12 if FULL else 1, ["run", "build"],
                lambda name: Bisect(case, name, trees, made, trial=RECIPE))
    # By default a repository with few files is enough, because no kill must hit a checkout.
    culprit = ids[CULPRIT]
    if not FULL:
        repo, ids = case.plant("small")
        culprit = ids[8]
    picture = case.watch(repo)
    check_signals(case, repo, ids, culprit)
    torn = check_torn(case, repo, ids, culprit)
    check_garbage(case, repo, ids, culprit)
    case.unchanged(picture, "after all of it")
    print(f"{torn} torn states")
    return case.end()


sys.exit(main())
