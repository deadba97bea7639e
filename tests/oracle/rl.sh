#!/usr/bin/env bash
# rl.sh PROGRAM FOLDER - the tests of engine/rl once more, with PyTorch at hand.
#
# Installs it into a virtual environment in FOLDER (requirements.txt), computes the committed
# fixtures anew, then makes others from a random seed and runs PROGRAM
# (test.unit.engine.rl.torch) on them.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
program=$1 folder=$2
python=$folder/venv/bin/python

python3 -m venv "$folder/venv"
"$python" -m pip install --quiet -r "$here/requirements.txt"
"$python" "$here/rl.py" --check

seed=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
echo "random seed: $seed"
"$python" "$here/rl.py" --seed "$seed" --out "$folder/rl.json"
INVAR_RL_FIXTURES=$folder/rl.json "$program"
