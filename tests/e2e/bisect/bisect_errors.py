#!/usr/bin/env python3
# bisect_errors.py INVAR FOLDER - errors of invar bisect: one clear message, and no harm.
#
# Incomplete repositories, impossible ends and options, builds and runs that fail, folders without
# permission and full disks. Each must end with the right exit code and one line that names the
# remedy, which is tried if possible, or must work. The user's repository must not change, nor the
# times of its files.
# SPDX-License-Identifier: Apache-2.0
"""Errors of invar bisect."""
import contextlib
import glob
import os
import subprocess
import sys
import tempfile

import bisect_repo
from bisect_case import TRIAL, BisectFixture, at, place, run_checks
from bisect_repo import git

NOBODY = 65534
AS_NOBODY = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]


def root():
    return os.getuid() == 0


@contextlib.contextmanager
def mounted(folder, *words):
    """Mounts a file system at `folder`; yields False if this is not permitted."""
    os.makedirs(folder, exist_ok=True)
    done = subprocess.run(["mount", *words, folder], capture_output=True, check=False)
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", folder], check=True)


# ---- repositories ------------------------------------------------------------------------------

def shallow(case):
    repo, ids = case.plant("deep")
    git(case.folder, "clone", "-q", "--depth", "6", f"file://{repo}", case.path("shallow"))
    with place(case, "shallow", repo=case.path("shallow"), ids=ids) as p:
        case.refuses(129, [ids[0][:7], "unshallow"], *p.trial())
        # None of the missing commits is needed.
        case.finds(ids[8], *p.trial(good=ids[-6]))


def partial(case):
    repo, ids = case.plant("promised")
    git(repo, "config", "uploadpack.allowFilter", "true")
    git(case.folder, "clone", "-q", "--filter=blob:none", f"file://{repo}", case.path("partial"))
    with place(case, "partial", repo=case.path("partial"), ids=ids) as p:
        case.refuses(2, ["partial", "git fetch --refetch --no-filter"], *p.trial())
    git(case.path("partial"), "-c", "gc.auto=0", "fetch", "-q", "--refetch", "--no-filter")
    with place(case, "whole", repo=case.path("partial"), ids=ids) as p:
        case.finds(ids[8], *p.trial())


def submodules(case):
    """The value is in a submodule, which has a submodule of its own."""
    allow = ["-c", "protocol.file.allow=always"]
    lib, values = case.plant("lib", 6, 4)
    repo = case.path("super")
    os.makedirs(repo)
    git(repo, "init", "-q", "-b", "main")
    git(repo, *allow, "submodule", "--quiet", "add", f"file://{lib}", "deps/lib")
    ids = []
    for value in values:
        git(os.path.join(repo, "deps/lib"), "checkout", "-q", value)
        git(repo, "commit", "-q", "-a", "-m", f"use {value}")
        ids.append(git(repo, "rev-parse", "HEAD"))
    trial = ["--run", 'test "$(cat deps/lib/value)" = good']
    with place(case, "super", repo=repo, ids=ids) as p:
        case.finds(ids[4], *p.words(*trial))
    git(case.folder, "clone", "-q", repo, case.path("without"))
    with place(case, "without", repo=case.path("without"), ids=ids) as p:
        case.refuses(2, ["deps/lib", "git submodule update --init"], *p.words(*trial))
    git(case.path("without"), *allow, "submodule", "--quiet", "update", "--init", "--recursive")
    with place(case, "without", repo=case.path("without"), ids=ids) as p:
        case.finds(ids[4], *p.words(*trial))


def missing(case):
    """An object in the middle is missing or damaged: a file, a folder, a commit."""
    for kind, revision in (("blob", ":number"), ("tree", "^{tree}"), ("commit", "")):
        for state in ("gone", "rubbish"):
            name = f"{kind}-{state}"
            repo, ids = case.plant(name, 6, 4)
            gone = git(repo, "rev-parse", ids[3] + revision)
            path = os.path.join(repo, ".git", "objects", gone[:2], gone[2:])
            os.remove(path)
            if state == "rubbish":
                with open(path, "wb") as file:
                    file.write(b"x\x9c nothing")
            with place(case, name, repo=repo, ids=ids) as p:
                case.refuses(2, ["git fsck"], *p.trial())


