/*
 * attention.c - parameters, row gathering, tiling and products of attention on the CPU.
 *
 * Tasks are numbered by slots that are found without a table. A product with a masked pair is
 * skipped by a zero weight if the value is finite, else by a zero value, so that a NaN or an
 * infinity reaches only the rows that see it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cpu/attention.h"

#include <math.h>
#include <string.h>

#include "kernels-deterministic/math/portable.h"

#include "base/invar_banned.h"

#define LOG2E 0x1.71547652b82fep0

_Static_assert(INVAR_ATTENTION_BLOCK <= INVAR_ATTENTION_ROWS, "scratch for rows holds keys too");

static size_t bytes_of_dtype(invar_dtype dtype)
{
    return (size_t)invar_dtype_bits(dtype) / 8;
}

/* Returns a limit of keys or queries, where 0 means no limit. */
static int64_t limit_of(int64_t count)
{
    return invar_attention_min(count > 0 ? count : INT64_MAX, INVAR_ATTENTION_FAR);
}

void invar_attention_params_init(invar_attention_params *out, const invar_tensor *q,
                                 int64_t kv_heads, const invar_attention_shape *shape)
{
    int64_t dim = q->shape[2];
    float scale = shape->scale != 0.0f ? shape->scale : (float)(1.0 / sqrt((double)dim));

    out->dtype = q->dtype;
    out->dim = dim;
    out->kv_heads = kv_heads;
    out->group = q->shape[1] / kv_heads;
    out->block = invar_attention_block(dim);
    out->window = limit_of(shape->window);
    out->kv_span = limit_of(shape->kv_span);
    out->q_span = limit_of(shape->q_span);
    out->scale = scale;
    out->c = (float)((double)scale * LOG2E);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static char *head_address(const invar_tensor *t, int64_t row, int64_t head)
{
    return (char *)t->data +
           (row * t->row_stride + head * t->shape[2]) * (int64_t)bytes_of_dtype(t->dtype);
}

void invar_attention_gather(void *dst, const invar_attention_rows *rows, const invar_tensor *t)
{
    size_t bytes = (size_t)t->shape[2] * bytes_of_dtype(t->dtype);

    for (int64_t r = 0; r < rows->count; r++)
        memcpy((char *)dst + (size_t)r * bytes,
               head_address(t, rows->row0 + invar_attention_position(rows, r),
                            invar_attention_head(rows, r)),
               bytes);
}

invar_tensor invar_attention_head_view(const invar_tensor *t, int64_t head, int64_t row,
                                       int64_t count)
{
    invar_tensor view = invar_tensor_2d(head_address(t, row, head), t->dtype, count, t->shape[2]);

    view.row_stride = t->row_stride;
    return view;
}

/* ---- tiling ---------------------------------------------------------------------------------- */

/*
 * Returns the first slot of a segment. One extra slot per segment holds the tile that the end of
 * the segment cuts short: floor(a + b) - floor(a) + 1 >= ceil(b).
 */
static int64_t first_slot(const invar_attention_tiling *t, int64_t segment)
{
    return t->segments->offsets[segment] * t->per_row / t->size + segment;
}

int64_t invar_attention_slots(const invar_attention_tiling *tiling)
{
    return tiling->segments->count > 0 ? first_slot(tiling, tiling->segments->count) : 0;
}

bool invar_attention_slot(int64_t *segment_out, int64_t *first_out, int64_t *count_out,
                          const invar_attention_tiling *tiling, int64_t slot)
{
    const int64_t *start = tiling->segments->offsets;
    int64_t low = 0, high = tiling->segments->count - 1, rows;

    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (first_slot(tiling, middle) <= slot)
            low = middle;
        else
            high = middle - 1;
    }
    rows = (start[low + 1] - start[low]) * tiling->per_row;
    *segment_out = low;
    *first_out = (slot - first_slot(tiling, low)) * tiling->size;
    *count_out = invar_attention_min(rows - *first_out, tiling->size);
    return *first_out < rows;
}

/* ---- products -------------------------------------------------------------------------------- */

void invar_attention_dots(float *s, const invar_device *dev, const invar_tensor *a,
                          const invar_tensor *b, void *workspace)
{
    invar_chain_tile tile = {{a, INVAR_CHAIN_ROWS, 0, 0},
                             {b, INVAR_CHAIN_ROWS, 0, 0},
                             a->shape[0],
                             b->shape[0],
                             a->shape[1]};
    int64_t count = a->shape[0] * INVAR_ATTENTION_BLOCK;

    memset(s, 0, (size_t)count * sizeof *s);
    invar_chain_run(s, INVAR_ATTENTION_BLOCK, dev, &tile, workspace);
    invar_chain_finish(s, count);
}

static bool finite_row(const invar_tensor *t, int64_t row)
{
    int64_t cols = t->shape[1];
    uint32_t special = 0;

    if (t->dtype == INVAR_DTYPE_F32) {
        const float *x = (const float *)t->data + row * t->row_stride;
        for (int64_t i = 0; i < cols; i++)
            special |= (invar_f32_bits(x[i]) & INVAR_INF_BITS) == INVAR_INF_BITS;
    } else {
        const uint16_t *x = (const uint16_t *)t->data + row * t->row_stride;
        for (int64_t i = 0; i < cols; i++)
            special |= (x[i] & INVAR_INF_BITS >> 16) == INVAR_INF_BITS >> 16;
    }
    return !special;
}

/*
 * Returns whether zero weights are enough to skip masked products: no product is masked, or no
 * value is an infinity or a NaN.
 */
static bool zeros_skip(const invar_attention_sum *sum)
{
    bool partial = false;

    for (int64_t i = 0; i < sum->m && !partial; i++)
        partial = sum->ranges[i].begin > 0 || sum->ranges[i].end < sum->k;
    for (int64_t k = 0; k < sum->k && partial; k++)
        if (!finite_row(sum->values, k))
            return false;
    return true;
}

/* Computes one row, with the values outside of its range replaced by +0. */
static void sum_row(float *acc, const invar_device *dev, const invar_attention_sum *sum, int64_t i,
                    void *spare, void *workspace)
{
    const invar_tensor *values = sum->values;
    int64_t dim = values->shape[1];
    size_t bytes = (size_t)dim * bytes_of_dtype(values->dtype);
    invar_tensor seen = invar_tensor_2d(spare, values->dtype, sum->k, dim);
    invar_chain_tile tile = {sum->weights, {&seen, INVAR_CHAIN_COLUMNS, 0, 0}, 1, dim, sum->k};

    for (int64_t k = 0; k < sum->k; k++) {
        char *dst = (char *)spare + (size_t)k * bytes;
        if (k >= sum->ranges[i].begin && k < sum->ranges[i].end)
            memcpy(dst,
                   (const char *)values->data +
                       (size_t)(k * values->row_stride) * bytes_of_dtype(values->dtype),
                   bytes);
        else
            memset(dst, 0, bytes);
    }
    tile.a.row0 += i;
    invar_chain_run(acc + i * dim, dim, dev, &tile, workspace);
}

void invar_attention_sum_run(float *acc, const invar_device *dev, const invar_attention_sum *sum,
                             void *spare, void *workspace)
{
    int64_t dim = sum->values->shape[1];
    invar_chain_tile tile = {
        sum->weights, {sum->values, INVAR_CHAIN_COLUMNS, 0, 0}, sum->m, dim, sum->k};

    if (zeros_skip(sum)) {
        invar_chain_run(acc, dim, dev, &tile, workspace);
        return;
    }
    for (int64_t i = 0; i < sum->m; i++)
        sum_row(acc, dev, sum, i, spare, workspace);
}
