# pyarrow, as far as engine/files/data/parquet_rows.py uses it; its Parquet is JSON lines after
# "PAR1".
# SPDX-License-Identifier: Apache-2.0
