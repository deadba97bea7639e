/*
 * attention.cuh - shared by the forward and backward of attention: constants, masks, tiles, EXP2S.
 *
 * Query i of a sample sees key j if j <= i and, with a window, j > i - window. Blocks and spans are
 * counted from the start of the sample, so no sum depends on the pack, the chunking or the batch
 * (docs/arithmetic.md, section 8).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_ATTENTION_ATTENTION_CUH
#define INVAR_KERNELS_CUDA_SM90_ATTENTION_ATTENTION_CUH

#include <cmath>

#include "kernels-deterministic/cuda/common/kernel.cuh"
#include "kernels-deterministic/math/elementary.h"

/* Lanes of a row's sum of p; key j adds to lane j mod 8. */
#define INVAR_ATTENTION_LANES 8
#define INVAR_ATTENTION_LOG2E 0x1.715476p0f    /* log2(e), for lse2 */
#define INVAR_ATTENTION_FAR (INT64_C(1) << 60) /* a position after every real one */

/* Constants of one call. */
typedef struct invar_cuda_attention_params {
    int64_t dim; /* head dim */
    int64_t kv_heads;
    int64_t group;   /* query heads per kv head */
    int64_t block;   /* keys of a block of the contract */
    int64_t window;  /* keys that a query sees; INVAR_ATTENTION_FAR if there is no limit */
    int64_t kv_span; /* keys of a span; INVAR_ATTENTION_FAR if there is one span */
    int64_t q_span;  /* queries of a span; INVAR_ATTENTION_FAR if there is one span */
    float scale;
    float c; /* scale * log2(e), which turns scores into exponents of two */
} invar_cuda_attention_params;

/* Returns `count` keys or queries, or INVAR_ATTENTION_FAR if `count` is 0 for no limit. */
static inline int64_t invar_cuda_attention_limit(int64_t count)
{
    return count > 0 && count < INVAR_ATTENTION_FAR ? count : INVAR_ATTENTION_FAR;
}

static inline invar_cuda_attention_params
invar_cuda_attention_params_of(const invar_tensor *q /* (T, HQ, D) */, int64_t kv_heads,
                               const invar_attention_shape *shape)
{
    invar_cuda_attention_params form;

    form.dim = q->shape[2];
    form.kv_heads = kv_heads;
    form.group = q->shape[1] / kv_heads;
    form.block = invar_attention_block(form.dim);
    form.window = invar_cuda_attention_limit(shape->window);
    form.kv_span = invar_cuda_attention_limit(shape->kv_span);
    form.q_span = invar_cuda_attention_limit(shape->q_span);
    form.scale = shape->scale != 0.0f ? shape->scale : (float)(1.0 / std::sqrt((double)form.dim));
    form.c = (float)((double)form.scale * 0x1.71547652b82fep0);
    return form;
}

/* ---- who sees whom --------------------------------------------------------------------------- */

/* Returns the first key that the query at `position` sees; the last one is `position` itself. */
__host__ __device__ __forceinline__ int64_t
invar_attention_first_key(const invar_cuda_attention_params &form, int64_t position)
{
    return position >= form.window ? position - form.window + 1 : 0;
}

/* ---- segments -------------------------------------------------------------------------------- */

/*
 * Returns whether the row offsets start at 0, ascend around `segment` and stay within `rows`;
 * records a fault if they do not.
 */
__device__ __forceinline__ bool invar_attention_segment(invar_cuda_fault *fault, invar_op op,
                                                        const invar_row_offsets &segments,
                                                        int64_t rows, int64_t segment)
{
    int64_t begin = segments.offsets[segment], end = segments.offsets[segment + 1];
    bool good = begin >= 0 && begin <= end && end <= rows && (segment > 0 || begin == 0) &&
                (segment + 1 < segments.count || end == rows);

    if (!good)
        invar_report(fault, op, INVAR_CUDA_SEGMENTS, segment);
    return good;
}

/*
 * Returns the number of slots for tiles of `size` rows. Each segment is cut into tiles from its own
 * start, and a row of the segment counts as `per_row` rows. Segment s has the slots from offsets[s]
 * * per_row / size + s on, so the segment of a slot is found without a table; some slots are empty.
 * Tiles of 128 query rows are the grid of key blocks if the segment begins at position 0.
 */
__host__ __device__ __forceinline__ int64_t invar_attention_slots(int64_t rows, int64_t count,
                                                                  int64_t per_row, int64_t size)
{
    return count > 0 ? rows * per_row / size + count : 0;
}

/*
 * Returns the segment of a slot. *first_out = the distance of the slot's tile from the segment's
 * begin, in rows of which each row of the segment counts as per_row.
 */
__device__ __forceinline__ int64_t invar_attention_slot(int64_t *first_out, const int64_t *start,
                                                        int64_t count, int64_t per_row,
                                                        int64_t size, int64_t slot)
{
    int64_t low = 0, high = count - 1;

    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (start[middle] * per_row / size + middle <= slot)
            low = middle;
        else
            high = middle - 1;
    }
    *first_out = (slot - (start[low] * per_row / size + low)) * size;
    return low;
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

/*
 * Returns EXP2S by the polynomial of the storage type. The selection in it is a maximum that keeps
 * NaN.
 */
template <bool BF16> __device__ __forceinline__ float invar_attention_exp2s(float x)
{
    float y = invar_max_nan(x, -127.0f), t = y + INVAR_ROUNDER, f = y - (t - INVAR_ROUNDER);

    return (BF16 ? invar_exp2_fraction_bf16(f) : invar_exp2_fraction(f)) * invar_exp2_whole(t);
}

/*
 * Returns the factor of earlier sums when a reference rises. It is an integer power of two,
 * whatever the polynomial.
 */
__device__ __forceinline__ float invar_attention_factor(float from, float to)
{
    return invar_attention_exp2s<true>(from - to);
}

/* Returns a value that is not zero if one of two bf16 is an infinity or a NaN. */
__device__ __forceinline__ uint32_t invar_attention_special(uint32_t pair)
{
    return ((pair & 0x7F807F80u) + 0x00800080u) & 0x80008000u;
}

#endif
