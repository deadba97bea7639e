# parquet_rows.py - reads Parquet files for parquet.c: one JSON object per line in and out.
#
# The first line is {"path", "columns"}, answered by {"ok": true}; then each {} by {"lines": TEXT},
# some rows as JSON lines, or by {"end": true} after the last row. Only these columns are read; the
# first one must exist. An error is answered by {"error": TEXT}. The loop is script_loop.py. This
# text is an argument within single quotes, so it has none itself.
# SPDX-License-Identifier: Apache-2.0
import datetime
import decimal
import json

MEMORY = 16 << 30
ROWS = 256
TEXT = 1 << 22


def plain(value):
    """Returns a text for a date, a time, a decimal or bytes, which JSON cannot represent."""
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, bytes):
        return value.decode("utf-8")
    raise TypeError(f"a value of type {type(value).__name__} cannot be JSON")


class Reader:
    def open(self, path, columns):
        from pyarrow import parquet

        file = parquet.ParquetFile(path)
        names = file.schema_arrow.names
        if columns[0] not in names:
            known = ", ".join(names)
            raise KeyError(f"no column \"{columns[0]}\" (input-key); there are: {known}")
        batches = file.iter_batches(ROWS, columns=[c for c in columns if c in names],
                                    use_threads=False)
        self.left = (row for batch in batches for row in batch.to_pylist())
        self.rows = 0
        return {"ok": True}

    def read(self):
        text = ""
        for row in self.left:
            self.rows += 1
            text += json.dumps(row, ensure_ascii=False, allow_nan=False, default=plain) + "\n"
            if len(text) >= TEXT:
                break
        return {"lines": text} if text else {"end": True}


def describe(error):
    if isinstance(error, ImportError):
        return ("Parquet files need Python with pyarrow, and python3 has none: make one with "
                "\"python3 -m venv v; v/bin/pip install pyarrow\" and put v/bin first in PATH")
    row = getattr(reader, "rows", 0)
    place = f"row {row}: " if row else ""
    return f"{place}{error.args[0] if error.args else type(error).__name__}"


reader = Reader()
serve(MEMORY, reader.open, reader.read, describe)
