#!/usr/bin/env bash
# cross.sh [--step] INVAR FOLDER MACHINE PRESET ARCHITECTURE - the other architecture has the same
# bits.
#
# Builds for ARCHITECTURE, Debian's name of it, and runs under qemu. With --step only the program of
# the tensor-core step is built, whose kernels are the code that is written for one architecture; it
# must print the same digests as the one beside INVAR. Without it the kernels are built and compared
# by variant.sh, and the whole product if its libraries are available for ARCHITECTURE; cross.train
# then trains with this build.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
step=
if [[ $1 == --step ]]; then
    step=1
    shift
fi
invar=$1 folder=$2 machine=$3 arguments=(--preset "$4")
runner=(qemu-"$machine" -cpu max -L "/usr/$machine-linux-gnu")
if [[ $step ]]; then
    # shellcheck source=scripts/common.sh
    source scripts/common.sh
    configure "$folder" -B "$folder" "${arguments[@]}" -DINVAR_CUDA=OFF
    # The libraries of the program have ten times the sources that it needs. An object that is
    # missing here is an undefined symbol.
    kernels=kernels-deterministic/CMakeFiles/invar_kernels.dir base=base/CMakeFiles/invar_base.dir
    objects=(tests/gpu/CMakeFiles/step_sums.dir/step_sums.c.o
        "$kernels"/{step/{chain,kernel_portable,kernel_simd,sm90_ref},tensor,tensor_row}.c.o
        "$base"/{alloc,pool,status}.c.o)
    cmake --build "$folder" --target "${objects[@]}"
    (cd "$folder" && "$machine-linux-gnu-gcc" -pthread -o step_sums "${objects[@]}" -ldl -lm)
    "${runner[@]}" "$folder/step_sums" simd 32 >"$folder/other.txt"
    "$(dirname "$invar")/step_sums" simd 32 >"$folder/native.txt"
    diff -u "$folder/native.txt" "$folder/other.txt"
    echo "$(wc -l <"$folder/other.txt") lines, all equal"
    exit
fi
sysroot=$folder-libraries
if scripts/sysroot "$5" "$sysroot"; then
    arguments+=(-DINVAR_LEDGER=ON "-DCMAKE_PREFIX_PATH=$sysroot/usr")
fi
exec "$(dirname "${BASH_SOURCE[0]}")/variant.sh" "$invar" "$folder" "${runner[*]}" "${arguments[@]}"
