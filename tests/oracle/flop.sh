#!/usr/bin/env bash
# flop.sh PROGRAM FOLDER - compares the FLOPs that PROGRAM counts with PyTorch's count.
#
# PROGRAM is test.unit.engine.train.flop. Installs PyTorch into a virtual environment in FOLDER
# (requirements.txt).
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/oracle/venv.sh
source "$here/venv.sh"
program=$1 folder=$2

venv "$folder" -r "$here/requirements.txt"
"$program" print | "$python" "$here/flop.py"
