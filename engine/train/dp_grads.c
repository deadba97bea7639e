/*
 * dp_grads.c - gradients of an optimizer step, summed over data-parallel ranks and model chunks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/dp_grads.h"

#include "base/alloc.h"

#include "base/invar_banned.h"

static invar_status add_chunk_sum(invar_dp_grads *to, int chunk, const invar_device *dev)
{
    invar_dp_grad_sum *sum = &to->sums[to->n_sums++];
    invar_zero_ranges owned;
    invar_status status = invar_zero_ranges_grads(&owned, to->model, chunk);

    *sum = (invar_dp_grad_sum){.chunk = chunk};
    if (status == INVAR_OK)
        status = invar_unit_sum_new(&sum->sum, dev, to->layout, &owned);
    invar_zero_ranges_release(&owned);
    return status;
}

static invar_status make_chunk_sums(invar_dp_grads *to, const invar_device *dev)
{
    const invar_layout *layout = to->layout;

    INVAR_TRY(INVAR_ALLOC(to->sums, (size_t)layout->virtual_stages, "sums of gradients"));
    for (int c = 0; c < layout->virtual_stages; c++)
        INVAR_TRY(add_chunk_sum(to, c * layout->pipeline.size + layout->pipeline.rank, dev));
    return INVAR_OK;
}

invar_status invar_dp_grads_init(invar_dp_grads *out, invar_grads *grads, const invar_model *model,
                                 const invar_layout *layout, const invar_device *dev)
{
    *out = (invar_dp_grads){.grads = grads, .model = model, .layout = layout};
    if (layout->virtual_stages > 1)
        INVAR_TRY(invar_grads_clear(grads));
    if (!invar_layout_has_data_parallel(layout))
        return INVAR_OK;
    INVAR_CHECK(invar_zero_partition_is_divided(model));
    return make_chunk_sums(out, dev);
}

void invar_dp_grads_release(invar_dp_grads *grads)
{
    for (int i = 0; i < grads->n_sums; i++)
        invar_unit_sum_free(grads->sums[i].sum);
    invar_free(grads->sums);
    *grads = (invar_dp_grads){.grads = NULL};
}

static invar_status zero_chunk(invar_dp_grads *grads, int chunk)
{
    invar_byte_range ranges[INVAR_GRADS_RANGES];

    invar_grads_ranges(ranges, grads->model, chunk);
    for (int i = 0; i < INVAR_GRADS_RANGES; i++)
        if (ranges[i].bytes > 0)
            INVAR_TRY(invar_device_zero(&grads->grads->dev,
                                        (char *)grads->grads->memory + ranges[i].first,
                                        ranges[i].bytes));
    return INVAR_OK;
}

invar_status invar_dp_grads_begin(invar_dp_grads *grads, int chunk)
{
    return grads->layout->virtual_stages == 1 ? invar_grads_zero(grads->grads)
                                              : zero_chunk(grads, chunk);
}

invar_status invar_dp_grads_add(invar_dp_grads *grads, int chunk, int givers)
{
    for (int i = 0; i < grads->n_sums; i++)
        if (grads->sums[i].chunk == chunk)
            INVAR_TRY(invar_unit_sum_add(grads->sums[i].sum, grads->grads->memory, givers));
    return INVAR_OK;
}

invar_status invar_dp_grads_end(invar_dp_grads *grads)
{
    for (int i = 0; i < grads->n_sums; i++)
        INVAR_TRY(invar_unit_sum_end(grads->sums[i].sum, grads->grads->memory));
    if (grads->n_sums > 0)
        grads->grads->overwrite_next = false;
    return INVAR_OK;
}
