# venv.sh - virtual environments and seeds of the oracle tests; sourced by their scripts.
# shellcheck shell=bash disable=SC2034
# SPDX-License-Identifier: Apache-2.0

# venv FOLDER PACKAGE ...: sets `python` to that of FOLDER/venv, which has the packages afterwards.
venv() {
    python=$1/venv/bin/python
    python3 -m venv "$1/venv"
    "$python" -m pip install --quiet "${@:2}"
}

# draw_seed BYTES: sets `seed` to a random number of BYTES bytes, and prints it.
draw_seed() {
    seed=$(od -An "-N$1" -tu4 /dev/urandom | tr -d ' ')
    echo "random seed: $seed"
}
