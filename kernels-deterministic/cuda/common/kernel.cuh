/*
 * kernel.cuh - building blocks of all kernels: launches, tensor views, elements, guards, REDUCE.
 *
 * A kernel cannot fail, and the host cannot read device memory. So indices and row offsets go
 * through guards, which record a bad one in the context's fault and let the kernel continue with a
 * harmless value. REDUCE must keep the order of docs/arithmetic.md, section 4: 256 lanes in
 * ascending order, folded by halves, in chunks of 4096. Which thread holds which lane is free.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_COMMON_KERNEL_CUH
#define INVAR_KERNELS_CUDA_COMMON_KERNEL_CUH

#include <cuda_bf16.h>

#include "kernels-deterministic/cuda/common/cuda.h"
#include "kernels-deterministic/math/bf16.h"
#include "kernels-deterministic/math/portable.h"
#include "kernels-deterministic/math/reduce.h"

/* ---- launches -------------------------------------------------------------------------------- */

/*
 * invar_launch(dev, op, kernel, grid, threads, shared)(arguments...) launches a kernel on the
 * device's stream and returns an invar_status; an empty grid launches nothing. The type is local to
 * each file: argument types of kernels in different files may have the same name, and the linker
 * must not merge their launchers.
 */
namespace
{
template <typename... Parameters> struct invar_launcher {
    const invar_device *dev;
    invar_op op;
    void (*kernel)(Parameters...);
    dim3 grid, threads;
    size_t shared;
    bool early;

    invar_status operator()(Parameters... arguments) const
    {
        cudaLaunchAttribute attribute = {};
        cudaLaunchConfig_t config = {};

        if (grid.x == 0 || grid.y == 0 || grid.z == 0)
            return INVAR_OK;
        attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute.val.programmaticStreamSerializationAllowed = 1;
        config.gridDim = grid;
        config.blockDim = threads;
        config.dynamicSmemBytes = shared;
        config.stream = invar_cuda_of(dev)->stream;
        config.attrs = &attribute;
        config.numAttrs = early ? 1 : 0;
        if (shared > 48 * 1024)
            INVAR_CUDA_TRY(invar_op_name(op),
                           invar_cuda_allow_shared(invar_cuda_of(dev), (const void *)kernel));
        INVAR_CUDA_TRY(invar_op_name(op), cudaLaunchKernelEx(&config, kernel, arguments...));
        return INVAR_OK;
    }
};
} // namespace

template <typename... Parameters>
static invar_launcher<Parameters...> invar_launch(const invar_device *dev, invar_op op,
                                                  void (*kernel)(Parameters...), dim3 grid,
                                                  dim3 threads, size_t shared)
{
    return {dev, op, kernel, grid, threads, shared, false};
}

/*
 * Like invar_launch, for a kernel that may start while the previous kernel of the stream still runs
 * (programmatic dependent launch). All its threads must call invar_grid_begin (hopper.cuh), or its
 * two halves, before they need results of earlier kernels.
 */
template <typename... Parameters>
static invar_launcher<Parameters...> invar_launch_early(const invar_device *dev, invar_op op,
                                                        void (*kernel)(Parameters...), dim3 grid,
                                                        dim3 threads, size_t shared)
{
    return {dev, op, kernel, grid, threads, shared, true};
}

static inline __host__ __device__ int64_t invar_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/*
 * Returns the number of thread blocks along y for `wanted` rows. A grid has at most 65535, so the
 * kernel must loop in steps of gridDim.y.
 */
static inline unsigned invar_grid_rows(int64_t wanted)
{
    return (unsigned)(wanted < 65535 ? wanted : 65535);
}

/* ---- elements -------------------------------------------------------------------------------- */

/* Loads and stores of elements by their C++ storage type, float or __nv_bfloat16. */
__device__ __forceinline__ float invar_load(const float *p)
{
    return *p;
}

__device__ __forceinline__ float invar_load(const __nv_bfloat16 *p)
{
    return __uint_as_float((uint32_t) * (const uint16_t *)p << 16);
}

/*
 * Returns two values rounded to bf16, `low` in the low half. Equals invar_bf16_from_f32 on every
 * input, NaN included (docs/arithmetic.md, section 6).
 */
