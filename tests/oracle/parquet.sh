#!/usr/bin/env bash
# parquet.sh PROGRAM FOLDER - Invar reads a data set that the real pyarrow writes and reads.
#
# Installs pyarrow into a virtual environment in FOLDER (200 MB). PROGRAM is
# test.unit.engine.files.data.parquet.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/oracle/venv.sh
source "$here/venv.sh"
program=$1 folder=$2

venv "$folder" pyarrow==26.0.1
"$python" "$here/parquet.py" "$folder"
INVAR_PARQUET=$folder PATH=$folder/venv/bin:$PATH "$program"
