#!/usr/bin/env bash
# same_lines.sh FILE COMMAND ... - checks that the command prints exactly the lines of FILE.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
file=$1
shift
lines=$("$@")
if ! diff -u "$file" <(printf '%s\n' "$lines"); then
    echo "$* differs from $file" >&2
    exit 1
fi
echo "$(wc -l <"$file") lines, all equal"
