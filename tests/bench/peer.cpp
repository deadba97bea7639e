/*
 * peer.cpp - products and attention by the vendor; for invar bench --peer.
 *
 * linear.fwd, .dx and .dw in bf16 are calls of cuBLASLt, attention.fwd and .bwd are cuDNN's, by
 * way of PyTorch. A bias and what is added to are cuBLASLt's as well, an activation is the
 * engine's. The gradient of a weight is one product over all tokens. Samples are taken to have
 * equal lengths, as in the benchmark: attention looks at their number alone. tests/bench/model.py
 * compiles this; a failure ends the program.
 *
 * For whole models (invar_bench_peer) none of them is bound to be deterministic, and all other ops
 * and types stay what they were. For single ops (invar_race_peers) there is PyTorch's deterministic
 * mode, too, and products in fp8, with scales for the engine's blocks or for whole rows. All of
 * these scales are 1: cuBLAS takes the bytes of both operands, and scales in an order of its own.
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

#include "cli/bench/gpu_compare.h"
#include "kernels-deterministic/cuda/common/cuda.h"
#include "kernels-deterministic/ops.h"

namespace
{

const invar_backend *own;
invar_backend table;

[[noreturn]] void die(const char *what, long code)
{
    std::fprintf(stderr, "invar: bench: the peer's %s failed (%ld)\n", what, code);
    std::abort();
}

/* ---- products -------------------------------------------------------------------------------- */

constexpr size_t room_bytes = size_t{64} << 20;

/* What tells one kind of product from another. */
using kind = std::array<int64_t, 13>;

/* What shares a scale in fp8: 128 products of a row and of 128 rows, or rows; with fast sums. */
enum scaling { BLOCKS, ROWS, ROWS_FAST };

/* Columns of d (m, n) = a (m, k) b (k, n) + c + bias; rows of the engine are columns of cuBLAS. */
struct product {
    int64_t m, n, k;
    const invar_tensor &a, &b; /* bf16; fp8, whose own scales are ignored */
    bool transpose_a, transpose_b;
    const invar_tensor &d;
    const void *c;    /* nullptr: none; as d lies */
    const void *bias; /* (m) bf16; nullptr: none */
    scaling scales = BLOCKS;

    bool fp8() const
    {
        return a.dtype == INVAR_DTYPE_FP8;
    }

