# Fake pyarrow with what engine/files/data/parquet_rows.py uses; its "Parquet" files are the line
# "PAR1" and JSON lines.
# SPDX-License-Identifier: Apache-2.0
