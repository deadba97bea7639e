#!/usr/bin/env bash
# rl.sh PROGRAM FOLDER - runs the oracle of engine/rl again, with PyTorch installed.
#
# Installs it into a virtual environment in FOLDER (requirements.txt), computes the committed
# fixtures again, then makes others from a random seed and runs PROGRAM (test.unit.engine.rl.torch)
# on them.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/oracle/venv.sh
source "$here/venv.sh"
program=$1 folder=$2

venv "$folder" -r "$here/requirements.txt"
"$python" "$here/rl.py" --check

draw_seed 4
"$python" "$here/rl.py" --seed "$seed" --out "$folder/rl.json"
INVAR_RL_FIXTURES=$folder/rl.json "$program"
