#!/usr/bin/env bash
# live.sh COMPARE FOLDER - the oracle of whole models once more, with transformers at hand.
#
# Installs what ../requirements.txt names into a virtual environment in FOLDER (some GB), computes
# the committed fixtures anew, then makes larger models from a random seed and runs COMPARE on them.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
compare=$1 folder=$2
python=$folder/venv/bin/python

python3 -m venv "$folder/venv"
"$python" -m pip install --quiet -r "$here/../requirements.txt"
"$python" "$here/../model.py" --check

for size in "" --large; do
    seed=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
    echo "random seed: $seed $size"
    "$python" "$here/../model.py" --seed "$seed" $size --out "$folder/model"
    "$compare" "$folder/model"
done
