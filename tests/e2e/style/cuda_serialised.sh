#!/usr/bin/env bash
# cuda_serialised.sh FOLDER - the build fails if ptxas serializes the products of a kernel.
#
# A project of one kernel with the flags of the build: rejected with serialized products, and built
# without (the control). With INVAR_TEST_FULL=1 it is also rejected in a second build and after the
# good one, and all this again with ccache as the launcher, if it is installed, and from its cache.
# Exit code: 0 if all is as expected, else 1; 77 if there is no nvcc.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
folder=$1
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
if ! command -v nvcc >/dev/null; then
    echo "no nvcc here: skipped"
    exit 77
fi
rm -rf "$folder"
mkdir -p "$folder" || exit 2
expect_logs=("$folder/log")
export CCACHE_DIR=$folder/ccache
unset CMAKE_CUDA_COMPILER_LAUNCHER
: >"$folder/log"

cat >"$folder/CMakeLists.txt" <<CMAKE
cmake_minimum_required(VERSION 3.25)
project(sample LANGUAGES C)
set(INVAR_CUDA ON)
include($PWD/cmake/InvarFlags.cmake)
add_library(sample OBJECT kernel.cu)
target_link_libraries(sample PRIVATE invar_flags)
CMAKE

# kernel STATEMENT: writes a kernel with eight products into one accumulator and STATEMENT after
# each.
kernel() {
    cat >"$folder/kernel.cu" <<CUDA
__global__ void kernel(float *out, unsigned long a, unsigned long b)
{
    float d[4] = {};

    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int i = 0; i < 8; i++) {
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
                     "{%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "l"(a), "l"(b));
        $1
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int i = 0; i < 4; i++)
        out[4 * threadIdx.x + i] = d[i];
}
CUDA
}

# shellcheck disable=SC2317 # called by holds
builds() {
    cmake --build "$folder/build" >"$folder/log" 2>&1
}

# shellcheck disable=SC2317
refused() {
    ! builds && grep -q 'C75.* serialized' "$folder/log" &&
        grep -q '^compile-cuda: ptxas serialises' "$folder/log" &&
        [[ -z $(find "$folder/build" -name 'kernel.cu*.o') ]]
}

# rounds LAUNCHER ...: runs the builds with LAUNCHER in front of the compiler.
rounds() {
    rm -rf "$folder/build"
    kernel 'd[0] += 1.0f;'
    holds cmake -S "$folder" -B "$folder/build" -G Ninja \
        "-DCMAKE_CUDA_COMPILER_LAUNCHER=$*" --log-level=ERROR
    holds refused
    [[ ! ${INVAR_TEST_FULL:-} ]] || holds refused
    kernel ''
    holds builds
    [[ ${INVAR_TEST_FULL:-} ]] || return
    kernel 'd[1] += 1.0f;'
    holds refused
}

rounds
if [[ -n ${INVAR_TEST_FULL:-} ]] && command -v ccache >/dev/null; then
    rounds ccache
    ccache --print-stats 2>/dev/null | grep -q '^direct_cache_hit[[:space:]]*[1-9]' ||
        complain "the control: ccache remembered nothing"
fi
((failed)) || echo "$checks checks"
exit "$failed"
