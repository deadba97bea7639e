#!/usr/bin/env python3
# watch_serve.py INVAR FOLDER - invar ledger watch --serve: the page of a run while it trains.
#
# The page, its state and its data are those of the ledger, and follow a run, also one that is
# killed and resumed. Requests with another Host, or other than GET, are rejected; the server
# listens only on this machine; the ledger does not change.
# SPDX-License-Identifier: Apache-2.0
import atexit
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import tiny  # noqa: E402  pylint: disable=wrong-import-position

wrong = []


def expect(good, what):
    if not good:
        wrong.append(what)


class Watch:
    """The program with its page, and requests to it."""

    def __init__(self, invar, run, *words):
        self.process = subprocess.Popen([invar, "ledger", "watch", run, "--serve", *words],
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        line = self.process.stdout.readline()
        match = re.fullmatch(r"page at http://127\.0\.0\.1:(\d+)/\n", line)
        if not match:
            sys.exit(f"no page: {line}{self.process.stdout.read()}")
        atexit.register(self.process.kill)
        self.port = int(match[1])
        self.lines = []
        threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True).start()

    def wait_for(self, what, seconds=60):
        """Waits for a printed line that contains `what`. Returns whether there is one."""
        end = time.monotonic() + seconds
        while not any(what in line for line in self.lines) and time.monotonic() < end:
            time.sleep(0.05)
        return any(what in line for line in self.lines)

    def ask(self, path, method="GET", host=None):
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        link.putrequest(method, path, skip_host=True)
        if host != "":
            link.putheader("Host", host or f"127.0.0.1:{self.port}")
        link.endheaders()
        reply = link.getresponse()
        body = reply.read().decode()
        link.close()
        return reply.status, reply.getheader("Content-Type"), body

    def state(self):
        return json.loads(self.ask("/state")[2])

    def end(self):
        expect(self.process.poll() is None, "the page does not stay")
        self.process.send_signal(signal.SIGINT)
        expect(self.process.wait(30) in (130, -signal.SIGINT), "Ctrl-C does not end it")


def listens_at(port):
    """Returns the addresses on which the system listens at this port."""
    found = []
    for name in ("tcp", "tcp6"):
        rows = pathlib.Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        found += [row.split()[1].split(":")[0] for row in rows
                  if row.split()[1].endswith(f":{port:04X}") and row.split()[3] == "0A"]
    return found


