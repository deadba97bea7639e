/*
 * deepgemm.cpp - products in fp8 by DeepGEMM's kernels; for invar bench --peer.
 *
 * Its blocks of scales are the engine's, 1 x 128 and 128 x 128, but it reads those of x with the
 * rows contiguous, which ours are not: it takes as many bytes, and multiplies by others of them. So
 * this compares speed; results are not looked at. Experts have equal numbers of rows, as in the
 * benchmark. DeepGEMM compiles a kernel with nvcc where it needs it first. tests/bench/deepgemm.sh
 * compiles this; a failure ends the program.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <map>

#include "jit_kernels/impls/sm90_fp8_gemm_1d2d.hpp"

#include "cli/bench/gpu_compare.h"
#include "kernels-deterministic/cuda/common/cuda.h"
#include "kernels-deterministic/ops.h"

namespace
{

using cute::UMMA::Major;

const char *const compiled_dims = "nk"; // as its Python interface has it

at::TensorOptions on_device(at::ScalarType type)
{
    return at::TensorOptions().dtype(type).device(at::kCUDA);
}

at::Tensor codes(const invar_tensor &t)
{
    return at::from_blob(t.data, {t.shape[0], t.shape[1]}, {t.row_stride, 1},
                         on_device(at::kFloat8_e4m3fn));
}

at::Tensor result(const invar_tensor &t)
{
    return at::from_blob(t.data, {t.shape[0], t.shape[1]}, {t.row_stride, 1},
                         on_device(at::kBFloat16));
}

/* A scale for 128 columns of each of `bands`; the bands lie together, or the columns. */
at::Tensor scales(const invar_tensor &t, int64_t bands, bool bands_together)
{
    int64_t blocks = (t.shape[1] + INVAR_FP8_BLOCK - 1) / INVAR_FP8_BLOCK;

    return at::from_blob(t.scale, {bands, blocks},
                         {bands_together ? 1 : blocks, bands_together ? bands : 1},
                         on_device(at::kFloat));
}

/* Calls of PyTorch inside go to the engine's stream. */
c10::cuda::CUDAStreamGuard queue_of(const invar_device *dev)
{
    const invar_cuda *cuda = invar_cuda_of(dev);

    return c10::cuda::CUDAStreamGuard(
        c10::cuda::getStreamFromExternal(cuda->stream, (c10::DeviceIndex)cuda->ordinal));
}

invar_status linear_fwd(const invar_device *dev, const void *args, void *)
{
    const auto &a = *(const invar_linear_fwd_args *)args;
    auto queue = queue_of(dev);

    deep_gemm::sm90_fp8_gemm_1d2d(codes(a.x), scales(a.x, a.x.shape[0], true), codes(a.w),
                                  scales(a.w, a.w.shape[0] / INVAR_FP8_BLOCK, false), std::nullopt,
                                  result(a.y), (int)a.x.shape[0], (int)a.w.shape[0],
                                  (int)a.x.shape[1], Major::K, Major::K, Major::K, compiled_dims);
    return INVAR_OK;
}

/* The expert of each row. */
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
    auto queue = queue_of(dev);

    deep_gemm::sm90_m_grouped_fp8_gemm_contiguous_1d2d(
        codes(a.x), scales(a.x, rows, true), codes(a.w).view({experts, out, in}),
        scales(a.w, a.w.shape[0] / INVAR_FP8_BLOCK, false), result(a.y), experts_of(rows, experts),
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