def dirty(case):
    repo, ids = case.plant("dirty", 6, 4)
    for name, text in (("value", "neither\n"), ("staged", "new\n"), ("untracked", "here\n")):
        with open(os.path.join(repo, name), "w", encoding="ascii") as file:
            file.write(text)
    git(repo, "add", "staged")
    os.remove(os.path.join(repo, "number"))
    with open(os.path.join(repo, ".git", "index.lock"), "wb"):
        pass  # stands for a running git
    with place(case, "dirty", repo=repo, ids=ids) as p:
        case.finds(ids[4], *p.trial())
        case.finds(ids[4], *p.trial("--jobs", "2", good=ids[1]))


def other_shapes(case):
    """Bare, linked, from a subfolder and from .git: same result."""
    repo, ids = case.plant("plain", 6, 4)
    git(case.folder, "clone", "-q", "--bare", repo, case.path("bare.git"))
    git(repo, "worktree", "add", "-q", "--detach", case.path("linked"), ids[2])
    os.makedirs(os.path.join(repo, "below"))
    for name in ("bare.git", "linked", "plain", "plain/.git", "plain/below"):
        with place(case, name.replace("/", "-"), repo=case.path(name), ids=ids) as p:
            case.finds(ids[4], *p.trial())
    with place(case, "here", repo=repo, ids=ids) as p:
        words = [w for w in p.trial() if w not in ("--repo", repo)]
        case.finds(ids[4], *words, cwd=repo)
        # HEAD is that of the linked tree.
        case.finds(ids[4], *p.trial(good="HEAD", bad="main", repo=case.path("linked")))


def other_owner(case):
    if not root():
        print("skipped: the owner of a folder cannot be changed here")
        return
    repo, ids = case.plant("foreign", 6, 4)
    for path, inner, files in os.walk(repo):
        for name in [path] + [os.path.join(path, n) for n in inner + files]:
            os.chown(name, NOBODY, NOBODY)
    p = BisectFixture(case, "foreign", repo, ids)
    case.refuses(2, ["safe.directory"], *p.trial())
    with open(case.path("home", ".gitconfig"), "w", encoding="utf-8") as file:
        file.write(f"[safe]\n\tdirectory = {repo}\n")  # the remedy of the message
    env = {k: v for k, v in case.env.items() if k != "GIT_CONFIG_GLOBAL"}
    case.finds(ids[4], *p.trial(), env=env)
    os.remove(case.path("home", ".gitconfig"))


def other_formats(case):
    os.makedirs(case.path("sha256"))
    git(case.path("sha256"), "init", "-q", "--object-format=sha256")
    git(case.path("sha256"), "commit", "-q", "--allow-empty", "-m", "one")
    os.makedirs(case.path("unborn"))
    git(case.path("unborn"), "init", "-q")
    ends = {"good": "HEAD", "bad": "HEAD"}
    p = BisectFixture(case, "formats", case.path("sha256"), ["HEAD"])
    case.refuses(2, ["SHA-1"], *p.trial(**ends))
    with tempfile.TemporaryDirectory() as nothing:  # outside of any repository
        case.refuses(2, [os.path.basename(nothing), "repository"], *p.trial(repo=nothing, **ends))
    case.refuses(2, ["nowhere"], *p.trial(repo=case.path("nowhere"), **ends))
    case.refuses(129, ["HEAD"], *p.trial(repo=case.path("unborn"), **ends))
    git(case.path("unborn"), "config", "core.repositoryformatversion", "1")
    git(case.path("unborn"), "config", "extensions.hovercraft", "eels")
    case.refuses(2, ["hovercraft"], *p.trial(repo=case.path("unborn"), **ends))


