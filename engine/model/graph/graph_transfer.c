/*
 * graph_transfer.c - moves rows between ranks: gather, exchange and transpose after a node.
 *
 * Each kind of transfer computes the bytes per rank and then runs one all-gather or all-to-all:
 * from device to device if the axis has a device communicator, directly if the host can access the
 * memory, else through a pinned host buffer. Ops that a CUDA graph cache holds back are launched
 * first.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/graph/graph_transfer.h"

#include "base/alloc.h"
#include "engine/model/graph/cuda_graph_cache.h"

#include "base/invar_banned.h"

void invar_transfer_runner_release(invar_transfer_runner *transfers, const invar_device *dev)
{
    invar_free(transfers->send_bytes);
    invar_free(transfers->recv_bytes);
    invar_free(transfers->start);
    if (transfers->host)
        invar_device_free_host(dev, transfers->host);
    *transfers = (invar_transfer_runner){.layout = transfers->layout};
}

/* Allocates the byte counts, and a host buffer of `bytes` for device-local memory. */
static invar_status ensure_buffers(invar_transfer_runner *runner, const invar_device *dev,
                                   size_t bytes)
{
    size_t ranks = (size_t)invar_comm_size(runner->layout->world); // no axis has more ranks
    void *memory = NULL;

    if (!runner->send_bytes)
        INVAR_TRY(INVAR_ALLOC(runner->send_bytes, ranks, "the bytes of a move"));
    if (!runner->recv_bytes)
        INVAR_TRY(INVAR_ALLOC(runner->recv_bytes, ranks, "the bytes of a move"));
    if (!invar_device_is_local(dev) || bytes <= runner->bytes)
        return INVAR_OK;
    if (runner->host)
        invar_device_free_host(dev, runner->host);
    runner->host = NULL;
    runner->bytes = 0;
    INVAR_TRY(invar_device_alloc_host(dev, &memory, bytes, "bytes between ranks"));
    runner->host = memory;
    runner->bytes = bytes;
    return INVAR_OK;
}

static size_t sum_bytes(const size_t *bytes, int count)
{
    size_t all = 0;

    for (int i = 0; i < count; i++)
        all += bytes[i];
    return all;
}

static size_t row_bytes(const invar_tensor *t)
{
    return (size_t)t->row_stride * (size_t)invar_dtype_bits(t->dtype) / 8;
}

static size_t tensor_bytes(const invar_tensor *t)
{
    return (size_t)t->shape[0] * row_bytes(t);
}

/* ---- bytes per rank -------------------------------------------------------------------------- */

/*
 * *out = row offsets of the experts in host memory. A dry run has no routing; it assumes that all
 * experts have the same number of rows.
 */
static invar_status expert_starts(const int64_t **out, invar_transfer_runner *runner,
                                  invar_op_runner *caller, const invar_row_offsets *experts,
                                  int64_t rows)
{
    size_t count = (size_t)experts->count + 1;
    bool dry = caller->dev.backend->memory.dry_run;

    *out = experts->offsets;
    if (!dry && !invar_device_is_local(&caller->dev))
        return INVAR_OK;
    if (runner->experts < experts->count) {
        invar_free(runner->start);
        runner->start = NULL;
        INVAR_TRY(INVAR_ALLOC(runner->start, count, "rows of experts"));
        runner->experts = experts->count;
    }
    *out = runner->start;
    for (int64_t i = 0; dry && i <= experts->count; i++)
        runner->start[i] = i * rows / experts->count;
    return dry ? INVAR_OK
               : invar_op_runner_download(caller, runner->start, experts->offsets,
                                          count * sizeof *runner->start);
}

/* Number of rows in the range of rank r. */
static int64_t share_of(const invar_graph_transfer *transfer, const invar_layout_axis *axis,
                        int64_t rows, int r)
{
    return transfer->start ? transfer->start[r + 1] - transfer->start[r]
                           : invar_layout_range_of(rows, axis->size, r).count;
}

/*
 * Sets runner->recv_bytes for a gather of expert rows; *base = offset in `full` of the first expert
 * that the ranks divide.
 */
