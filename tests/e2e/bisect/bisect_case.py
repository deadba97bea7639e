# bisect_case.py - shared by the tests of invar bisect: runs the command and guards the repository.
#
# `Case` runs invar over a repository of bisect_repo.py and collects failures: exit codes, messages,
# left processes, and any change of the user's repository.
# SPDX-License-Identifier: Apache-2.0
"""Runs of invar bisect with all checks that every test needs."""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import bisect_repo

MARK = "INVAR_TEST_BISECT"  # in the environment of every process that a test starts
TRIAL = 'test "$(cat value)" = good'


def run(words, env, **more):
    return subprocess.run(words, env=env, capture_output=True, check=False, **more)


def git_says(repo, env):
    """Returns what git reports about a repository."""
    result = {}
    for words in (("status", "--porcelain", "--ignored"), ("for-each-ref",), ("worktree", "list"),
                  ("reflog", "show", "--all"), ("stash", "list"), ("fsck", "--no-progress")):
        done = run(["git", "-C", repo, *words], env)
        result[words[0]] = (done.returncode, done.stdout, done.stderr)
    return result


def differences(before, after):
    return [f"{n}: {before.get(n, 'was not there')} -> {after.get(n, 'is gone')}"
            for n in bisect_repo.changed(before, after)]


def processes(mark):
    """Returns (number, command) of the living processes with the mark, except this one."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if f"{MARK}={mark}".encode() not in file.read().split(b"\0"):
                    continue
            with open(f"/proc/{name}/cmdline", "rb") as file:
                found.append((int(name), file.read().replace(b"\0", b" ").decode(errors="replace")))
        except OSError:
            continue
    return found


def files_below(folder):
    """Returns all files, except those behind links."""
    return [path for where, _, names in os.walk(folder)
            for path in (os.path.join(where, name) for name in names) if not os.path.islink(path)]


def complaints(text):
    return [line for line in text.split("\n") if line.startswith("invar: ")]


def unprintable(text):
    """Returns the first character that a terminal may interpret; None if there is none."""
    return next((c for c in text if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160)), None)


class Case:
    """Runs invar and collects failures."""

    def __init__(self, invar, folder):
        self.invar, self.folder = os.path.abspath(invar), os.path.abspath(folder)
        self.failed, self.checks = [], 0
        shutil.rmtree(self.folder, onerror=unlock)
        os.makedirs(self.path("home"))
        self.mark = f"{os.getpid()}.{time.monotonic_ns()}"
        self.env = bisect_repo.environment(HOME=self.path("home"), GIT_OPTIONAL_LOCKS="0",
                                           **{MARK: self.mark})
        for name in ("XDG_CACHE_HOME", "INVAR_LEDGER", "NO_COLOR", "CI"):
            self.env.pop(name, None)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def complain(self, *lines):
        self.failed.append("\n    ".join(str(line).rstrip() for line in lines if str(line)))

    def expect(self, holds, *lines):
        self.checks += 1
        if not holds:
            self.complain(*lines)

    def plant(self, name, count=12, culprit=8):
        """Makes a repository of `count` commits after a good one. Returns its folder and ids."""
        return self.path(name), bisect_repo.linear(count, culprit).write(self.path(name))

    def read(self, path):
        """Returns the text of a file, and fails if it does not exist."""
        self.expect(os.path.isfile(path), f"{path} is not there")
        with open(path if os.path.isfile(path) else os.devnull, encoding="utf-8") as file:
            return file.read()

    def watch(self, repo):
        """Returns the state of a repository, for unchanged()."""
        says = git_says(repo, self.env)  # first, so that git writes nothing after the fingerprint
        return repo, bisect_repo.fingerprint(repo), says

    def unchanged(self, picture, what):
        repo, files, says = picture
        now = (differences(files, bisect_repo.fingerprint(repo)) +
               differences(says, git_says(repo, self.env)))
        self.expect(not now, f"{what}: the repository is not as it was:", *now[:8])

    def call(self, *words, under=(), timeout=120, env=None, cwd=None):
        """Returns exit code, standard output and standard error; fails if a terminal cannot show
        them."""
        done = run([*under, self.invar, *words], env or self.env, cwd=cwd, timeout=timeout,
                   stdin=subprocess.DEVNULL)
        out, err = (t.decode("utf-8", "surrogateescape") for t in (done.stdout, done.stderr))
        for text in (out, err):
            odd = unprintable(text)
            self.expect(odd is None, f"{' '.join(words)}: prints {odd!r}", text[:400])
        return done.returncode, out, err

    def refuses(self, code, texts, *words, **more):
        """Checks the exit code, an empty output, and one line "invar: ..." with each of the
        texts."""
        rc, out, err = self.call(*words, **more)
        said = complaints(err)
        self.expect(rc == code and not out and len(said) == 1 and
                    all(text in said[0] for text in texts),
                    f"{' '.join(words)}: exit code {rc}, expected {code} and {texts} in one line:",
                    out[:400], err[:1500])
        return err

    def answers(self, code, verdict, *words, **more):
        """Checks the exit code and the verdict of --json, and returns the answer."""
        rc, out, err = self.call(*words, "--json", **more)
        try:
            answer = json.loads(out)
        except ValueError:
            answer = {}
        self.expect(rc == code and answer.get("verdict") == verdict,
                    f"{' '.join(words)}: exit code {rc}, {answer.get('verdict')}, expected {code}, "
                    f"{verdict}:", out[:1500], err[:1500])
        return answer

    def finds(self, culprit, *words, **more):
        """Checks that the first bad commit is this one, and returns the answer."""
        answer = self.answers(0, "found", *words, **more)
        name = (answer.get("culprit") or {}).get("commit")
        self.expect(name == culprit, f"{' '.join(words)}: found {name}, expected {culprit}")
        return answer

    def nobody_left(self, what, patience=2.0):
        """Checks that no process of a trial is alive, and ends those that are, one by one."""
        end = time.monotonic() + patience
        while (found := processes(self.mark)) and time.monotonic() < end:
            time.sleep(0.02)
        self.expect(not found, f"{what}: still running:", *(f"{n} {c}" for n, c in found))
        for number, _ in found:
            try:
                os.kill(number, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def end(self):
        for line in self.failed:
            print(line)
        print(f"{self.checks} checks, {len(self.failed)} failures")
        return 1 if self.failed else 0


def unlock(function, path, _):
    """Error handler of rmtree for folders that a test has locked; a missing path is no error."""
    if os.path.lexists(path):
        os.chmod(os.path.dirname(path), 0o700)
        if not os.path.islink(path):
            os.chmod(path, 0o700)
        shutil.rmtree(path, onerror=unlock) if function is os.scandir else function(path)


class BisectFixture:
    """A repository with a work folder of its own, and command lines over both."""

    def __init__(self, case, name, repo, ids):
        self.case, self.repo, self.ids = case, repo, ids
        self.work = case.path("work", name)

    def words(self, *more, good=None, bad=None, repo=None, work=None):
        return ["bisect", "--good", good or self.ids[0], "--bad", bad or self.ids[-1],
                "--repo", repo or self.repo, "--work", work or self.work, *more]

    def trial(self, *more, **other):
        return self.words("--run", TRIAL, *more, **other)


@contextlib.contextmanager
def place(case, name, count=6, culprit=4, repo=None, ids=None):
    """Yields a BisectFixture, and checks that its repository has not changed."""
    if repo is None:
        repo, ids = case.plant(name, count, culprit)
    picture = case.watch(repo)
    yield BisectFixture(case, name, repo, ids)
    case.unchanged(picture, name)
    case.nobody_left(name)


def at(ids, *numbers):
    """Returns a shell test that is true for these commits."""
    names = "|".join(ids[n] for n in numbers)
    return f'case "$INVAR_COMMIT" in {names}) true;; *) false;; esac'


def run_checks(checks):
    """Main program of a test: INVAR FOLDER [CHECK ...], where each check is a function of a
    Case."""
    case = Case(sys.argv[1], sys.argv[2])
    chosen = sys.argv[3:]
    for check in checks:
        if chosen and check.__name__ not in chosen:
            continue
        before = len(case.failed)
        check(case)
        if len(case.failed) > before:
            case.failed[before] = f"---- {check.__name__}\n{case.failed[before]}"
    return case.end()
