#!/usr/bin/env python3
# rollout_reader.py PROGRAM FOLDER - the Python reader printed in docs/formats.md reads our rollout
# files.
#
# PROGRAM FILE writes a rollout file and prints the bits of its log-probs, one per line. The reader
# must return the same bits. Controls: it reads the undamaged file, and rejects truncated and
# changed files.
# SPDX-License-Identifier: Apache-2.0
"""Runs the documentation's Python on a rollout file."""
import json
import pathlib
import re
import subprocess
import sys


# Returns the function read_rollout of the page, and the page's section about rollout files.
def documented_reader():
    page = pathlib.Path("docs/formats.md").read_text(encoding="utf-8")
    section = page.split("\n## Rollout files\n", 1)[1]
    code = re.search(r"^```python\n(.*?)^```$", section, re.M | re.S).group(1)
    names = {}
    exec(compile(code, "docs/formats.md", "exec"), names)  # pylint: disable=exec-used
    return names["read_rollout"], section


def documented_members(section, table):
    """Returns the names in the first column of a table of the page."""
    rows = section.split(f"| {table} | type | meaning |\n", 1)[1].split("\n\n", 1)[0]
    return [name for row in rows.split("\n") for name in re.findall(r"`(\w+)`", row.split("|")[1])]


def refuses(read, path, data):
    path.write_bytes(data)
    try:
        read(path)
    except ValueError:
        return True
    return False


def main():
    folder = pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "rollout.jsonl"
    bits = subprocess.run([sys.argv[1], path], check=True, capture_output=True, text=True).stdout
    read, section = documented_reader()
    header, samples = read(path)

    words = memoryview(b"".join(s["logprobs"].tobytes() for s in samples)).cast("I")
    found = [f"{word:08x}" for word in words]
    assert found == bits.split() and len(found) > 100, "the log-probs have other bits"
    assert header["sampling"]["seed"] == 4294967295
    assert samples[0]["response"] == 'x = "7"\\\n\0\u00e9\U0001f600', samples[0]["response"]
    for sample in samples:
        assert len(sample["tokens"]) == sample["prompt_tokens"] + len(sample["mask"])
        assert len(sample["routing"]) == (len(sample["tokens"]) - 1) * sample["route_size"]

    lines = path.read_bytes().splitlines()
    assert sorted(documented_members(section, "header")) == sorted(json.loads(lines[0]))
    members = set().union(*map(json.loads, lines[1:-1]))  # some members are optional
    assert sorted(documented_members(section, "sample")) == sorted(members)

    data = path.read_bytes()
    damaged = folder / "damaged.jsonl"
    assert not refuses(read, damaged, data)  # control: the undamaged file is read
    for length in range(0, len(data), 97):
        assert refuses(read, damaged, data[:length]), f"cut off after {length} bytes"
    for at in range(0, len(data), 101):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]
        assert refuses(read, damaged, changed), f"changed at byte {at}"
    print(len(samples), "samples")


if __name__ == "__main__":
    main()
