#!/usr/bin/env python3
# commits.py - checks the messages of commits: what they change, and why.
#
# A subject is "area: imperative", in at most 72 characters. A commit of more than ten changed lines
# has a body of at least one sentence besides its line "Numerics: ...". Commits up to FIRST are
# exempt; a shallow clone is checked as far as its history goes. Control: bad messages are found.
# SPDX-License-Identifier: Apache-2.0
"""Rules for commit messages."""
import re
import subprocess
import sys

FIRST = "96a1dd65"  # the last commit before these rules
SUBJECT = 72        # maximum number of characters
SMALL = 10          # maximum number of changed lines of a commit without a body
# First words of subjects that state or name something instead of asking for a change.
NOT_IMPERATIVE = re.compile(r"(?:the|a|an|one|two|no|all|some|every|\w+(?:ed|ing|s))$")
IMPERATIVE = {"address", "compress", "embed", "express", "feed", "need", "pass", "process", "seed",
              "speed", "stress", "suppress", "bring", "string", "discuss", "bless", "miss", "press"}


def complaints(subject, body, lines):
    """Yields what is wrong with the message of a commit that changes this number of lines."""
    area, colon, rest = subject.partition(": ")
    words = rest.split()
    if not colon or not words or len(area) > 40:
        yield "the subject is not \"area: what the commit does\""
    elif NOT_IMPERATIVE.match(words[0].lower()) and words[0].lower() not in IMPERATIVE:
        yield f"\"{words[0]}\" is not a verb in the imperative"
    if len(subject) > SUBJECT:
        yield f"the subject has {len(subject)} characters, {SUBJECT} are allowed"
    reason = re.sub(r"^[A-Z][\w-]+: .*$", "", body, flags=re.M).split()
    if len(reason) < 4 and lines > SMALL:
        yield f"{lines} lines change, and the body does not say why"


def git(*arguments):
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def messages(commits):
    """Yields the hash, subject, body and number of changed lines of each commit of a range."""
    text = git("log", "--no-merges", "--shortstat", "--format=%x00%H%x01%s%x01%b%x01", commits)
    for record in text.split("\0")[1:]:
        commit, subject, body, stat = record.split("\1")
        lines = sum(map(int, re.findall(r"(\d+) (?:insertion|deletion)", stat)))
        yield commit, subject, body, lines


def main():
    # Control: the rules reject bad messages.
    for subject, body, lines in (("engine: run", "", 99), ("engine: rows of ops", "a b c d", 1),
                                 ("engine: fixed rows", "a b c d", 1), ("fix rows", "a b c d", 1),
                                 ("engine: fix " + "x" * 72, "a b c d", 1)):
        if not list(complaints(subject, body, lines)):
            sys.exit(f"a bad message was not noticed: {subject}")
    known = git("rev-parse", "--verify", "-q", f"{FIRST}^{{commit}}").strip()
    commits = list(messages(f"{FIRST}..HEAD")) if known else []
    found = 0
    for commit, subject, body, lines in commits:
        for complaint in complaints(subject, body, lines):
            print(f"{commit[:12]} {subject}: {complaint}")
            found += 1
    print(f"{len(commits)} commits, {found} findings")
    sys.exit(bool(found))


main()
