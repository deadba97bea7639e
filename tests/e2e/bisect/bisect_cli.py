#!/usr/bin/env python3
# bisect_cli.py INVAR FOLDER - the output of invar bisect, and its commands log, view, resume-log
# and reset.
#
# The log for git is replayed by git itself and must arrive at the same commit. The own log is
# continued in another work folder without repeating a trial. Output is checked as JSON, on a
# terminal (with colors) and in a pipe (without).
# SPDX-License-Identifier: Apache-2.0
"""The output and the subcommands of invar bisect."""
import glob
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time

import bisect_repo
from bisect_case import Case, complaints, run
from bisect_repo import git

COMMITS, CULPRIT, BROKEN = 20, 13, 10
OPTIONS = ("--good", "--bad", "--run", "--build", "--program", "--repo", "--until", "--metric",
           "--chain", "--first-parent", "--paths", "--skip", "--all-changes", "--jobs", "--timeout",
           "--work", "--html", "--json")


class Setup:
    """A repository with one commit that cannot be tested, and trials that write to a diary file."""

    def __init__(self, case):
        self.case, self.repo, self.diary = case, case.path("user"), case.path("diary")
        history = bisect_repo.linear(COMMITS, CULPRIT)
        history.files[BROKEN]["build"] = "no"
        history.files[BROKEN + 1]["build"] = "yes"
        self.ids = history.write(self.repo)
        self.culprit = self.ids[CULPRIT]
        with open(self.diary, "wb"):
            pass

    def trials(self):
        with open(self.diary, encoding="ascii") as file:
            return file.read().split()

    def words(self, work, *more, pause="0"):
        command = (f'echo "$INVAR_COMMIT" >>"{self.diary}"; sleep {pause}; '
                   'test "$(cat build)" = yes || exit 125; test "$(cat value)" = good')
        return ["bisect", "--good", self.ids[0], "--bad", self.ids[-1], "--run", command,
                *self.place(work), *more]

    def place(self, work):
        return ["--repo", self.repo, "--work", self.case.path(work)]

    def reads(self, *words, what):
        """Returns the output of a call that must succeed."""
        rc, out, err = self.case.call(*words)
        self.case.expect(rc == 0, f"{what}: exit code {rc}", out, err)
        return out

    def quietly(self, *words, what):
        """Returns the output of a call that must succeed without running a trial."""
        before = len(self.trials())
        out = self.reads(*words, what=what)
        self.case.expect(len(self.trials()) == before, f"{what}: ran a trial")
        return out


def check_help(case):
    rc, text, _ = case.call("help", "bisect")
    case.expect(rc == 0 and all(option in text for option in OPTIONS), "help bisect lacks",
                [option for option in OPTIONS if option not in text], text)
    for words in (("bisect", "--help"), ("bisect", "-h")):
        rc, again, _ = case.call(*words)
        case.expect(rc == 0 and again == text, f"{words}: not what help says", again)
    for verb, option in (("log", "--git"), ("view", "--html"), ("resume-log", "FILE"),
                         ("reset", "--work")):
        case.expect(verb in text, f"help bisect does not name {verb}")
        rc, out, err = case.call("bisect", verb, "--help")
        case.expect(rc == 0 and option in out, f"bisect {verb} --help: {rc}", out, err)
    rc, out, err = case.call("help")
    case.expect("bisect" in out, "help does not name bisect", out)


def check_nothing_yet(case, setup):
    for verb in ("log", "view"):
        err = case.refuses(2, ["bisect", "--good"], "bisect", verb, *setup.place("empty"))
        case.expect("yet" in err or "no bisect" in err, f"{verb} without a bisect: {err}")
    rc, out, err = case.call("bisect", "reset", *setup.place("empty"))
    case.expect(rc == 0 and "removed 0" in out, f"reset without a bisect: {rc}", out, err)
    for words in (("log", "--frob"), ("view", "extra"), ("resume-log",), ("resume-log", "a", "b"),
                  ("reset", "--git")):
        rc, out, err = case.call("bisect", *words, *setup.place("empty"))
        case.expect(rc == 129 and len(complaints(err)) == 1, f"bisect {words}: {rc}", out, err)


def check_output(case, setup):
    """Progress goes to standard error, one plain line per trial; the answer goes to standard
    output."""
    rc, out, err = case.call(*setup.words("main"))
    case.expect(rc == 0 and setup.culprit[:10] in out, f"exit code {rc}", out, err)
    case.expect("found" in out.split("\n")[0], "the verdict comes first:", out)
    tested = set(setup.trials())
    lines = err.rstrip("\n").split("\n")
    case.expect(len(lines) >= len(tested) and all(
        any(commit[:7] in line for line in lines) for commit in tested),
        "no progress on standard error:", err)
    case.expect(not complaints(err), "complaints without trouble:", err)
    answer = case.finds(setup.culprit, *setup.words("main"))
    roles = [trial["role"] for trial in answer["trials"]]
    case.expect(roles[:2] == ["good end", "bad end"] and "search" in roles and
                roles[-1] == "again", f"roles: {roles}")
    case.expect(answer["range"] == COMMITS and answer["confirmed"] and not answer["third"] and
                answer["search_trials"] == roles.count("search"), answer)
    culprit = answer["culprit"]
    case.expect(culprit["author"] == f"{bisect_repo.NAME} <{bisect_repo.MAIL}>" and
                culprit["subject"] == f"commit {CULPRIT}" and
                culprit["parent"] == setup.ids[CULPRIT - 1] and
                culprit["time"] == bisect_repo.EPOCH + 60 * CULPRIT, f"the culprit: {culprit}")
    return answer


