#!/usr/bin/env bash
# cross.sh INVAR FOLDER MACHINE PRESET ARCHITECTURE - the other architecture under qemu: variant.sh.
#
# With the ledger and the engine where their libraries can be had for that architecture, which
# Debian calls ARCHITECTURE; cross.train then trains with what is built here.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
invar=$1 folder=$2 machine=$3 arguments=(--preset "$4")
sysroot=$folder-libraries
if scripts/sysroot "$5" "$sysroot"; then
    arguments+=(-DINVAR_LEDGER=ON "-DCMAKE_PREFIX_PATH=$sysroot/usr")
fi
exec "$(dirname "${BASH_SOURCE[0]}")/variant.sh" "$invar" "$folder" \
    "qemu-$machine -cpu max -L /usr/$machine-linux-gnu" "${arguments[@]}"
