/*
 * unit_sum.c - the sum over units of gradients that several ranks compute.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/unit_sum.h"

#include "base/alloc.h"
#include "engine/program/call.h"

#include "base/invar_banned.h"

struct invar_unit_sum {
    invar_caller caller;
    const invar_layout *layout;
    invar_exchange exchange;
    invar_layout_slice slice; /* that this rank owns */
    char *sum;                /* of the slice, in the device's memory */
    void *there;              /* a piece that came, where the device is far */
    char *give, *get;         /* the host's */
};

static invar_status allocate(invar_unit_sum *sum, const invar_grads *grads)
{
    const invar_layout_axis *data = &sum->layout->data;
    const invar_device *dev = &sum->caller.dev;
    void *memory = NULL;
    size_t room;

    sum->slice = invar_layout_slice_of(grads->bytes, data->size, data->rank);
    INVAR_TRY(invar_exchange_init(&sum->exchange, grads->bytes, sum->layout->bucket, data->size,
                                  data->rank));
    room = invar_exchange_room(&sum->exchange);
    INVAR_TRY(invar_device_take_host(dev, &memory, 2 * room, "gradients on their way"));
    sum->give = memory;
    sum->get = sum->give + room;
    if (sum->slice.bytes == 0)
        return INVAR_OK;
    if (invar_device_far(dev))
        INVAR_TRY(invar_device_take(dev, &sum->there, sum->exchange.piece, "a piece of gradients"));
    INVAR_TRY(invar_device_take(dev, &memory, sum->slice.bytes, "a slice of gradients"));
    sum->sum = memory;
    return invar_device_zero(dev, sum->sum, sum->slice.bytes);
}

invar_status invar_unit_sum_new(invar_unit_sum **out, const invar_device *dev,
                                const invar_layout *layout, const invar_grads *grads)
{
    invar_unit_sum *sum = NULL;
    invar_status status;

    *out = NULL;
    INVAR_TRY(invar_alloc((void **)&sum, 1, sizeof *sum, "a sum of gradients"));
    *sum = (invar_unit_sum){.layout = layout};
    invar_caller_init(&sum->caller, dev);
    status = allocate(sum, grads);
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
    invar_caller_release(&sum->caller);
    invar_device_give(&sum->caller.dev, sum->sum);
    invar_device_give(&sum->caller.dev, sum->there);
    invar_device_give_host(&sum->caller.dev, sum->give);
    invar_exchange_release(&sum->exchange);
    invar_free(sum);
}

static invar_status run(invar_unit_sum *sum, invar_comm_move *move)
{
    move->seconds = sum->layout->seconds;
    move->in = sum->give;
    move->out = sum->get;
    return invar_comm_run(sum->layout->data.comm, move);
}

/* Where this rank keeps the sum of a piece of its slice. */
static char *sum_of(const invar_unit_sum *sum, const invar_layout_slice *piece)
{
    return sum->sum + (piece->first - sum->slice.first);
}

/* Rows of INVAR_ALIGN bytes: whatever lies in a block ends at a multiple of it. */
static invar_tensor rows(void *data, size_t bytes)
{
    return invar_tensor_2d(data, INVAR_DTYPE_F32, (int64_t)(bytes / INVAR_ALIGN),
                           (int64_t)(INVAR_ALIGN / sizeof(float)));
}

static invar_status add(invar_unit_sum *sum, const invar_layout_slice *piece, char *came)
{
    invar_tensor to = rows(sum_of(sum, piece), piece->bytes);

    if (sum->there)
        INVAR_TRY(invar_device_put(&sum->caller.dev, sum->there, came, piece->bytes));
    return INVAR_CALL(&sum->caller, ADD, add, .out = to, .a = to,
                      .b = rows(sum->there ? sum->there : came, piece->bytes));
}

static invar_status pack(invar_unit_sum *sum, const invar_grads *grads, int64_t piece)
{
    char *to = sum->give;

    for (int r = 0; r < sum->exchange.size; r++) {
        invar_layout_slice part = invar_exchange_piece(&sum->exchange, r, piece);
        if (part.bytes > 0)
            INVAR_TRY(invar_device_get(&sum->caller.dev, to, (char *)grads->memory + part.first,
                                       part.bytes));
        to += part.bytes;
    }
    return INVAR_OK;
}

invar_status invar_unit_sum_add(invar_unit_sum *sum, const invar_grads *grads, int givers)
{
    const invar_exchange *x = &sum->exchange;

    for (int64_t i = 0; i < x->pieces; i++) {
        invar_layout_slice own = invar_exchange_piece(x, x->rank, i);
        invar_comm_move move;

        if (x->rank < givers)
            INVAR_TRY(pack(sum, grads, i));
        invar_exchange_scatter(&move, &sum->exchange, i, givers);
        INVAR_TRY(run(sum, &move));
        for (int g = 0; g < givers && own.bytes > 0; g++)
            INVAR_TRY(add(sum, &own, sum->get + (size_t)g * own.bytes));
    }
    return INVAR_OK;
}

static invar_status unpack(invar_unit_sum *sum, invar_grads *grads, int64_t piece)
{
    const char *from = sum->get;

    for (int r = 0; r < sum->exchange.size; r++) {
        invar_layout_slice part = invar_exchange_piece(&sum->exchange, r, piece);
        if (part.bytes > 0)
            INVAR_TRY(invar_device_put(&sum->caller.dev, (char *)grads->memory + part.first, from,
                                       part.bytes));
        from += part.bytes;
    }
    return INVAR_OK;
}

invar_status invar_unit_sum_end(invar_unit_sum *sum, invar_grads *grads)
{
    const invar_exchange *x = &sum->exchange;

    for (int64_t i = 0; i < x->pieces; i++) {
        invar_layout_slice own = invar_exchange_piece(x, x->rank, i);
        invar_comm_move move;

        if (own.bytes > 0)
            INVAR_TRY(invar_device_get(&sum->caller.dev, sum->give, sum_of(sum, &own), own.bytes));
        invar_exchange_gather(&move, &sum->exchange, i);
        INVAR_TRY(run(sum, &move));
        INVAR_TRY(unpack(sum, grads, i));
    }
    grads->fresh = false;
    return INVAR_OK;
}
