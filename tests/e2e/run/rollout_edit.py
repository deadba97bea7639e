#!/usr/bin/env python3
# rollout_edit.py FILE PATTERN TEXT - edits a rollout file and keeps it valid.
# SPDX-License-Identifier: Apache-2.0
"""Replaces the matches in all lines except the last one, which gets the new hash of the others."""
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
