#!/usr/bin/env python3
# sinks.py INVAR FOLDER - sink programs that receive the events of a run: correct, dying, stuck and
# slow ones.
#
# A sink must not change the chain, exit code or pace of the run; undelivered events are counted and
# reported. Control: a changed value differs from the ledger. With INVAR_TEST_FULL=1 a run with a
# slow sink is compared with one without a sink.
# SPDX-License-Identifier: Apache-2.0
"""Sink programs."""
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import time

from fixture import Fixture

ROLLOUTS = 30

WRITES = """import sys
with open(sys.argv[1], "a") as out:
    for line in sys.stdin:
        out.write(line)
        out.flush()
print("all is written")
"""


class Sinks(Fixture):
    """Runs with sinks."""

    def sink(self, run, program, *flags, code=0):
        path = self.folder / f"{run}.py"
        path.write_text(program, encoding="ascii")
        lines = self.folder / f"{run}.jsonl"
        return self.train(run, "--sink", f"'{sys.executable}' '{path}' '{lines}'", *flags,
                          code=code)

    def lines(self, run):
        with open(self.folder / f"{run}.jsonl", encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def same(self, run):
        self.expect(self.chain(run) == self.chain("silent"), f"{run}: another chain")
        self.expect(self.select(run, "SELECT count(*) FROM segment") == [(1,)], f"{run}: resumed")


def sent(lines):
    """Returns {(step, name): value} of the lines "step"."""
    return {(line["step"], name): float(value) for line in lines if line["event"] == "step"
            for name, value in line["metrics"].items()}


def recorded(s, run):
    sql = "SELECT step, name, value_bits FROM timeline JOIN {} USING (run, step, seg) " \
          "JOIN series USING (series)"
    rows = s.select(run, sql.format("metric")) + s.select(run, sql.format("gauge"))
    rows += s.select(run, "SELECT step, name, value_bits FROM evaluation JOIN series "
                          "USING (series)")
    return {(step, name): struct.unpack("<d", struct.pack("<q", bits))[0]
            for step, name, bits in rows}


def check_good(s):
    words = s.sink("good", WRITES)
    s.expect("sink:" not in words, f"a good sink: {words}")
    s.same("good")
    lines = s.lines("good")
    begin, end = lines[0], lines[-1]
    s.expect((begin["event"], begin["protocol"], begin["after"]) == ("begin", 1, -1), begin)
    s.expect(begin["run"] == s.select("good", "SELECT uuid FROM run")[0][0], "another run")
    s.expect(begin["recipe"]["num-rollout"] == str(ROLLOUTS), "no recipe")
    s.expect(end == {"event": "end", "status": "done", "step": 2 * ROLLOUTS - 1}, end)
    steps = [line["step"] for line in lines[1:-1]]
    s.expect(steps == list(range(-1, 2 * ROLLOUTS)), f"steps {steps}")
    wanted = recorded(s, "good")
    s.expect(sent(lines) == wanted, f"not as in the ledger: {sent(lines).items() ^ wanted.items()}")
    wanted[(0, "train/loss")] += 1e-12  # control: a changed value
    s.expect(sent(lines) != wanted, "a wrong number was not noticed")
    s.expect((s.folder / "good/sink.log").read_text() == "all is written\n", "its log")


def check_resumed(s):
    s.sink("parts", WRITES, "--until", 20)
    s.sink("parts", WRITES)
    lines = s.lines("parts")
    events = [line["event"] for line in lines if line["event"] != "step"]
    s.expect(events == ["begin", "end", "begin", "end"], f"resumed: {events}")
    s.expect([line["after"] for line in lines if line["event"] == "begin"] == [-1, 21], "after")
    s.expect(sent(lines) == recorded(s, "parts"), "resumed: other numbers than in the ledger")
    steps = [line["step"] for line in lines if line["event"] == "step"]
    s.expect(len(set(steps)) == len(steps), "resumed: a step twice")
    s.expect(s.chain("parts") == s.chain("silent"), "resumed: another chain")


def check_wait(s):
    """Waiting for a slow sink is reported once and can be interrupted; a quick sink causes no
    wait."""
    waiting = "sink: waiting up to 600 s"
    words = s.words("waits", "--sink", "sleep 1000", "--sink-timeout", 600)
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True) as child:
        told = ""
        for line in child.stderr:
            told += line
            if waiting in line:
                child.send_signal(signal.SIGINT)
        s.expect(child.wait(timeout=60) == 0, f"waits: exit code {child.returncode}")
    s.expect(told.count(waiting) == 1, f"waits: {told}")
    s.expect("not ended when the wait for it was stopped, and was killed" in told, f"waits: {told}")
    s.same("waits")
    s.expect("waiting" not in s.sink("quick", WRITES), "quick: it was waited for")


