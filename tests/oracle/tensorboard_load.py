#!/usr/bin/env python3
# tensorboard_load.py JSONL LOGDIR RUN - TensorBoard finds the scalars of the run's JSON.
#
# Both are exports of one run. Compared for every scalar, without tolerance: tag, step, wall time
# and value as float32, both as read by the event accumulator of TensorBoard's older plug-ins and as
# served by its web server. Negative control: a value that differs in one bit is found.
# SPDX-License-Identifier: Apache-2.0
"""The event files of an export, read by TensorBoard itself."""
import json
import struct
import sys
import urllib.parse
import urllib.request

from tensorboard import program
from tensorboard.backend.event_processing import event_accumulator


def single(bits):
    """Returns the float32 nearest to a double given by its bits, as text that distinguishes all
    values."""
    value = struct.unpack("<d", struct.pack("<Q", int(bits, 16)))[0]
    return text(struct.unpack("<f", overflowing_pack(value))[0])


def overflowing_pack(value):
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def text(value):
    return "nan" if value != value else float(value).hex()


def expected(path):
    """Returns {tag: [(step, wall time, value)]} of the timeline."""
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    scalars = {}
    for line in lines:
        if line["kind"] == "step" and line["newest"]:
            for tag, number in (line["metrics"] | line["gauges"]).items():
                scalars.setdefault(tag, []).append((line["step"], line["ns"] / 1e9,
                                                    single(number["bits"])))
    results = [line for line in lines if line["kind"] == "evaluation"]
    for line in results:
        key = ("step", "dataset", "name")
        newest = max(other["segment"] for other in results
                     if all(other[k] == line[k] for k in key))
        if line["segment"] == newest:
            tag = f"eval/{line['dataset']}/{line['name']}"
            scalars.setdefault(tag, []).append((line["step"], line["ns"] / 1e9,
                                                single(line["bits"])))
    return {tag: sorted(points) for tag, points in scalars.items()}


def accumulated(folder):
    accumulator = event_accumulator.EventAccumulator(folder, size_guidance={"scalars": 0})
    accumulator.Reload()
    return {tag: [(e.step, e.wall_time, text(e.value)) for e in accumulator.Scalars(tag)]
            for tag in accumulator.Tags()["scalars"]}


def fetch(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)


def served(logdir, run, tags):
    """Requests the scalars from the server, like the page in the browser."""
    board = program.TensorBoard()
    board.configure(argv=[None, "--logdir", logdir, "--port", "0", "--reload_interval", "0",
                          "--load_fast", "false"])
    url = board.launch() + "data/plugin/scalars/"
    while run not in fetch(url + "tags"):
        pass
    scalars = {}
    for tag in tags:
        query = urllib.parse.urlencode({"run": run, "tag": tag})
        # JSON has no NaN and Infinity: the server writes them as strings
        scalars[tag] = [(step, wall, text(float(value)))
                        for wall, step, value in fetch(f"{url}scalars?{query}")]
    return scalars


def compare(found, wanted, reader):
    if found != wanted:
        for tag in sorted(found.keys() | wanted.keys()):
            if found.get(tag) != wanted.get(tag):
                sys.exit(f"{reader}: {tag}: found {found.get(tag)}, expected {wanted.get(tag)}")
    points = sum(len(points) for points in wanted.values())
    print(f"{reader}: {len(wanted)} tags, {points} scalars, equal")


def main():
    path, logdir, run = sys.argv[1:]
    wanted = expected(path)
    if not any(value == "nan" for points in wanted.values() for _, _, value in points):
        sys.exit("there is no NaN in the data: nothing shows that one survives")
    compare(accumulated(f"{logdir}/{run}"), wanted, "accumulator")
    compare(served(logdir, run, wanted), wanted, "server")
    # Negative control: a value that differs in one bit is found.
    tag = next(iter(wanted))
    step, wall, value = wanted[tag][0]
    wrong = wanted | {tag: [(step, wall, value + "1")] + wanted[tag][1:]}
    if accumulated(f"{logdir}/{run}") == wrong:
        sys.exit("a wrong value was not noticed")


if __name__ == "__main__":
    main()
