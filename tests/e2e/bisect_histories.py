#!/usr/bin/env python3
# bisect_histories.py INVAR LEDGER_MAKE FOLDER - invar bisect beside real git bisect run.
#
# Histories of every shape are generated with a culprit planted in each. On each one `invar bisect`
# must name the commit that was planted and that `git bisect run` names, in at most one trial more,
# choose every trial as close to the middle as git, and leave the repository as it was, byte for
# byte. Reduced: about 40 histories; with INVAR_TEST_FULL=1 several hundred, up to 5,000 commits.
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
from bisect_repo import History, git  # noqa: E402

INVAR, LEDGER_MAKE, FOLDER = map(os.path.abspath, sys.argv[1:4])
FULL = bool(os.environ.get("INVAR_TEST_FULL"))
REPO, WORK = os.path.join(FOLDER, "repo"), os.path.join(FOLDER, "work")
SCRIPT, COUNT = os.path.join(FOLDER, "verdict.sh"), os.path.join(FOLDER, "count")
CODES = {"found": 0, "changes": 0}  # of all other verdicts: 2


@dataclasses.dataclass
class Case:
    """A history and what is to be found in it."""
    kind: str
    parents: list  # of each commit, parents before children
    bad: set  # the commits that are bad
    planted: set  # one of them must be named; several where it depends on the way there
    unbuildable: set = dataclasses.field(default_factory=set)
    ends: tuple = None  # good and bad; None: the first and the last
    flags: list = dataclasses.field(default_factory=list)
    paths: list = dataclasses.field(default_factory=list)
    files: list = None  # further files of each commit
    dates: list = None  # of each commit; None: one after the other
    verdict: str = "found"
    aside: bool = False  # what made it bad does not touch the paths

    def __post_init__(self):
        self.ends = self.ends or (0, len(self.parents) - 1)
        self.name = f"{self.kind}, {len(self.parents)} commits"

    def begins(self, ids, commits):
        """Whether all of these are what they are named for: bad, after parents that are good."""
        if self.verdict != "found" or self.paths:
            return True
        return not any(parent in self.bad for name in commits
                       for parent in self.parents[ids.index(name)])

    def history(self):
        """As it is written."""
        made = History()
        for number, parents in enumerate(self.parents):
            made.add(parents, value="bad" if number in self.bad else "good",
                     build="no" if number in self.unbuildable else "yes",
                     files=self.files[number] if self.files else None,
                     date=self.dates[number] if self.dates else None)
        return made


def ancestors(parents, first_parent=False):
    """For each commit the bits of its ancestors' numbers and of its own."""
    sets = []
    for number, above in enumerate(parents):
        bits = 1 << number
        for parent in above[:1] if first_parent else above:
            bits |= sets[parent]
        sets.append(bits)
    return sets


def numbers(bits):
    """The numbers of the bits that are set."""
    return [number for number in range(bits.bit_length()) if bits >> number & 1]


def tainted(parents, *culprits):
    """All commits that have one of the culprits in their history."""
    planted = sum(1 << culprit for culprit in culprits)
    return {number for number, bits in enumerate(ancestors(parents)) if bits & planted}


# ---- shapes --------------------------------------------------------------------------------------


def line(count):
    """A root and `count` commits."""
    return [[]] + [[number] for number in range(count)]


def tangle(chance, count, merges=0.4, width=6):
    """Branches that fork and merge at random, at last into one."""
    parents, heads = [[]], [0]
    while len(parents) < count or len(heads) > 1:
        new = len(parents)
        if len(heads) > 1 and (len(parents) >= count or chance.random() < merges):
            pair = chance.sample(heads, 2)
            parents.append(pair)
            # now and then the other branch goes on, and merges again
            gone = pair if new >= count or chance.random() < 0.7 else pair[:1]
            heads = [head for head in heads if head not in gone] + [new]
        elif len(heads) < width and chance.random() < 0.4:
            start = chance.randrange(max(0, new - 12), new)
            parents.append([start])
            heads = [head for head in heads if head != start] + [new]
        else:
            head = chance.choice(heads)
            parents.append([head])
            heads[heads.index(head)] = new
    return parents


