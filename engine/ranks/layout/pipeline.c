/*
 * pipeline.c - task order of a pipeline stage (1F1B, interleaved) and channels between stages.
 *
 * A schedule is the sequence of forwards and the sequence of backwards of a stage, interleaved with
 * an offset of `warmup` tasks. Both sequences are computed for a number of micro-batches rounded up
 * to a multiple of the number of stages, and tasks of micro-batches that do not exist are left out.
 *
 * A channel has two send buffers: one is in flight while the next one is filled.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ranks/layout/pipeline.h"

#include "base/alloc.h"

#include "base/invar_banned.h"

/* ---- tasks ----------------------------------------------------------------------------------- */

/*
 * Returns task i of the forwards, or of the backwards. Micro-batches form groups of `stages`; those
 * of a group go through one chunk of the stage after the other.
 */
static invar_pipeline_task task_at(int stages, int chunks, int stage, int64_t i, bool back)
{
    int64_t group = i / ((int64_t)stages * chunks), in_group = i % ((int64_t)stages * chunks);
    int turn = (int)(in_group / stages);

    return (invar_pipeline_task){.batch = group * stages + in_group % stages,
                                 .chunk = (back ? chunks - 1 - turn : turn) * stages + stage,
                                 .is_backward = back};
}

/* Number of warm-up forwards, as in Megatron-LM: one more precedes the first backward. */
static int64_t warmup_of(int stages, int chunks, int stage)
{
    int64_t behind = stages - 1 - stage;

    return chunks == 1 ? behind : 2 * behind + (int64_t)(chunks - 1) * stages;
}

/* Appends a task, unless its micro-batch only fills up the last group. */
static void add_task(invar_pipeline_schedule *to, const invar_pipeline_task *task, int64_t batches)
{
    if (task->batch < batches)
        to->tasks[to->count++] = *task;
}

invar_status invar_pipeline_schedule_make(invar_pipeline_schedule *out, int stages, int chunks,
                                          int stage, int64_t batches, bool back)
{
    int64_t groups = (batches + stages - 1) / stages, all = groups * stages * chunks;
    int64_t warmup = back ? warmup_of(stages, chunks, stage) : all;

    *out = (invar_pipeline_schedule){NULL, 0};
    INVAR_TRY(INVAR_ALLOC(out->tasks, (size_t)(2 * all) + 1, "the tasks of a stage"));
    warmup = warmup < all ? warmup : all;
    for (int64_t i = 0; i < all + (back ? warmup : 0); i++) {
        invar_pipeline_task forth = task_at(stages, chunks, stage, i, false);
        invar_pipeline_task home = task_at(stages, chunks, stage, i - warmup, true);

        if (i < all)
            add_task(out, &forth, batches);
        if (i >= warmup)
            add_task(out, &home, batches);
    }
    return INVAR_OK;
}

void invar_pipeline_schedule_release(invar_pipeline_schedule *tasks)
{
    invar_free(tasks->tasks);
    *tasks = (invar_pipeline_schedule){NULL, 0};
}

int64_t invar_pipeline_max_in_flight(const invar_pipeline_schedule *tasks, int chunk)
{
    int64_t now = 0, most = 0;

    for (int64_t i = 0; i < tasks->count; i++) {
        if (tasks->tasks[i].chunk != chunk)
            continue;
        now += tasks->tasks[i].is_backward ? -1 : 1;
        most = now > most ? now : most;
    }
    return most;
}

/* ---- channels -------------------------------------------------------------------------------- */

void invar_pipeline_channel_init(invar_pipeline_channel *out, const invar_layout *layout, bool back)
{
    *out = (invar_pipeline_channel){.layout = layout, .is_backward = back};
}

void invar_pipeline_channel_release(invar_pipeline_channel *channel)
{
    for (int i = 0; i < INVAR_PIPELINE_SENDS; i++)
        invar_free(channel->sends[i].data);
    invar_free(channel->recv_buffer);
    *channel = (invar_pipeline_channel){.layout = NULL};
}

