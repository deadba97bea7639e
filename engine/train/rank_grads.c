/*
 * rank_grads.c - gradients of an optimizer step that several ranks compute.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/rank_grads.h"

#include "base/alloc.h"

#include "base/invar_banned.h"

static invar_status add_sums(invar_rank_grads *to, const invar_layout_slice *ranges, int chunk,
                             const invar_device *dev)
{
    for (int i = 0; i < INVAR_GRADS_RANGES; i++) {
        invar_rank_sum *sum = &to->sums[to->n_sums];
        if (ranges[i].bytes == 0)
            continue;
        *sum = (invar_rank_sum){.range = ranges[i], .chunk = chunk};
        to->n_sums++;
        INVAR_TRY(invar_unit_sum_new(&sum->sum, dev, to->layout, ranges[i].bytes));
    }
    return INVAR_OK;
}

/* All of the block, or what is each chunk's. */
static invar_status make_sums(invar_rank_grads *to, const invar_model *model,
                              const invar_device *dev)
{
    const invar_layout *layout = to->layout;
    invar_layout_slice ranges[INVAR_GRADS_RANGES] = {{0, to->grads->bytes}, {0, 0}};

    INVAR_TRY(invar_alloc((void **)&to->sums, INVAR_GRADS_RANGES * (size_t)layout->chunks,
                          sizeof *to->sums, "sums of gradients"));
    for (int c = 0; c < layout->chunks; c++) {
        int chunk = c * layout->pipeline.size + layout->pipeline.rank;

        if (layout->chunks > 1)
            invar_grads_ranges(ranges, model, chunk);
        INVAR_TRY(add_sums(to, ranges, chunk, dev));
    }
    return INVAR_OK;
}

invar_status invar_rank_grads_init(invar_rank_grads *out, invar_grads *grads,
                                   const invar_model *model, const invar_layout *layout,
                                   const invar_device *dev)
{
    *out = (invar_rank_grads){.grads = grads, .layout = layout};
    if (layout->chunks > 1)
        INVAR_TRY(invar_grads_clear(grads));
    return invar_layout_divides(layout) ? make_sums(out, model, dev) : INVAR_OK;
}

void invar_rank_grads_release(invar_rank_grads *ranks)
{
    for (int i = 0; i < ranks->n_sums; i++)
        invar_unit_sum_free(ranks->sums[i].sum);
    invar_free(ranks->sums);
    *ranks = (invar_rank_grads){.grads = NULL};
}

static char *block_of(const invar_rank_grads *ranks, const invar_rank_sum *sum)
{
    return (char *)ranks->grads->memory + sum->range.first;
}

invar_status invar_rank_grads_begin(invar_rank_grads *ranks, int chunk)
{
    if (ranks->layout->chunks == 1)
        return invar_grads_zero(ranks->grads);
    for (int i = 0; i < ranks->n_sums; i++)
        if (ranks->sums[i].chunk == chunk)
            INVAR_TRY(invar_device_zero(&ranks->grads->dev, block_of(ranks, &ranks->sums[i]),
                                        ranks->sums[i].range.bytes));
    return INVAR_OK;
}

invar_status invar_rank_grads_add(invar_rank_grads *ranks, int chunk, int givers)
{
    for (int i = 0; i < ranks->n_sums; i++)
        if (ranks->sums[i].chunk == chunk)
            INVAR_TRY(
                invar_unit_sum_add(ranks->sums[i].sum, block_of(ranks, &ranks->sums[i]), givers));
    return INVAR_OK;
}

invar_status invar_rank_grads_end(invar_rank_grads *ranks)
{
    for (int i = 0; i < ranks->n_sums; i++)
        INVAR_TRY(invar_unit_sum_end(ranks->sums[i].sum, block_of(ranks, &ranks->sums[i])));
    if (ranks->n_sums > 0)
        ranks->grads->fresh = false;
    return INVAR_OK;
}
