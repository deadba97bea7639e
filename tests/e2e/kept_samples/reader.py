#!/usr/bin/env python3
# reader.py RUN FILES [inserted] - compares kept samples with the rollout files of the same run.
#
# FILES has %d for the number of the rollout; a rollout is one step. Tokens, log-probs and texts
# must be those of the files; with `inserted`, some tokens were not sampled.
# SPDX-License-Identifier: Apache-2.0
import gzip
import json
import sqlite3
import struct
import sys


def single(value):
    return struct.pack("<f", value)


def main():
    run, files = sys.argv[1:3]
    rows = sqlite3.connect(f"file:{run}/ledger.db?mode=ro", uri=True).execute(
        "SELECT step, idx, data FROM kept_samples ORDER BY step, idx").fetchall()
    assert rows
    inserted = 0
    for step, idx, data in rows:
        kept = json.loads(gzip.decompress(data))
        with open(files % step, encoding="utf-8") as lines:
            whole = [json.loads(line) for line in lines][1 + idx]  # the first line is the header
        count = len(kept["tokens"])
        said = [text for text, drawn in zip(kept["response"], kept["drawn"]) if drawn]
        assert kept["prompt_tokens"] + kept["tokens"] == whole["tokens"], (step, idx)
        assert len(kept["prompt_tokens"]) == whole["prompt_tokens"], (step, idx)
        assert (kept["prompt"], "".join(said)) == (whole["prompt_text"], whole["response"])
        assert [single(x) for x in kept["logp"]] == [single(x) for x in whole["logprobs"]]
        assert all(len(kept[key]) == count for key in ("response", "logp", "advantage", "drawn"))
        inserted += kept["drawn"].count(0)
    assert (inserted > 0) == (sys.argv[3:] == ["inserted"]), inserted


if __name__ == "__main__":
    main()