def train(invar, *words):
    """Starts a run that ends with this test."""
    run = subprocess.Popen([invar, "train", "tiny.ini", "--no-report", *words],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    atexit.register(run.kill)
    return run


def has_saved(run, seconds=60):
    """Waits for a checkpoint of the run. Returns whether there is one."""
    end = time.monotonic() + seconds
    mark = pathlib.Path(run, "checkpoints/latest_checkpointed_iteration.txt")
    while not mark.exists() and time.monotonic() < end:
        time.sleep(0.05)
    return mark.exists()


def check_finished(invar):
    """Checks the responses about a finished run, and the rejected requests."""
    before = pathlib.Path("done/ledger.db").read_bytes()
    watch = Watch(invar, "done")
    status, kind, page = watch.ask("/")
    expect(status == 200 and kind.startswith("text/html"), f"the page: {status} {kind}")
    expect("connect-src 'self'" in page and "data-live" in page, "the page is not live")
    status, kind, data = watch.ask("/data")
    expect(status == 200 and kind == "application/json", f"the data: {status} {kind}")
    inside = re.search(r'id="data">(.*?)</script', page, re.S)[1]
    expect(json.loads(inside) == json.loads(data), "the data of the page are others")
    expect(json.loads(data)["runs"][0]["last"] == 2, "the data are of another run")
    expect(json.loads(data)["runs"][0]["segments"][-1]["stopped"] == 0, "it was not stopped")
    expect(watch.state()["over"] is True, "the run is not over")
    for host in ("evil.example", "127.0.0.1", f"evil.example:{watch.port}", "localhost:1", ""):
        status = watch.ask("/data", host=host)[0]
        expect(status in (400, 403), f"Host '{host}' is answered: {status}")
    for host in (f"localhost:{watch.port}", f"LocalHost:{watch.port}"):
        expect(watch.ask("/", host=host)[0] == 200, f"{host} is refused")
    said = watch.ask("/", host=f"localhost:{watch.port + 1}")[2]
    expect(f"localhost:{watch.port};" in said and "ssh -L" in said, f"another port: {said!r}")
    for method in ("POST", "PUT", "DELETE", "HEAD"):
        expect(watch.ask("/", method)[0] == 405, f"{method} is answered")
    for path in ("/x", "/data/", "/../ledger.db", "//", "/ledger.db"):
        expect(watch.ask(path)[0] == 404, f"{path} is answered")
    expect(listens_at(watch.port) == ["0100007F"], f"it listens at {listens_at(watch.port)}")
    taken = subprocess.run([invar, "ledger", "watch", "done", "--serve", str(watch.port)],
                           capture_output=True, text=True)
    expect(taken.returncode == 2 and "cannot listen" in taken.stderr, f"a taken port: {taken}")
    watch.end()
    expect(pathlib.Path("done/ledger.db").read_bytes() == before, "the ledger was changed")
    saved = subprocess.run([invar, "ledger", "report", "done", "--out", "-"], capture_output=True,
                           text=True).stdout
    expect("connect-src" not in saved and "<html lang=\"en\">" in saved, "a saved page is live")
    for flag, left in (("--no-samples", True), ("--share", False)):
        short = subprocess.run([invar, "ledger", "report", "done", "--out", "-", flag],
                               capture_output=True, text=True).stdout
        expect('"samples":[{' in saved and '"samples":[]' in short, f"{flag}: there are samples")
        expect('"author":' in saved and ('"author":' in short) == left, f"{flag}: the author")


def check_running(invar):
    """Checks that a running run gets more entries until it is stopped."""
    run = train(invar, "--run", "live")
    while not pathlib.Path("live/ledger.db").exists():
        time.sleep(0.05)
    time.sleep(1)
    watch = Watch(invar, "live", "--interval", "0.2")
    first, steps = watch.state(), json.loads(watch.ask("/data")[2])["runs"][0]["last"]
    for _ in range(300):
        if watch.state()["entries"] > first["entries"]:
            break
        time.sleep(0.1)
    expect(first["over"] is False, "a running run is over")
    for path in ("/data", "/"):
        expect('"running":true' in watch.ask(path)[2], f"{path}: a running run is not called so")
    expect(json.loads(watch.ask("/data")[2])["runs"][0]["last"] > steps, "there are no new steps")
    run.send_signal(signal.SIGINT)
    run.wait(60)
    last = watch.state()
    expect(last["over"] is True, "a run that was stopped goes on")
    ended = json.loads(watch.ask("/data")[2])["runs"][0]["segments"][-1]
    expect(ended["stopped"] == 1 and ended["exit"] == 130, f"it is not called stopped: {ended}")
    expect('"running":false' in watch.ask("/data")[2], "a run that was stopped is called running")
    expect(watch.ask("/")[0] == 200, "the page is gone with the run")
    watch.end()


def check_resumed(invar):
    """Checks that the page and the terminal follow a run that is killed and resumed."""
    words = ("--run", "twice", "--save-interval", "5", "--keep-checkpoints", "2")
    run = train(invar, *words)
    expect(has_saved("twice"), "the run saves nothing")
    watch = Watch(invar, "twice", "--interval", "0.1")
    expect(watch.wait_for("step "), "no step is told")
    run.kill()
    run.wait(60)
    expect(watch.wait_for("was killed after step"), f"nobody says that it died: {watch.lines[-3:]}")
    dead = watch.state()
    expect(dead["over"] is True, "a run that was killed goes on")
    expect('"running":false' in watch.ask("/data")[2], "a run that was killed is called running")
    run = train(invar, *words)
    expect(watch.wait_for("segment 1 begins"), f"the resume is not told: {watch.lines[-3:]}")
    told = len(watch.lines)
    while len(watch.lines) == told and run.poll() is None:
        time.sleep(0.05)
    expect(watch.lines[-1].startswith("step "), f"no step of the resume: {watch.lines[-3:]}")
    state = watch.state()
    expect(state["over"] is False and state["entries"] > dead["entries"], f"{dead}, then {state}")
    expect(len(json.loads(watch.ask("/data")[2])["runs"][0]["segments"]) == 2, "one segment")
    run.send_signal(signal.SIGINT)
    run.wait(60)
    expect(watch.wait_for("with exit code"), f"its end is not told: {watch.lines[-3:]}")
    kept = sum("the page stays" in line for line in watch.lines)
    expect(kept == 2, f"that the page stays is said {kept} times")
    watch.end()


def main():
    invar, folder = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.chdir(folder)
    pathlib.Path("tiny.ini").write_text(tiny.recipe(100000))
    subprocess.run([invar, "train", "tiny.ini", "--run", "done", "--num-rollout", "3",
                    "--no-report"], check=True, capture_output=True)
    check_finished(str(invar))
    check_running(str(invar))
    check_resumed(str(invar))
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
