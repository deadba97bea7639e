#!/usr/bin/env python3
# refused.py INVAR FOLDER - impossible dashboard settings are rejected before anything is written.
#
# Each wrong setting is tried for a new run, a resumed run, a fresh run and dry runs: exit code, a
# message with the key, and no changed file. Control: correct settings work.
# SPDX-License-Identifier: Apache-2.0
"""Wrong settings of dashboards."""
import hashlib
import os
import pathlib
import shutil
import socket
import subprocess
import sys

from fixture import Fixture

ROLLOUTS = 4
USAGE, TROUBLE = 129, 2


def picture(folder):
    """Returns all paths in a folder, with the digests of the files."""
    return {str(path.relative_to(folder)):
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file()
            else path.lstat().st_mode
            for path in folder.rglob("*")}


def settings(s, port):
    """Returns (flags, exit code, words of the message)."""
    foreign, folder = s.folder / "foreign.prom", s.folder / "folder.prom"
    link, pipe = s.folder / "link.prom", s.folder / "pipe.prom"
    foreign.write_text("mine\n", encoding="ascii")
    folder.mkdir()
    link.symlink_to("empty.prom")
    os.mkfifo(pipe)
    data = s.folder / "plain"
    data.write_text("no program\n", encoding="ascii")
    return [
        (["--sink", "/nonexist"], TROUBLE, "sink: cannot start /nonexist: No such file"),
        (["--sink", "no-such-program x"], TROUBLE, "sink: cannot start no-such-program"),
        (["--sink", s.folder], TROUBLE, "Permission denied"),
        (["--sink", data], TROUBLE, "Permission denied"),
        (["--sink", "cat 'x"], USAGE, "sink: the command has a quote without its end"),
        (["--tensorboard-dir", data], TROUBLE, "tensorboard-dir: "),
        (["--tensorboard-dir", data / "below"], TROUBLE, "tensorboard-dir: "),
        (["--prometheus-file", s.folder / "a.txt"], USAGE, "must end in .prom"),
        (["--prometheus-file", foreign], USAGE, "prometheus-file: "),
        (["--prometheus-file", folder], USAGE, "prometheus-file: "),
        (["--prometheus-file", s.folder / "none/a.prom"], TROUBLE, "create it first"),
        (["--prometheus-file", data / "a.prom"], TROUBLE, "prometheus-file: "),
        (["--prometheus-file", link], USAGE, "is a symbolic link, and is not replaced"),
        (["--prometheus-file", pipe], USAGE, "is a pipe, and is not replaced"),
        (["--prometheus-port", port], TROUBLE, "prometheus-port: cannot listen"),
        (["--trace", foreign], USAGE, "foreign.prom"),
        (["--trace", link], USAGE, "is a symbolic link, and is not replaced"),
        (["--trace", pipe], USAGE, "is a pipe, and is not replaced"),
        (["--trace", s.folder], USAGE, "is a folder"),
        (["--trace", s.folder / "none/t.json"], TROUBLE,
         "its folder does not exist; create it first"),
    ]


def check_setting(s, flags, code, words, invar=None):
    before = picture(s.folder)
    for run, more in (("new", []), ("old", []), ("old", ["--fresh"]), ("new", ["--dry-run"]),
                      ("old", ["--dry-run"])):
        command = s.words(run, *flags, *more)
        if more == ["--dry-run"]:
            command = [word for word in command if word not in ("--no-report", "--json")]
        command[0] = invar or command[0]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        what = f"{run} {flags} {more}"
        s.expect(done.returncode == code, f"{what}: exit code {done.returncode}: {done.stderr}")
        s.expect(words in done.stderr, f"{what}: {done.stderr}")
        after = picture(s.folder)
        s.expect(after == before, f"{what}: written: {after.items() ^ before.items()}")
        if after != before:
            sys.exit(1)  # the folder has changed, so the next checks would be meaningless


def check_log(s):
    """A pipe, folder or link at the path of sink.log is rejected."""
    log = s.folder / "old/sink.log"
    for make in (os.mkfifo, os.mkdir, lambda path: os.symlink("target", path)):
        make(log)
        check_log_once(s)
        (os.rmdir if log.is_dir() else os.unlink)(log)


def check_log_once(s):
    before = picture(s.folder)
    for more in ([], ["--dry-run"]):
        command = [word for word in s.words("old", "--sink", "cat", *more)
                   if not more or word not in ("--no-report", "--json")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        s.expect(done.returncode == TROUBLE and "it is no file; move away" in done.stderr,
                 f"sink.log, {more}: {done.returncode}: {done.stderr}")
        s.expect(picture(s.folder) == before, f"sink.log, {more}: written")


def main():
    s = Fixture(*sys.argv[1:], ROLLOUTS)
    s.train("old", "--until", 3)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for setting in settings(s, taken.getsockname()[1]):
            check_setting(s, *setting)
        port = taken.getsockname()[1]
    alone = s.folder / "alone/invar"  # a program without its modules
    alone.parent.mkdir()
    shutil.copy2(pathlib.Path(s.invar).resolve(), alone)
    check_setting(s, ["--prometheus-port", port], TROUBLE, "prometheus-port: ", str(alone))
    check_log(s)
    # Control: the same commands with correct settings.
    board = s.folder / "missing/board"  # the run creates it
    good = ["--sink", "cat", "--tensorboard-dir", board, "--prometheus-port", port]
    for run in ("old", "new"):
        files = [s.folder / run / name for name in ("a.prom", "t.json")]
        told = s.train(run, *good, "--prometheus-file", files[0], "--trace", files[1])
        s.expect("sink" not in told and "prometheus" not in told, f"{run}: {told}")
        for file in files:
            s.expect(file.exists(), f"{file}: is not in the run's folder")
    s.expect(board.is_dir(), f"{board}: was not made")
    s.train("unseen", "--trace", "/dev/null")
    s.expect(s.chain("old") == s.chain("new"), "another chain")
    sys.exit(1 if s.failed else 0)


if __name__ == "__main__":
    main()
