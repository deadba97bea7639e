#!/usr/bin/env bash
# cutlass.sh FILE.so - compiles CUTLASS's stock products as peers for bench.peers; takes minutes.
#
#   tests/bench/cutlass.sh cutlass.so
#   build-cuda/bench.peers --device cuda --op linear --peer ./cutlass.so
#
# Needs nvcc. Uses CUTLASS's headers of the bundle; otherwise scripts/cutlass fetches them.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if (($# != 1)) || [[ $1 == -* ]]; then
    echo "cutlass.sh: expected the file to write, for example cutlass.so" >&2
    exit 2
fi
include=libraries/usr/include
if [[ ! -d $include/cutlass ]]; then
    scripts/cutlass
    include=.cache/cutlass/include
fi
exec nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -shared -Xcompiler=-fPIC -w \
    --expt-relaxed-constexpr -DNDEBUG -I. -isystem "$include" -o "$1" tests/bench/cutlass.cu
