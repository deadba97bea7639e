/*
 * attention.h - parameters, masks, tiles and products of attention on the CPU.
 *
 * Forward and backward work on tiles: up to 128 query rows against one block of keys. This file has
 * the parameters of a call, the mask as ranges of visible keys or queries, the tiling of rows into
 * tasks, and the two products of a tile.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CPU_ATTENTION_H
#define INVAR_KERNELS_CPU_ATTENTION_H

#include "kernels-deterministic/ops.h"
#include "kernels-deterministic/step/chain.h"

#define INVAR_ATTENTION_ROWS 128               /* maximum of query rows in a tile */
#define INVAR_ATTENTION_FAR (INT64_C(1) << 60) /* larger than every position */

/* Floats of scratch for the rows of a tile, and for its scores. */
#define INVAR_ATTENTION_HEADS_SIZE (INVAR_ATTENTION_ROWS * INVAR_ATTENTION_MAX_DIM)
#define INVAR_ATTENTION_SCORES_SIZE (INVAR_ATTENTION_ROWS * INVAR_ATTENTION_BLOCK)

/* Parameters of one call. */
typedef struct invar_attention_params {
    invar_dtype dtype; /* storage type */
    int64_t dim;       /* head dim D */
    int64_t kv_heads;
    int64_t group;   /* query heads per kv head */
    int64_t block;   /* keys per block */
    int64_t window;  /* INVAR_ATTENTION_FAR for no limit */
    int64_t kv_span; /* keys per span; INVAR_ATTENTION_FAR for one span */
    int64_t q_span;  /* queries per span; INVAR_ATTENTION_FAR for one span */
    float scale;
    float c; /* scale * log2(e): turns scores into exponents of two */
} invar_attention_params;

void invar_attention_params_init(invar_attention_params *out,
                                 const invar_tensor *q /* (T, HQ, D) */, int64_t kv_heads,
                                 const invar_attention_shape *shape);

/* ---- who sees whom --------------------------------------------------------------------------- */

static inline int64_t invar_attention_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The indices [begin, end) in a block or tile; empty if begin == end. */
typedef struct invar_attention_range {
    int64_t begin;
    int64_t end;
} invar_attention_range;

/* Returns the part of [begin, end) that is in [first, first + count), relative to `first`. */
static inline invar_attention_range invar_attention_clip(int64_t begin, int64_t end, int64_t first,
                                                         int64_t count)
{
    invar_attention_range r;

    r.begin = begin > first ? begin - first : 0;
    r.end = end < first + count ? end - first : count;
    if (r.end <= r.begin)
        r.begin = r.end = 0;
    return r;
}

/* Returns the first key that the query at `position` sees. */
static inline int64_t invar_attention_first_key(const invar_attention_params *form,
                                                int64_t position)
{
    return position >= form->window ? position - form->window + 1 : 0;
}

/* Returns the range of the `count` keys from `key` on that the query at `position` sees. */
static inline invar_attention_range invar_attention_keys(const invar_attention_params *form,
                                                         int64_t position, int64_t key,
                                                         int64_t count)
{
    return invar_attention_clip(invar_attention_first_key(form, position), position + 1, key,
                                count);
}

/* Returns the range of the `count` queries from `position` on that see `key`. */
static inline invar_attention_range invar_attention_queries(const invar_attention_params *form,
                                                            int64_t key, int64_t position,
                                                            int64_t count)
{
    return invar_attention_clip(key, key + form->window, position, count);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/*
 * Query rows of one sample. Row r is position (first + r) / heads and query head head0 + (first +
 * r) % heads, so a tile holds all heads that share keys, or a single head.
 */
typedef struct invar_attention_rows {
    int64_t row0; /* row of position 0 in the tensors; may be before their start */
    int64_t head0;
    int64_t heads;
    int64_t first;
    int64_t count;
} invar_attention_rows;

static inline int64_t invar_attention_position(const invar_attention_rows *rows, int64_t r)
{
    return (rows->first + r) / rows->heads;
}

static inline int64_t invar_attention_head(const invar_attention_rows *rows, int64_t r)
{
    return rows->head0 + (rows->first + r) % rows->heads;
}

/* Copies the rows of t (T, HQ, D) to dst (count, D), in storage type. */
void invar_attention_gather(void *dst, const invar_attention_rows *rows, const invar_tensor *t);

/* Returns the rows [row, row + count) of one head of t (T, H, D) as a view (count, D). */
invar_tensor invar_attention_head_view(const invar_tensor *t, int64_t head, int64_t row,
                                       int64_t count);

/*
 * Splits the rows of all segments, each row `per_row` times, into tiles of `size` that never cross
 * the end of a segment. Tiles are numbered by slots, some of which are empty.
 */
typedef struct invar_attention_tiling {
    const invar_row_offsets *segments;
    int64_t per_row;
    int64_t size;
} invar_attention_tiling;

/* Returns the number of slots. */
int64_t invar_attention_slots(const invar_attention_tiling *tiling);

/*
 * Finds the tile of a slot: its segment, its first row in it and its rows. Returns false if the
 * slot is empty.
 */
bool invar_attention_slot(int64_t *segment_out, int64_t *first_out, int64_t *count_out,
                          const invar_attention_tiling *tiling, int64_t slot);

/* ---- products -------------------------------------------------------------------------------- */

/*
 * s[i * INVAR_ATTENTION_BLOCK + j] = chain over the head dim of row i of a (m, D) and row j of b
 * (n, D), from +0. Writes all INVAR_ATTENTION_BLOCK columns of the m rows; +0 for j >= n.
 */
void invar_attention_dots(float *s, const invar_device *dev, const invar_tensor *a,
                          const invar_tensor *b, void *workspace);

/* acc[i * D + d] continues its chain over weights (i, k) and values (k, d) with k in ranges[i]. */
typedef struct invar_attention_sum {
    invar_chain_operand weights;         /* +0 outside of the ranges */
    const invar_tensor *values;          /* (k, D) storage */
    const invar_attention_range *ranges; /* (m) */
    int64_t m;
    int64_t k;
} invar_attention_sum;

/*
 * Runs the sum. `spare` is INVAR_ATTENTION_HEADS_SIZE floats of scratch. A value outside of a row's
 * range never affects the row, not even a NaN.
 */
void invar_attention_sum_run(float *acc, const invar_device *dev, const invar_attention_sum *sum,
                             void *spare, void *workspace);

#endif
