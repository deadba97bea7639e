#!/usr/bin/env bash
# exports.sh FILE PATTERN - a module or library exports only symbols that match PATTERN.
#
# Other symbols, such as those of a C++ library inside of it, would replace the same symbols of
# libraries that are loaded later: PyTorch crashed in a stream. Exit code: 0 if only PATTERN is
# exported, else 1.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
symbols=$(nm -D --defined-only "$1" | awk '{ print $NF }')
[[ $symbols ]] || { echo "$1 exports nothing" >&2 && exit 1; }
others=$(grep -vxE -- "$2" <<<"$symbols" || (($? == 1)))
if [[ -n $others ]]; then
    head -n 10 <<<"$others" >&2
    echo "$1 exports $(wc -l <<<"$others") symbols that nobody asks for" >&2
    exit 1
fi
