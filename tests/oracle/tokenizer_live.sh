#!/usr/bin/env bash
# tokenizer_live.sh TEST FOLDER - runs the tokenizer's oracle again, with its libraries installed.
#
# Installs them into the virtual environment in FOLDER that live.sh uses, too, computes the
# committed fixtures again, then trains other tokenizers from a random seed and runs TEST, the
# program of tests/unit/engine/text/tokenizer/oracle.c, on those and on 10,000 strings of each.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/oracle/venv.sh
source "$here/venv.sh"
test=$1 folder=$2

venv "$folder" -r "$here/requirements.txt"
"$python" "$here/tokenizer.py" --check

draw_seed 3
"$python" "$here/tokenizer.py" --seed "$seed" --strings 10000 --out "$folder/tokenizer"
INVAR_TEST_FULL=1 INVAR_TOKENIZER_ORACLE=$folder/tokenizer "$test"
