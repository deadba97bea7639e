/*
 * peer.cpp - products of cuBLAS and attention of cuDNN, as peers for bench.peers --peer.
 *
 * linear.fwd, .dx and .dw in bf16 call cuBLASLt; attention.fwd and .bwd call cuDNN through
 * PyTorch. cuBLASLt also adds a bias or residual; an activation is the engine's op. A weight
 * gradient is one product over all tokens. Attention assumes samples of equal length, as in the
 * benchmark, and uses only their number. tests/bench/model.py compiles this file. A failure ends
 * the program.
 *
 * For complete models (invar_bench_peer), the calls need not be deterministic, and all other ops
 * and types are the engine's. For single ops (invar_race_peers), there are also cuDNN in PyTorch's
 * deterministic mode, and products in fp8 with the engine's scale blocks or with one scale per
 * row. All of these scales are 1, since cuBLAS has its own order of scales.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cublasLt.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kernels-deterministic/cuda/common/cuda.h"
#include "kernels-deterministic/ops.h"
#include "tests/bench/peers.h"

namespace
{

const invar_backend *engine_backend;
invar_backend peer_backend;

[[noreturn]] void die(const char *what, long code)
{
    std::fprintf(stderr, "invar: bench: the peer's %s failed (%ld)\n", what, code);
    std::abort();
}

/* ---- products -------------------------------------------------------------------------------- */

constexpr size_t workspace_bytes = size_t{64} << 20;

/* Properties that distinguish the kinds of products. */
using kind = std::array<int64_t, 13>;

/*
 * Values that share an fp8 scale: 128 values of a row and blocks of 128 rows, or rows; ROWS_FAST
 * also has fast accumulation.
 */
enum scaling { BLOCKS, ROWS, ROWS_FAST };

/* Columns of d (m, n) = a (m, k) b (k, n) + c + bias. A row of the engine is a column of cuBLAS. */
struct product {
    int64_t m, n, k;
    const invar_tensor &a, &b; /* bf16, or fp8, whose own scales are ignored */
    bool transpose_a, transpose_b;
    const invar_tensor &d;
    const void *c;    /* has the layout of d; nullptr if there is none */
    const void *bias; /* (m) bf16; nullptr if there is none */
    scaling scales = BLOCKS;

    bool fp8() const
    {
        return a.dtype == INVAR_DTYPE_FP8;
    }

    kind key() const
    {
        return {m,
                n,
                k,
                a.row_stride,
                b.row_stride,
                d.row_stride,
                transpose_a,
                transpose_b,
                d.dtype == INVAR_DTYPE_F32,
                c != nullptr,
                bias != nullptr,
                fp8(),
                scales};
    }
};

cublasLtMatrixLayout_t layout(const invar_tensor &t, int64_t rows, int64_t columns)
{
    cublasLtMatrixLayout_t made;
    cudaDataType_t type = t.dtype == INVAR_DTYPE_F32   ? CUDA_R_32F
                          : t.dtype == INVAR_DTYPE_FP8 ? CUDA_R_8F_E4M3
                                                       : CUDA_R_16BF;

    if (cublasLtMatrixLayoutCreate(&made, type, (uint64_t)rows, (uint64_t)columns, t.row_stride) !=
        CUBLAS_STATUS_SUCCESS)
        die("cublasLtMatrixLayoutCreate", 0);
    return made;
}

template <typename T>
void set_attribute(cublasLtMatmulDesc_t task, cublasLtMatmulDescAttributes_t what, const T &value)
{
    if (cublasLtMatmulDescSetAttribute(task, what, &value, sizeof value) != CUBLAS_STATUS_SUCCESS)
        die("cublasLtMatmulDescSetAttribute", (long)what);
}

/* Allocates `count` ones in device memory, which is never freed. */
void *ones(int64_t count)
{
    std::vector<float> values((size_t)count, 1.0f);
    size_t bytes = values.size() * sizeof values[0];
    void *made = nullptr;

    if (cudaMalloc(&made, bytes) != cudaSuccess ||
        cudaMemcpy(made, values.data(), bytes, cudaMemcpyHostToDevice) != cudaSuccess)
        die("cudaMalloc", (long)bytes);
    return made;
}

