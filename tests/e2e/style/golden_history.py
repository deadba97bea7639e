#!/usr/bin/env python3
# golden_history.py - a recorded digest never changes at the same op revision.
#
# Compares kernels-deterministic/selfcheck.golden with its version in every commit. A value
# (storage, numerics, op, revision, name) with two digests means that bits changed without a new
# revision. A shallow clone is checked as far as its history goes. Control: a forged digest is
# found.
# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

FILE = "kernels-deterministic/selfcheck.golden"


def values(text):
    """Returns {(storage, numerics, op, revision, name): digest}."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            storage, numerics, op, revision, digest, name = line.split(" ", 5)
            found[storage, numerics, op, revision, name] = digest
    return found


def git(*arguments):
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout


def conflicts(now, versions):
    """Returns (key, commit) of each value of `now` that an earlier version has with another
    digest."""
    return [
        (key, commit)
        for commit, text in versions
        for key, digest in values(text).items()
        if now.get(key, digest) != digest
    ]


def main():
    with open(FILE, encoding="utf-8") as file:
        now = values(file.read())
    commits = git("log", "--format=%H", "--", FILE).split()
    versions = [(commit, git("show", f"{commit}:{FILE}")) for commit in commits]
    # Control: one changed digest is a conflict.
    key, digest = next(iter(now.items()))
    forged = " ".join([*key[:4], digest[::-1], key[4]])
    if not conflicts(now, [("forged", forged)]):
        sys.exit("a forged digest was not noticed")
    found = conflicts(now, versions)
    for key, commit in found:
        print(f"{' '.join(key)}: other bits in {commit[:12]}; raise the revision in ops.def")
    print(f"{len(now)} values, {len(versions)} versions, {len(found)} conflicts")
    sys.exit(bool(found))


main()
