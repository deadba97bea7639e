# common.sh - the root of the tree and messages, shared by the scripts. Sourced, not run.
# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash

# shellcheck disable=SC2034 # used by the scripts that source this file
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# paint FILE-DESCRIPTOR CODE TEXT: prints the text, colored if the descriptor is a terminal.
paint() {
    if [[ -t $1 && -z ${NO_COLOR:-} && ${TERM:-dumb} != dumb ]]; then
        printf '\e[%sm%s\e[0m\n' "$2" "$3" >&"$1"
    else
        printf '%s\n' "$3" >&"$1"
    fi
}

# step TEXT ...: announces the next step.
step() {
    paint 1 1 "==> $*"
}

# fail WHAT [LINE ...]: prints the failure, then reasons and remedies, and ends the script.
fail() {
    paint 2 31 "scripts/${0##*/}: $1"
    if (($# > 1)); then
        printf '  %s\n' "${@:2}" >&2
    fi
    exit 2
}

# elsewhere FOLDER: prints the path of FOLDER or of the source tree in CMake's cache in FOLDER, if
# it is not this FOLDER or the current folder.
elsewhere() {
    local cache=$1/CMakeCache.txt folder tree
    [[ -e $cache ]] || return 0
    folder=$(sed -n 's/^CMAKE_CACHEFILE_DIR:[A-Z]*=//p' "$cache")
    tree=$(sed -n 's/^CMAKE_HOME_DIRECTORY:[A-Z]*=//p' "$cache")
    if [[ $folder && ! $folder -ef $1 ]]; then
        echo "$folder"
    elif [[ $tree && ! $tree -ef . ]]; then
        echo "$tree"
    fi
}

# configure FOLDER CMAKE-ARGUMENT ...: configures the build folder FOLDER of the tree in the current
# folder. CMake rejects a folder that was moved or copied, with the tree or without. Its cache and
# CMakeFiles/ are then removed and made again; all other files in FOLDER stay.
configure() {
    local folder=$1 was fresh=()
    shift
    was=$(elsewhere "$folder")
    if [[ $was ]]; then
        step "$folder/ was configured for $was: it is configured from scratch and compiled again;" \
            "options that were given to CMake by hand have their defaults again"
        fresh=(--fresh)
    fi
    cmake "${fresh[@]}" "$@"
}

# usage: prints the comment below the first line of the running script.
usage() {
    sed -n '2,/^# SPDX/{/^# SPDX/d;s/^# \{0,1\}//p}' "$0"
}