def read_only(case):
    repo, ids = case.plant("locked", 6, 4)
    subprocess.run(["chmod", "-R", "a-w", repo], check=True)
    with place(case, "locked", repo=repo, ids=ids) as p:
        case.finds(ids[4], *p.trial())
    subprocess.run(["chmod", "-R", "u+w", repo], check=True)
    with mounted(case.path("frozen"), "--bind", "-o", "ro", repo) as done:
        if not done:
            print("skipped: nothing can be mounted here")
            return
        with place(case, "frozen", repo=case.path("frozen"), ids=ids) as p:
            case.finds(ids[4], *p.trial())


# ---- the command line --------------------------------------------------------------------------

def usage(case):
    repo, ids = case.plant("usage", 6, 4)
    with open(case.path("recipe.ini"), "wb"):
        pass
    recipe = case.path("recipe.ini")
    with place(case, "usage", repo=repo, ids=ids) as p:
        for revision in ("no-such-branch", "HEAD~99", "0" * 40, "--upload-pack=x", "HEAD^{/(}",
                         ids[0] + "^{tree}", "main:value", "HEAD..main", "", "\x1b[31m"):
            shown = revision.replace("\x1b", "")[:24]  # long names are truncated
            for end in ("--good", "--bad"):
                words = p.trial()
                words[words.index(end):words.index(end) + 2] = [f"{end}={revision}"]
                case.refuses(129, [shown], *words)
        case.refuses(129, ["--good"], "bisect", "--bad", ids[-1], "--repo", repo, "--run", TRIAL)
        case.refuses(129, ["RECIPE", "--run"], *p.words())
        case.refuses(129, ["--run"], *p.trial(recipe))
        case.refuses(129, ["--run", "empty"], *p.words("--run", " "))
        case.refuses(129, ["HEAD", "--help"], *p.trial("start", "HEAD"))
        for option, value in (("--jobs", "0"), ("--jobs", "many"), ("--jobs", "1000"),
                              ("--timeout", "-1"), ("--timeout", "soon"), ("--frob", "1"),
                              ("--until", "x"), ("--until", "-7"), ("--until", "3")):
            case.refuses(129, [option], *p.trial(option, value))
        case.refuses(129, ["no-such-branch"], *p.trial("--skip", "no-such-branch"))
        for option, value in (("--skip", ids[3]), ("--paths", "value")):
            case.refuses(129, ["--all-changes", option], *p.trial("--all-changes", option, value))
        for metric in ("nonsense", "loss >", "> 5", "loss ~ 5", "loss > five", "", "a > 1 > 2"):
            case.refuses(129, ["METRIC OP NUMBER"], *p.trial("--metric", metric))
        case.refuses(2, ["nowhere.ini"], *p.words(case.path("nowhere.ini")))
        case.refuses(129, ["recipe.ini"], *p.words(recipe))
        os.makedirs(case.path("folder.ini"), exist_ok=True)
        case.refuses(129, ["folder.ini"], *p.words(case.path("folder.ini")))
        case.expect(not os.path.exists(p.work) or not glob.glob(p.work + "/bisects/*/state"),
                    "a bisect that never began has a state")


def ends(case):
    """Ends that are not what was claimed: the message says what was found and what to do."""
    with place(case, "ends") as p:
        ids = p.ids
        case.refuses(129, ["same commit"], *p.trial(good=ids[5], bad="HEAD~1"))
        for good, bad, words in ((ids[-1], ids[0], ("swapped", "--good")),
                                 (ids[0], ids[2], ("the bad end is good",)),
                                 (ids[4], ids[6], ("the good end is bad",))):
            answer = case.answers(2, "wrong-end", *p.trial(good=good, bad=bad))
            case.expect(answer.get("culprit") is None, f"wrong ends, a culprit: {answer}")
            rc, out, err = case.call(*p.trial(good=good, bad=bad))
            case.expect(rc == 2 and all(word in out for word in words), f"wrong ends: {rc}", out)
        # A parent and its child need no search.
        answer = case.finds(ids[4], *p.trial(good=ids[3], bad=ids[4]))
        case.expect(answer.get("search_trials") == 0, f"neighbours: {answer.get('search_trials')}")


