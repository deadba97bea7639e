#!/usr/bin/env bash
# live.sh INVAR FOLDER - live.py, with the dashboards installed in a virtual environment in FOLDER.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/oracle/venv.sh
source "$here/../../oracle/venv.sh"
invar=$1 folder=$2

venv "$folder" -r "$here/requirements.txt"
"$python" "$here/live.py" "$invar" "$folder/data"
