# chroot.sh - a minimal Debian 12 in a folder, for tests that must not see this machine; sourced.
#
# `bare_root CACHE FOLDER` creates it from CACHE/debian.tar, which the first test makes with
# debootstrap, from INVAR_DEBIAN_MIRROR or else the mirror of this machine. `inside FOLDER COMMAND
# ...` runs a command in it, with its own /proc and an empty environment; processes and mounts end
# with the command. Both need root, and the first needs a network: without them `bare_root` exits
# with 77, so that the test is skipped.
# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0

skip() {
    echo "skipped: $*"
    exit 77
}

# debian_mirror: prints apt's mirror; nothing on other systems, so that debootstrap's default is
# used.
debian_mirror() {
    # shellcheck disable=SC2016 # expanded by apt
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
    # Services of packages must not start here; no archives are kept.
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
