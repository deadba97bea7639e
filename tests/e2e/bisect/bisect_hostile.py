#!/usr/bin/env python3
# bisect_hostile.py INVAR FOLDER - invar bisect over hostile repositories and runaway commands.
#
# Builds that write without end, runs that never end and ignore signals, parallel bisects; names,
# links and trees that lead out of their folder. Nothing outside the work folder may change, no
# process may be left, and all output must be safe for a terminal. With INVAR_TEST_FULL=1 floods and
# files are larger, equal bisects start together more often, and a run in the middle never ends.
# SPDX-License-Identifier: Apache-2.0
"""Bisects of hostile repositories."""
import glob
import os
import resource
import subprocess
import sys
import zlib
import threading

import bisect_repo
from bisect_case import TRIAL, at, files_below, place, run_checks, unprintable
from bisect_repo import git

FULL = bool(os.environ.get("INVAR_TEST_FULL"))


# ---- builds and runs ---------------------------------------------------------------------------

def garbage(case):
    """A build writes without end: the log and the memory are bounded, and the message is clean."""
    size = (200 if FULL else 8) << 20
    noise = case.path("noise")
    with open(noise, "wb") as file:
        file.write(os.urandom(1 << 20))
    flood = f'i=0; while [ $i -lt {size >> 20} ]; do cat "{noise}"; i=$((i + 1)); done'
    with place(case, "garbage") as p:
        case.finds(p.ids[4], *p.trial("--build", flood))
        words = p.trial("--build", flood + r'; printf "\nlast \033[31mwords\n\n"; exit 1')
        rc, out, err = case.call(*words)
        case.expect(rc == 125 and "last" in out + err, f"a flood: exit code {rc}", out, err)
        big = [f for f in files_below(p.work) if os.path.getsize(f) > 3 << 20]
        case.expect(not big, f"logs of a flood: {big}")
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        case.expect(peak < 200 << 10, f"memory of a flood: {peak} KiB")
        # A single line without end is truncated, so that a path in a message stays complete.
        words = p.trial("--build", f'head -c {size >> 2} /dev/zero | tr "\\0" x; exit 1')
        rc, out, err = case.call(*words)
        case.expect(rc == 125 and max(map(len, (out + err).split("\n"))) < 1500,
                    f"an endless line: exit code {rc}", out[:300], err[:300])


def endless(case):
    with place(case, "endless-first", 12, 8) as p:  # the first trial, in the middle, never ends
        run = f"{at(p.ids, 6)} && sleep 600; {TRIAL}"
        answer = case.finds(p.ids[8], *p.words("--run", run, "--timeout", "1"))
        case.expect(any(t["commit"] == p.ids[6] and t["verdict"] == "skip"
                        for t in answer.get("trials", [])), answer)
    with place(case, "endless", 6, 4) as p:
        ids = p.ids
        patience = ["--timeout", "1"]

        def hangs(number, how="sleep 600"):
            return p.words("--run", f"{at(ids, number)} && {how}; {TRIAL}", *patience)

        if FULL:
            case.answers(2, "suspects", *hangs(3))
        rc, out, err = case.call(*hangs(0))
        case.expect(rc == 125 and "within 1 s" in out + err, f"an endless end: {rc}", out, err)
        # The process ignores signals, and so do its children.
        case.answers(125, "untestable", *hangs(6, "(trap '' TERM INT HUP; sleep 600 & sleep 600)"))
        case.nobody_left("an endless run")
        rc, out, err = case.call(*p.trial("--build", "sleep 600", *patience))
        case.expect(rc == 125 and "within 1 s" in out + err, f"an endless build: {rc}", out, err)