def check_log(case, setup):
    ours = setup.quietly("bisect", "log", *setup.place("main"), what="log")
    case.expect(setup.culprit in ours and all(c in ours for c in setup.trials()), "log:", ours)
    theirs = setup.quietly("bisect", "log", "--git", *setup.place("main"), what="log --git")
    clone = case.path("clone")
    git(case.folder, "clone", "-q", setup.repo, clone)
    with open(case.path("git.log"), "w", encoding="utf-8") as file:
        file.write(theirs)
    done = run(["git", "-C", clone, "bisect", "replay", case.path("git.log")], case.env)
    said = done.stdout.decode(errors="replace")
    case.expect(done.returncode == 0 and f"{setup.culprit} is the first bad commit" in said,
                f"git bisect replay: {done.returncode}", said, done.stderr.decode(), theirs)
    case.expect(git(clone, "rev-parse", "refs/bisect/bad") == setup.culprit, "git's bad")
    case.expect(f"git bisect skip {setup.ids[BROKEN]}" in theirs, "what was skipped:", theirs)
    return ours


def without_times(value):
    """Returns an answer without the values that may differ from call to call."""
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items()
                if not k.endswith("_s") and k not in ("work", "via", "cost")}
    return [without_times(v) for v in value] if isinstance(value, list) else value


def check_view(case, setup, answer):
    text = setup.quietly("bisect", "view", *setup.place("main"), what="view")
    case.expect(setup.culprit in text and "\x1b" not in text, "view:", text)
    seen = json.loads(setup.quietly("bisect", "view", "--json", *setup.place("main"), what="json"))
    case.expect(without_times(seen) == without_times(answer), "view --json is another answer:",
                without_times(seen), without_times(answer))
    page = case.path("page.html")
    setup.quietly("bisect", "view", "--html", page, *setup.place("main"), what="html")
    html = case.read(page)
    case.expect(setup.culprit in html and not re.search(r"""(src|href)=["']?(https?:)?//""", html),
                "the page is not self-contained, or has no culprit")
    case.refuses(2, ["nowhere"], "bisect", "view", "--html", case.path("nowhere", "page.html"),
                 *setup.place("main"))


def check_resume(case, setup, log):
    """A log in another work folder: its trials are not repeated."""
    path = case.path("our.log")
    with open(path, "w", encoding="utf-8") as file:
        file.write(log)
    setup.quietly("bisect", "resume-log", path, "--yes", *setup.place("elsewhere"),
                  what="resume-log")
    before = len(setup.trials())
    case.finds(setup.culprit, *setup.words("elsewhere"))
    case.expect(len(setup.trials()) == before, "after resume-log trials ran again")

    # The log ends halfway.
    lines = log.rstrip("\n").split("\n")
    trials = [n for n, line in enumerate(lines) if line.startswith("trial ")]
    case.expect(len(trials) > 4, "a log without trials:", log)
    half = case.path("half.log")
    with open(half, "w", encoding="utf-8") as file:
        file.write("\n".join(lines[:trials[3]]) + "\n")
    before = len(setup.trials())
    answer = case.finds(setup.culprit, "bisect", "resume-log", half, "--yes",
                        *setup.place("half"))
    case.expect(len(setup.trials()) - before == len(answer.get("trials", [])) - 3,
                f"half of the way: {len(setup.trials()) - before} trials of",
                len(answer.get("trials", [])))

    with open(case.path("rubbish.log"), "wb") as file:
        file.write(b"git bisect start\n\0\xff" * 99)
    case.refuses(2, ["rubbish.log"], "bisect", "resume-log", case.path("rubbish.log"),
                 *setup.place("rubbish"))
    with open(path, "rb") as file:
        whole = file.read()
    for name, text in ("empty.log", b""), ("cut.log", whole[:40]), ("odd.log", whole + b"odd\n"):
        with open(case.path(name), "wb") as file:
            file.write(text)
        case.refuses(2, [name, "a whole one is what 'invar bisect log' prints"], "bisect",
                     "resume-log", case.path(name), *setup.place("rubbish"))
    case.refuses(2, ["no.log"], "bisect", "resume-log", case.path("no.log"),
                 *setup.place("rubbish"))
    other, _ = case.plant("other", 2, 1)
    rc, out, err = case.call("bisect", "resume-log", path, "--yes", "--repo", other,
                             "--work", case.path("strange"))
    case.expect(rc in (2, 129) and len(complaints(err)) == 1, f"another repository's log: {rc}",
                out, err)