def fixed(case):
    """The good end is on another branch: the merge base is tested, and may be bad."""
    history = bisect_repo.History()
    bad_root = history.add([], value="bad")
    fix = history.add([bad_root], value="good")
    history.add([fix], value="good")
    other = history.add([bad_root], value="bad")
    history.add([other], value="bad")
    repo = case.path("fixed")
    ids = history.write(repo)
    with place(case, "fixed", repo=repo, ids=ids) as p:
        answer = case.answers(2, "fixed", *p.trial(good=ids[2], bad=ids[4]))
        case.expect(any(t["role"] == "merge base" for t in answer.get("trials", [])), answer)
    history = bisect_repo.History()
    for number in range(2):  # two unrelated roots
        history.add([], value="bad" if number else "good")
    repo = case.path("strangers")
    ids = history.write(repo)
    with place(case, "strangers", repo=repo, ids=ids) as p:
        case.finds(ids[1], *p.trial())


# ---- builds and runs ---------------------------------------------------------------------------

def builds(case):
    with place(case, "builds", 12, 8) as p:
        ids = p.ids

        def broken(*numbers):
            return p.trial("--build", f"{at(ids, *numbers)} && echo no >&2 && exit 3; true")

        for end in (0, 12):
            answer = case.answers(125, "untestable", *broken(end))
            case.expect(answer.get("who") == ids[end], answer)
            rc, out, err = case.call(*broken(end))
            log = out.partition("\nlog        ")[2].partition("\n")[0]
            case.expect(case.read(log) == "no\n", f"the build's log {log} does not say why", out)
            case.expect(rc == 125 and ids[end][:7] in out + err and "no" in out + err,
                        "an end that cannot be built:", out, err)
        case.finds(ids[8], *broken(5, 6))
        answer = case.answers(2, "suspects", *broken(6, 7, 8, 9))
        suspects = [s["commit"] if isinstance(s, dict) else s for s in answer.get("suspects", [])]
        case.expect(sorted(suspects) == sorted(ids[6:11]), f"suspects: {suspects}")
        case.finds(ids[8], *p.trial("--skip", f"{ids[5]},{ids[6]}"))
        answer = case.answers(2, "suspects", *p.trial("--skip", f"{ids[7]},{ids[8]}"))
        case.expect(len(answer.get("suspects", [])) == 3, f"skipped: {answer.get('suspects')}")
        for end in (0, 12):
            rc, out, err = case.call(*p.trial("--skip", ids[end]))
            case.expect(rc in (0, 125, 129), f"--skip of an end: exit code {rc}", out, err)


def skips(case):
    """A merge base that --skip names is not run."""
    history = bisect_repo.History()
    base = history.add([history.add([], value="good", build="yes")])
    good, side = history.add([base]), history.add([base])
    bad = history.add([side], value="bad")
    ids = history.write(case.path("skips"))
    ran = case.path("skips.ran")
    run = f'cat number >>"{ran}"; {TRIAL}'
    with place(case, "skips", repo=case.path("skips"), ids=ids) as p:
        words = p.words("--run", run, "--skip", ids[base], good=ids[good])
        answer = case.finds(ids[bad], *words)
        case.expect("cannot be tested" in str(answer.get("story")), "a skipped base", answer)
        case.expect(str(base) not in case.read(ran).split(), "the skipped merge base was run")


