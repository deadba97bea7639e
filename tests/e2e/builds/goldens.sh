#!/usr/bin/env bash
# goldens.sh ROLLOUTS FOLDER COMMAND ... - every recipe of this tree, compared with its golden.
#
# COMMAND is an invar of any build, possibly under an emulator; FOLDER is for the runs. ROLLOUTS
# limits the recipes; 0 for no limit. Exit code: 0 if all are identical, 1 if bits differ, 2 if a
# run failed, 77 if COMMAND does not exist, because its libraries could not be had.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
rollouts=$1 folder=$2
shift 2
code=0 flags=()
if ((rollouts)); then
    flags=(--num-rollout "$rollouts")
fi

if [[ ! -e ${*: -1} ]]; then
    echo "${*: -1}: there is no such program; it needs libraries that could not be had"
    exit 77
fi
rm -rf "$folder"
shopt -s nullglob
goldens=(recipes/*.golden)
((${#goldens[@]})) || { echo "no recipes/*.golden" >&2 && exit 2; }
for golden in "${goldens[@]}"; do
    name=$(basename "$golden" .golden) rc=0
    "$@" train "recipes/$name.ini" --run "$folder/$name" --save none \
        --no-report --golden "$golden" "${flags[@]}" >"$folder.txt" \
        2>"$folder.err" || rc=$?
    grep '^golden' "$folder.txt" || cat "$folder.err"
    case $rc in
    0) ;;
    1) code=1 ;;
    *) exit 2 ;;
    esac
done
if ((code)); then
    echo "the bits differ"
fi
exit "$code"
