#!/usr/bin/env python3
# events.py INVAR FOLDER - TensorBoard events that a run writes are those of the export.
#
# A complete run, one that is stopped and resumed, and some that are killed between checkpoints, so
# that steps are executed again: each time the file has the bytes of `invar ledger export`, so no
# step is in it twice. A file that a kill truncated is repaired; with INVAR_TEST_FULL=1 after more
# kinds of damage. The chain does not change. Control: a flipped bit.
# SPDX-License-Identifier: Apache-2.0
"""Live TensorBoard events."""
import os
import struct
import subprocess
import sys

from fixture import Fixture

ROLLOUTS = 40


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7f) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return value, at


def inner(data, at, field):
    """Returns the bytes of a protobuf field that is a message or a text."""
    head, at = varint(data, at)
    length, at = varint(data, at)
    if head != field << 3 | 2:
        raise ValueError(f"field {head >> 3}, not {field}")
    return data[at:at + length]


def scalars(data):
    """Returns (step, tag) of all complete records, and the end of the last one."""
    found, at = [], 0
    while at + 16 <= len(data):
        length, = struct.unpack_from("<Q", data, at)
        if at + 16 + length > len(data):
            break
        event = data[at + 12:at + 12 + length]
        if event[9] == 2 << 3:  # follows the wall time; in the first record, this is the version
            step, rest = varint(event, 10)
            step -= (step >> 63) << 64
            found.append((step, inner(inner(inner(event, rest, 5), 0, 1), 0, 1).decode()))
        at += 16 + length
    return found, at


class Boards(Fixture):
    """Runs that write TensorBoard events."""

    def file(self, run):
        """Returns the one event file of the run."""
        there = sorted((self.folder / "board" / run).iterdir())
        self.expect(len(there) == 1 and "tfevents" in there[0].name, f"{run}: {there}")
        return there[0]

    def exported(self, run):
        to = self.folder / f"export-{run}-{self.last_step(run)}"
        if not to.exists():
            subprocess.run([self.invar, "ledger", "export", str(self.folder / run),
                            "--tensorboard", str(to)], check=True, stderr=subprocess.DEVNULL)
        return next((to / run).iterdir())

    def equal(self, run):
        """Returns whether the live file equals a new export."""
        live, exported = self.file(run), self.exported(run)
        return live.name == exported.name and live.read_bytes() == exported.read_bytes()

    def check(self, run):
        data = self.file(run).read_bytes()
        found, end = scalars(data)
        self.expect(self.equal(run), f"{run}: other bytes than the export")
        self.expect(end == len(data), f"{run}: {len(data) - end} bytes behind the last record")
        self.expect(len(set(found)) == len(found), f"{run}: a step stands there twice")
        wanted = {step for step, in self.select(run, "SELECT step FROM timeline")}
        self.expect(wanted <= {step for step, _ in found}, f"{run}: steps are missing")
        evaluated = {step for step, tag in found if tag.startswith("eval/")}
        self.expect(-1 in evaluated and 7 in evaluated, f"{run}: evaluations at {evaluated} alone")
        return data


def kill_between_saves(s, run, flags):
    """Kills the run after a step that no checkpoint has, and returns the number of such steps.

    On a busy machine the kill may come just after a checkpoint: then the run continues a little.
    """
    newest = s.folder / run / "checkpoints/latest_checkpointed_iteration.txt"
    step = 37
    while True:
        s.kill_at(step, run, *flags)
        lost = s.last_step(run) - int(newest.read_text("ascii"))
        if lost > 0 or s.failed:
            return lost
        step = s.last_step(run) + 3


