#!/usr/bin/env bash
# these_lines.sh FILE COMMAND ... - checks that the command prints all lines of FILE; others may
# follow.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
file=$1
shift
[[ -s $file ]] || { echo "$file is missing or empty" >&2 && exit 2; }
lines=$("$@")
missing=$(grep -vxF -f <(printf '%s\n' "$lines") "$file" || true)
if [[ -n $missing ]]; then
    printf '%s\n' "$missing" >&2
    echo "$* does not print these lines of $file" >&2
    exit 1
fi
echo "$(wc -l <"$file") lines, all printed"