    kind which() const
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
void describe(cublasLtMatmulDesc_t task, cublasLtMatmulDescAttributes_t what, const T &value)
{
    if (cublasLtMatmulDescSetAttribute(task, what, &value, sizeof value) != CUBLAS_STATUS_SUCCESS)
        die("cublasLtMatmulDescSetAttribute", (long)what);
}

/* `count` times 1, for good. */
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

/* Of the weight (cuBLAS's a) and of x, as the engine has them, or one for each row of both. */
void give_scales(cublasLtMatmulDesc_t task, const product &p)
{
    constexpr int64_t BLOCK = INVAR_FP8_BLOCK;
    bool blocks = p.scales == BLOCKS;
    int64_t across = blocks ? (p.k + BLOCK - 1) / BLOCK + 3 : 1; // lines of 4
    int64_t down = blocks ? (p.m + BLOCK - 1) / BLOCK : p.m;

    describe(task, CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
             blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
                    : CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
    describe(task, CUBLASLT_MATMUL_DESC_B_SCALE_MODE,
             blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F
                    : CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
    describe(task, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, ones(down * across));
    describe(task, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, ones(p.n * across));
    describe(task, CUBLASLT_MATMUL_DESC_FAST_ACCUM, (int8_t)(p.scales == ROWS_FAST));
}

/* A kind of product, and the way that cuBLAS prefers for it. */
struct plan {
    cublasLtMatmulDesc_t task;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulHeuristicResult_t way;

    plan(cublasLtHandle_t handle, const product &p)
    {
        cublasLtMatmulPreference_t wish;
        int count = 0;

        cublasLtMatmulDescCreate(&task, CUBLAS_COMPUTE_32F, CUDA_R_32F);
        describe(task, CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
        describe(task, CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
        if (p.bias) {
            describe(task, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
            describe(task, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF);
        }
        if (p.fp8())
            give_scales(task, p);
        a = p.transpose_a ? layout(p.a, p.k, p.m) : layout(p.a, p.m, p.k);
        b = p.transpose_b ? layout(p.b, p.n, p.k) : layout(p.b, p.k, p.n);
        d = layout(p.d, p.m, p.n);
        cublasLtMatmulPreferenceCreate(&wish);
        cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &room_bytes, sizeof room_bytes);
        if (cublasLtMatmulAlgoGetHeuristic(handle, task, a, b, d, d, wish, 1, &way, &count) !=
                CUBLAS_STATUS_SUCCESS ||
            count == 0)
            die("cublasLtMatmulAlgoGetHeuristic", count);
        cublasLtMatmulPreferenceDestroy(wish);
    }
};

void multiply(const invar_device *dev, const product &p)
{
    static std::map<kind, plan> plans;
    static void *room = nullptr;
    static cublasLtHandle_t handle = [] {
        cublasLtHandle_t made;
        if (cublasLtCreate(&made) != CUBLAS_STATUS_SUCCESS ||
            cudaMalloc(&room, room_bytes) != cudaSuccess)
            die("cublasLtCreate", 0);
        return made;
    }();
    auto found = plans.find(p.which());
    const float one = 1.0f, beta = p.c ? 1.0f : 0.0f;

    if (found == plans.end())
        found = plans.emplace(p.which(), plan(handle, p)).first;
    const plan &way = found->second;
    if (p.bias)
        describe(way.task, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    cublasStatus_t status = cublasLtMatmul(
        handle, way.task, &one, p.a.data, way.a, p.b.data, way.b, &beta, p.c ? p.c : p.d.data,
        way.d, p.d.data, way.d, &way.way.algo, room, room_bytes, invar_cuda_of(dev)->stream);
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

/* Room for a result that the engine does not keep; it is never given back. */
invar_tensor passing(int which, const invar_tensor &like)
{
    static struct {
        void *at;
        size_t bytes;
    } rooms[2];
    auto &room = rooms[which];
    size_t bytes = (size_t)(like.shape[0] * like.shape[1]) * 2;
    invar_tensor made = like;

    if (bytes > room.bytes) {
        if (cudaMalloc(&room.at, bytes) != cudaSuccess)
            die("cudaMalloc", (long)bytes);
        room.bytes = bytes;
    }
    made.data = room.at;
    made.row_stride = like.shape[1];
    return made;
}

/* Gate and up, then the engine's swiglu. */
invar_status gated(const invar_device *dev, const invar_linear_fwd_args &a)
{
    bool kept = invar_tensor_present(&a.y);
    invar_swiglu_fwd_args act = {};

    act.y = a.act;
    act.gate = kept ? a.y : passing(0, a.act);
    act.up = kept ? a.more[0].y : passing(1, a.act);
    forward(dev, act.gate, a.x, a.w, a.bias, nullptr);
    forward(dev, act.up, a.x, a.more[0].w, a.more[0].bias, nullptr);
    return own->ops[INVAR_OP_SWIGLU_FWD].run(dev, &act, nullptr);
}

invar_status linear_fwd(const invar_device *dev, const void *args, void *workspace)
{
    const auto &a = *(const invar_linear_fwd_args *)args;
    bool added = invar_tensor_present(&a.residual);

    if (!is_bf16(a.x) || !is_bf16(a.w) ||
        (added && a.residual.row_stride != a.y.row_stride))
        return own->ops[INVAR_OP_LINEAR_FWD].run(dev, args, workspace);
    if (invar_tensor_present(&a.act))
        return gated(dev, a);
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
            return own->ops[INVAR_OP_LINEAR_DX].run(dev, args, workspace);
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
        return own->ops[INVAR_OP_LINEAR_DW].run(dev, args, workspace);
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
 * PyTorch takes room for its results itself. It gets the engine's own tensors for that, which are
 * lent for the time of a call and known by their sizes, and everything else from CUDA's pool.
 */
struct loan {
    void *at;
    size_t bytes;
    bool taken;
};
std::vector<loan> loans;

void *lend(size_t bytes, int, cudaStream_t stream)
{
    void *made = nullptr;

    for (loan &l : loans)
        if (!l.taken && l.bytes == bytes) {
            l.taken = true;
            return l.at;
        }
    if (bytes > 0 && cudaMallocAsync(&made, bytes, stream) != cudaSuccess)
        die("cudaMallocAsync", (long)bytes);
    return made;
}

std::unordered_set<void *> lent; /* addresses that are the engine's */

void take_back(void *at, size_t, int, cudaStream_t stream)
{
    if (at && !lent.count(at))
        (void)cudaFreeAsync(at, stream);
}

/* Only where it is one piece; columns of a wider buffer get a copy. */
void offer(const invar_tensor &t)
{
    int64_t row = t.shape[1] * t.shape[2];

    if (t.row_stride != row)
        return;
    lent.insert(t.data);
    loans.push_back({t.data, (size_t)(t.shape[0] * row) * 2, false});
}

/* A result that PyTorch made elsewhere after all is brought here; it costs a few microseconds. */
void land(const at::Tensor &to, const at::Tensor &from)
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

/* What the forward of a layer leaves for its backward, by the address of the layer's lse2. */
struct kept {
    at::Tensor lse, seed, offset;
};
std::unordered_map<const void *, kept> memory;

/* (T, H, D) as (B, H, L, D) */
at::Tensor heads(const invar_tensor &t, int64_t samples)
{
    int64_t length = t.shape[0] / samples;

    return at::from_blob(t.data, {samples, t.shape[1], length, t.shape[2]},
                         {length * t.row_stride, t.shape[2], t.row_stride, 1},
                         at::TensorOptions().dtype(at::kBFloat16).device(at::kCUDA));
}

bool foreign(const invar_attention_shape &s, const invar_row_offsets &samples, const invar_tensor &q)
{
    return !is_bf16(q) || s.scale != 0.0f || s.window != 0 || samples.count == 0 ||
           q.shape[0] % samples.count != 0;
}

invar_status attention_fwd(const invar_device *dev, const void *args, void *workspace)
{
    const auto &a = *(const invar_attention_fwd_args *)args;
    int64_t n = a.samples.count;

    if (foreign(a.shape, a.samples, a.q))
        return own->ops[INVAR_OP_ATTENTION_FWD].run(dev, args, workspace);
    c10::cuda::CUDAStreamGuard guard(stream_of(dev));
    bool train = invar_tensor_present(&a.lse2);
    loans.clear();
    offer(a.o);
    auto made = at::_scaled_dot_product_cudnn_attention(heads(a.q, n), heads(a.k, n), heads(a.v, n),
                                                        {}, train, 0.0, true, false);
    land(heads(a.o, n), std::get<0>(made));
    if (train)
        memory[a.lse2.data] = {std::get<1>(made), std::get<6>(made), std::get<7>(made)};
    return INVAR_OK;
}

invar_status attention_bwd(const invar_device *dev, const void *args, void *workspace)
{
    const auto &a = *(const invar_attention_bwd_args *)args;
    int64_t n = a.samples.count, length;

    if (foreign(a.shape, a.samples, a.q))
        return own->ops[INVAR_OP_ATTENTION_BWD].run(dev, args, workspace);
    auto found = memory.find(a.lse2.data);
    if (found == memory.end())
        die("attention.fwd", 0);
    c10::cuda::CUDAStreamGuard guard(stream_of(dev));
    length = a.q.shape[0] / n;
    loans.clear();
    offer(a.dq);
    offer(a.dk);
    offer(a.dv);
    auto made = at::_scaled_dot_product_cudnn_attention_backward(
        heads(a.d_o, n), heads(a.q, n), heads(a.k, n), heads(a.v, n), heads(a.o, n),
        found->second.lse, found->second.seed, found->second.offset, {}, {}, {}, length, length,
        0.0, true);
    land(heads(a.dq, n), std::get<0>(made));
    land(heads(a.dk, n), std::get<1>(made));
    land(heads(a.dv, n), std::get<2>(made));
    return INVAR_OK;
}

/*
 * In PyTorch's deterministic mode, which has no deterministic algorithm of cuDNN: it fills fresh
 * results before they are computed.
 */
invar_status attention_bwd_deterministic(const invar_device *dev, const void *args, void *workspace)
{
    at::globalContext().setDeterministicAlgorithms(true, true);
    invar_status status = attention_bwd(dev, args, workspace);
    at::globalContext().setDeterministicAlgorithms(false, true);
    return status;
}

/* False where the device is no GPU. */
bool begin(const invar_backend *backend)
{
    cudaMemPool_t pool;
    uint64_t all = UINT64_MAX;

    if (!backend->memory.device_local)
        return false;
    own = backend;
    // the pool keeps what it has: to take memory anew after each wait would be slow
    if (cudaDeviceGetDefaultMemPool(&pool, 0) == cudaSuccess)
        (void)cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all);
    torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(
        torch::cuda::CUDAPluggableAllocator::createCustomAllocator(lend, take_back));
    return true;
}

} // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT const invar_backend *invar_bench_peer(const invar_backend *backend)
{
    if (!begin(backend))
        return nullptr;
    table = *backend;
    table.ops[INVAR_OP_LINEAR_FWD].run = linear_fwd;
    table.ops[INVAR_OP_LINEAR_DX].run = linear_dx;
    table.ops[INVAR_OP_LINEAR_DW].run = linear_dw;
    table.ops[INVAR_OP_ATTENTION_FWD].run = attention_fwd;
    table.ops[INVAR_OP_ATTENTION_BWD].run = attention_bwd;
    return &table;
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

    return begin(backend) ? list : nullptr;
}
