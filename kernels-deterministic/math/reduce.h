/*
 * reduce.h - REDUCE, the summation order of fp32 values.
 *
 * Numerics contract (rev 1). n <= 4096: 256 lanes start at +0; lane j adds x[j], x[j + 256], ... in
 * ascending order; then lanes fold by halves, lane j += lane j + 128, 64, ... 1, and lane 0 is the
 * sum. n > 4096: REDUCE over the REDUCEs of consecutive chunks of 4096, the last one shorter. n = 0
 * gives +0. Callers round products and squares before they pass them. The bits of a NaN sum are
 * those of the hardware.
 *
 * For host code only; a GPU kernel implements the same order with its threads.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_MATH_REDUCE_H
#define INVAR_KERNELS_MATH_REDUCE_H

#include <stdint.h>

enum { INVAR_REDUCE_LANES = 256, INVAR_REDUCE_CHUNK = 4096 };

/* Folds the lanes by halves and returns their sum. */
static inline float invar_reduce_fold(float *lane /* (256) */)
{
    for (int half = INVAR_REDUCE_LANES / 2; half > 0; half /= 2) {
        for (int j = 0; j < half; j++)
            lane[j] += lane[j + half];
    }
    return lane[0];
}

/* Returns REDUCE of n values, n <= 4096. */
static inline float invar_reduce_chunk(const float *x, int64_t n)
{
    float lane[INVAR_REDUCE_LANES] = {0};
    int64_t i = 0;

    // Four rows per pass over the lanes, still one addition after the other: this loads and stores
    // less.
    for (; n - i >= 4 * INVAR_REDUCE_LANES; i += 4 * INVAR_REDUCE_LANES) {
        const float *row = x + i;
        for (int j = 0; j < INVAR_REDUCE_LANES; j++) {
            float sum = lane[j] + row[j];
            sum += row[j + INVAR_REDUCE_LANES];
            sum += row[j + 2 * INVAR_REDUCE_LANES];
            lane[j] = sum + row[j + 3 * INVAR_REDUCE_LANES];
        }
    }
    for (; n - i >= INVAR_REDUCE_LANES; i += INVAR_REDUCE_LANES) {
        for (int j = 0; j < INVAR_REDUCE_LANES; j++)
            lane[j] += x[i + j];
    }
    for (int64_t j = 0; i + j < n; j++)
        lane[j] += x[i + j];
    return invar_reduce_fold(lane);
}

static inline float invar_reduce_f32(const float *x, int64_t n)
{
    if (n <= INVAR_REDUCE_CHUNK)
        return invar_reduce_chunk(x, n);

    // The sum of each chunk is added to its lane at once, so the sums need no array. `span` is the
    // number of values per sum of the level below this one.
    int64_t span = INVAR_REDUCE_CHUNK;
    while ((n - 1) / span >= INVAR_REDUCE_CHUNK)
        span *= INVAR_REDUCE_CHUNK;
    float lane[INVAR_REDUCE_LANES] = {0};
    for (int64_t i = 0, j = 0; i < n; i += span, j = (j + 1) % INVAR_REDUCE_LANES)
        lane[j] += invar_reduce_f32(x + i, n - i < span ? n - i : span);
    return invar_reduce_fold(lane);
}

#endif
