#!/usr/bin/env python3
# commands.py FILE [STAGE] - the shell commands of a CI file or of a stage of a Dockerfile.
#
# FILE is docs/ci/github-actions.yml (`run:`), docs/ci/gitlab-ci.yml (`script:`) or a Dockerfile
# (RUN, of the STAGE counted from 0). Prints one shell script: a file is read as far as ours go, and
# what is written otherwise is refused, not skipped.
# SPDX-License-Identifier: Apache-2.0
"""What CI and Docker would run."""
import pathlib
import re
import sys


def indent(line):
    return len(line) - len(line.lstrip())


def block(lines, at):
    """The lines below lines[at] that are indented more than it, without comments."""
    below = []
    for line in lines[at + 1:]:
        if line.strip() and indent(line) <= indent(lines[at].replace("- ", "  ", 1)):
            break
        if line.strip() and not line.strip().startswith("#"):
            below.append(line.strip())
    return below


def of_workflow(lines):
    for at, line in enumerate(lines):
        match = re.match(r"\s*(?:- )?run: (.*)$", line)
        if match:
            yield from block(lines, at) if match[1] == "|" else [match[1]]


def of_pipeline(lines):
    for at, line in enumerate(lines):
        if re.match(r"\s*(?:before_|after_)?script:\s*$", line):
            for command in block(lines, at):
                if not command.startswith("- "):
                    sys.exit(f"commands.py: {command}: a list of commands was expected")
                yield command[2:]


def of_stage(text, stage):
    stages = re.split(r"^FROM ", re.sub(r"\\\n\s*", "", text), flags=re.M)[1:]
    for command in re.findall(r"^RUN (.*)$", stages[stage], re.M):
        yield f"({command})"  # each begins in the WORKDIR again


def main():
    path = pathlib.Path(sys.argv[1])
    text = path.read_text(encoding="utf-8")
    if path.name == "Dockerfile":
        commands = list(of_stage(text, int(sys.argv[2])))
    elif re.search(r"^jobs:", text, re.M):
        commands = list(of_workflow(text.splitlines()))
    else:
        commands = list(of_pipeline(text.splitlines()))
    if not commands:
        sys.exit(f"commands.py: {path}: no command was found")
    print("set -eux")
    print("\n".join(commands))


if __name__ == "__main__":
    main()