def merges(case):
    """The answer about a merge is true: with first parents alone, other parents are unknown."""
    history = bisect_repo.History()
    root = last = history.add([], value="good", build="yes")
    for _ in range(70):  # more trials than the initial capacity of their list
        last = history.add([last], build="no")
    side = history.add([last], value="bad", build="yes")
    merge = history.add([root, side], value="bad", build="yes")
    ids = history.write(case.path("merges"))
    run = f'test "$(cat build)" = yes || exit 125; {TRIAL}'
    with place(case, "merges", repo=case.path("merges"), ids=ids) as p:
        answer = case.answers(0, "changes", *p.words("--run", run, "--all-changes", "--jobs", "4"))
        found = [(c["commit"], c["depth"], c["merge"]) for c in answer.get("changes", [])]
        case.expect(found == [(ids[side], 1, False), (ids[merge], 0, False)], f"changes: {found}")
        answer = case.finds(ids[merge], *p.words("--run", run, "--first-parent"))
        case.expect(not answer["changes"][0]["merge"], "the merge has the value of a parent")
    history.add([root, history.add([root])], value="bad")
    ids = history.write(case.path("merges-own"))
    with place(case, "merges-own", repo=case.path("merges-own"), ids=ids) as p:
        answer = case.finds(ids[-1], *p.words("--run", run))
        case.expect(answer["changes"][0]["merge"], "no parent of the merge has its value")


def moved(case):
    """--repo gives the new location of a log's repository, also if that is the current folder."""
    repo, ids = case.plant("moved", 6, 4)
    p = BisectFixture(case, "moved", repo, ids)
    case.finds(ids[4], *p.trial())
    _, log, _ = case.call("bisect", "log", "--repo", repo, "--work", p.work)
    with open(case.path("moved.log"), "w", encoding="utf-8") as file:
        file.write(log)
    os.rename(repo, repo + ".new")
    words = ["bisect", "resume-log", case.path("moved.log"), "--yes",
             "--work", case.path("work", "moved2")]
    case.refuses(2, ["moved"], *words)
    answer = case.finds(ids[4], *words, "--repo", ".", cwd=repo + ".new")
    case.expect(len(answer.get("trials", [])) == log.count("\ntrial "), "nothing is run again")


def codes(case):
    """Exit codes of a command follow the rules of git bisect run."""
    with place(case, "codes") as p:
        ids = p.ids

        def ends_with(code):
            return p.words("--run", f"{TRIAL} || {code}")

        for code in (1, 2, 124, 126, 127):
            case.finds(ids[4], *ends_with(f"exit {code}"))
        for code in (128, 129, 200, 255):
            case.refuses(2, [str(code)], *ends_with(f"exit {code}"))
        case.refuses(2, ["signal"], *ends_with("kill -SEGV $$"))
        case.answers(125, "untestable", *ends_with("exit 125"))
        answer = case.answers(2, "wrong-end", *p.words("--run", "no-such-command-anywhere"))
        case.expect("not found" in str(answer.get("story")), "no such command, but it says",
                    answer.get("story"))
        answer = case.answers(2, "wrong-end", *p.words("--run", "echo because >&2; exit 3"))
        case.expect("exit code 3: because" in str(answer.get("story")), "a good end that is bad:",
                    answer.get("story"))
        answer = case.answers(125, "untestable", *p.words("--run", "true", "--chain"))
        case.expect("no $INVAR_RUN/ledger.db" in str(answer.get("story")), "no ledger, but it says",
                    answer.get("story"))
        # A result that is not repeated does not count.
        count = case.path("codes.count")
        fickle = f'echo >>"{count}"; test $(wc -l <"{count}") -lt 4 || test "$(cat value)" = good'
        rc, out, err = case.call(*p.words("--run", fickle), "--json")
        case.expect(rc in (2, 3), f"a fickle command: exit code {rc}", out, err)


# ---- folders -----------------------------------------------------------------------------------