static invar_comm_transfer transfer_of(const invar_pipeline_channel *channel)
{
    return (invar_comm_transfer){.op = INVAR_COMM_SENDRECV,
                                 .phase = channel->is_backward ? "gradients of a stage"
                                                               : "rows of a stage",
                                 .timeout_s = channel->layout->timeout_s,
                                 .dst_rank = INVAR_COMM_NONE,
                                 .src_rank = INVAR_COMM_NONE};
}

static invar_comm *comm_of(const invar_pipeline_channel *channel)
{
    return channel->is_backward ? channel->layout->backward_comm : channel->layout->pipeline.comm;
}

/* Returns the stage that is `step` stages further in the direction of the channel. */
static int channel_neighbor(const invar_pipeline_channel *channel, int step)
{
    const invar_layout_axis *axis = &channel->layout->pipeline;

    return (axis->rank + axis->size + (channel->is_backward ? -step : step)) % axis->size;
}

static invar_status wait_for_send(invar_pipeline_pending_send *send)
{
    invar_comm_request *request = send->request;

    send->request = NULL;
    return request ? invar_comm_wait(request) : INVAR_OK;
}

static invar_status ensure_buffer(void **data, size_t *room, size_t bytes)
{
    if (bytes <= *room)
        return INVAR_OK;
    invar_free(*data);
    *data = NULL;
    *room = 0;
    INVAR_TRY(invar_alloc(data, bytes, 1, "rows on their way between stages"));
    *room = bytes;
    return INVAR_OK;
}

invar_status invar_pipeline_send_buffer(void **out, invar_pipeline_channel *channel, size_t bytes)
{
    invar_pipeline_pending_send *send = &channel->sends[channel->next];

    INVAR_TRY(wait_for_send(send));
    INVAR_TRY(ensure_buffer(&send->data, &send->bytes, bytes));
    *out = send->data;
    return INVAR_OK;
}

invar_status invar_pipeline_send(invar_pipeline_channel *channel, size_t bytes)
{
    invar_pipeline_pending_send *send = &channel->sends[channel->next];
    invar_comm_transfer transfer;

    if (channel->dry_run)
        return INVAR_OK;
    transfer = transfer_of(channel);
    transfer.dst_rank = channel_neighbor(channel, 1);
    transfer.in = send->data;
    transfer.to_bytes = bytes;
    channel->next = (channel->next + 1) % INVAR_PIPELINE_SENDS;
    return invar_comm_start(&send->request, comm_of(channel), &transfer);
}

invar_status invar_pipeline_receive(void **out, invar_pipeline_channel *channel, size_t bytes)
{
    invar_comm_transfer transfer;

    if (channel->dry_run)
        return invar_pipeline_send_buffer(out, channel, bytes);
    transfer = transfer_of(channel);
    INVAR_TRY(ensure_buffer(&channel->recv_buffer, &channel->recv_bytes, bytes));
    transfer.src_rank = channel_neighbor(channel, -1);
    transfer.out = channel->recv_buffer;
    transfer.from_bytes = bytes;
    *out = channel->recv_buffer;
    return invar_comm_run(comm_of(channel), &transfer);
}

invar_status invar_pipeline_channel_flush(invar_pipeline_channel *channel)
{
    invar_status status = INVAR_OK;

    for (int i = 0; i < INVAR_PIPELINE_SENDS; i++) {
        invar_status one = wait_for_send(&channel->sends[i]);
        status = status == INVAR_OK ? one : status;
    }
    return status;
}

invar_status invar_pipeline_broadcast_last(const invar_layout *layout, const char *phase,
                                           void *data, size_t bytes)
{
    invar_comm_transfer transfer = {.op = INVAR_COMM_BROADCAST,
                                    .phase = phase,
                                    .timeout_s = layout->timeout_s,
                                    .in = data,
                                    .out = data,
                                    .src_rank = layout->pipeline.size - 1,
                                    .from_bytes = bytes};

    return invar_comm_run(layout->pipeline.comm, &transfer);
}
