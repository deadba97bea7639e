#!/usr/bin/env bash
# tensorboard.sh EXPORT FOLDER - the real TensorBoard reads an export of Invar.
#
# Installs it into a virtual environment in FOLDER (150 MB). EXPORT is the unit test of the exports;
# with an argument it writes a run into that folder instead of testing.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/oracle/venv.sh
source "$here/venv.sh"
export=$1 folder=$2

venv "$folder" tensorboard==2.21.0 numpy==2.4.6 protobuf==7.36.2

rm -rf "$folder/data"
mkdir "$folder/data"
"$export" "$folder/data"
"$python" "$here/tensorboard_load.py" "$folder/data/run.jsonl" "$folder/data/board" test
