#!/usr/bin/env python3
# bisect_histories.py INVAR LEDGER_MAKE FOLDER - invar bisect compared with git bisect run.
#
# Histories of every shape are generated with a planted culprit. On each, `invar bisect` must name
# the planted commit, which `git bisect run` names, too, in at most one trial more; choose every
# trial as close to the middle as git; and leave the repository unchanged. Controls: wrong commits,
# too many trials and a changed repository are detected.
# SPDX-License-Identifier: Apache-2.0
import collections
import dataclasses
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
import bisect_repo  # noqa: E402
from bisect_cases import FULL, Case, ancestors, best, every_case, line, mainline  # noqa: E402
from bisect_cases import nearness, plain  # noqa: E402
from bisect_repo import git  # noqa: E402

INVAR, LEDGER_MAKE, FOLDER = map(os.path.abspath, sys.argv[1:4])
REPO, WORK = os.path.join(FOLDER, "repo"), os.path.join(FOLDER, "work")
SCRIPT, COUNT = os.path.join(FOLDER, "verdict.sh"), os.path.join(FOLDER, "count")
CODES = {"found": 0, "changes": 0}  # exit codes; 2 for all other verdicts


# ---- both programs -------------------------------------------------------------------------------


def call(words, **further):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True,
                          env=bisect_repo.environment(**further), check=False)


def executions():
    """Returns the numbers of the commits that the script was run on since the last call."""
    found = []
    if os.path.exists(COUNT):
        with open(COUNT, encoding="ascii") as file:
            found = [int(number) for number in file]
        os.remove(COUNT)
    return found


def ask_git(case, ids):
    """Returns the answer of git bisect run; it changes the repository."""
    good, bad = (ids[end] for end in case.ends)
    paths = ["--", *case.paths] if case.paths else []
    executions()
    text = call(["git", "-C", REPO, "bisect", "start", *case.flags, bad, good, *paths]).stdout
    for _ in range(3):
        # Git 2.39 ends with success after every merge base, and continues when run again.
        if not re.search("is the first bad commit|is bad|could be any of", text):
            done = call(["git", "-C", REPO, "bisect", "run", "sh", SCRIPT], COUNT=COUNT)
            text = done.stdout + done.stderr
    answer = {"trials": len(executions()), "verdict": "found"}
    named = re.search(r"^([0-9a-f]{40}) is the first bad commit", text, re.MULTILINE)
    base = re.search(r"^The merge base ([0-9a-f]{40}) is bad", text, re.MULTILINE)
    if named:
        answer["commits"] = {named[1]}
    elif base:
        answer |= {"verdict": "fixed", "commits": {base[1]}}
    elif "could be any of" in text:
        listed = text[text.index("could be any of"):]
        answer |= {"verdict": "suspects",
                   "commits": set(re.findall("^[0-9a-f]{40}$", listed, re.MULTILINE))}
    else:
        sys.exit(f"{case.name}: git says {text}")
    return answer


def ask_invar(case, ids, *words, run=f"sh {shlex.quote(SCRIPT)}"):
    """Returns the answer of invar bisect; its repository must not change."""
    good, bad = (ids[end] for end in case.ends)
    before = bisect_repo.fingerprint(REPO)
    shutil.rmtree(WORK, ignore_errors=True)
    executions()
    done = call([INVAR, "bisect", "--good", good, "--bad", bad, "--repo", REPO, "--work", WORK,
                 "--run", run, "--json", *case.flags,
                 *(["--paths", ",".join(case.paths)] if case.paths else []), *words], COUNT=COUNT)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = {"verdict": f"exit code {done.returncode}, no JSON: {done.stdout}{done.stderr}",
                  "trials": [], "search_trials": 0}
    answer["problems"] = [f"the repository changed: {path}" for path in
                          bisect_repo.changed(before, bisect_repo.fingerprint(REPO))]
    answer["executions"] = len(executions())
    wanted = CODES.get(answer["verdict"], 2)
    if done.returncode != wanted:
        answer["problems"].append(f"exit code {done.returncode}, not {wanted}: {done.stderr}")
    return answer


def named(answer):
    """Returns the commits that an answer of invar names."""
    if answer["verdict"] == "found":
        return {answer["culprit"]["commit"]}
    if answer["verdict"] == "suspects":
        return {suspect["commit"] for suspect in answer["suspects"]}
    return {trial["commit"] for trial in answer["trials"]
            if trial["role"] == "merge base" and trial["verdict"] == "bad"}


