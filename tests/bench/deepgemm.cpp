/*
 * deepgemm.cpp - products in fp8 by DeepGEMM's kernels, as peers for bench.peers --peer.
 *
 * DeepGEMM has the engine's scale blocks, 1 x 128 and 128 x 128, but reads the scales of x with
 * contiguous rows, which the engine's are not. It reads the same number of bytes in another order,
 * so the results are wrong: only the speed is compared. All experts have the same number of rows,
 * as in the benchmark. DeepGEMM compiles a kernel with nvcc when it is used first.
 * tests/bench/deepgemm.sh compiles this file. A failure ends the program.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <map>

#include "jit_kernels/impls/sm90_fp8_gemm_1d2d.hpp"

#include "kernels-deterministic/cuda/common/cuda.h"
#include "kernels-deterministic/ops.h"
#include "tests/bench/peers.h"

namespace
{

using cute::UMMA::Major;

const char *const compiled_dims = "nk"; // like DeepGEMM's Python interface

at::TensorOptions on_device(at::ScalarType type)
{
    return at::TensorOptions().dtype(type).device(at::kCUDA);
}

at::Tensor codes(const invar_tensor &t)
{
    return at::from_blob(t.data, {t.shape[0], t.shape[1]}, {t.row_stride, 1},
                         on_device(at::kFloat8_e4m3fn));
}

at::Tensor output(const invar_tensor &t)
{
    return at::from_blob(t.data, {t.shape[0], t.shape[1]}, {t.row_stride, 1},
                         on_device(at::kBFloat16));
}

/*
 * Views the scales of `bands`, one for every 128 columns: (bands, column blocks), contiguous along
 * the bands if bands_together, else along the columns.
 */
at::Tensor scales(const invar_tensor &t, int64_t bands, bool bands_together)
{
    int64_t blocks = (t.shape[1] + INVAR_FP8_BLOCK - 1) / INVAR_FP8_BLOCK;

    return at::from_blob(t.scale, {bands, blocks},
                         {bands_together ? 1 : blocks, bands_together ? bands : 1},
                         on_device(at::kFloat));
}

/* Makes PyTorch's calls use the engine's stream. */
c10::cuda::CUDAStreamGuard use_engine_stream(const invar_device *dev)
{
    const invar_cuda *cuda = invar_cuda_of(dev);

    return c10::cuda::CUDAStreamGuard(
        c10::cuda::getStreamFromExternal(cuda->stream, (c10::DeviceIndex)cuda->ordinal));
}

invar_status linear_fwd(const invar_device *dev, const void *args, void *)
{
    const auto &a = *(const invar_linear_fwd_args *)args;
    auto stream_guard = use_engine_stream(dev);

    deep_gemm::sm90_fp8_gemm_1d2d(codes(a.x), scales(a.x, a.x.shape[0], true), codes(a.w),
                                  scales(a.w, a.w.shape[0] / INVAR_FP8_BLOCK, false), std::nullopt,
                                  output(a.y), (int)a.x.shape[0], (int)a.w.shape[0],
                                  (int)a.x.shape[1], Major::K, Major::K, Major::K, compiled_dims);
    return INVAR_OK;
}

/* Returns the expert of each row, for experts with equal numbers of rows. */
const at::Tensor &experts_of(int64_t rows, int64_t experts)
{
    static std::map<std::pair<int64_t, int64_t>, at::Tensor> made;
    auto found = made.find({rows, experts});

    if (found == made.end())
        found = made.emplace(std::pair{rows, experts},
                             at::arange(experts, on_device(at::kInt))
                                 .repeat_interleave(rows / experts))
                    .first;
    return found->second;
}

invar_status moe_linear_fwd(const invar_device *dev, const void *args, void *)
{
    const auto &a = *(const invar_moe_linear_fwd_args *)args;
    int64_t rows = a.x.shape[0], experts = a.experts.count;
    int64_t out = a.w.shape[0] / experts, in = a.x.shape[1];
    auto stream_guard = use_engine_stream(dev);

    deep_gemm::sm90_m_grouped_fp8_gemm_contiguous_1d2d(
        codes(a.x), scales(a.x, rows, true), codes(a.w).view({experts, out, in}),
        scales(a.w, a.w.shape[0] / INVAR_FP8_BLOCK, false), output(a.y), experts_of(rows, experts),
        (int)experts, (int)rows, (int)out, (int)in, Major::K, Major::K, Major::K, compiled_dims,
        false, std::nullopt);
    return INVAR_OK;
}

} // namespace

extern "C" __attribute__((visibility("default"))) const invar_gpu_compare_peer *
invar_race_peers(const invar_backend *backend)
{
    static const invar_gpu_compare_peer list[] = {
        {"DeepGEMM", INVAR_OP_LINEAR_FWD, "fp8", linear_fwd},
        {"DeepGEMM", INVAR_OP_MOE_LINEAR_FWD, "fp8", moe_linear_fwd},
        {},
    };

    if (!backend->memory.device_local)
        return nullptr;
    deep_gemm::Compiler::prepare_init(DEEPGEMM_ROOT, CUDA_ROOT);
    deep_gemm::KernelRuntime::prepare_init(CUDA_ROOT);
    deep_gemm::IncludeParser::prepare_init(DEEPGEMM_ROOT);
    return list;
}