def check_resume_asks(case, setup, log):
    """All commands of a log are shown completely, and run only after confirmation."""
    lines = log.split("\n")
    planted = case.path("planted")
    run_line = next(n for n, line in enumerate(lines) if line.startswith("run "))
    words = f"touch\\s{planted};\\sprintf\\s'\x1b[2K'\\n{'true;' * 999}echo\\slast;exit\\s0"
    lines[run_line] = "run " + words
    path = case.path("planted.log")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(line for line in lines if not line.startswith("trial ")))
    log_words = ["bisect", "resume-log", path, *setup.place("planted.work")]
    shown = (f"touch {planted}; printf '\\x1b[2K'", "echo last", setup.repo)

    err = case.refuses(129, ["planted.log", "--yes"], *log_words)
    case.expect(all(text in err for text in shown), "the commands are not shown:", err)
    env = {**case.env, "TERM": "xterm"}
    for answer in ("n\n", "\n", "\x04"):
        rc, said = at_terminal([case.invar, *log_words], env, answer)
        case.expect(rc == 2 and all(text in said for text in shown) and "nothing was run" in said,
                    f"answer {answer!r}: exit code {rc}", said)
    case.expect(not os.path.exists(planted), "a command ran before anybody agreed")
    rc, said = at_terminal([case.invar, *log_words], env, "y\n")
    case.expect(os.path.exists(planted), f"agreed, and nothing ran: {rc}", said)


def check_reset(case, setup):
    states = case.path("main", "bisects", "*", "state")
    case.expect(glob.glob(states), "there is nothing to remove")
    out = setup.quietly("bisect", "reset", *setup.place("main"), what="reset")
    case.expect("remove" in out, "reset does not say what it did:", out)
    case.expect(not glob.glob(states), "reset left", glob.glob(states))
    case.refuses(2, ["bisect"], "bisect", "view", *setup.place("main"))
    rc, out, err = case.call("bisect", "reset", *setup.place("main"))
    case.expect(rc == 0 and "removed 0" in out, f"reset again: {rc}", out, err)
    before = len(setup.trials())
    case.finds(setup.culprit, *setup.words("main"))
    case.expect(len(setup.trials()) > before, "after a reset nothing was tested")


def check_reset_at_work(case, setup):
    """A bisect that is running cannot be reset."""
    words = setup.words("busy", pause="0.1")
    process = subprocess.Popen([case.invar, *words, "--json"], env=case.env, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    begun = len(setup.trials())
    while process.poll() is None and len(setup.trials()) < begun + 2:
        time.sleep(0.005)
    case.refuses(2, ["at work"], "bisect", "reset", *setup.place("busy"))
    setup.reads("bisect", "log", *setup.place("busy"), what="log of a bisect at work")
    case.refuses(2, ["no answer yet"], "bisect", "view", *setup.place("busy"))
    out, _ = process.communicate(timeout=60)
    case.expect(process.returncode == 0 and setup.culprit.encode() in out,
                f"a bisect that was looked at: {process.returncode}", out)


def at_terminal(words, env, typed=""):
    """Returns the exit code and the output on a terminal."""
    number, terminal = pty.fork()
    if number == 0:
        os.execve(words[0], words, env)
    os.write(terminal, typed.encode())
    shown = b""
    try:
        while chunk := os.read(terminal, 65536):
            shown += chunk
    except OSError:
        pass  # end of the output, on Linux
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]), shown.decode(errors="replace")


def check_terminal(case, setup):
    plain = {**case.env, "TERM": "xterm"}
    signal.alarm(120)
    rc, shown = at_terminal([case.invar, *setup.words("tty")], plain)
    case.expect(rc == 0 and "\x1b[" in shown and setup.culprit in shown, f"at a terminal: {rc}",
                repr(shown))
    for further in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        rc, shown = at_terminal([case.invar, "bisect", "view", *setup.place("tty")],
                                {**plain, **further})
        case.expect(rc == 0 and "\x1b[" not in shown and setup.culprit in shown,
                    f"a terminal with {further}: {rc}", repr(shown))
    signal.alarm(0)


def main():
    case = Case(sys.argv[1], sys.argv[2])
    setup = Setup(case)
    picture = case.watch(setup.repo)
    check_help(case)
    check_nothing_yet(case, setup)
    answer = check_output(case, setup)
    log = check_log(case, setup)
    check_view(case, setup, answer)
    check_resume(case, setup, log)
    check_resume_asks(case, setup, log)
    check_reset(case, setup)
    check_reset_at_work(case, setup)
    check_terminal(case, setup)
    case.unchanged(picture, "after all of it")
    case.nobody_left("after all of it")
    return case.end()


sys.exit(main())
