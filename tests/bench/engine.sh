#!/usr/bin/env bash
# engine.sh BENCH FOLDER - engine.py in a virtual environment in FOLDER, made if need be.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=$2/venv/bin/python

python3 -m venv "$2/venv"
"$python" -m pip install --quiet -r "$here/../oracle/requirements.txt"
"$python" "$here/engine.py" "$1"