def criss_cross(rounds):
    """Two branches, each merged into the other again and again."""
    parents, a, b = [[]], 0, 0
    for _ in range(rounds):
        new = len(parents)
        parents += [[a], [b], [new, new + 1], [new + 1, new]]
        a, b = new + 2, new + 3
    return parents + [[a, b]]


def octopus(chance, rounds):
    """Up to seven branches merged at once, again and again."""
    parents = [[]]
    for _ in range(rounds):
        start, ends = len(parents) - 1, []
        for _ in range(chance.randint(3, 7)):
            head = start
            for _ in range(chance.randint(1, 4)):
                parents.append([head])
                head = len(parents) - 1
            ends.append(head)
        parents.append(ends)
    return parents


def orphans(chance, count):
    """A line into which histories with roots of their own are merged."""
    parents, main = [[]], 0
    while len(parents) < count:
        if chance.random() < 0.2:
            parents.append([])
            for _ in range(chance.randint(0, 5)):
                parents.append([len(parents) - 1])
            parents.append([main, len(parents) - 1])
        else:
            parents.append([main])
        main = len(parents) - 1
    return parents


def mainline(chance, count):
    """A main branch that only merges branches of one to six commits: the parents, the merges."""
    parents, merges = [[]], []
    while len(parents) < count:
        main = len(parents) - 1
        parents.append([main])
        for _ in range(chance.randint(0, 5)):
            parents.append([len(parents) - 1])
        parents.append([main, len(parents) - 1])
        merges.append(len(parents) - 1)
    return parents, merges


def fork(chance, before, good, bad):
    """A common past, then two branches: the parents, the base, the good tip, the bad tip."""
    parents = line(before)
    base = len(parents) - 1
    for count in (good, bad):
        parents.append([base])
        for _ in range(count - 1):
            parents.append([len(parents) - 1])
            if chance.random() < 0.3 and len(parents) > base + good + 4:
                parents[-1].append(chance.randrange(base + good + 1, len(parents) - 2))
    return parents, base, base + good, len(parents) - 1


# ---- cases ---------------------------------------------------------------------------------------


def in_range(parents):
    """The commits between the first and the last."""
    return numbers(ancestors(parents)[-1] & ~1)


def plain(kind, parents, culprit, **more):
    """One culprit, and whatever comes after it is bad."""
    return Case(kind, parents, tainted(parents, culprit), {culprit}, **more)


def linear_cases(chance):
    sizes = [1, 2, 3, 7, 64, 333]
    if FULL:
        sizes = [*range(1, 65), *range(1, 65), 100, 333, 777, 1023, 1024, 1025, 2500, 5000, 5000]
    for size in sizes:
        yield plain("linear", line(size), chance.randint(1, size))
    for size in range(1, 11 if FULL else 1):
        for culprit in range(1, size + 1):
            yield plain("linear, every culprit", line(size), culprit)
    for size in (64, 5000) if FULL else (40,):
        for culprit in (1, size):
            yield plain("linear, at an end", line(size), culprit)


def merge_cases(chance):
    for _ in range(90 if FULL else 5):
        parents = tangle(chance, chance.randint(10, 150), chance.uniform(0.2, 0.6))
        yield plain("merges", parents, chance.choice(in_range(parents)))
    if FULL:
        parents = tangle(chance, 3000)
        yield plain("merges", parents, chance.choice(in_range(parents)))
    for _ in range(25 if FULL else 2):
        parents = criss_cross(chance.randint(2, 25))
        yield plain("criss-cross", parents, chance.choice(in_range(parents)))
    for _ in range(25 if FULL else 2):
        parents = octopus(chance, chance.randint(1, 6))
        yield plain("octopus", parents, chance.choice(in_range(parents)))
    for _ in range(25 if FULL else 2):
        parents = tangle(chance, chance.randint(10, 120), 0.5)
        merges = [number for number in in_range(parents) if len(parents[number]) > 1]
        yield plain("culprit in a merge", parents, chance.choice(merges))
    for _ in range(25 if FULL else 2):
        parents = orphans(chance, chance.randint(20, 90))
        yield plain("several roots", parents, chance.choice(in_range(parents)))
    parents = orphans(chance, 40)
    roots = [number for number in in_range(parents) if not parents[number]]
    yield plain("culprit is a root", parents, chance.choice(roots))


    for _ in range(25 if FULL else 2):
        # clocks that go wrong, or stand still
        parents = tangle(chance, chance.randint(10, 120))
        hours = chance.choice([0, 1, 50])
        dates = [bisect_repo.EPOCH + 60 * number + 3600 * chance.randint(0, hours)
                 for number in range(len(parents))]
        if not hours:
            dates = [bisect_repo.EPOCH] * len(parents)
        yield plain("dates in no order", parents, chance.choice(in_range(parents)), dates=dates)