static invar_status count_experts(size_t *base, invar_transfer_runner *runner,
                                  const invar_layout_axis *axis, invar_op_runner *caller,
                                  const invar_graph_transfer *transfer)
{
    int64_t count = transfer->count > 0 ? transfer->count : transfer->experts.count;
    const int64_t *start;

    INVAR_TRY(expert_starts(&start, runner, caller, &transfer->experts, transfer->full.shape[0]));
    start += transfer->first;
    *base = (size_t)start[0] * row_bytes(&transfer->full);
    for (int r = 0; r < axis->size; r++) {
        invar_index_range own = invar_layout_range_of(count, axis->size, r);
        runner->recv_bytes[r] =
            (size_t)(start[own.first + own.count] - start[own.first]) * row_bytes(&transfer->full);
    }
    return INVAR_OK;
}

/*
 * Sets runner->recv_bytes for a gather of parts or row ranges, which start with the first byte of
 * `full`.
 */
static void count_parts(invar_transfer_runner *runner, const invar_layout_axis *axis,
                        const invar_graph_transfer *transfer)
{
    for (int r = 0; r < axis->size; r++)
        runner->recv_bytes[r] = transfer->kind == INVAR_GRAPH_TRANSFER_PARTS
                                    ? tensor_bytes(&transfer->full) / (size_t)axis->size
                                    : (size_t)share_of(transfer, axis, transfer->full.shape[0], r) *
                                          row_bytes(&transfer->full);
}

/*
 * Sets the bytes of an exchange: each rank gets its range of the local rows and sends this rank's.
 */
static void count_shares(invar_transfer_runner *runner, const invar_layout_axis *axis,
                         const invar_graph_transfer *transfer)
{
    int64_t rows = transfer->local.shape[0];
    size_t got = (size_t)share_of(transfer, axis, rows, axis->rank);

    for (int r = 0; r < axis->size; r++) {
        runner->send_bytes[r] =
            (size_t)share_of(transfer, axis, rows, r) * row_bytes(&transfer->local);
        runner->recv_bytes[r] = got * row_bytes(&transfer->local);
    }
}

/*
 * Sets the bytes of ROWS_TO_COLUMNS, which trades this rank's rows of all columns for all rows of
 * its columns, and of its inverse.
 */
static void count_columns(invar_transfer_runner *runner, const invar_layout_axis *axis,
                          const invar_graph_transfer *transfer)
{
    bool back = transfer->kind == INVAR_GRAPH_TRANSFER_COLUMNS_TO_ROWS;
    const invar_tensor *rows = back ? &transfer->full : &transfer->local;
    const invar_tensor *columns = back ? &transfer->local : &transfer->full;
    size_t element = (size_t)invar_dtype_bits(rows->dtype) / 8;

    for (int r = 0; r < axis->size; r++) {
        invar_index_range share = invar_layout_range_of(rows->shape[1], axis->size, r);
        *(back ? &runner->recv_bytes[r] : &runner->send_bytes[r]) =
            (size_t)(rows->shape[0] * share.count) * element;
        *(back ? &runner->send_bytes[r] : &runner->recv_bytes[r]) =
            (size_t)(share_of(transfer, axis, columns->shape[0], r) * columns->shape[1]) * element;
    }
}

/* ---- transfers ------------------------------------------------------------------------------- */

/*
 * Returns true if the memory needs no host copy: a device communicator, or host-accessible memory.
 */
static bool needs_no_host_copy(const invar_layout_axis *axis, const invar_device *dev)
{
    return axis->device_comm || !invar_device_is_local(dev);
}

static invar_status run_direct(const invar_layout_axis *axis, const invar_device *dev,
                               const invar_comm_transfer *transfer)
{
    if (!invar_device_is_local(dev))
        return invar_comm_run(axis->comm, transfer);
    INVAR_TRY(invar_device_synchronize(dev)); // the ops that compute the data
    return invar_comm_run(axis->device_comm, transfer);
}

static const char *phase_of(const invar_graph_transfer *transfer)
{
    if (transfer->kind == INVAR_GRAPH_TRANSFER_EXPERTS)
        return "rows of experts";
    return transfer->start ? "rows of a layer" : "parts of a layer";
}