__device__ __forceinline__ uint32_t invar_bf16x2_bits(float low, float high)
{
    uint32_t bits;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

/*
 * Returns one value rounded to bf16. cvt.rn.bf16.f32 is not used: it is slower, and if a single
 * byte of its result is stored, ptxas 13.0 takes the result for an f16 and stores the number
 * converted to an integer.
 */
__device__ __forceinline__ uint16_t invar_bf16_bits(float x)
{
    return (uint16_t)invar_bf16x2_bits(x, 0.0f);
}

__device__ __forceinline__ void invar_store(float *p, float x)
{
    *p = x;
}

__device__ __forceinline__ void invar_store(__nv_bfloat16 *p, float x)
{
    *(uint16_t *)p = invar_bf16_bits(x);
}

/* Converts four e4m3 codes to f32. This is exact, because every e4m3 value is an f16. */
__device__ __forceinline__ void invar_e4m3_values(float (&x)[4], uint32_t codes)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint16_t pair = (uint16_t)(codes >> (16 * i));
        asm("{.reg .b32 both;"
            ".reg .b16 low, high;"
            "cvt.rn.f16x2.e4m3x2 both, %2;"
            "mov.b32 {low, high}, both;"
            "cvt.f32.f16 %0, low;"
            "cvt.f32.f16 %1, high;}"
            : "=f"(x[2 * i]), "=f"(x[2 * i + 1])
            : "h"(pair));
    }
}

/* Returns the larger value; +0 is above -0. Returns the canonical NaN if either is NaN. */
__device__ __forceinline__ float invar_max_nan(float a, float b)
{
    float y;

    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

/* A tensor as kernels take it: rows along index 0, all other indices flattened to columns. */
template <typename T> struct invar_view {
    T *data;
    int64_t rows, cols, stride;

    __device__ __forceinline__ T *row(int64_t i) const
    {
        return data + i * stride;
    }
};

template <typename T> static invar_view<T> invar_view_of(const invar_tensor *t)
{
    return {(T *)t->data, t->shape[0], invar_tensor_row_elements(t), t->row_stride};
}

template <typename T> static invar_view<T> invar_view_if_present(const invar_tensor *t)
{
    return invar_tensor_present(t) ? invar_view_of<T>(t) : invar_view<T>{};
}

/*
 * Calls `f` with a null pointer to the C++ storage type of `dtype` and returns its status:
 *     invar_by_storage(dtype, [&](auto *type) {
 *         using T = std::remove_pointer_t<decltype(type)>; ... })
 */
template <typename F> static invar_status invar_by_storage(invar_dtype dtype, F f)
{
    if (dtype == INVAR_DTYPE_BF16)
        return f((__nv_bfloat16 *)nullptr);
    INVAR_CHECK(dtype == INVAR_DTYPE_F32);
    return f((float *)nullptr);
}

/* ---- guards ---------------------------------------------------------------------------------- */

/* Records a fault, unless one is recorded already. */
__device__ __forceinline__ void invar_report(invar_cuda_fault *fault, invar_op op,
                                             invar_cuda_reason reason, int64_t value)
{
    if (atomicCAS(&fault->op, 0, (int)op + 1) == 0) {
        fault->reason = reason;
        fault->value = value;
    }
}

/* Returns `index` if it is in [0, bound); otherwise records a fault and returns 0. */
__device__ __forceinline__ int64_t invar_guard(invar_cuda_fault *fault, invar_op op, int64_t index,
                                               int64_t bound)
{
    if (index >= 0 && index < bound)
        return index;
    invar_report(fault, op, INVAR_CUDA_INDEX, index);
    return 0;
}

/*
 * Returns whether `count` segments ascend from 0 to `rows`, or, with `some`, ascend anywhere within
 * [0, rows]. Records a fault if they do not. All threads of the block must call it.
 */
static __device__ __forceinline__ bool invar_segments_good(const int64_t *start, int64_t count,
                                                           int64_t rows, invar_op op,
                                                           invar_cuda_fault *fault,
                                                           bool some = false)
{
    bool wrong = false;

    for (int64_t i = threadIdx.x; i <= count; i += blockDim.x) {
        bool ends =
            some ? start[0] < 0 || start[count] > rows : start[0] != 0 || start[count] != rows;
        bool here = i < count ? start[i] > start[i + 1] : ends;
        if (here)
            invar_report(fault, op, INVAR_CUDA_SEGMENTS, start[i]);
        wrong = wrong || here;
    }
    return !__syncthreads_or(wrong);
}

/* ---- REDUCE (docs/arithmetic.md, section 4) -------------------------------------------------- */

/*
 * Folds 256 lanes that one warp holds: thread t has the lanes t, t + 32, ... t + 224 in lane[0..8).
 * All threads get the sum.
 */
__device__ __forceinline__ float invar_fold_warp(float lane[8])
{
#pragma unroll
    for (int half = 4; half > 0; half /= 2) {
#pragma unroll
        for (int j = 0; j < half; j++)
            lane[j] = lane[j] + lane[j + half];
    }
    float sum = lane[0];
    // lane j adds lane j + half, and that lane adds lane j: a + b is b + a, so both get the same
    // bits
#pragma unroll
    for (int half = 16; half > 0; half /= 2)
        sum = sum + __shfl_xor_sync(0xFFFFFFFFu, sum, half);
    return sum;
}

/*
 * Returns the REDUCE of n <= 4096 values, computed by one warp; calls value(i) once for each i in
 * [0, n).
 */
template <typename F> __device__ __forceinline__ float invar_reduce_warp(int64_t n, F value)
{
    float lane[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    int thread = (int)(threadIdx.x & 31u);

    for (int64_t i = 0; i < n; i += INVAR_REDUCE_LANES) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            int64_t at = i + thread + 32 * j;
            if (at < n)
                lane[j] = lane[j] + value(at);
        }
    }
    return invar_fold_warp(lane);
}

