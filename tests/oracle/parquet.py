#!/usr/bin/env python3
# parquet.py FOLDER - writes one data set as FOLDER/rows.parquet and FOLDER/rows.jsonl.
# SPDX-License-Identifier: Apache-2.0
"""Several row groups, dictionary columns, nested metadata, and a column that is not JSON."""
import json
import pathlib
import sys

import pyarrow
from pyarrow import parquet


def main():
    folder = pathlib.Path(sys.argv[1])
    rows = [{"input": f"{i} + {i % 7} =", "label": str(i + i % 7),
             "metadata": {"level": i % 3, "share": i / 8, "tags": ["a", "b"][:i % 3]}}
            for i in range(3000)]
    with open(folder / "rows.jsonl", "w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
    table = pyarrow.Table.from_pylist([{**row, "image": b"\xff\xd8"} for row in rows])
    parquet.write_table(table, folder / "rows.parquet", row_group_size=700, compression="zstd")


if __name__ == "__main__":
    main()