def check_kill(s, flags):
    """Kills runs, damages the file as a power failure may, and resumes them."""
    flags = [*flags, "--save-interval", 10]
    damages = [lambda data: data[:-5], lambda data: b"x" + data[1:]]
    if os.environ.get("INVAR_TEST_FULL"):
        damages += [lambda data: data, lambda data: data[:700], lambda data: data + b"rubbish"]
    for n, damage in enumerate(damages):
        run = f"killed{n}"
        lost = kill_between_saves(s, run, flags)
        path = s.file(run)
        data = path.read_bytes()
        found, _ = scalars(data)
        s.expect(len({step for step, _ in found}) > 20, f"{run}: a kill leaves {len(found)} values")
        path.write_bytes(damage(data))
        s.train(run, *flags)
        again = s.select(run, "SELECT count(*) - count(DISTINCT step) FROM step")[0][0]
        s.expect(again == lost > 0, f"{run}: {again} steps were executed again, not {lost}")
        s.check(run)
        s.expect(s.chain(run) == s.chain("whole"), f"{run}: another chain")


def check_back(s, flags):
    """Resumes from an earlier checkpoint with fewer steps: the others are still in the ledger."""
    flags = [*flags, "--save-interval", 10]
    s.train("back", *flags)
    before = scalars(s.file("back").read_bytes())[0]
    s.train("back", *flags, "--ckpt-step", 19, "--num-rollout", 15)
    s.expect(s.select("back", "SELECT count(*) - count(DISTINCT step) FROM step")[0][0] == 10,
             "back: another number of steps was executed again")
    s.check("back")
    s.expect(scalars(s.file("back").read_bytes())[0] == before, "back: steps were cut off")


def check_removed(s):
    """The folder is removed while the run trains: it prints one message, and the chain stays."""
    board, log = s.folder / "gone", s.folder / "removed/train.log"
    remove = f"import shutil, sys\nfor line in sys.stdin:\n    if '\"step\":9,' in line:\n" \
             f"        shutil.rmtree({str(board)!r})\n"
    path = s.folder / "remove.py"
    path.write_text(remove, encoding="ascii")
    told = s.train("removed", "--tensorboard-dir", board, "--num-rollout", 300, "--sink",
                   f"'{sys.executable}' '{path}'")
    for text in (told, log.read_text(encoding="utf-8")):
        s.expect(text.count("tensorboard-dir: ") == 1 and "was removed; the run goes on" in text,
                 f"a folder that was removed: {text}")


def main():
    invar, folder = sys.argv[1:]
    s = Boards(invar, folder, ROLLOUTS)
    flags = ["--tensorboard-dir", s.folder / "board"]
    s.train("silent")
    s.train("whole", *flags)
    s.expect(s.chain("silent") == s.chain("whole"), "telling changes the chain")
    whole = s.check("whole")
    # A stopped run continues the same file.
    s.train("parts", *flags, "--until", 21)
    inode, first = s.file("parts").stat().st_ino, s.file("parts").read_bytes()
    s.train("parts", *flags)
    s.expect(s.file("parts").stat().st_ino == inode, "another file")
    parts = s.check("parts")
    s.expect(parts.startswith(first) and len(parts) > len(first), "it was written anew")
    s.expect(scalars(parts)[0] == scalars(whole)[0], "other steps than in one go")
    check_kill(s, flags)
    check_back(s, flags)
    # A finished run changes nothing, and events of another run are not touched.
    s.train("whole", *flags)
    s.expect(s.file("whole").read_bytes() == whole, "a run that is done was written again")
    told = s.train("whole", *flags, "--fresh", code=129)
    s.expect("has events already" in told, f"events of another run: {told}")
    s.expect(not (s.folder / "whole.1").exists(), "set aside before it was refused")
    told = s.train("file", "--tensorboard-dir", s.recipe, code=2)
    s.expect("tiny.ini" in told, f"a file as a folder: {told}")
    check_removed(s)
    # Control: one flipped bit of the file.
    s.file("whole").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    s.expect(not s.equal("whole"), "a wrong bit was not noticed")
    sys.exit(1 if s.failed else 0)


if __name__ == "__main__":
    main()