/*
 * Folds 256 lanes that a block of 256 threads holds, thread j being lane j. `shared` holds one
 * float; all threads get the sum.
 */
__device__ __forceinline__ float invar_fold_block(float lane, float *shared)
{
    int warp = (int)threadIdx.x / 32, thread = (int)threadIdx.x % 32;
    // the partners j + 128, j + 64 and j + 32 are in other warps, so one warp folds all lanes
    __shared__ float lanes[INVAR_REDUCE_LANES];

    lanes[threadIdx.x] = lane;
    __syncthreads();
    if (warp == 0) {
        float own[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
            own[j] = lanes[thread + 32 * j];
        float sum = invar_fold_warp(own);
        if (thread == 0)
            shared[0] = sum;
    }
    __syncthreads();
    float sum = shared[0];
    __syncthreads();
    return sum;
}

template <typename F>
__device__ __forceinline__ float invar_reduce_chunk_block(int64_t n, float *shared, F value)
{
    float lane = 0.0f;

    for (int64_t i = threadIdx.x; i < n; i += INVAR_REDUCE_LANES)
        lane = lane + value(i);
    return invar_fold_block(lane, shared);
}

/*
 * Returns the REDUCE of n <= 2^24 values, computed by a block of 256 threads; calls value(i) once
 * for each i in [0, n). `shared` is that of invar_fold_block.
 */
template <typename F>
__device__ __forceinline__ float invar_reduce_block(int64_t n, float *shared, F value)
{
    if (n <= INVAR_REDUCE_CHUNK)
        return invar_reduce_chunk_block(n, shared, value);

    // the sum of chunk c goes to lane c mod 256, in ascending order of c
    float lane = 0.0f;
    int64_t chunks = invar_ceil_div(n, INVAR_REDUCE_CHUNK);
    for (int64_t c = 0; c < chunks; c++) {
        int64_t first = c * INVAR_REDUCE_CHUNK;
        int64_t count = n - first < INVAR_REDUCE_CHUNK ? n - first : INVAR_REDUCE_CHUNK;
        float sum =
            invar_reduce_chunk_block(count, shared, [&](int64_t i) { return value(first + i); });
        if ((int64_t)threadIdx.x == c % INVAR_REDUCE_LANES)
            lane = lane + sum;
    }
    return invar_fold_block(lane, shared);
}

#endif
