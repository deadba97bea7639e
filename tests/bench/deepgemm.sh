#!/usr/bin/env bash
# deepgemm.sh CHECKOUT FILE.so - compiles DeepGEMM's products in fp8 as peers for bench.peers.
#
#   tests/bench/deepgemm.sh ~/DeepGEMM deepgemm.so
#   build-cuda/bench.peers --device cuda --op linear --peer ./deepgemm.so
#
# CHECKOUT is DeepGEMM's repository with its submodule third-party/fmt. Needs PyTorch and nvcc.
# DeepGEMM also calls nvcc at run time, so CHECKOUT and FILE.so.root must stay in place. Uses
# CUTLASS's headers of the bundle; otherwise scripts/cutlass fetches them.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
if (($# != 2)) || [[ ! -d $1/deep_gemm/include || $2 == -* ]]; then
    echo "deepgemm.sh: expected DeepGEMM's repository, and the file to write" >&2
    exit 2
fi
checkout=$(realpath "$1")
out=$(realpath "$2")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
include=libraries/usr/include
if [[ ! -d $include/cutlass ]]; then
    scripts/cutlass
    include=.cache/cutlass/include
fi

# DeepGEMM searches all headers in one folder, and includes torch/python.h only for C++ tensors.
root=$out.root
mkdir -p "$root/include" "$root/no-python/torch"
ln -sfn "$checkout/deep_gemm/include/deep_gemm" "$root/include/deep_gemm"
for headers in cute cutlass; do
    ln -sfn "$(realpath "$include/$headers")" "$root/include/$headers"
done
echo '#include <torch/torch.h>' >"$root/no-python/torch/python.h"

cuda=$(dirname "$(dirname "$(realpath "$(command -v nvcc)")")")
mapfile -t torch < <(python3 -c '
from torch.utils import cpp_extension
for path in cpp_extension.include_paths("cuda"):
    print("-I" + path)
for path in cpp_extension.library_paths("cuda"):
    print("-L" + path)
    print("-Wl,-rpath," + path)')
exec g++ -std=c++20 -O2 -fPIC -shared -w -o "$out" -I. -I"$root/no-python" -I"$checkout/csrc" \
    -I"$checkout/third-party/fmt/include" -isystem "$root/include" -I"$cuda/include/cccl" \
    -DDEEPGEMM_ROOT="\"$root\"" -DCUDA_ROOT="\"$cuda\"" tests/bench/deepgemm.cpp "${torch[@]}" \
    -ltorch -ltorch_cpu -ltorch_cuda -lc10 -lc10_cuda -lcublas -lcublasLt -lcudart -lnvrtc
