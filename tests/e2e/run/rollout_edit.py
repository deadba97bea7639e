#!/usr/bin/env python3
# rollout_edit.py FILE PATTERN TEXT - changes a file of rollouts, which stays a whole one.
# SPDX-License-Identifier: Apache-2.0
"""Replaces what matches in all lines but the last, which gets their hash."""
import hashlib
import re
import sys


def main():
    path, pattern, text = sys.argv[1:]
    with open(path, encoding="ascii") as file:
        *lines, end = file.readlines()
    body = re.sub(pattern, text, "".join(lines))
    digest = hashlib.sha256(body.encode("ascii")).hexdigest()
    with open(path, "w", encoding="ascii") as file:
        file.write(body + re.sub("[0-9a-f]{64}", digest, end))


if __name__ == "__main__":
    main()
