/*
 * zero_ranges.c - byte ranges of blocks (masters, weights, gradients) by ZeRO owner.
 *
 * Ranges follow the memory order of the parameters. The last rows of a parameter include its
 * padding, so that adjacent parameters of one owner merge into one range.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "engine/model/forward.h"
#include "engine/model/shard/zero_partition.h"

#include "base/invar_banned.h"

invar_status invar_zero_ranges_init(invar_zero_ranges *out, int size)
{
    *out = (invar_zero_ranges){.size = size};
    INVAR_TRY(INVAR_ALLOC(out->end, (size_t)size, "the ranges of ranks"));
    INVAR_TRY(INVAR_ALLOC(out->bytes, (size_t)size, "the ranges of ranks"));
    memset(out->end, 0, (size_t)size * sizeof *out->end);
    memset(out->bytes, 0, (size_t)size * sizeof *out->bytes);
    return INVAR_OK;
}

void invar_zero_ranges_release(invar_zero_ranges *ranges)
{
    invar_free(ranges->ranges);
    invar_free(ranges->end);
    invar_free(ranges->bytes);
    *ranges = (invar_zero_ranges){0};
}

invar_status invar_zero_ranges_add(invar_zero_ranges *o, int rank, size_t first, size_t bytes)
{
    int64_t before = rank > 0 ? o->end[rank - 1] : 0; // index of this rank's first range
    invar_byte_range *last = o->count > before ? &o->ranges[o->count - 1] : NULL;

    if (bytes == 0)
        return INVAR_OK;
    o->bytes[rank] += bytes;
    if (last && last->first + last->bytes == first) {
        last->bytes += bytes;
        return INVAR_OK;
    }
    INVAR_TRY(INVAR_GROW(o->ranges, o->capacity, o->count, o->count + 1, "the ranges of ranks"));
    o->ranges[o->count++] = (invar_byte_range){first, bytes};
    for (int r = rank; r < o->size; r++)
        o->end[r] = o->count;
    return INVAR_OK;
}

/*
 * Adds the rows that a rank owns of an f32 tensor at offset `at`. The parameter's last rows include
 * its padding.
 */
static invar_status add_rows(invar_zero_ranges *to, const invar_model *model, int64_t param,
                             int rank, size_t at)
{
    const invar_param *p = &model->params[param];
    invar_index_range rows = invar_zero_partition_rows(model, param, rank);
    size_t each = (size_t)invar_param_row_elements(p) * sizeof(float);
    size_t bytes = (size_t)rows.count * each;

    if (rows.first + rows.count == p->local.experts * p->local.rows)
        bytes = invar_aligned(bytes);
    return invar_zero_ranges_add(to, rank, at + (size_t)rows.first * each, bytes);
}

static invar_status add_masters(invar_zero_ranges *to, const invar_model *model, int rank)
{
    size_t at = 0;

    for (int64_t k = 0; k < model->n_params; k++) {
        int64_t i = model->order[k];

        INVAR_TRY(add_rows(to, model, i, rank, at));
        at += invar_aligned((size_t)invar_param_elements(&model->params[i]) * sizeof(float));
    }
    return INVAR_OK;
}

invar_status invar_zero_ranges_masters(invar_zero_ranges *out, const invar_model *model)
{
    int size = model->layout->data.size;

    INVAR_TRY(invar_zero_ranges_init(out, size));
    for (int r = 0; r < size; r++)
        INVAR_TRY(add_masters(out, model, r));
    return INVAR_OK;
}

/*
 * Adds the weights of the rows that a rank owns, and their scales. The parameter's last rows
 * include its padding.
 */
static invar_status add_weight(invar_zero_ranges *to, const invar_model *model, int64_t param,
                               int rank)
{
    const invar_param *p = &model->params[param];
    invar_index_range rows = invar_zero_partition_rows(model, param, rank);
    invar_tensor own;
    size_t bytes, before;

    if (rows.count == 0)
        return INVAR_OK;
    own = invar_tensor_rows(&p->weight, rows.first, rows.count);
    bytes =
        (size_t)(rows.count * p->weight.row_stride) * (size_t)invar_dtype_bits(p->weight.dtype) / 8;
    before = (size_t)((char *)own.data - (char *)p->weight.data);
    if (rows.first + rows.count == p->local.experts * p->local.rows)
        bytes = invar_aligned(before + bytes) - before; // bf16 rows may start at any offset
    INVAR_TRY(invar_zero_ranges_add(
        to, rank, (size_t)((char *)own.data - (char *)model->memory.trained), bytes));
    if (!own.scale)
        return INVAR_OK;
    return invar_zero_ranges_add(to, rank,
                                 (size_t)((char *)own.scale - (char *)model->memory.trained),
                                 invar_tensor_scale_bytes(&own));
}

invar_status invar_zero_ranges_weights(invar_zero_ranges *out, const invar_model *model)
{
    int size = model->layout->data.size;

    INVAR_TRY(invar_zero_ranges_init(out, size));
    for (int r = 0; r < size; r++)
        for (int64_t k = 0; k < model->n_params; k++)
            INVAR_TRY(add_weight(out, model, model->order[k], r));
    return INVAR_OK;
}

/* Adds a rank's gradients. Those of a tied head belong to the owners of the embedding. */
static invar_status add_grads(invar_zero_ranges *to, const invar_model *model, int chunk, int rank)
{
    bool all = chunk == INVAR_ZERO_RANGES_ALL;
    bool last = chunk == model->part.stages * model->part.chunks - 1;

    for (int64_t k = 0; k < model->n_params; k++) {
        int64_t i = model->order[k];
        const invar_param *p = &model->params[i];

        if (all || invar_grads_chunk(model, p) == chunk)
            INVAR_TRY(add_rows(to, model, i, rank, (uintptr_t)p->grad.data));
    }
    if (!invar_tensor_present(&model->tied_grad) || !(all || last))
        return INVAR_OK;
    return add_rows(to, model, model->embedding - model->params, rank,
                    (uintptr_t)model->tied_grad.data);
}

invar_status invar_zero_ranges_grads(invar_zero_ranges *out, const invar_model *model, int chunk)
{
    int size = model->layout->data.size;

    INVAR_TRY(invar_zero_ranges_init(out, size));
    for (int r = 0; r < size; r++)
        INVAR_TRY(add_grads(out, model, chunk, r));
    return INVAR_OK;
}
