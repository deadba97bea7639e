#!/usr/bin/env bash
# engine.sh BENCH FOLDER - runs engine.py in a virtual environment in FOLDER, created if missing.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/oracle/venv.sh
source "$here/../oracle/venv.sh"

venv "$2" -r "$here/../oracle/requirements.txt"
"$python" "$here/engine.py" "$1"
