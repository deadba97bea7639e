#!/usr/bin/env bash
# live.sh COMPARE FOLDER - runs the oracle of ops again, with PyTorch and transformers installed.
#
# Installs them into a virtual environment in FOLDER (requirements.txt; some GB), computes the
# committed fixtures again, then makes others from a random seed and runs COMPARE on those.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/oracle/venv.sh
source "$here/venv.sh"
compare=$1 folder=$2

venv "$folder" -r "$here/requirements.txt"
"$python" "$here/generate.py" --check

draw_seed 4
"$python" "$here/generate.py" --seed "$seed" --out "$folder/random.bin"
"$compare" "$folder/random.bin"
