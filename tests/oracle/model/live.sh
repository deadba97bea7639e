#!/usr/bin/env bash
# live.sh COMPARE FOLDER - runs the oracle of complete models again, with transformers installed.
#
# Installs the packages of ../requirements.txt into a virtual environment in FOLDER (some GB),
# computes the committed fixtures again, then makes models from a random seed, small and large, and
# runs COMPARE on them.
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
