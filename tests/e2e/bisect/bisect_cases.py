# bisect_cases.py - generated histories of every shape, each with the commit that is to be found.
#
# A history is a list of parents by number, parents before children. By default there are about 25;
# with INVAR_TEST_FULL=1 several hundred, up to 5,000 commits long.
# SPDX-License-Identifier: Apache-2.0
"""Histories of every shape for the comparison of bisect with git."""
import dataclasses
import os

import bisect_repo
from bisect_repo import History

FULL = bool(os.environ.get("INVAR_TEST_FULL"))


@dataclasses.dataclass
class Case:
    """A history, and the result that is expected."""
    kind: str
    parents: list  # (count) parents of each commit; parents before children
    bad: set  # numbers of the bad commits
    planted: set  # one of them must be named; several if the choice of trials decides
    unbuildable: set = dataclasses.field(default_factory=set)
    ends: tuple = None  # good and bad end; None for the first and the last commit
    flags: list = dataclasses.field(default_factory=list)
    paths: list = dataclasses.field(default_factory=list)
    files: list = None  # further files of each commit; None if there are none
    dates: list = None  # date of each commit; None for ascending dates
    verdict: str = "found"
    aside: bool = False  # the culprit does not touch the paths

    def __post_init__(self):
        self.ends = self.ends or (0, len(self.parents) - 1)
        self.name = f"{self.kind}, {len(self.parents)} commits"

    def begins(self, ids, commits):
        """Returns whether every commit is a true culprit: none of its parents is bad."""
        if self.verdict != "found" or self.paths:
            return True
        last = 1 if "--first-parent" in self.flags else None
        return not any(parent in self.bad for name in commits
                       for parent in self.parents[ids.index(name)][:last])

    def history(self):
        """Returns the history, ready to be written."""
        made = History()
        for number, parents in enumerate(self.parents):
            made.add(parents, value="bad" if number in self.bad else "good",
                     build="no" if number in self.unbuildable else "yes",
                     files=self.files[number] if self.files else None,
                     date=self.dates[number] if self.dates else None)
        return made


def ancestors(parents, first_parent=False):
    """Returns for each commit a bit set of its ancestors' numbers and its own."""
    sets = []
    for number, above in enumerate(parents):
        bits = 1 << number
        for parent in above[:1] if first_parent else above:
            bits |= sets[parent]
        sets.append(bits)
    return sets


def numbers(bits):
    """Returns the numbers of the bits that are set."""
    return [number for number in range(bits.bit_length()) if bits >> number & 1]


def tainted(parents, *culprits):
    """Returns all commits that have one of the culprits in their history."""
    planted = sum(1 << culprit for culprit in culprits)
    return {number for number, bits in enumerate(ancestors(parents)) if bits & planted}


# ---- shapes --------------------------------------------------------------------------------------


def line(count):
    """Returns a root and `count` commits after it."""
    return [[]] + [[number] for number in range(count)]


def tangle(rng, count, merges=0.4, width=6):
    """Returns branches that fork and merge at random, and finally merge into one."""
    parents, heads = [[]], [0]
    while len(parents) < count or len(heads) > 1:
        new = len(parents)
        if len(heads) > 1 and (len(parents) >= count or rng.random() < merges):
            pair = rng.sample(heads, 2)
            parents.append(pair)
            # Sometimes one of the branches continues after the merge, and merges again.
            gone = pair if new >= count or rng.random() < 0.7 else pair[:1]
            heads = [head for head in heads if head not in gone] + [new]
        elif len(heads) < width and rng.random() < 0.4:
            start = rng.randrange(max(0, new - 12), new)
            parents.append([start])
            heads = [head for head in heads if head != start] + [new]
        else:
            head = rng.choice(heads)
            parents.append([head])
            heads[heads.index(head)] = new
    return parents


def criss_cross(rounds):
    """Returns two branches that are repeatedly merged into each other."""
    parents, a, b = [[]], 0, 0
    for _ in range(rounds):
        new = len(parents)
        parents += [[a], [b], [new, new + 1], [new + 1, new]]
        a, b = new + 2, new + 3
    return parents + [[a, b]]


def octopus(rng, rounds):
    """Returns repeated merges of up to seven branches at once."""
    parents = [[]]
    for _ in range(rounds):
        start, ends = len(parents) - 1, []
        for _ in range(rng.randint(3, 7)):
            head = start
            for _ in range(rng.randint(1, 4)):
                parents.append([head])
                head = len(parents) - 1
            ends.append(head)
        parents.append(ends)
    return parents


def orphans(rng, count):
    """Returns a line into which histories with their own roots are merged."""
    parents, main = [[]], 0
    while len(parents) < count:
        if rng.random() < 0.2:
            parents.append([])
            for _ in range(rng.randint(0, 5)):
                parents.append([len(parents) - 1])
            parents.append([main, len(parents) - 1])
        else:
            parents.append([main])
        main = len(parents) - 1
    return parents


