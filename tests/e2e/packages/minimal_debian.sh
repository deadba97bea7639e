#!/usr/bin/env bash
# minimal_debian.sh BUILD CACHE FOLDER - packages on a minimal Debian 12, without a compiler.
#
# Makes packages of BUILD, installs them with apt in a Debian of their own (chroot.sh), and runs the
# self-check and the quickstart, whose chain must be the golden's. After removal no file stays. Exit
# code 77 if this is impossible here.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
build=$1 cache=$2 folder=$3
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
# shellcheck source=tests/e2e/packages/chroot.sh
source "$(dirname "$0")/chroot.sh"
root=$folder/root
bare_root "$cache" "$root"
cpack --config "$build/CPackConfig.cmake" -B "$folder/work" \
    -D CPACK_OUTPUT_FILE_PREFIX="$root/tmp" >"$folder/log" 2>&1 || { cat "$folder/log" && exit 1; }
rm -f "$root"/tmp/invar-{cuda,nccl}_*.deb # they need packages that a minimal Debian lacks
mapfile -t packages < <(cd "$root" && ls tmp/*.deb)
expect_logs=("$folder/log")

# works COMMAND ...: checks that the command succeeds in the root.
works() {
    checks=$((checks + 1))
    inside "$root" "$@" >"$folder/log" 2>&1 || complain "$*:" "$(tail -n 20 "$folder/log")"
}

# snapshot: prints all files except those that adduser and ldconfig keep.
snapshot() {
    (cd "$root" && find usr etc opt -type f ! -path 'etc/ld.so.cache' ! -path 'etc/*-' | sort)
}

# Control: neither the program nor anything that could build it is there before.
for program in invar cc gcc cmake python3 git; do
    ! inside "$root" sh -c "command -v $program" || complain "the bare root has $program"
done
snapshot >"$folder/before"
works apt-get install -qqy --no-install-recommends "${packages[@]/#//}"
! inside "$root" sh -c 'command -v cc || command -v gcc || command -v cmake' ||
    complain "the packages bring a compiler along"

works invar version
holds grep -q '^commit  *[0-9a-f]\{40\}' "$folder/log"
works invar selfcheck
holds grep -q ' identical, 0 different, 0 not recorded' "$folder/log"
works sh -c 'cd /root && invar train /usr/share/invar/recipes/quickstart.ini \
    --golden /usr/share/invar/recipes/quickstart.golden'
holds grep -q '^golden  *identical, 400 of 400 steps' "$folder/log"
cat "$folder/log"
works sh -c 'cd /root && invar ledger verify runs/quickstart'
works sh -c 'cd /root && invar train /usr/share/invar/recipes/quickstart.ini --name ranks \
    --ranks 2 --num-rollout 2 --golden /usr/share/invar/recipes/quickstart.golden'
# A missing recommended library is named in the message.
inside "$root" sh -c 'cd /root && invar bisect --good a --run true' >"$folder/log" 2>&1 || true
holds grep -q 'libgit2' "$folder/log"

works apt-get purge -qqy invar invar-dev invar-mpi
works apt-get autoremove -qqy --purge
snapshot | diff "$folder/before" - >"$folder/log" || complain "this stays when all is removed:" \
    "$(cat "$folder/log")"
((failed)) || echo "all as expected: $checks checks"
rm -rf "$root"
exit "$failed"
