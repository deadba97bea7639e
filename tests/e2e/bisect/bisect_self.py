#!/usr/bin/env python3
# bisect_self.py INVAR FOLDER - bisect finds a change of numerics in this repository's history.
#
# A clone of this repository gets 40 commits after HEAD: documentation, comments, messages, tests, a
# commit that does not compile, and one in which REDUCE folds its lanes in another order. `invar
# bisect` must find that commit in at most one trial more than git, build and run only what is
# needed, and name the op. After 8 more commits, among them a change of AdamW and one of a fused
# call, `--all-changes` must list all three and report that the fused call differs from its parts.
# The clone must not change.
# SPDX-License-Identifier: Apache-2.0
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import bisect_repo  # noqa: E402
from bisect_repo import git  # noqa: E402

INVAR, FOLDER = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
REPO, WORK = os.path.join(FOLDER, "repo"), os.path.join(FOLDER, "work")
RECIPE = "recipes/quickstart.ini"  # FP32: no rounding hides the last bit of a sum
UNTIL = 3
COMMITS, BROKEN = 40, 20  # the first trial of a search of 40 does not compile

REDUCE = "kernels-deterministic/math/reduce.h"
FOLD = ("lane[j] += lane[j + half];", "lane[j] += lane[2 * half - 1 - j];")
ADAMW = "kernels-deterministic/cpu/optimizer.c"
STEP = ("master[i] = invar_fmaf(-lr, invar_fmaf(decay, master[i], update), master[i]);",
        "master[i] -= lr * invar_fmaf(decay, master[i], update);")
LINEAR = "kernels-deterministic/cpu/linear.c"  # calls without a residual keep their bits
RESIDUAL = ("sum[j] += y[j];", "sum[j] += y[j] * 1.0000001f;")
# Changes after the first search: file, replacement, number of commits later, subject.
LATER = {ADAMW: (STEP, 4, "kernels: AdamW rounds its step"),
         LINEAR: (RESIDUAL, 6, "kernels: linear scales what it adds to a residual")}
# A rollout begins with the embedding, which has no sum; the norm of layer 0 is the first recorded
# REDUCE of a step. AdamW has no sum: everything up to the weights stays equal.
PLACES = {REDUCE: {"step": 0, "phase": "rollout", "layer": 0, "op": "rmsnorm.fwd", "kind": "act",
                   "dtype": "f32", "fused": None},
          ADAMW: {"step": 0, "phase": "optimizer", "op": "adamw", "kind": "param", "fused": None},
          LINEAR: {"step": 0, "point": "rollout.layer.0.attn", "op": "linear.fwd", "fused":
                   "fused linear.fwd differs from its parts after the change, the parts are equal"}}
VERDICT = f"""\
# verdict.sh - what a tree is, by its text: for git
echo >> "$COUNT"
grep -q '^#error' base/alloc.c && exit 125
grep -qF '{FOLD[0]}' {REDUCE}
"""
failures = []


def expect(holds, what):
    if not holds:
        failures.append(what)


def rewrite(path, change):
    with open(os.path.join(REPO, path), encoding="utf-8") as file:
        text = file.read()
    made = change(text)
    if made == text:
        sys.exit(f"{path} has not the line that this test changes: choose another")
    with open(os.path.join(REPO, path), "w", encoding="utf-8") as file:
        file.write(made)


def commit(subject):
    git(REPO, "commit", "-qam", subject)
    return git(REPO, "rev-parse", "HEAD")


def noise(rng, number):
    """Adds a commit that changes no bit."""
    note = f"{number} of {COMMITS}"
    kind = rng.randrange(6)
    if kind < 3:
        rewrite("README.md", lambda text: f"{text}\nNote {note}.\n")
        return commit(f"docs: note {note}")
    if kind == 3:
        path = rng.choice(["kernels-deterministic/cpu/rmsnorm.c", "base/file.c", REDUCE])
        # The comment is at the end, so that no line number changes.
        rewrite(path, lambda text: f"{text}/* {note} */\n")
        return commit(f"comment {note}")
    if kind == 4:
        rewrite("cli/run/train.c", lambda text: re.sub('"train a model as a recipe says[^"]*"',
                                                       f'"train a model as a recipe says, {note}"',
                                                       text))
        return commit(f"cli: another word, {note}")
    rewrite("tests/support.c", lambda text: f"{text}/* {note} */\n")
    return commit(f"tests: {note}")


def make_branch(rng):
    """Makes the branch. Returns the commits by number (0 is HEAD), and the number of the
    culprit."""
    planted = rng.choice([n for n in range(3, COMMITS - 2) if abs(n - BROKEN) > 2])
    ids = [git(REPO, "rev-parse", "HEAD")]
    for number in range(1, COMMITS + 1):
        if number == planted:
            rewrite(REDUCE, lambda text: text.replace(*FOLD))
            ids.append(commit("kernels: REDUCE folds its lanes from the outside"))
        elif number == BROKEN:
            rewrite("base/alloc.c", lambda text: f"{text}#error\n")
            ids.append(commit("base: half an edit"))
        elif number == BROKEN + 1:
            rewrite("base/alloc.c", lambda text: text.replace("#error\n", ""))
            ids.append(commit("base: the other half"))
        else:
            ids.append(noise(rng, number))
    return ids, planted


