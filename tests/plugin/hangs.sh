#!/bin/sh
# hangs.sh MODE [FILE] - a plug-in that ignores SIGTERM and never completes a reply.
#
# MODE greeting hangs before the greeting, the others after the first request. The modes session,
# busy and children write to FILE the id of a process that must be killed with the plug-in.
# SPDX-License-Identifier: Apache-2.0
trap '' TERM
[ "$1" = greeting ] && exec sleep 600
read -r _
echo '{"invar":1,"name":"silent","kinds":["reward"]}'
read -r _
case $1 in
hang) sleep 600 ;;
partial) printf '{"id":0,"rewards":[1,1,1' && sleep 600 ;;
mutter) while sleep 0.1; do echo on it >&2; done ;;
flood) while :; do echo zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz >&2; done ;;
session)
    # shellcheck disable=SC2016 # $! and $1 belong to the inner shell
    setsid sh -c 'sleep 600 & echo $! >"$1"' sh "$2"
    sleep 600
    ;;
busy)
    echo $$ >"$2"
    while :; do :; done
    ;;
children)
    sleep 600 &
    echo $! >"$2"
    wait
    ;;
esac