def work_folders(case):
    repo, ids = case.plant("folders", 6, 4)
    os.symlink(repo, case.path("alias"))
    with open(case.path("file"), "wb"):
        pass
    with place(case, "folders", repo=repo, ids=ids) as p:
        for inside in (repo, repo + "/w", repo + "/.git/w", case.path("alias", "w"),
                       repo + "/../folders/w", case.path("alias", "a", "b")):
            case.refuses(129, ["inside", "--work"], *p.trial(work=inside))
        case.refuses(2, ["file"], *p.trial(work=case.path("file", "w")))
        case.refuses(2, ["/proc"], *p.trial(work="/proc/nowhere/w"))
        env = {k: v for k, v in case.env.items() if k != "HOME"}
        words = [w for w in p.trial() if w not in ("--work", p.work)]
        case.refuses(129, ["HOME", "--work"], *words, env=env)
        case.finds(ids[4], *p.trial(), env=env)
        case.finds(ids[4], *words, env={**env, "XDG_CACHE_HOME": case.path("cache")})
        case.expect(glob.glob(case.path("cache", "invar", "folders-*")), "the usual place")
        case.finds(ids[4], *words)
        case.expect(glob.glob(case.path("home", ".cache", "invar", "folders-*")), "the usual home")
        for name in (repo, os.path.relpath(repo), repo + "/.git", case.path("alias")):
            rc, out, err = case.call("bisect", "view", "--repo", name)
            case.expect(rc == 0 and ids[4] in out, f"view of {name}: {rc}", out, err)
        case.expect(len(os.listdir(case.path("home", ".cache", "invar"))) == 1, "one usual place")
        odd = case.path("a folder 'with' $odd \"names\"")
        case.finds(ids[4], *p.trial(work=odd))
    git(case.folder, "clone", "-q", "--bare", repo, case.path("naked"))
    with place(case, "naked", repo=case.path("naked"), ids=ids) as p:
        case.refuses(129, ["naked"], *p.trial(work=case.path("naked", "w")))
    git(repo, "worktree", "add", "-q", "--detach", case.path("tree"), ids[2])
    with place(case, "folders-linked", repo=repo, ids=ids) as p:
        for inside in (repo + "/.git/w", case.path("tree", "w")):
            case.refuses(129, ["inside"], *p.trial(repo=case.path("tree"), work=inside))


def no_permission(case):
    if not root():
        under = []
    # `test` runs as the user, because setpriv itself can still open a program below /root that the
    # user cannot.
    elif subprocess.run([*AS_NOBODY, "test", "-x", case.invar, "-a", "-x", case.folder],
                        check=False).returncode == 0:
        under = AS_NOBODY
    else:
        print("skipped: nobody without permissions can run the program")
        return
    repo, ids = case.plant("permission", 6, 4)
    work = case.path("forbidden")
    os.makedirs(work)
    os.chmod(work, 0o555)
    if under:
        subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", repo], check=True)
    p = BisectFixture(case, "permission", repo, ids)
    case.refuses(2, ["ermission denied"], *p.trial(work=os.path.join(work, "w")), under=under)
    if under:
        case.refuses(2, ["another user"], *p.trial(work=work), under=under)


def full_disk(case):
    repo, ids = case.plant("disk", 6, 4)
    blob = os.path.join(repo, "blob")
    with open(blob, "wb") as file:
        file.write(os.urandom(300000))
    git(repo, "add", "blob")
    git(repo, "commit", "-q", "-m", "something larger")
    ids.append(git(repo, "rev-parse", "HEAD"))
    disk = case.path("small")
    with mounted(disk, "-t", "tmpfs", "-o", "size=200k", "none") as done:
        if done:
            with place(case, "disk", repo=repo, ids=ids) as p:
                p.work = os.path.join(disk, "w")
                case.refuses(2, ["No space left"], *p.trial())
                subprocess.run(["mount", "-o", "remount,size=20m", disk], check=True)
                case.finds(ids[4], *p.trial())
        else:
            print("skipped: a small disk cannot be mounted here")
    limit = ["bash", "-c", 'trap "" XFSZ; ulimit -f 150; exec "$@"', "limited"]
    with place(case, "limit", repo=repo, ids=ids) as p:
        case.refuses(2, ["arge"], *p.trial(), under=limit)  # the message is "File too large"
        case.finds(ids[4], *p.trial())


sys.exit(run_checks((
    shallow, partial, submodules, missing, dirty, other_shapes, other_owner, other_formats,
    read_only, usage, ends, fixed, builds, skips, merges, moved, codes, work_folders,
    no_permission, full_disk)))