def counted(answer):
    """Returns the trials that git has, too: not those of the ends, nor of the confirmation."""
    return [trial for trial in answer["trials"] if trial["role"] in ("search", "merge base")]


def compare(case, ids, ours, theirs):
    """Returns what is wrong with an answer."""
    wrong = list(ours["problems"])
    if (ours["verdict"], theirs["verdict"]) != (case.verdict, case.verdict):
        return wrong + [f"verdict {ours['verdict']}, git {theirs['verdict']}, not {case.verdict}"]
    planted = {ids[number] for number in case.planted}
    if case.verdict == "found" and not named(ours) <= planted:
        wrong.append(f"{named(ours)} is not what was planted, {planted}")
    if case.verdict == "found" and ours["confirmed"] == case.aside:
        wrong.append(f"the culprit's parents are said to be {'good' if case.aside else 'bad'}")
    if case.verdict == "suspects" and not planted <= named(ours):
        wrong.append(f"{planted} is not among the suspects")
    # If git names a commit whose parent is bad, invar searches further.
    sound = case.begins(ids, theirs["commits"])
    if sound and named(ours) != theirs["commits"]:
        wrong.append(f"{named(ours)}, but git: {theirs['commits']}")
    searched = sum(trial["role"] == "search" for trial in ours["trials"])
    if ours["search_trials"] != searched:
        wrong.append(f"{ours['search_trials']} trials of the search, {searched} in the list")
    ran = sum(trial["via"] == "ran" for trial in ours["trials"])
    if ran != ours["executions"]:
        wrong.append(f"{ran} trials ran, the command {ours['executions']} times")
    if sound and len(counted(ours)) > theirs["trials"] + 1:
        wrong.append(f"{len(counted(ours))} trials, git {theirs['trials']}")
    return wrong


def middle(case, ids, ours):
    """Checks that each trial was as close to the middle as possible, up to the thousandth that git
    allows; the first by git's own measure. Returns the problems."""
    if case.paths or case.unbuildable:
        return []
    sets = ancestors(case.parents, "--first-parent" in case.flags)
    number_of = {name: number for number, name in enumerate(ids)}
    good, bad = sets[case.ends[0]], case.ends[1]
    wrong, first = [], True
    for trial in counted(ours):
        number = number_of[trial["commit"]]
        if trial["role"] == "search":
            candidates = sets[bad] & ~good
            if not candidates >> number & 1:
                break  # the search started again at a bad parent of the found commit
            reached, most = nearness(sets, candidates, number), best(sets, candidates)[0]
            if reached < most - candidates.bit_count() // 2048:
                wrong.append(f"{reached} commits are decided by {number}, {most} were possible")
            if first and reached < git_nearness(case, ids):
                wrong.append(f"{reached} commits are decided at first, more by git")
            first = False
        if trial["verdict"] == "good":
            good |= sets[number]
        elif sets[bad] >> number & 1:
            bad = number
    return wrong


def git_nearness(case, ids):
    good, bad = (ids[end] for end in case.ends)
    text = git(REPO, "rev-list", "--bisect-vars", *case.flags, bad, f"^{good}")
    reached = int(re.search(r"bisect_bad=(-?\d+)", text)[1]) + 1
    return min(reached, int(re.search(r"bisect_all=(\d+)", text)[1]) - reached)


# ---- the test ------------------------------------------------------------------------------------


