#!/usr/bin/env bash
# engine.sh BENCH FOLDER - engine.py in a virtual environment in FOLDER, made if need be.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/oracle/venv.sh
source "$here/../oracle/venv.sh"

venv "$2" -r "$here/../oracle/requirements.txt"
"$python" "$here/engine.py" "$1"