def together(case):
    """Several bisects run at once over one repository and work folder; then the same bisect four
    times."""
    with place(case, "together", 12, 8) as p:
        done = {}

        def bisect(name, *words):
            done[name] = case.call(*p.words("--run", f"sleep 0.1; {TRIAL}", "--json", *words))

        threads = [threading.Thread(target=bisect, args=(name, *words)) for name, words in
                   (("one", ()), ("two", ("--skip", p.ids[5])), ("three", ("--jobs", "2",
                                                                         "--skip", p.ids[6])))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name, (rc, out, err) in done.items():
            case.expect(rc == 0 and p.ids[8] in out, f"{name} of three at a time: {rc}", out, err)
        for number in range(5 if FULL else 2):  # one bisect, four times at once
            words = p.words("--run", f"sleep 0.0{number}1; {TRIAL}", "--json")
            same = [subprocess.Popen([case.invar, *words], env=case.env, stdout=subprocess.PIPE,
                                     stderr=subprocess.PIPE) for _ in range(4)]
            said = [(q.communicate(), q.returncode) for q in same]
            case.expect(any(rc == 0 for _, rc in said) and all(
                rc == 0 and p.ids[8].encode() in out or rc == 2 and b"at work" in err
                for (out, err), rc in said), "the same bisect four times at once:", *(
                    (rc, err.decode()) for (_, err), rc in said))


# ---- hostile repositories ----------------------------------------------------------------------

def raw(repo, kind, data):
    """Writes an object that git itself would not make."""
    done = subprocess.run(["git", "-C", repo, "hash-object", "-t", kind, "--literally", "-w",
                           "--stdin"], input=data, capture_output=True, check=True,
                          env=bisect_repo.environment())
    return done.stdout.decode().strip()


def tree(repo, *entries):
    """Writes a tree from (mode, name, id); names are not checked."""
    return raw(repo, "tree", b"".join(b"%s %s\0" % (mode, name) + bytes.fromhex(oid)
                                      for mode, name, oid in entries))


def commit(repo, tree_id, parents, message=b"harmless\n", author=b"Ann <ann@example.org>",
           time=b"1700009999 +0000"):
    head = b"tree %s\n" % tree_id.encode()
    for parent in parents:
        head += b"parent %s\n" % parent.encode()
    for role in (b"author", b"committer"):
        head += b"%s %s %s\n" % (role, author, time)
    return raw(repo, "commit", head + b"\n" + message)


def values(repo):
    return [raw(repo, "blob", text) for text in (b"good\n", b"bad\n")]


def hostile_names(case):
    evil = b"Eve\x1b]0;owned\x07\x9b31m\r\xff\xc2\x9bm \xe2\x80\xae<e\x1b[2Jve@\x00example.org>"
    repo, ids = case.plant("names", 2, 2)
    good, bad = values(repo)
    first = commit(repo, tree(repo, (b"100644", b"value", good)), [ids[1]])
    files = [(b"100644", name, good) for name in
             (b"\x1b[2J", b"$(touch owned)", b"--option", b"<script>alert(1)<b>",
              b"new\nline", b"\xff\xfe")]
    entries = sorted(files + [(b"100644", b"value", bad)], key=lambda e: e[1])
    # A NUL ends the header of a commit only for some readers: it is removed here.
    last = commit(repo, tree(repo, *entries), [first],
                  b"subject\x1b[31m \x07 <b>\r\x9b \xff\xe2\x80\xae'\"&\n\nbody\x1bc\n",
                  evil.replace(b"\0", b""))
    git(repo, "update-ref", "refs/heads/evil", last)
    with place(case, "names", repo=repo, ids=[ids[0], last]) as p:
        page = case.path("names.html")
        answer = case.finds(last, *p.trial("--html", page))
        culprit = {"author": "", "subject": "", "files": [], **(answer.get("culprit") or {})}
        text = culprit["author"] + culprit["subject"] + "".join(f["path"] for f in culprit["files"])
        case.expect(text.isprintable() and all(word in text for word in (
            "e?[2Jve@example.org>", "subject?[31m", "?[2J$(touch owned)", "new?line")),
                    f"JSON: {text!r}")
        rc, out, err = case.call(*p.trial())
        case.expect(rc == 0 and last[:10] in out, f"hostile names: {rc}", out, err)
        for verb in (["log"], ["log", "--git"], ["view"]):
            rc, out, err = case.call("bisect", *verb, "--repo", repo, "--work", p.work)
            case.expect(rc == 0 and last[:12] in out, f"hostile names in {verb}: {rc}", out, err)
        html = case.read(page)
        case.expect(last in html and "<script>alert" not in html and unprintable(html) is None,
                    "hostile names in HTML")


def links(case):
    """Symbolic links lead out of the tree: nothing is written or removed behind them."""
    outside = case.path("outside")
    os.makedirs(outside)
    for name in ("victim", "value"):
        with open(os.path.join(outside, name), "w", encoding="ascii") as file:
            file.write("precious\n")
    picture = bisect_repo.fingerprint(outside)
    repo, ids = case.plant("links", 2, 9)
    good, bad = values(repo)
    target = raw(repo, "blob", outside.encode())
    up = raw(repo, "blob", b"../../../../..")
    link = (b"120000", b"d", target)
    folder = (b"40000", b"d", tree(repo, (b"100644", b"value", good), (b"100644", b"victim", bad)))
    last = ids[-1]
    line = [last]
    for number in range(8):
        value = (b"100644", b"value", bad if number >= 5 else good)
        entries = (folder if number % 2 else link, (b"120000", b"up", up), value)
        last = commit(repo, tree(repo, *entries), [last], b"turn %d\n" % number)
        line.append(last)
    git(repo, "update-ref", "refs/heads/links", last)
    with place(case, "links", repo=repo, ids=line) as p:
        case.finds(line[6], *p.trial())
        # A build replaces folders by links.
        case.finds(line[6], *p.trial("--build", f'rm -rf d && ln -s "{outside}" d'))
        left = bisect_repo.changed(picture, bisect_repo.fingerprint(outside))
        case.expect(not left, f"written through a link: {left}")


def hostile_trees(case):
    """Trees have names that lead out of their folder."""
    victim = case.path("work", "victim")
    for number, name in enumerate((b"..", b".", b".git", b"../../victim", b"a/b", b"", b".GIT",
                                   b"git~1")):
        repo, ids = case.plant(f"trees-{number}", 2, 9)
        good, bad = values(repo)
        inner = tree(repo, (b"100644", b"victim", good))
        entry = (b"100644", name, good) if b"/" in name else (b"40000", name, inner)
        last = commit(repo, tree(repo, entry, (b"100644", b"value", bad)), [ids[-1]])
        git(repo, "update-ref", "refs/heads/evil", last)
        with place(case, f"trees-{number}", repo=repo, ids=[ids[0], last]) as p:
            rc, out, err = case.call(*p.trial())
            # Names that are a problem on other systems only may succeed here.
            fine = (0, 2, 125) if name in (b".GIT", b"git~1") else (2, 125)
            case.expect(rc in fine, f"a tree with {name!r}: exit code {rc}", out, err)
            found = [f for f in files_below(case.path("work"))
                     if f.endswith("/victim") and "/source/" not in f]
            case.expect(not os.path.exists(victim) and not found, f"{name!r} led out: {found}")


def large(case):
    """A file is larger than any buffer."""
    repo, ids = case.plant("large", 2, 2)
    size = (512 if FULL else 6) << 20
    with open(os.path.join(repo, "large"), "wb") as file:
        file.truncate(size)
    git(repo, "-c", "core.bigFileThreshold=1m", "add", "large")
    git(repo, "commit", "-q", "-m", "large")
    ids.append(git(repo, "rev-parse", "HEAD"))
    with place(case, "large", repo=repo, ids=ids) as p:
        trial = f"test ! -e large || test $(wc -c <large) -ne {size}"
        case.finds(ids[-1], *p.words("--run", trial))


def bomb(case):
    """A small object claims to unpack to more than the memory: it is rejected without unpacking."""
    repo, ids = case.plant("bomb", 2, 2)
    oid = "ab" * 20
    os.makedirs(os.path.join(repo, ".git", "objects", oid[:2]), exist_ok=True)
    with open(os.path.join(repo, ".git", "objects", oid[:2], oid[2:]), "wb") as file:
        file.write(zlib.compress(b"blob %d\0" % (600 << 20) + bytes(99)))
    last = commit(repo, tree(repo, (b"100644", b"bomb", oid)), [ids[-1]])
    git(repo, "update-ref", "refs/heads/main", last)
    with place(case, "bomb", repo=repo, ids=[ids[0], last]) as p:
        case.refuses(2, ["bomb", "600 MiB"], *p.trial())


def invalid_times(case):
    """Invalid times: git reads such commits, and so does invar, also when it resolves revisions."""
    repo, ids = case.plant("times", 2, 9)
    good, bad = (tree(repo, (b"100644", b"value", value)) for value in values(repo))
    odd = (b"yesterday", b"", b"99999999999999999999999 +0000", b"-5 +0000", b"1700009999 +0000")
    for number, time in enumerate(odd * 2):
        ids.append(commit(repo, bad if number > 6 else good, [ids[-1]], b"t%d\n" % number,
                          time=time))
    git(repo, "update-ref", "refs/heads/odd", ids[-1])
    with place(case, "times", repo=repo, ids=ids) as p:
        for first, last in ((ids[0], ids[-1]), ("odd~12", "odd"), (ids[5][:12], ids[-3]),
                            ("odd^^~3", "odd~1^0^1")):
            answer = case.finds(ids[10], *p.trial(good=first, bad=last))
            culprit = answer.get("culprit") or {}
            case.expect(culprit.get("subject") == "t7" and
                        culprit.get("author") == "Ann <ann@example.org>", f"{culprit}")
        case.refuses(129, ["odd~99"], *p.trial(good="odd~99"))
        case.refuses(129, ["odd^2"], *p.trial(good="odd^2"))


sys.exit(run_checks((garbage, endless, together, hostile_names, links, hostile_trees, large, bomb,
                     invalid_times)))
