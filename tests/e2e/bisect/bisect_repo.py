# bisect_repo.py - repositories for the tests of bisect: histories as plain data, written by git.
#
#     history = History()
#     root = history.add([], value="good", build="yes")
#     last = history.add([root], value="bad")
#     ids = history.write(folder)  # git init, fast-import, a work tree with the last commit
#
# SPDX-License-Identifier: Apache-2.0
"""Repositories for the tests of bisect."""
import hashlib
import os
import shutil
import subprocess
import sys

EPOCH = 1_700_000_000
NAME, MAIL = "Ann Maker", "ann@example.org"
ENVIRONMENT = {
    "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0",
    "GIT_AUTHOR_NAME": NAME, "GIT_AUTHOR_EMAIL": MAIL, "GIT_AUTHOR_DATE": f"{EPOCH} +0000",
    "GIT_COMMITTER_NAME": NAME, "GIT_COMMITTER_EMAIL": MAIL, "GIT_COMMITTER_DATE": f"{EPOCH} +0000",
    "LC_ALL": "C",
}
# Verdict on a tree, for git and for invar: untestable if the file `build` has "no", else by the
# file `value`. Each execution appends the commit's number to the file $COUNT.
VERDICT = """\
if test -n "$COUNT"; then cat number >> "$COUNT"; fi
if test "$(cat build)" = no; then exit 125; fi
test "$(cat value)" = good
"""


def environment(**further):
    """Returns the environment of a child: fixed names and dates, and no variables of git from
    outside."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    return {**kept, **ENVIRONMENT, **further}


def git(folder, *words, stdin=None):
    """Returns the output of git in a folder."""
    done = subprocess.run(["git", *map(str, words)], cwd=folder, input=stdin, text=True,
                          capture_output=True, env=environment(), check=False)
    if done.returncode != 0:
        sys.exit(f"git {' '.join(map(str, words))} in {folder}: exit code {done.returncode}\n"
                 f"{done.stdout}{done.stderr}")
    return done.stdout.strip()


class History:
    """Commits by number, parents before children; each has all files of its first parent."""

    def __init__(self):
        self.parents, self.files, self.subjects, self.dates = [], [], [], []

    def __len__(self):
        return len(self.parents)

    def add(self, parents, subject=None, files=None, date=None, **named):
        """Adds a commit with the files that it sets, by path or by keyword; None removes a file."""
        number = len(self.parents)
        self.parents.append(list(parents))
        self.files.append({"number": str(number), **(files or {}), **named})
        self.subjects.append(subject or f"commit {number}")
        self.dates.append(EPOCH + 60 * number if date is None else date)
        return number

    def stream(self):
        """Yields the input of git fast-import: main is the last commit; tipN is another commit
        without children."""
        inner = {parent for parents in self.parents for parent in parents}
        for number, parents in enumerate(self.parents):
            yield "reset refs/heads/main\n" if not parents else ""
            yield (f"commit refs/heads/main\nmark :{number + 1}\n"
                   f"committer {NAME} <{MAIL}> {self.dates[number]} +0000\n"
                   f"data {len(self.subjects[number].encode())}\n{self.subjects[number]}\n")
            for place, parent in enumerate(parents):
                yield f"{'merge' if place else 'from'} :{parent + 1}\n"
            for path, text in sorted(self.files[number].items()):
                if text is None:
                    yield f"D {path}\n"
                else:
                    yield f"M 100644 inline {path}\ndata {len(text.encode()) + 1}\n{text}\n\n"
        for number in range(len(self) - 1):
            if number not in inner:
                yield f"reset refs/heads/tip{number}\nfrom :{number + 1}\n\n"
        yield "done\n"

    def write(self, folder):
        """Creates the repository with a clean work tree of the last commit. Returns all ids."""
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        git(folder, "init", "-q", "-b", "main")
        marks = os.path.join(folder, ".git", "marks")
        git(folder, "fast-import", "--quiet", "--done", "--force", f"--export-marks={marks}",
            stdin="".join(self.stream()))
        ids = [""] * len(self)
        with open(marks, encoding="ascii") as file:
            for line in file:
                mark, name = line.split()
                ids[int(mark[1:]) - 1] = name
        os.remove(marks)
        git(folder, "reset", "-q", "--hard")
        return ids


def line(commits):
    """Returns a linear history with these files."""
    history = History()
    for number, files in enumerate(commits):
        history.add([number - 1] if number else [], files=files)
    return history


def linear(count, culprit, **files):
    """Returns a good root and `count` commits, bad from `culprit` (1 to count) on."""
    history = History()
    last = history.add([], value="good", build="yes", **files)
    for number in range(1, count + 1):
        last = history.add([last], value="bad" if number >= culprit else "good")
    return history


def fingerprint(folder):
    """Returns mode, modification time and content of every file and folder below."""
    found = {}
    for path, folders, files in os.walk(folder):
        for name in folders + files:
            whole = os.path.join(path, name)
            about = os.lstat(whole)
            content = b""
            if os.path.islink(whole):
                content = os.readlink(whole).encode()
            elif name in files:
                with open(whole, "rb") as file:
                    content = hashlib.sha256(file.read()).digest()
            found[os.path.relpath(whole, folder)] = (about.st_mode, about.st_mtime_ns, content)
    return found


def changed(before, after):
    """Returns the paths at which two fingerprints differ."""
    return sorted(path for path in before.keys() | after.keys()
                  if before.get(path) != after.get(path))
