/*
 * pipeline.h - order of forward and backward tasks of a pipeline stage, and the channels between
 * stages.
 *
 * S pipeline stages have C model chunks each, which are runs of consecutive layers; chunk k of the
 * S * C belongs to stage k mod S. The order is 1F1B, for C > 1 interleaved as in Megatron-LM:
 * forwards until the pipeline is full, then one forward and one backward in turn. This bounds the
 * number of micro-batches whose activations a stage keeps, regardless of their total number.
 *
 * Two properties must stay true. Backwards of a chunk run in ascending order of micro-batches,
 * because sums over units rely on it. A stage waits only for its inputs and for the send before the
 * previous one; with this order of tasks that cannot deadlock.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RANKS_LAYOUT_PIPELINE_H
#define INVAR_ENGINE_RANKS_LAYOUT_PIPELINE_H

#include "engine/ranks/layout/layout.h"

/* ---- tasks ----------------------------------------------------------------------------------- */

typedef struct invar_pipeline_task {
    int64_t batch; /* index of the micro-batch; with data-parallel ranks, of the round */
    int chunk;     /* index of the model chunk among those of all stages */
    bool is_backward;
} invar_pipeline_task;

typedef struct invar_pipeline_schedule {
    invar_pipeline_task *tasks; /* (count) in execution order */
    int64_t count;
} invar_pipeline_schedule;

/*
 * Makes the tasks of stage `stage` for `batches` micro-batches; `chunks` is the number per stage.
 * Without `back` there are only forwards. Release with invar_pipeline_schedule_release.
 */
invar_status invar_pipeline_schedule_make(invar_pipeline_schedule *out, int stages, int chunks,
                                          int stage, int64_t batches, bool back) INVAR_MUST_USE;
void invar_pipeline_schedule_release(invar_pipeline_schedule *tasks);

/*
 * Peak number of micro-batches that have gone forward through `chunk` (an index among those of all
 * stages) and not yet back.
 */
int64_t invar_pipeline_max_in_flight(const invar_pipeline_schedule *tasks, int chunk);

/* ---- channels -------------------------------------------------------------------------------- */

#define INVAR_PIPELINE_SENDS 2 /* sends in flight at a time */

typedef struct invar_pipeline_pending_send {
    invar_comm_request *request; /* NULL if the send is not in flight */
    void *data;
    size_t bytes;
} invar_pipeline_pending_send;

/*
 * Channel for activations from each stage to the next, in a ring, or for gradients in the opposite
 * direction. Not thread-safe.
 */
typedef struct invar_pipeline_channel {
    const invar_layout *layout; /* borrowed; NULL if there is only one stage and nothing is sent */
    bool is_backward;
    bool
        dry_run; /* no other stage takes part: nothing is sent, and what is received is undefined */
    invar_pipeline_pending_send sends[INVAR_PIPELINE_SENDS];
    int next; /* index of the next send in `sends` */
    void *recv_buffer;
    size_t recv_bytes;
} invar_pipeline_channel;

/* Initializes a channel. Call invar_pipeline_channel_flush before release if anything was sent. */
void invar_pipeline_channel_init(invar_pipeline_channel *out, const invar_layout *layout,
                                 bool back);
void invar_pipeline_channel_release(invar_pipeline_channel *channel);

/*
 * *out = buffer in host memory for the next send, for the caller to fill; owned by the channel.
 * Waits if that buffer is still being sent.
 */
invar_status invar_pipeline_send_buffer(void **out, invar_pipeline_channel *channel,
                                        size_t bytes) INVAR_MUST_USE;
/* Starts to send the first `bytes` bytes of the buffer that invar_pipeline_send_buffer returned. */
invar_status invar_pipeline_send(invar_pipeline_channel *channel, size_t bytes) INVAR_MUST_USE;

/*
 * Receives `bytes` bytes from the neighbor stage. *out is owned by the channel and valid until the
 * next receive.
 */
invar_status invar_pipeline_receive(void **out, invar_pipeline_channel *channel,
                                    size_t bytes) INVAR_MUST_USE;

/* Waits for all sends in flight. Returns the first failure. */
invar_status invar_pipeline_channel_flush(invar_pipeline_channel *channel) INVAR_MUST_USE;

/* Broadcasts `data` from the last stage to all stages. Collective over the pipeline axis. */
invar_status invar_pipeline_broadcast_last(const invar_layout *layout, const char *phase,
                                           void *data, size_t bytes) INVAR_MUST_USE;

#endif
