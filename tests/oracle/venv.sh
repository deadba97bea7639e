# venv.sh - what the oracles share: sourced by scripts that ask libraries of others.
# shellcheck shell=bash disable=SC2034
# SPDX-License-Identifier: Apache-2.0

# venv FOLDER PACKAGE ...: `python` has the packages, in FOLDER/venv, which is made if need be.
venv() {
    python=$1/venv/bin/python
    python3 -m venv "$1/venv"
    "$python" -m pip install --quiet "${@:2}"
}

# draw_seed BYTES: `seed`, a random number of so many bytes, also printed.
draw_seed() {
    seed=$(od -An "-N$1" -tu4 /dev/urandom | tr -d ' ')
    echo "random seed: $seed"
}
