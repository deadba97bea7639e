# Fake pyarrow.parquet with what engine/files/data/parquet_rows.py uses.
# SPDX-License-Identifier: Apache-2.0
"""Reads rows from JSON lines; the keys of SPECIAL stand for values that JSON does not have."""
import datetime
import decimal
import json
import types

SPECIAL = {"NAN": float("nan"), "DAY": datetime.date(2026, 11, 16),
           "TENTH": decimal.Decimal("0.10"), "BYTES": b"b", "OBJECT": object()}


class ParquetFile:
    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            if file.readline() != "PAR1\n":
                raise ValueError("Parquet magic bytes not found")
            self.rows = [json.loads(line) for line in file]
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        self.schema_arrow = types.SimpleNamespace(names=names)

    def iter_batches(self, size, columns, use_threads):
        assert not use_threads
        for start in range(0, len(self.rows), size):
            rows = [{c: self.value(row.get(c)) for c in columns}
                    for row in self.rows[start:start + size]]
            yield types.SimpleNamespace(to_pylist=lambda rows=rows: rows)

    @staticmethod
    def value(value):
        return SPECIAL.get(value, value) if isinstance(value, str) else value