def mainline(rng, count):
    """Returns the parents and merges of a main branch that only merges branches of one to six
    commits."""
    parents, merges = [[]], []
    while len(parents) < count:
        main = len(parents) - 1
        parents.append([main])
        for _ in range(rng.randint(0, 5)):
            parents.append([len(parents) - 1])
        parents.append([main, len(parents) - 1])
        merges.append(len(parents) - 1)
    return parents, merges


def fork(rng, before, good, bad):
    """Returns a common history with two branches: the parents, the base, the good tip, the bad
    tip."""
    parents = line(before)
    base = len(parents) - 1
    for count in (good, bad):
        parents.append([base])
        for _ in range(count - 1):
            parents.append([len(parents) - 1])
            if rng.random() < 0.3 and len(parents) > base + good + 4:
                parents[-1].append(rng.randrange(base + good + 1, len(parents) - 2))
    return parents, base, base + good, len(parents) - 1


# ---- cases ---------------------------------------------------------------------------------------


def in_range(parents):
    """Returns the numbers of the commits after the good end."""
    return numbers(ancestors(parents)[-1] & ~1)


def plain(kind, parents, culprit, **more):
    """Returns a case with one culprit; every commit with it in its history is bad."""
    return Case(kind, parents, tainted(parents, culprit), {culprit}, **more)


def linear_cases(rng):
    sizes = [1, 2, 7, 64]
    if FULL:
        sizes = [*range(1, 65), *range(1, 65), 100, 333, 777, 1023, 1024, 1025, 2500, 5000, 5000]
    for size in sizes:
        yield plain("linear", line(size), rng.randint(1, size))
    for size in range(1, 11 if FULL else 1):
        for culprit in range(1, size + 1):
            yield plain("linear, every culprit", line(size), culprit)
    for size in (64, 5000) if FULL else (40,):
        for culprit in (1, size):
            yield plain("linear, at an end", line(size), culprit)


def merge_cases(rng):
    for _ in range(90 if FULL else 3):
        parents = tangle(rng, rng.randint(10, 150), rng.uniform(0.2, 0.6))
        yield plain("merges", parents, rng.choice(in_range(parents)))
    if FULL:
        parents = tangle(rng, 3000)
        yield plain("merges", parents, rng.choice(in_range(parents)))
    for _ in range(25 if FULL else 1):
        parents = criss_cross(rng.randint(2, 25))
        yield plain("criss-cross", parents, rng.choice(in_range(parents)))
    for _ in range(25 if FULL else 1):
        parents = octopus(rng, rng.randint(1, 6))
        yield plain("octopus", parents, rng.choice(in_range(parents)))
    for _ in range(25 if FULL else 1):
        parents = tangle(rng, rng.randint(10, 120), 0.5)
        merges = [number for number in in_range(parents) if len(parents[number]) > 1]
        yield plain("culprit in a merge", parents, rng.choice(merges))
    for _ in range(25 if FULL else 1):
        parents = orphans(rng, rng.randint(20, 90))
        yield plain("several roots", parents, rng.choice(in_range(parents)))
    parents = orphans(rng, 40)
    roots = [number for number in in_range(parents) if not parents[number]]
    yield plain("culprit is a root", parents, rng.choice(roots))


    for _ in range(25 if FULL else 1):
        # Dates that go backwards, or are all the same.
        parents = tangle(rng, rng.randint(10, 120))
        hours = rng.choice([0, 1, 50])
        dates = [bisect_repo.EPOCH + 60 * number + 3600 * rng.randint(0, hours)
                 for number in range(len(parents))]
        if not hours:
            dates = [bisect_repo.EPOCH] * len(parents)
        yield plain("dates in no order", parents, rng.choice(in_range(parents)), dates=dates)


