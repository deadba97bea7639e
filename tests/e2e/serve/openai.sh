#!/usr/bin/env bash
# openai.sh INVAR FOLDER - invar serve by the `openai` package of PyPI, and under a long load.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(dirname "$0")
# shellcheck source=tests/oracle/venv.sh
source "$here/../../oracle/venv.sh"
mkdir -p "$2"
venv "$2" openai==3.51.0
"$python" "$here/openai_client.py" "$1"
