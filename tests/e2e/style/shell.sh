#!/usr/bin/env bash
# shell.sh - shellcheck over the shell scripts of the tree.
#
# The scripts are those that changed lately, and a part of the others (scripts/sources --few);
# with INVAR_TEST_FULL=1 every script. Control: a script with a fault is refused.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
mark='^#!.*\b(ba)?sh$|^# shellcheck shell='
some=(--few)
if [[ -n ${INVAR_TEST_FULL:-} ]]; then
    some=()
fi
mapfile -t scripts < <(scripts/sources "${some[@]}" | xargs -d '\n' grep -lE "$mark")
shellcheck -x "${scripts[@]}"
# shellcheck disable=SC2016 # the fault: a variable without quotes
if echo 'cat $1' | shellcheck -s bash - >/dev/null; then
    echo "control: a script with a fault was not refused" >&2
    exit 1
fi
echo "${#scripts[@]} scripts"
