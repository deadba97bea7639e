#!/usr/bin/env bash
# cross.sh INVAR FOLDER MACHINE PRESET ARCHITECTURE - variant.sh for the other architecture, under
# qemu.
#
# The build has the ledger and the engine if their libraries are available for ARCHITECTURE,
# Debian's name of it; cross.train then trains with this build.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
invar=$1 folder=$2 machine=$3 arguments=(--preset "$4")
sysroot=$folder-libraries
if scripts/sysroot "$5" "$sysroot"; then
    arguments+=(-DINVAR_LEDGER=ON "-DCMAKE_PREFIX_PATH=$sysroot/usr")
fi
exec "$(dirname "${BASH_SOURCE[0]}")/variant.sh" "$invar" "$folder" \
    "qemu-$machine -cpu max -L /usr/$machine-linux-gnu" "${arguments[@]}"