def bisect(*words):
    """Runs invar bisect and returns the answer; the clone must not change."""
    before, begin = bisect_repo.fingerprint(REPO), time.monotonic()
    command = [INVAR, "bisect", "--repo", REPO, "--work", WORK, "--json", "--until", str(UNTIL),
               *words, os.path.abspath(RECIPE)]
    done = subprocess.run(command, capture_output=True, text=True, env=bisect_repo.environment(),
                          check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    answer = json.loads(done.stdout)
    changed = bisect_repo.changed(before, bisect_repo.fingerprint(REPO))
    expect(not changed, f"the clone changed: {changed[:5]}")
    print(f"{answer['verdict']}: {time.monotonic() - begin:.0f} s, {len(answer['trials'])} trials, "
          f"cost {answer['cost']}")
    return answer


def check_place(place, path):
    for name, wanted in PLACES[path].items():
        expect(place[name] == wanted, f"{path}: {name} is {place[name]}, not {wanted}")
    expect(place["fine"], f"{path}: the place is not from runs with every point")
    print(f"  {place['point']} of step {place['step']}: {place['op']}")


def git_trials(good, bad):
    """Returns the commit that git bisect run finds in another clone, and the number of its
    trials."""
    other, script = os.path.join(FOLDER, "other"), os.path.join(FOLDER, "verdict.sh")
    count = os.path.join(FOLDER, "count")
    git(FOLDER, "clone", "-q", "--no-hardlinks", REPO, other)
    with open(script, "w", encoding="ascii") as file:
        file.write(VERDICT)
    git(other, "bisect", "start", bad, good)
    done = subprocess.run(["git", "bisect", "run", "sh", script], cwd=other, capture_output=True,
                          text=True, env=bisect_repo.environment(COUNT=count), check=False)
    found = re.search(r"^([0-9a-f]{40}) is the first bad commit", done.stdout, re.MULTILINE)
    with open(count, encoding="ascii") as file:
        return found[1], len(file.readlines())


def find_one(ids, planted):
    answer = bisect("--good", ids[0], "--bad", ids[-1])
    found = answer["culprit"]
    expect(answer["verdict"] == "found" and answer["confirmed"], f"verdict {answer['verdict']}")
    expect(found["commit"] == ids[planted], f"{found['commit']}, planted was {ids[planted]}")
    expect([file["path"] for file in found["files"]] == [REDUCE], f"files {found['files']}")
    check_place(answer["place"], REDUCE)
    verdicts = {trial["commit"]: trial["verdict"] for trial in answer["trials"]}
    expect(verdicts.get(ids[BROKEN]) == "skip", "what does not compile was not skipped")
    same, trials = git_trials(ids[0], ids[-1])
    expect(same == found["commit"], f"{found['commit']}, but git: {same}")
    expect(answer["search_trials"] <= trials + 1, f"{answer['search_trials']} trials, git {trials}")
    searched = [trial for trial in answer["trials"] if trial["role"] == "search"]
    spared = [trial for trial in searched if trial["via"] in ("program", "tree")]
    expect(spared, "every trial was run: nothing was known from an equal program or tree")
    print(f"  {answer['search_trials']} trials of the search, git {trials}; without a run: "
          f"{len(spared)} of {len(searched)}")


def find_all(rng, ids, planted):
    wanted = {REDUCE: ids[planted]}
    for number in range(1, 9):
        due = [path for path, (_, after, _) in LATER.items() if after == number]
        for path in due:
            change, _, subject = LATER[path]
            rewrite(path, lambda text, change=change: text.replace(*change))
            wanted[path] = commit(subject)
        ids.append(wanted[due[0]] if due else noise(rng, COMMITS + number))
    answer = bisect("--good", ids[0], "--bad", ids[-1], "--all-changes")
    found = [change["commit"] for change in answer["changes"]]
    expect(found == list(wanted.values()), f"changes {found}, planted were {wanted}")
    for change, path in zip(answer["changes"], wanted):
        check_place(change["place"], path)


def main():
    if subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, check=False).returncode:
        print("not a git repository: nothing to clone")
        return 77
    shutil.rmtree(FOLDER, ignore_errors=True)
    os.makedirs(FOLDER)
    # The clone has its own files: shared ones would change when the original repository is used.
    git(FOLDER, "clone", "-q", "--no-hardlinks", os.getcwd(), REPO)
    git(REPO, "checkout", "-q", "-B", "planted")
    rng = random.Random(40)
    ids, planted = make_branch(rng)
    find_one(ids, planted)
    find_all(rng, ids, planted)
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


sys.exit(main())
