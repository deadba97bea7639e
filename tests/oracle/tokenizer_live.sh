#!/usr/bin/env bash
# tokenizer_live.sh TEST FOLDER - the tokenizer's oracle once more, with the libraries at hand.
#
# Installs them into the virtual environment in FOLDER that live.sh uses, too; asks them again for
# what the committed fixtures say; then trains other tokenizers from a random seed and runs TEST,
# the program of tests/unit/engine/tokenizer/oracle.c, on those and 10,000 strings of each.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
test=$1 folder=$2
python=$folder/venv/bin/python

python3 -m venv "$folder/venv"
"$python" -m pip install --quiet -r "$here/requirements.txt"
"$python" "$here/tokenizer.py" --check

seed=$(od -An -N3 -tu4 /dev/urandom | tr -d ' ')
echo "random seed: $seed"
"$python" "$here/tokenizer.py" --seed "$seed" --strings 10000 --out "$folder/tokenizer"
INVAR_TEST_FULL=1 INVAR_TOKENIZER_ORACLE=$folder/tokenizer "$test"