def is_alive(pid):
    """Returns whether the process exists and is not a zombie."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def check_orphans(s):
    """SIGKILL of the run: the kernel ends the sink, and the end of input ends its child."""
    program, pids = s.folder / "orphans.py", s.folder / "pids"
    program.write_text("import os, subprocess, sys, time\n"
                       "child = subprocess.Popen(['cat'], stdout=subprocess.DEVNULL)\n"
                       "open(sys.argv[1] + '.new', 'w').write(f'{os.getpid()} {child.pid}')\n"
                       "os.rename(sys.argv[1] + '.new', sys.argv[1])\n"
                       "time.sleep(1000)\n", encoding="ascii")
    words = s.words("orphans", "--num-rollout", 1000000, "--sink",
                    f"'{sys.executable}' '{program}' '{pids}'")
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        while not pids.exists() and child.poll() is None:
            time.sleep(0.01)
        both = pids.read_text(encoding="ascii").split()
        s.expect(all(map(is_alive, both)), f"orphans: {both} have ended too early")
        child.kill()
    for _ in range(1000):
        if not any(map(is_alive, both)):
            return
        time.sleep(0.01)
    s.expect(False, f"orphans: {[pid for pid in both if is_alive(pid)]} of {both} live on")


def check_bad(s):
    words = s.sink("dies", "import sys\nsys.stdin.readline()\nsys.exit('no more')\n")
    s.expect("sink: it reads no more" in words, f"dies: {words}")
    s.expect("were dropped: it reads no more; it ended with exit code 1" in words, f"dies: {words}")
    s.expect("no more" in (s.folder / "dies/sink.log").read_text(), "dies: its log")
    s.same("dies")
    words = s.sink("killed", "import os\nos.kill(os.getpid(), 9)\n")
    s.expect("it ended with signal 9" in words, f"killed: {words}")
    s.same("killed")
    begin = time.monotonic()
    words = s.sink("deaf", "import time\ntime.sleep(1000)\n", "--sink-timeout", 1)
    s.expect("it had not ended after sink-timeout, and was killed" in words, f"deaf: {words}")
    s.expect(time.monotonic() - begin < 60, "deaf: it was waited for")
    s.same("deaf")
    log = (s.folder / "deaf/train.log").read_text()
    s.expect("it had not ended after sink-timeout" in log, f"deaf: train.log has {log}")
    check_wait(s)
    check_orphans(s)
    words = s.sink("closes", "import os, time\nos.close(0)\ntime.sleep(0.5)\n")
    s.expect("sink: it reads no more" in words, f"closes: {words}")
    s.same("closes")
    # A grandchild that keeps the pipe open is ended, too.
    words = s.sink("parent", "import os, time\nif os.fork() == 0:\n    os.setsid()\n"
                   f"    open({str(s.folder / 'pid')!r}, 'w').write(str(os.getpid()))\n"
                   "    time.sleep(1000)\n", "--sink-timeout", 5)
    s.same("parent")
    stat = pathlib.Path("/proc", (s.folder / "pid").read_text(), "stat")
    s.expect(not stat.exists() or ") Z" in stat.read_text(), "parent: its child lives on")


def check_flood(s):
    """Sends more lines than the queue and the pipe hold, to a sink that begins to read at the
    end."""
    late = "import sys, time\nwhile not __import__('os').path.exists(sys.argv[1] + '.go'):\n" \
           "    time.sleep(0.05)\n" + WRITES
    s.recipe.write_text(s.recipe.read_text().replace(f"num-rollout = {ROLLOUTS}",
                                                     "num-rollout = 500"))
    words = s.sink("flooded", late, "--save-interval", 1000, "--sink-timeout", 1)
    s.expect("lines were dropped: it was too slow" in words, f"flooded: {words}")
    if os.environ.get("INVAR_TEST_FULL"):
        s.train("flood-silent", "--save-interval", 1000)
        s.expect(s.chain("flooded") == s.chain("flood-silent"), "flooded: another chain")


def check_loud(s):
    """A sink prints without end: its log is limited."""
    words = s.train("loud", "--sink", "yes", "--sink-timeout", 1)
    s.expect("was killed" in words, f"loud: {words}")
    s.expect(words.count("its log has 16 MiB") == 1, f"loud: {words}")
    size = (s.folder / "loud/sink.log").stat().st_size
    s.expect(size == 16 << 20, f"loud: its log has {size} bytes")
    s.same("loud")
    # Control: a log of exactly the limit is kept completely.
    fits = "import sys\nsys.stdout.write('x' * (16 << 20))\nsys.stdin.read()\n"
    words = s.sink("fits", fits)
    s.expect("sink:" not in words, f"fits: {words}")
    s.expect((s.folder / "fits/sink.log").stat().st_size == 16 << 20, "fits: its log")


def check_wrong(s):
    words = s.train("wrong", "--sink", "no-such-program", code=2)
    s.expect("cannot start no-such-program" in words, f"wrong: {words}")
    words = s.train("quote", "--sink", "a 'b", code=129)
    s.expect("sink" in words, f"quote: {words}")
    words = s.train("unused", "--sink-timeout", 5, code=129)
    s.expect("sink" in words, f"unused: {words}")


def main():
    s = Sinks(*sys.argv[1:], ROLLOUTS)
    s.train("silent")
    check_good(s)
    check_resumed(s)
    check_bad(s)
    check_loud(s)
    check_wrong(s)
    check_flood(s)
    sys.exit(1 if s.failed else 0)


if __name__ == "__main__":
    main()
