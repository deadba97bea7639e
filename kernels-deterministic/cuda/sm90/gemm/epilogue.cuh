/*
 * epilogue.cuh - residual and activation that are fused to a product.
 *
 * A fused op is the ops one after another: a value that one op would have stored is rounded as if
 * it had been, and the next op continues from the rounded value.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_GEMM_EPILOGUE_CUH
#define INVAR_KERNELS_CUDA_SM90_GEMM_EPILOGUE_CUH

#include "kernels-deterministic/cuda/sm90/gate.cuh"

/* Prefetches the line at p into the L2 cache. */
__device__ __forceinline__ void invar_fetch_to_cache(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* Returns x as it is after being stored as the type of the second argument and loaded again. */
__device__ __forceinline__ float invar_stored(float x, const float *)
{
    return x;
}

__device__ __forceinline__ float invar_stored(float x, const __nv_bfloat16 *)
{
    return __uint_as_float(invar_bf16x2_bits(0.0f, x));
}

/*
 * Returns what op `add` gives for a residual and y, which is first rounded to the residual's type.
 */
template <typename T>
__device__ __forceinline__ float invar_with_residual(const T *residual, float y)
{
    return invar_load(residual) + invar_stored(y, residual);
}

/* Returns the sums of 16 bytes of residual and y, both as stored. */
template <typename T>
__device__ __forceinline__ uint4 invar_with_residual(uint4 residual, uint4 y, const T *)
{
    constexpr int COUNT = 16 / (int)sizeof(T);
    invar_run<T, COUNT> a = {{residual.x, residual.y, residual.z, residual.w}};
    const invar_run<T, COUNT> b = {{y.x, y.y, y.z, y.w}};
    float sum[COUNT];

#pragma unroll
    for (int i = 0; i < COUNT; i++)
        sum[i] = a.get(i) + b.get(i);
    a.set(sum);
    return make_uint4(a.word[0], a.word[1], a.word[2], a.word[3]);
}

/* Returns swiglu.fwd of eight values. Most gates are near 0, for which silu needs less. */
__device__ __forceinline__ invar_bf16_run invar_gated(invar_bf16_run gate, invar_bf16_run up)
{
    float out[INVAR_RUN];
    bool near = true;

#pragma unroll
    for (int i = 0; i < INVAR_RUN; i++)
        near = near & (invar_abs_f32(gate.get(i)) <= INVAR_SIGMOID_MODERATE_MAX);
    if (near) {
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++)
            out[i] = invar_silu_near(gate.get(i), invar_sigmoid_moderate(gate.get(i))) * up.get(i);
        gate.set(out);
        return gate;
    }
    // two at a time, to keep the code short: results replace the values that are shifted out
#pragma unroll 1
    for (int i = 0; i < gate.words; i++) {
        uint32_t done = invar_bf16x2_bits(invar_silu(gate.get(0)) * up.get(0),
                                          invar_silu(gate.get(1)) * up.get(1));
#pragma unroll
        for (int j = 1; j < gate.words; j++) {
            gate.word[j - 1] = gate.word[j];
            up.word[j - 1] = up.word[j];
        }
        gate.word[gate.words - 1] = done;
    }
    return gate;
}

/* Returns swiglu.fwd of eight values with a table of silu. */
__device__ __forceinline__ invar_bf16_run invar_gated(invar_bf16_run gate, invar_bf16_run up,
                                                      const float *table)
{
    uint32_t at[INVAR_RUN];
    float out[INVAR_RUN];

    if (!invar_find_gates(at, gate))
        return invar_gated(gate, up);
#pragma unroll
    for (int i = 0; i < INVAR_RUN; i++)
        out[i] = table[at[i]] * up.get(i);
    gate.set(out);
    return gate;
}

#endif
