#!/usr/bin/env bash
# live.sh COMPARE FOLDER - the oracle once more, with PyTorch and transformers at hand.
#
# Installs them into a virtual environment in FOLDER (requirements.txt; some GB), computes the
# committed fixtures anew, then makes others from a random seed and runs COMPARE on those.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
compare=$1 folder=$2
python=$folder/venv/bin/python

python3 -m venv "$folder/venv"
"$python" -m pip install --quiet -r "$here/requirements.txt"
"$python" "$here/generate.py" --check

seed=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
echo "random seed: $seed"
"$python" "$here/generate.py" --seed "$seed" --out "$folder/random.bin"
"$compare" "$folder/random.bin"
