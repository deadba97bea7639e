/*
 * unit_sum.c - sum over units of gradients that several data-parallel ranks compute.
 *
 * Each round is scattered bucket by bucket. A received piece is added to the sum by the op ADD, in
 * the order of ranks; the order of additions is part of the contract.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/unit_sum.h"

#include "base/alloc.h"
#include "engine/model/graph/op_runner.h"

#include "base/invar_banned.h"

struct invar_unit_sum {
    invar_op_runner caller;
    invar_zero_comm slices;
    char *sum; /* sum of this rank's range, in device memory */
    /* device buffer for a chunk received in host memory; NULL if ops can read the received chunk */
    void *staging;
};

static invar_status alloc_unit_sum(invar_unit_sum *sum, const invar_layout *layout,
                                   invar_zero_ranges *owned)
{
    const invar_device *dev = &sum->caller.dev;
    const invar_zero_comm *s = &sum->slices;
    void *memory = NULL;
    size_t bytes;

    INVAR_TRY(invar_zero_comm_init(&sum->slices, dev, layout, owned));
    bytes = invar_zero_comm_own(s);
    if (bytes == 0)
        return INVAR_OK;
    if (invar_device_is_local(dev) && !s->device_to_device)
        INVAR_TRY(invar_device_alloc(
            dev, &sum->staging, invar_bucket_plan_bucket_range(&s->plan, s->plan.rank, 0).bytes,
            "a piece of gradients"));
    INVAR_TRY(invar_device_alloc(dev, &memory, bytes, "a slice of gradients"));
    sum->sum = memory;
    return invar_device_zero(dev, sum->sum, bytes);
}

invar_status invar_unit_sum_new(invar_unit_sum **out, const invar_device *dev,
                                const invar_layout *layout, invar_zero_ranges *ranges)
{
    invar_unit_sum *sum = NULL;
    invar_status status;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC(sum, 1, "a sum of gradients"));
    *sum = (invar_unit_sum){0};
    invar_op_runner_init(&sum->caller, dev);
    status = alloc_unit_sum(sum, layout, ranges);
    if (status != INVAR_OK) {
        invar_unit_sum_free(sum);
        return status;
    }
    *out = sum;
    return INVAR_OK;
}

void invar_unit_sum_free(invar_unit_sum *sum)
{
    if (!sum)
        return;
    invar_op_runner_release(&sum->caller);
    invar_device_free(&sum->caller.dev, sum->sum);
    invar_device_free(&sum->caller.dev, sum->staging);
    invar_zero_comm_release(&sum->slices);
    invar_free(sum);
}

/* Views bytes as f32 rows of INVAR_ALIGN bytes: the size of every range is a multiple of it. */
static invar_tensor view_as_rows(void *data, size_t bytes)
{
    return invar_tensor_2d(data, INVAR_DTYPE_F32, (int64_t)(bytes / INVAR_ALIGN),
                           (int64_t)(INVAR_ALIGN / sizeof(float)));
}

static invar_status add_received_chunk(invar_unit_sum *sum, const invar_byte_range *piece,
                                       char *came)
{
    invar_tensor to = view_as_rows(sum->sum + piece->first, piece->bytes);

    if (sum->staging)
        INVAR_TRY(invar_device_upload(&sum->caller.dev, sum->staging, came, piece->bytes));
    return INVAR_CALL(&sum->caller, ADD, add, .out = to, .a = to,
                      .b = view_as_rows(sum->staging ? sum->staging : came, piece->bytes));
}

invar_status invar_unit_sum_add(invar_unit_sum *sum, const void *block, int givers)
{
    invar_zero_comm *s = &sum->slices;

    for (int64_t i = 0; i < s->plan.n_buckets; i++) {
        invar_byte_range own = invar_bucket_plan_bucket_range(&s->plan, s->plan.rank, i);

        INVAR_TRY(invar_zero_comm_scatter(s, "gradients of units", block, i, givers));
        for (int g = 0; g < givers && own.bytes > 0; g++)
            INVAR_TRY(add_received_chunk(sum, &own, s->recv_buffer + (size_t)g * own.bytes));
    }
    return INVAR_OK;
}

invar_status invar_unit_sum_end(invar_unit_sum *sum, void *block)
{
    return invar_zero_comm_place(&sum->slices, block, sum->sum);
}
