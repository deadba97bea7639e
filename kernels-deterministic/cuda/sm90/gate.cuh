/*
 * gate.cuh - functions of bf16 gates by lookup table.
 *
 * A bf16 gate has few values. A table in shared memory holds the function of the magnitudes from
 * 2^-14 to 2^6, nearly all that occur, of both signs; other gates are computed. The entries are
 * computed by the same expression, so the table changes no bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_GATE_CUH
#define INVAR_KERNELS_CUDA_SM90_GATE_CUH

#include "kernels-deterministic/cuda/sm90/vector.cuh"
#include "kernels-deterministic/math/restricted_domain.h"

#define INVAR_GATE_FIRST (UINT32_C(113) << 7) // bits of 2^-14
#define INVAR_GATE_MAGNITUDES (UINT32_C(20) << 7)
#define INVAR_GATE_ENTRIES (2 * INVAR_GATE_MAGNITUDES)

using invar_bf16_run = invar_run<__nv_bfloat16>;

/*
 * Fills the table with make(gate) for each of its gates, by the `threads` threads of a block. The
 * caller synchronizes the block afterwards.
 */
template <typename T, typename F>
__device__ __forceinline__ void invar_make_gates(T *table, F make, int threads)
{
    for (uint32_t i = threadIdx.x; i < INVAR_GATE_ENTRIES; i += (uint32_t)threads)
        table[i] = make(__uint_as_float((i % INVAR_GATE_MAGNITUDES + INVAR_GATE_FIRST) << 16 |
                                        i / INVAR_GATE_MAGNITUDES << 31));
}

/* Finds the entries of the gates of a run. Returns false if one of them has no entry. */
__device__ __forceinline__ bool invar_find_gates(uint32_t entry[INVAR_RUN],
                                                 const invar_bf16_run &gate)
{
    bool there = true;

#pragma unroll
    for (int i = 0; i < INVAR_RUN; i++) {
        uint32_t bits = i & 1 ? gate.word[i / 2] >> 16 : gate.word[i / 2] & 0xFFFFu;
        uint32_t magnitude = (bits & 0x7FFFu) - INVAR_GATE_FIRST;
        there = there & (magnitude < INVAR_GATE_MAGNITUDES);
        entry[i] = magnitude + (bits >> 15) * INVAR_GATE_MAGNITUDES;
    }
    return there;
}

#endif
