#!/usr/bin/env bash
# openai.sh INVAR FOLDER - openai_client.py with the package openai of PyPI.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(dirname "$0")
# shellcheck source=tests/oracle/venv.sh
source "$here/../../oracle/venv.sh"
mkdir -p "$2"
venv "$2" openai==3.51.0
"$python" "$here/openai_client.py" "$1"