def ambiguous_cases(chance):
    """What is named depends on the way to it; where all ways agree, on nothing."""
    for _ in range(25 if FULL else 2):
        size = chance.randint(20, 90)
        yield Case("several culprits", line(size), set(range(size // 3, size + 1)), {size // 3})
    for _ in range(25 if FULL else 2):
        parents = tangle(chance, chance.randint(20, 70))
        culprits = chance.sample(in_range(parents), 3)
        yield ways(Case("several culprits, merges", parents, tainted(parents, *culprits), set()))
    for _ in range(25 if FULL else 2):
        size = chance.randint(20, 90)
        first, back, again = sorted(chance.sample(range(1, size + 1), 3))
        bad = {*range(first, back), *range(again, size + 1)}
        yield ways(Case("reverted culprit", line(size), bad, set()))
    for _ in range(25 if FULL else 2):
        # what left the culprit's line before the revert stays bad; git may name the place of that
        parents = tangle(chance, chance.randint(30, 90))
        sets = ancestors(parents)
        first, again = sorted(chance.sample(in_range(parents), 2))
        later = [number for number in in_range(parents) if sets[number] >> first & 1]
        back = chance.choice(later)
        bad = {number for number in in_range(parents)
               if sets[number] >> again & 1 or (number in later and not sets[number] >> back & 1)}
        begins = {number for number in bad if not bad & {*parents[number]}}
        yield Case("reverted culprit, merges", parents, bad | {len(parents) - 1},
                   begins | ({len(parents) - 1} - bad))


def untestable_cases(chance):
    for _ in range(25 if FULL else 2):
        size = chance.randint(30, 120)
        culprit, first = chance.randint(2, size), chance.randint(1, size // 2)
        gone = {*range(first, first + size // 3)} - {culprit - 1, culprit}
        yield plain("unbuildable range", line(size), culprit, unbuildable=gone)
    for _ in range(25 if FULL else 2):
        size = chance.randint(30, 120)
        culprit = chance.randint(5, size - 5)
        gone = {*range(culprit - chance.randint(0, 4), culprit + chance.randint(1, 4))}
        yield plain("culprit unbuildable", line(size), culprit, unbuildable=gone,
                    verdict="suspects")
    for _ in range(25 if FULL else 2):
        parents = tangle(chance, chance.randint(20, 100))
        inner = in_range(parents)
        culprit = chance.choice(inner)
        near = {culprit, *parents[culprit], inner[-1]}
        gone = {number for number in inner if chance.random() < 0.3} - near
        yield plain("unbuildable here and there", parents, culprit, unbuildable=gone)


def flag_cases(chance):
    for _ in range(15 if FULL else 2):
        parents, merges = mainline(chance, chance.randint(20, 120))
        # inside a branch, which may not be built at all: its merge is named
        culprit = chance.randint(1, len(parents) - 1)
        gone = {*range(1, len(parents))} - {*merges}
        first = min(merge for merge in merges if merge >= culprit)
        yield Case("first parents", parents, tainted(parents, culprit), {first}, gone,
                   flags=["--first-parent"])
    for _ in range(15 if FULL else 2):
        yield with_paths(chance, tangle(chance, chance.randint(20, 100)))
    for _ in range(5 if FULL else 1):
        yield with_paths(chance, line(chance.randint(20, 100)), aside=True)


def with_paths(chance, parents, aside=False):
    """Half of the commits touch src; so does the culprit, unless it is `aside`."""
    inner = in_range(parents)
    touches = {number for number in inner[:-1] if chance.random() < 0.5}
    sets = ancestors(parents)
    files = []
    for number, above in enumerate(parents):
        have = numbers(sets[number]) if len(above) > 1 else [number]
        files.append({f"src/{have_of}": "x" for have_of in have if have_of in touches})
    if aside:
        # the first commit after it that touches src is what git names
        culprit = chance.choice([number for number in inner if number < max(touches)
                                 and number not in touches])
        planted = {min(number for number in touches if number > culprit)}
    else:
        culprit = chance.choice(sorted(touches))
        planted = {culprit}
    return Case("paths, culprit aside" if aside else "paths", parents, tainted(parents, culprit),
                planted, files=files, paths=["src"], aside=aside)


def fork_cases(chance):
    for _ in range(15 if FULL else 2):
        parents, base, good, bad = fork(chance, *(chance.randint(1, 40) for _ in range(3)))
        inner = numbers(ancestors(parents)[bad] & ~ancestors(parents)[good])
        yield plain("good is no ancestor", parents, chance.choice(inner), ends=(good, bad))
    for rounds in range(1, 6 if FULL else 3):
        # a criss-cross in the past: two merge bases, both good
        parents = criss_cross(rounds)[:-1]
        good, bad = len(parents) - 2, len(parents) - 1
        parents += [[good], [bad], [len(parents) + 1]]
        yield plain("several merge bases", parents, len(parents) - chance.randint(1, 2),
                    ends=(len(parents) - 3, len(parents) - 1))
    for _ in range(10 if FULL else 1):
        parents, base, good, bad = fork(chance, *(chance.randint(1, 40) for _ in range(3)))
        whole = tainted(parents, chance.randint(1, base))
        fixed = set(range(chance.randint(base + 1, good), good + 1))
        yield Case("good has a fix", parents, whole - fixed, {base}, ends=(good, bad),
                   verdict="fixed")


# ---- the search, once more -----------------------------------------------------------------------


def nearness(sets, candidates, number):
    """How far a trial of the commit is from telling nothing."""
    weight = (sets[number] & candidates).bit_count()
    return min(weight, candidates.bit_count() - weight)


def best(sets, candidates):
    """The largest nearness among the candidates, and who has it."""
    near = {number: nearness(sets, candidates, number) for number in numbers(candidates)}
    most = max(near.values())
    return most, [number for number, value in near.items() if value == most]


def ways(case):
    """The case, with every commit planted that some sequence of best choices leads to."""
    sets = ancestors(case.parents)
    seen, found, stack = set(), set(), [(case.ends[1], sets[case.ends[0]])]
    while stack:
        state = stack.pop()
        if state in seen:
            continue
        seen.add(state)
        bad, good = state
        candidates = sets[bad] & ~good
        if candidates == 1 << bad:
            found.add(bad)
            continue
        for number in best(sets, candidates)[1]:
            stack.append((number, good) if number in case.bad else (bad, good | sets[number]))
    case.planted = found
    return case


# ---- both ----------------------------------------------------------------------------------------


def call(words, **further):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True,
                          env=bisect_repo.environment(**further), check=False)


def executions():
    """How often the script ran since the last question, by the numbers it left."""
    found = []
    if os.path.exists(COUNT):
        with open(COUNT, encoding="ascii") as file:
            found = [int(number) for number in file]
        os.remove(COUNT)
    return found


def ask_git(case, ids):
    """What git bisect run says of the repository, which is not the same afterwards."""
    good, bad = (ids[end] for end in case.ends)
    paths = ["--", *case.paths] if case.paths else []
    executions()
    text = call(["git", "-C", REPO, "bisect", "start", *case.flags, bad, good, *paths]).stdout
    for _ in range(3):
        # it ends with success after every merge base (git 2.39), and goes on when run again
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
    """What invar bisect says; its repository must stay as it is."""
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
    """The commits that an answer of ours names."""
    if answer["verdict"] == "found":
        return {answer["culprit"]["commit"]}
    if answer["verdict"] == "suspects":
        return {suspect["commit"] for suspect in answer["suspects"]}
    return {trial["commit"] for trial in answer["trials"]
            if trial["role"] == "merge base" and trial["verdict"] == "bad"}


def counted(answer):
    """The trials that git has, too: not those of the ends, nor of the confirmation."""
    return [trial for trial in answer["trials"] if trial["role"] in ("search", "merge base")]


def compare(case, ids, ours, theirs):
    """What is wrong with an answer."""
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
    if named(ours) != theirs["commits"] and case.begins(ids, theirs["commits"]):
        wrong.append(f"{named(ours)}, but git: {theirs['commits']}")
    searched = sum(trial["role"] == "search" for trial in ours["trials"])
    if ours["search_trials"] != searched:
        wrong.append(f"{ours['search_trials']} trials of the search, {searched} in the list")
    ran = sum(trial["via"] == "ran" for trial in ours["trials"])
    if ran != ours["executions"]:
        wrong.append(f"{ran} trials ran, the command {ours['executions']} times")
    if len(counted(ours)) > theirs["trials"] + 1:
        wrong.append(f"{len(counted(ours))} trials, git {theirs['trials']}")
    return wrong


def middle(case, ids, ours):
    """
    Whether each trial was as close to the middle as can be, which for git is within a thousandth;
    the first, as git measures it.
    """
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
    """What was found, by kind."""

    def __init__(self):
        self.wrong, self.more = [], collections.defaultdict(collections.Counter)
        self.ambiguous = 0

    def expect(self, case, problems):
        self.wrong += [f"{case.name}: {problem}" for problem in problems]

    def add(self, case, ids):
        ours = ask_invar(case, ids)
        problems = middle(case, ids, ours)
        if FULL or len(case.parents) < 50:
            beside = ask_invar(case, ids, "--jobs", "3")
            if (beside["verdict"], named(beside)) != (ours["verdict"], named(ours)):
                problems.append(f"with three at a time {named(beside)}, not {named(ours)}")
            problems += beside["problems"]
        theirs = ask_git(case, ids)
        self.expect(case, problems + compare(case, ids, ours, theirs))
        self.more[case.kind][len(counted(ours)) - theirs["trials"]] += 1
        self.ambiguous += len(case.planted) > 1

    def tell(self):
        whole = collections.Counter()
        for kind, more in self.more.items():
            whole += more
            spread = ", ".join(f"{d:+d}: {count}" for d, count in sorted(more.items()))
            print(f"  {kind:28} {sum(more.values()):4}   {spread}")
        spread = ", ".join(f"{d:+d}: {count}" for d, count in sorted(whole.items()))
        print(f"{sum(whole.values())} histories, {self.ambiguous} with more than one right answer; "
              f"trials more than git: {spread}; {len(self.wrong)} failures")
        for problem in self.wrong:
            print(problem, file=sys.stderr)


def all_changes(record, chance):
    """Every change of the chain along the first parents, and nothing else."""
    for count in range(3, 6) if FULL else (4,):
        parents, merges = mainline(chance, 60)
        planted = sorted(chance.sample(merges, count))
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
        # the search alone names the first of them and says that there are more
        one = ask_invar(case, ids, "--chain", run=ledger)
        problems += one["problems"]
        if named(one) != {ids[planted[0]]}:
            problems.append(f"without --all-changes: {one['verdict']} {named(one)}")
        if count > 3 and not one["third"]:
            problems.append("a third value was not noticed")
        record.expect(case, problems)


def controls(record):
    """What must fail does: the wrong commit, too many trials, a touched repository, no culprit."""
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
    record, chance = Record(), random.Random(5)
    for cases in (linear_cases, merge_cases, ambiguous_cases, untestable_cases, flag_cases,
                  fork_cases):
        for case in cases(chance):
            record.add(case, case.history().write(REPO))
    all_changes(record, chance)
    controls(record)
    record.tell()
    return 1 if record.wrong else 0


sys.exit(main())