def ambiguous_cases(rng):
    """Yields cases in which the choice of trials decides which commit is named."""
    for _ in range(25 if FULL else 1):
        size = rng.randint(20, 90)
        yield Case("several culprits", line(size), set(range(size // 3, size + 1)), {size // 3})
    for _ in range(25 if FULL else 1):
        parents = tangle(rng, rng.randint(20, 70))
        culprits = rng.sample(in_range(parents), 3)
        yield plant_reachable(
            Case("several culprits, merges", parents, tainted(parents, *culprits), set()))
    for _ in range(25 if FULL else 1):
        size = rng.randint(20, 90)
        first, back, again = sorted(rng.sample(range(1, size + 1), 3))
        bad = {*range(first, back), *range(again, size + 1)}
        yield plant_reachable(Case("reverted culprit", line(size), bad, set()))
    for _ in range(25 if FULL else 1):
        # Commits that left the culprit's line before the revert stay bad; git may name where they
        # are merged.
        parents = tangle(rng, rng.randint(30, 90))
        sets = ancestors(parents)
        first, again = sorted(rng.sample(in_range(parents), 2))
        later = [number for number in in_range(parents) if sets[number] >> first & 1]
        back = rng.choice(later)
        bad = {number for number in in_range(parents)
               if sets[number] >> again & 1 or (number in later and not sets[number] >> back & 1)}
        begins = {number for number in bad if not bad & {*parents[number]}}
        yield Case("reverted culprit, merges", parents, bad | {len(parents) - 1},
                   begins | ({len(parents) - 1} - bad))


def untestable_cases(rng):
    for _ in range(25 if FULL else 1):
        size = rng.randint(30, 120)
        culprit, first = rng.randint(2, size), rng.randint(1, size // 2)
        gone = {*range(first, first + size // 3)} - {culprit - 1, culprit}
        yield plain("unbuildable range", line(size), culprit, unbuildable=gone)
    for _ in range(25 if FULL else 1):
        size = rng.randint(30, 120)
        culprit = rng.randint(5, size - 5)
        gone = {*range(culprit - rng.randint(0, 4), culprit + rng.randint(1, 4))}
        yield plain("culprit unbuildable", line(size), culprit, unbuildable=gone,
                    verdict="suspects")
    for _ in range(25 if FULL else 1):
        parents = tangle(rng, rng.randint(20, 100))
        inner = in_range(parents)
        culprit = rng.choice(inner)
        near = {culprit, *parents[culprit], inner[-1]}
        gone = {number for number in inner if rng.random() < 0.3} - near
        yield plain("unbuildable here and there", parents, culprit, unbuildable=gone)


def flag_cases(rng):
    for _ in range(15 if FULL else 1):
        parents, merges = mainline(rng, rng.randint(20, 120))
        # The culprit is in a branch that cannot be built: the merge of the branch is named.
        culprit = rng.randint(1, len(parents) - 1)
        gone = {*range(1, len(parents))} - {*merges}
        first = min(merge for merge in merges if merge >= culprit)
        yield Case("first parents", parents, tainted(parents, culprit), {first}, gone,
                   flags=["--first-parent"])
    for _ in range(15 if FULL else 1):
        yield with_paths(rng, tangle(rng, rng.randint(20, 100)))
    for _ in range(5 if FULL else 1):
        yield with_paths(rng, line(rng.randint(20, 100)), aside=True)


def with_paths(rng, parents, aside=False):
    """Returns a case in which half of the commits touch src, and the culprit does unless `aside` is
    set."""
    inner = in_range(parents)
    touches = {number for number in inner[:-1] if rng.random() < 0.5}
    sets = ancestors(parents)
    files = []
    for number, above in enumerate(parents):
        have = numbers(sets[number]) if len(above) > 1 else [number]
        files.append({f"src/{have_of}": "x" for have_of in have if have_of in touches})
    if aside:
        # Git names the first later commit that touches src.
        culprit = rng.choice([number for number in inner if number < max(touches)
                                 and number not in touches])
        planted = {min(number for number in touches if number > culprit)}
    else:
        culprit = rng.choice(sorted(touches))
        planted = {culprit}
    return Case("paths, culprit aside" if aside else "paths", parents, tainted(parents, culprit),
                planted, files=files, paths=["src"], aside=aside)


def fork_cases(rng):
    for _ in range(15 if FULL else 1):
        parents, base, good, bad = fork(rng, *(rng.randint(1, 40) for _ in range(3)))
        inner = numbers(ancestors(parents)[bad] & ~ancestors(parents)[good])
        yield plain("good is no ancestor", parents, rng.choice(inner), ends=(good, bad))
    for rounds in range(1, 6) if FULL else (2,):
        # The common history is a criss-cross: there are two merge bases, both good.
        parents = criss_cross(rounds)[:-1]
        good, bad = len(parents) - 2, len(parents) - 1
        parents += [[good], [bad], [len(parents) + 1]]
        yield plain("several merge bases", parents, len(parents) - rng.randint(1, 2),
                    ends=(len(parents) - 3, len(parents) - 1))
    for _ in range(10 if FULL else 1):
        parents, base, good, bad = fork(rng, *(rng.randint(1, 40) for _ in range(3)))
        whole = tainted(parents, rng.randint(1, base))
        fixed = set(range(rng.randint(base + 1, good), good + 1))
        yield Case("good has a fix", parents, whole - fixed, {base}, ends=(good, bad),
                   verdict="fixed")


# ---- a second implementation of the search -------------------------------------------------------


def nearness(sets, candidates, number):
    """Returns how many commits a trial of the commit decides, at worst."""
    weight = (sets[number] & candidates).bit_count()
    return min(weight, candidates.bit_count() - weight)


def best(sets, candidates):
    """Returns the largest nearness among the candidates, and the commits that have it."""
    near = {number: nearness(sets, candidates, number) for number in numbers(candidates)}
    most = max(near.values())
    return most, [number for number, value in near.items() if value == most]


def plant_reachable(case):
    """Returns the case with `planted` set to every commit that best choices can lead to."""
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


def every_case(rng):
    """Yields the cases of all kinds."""
    for cases in (linear_cases, merge_cases, ambiguous_cases, untestable_cases, flag_cases,
                  fork_cases):
        yield from cases(rng)
