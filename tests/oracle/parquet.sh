#!/usr/bin/env bash
# parquet.sh PROGRAM FOLDER - the real pyarrow writes a data set, and is used to read it.
#
# Installs it into a virtual environment in FOLDER (200 MB). PROGRAM is
# test.unit.engine.data.parquet.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
program=$1 folder=$2

python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet pyarrow==26.0.1
"$folder/venv/bin/python" "$here/parquet.py" "$folder"
INVAR_PARQUET=$folder PATH=$folder/venv/bin:$PATH "$program"