/* Sets scales for the weight (cuBLAS's a) and for x: the engine's blocks, or one scale per row. */
void set_scales(cublasLtMatmulDesc_t task, const product &p)
{
    constexpr int64_t BLOCK = INVAR_FP8_BLOCK;
    bool blocks = p.scales == BLOCKS;
    int64_t across =
        blocks ? (p.k + BLOCK - 1) / BLOCK + 3 : 1; // room for padding to a multiple of 4
    int64_t down = blocks ? (p.m + BLOCK - 1) / BLOCK : p.m;

    set_attribute(task, CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
                  blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
                         : CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
    set_attribute(task, CUBLASLT_MATMUL_DESC_B_SCALE_MODE,
                  blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F
                         : CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
    set_attribute(task, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, ones(down * across));
    set_attribute(task, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, ones(p.n * across));
    set_attribute(task, CUBLASLT_MATMUL_DESC_FAST_ACCUM, (int8_t)(p.scales == ROWS_FAST));
}

/* A kind of product and the algorithm that cuBLAS prefers for it. */
struct plan {
    cublasLtMatmulDesc_t task;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulHeuristicResult_t selected;

    plan(cublasLtHandle_t handle, const product &p)
    {
        cublasLtMatmulPreference_t preference;
        int count = 0;

        cublasLtMatmulDescCreate(&task, CUBLAS_COMPUTE_32F, CUDA_R_32F);
        set_attribute(task, CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
        set_attribute(task, CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
        if (p.bias) {
            set_attribute(task, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
            set_attribute(task, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF);
        }
        if (p.fp8())
            set_scales(task, p);
        a = p.transpose_a ? layout(p.a, p.k, p.m) : layout(p.a, p.m, p.k);
        b = p.transpose_b ? layout(p.b, p.n, p.k) : layout(p.b, p.k, p.n);
        d = layout(p.d, p.m, p.n);
        cublasLtMatmulPreferenceCreate(&preference);
        cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &workspace_bytes, sizeof workspace_bytes);
        if (cublasLtMatmulAlgoGetHeuristic(handle, task, a, b, d, d, preference, 1, &selected,
                                           &count) != CUBLAS_STATUS_SUCCESS ||
            count == 0)
            die("cublasLtMatmulAlgoGetHeuristic", count);
        cublasLtMatmulPreferenceDestroy(preference);
    }
};

void multiply(const invar_device *dev, const product &p)
{
    static std::map<kind, plan> plans;
    static void *block = nullptr;
    static cublasLtHandle_t handle = [] {
        cublasLtHandle_t made;
        if (cublasLtCreate(&made) != CUBLAS_STATUS_SUCCESS ||
            cudaMalloc(&block, workspace_bytes) != cudaSuccess)
            die("cublasLtCreate", 0);
        return made;
    }();
    auto entry = plans.find(p.key());
    const float one = 1.0f, beta = p.c ? 1.0f : 0.0f;

    if (entry == plans.end())
        entry = plans.emplace(p.key(), plan(handle, p)).first;
    const plan &selected = entry->second;
    if (p.bias)
        set_attribute(selected.task, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    cublasStatus_t status =
        cublasLtMatmul(handle, selected.task, &one, p.a.data, selected.a, p.b.data, selected.b,
                       &beta, p.c ? p.c : p.d.data, selected.d, p.d.data, selected.d,
                       &selected.selected.algo, block, workspace_bytes, invar_cuda_of(dev)->stream);
    if (status != CUBLAS_STATUS_SUCCESS)
        die("cublasLtMatmul", (long)status);
}

bool is_bf16(const invar_tensor &t)
{
    return t.dtype == INVAR_DTYPE_BF16;
}

/* y = x w^T + bias + residual */
void forward(const invar_device *dev, const invar_tensor &y, const invar_tensor &x,
             const invar_tensor &w, const invar_tensor &bias, const void *residual)
{
    multiply(dev, {.m = w.shape[0],
                   .n = x.shape[0],
                   .k = x.shape[1],
                   .a = w,
                   .b = x,
                   .transpose_a = true,
                   .transpose_b = false,
                   .d = y,
                   .c = residual,
                   .bias = invar_tensor_present(&bias) ? bias.data : nullptr});
}

/* Returns a buffer for a result that the engine does not keep. It is never freed. */
invar_tensor temporary_result(int key, const invar_tensor &like)
{
    static struct {
        void *at;
        size_t bytes;
    } buffers[2];
    auto &block = buffers[key];
    size_t bytes = (size_t)(like.shape[0] * like.shape[1]) * 2;
    invar_tensor made = like;

    if (bytes > block.bytes) {
        if (cudaMalloc(&block.at, bytes) != cudaSuccess)
            die("cudaMalloc", (long)bytes);
        block.bytes = bytes;
    }
    made.data = block.at;
    made.row_stride = like.shape[1];
    return made;
}

/* Computes gate and up, then the engine's swiglu. */
invar_status linear_with_activation(const invar_device *dev, const invar_linear_fwd_args &a)
{
    bool saved = invar_tensor_present(&a.y);
    invar_swiglu_fwd_args act = {};

    act.y = a.act;
    act.gate = saved ? a.y : temporary_result(0, a.act);
    act.up = saved ? a.more[0].y : temporary_result(1, a.act);
    forward(dev, act.gate, a.x, a.w, a.bias, nullptr);
    forward(dev, act.up, a.x, a.more[0].w, a.more[0].bias, nullptr);
    return engine_backend->ops[INVAR_OP_SWIGLU_FWD].run(dev, &act, nullptr);
}

invar_status linear_fwd(const invar_device *dev, const void *args, void *workspace)
{
    const auto &a = *(const invar_linear_fwd_args *)args;
    bool added = invar_tensor_present(&a.residual);

    if (!is_bf16(a.x) || !is_bf16(a.w) || (added && a.residual.row_stride != a.y.row_stride))
        return engine_backend->ops[INVAR_OP_LINEAR_FWD].run(dev, args, workspace);
    if (invar_tensor_present(&a.act))
        return linear_with_activation(dev, a);
    forward(dev, a.y, a.x, a.w, a.bias, added ? a.residual.data : nullptr);
    for (int32_t i = 0; i < a.n_more; i++)
        forward(dev, a.more[i].y, a.x, a.more[i].w, a.more[i].bias, nullptr);
    return INVAR_OK;
}

invar_status linear_dx(const invar_device *dev, const void *args, void *workspace)
{
    const auto &a = *(const invar_linear_dx_args *)args;

    for (int32_t i = 0; i < a.n_parts; i++)
        if (!is_bf16(a.parts[i].dy) || !is_bf16(a.parts[i].w))
            return engine_backend->ops[INVAR_OP_LINEAR_DX].run(dev, args, workspace);
    for (int32_t i = 0; i < a.n_parts; i++)
        multiply(dev, {.m = a.dx.shape[1],
                       .n = a.dx.shape[0],
                       .k = a.parts[i].dy.shape[1],
                       .a = a.parts[i].w,
                       .b = a.parts[i].dy,
                       .transpose_a = false,
                       .transpose_b = false,
                       .d = a.dx,
                       .c = i > 0 ? a.dx.data : nullptr,
                       .bias = nullptr});
    return INVAR_OK;
}

invar_status linear_dw(const invar_device *dev, const void *args, void *workspace)
{
    const auto &a = *(const invar_linear_dw_args *)args;

    if (!is_bf16(a.dy) || !is_bf16(a.x))
        return engine_backend->ops[INVAR_OP_LINEAR_DW].run(dev, args, workspace);
    multiply(dev, {.m = a.dw.shape[1],
                   .n = a.dw.shape[0],
                   .k = a.x.shape[0],
                   .a = a.x,
                   .b = a.dy,
                   .transpose_a = false,
                   .transpose_b = true,
                   .d = a.dw,
                   .c = a.fresh ? nullptr : a.dw.data,
                   .bias = nullptr});
    return INVAR_OK;
}

template <scaling scales>
invar_status linear_fwd_fp8(const invar_device *dev, const void *args, void *)
{
    const auto &a = *(const invar_linear_fwd_args *)args;

    multiply(dev, {.m = a.w.shape[0],
                   .n = a.x.shape[0],
                   .k = a.x.shape[1],
                   .a = a.w,
                   .b = a.x,
                   .transpose_a = true,
                   .transpose_b = false,
                   .d = a.y,
                   .c = nullptr,
                   .bias = nullptr,
                   .scales = scales});
    return INVAR_OK;
}

/* ---- PyTorch's results in our memory --------------------------------------------------------- */

/*
 * PyTorch allocates its results itself. The allocator returns the engine's own tensors, which are
 * registered for the time of a call and found by their sizes, and other memory from CUDA's pool.
 */
struct registered_output {
    void *at;
    size_t bytes;
    bool taken;
};
std::vector<registered_output> registered_outputs;

void *allocate_output(size_t bytes, int, cudaStream_t stream)
{
    void *made = nullptr;

    for (registered_output &l : registered_outputs)
        if (!l.taken && l.bytes == bytes) {
            l.taken = true;
            return l.at;
        }
    if (bytes > 0 && cudaMallocAsync(&made, bytes, stream) != cudaSuccess)
        die("cudaMallocAsync", (long)bytes);
    return made;
}

std::unordered_set<void *> engine_addresses; /* addresses that belong to the engine */

void free_output(void *at, size_t, int, cudaStream_t stream)
{
    if (at && !engine_addresses.count(at))
        (void)cudaFreeAsync(at, stream);
}

/* Registers a tensor for PyTorch's results if it is contiguous; otherwise its result is copied. */
void register_output(const invar_tensor &t)
{
    int64_t row = t.shape[1] * t.shape[2];

    if (t.row_stride != row)
        return;
    engine_addresses.insert(t.data);
    registered_outputs.push_back({t.data, (size_t)(t.shape[0] * row) * 2, false});
}

/* Copies a result that PyTorch allocated elsewhere; this takes a few microseconds. */
void copy_if_elsewhere(const at::Tensor &to, const at::Tensor &from)
{
    if (to.data_ptr() != from.data_ptr())
        to.copy_(from);
}

/* ---- attention ------------------------------------------------------------------------------- */

c10::cuda::CUDAStream stream_of(const invar_device *dev)
{
    const invar_cuda *cuda = invar_cuda_of(dev);

    return c10::cuda::getStreamFromExternal(cuda->stream, (c10::DeviceIndex)cuda->ordinal);
}

/* Values that the forward of a layer keeps for its backward, by the address of the layer's lse2. */
struct saved {
    at::Tensor lse, seed, offset;
};
std::unordered_map<const void *, saved> memory;

/* Views (T, H, D) as (B, H, L, D). */
at::Tensor heads(const invar_tensor &t, int64_t samples)
{
    int64_t length = t.shape[0] / samples;

    return at::from_blob(t.data, {samples, t.shape[1], length, t.shape[2]},
                         {length * t.row_stride, t.shape[2], t.row_stride, 1},
                         at::TensorOptions().dtype(at::kBFloat16).device(at::kCUDA));
}

bool is_unsupported(const invar_attention_shape &s, const invar_row_offsets &samples,
                    const invar_tensor &q)
{
    return !is_bf16(q) || s.scale != 0.0f || s.window != 0 || samples.count == 0 ||
           q.shape[0] % samples.count != 0;
}

invar_status attention_fwd(const invar_device *dev, const void *args, void *workspace)
{
    const auto &a = *(const invar_attention_fwd_args *)args;
    int64_t n = a.samples.count;

    if (is_unsupported(a.shape, a.samples, a.q))
        return engine_backend->ops[INVAR_OP_ATTENTION_FWD].run(dev, args, workspace);
    c10::cuda::CUDAStreamGuard guard(stream_of(dev));
    bool train = invar_tensor_present(&a.lse2);
    registered_outputs.clear();
    register_output(a.o);
    auto made = at::_scaled_dot_product_cudnn_attention(heads(a.q, n), heads(a.k, n), heads(a.v, n),
                                                        {}, train, 0.0, true, false);
    copy_if_elsewhere(heads(a.o, n), std::get<0>(made));
    if (train)
        memory[a.lse2.data] = {std::get<1>(made), std::get<6>(made), std::get<7>(made)};
    return INVAR_OK;
}

invar_status attention_bwd(const invar_device *dev, const void *args, void *workspace)
{
    const auto &a = *(const invar_attention_bwd_args *)args;
    int64_t n = a.samples.count, length;

    if (is_unsupported(a.shape, a.samples, a.q))
        return engine_backend->ops[INVAR_OP_ATTENTION_BWD].run(dev, args, workspace);
    auto entry = memory.find(a.lse2.data);
    if (entry == memory.end())
        die("attention.fwd", 0);
    c10::cuda::CUDAStreamGuard guard(stream_of(dev));
    length = a.q.shape[0] / n;
    registered_outputs.clear();
    register_output(a.dq);
    register_output(a.dk);
    register_output(a.dv);
    auto made = at::_scaled_dot_product_cudnn_attention_backward(
        heads(a.d_o, n), heads(a.q, n), heads(a.k, n), heads(a.v, n), heads(a.o, n),
        entry->second.lse, entry->second.seed, entry->second.offset, {}, {}, {}, length, length,
        0.0, true);
    copy_if_elsewhere(heads(a.dq, n), std::get<0>(made));
    copy_if_elsewhere(heads(a.dk, n), std::get<1>(made));
    copy_if_elsewhere(heads(a.dv, n), std::get<2>(made));
    return INVAR_OK;
}

/*
 * In PyTorch's deterministic mode, which has no deterministic algorithm of cuDNN: it only fills new
 * results before they are computed.
 */
invar_status attention_bwd_deterministic(const invar_device *dev, const void *args, void *workspace)
{
    at::globalContext().setDeterministicAlgorithms(true, true);
    invar_status status = attention_bwd(dev, args, workspace);
    at::globalContext().setDeterministicAlgorithms(false, true);
    return status;
}

/* Returns false if the device is not a GPU. */
bool install_allocator(const invar_backend *backend)
{
    cudaMemPool_t pool;
    uint64_t all = UINT64_MAX;

    if (!backend->memory.device_local)
        return false;
    engine_backend = backend;
    // the pool keeps its memory, since allocating again after each wait would be slow
    if (cudaDeviceGetDefaultMemPool(&pool, 0) == cudaSuccess)
        (void)cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all);
    torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(
        torch::cuda::CUDAPluggableAllocator::createCustomAllocator(allocate_output, free_output));
    return true;
}

} // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT const invar_backend *invar_bench_peer(const invar_backend *backend)
{
    if (!install_allocator(backend))
        return nullptr;
    peer_backend = *backend;
    peer_backend.ops[INVAR_OP_LINEAR_FWD].run = linear_fwd;
    peer_backend.ops[INVAR_OP_LINEAR_DX].run = linear_dx;
    peer_backend.ops[INVAR_OP_LINEAR_DW].run = linear_dw;
    peer_backend.ops[INVAR_OP_ATTENTION_FWD].run = attention_fwd;
    peer_backend.ops[INVAR_OP_ATTENTION_BWD].run = attention_bwd;
    return &peer_backend;
}

EXPORT const invar_gpu_compare_peer *invar_race_peers(const invar_backend *backend)
{
    static const invar_gpu_compare_peer list[] = {
        {"cuBLAS", INVAR_OP_LINEAR_FWD, "bf16", linear_fwd},
        {"cuBLAS", INVAR_OP_LINEAR_DX, "bf16", linear_dx},
        {"cuBLAS", INVAR_OP_LINEAR_DW, "bf16", linear_dw},
        {"cuBLAS, scales of blocks", INVAR_OP_LINEAR_FWD, "fp8", linear_fwd_fp8<BLOCKS>},
        {"cuBLAS, scales of rows", INVAR_OP_LINEAR_FWD, "fp8", linear_fwd_fp8<ROWS>},
        {"cuBLAS, scales of rows, fast accumulation", INVAR_OP_LINEAR_FWD, "fp8",
         linear_fwd_fp8<ROWS_FAST>},
        {"cuDNN", INVAR_OP_ATTENTION_FWD, "bf16", attention_fwd},
        {"cuDNN, PyTorch's deterministic mode", INVAR_OP_ATTENTION_BWD, "bf16",
         attention_bwd_deterministic},
        {"cuDNN", INVAR_OP_ATTENTION_BWD, "bf16", attention_bwd},
        {},
    };

    return install_allocator(backend) ? list : nullptr;
}
