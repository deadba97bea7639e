#!/usr/bin/env bash
# shell.sh - shellcheck over every shell script of the tree.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
mark='^#!.*\b(ba)?sh$|^# shellcheck shell='
mapfile -t scripts < <(scripts/sources | xargs -d '\n' grep -lE "$mark")
shellcheck -x "${scripts[@]}"
echo "${#scripts[@]} scripts"
