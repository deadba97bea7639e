#!/usr/bin/env python3
# scrape.py INVAR FOLDER - Prometheus metrics of a run, in a file and at a port.
#
# A strict reader of the text format 0.0.4 (prometheus_text.py) reads them during the run and
# afterwards; the values are compared with the ledger.
# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics of invar train."""
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request

import prometheus_text
from fixture import Fixture

ROLLOUTS = 30


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def check_file(s):
    path = s.folder / "a.prom"
    s.train("file", "--prometheus-file", path)
    s.expect(s.chain("file") == s.chain("silent"), "telling changes the chain")
    families = prometheus_text.read(path.read_text(encoding="utf-8"))
    last = 2 * ROLLOUTS - 1
    s.expect(families["invar_step"].values == {(("run", "file"),): last}, "another step")
    s.expect(families["invar_steps_total"].kind == "counter", "steps are a counter")
    s.expect(families["invar_steps_total"].values == {(("run", "file"),): last + 1}, "steps")
    sql = "SELECT name, value_bits FROM {} JOIN series USING (series) WHERE step = {}"
    rows = [row for table in ("metric", "gauge")
            for row in s.select("file", sql.format(table, last))]
    for name, bits in rows:
        value, = struct.unpack("<d", struct.pack("<q", bits))
        if name.startswith("perf/"):
            continue
        found = families["invar_metric"].values[(("name", name), ("run", "file"))]
        s.expect(found == value or value != value, f"{name}: {found}, the ledger has {value}")
    names = {dict(labels)["name"] for labels in families["invar_metric"].values}
    s.expect(any(name.startswith("eval/test/") for name in names), "no evaluation")
    s.expect(not any(name.startswith("perf/") for name in names), "perf twice")
    for family in ("step_duration_seconds", "tokens_per_second", "eta_seconds",
                   "train_flops_per_second"):
        s.expect(f"invar_{family}" in families, f"no invar_{family}")
    s.expect("invar_train_mfu_ratio" not in families, "an MFU of a CPU that nobody has stated")
    s.expect(not list(s.folder.glob("a.prom?*")), "something beside the file")
    told = s.train("mine", "--prometheus-file", s.folder / "a.txt", code=129)
    s.expect("must end in .prom" in told, f"another ending: {told}")


def check_second_writer(s, path, child):
    while s.last_step("first") < 3 and child.poll() is None:
        time.sleep(0.01)
    for more in ([], ["--dry-run"]):
        second = [word for word in s.words("other", "--prometheus-file", path, *more)
                  if not more or word not in ("--no-report", "--json")]
        done = subprocess.run(second, capture_output=True, text=True, timeout=60, check=False)
        s.expect(done.returncode == 2, f"a second writer {more}: {done.returncode}")
        s.expect("prometheus-file: " in done.stderr and "another run writes it" in done.stderr,
                 f"a second writer {more}: {done.stderr}")
    s.expect(not (s.folder / "other").exists(), "the folder of a run that never was")
    before = s.last_step("first")
    while s.last_step("first") < before + 3 and child.poll() is None:
        time.sleep(0.01)
    s.expect('run="first"' in path.read_text(encoding="utf-8"), "the first one is disturbed")


def check_one_writer(s):
    """A file that another run writes is rejected; a file of a killed run is not."""
    path = s.folder / "shared.prom"
    words = s.words("first", "--prometheus-file", path, "--num-rollout", 1000000)
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        try:
            check_second_writer(s, path, child)
        finally:
            child.kill()
    s.train("other", "--prometheus-file", path)
    s.expect('run="other"' in path.read_text(encoding="utf-8"), "another run's numbers")
    s.expect(not list(s.folder.glob("shared.prom?*")), "something beside the file")


def check_escaped_name(s):
    """A run name that needs escapes is one label."""
    path, name = s.folder / "odd.prom", 'a"b\\c'
    words = [word if word != "odd" else name for word in s.words("odd", "--prometheus-file", path)]
    subprocess.run(words, check=True, capture_output=True)
    families = prometheus_text.read(path.read_text(encoding="utf-8"))
    s.expect((("run", name),) in families["invar_step"].values, "an escaped name")


def ask(url, host):
    """Returns the status of a request with this Host header."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Host": host}),
                                    timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def check_responses(s, port):
    url = f"http://127.0.0.1:{port}"
    seen = set()
    for _ in range(2000):
        try:
            with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
                kind = answer.headers["Content-Type"]
                text = answer.read().decode("utf-8")
        except OSError:  # not listening yet, or only the test of the port by the starting run
            time.sleep(0.01)
            continue
        families = prometheus_text.read(text)
        if "invar_step" in families:
            seen |= set(families["invar_step"].values.values())
        if len(seen) > 3:
            break
    s.expect(len(seen) > 3, f"steps {seen} at the port")
    s.expect(kind == "text/plain; version=0.0.4; charset=utf-8", kind)
    for path, data, code in (("/", None, 404), ("/metrics/x", None, 404),
                             ("/metrics", b"x", 405)):
        try:
            urllib.request.urlopen(url + path, data=data, timeout=10)
            s.expect(False, f"{path} is answered")
        except urllib.error.HTTPError as error:
            s.expect(error.code == code, f"{path}: {error.code}")
    for host, code in ((f"127.0.0.1:{port}", 200), (f"localhost:{port}", 200),
                       (f"evil.com:{port}", 403), ("evil.com", 403),
                       (f"127.0.0.1.evil.com:{port}", 403), ("127.0.0.1:1", 403)):
        found = ask(f"{url}/metrics", host)
        s.expect(found == code, f"Host: {host}: {found}")
    # The port is taken by this run.
    told = s.train("second", "--prometheus-port", port, code=2)
    s.expect("prometheus-port: cannot listen" in told, f"a port that is taken: {told}")


def check_port(s):
    port = free_port()
    words = s.words("port", "--prometheus-port", port, "--num-rollout", 1000000)
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        try:
            check_responses(s, port)
        finally:
            child.kill()


def main():
    s = Fixture(*sys.argv[1:], ROLLOUTS)
    prometheus_text.check_itself()
    s.train("silent")
    check_file(s)
    check_one_writer(s)
    check_escaped_name(s)
    check_port(s)
    sys.exit(1 if s.failed else 0)


if __name__ == "__main__":
    main()
