/*
 * softmax_chunk.h - vocabulary chunks of a softmax: count and maximum.
 *
 * A softmax is summed in chunks of 256 consecutive ids, the last one shorter, each with its own
 * maximum (docs/arithmetic.md section 9). For host code only.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CPU_SOFTMAX_CHUNK_H
#define INVAR_KERNELS_CPU_SOFTMAX_CHUNK_H

#include "kernels-deterministic/math/elementary.h"
#include "kernels-deterministic/math/reduce.h"

#define INVAR_CHUNK 256

static inline int64_t invar_softmax_chunk_count(int64_t vocabulary)
{
    return (vocabulary + INVAR_CHUNK - 1) / INVAR_CHUNK;
}

/*
 * Returns the maximum of the first `count` values, count >= 1; overwrites the others. The order
 * does not change a maximum; folding by halves lets the compiler use vectors.
 */
static inline float invar_softmax_chunk_max(float *z /* (INVAR_CHUNK) */, int64_t count)
{
    float lane[INVAR_CHUNK / 2];

    for (int64_t i = count; i < INVAR_CHUNK; i++)
        z[i] = z[0]; // changes no maximum
    for (int64_t i = 0; i < INVAR_CHUNK / 2; i++)
        lane[i] = invar_max_f32(z[i], z[i + INVAR_CHUNK / 2]);
    for (int64_t half = INVAR_CHUNK / 4; half > 0; half /= 2)
        for (int64_t i = 0; i < half; i++)
            lane[i] = invar_max_f32(lane[i], lane[i + half]);
    return lane[0];
}

#endif