static invar_status transfer_runner_gather(invar_transfer_runner *runner,
                                           const invar_layout_axis *axis, invar_op_runner *caller,
                                           const invar_graph_transfer *transfer)
{
    invar_comm_transfer gather = {.op = INVAR_COMM_ALLGATHERV,
                                  .phase = phase_of(transfer),
                                  .timeout_s = runner->layout->timeout_s,
                                  .out_bytes = runner->recv_bytes};
    size_t before, base = 0;
    const char *own;
    char *whole;

    if (transfer->kind == INVAR_GRAPH_TRANSFER_EXPERTS)
        INVAR_TRY(count_experts(&base, runner, axis, caller, transfer));
    else
        count_parts(runner, axis, transfer);
    before = sum_bytes(runner->recv_bytes, axis->rank);
    whole = (char *)transfer->full.data + base;
    own = transfer->local.data ? transfer->local.data : whole + before;
    gather.in = own;
    gather.out = whole;
    if (needs_no_host_copy(axis, &caller->dev))
        return run_direct(axis, &caller->dev, &gather);
    INVAR_TRY(invar_op_runner_download(caller, runner->host + before, own,
                                       runner->recv_bytes[axis->rank]));
    gather.in = runner->host + before;
    gather.out = runner->host;
    INVAR_TRY(invar_comm_run(axis->comm, &gather));
    return invar_device_upload(&caller->dev, whole, runner->host,
                               sum_bytes(runner->recv_bytes, axis->size));
}

static invar_status transfer_runner_exchange(invar_transfer_runner *runner,
                                             const invar_layout_axis *axis, invar_op_runner *caller,
                                             const invar_graph_transfer *transfer)
{
    bool sums = transfer->kind == INVAR_GRAPH_TRANSFER_EXCHANGE;
    invar_comm_transfer shares = {.op = INVAR_COMM_ALLTOALLV,
                                  .phase = sums ? "sums of a layer" : "columns of a layer",
                                  .timeout_s = runner->layout->timeout_s,
                                  .in = transfer->local.data,
                                  .out = transfer->full.data,
                                  .in_bytes = runner->send_bytes,
                                  .out_bytes = runner->recv_bytes};
    size_t given = tensor_bytes(&transfer->local), got;

    (sums ? count_shares : count_columns)(runner, axis, transfer);
    got = sum_bytes(runner->recv_bytes, axis->size);
    if (needs_no_host_copy(axis, &caller->dev))
        return run_direct(axis, &caller->dev, &shares);
    INVAR_TRY(invar_op_runner_download(caller, runner->host, transfer->local.data, given));
    shares.in = runner->host;
    shares.out = runner->host + given;
    INVAR_TRY(invar_comm_run(axis->comm, &shares));
    return got > 0
               ? invar_device_upload(&caller->dev, transfer->full.data, runner->host + given, got)
               : INVAR_OK;
}

static const invar_layout_axis *axis_of(const invar_layout *layout, invar_graph_transfer_axis axis)
{
    if (axis == INVAR_GRAPH_TRANSFER_CONTEXT)
        return &layout->context;
    return axis == INVAR_GRAPH_TRANSFER_EXPERT ? &layout->expert : &layout->tensor;
}

invar_status invar_transfer_runner_run(invar_transfer_runner *m, invar_op_runner *runner,
                                       const invar_graph_transfer *transfer)
{
    const invar_layout_axis *axis = axis_of(m->layout, transfer->axis);
    bool exchanges = transfer->kind == INVAR_GRAPH_TRANSFER_EXCHANGE ||
                     transfer->kind == INVAR_GRAPH_TRANSFER_ROWS_TO_COLUMNS ||
                     transfer->kind == INVAR_GRAPH_TRANSFER_COLUMNS_TO_ROWS;
    size_t bytes = tensor_bytes(&transfer->full) + (exchanges ? tensor_bytes(&transfer->local) : 0);

    if (invar_layout_skips_transfers(m->layout, runner->dev.backend->memory.dry_run) || bytes == 0)
        return INVAR_OK;
    if (runner->graph_cache) // held-back ops compute the data that is sent
        INVAR_TRY(invar_cuda_graph_cache_flush(runner->graph_cache));
    INVAR_TRY(ensure_buffers(m, &runner->dev, needs_no_host_copy(axis, &runner->dev) ? 0 : bytes));
    return (exchanges ? transfer_runner_exchange : transfer_runner_gather)(m, axis, runner,
                                                                           transfer);
}
