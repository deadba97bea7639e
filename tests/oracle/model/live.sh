#!/usr/bin/env bash
# live.sh COMPARE FOLDER - the oracle of whole models once more, with transformers at hand.
#
# Installs what ../requirements.txt names into a virtual environment in FOLDER (some GB), computes
# the committed fixtures anew, then makes larger models from a random seed and runs COMPARE on them.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/oracle/venv.sh
source "$here/../venv.sh"
compare=$1 folder=$2

venv "$folder" -r "$here/../requirements.txt"
"$python" "$here/../model.py" --check

for size in "" --large; do
    draw_seed 4
    "$python" "$here/../model.py" --seed "$seed" $size --out "$folder/model"
    "$compare" "$folder/model"
done
