#!/usr/bin/env bash
# bundle.sh BUILD FOLDER - the bundle of scripts/bundle builds and runs with its own libraries.
#
# For this machine's architecture. The bundle is built with an empty environment and a PATH with a
# compiler, CMake and little else: no git, no pkg-config, no Python. The headers of this system
# cannot be hidden, so the CMake cache must show that the bundle's libraries were used. Control: the
# cache of BUILD shows others. Exit code: 0 if all is as expected, else 1; 77 if no packages are
# available.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
build=$1 folder=$2
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
bundle=$folder/invar-bundle
rm -rf "$folder"
mkdir -p "$folder"/{bin,few,home} || exit 2

# answers CODE TEXT COMMAND ...: checks the exit code, and TEXT in the first line of the output.
answers() {
    local code=$1 text=$2 output rc=0
    shift 2
    output=$("$@" 2>&1 </dev/null) || rc=$?
    if ((rc != code)) || [[ ${output%%$'\n'*} != *"$text"* ]]; then
        complain "$*: exit code $rc, expected $code with \"$text\":" "$output"
    fi
}

# provide FOLDER PROGRAM ...: puts links to these programs into a folder for PATH.
provide() {
    local to=$1 program
    shift
    for program in "$@"; do
        if command -v "$program" >/dev/null; then
            ln -s "$(command -v "$program")" "$to/$program"
        fi
    done
}

# bare FOLDER COMMAND ...: runs a command with PATH and HOME as its only environment.
bare() {
    local path=$1
    shift
    env -i PATH="$path" HOME="$folder/home" "$@"
}

# system_paths CACHE: prints the headers and libraries from outside the bundle; fails if it finds
# nothing.
system_paths() {
    local ours='(xxhash|sqlite|jansson|utf8proc|zlib|cmocka)_(INCLUDE|LIBRARY)'

    sed -n -E "s/^($ours):[A-Z]+=(.*)/\\1 \\4/p" "$1" |
        grep -vF " $bundle/libraries/"
}

# ---- the script ----------------------------------------------------------------------------------

answers 0 "bundle [--arch ARCHITECTURE] FILE.tar.gz" scripts/bundle --help
answers 2 "expected the name of the file to write" scripts/bundle
answers 2 'unknown argument "--frob"' scripts/bundle --frob "$folder/none.tar.gz"
answers 2 "--arch needs amd64 or arm64" scripts/bundle --arch
answers 2 'unknown architecture "mips"' scripts/bundle --arch mips "$folder/none.tar.gz"
answers 2 'expected one file, got "one" and "two"' scripts/bundle one two
answers 2 "cannot write \"$folder/no/where.tar.gz\"" scripts/bundle "$folder/no/where.tar.gz"
answers 2 "cannot write \"$folder\"" scripts/bundle "$folder"
[[ -z $(find "$folder" -type f) ]] || complain "a call that was refused left a file behind"

if ! command -v dpkg >/dev/null; then
    echo "no dpkg here"
    exit 77
fi
scripts/bundle --arch "$(dpkg --print-architecture)" "$folder/invar.tar.gz"
case $? in
0) ;;
77) exit 77 ;;
*) complain "scripts/bundle failed" && exit 1 ;;
esac

# ---- the archive ---------------------------------------------------------------------------------

tar tzf "$folder/invar.tar.gz" | sort >"$folder/names"
! grep -vE '^invar-bundle/' "$folder/names" || complain "the archive has these outside its folder"
! grep -E '(^|/)(\.git|\.\.)(/|$)' "$folder/names" || complain "the archive has these"
! tar tzvf "$folder/invar.tar.gz" | grep -E ' -> (/|.*\.\.(/|$))' ||
    complain "these links lead out of the archive"
! tar tzvf "$folder/invar.tar.gz" --numeric-owner | awk '$2 != "0/0"' | grep . ||
    complain "the archive knows who packed it"
tar xzf "$folder/invar.tar.gz" -C "$folder" || exit 1
# The archive has exactly the files that git has or would add.
(cd "$bundle" && find . -type f ! -path './libraries/*' ! -path ./BUNDLE ! -path ./build.sh) |
    cut -c 3- | sort >"$folder/packed"
scripts/sources | sort | diff - "$folder/packed" || complain "the archive has other sources"

# ---- headers for nvcc ----------------------------------------------------------------------------

products=$bundle/kernels-deterministic/cuda/sm90/wgmma.cuh
if command -v nvcc >/dev/null; then
    nvcc -x cu -M -I "$bundle" -isystem "$bundle/libraries/usr/include" "$products" \
        >"$folder/includes" || complain "the archive lacks what wgmma.cuh includes"
    grep -q "$bundle/libraries/usr/include/cute/" "$folder/includes" ||
        complain "the control: wgmma.cuh has CUTLASS from elsewhere"
else
    holds test -s "$bundle/libraries/usr/include/cute/arch/mma_sm90_gmma.hpp"
fi

# ---- the build -----------------------------------------------------------------------------------

provide "$folder/few" bash env dirname
provide "$folder/bin" cmake ninja make cc as ld ar ranlib bash sh env dirname basename find \
    mktemp mkdir rm mv cat cmp cut sed tr iconv
answers 2 'unknown argument "--frob"; there is --cpu' "$bundle/build.sh" --frob
answers 2 'unknown argument "--frob"; there is --cpu' "$bundle/build.sh" --cpu --frob
answers 2 "cmake is missing" bare "$folder/few" "$bundle/build.sh" --cpu
answers 2 "nvcc is missing" bare "$folder/bin" "$bundle/build.sh"
[[ ! -e $bundle/build ]] || complain "a call that was refused made $bundle/build"

if ! bare "$folder/bin" "$bundle/build.sh" --cpu >"$folder/build.log" 2>&1; then
    tail -n 40 "$folder/build.log" >&2
    complain "build.sh --cpu failed"
    exit 1
fi
# cmocka is searched for, but only tests on a GPU link it.
! system_paths "$bundle/build/CMakeCache.txt" || complain "these are not of the bundle"
grep -cE '_(INCLUDE|LIBRARY):[A-Z]+=.*/invar-bundle/libraries/' "$bundle/build/CMakeCache.txt" |
    grep -qx 10 || complain "expected 6 headers and 4 libraries of the bundle in the build's cache"
system_paths "$build/CMakeCache.txt" >/dev/null ||
    complain "the control: $build has its libraries out of the bundle, too"
ldd "$bundle/build/invar" >"$folder/linked"
holds grep -q 'libc\.so' "$folder/linked"
! grep -E 'lib(sqlite3|jansson|utf8proc|z|xxhash)\.|not found' "$folder/linked" |
    grep -vF " $bundle/libraries/" || complain "these are not linked from the bundle"

# ---- the program ---------------------------------------------------------------------------------

cd "$bundle" || exit 2
bare "" build/invar selfcheck >"$folder/selfcheck" || complain "the self-check there failed"
grep -q " identical, 0 different, 0 not recorded" "$folder/selfcheck" ||
    complain "the self-check there has other values:" "$(tail -n 3 "$folder/selfcheck")"
bare "" build/invar train recipes/quickstart.ini --num-rollout 2 --no-report \
    --golden recipes/quickstart.golden >"$folder/run" 2>&1 || complain "it cannot train:"
grep -q "^golden *identical, 2 of " "$folder/run" || complain "no golden:" "$(cat "$folder/run")"
[[ -s runs/quickstart/ledger.db ]] || complain "the run of the bundle has no ledger"

((failed)) || echo "all as expected"
exit "$failed"