class Record:
    """The results by kind of history."""

    def __init__(self):
        self.wrong, self.more = [], collections.defaultdict(collections.Counter)
        self.cases = self.ambiguous = self.unsound = 0

    def expect(self, case, problems):
        self.wrong += [f"{case.name}: {problem}" for problem in problems]

    def add(self, case, ids):
        ours = ask_invar(case, ids)
        problems = middle(case, ids, ours)
        self.cases += 1
        if FULL or len(case.parents) < 50 and self.cases % 2 == 0:
            beside = ask_invar(case, ids, "--jobs", "3")
            if (beside["verdict"], named(beside)) != (ours["verdict"], named(ours)):
                problems.append(f"with three at a time {named(beside)}, not {named(ours)}")
            problems += beside["problems"]
        theirs = ask_git(case, ids)
        self.expect(case, problems + compare(case, ids, ours, theirs))
        if case.begins(ids, theirs["commits"]):
            self.more[case.kind][len(counted(ours)) - theirs["trials"]] += 1
        else:
            self.unsound += 1
        self.ambiguous += len(case.planted) > 1

    def print_summary(self):
        whole = collections.Counter()
        for kind, more in self.more.items():
            whole += more
            spread = ", ".join(f"{d:+d}: {count}" for d, count in sorted(more.items()))
            print(f"  {kind:28} {sum(more.values()):4}   {spread}")
        spread = ", ".join(f"{d:+d}: {count}" for d, count in sorted(whole.items()))
        print(f"{sum(whole.values())} histories, {self.ambiguous} with more than one right answer; "
              f"trials more than git: {spread}; {self.unsound} in which git names a commit whose "
              f"parent is bad; {len(self.wrong)} failures")
        for problem in self.wrong:
            print(problem, file=sys.stderr)


def all_changes(record, rng):
    """--all-changes finds every change of the chain along the first parents, and nothing else."""
    for count in range(3, 6) if FULL else (4,):
        parents, merges = mainline(rng, 60 if FULL else 24)
        planted = sorted(rng.sample(merges, count))
        values = [sum(change <= number for change in planted) for number in range(len(parents))]
        case = Case("all changes", parents, set(), set(planted), flags=["--first-parent"],
                    files=[{"numeric": str(value)} for value in values])
        ids = case.history().write(REPO)
        ledger = (f"{shlex.quote(LEDGER_MAKE)} \"$INVAR_RUN/ledger.db\" steps=3 "
                  "fault=diverges:1:layer.1.mlp.out:$(cat numeric)")
        every = ask_invar(case, ids, "--chain", "--all-changes", run=ledger)
        found = [change["commit"] for change in every.get("changes", [])]
        problems = list(every["problems"])
        if every["verdict"] != "changes" or found != [ids[number] for number in planted]:
            problems.append(f"{every['verdict']} {found}, not {[ids[n] for n in planted]}")
        # The search alone names the first change and reports that there are more.
        one = ask_invar(case, ids, "--chain", run=ledger)
        problems += one["problems"]
        if named(one) != {ids[planted[0]]}:
            problems.append(f"without --all-changes: {one['verdict']} {named(one)}")
        if count > 3 and not one["third"]:
            problems.append("a third value was not noticed")
        record.expect(case, problems)


def controls(record):
    """Controls: a wrong commit, too many trials, a changed repository and a missing culprit are
    detected."""
    case = plain("control", line(20), 9)
    ids = case.history().write(REPO)
    ours = ask_invar(case, ids)
    for run in ("true", "exit 1", f"! sh {shlex.quote(SCRIPT)}"):
        answer = ask_invar(case, ids, run=run)
        record.expect(case, answer["problems"])
        if answer["verdict"] not in ("same-ends", "wrong-end"):
            record.expect(case, [f"{run}: {answer['verdict']}"])
    before = bisect_repo.fingerprint(REPO)
    git(REPO, "update-ref", "refs/heads/other", "HEAD")
    if not bisect_repo.changed(before, bisect_repo.fingerprint(REPO)):
        record.expect(case, ["a new branch is no change"])
    theirs = ask_git(case, ids)
    record.expect(case, compare(case, ids, ours, theirs))
    for moved in (8, 10):
        other = dataclasses.replace(case, planted={moved})
        if not compare(other, ids, ours, theirs):
            record.expect(case, [f"{moved} passes for 9"])
    if not compare(case, ids, ours, {**theirs, "trials": len(counted(ours)) - 2}):
        record.expect(case, ["two trials more than git pass"])
    if not compare(case, ids, ours, {**theirs, "commits": {ids[8]}}):
        record.expect(case, ["another commit than git's passes"])


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    os.makedirs(FOLDER)
    with open(SCRIPT, "w", encoding="ascii") as file:
        file.write(bisect_repo.VERDICT)
    record, rng = Record(), random.Random(5)
    for case in every_case(rng):
        record.add(case, case.history().write(REPO))
    all_changes(record, rng)
    controls(record)
    record.print_summary()
    return 1 if record.wrong else 0


sys.exit(main())
