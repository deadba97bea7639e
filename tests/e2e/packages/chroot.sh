# chroot.sh - a bare Debian 12 in a folder, for tests that must not see this machine. Sourced.
#
# `bare_root CACHE FOLDER` makes it, from CACHE/debian.tar, which the first test fills by
# debootstrap (INVAR_DEBIAN_MIRROR: from there; else from where this machine has its packages).
# `inside FOLDER COMMAND ...` runs a command in it, with a /proc of its own and an empty
# environment; what it started and mounted ends with it. Only root can do both, and the first needs
# a network: without them `bare_root` exits with 77, a test that is skipped.
# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0

skip() {
    echo "skipped: $*"
    exit 77
}

# The place of Debian's packages, as apt knows it; nothing on other systems, so debootstrap's own.
debian_mirror() {
    # shellcheck disable=SC2016 # apt's words, not the shell's
    [[ ! -e /etc/debian_version ]] || apt-get indextargets --format '$(REPO_URI) $(CODENAME)' \
        'Created-By: Packages' 2>/dev/null | awk '$2 == "bookworm" { print $1; exit }'
}

bare_root() {
    local cache=$1 folder=$2 mirror
    [[ $(id -u) == 0 ]] || skip "only root can make another root"
    command -v debootstrap >/dev/null || skip "no debootstrap here: scripts/setup full installs it"
    unshare -mpf true 2>/dev/null || skip "no namespaces here"
    mkdir -p "$cache"
    (
        flock 9
        [[ ! -e $cache/debian.tar ]] || exit 0
        rm -rf "$cache/root"
        mirror=${INVAR_DEBIAN_MIRROR:-$(debian_mirror)}
        debootstrap --variant=minbase bookworm "$cache/root" ${mirror:+"$mirror"} \
            >"$cache/log" 2>&1 || { tail -n 3 "$cache/log" && exit 77; }
        rm -rf "$cache"/root/var/cache/apt/archives/*.deb
        tar -C "$cache/root" --exclude='./proc/*' -cf "$cache/debian.new" .
        rm -rf "$cache/root"
        mv "$cache/debian.new" "$cache/debian.tar"
    ) 9>"$cache/lock" || skip "no Debian to be had here"
    rm -rf "$folder"
    mkdir -p "$folder"
    tar -C "$folder" -xf "$cache/debian.tar"
    cat /etc/resolv.conf >"$folder/etc/resolv.conf" 2>/dev/null || true
    # services that a package would start have no business here; no archive is kept
    printf '#!/bin/sh\nexit 101\n' >"$folder/usr/sbin/policy-rc.d"
    chmod +x "$folder/usr/sbin/policy-rc.d"
    inside "$folder" apt-get -qq update || skip "no packages to be had here"
}

inside() {
    local folder=$1
    shift
    # shellcheck disable=SC2016 # of the inner shell
    unshare -mpf -- sh -c 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"' "$folder" \
        /usr/bin/env -i HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}
