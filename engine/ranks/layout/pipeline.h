/*
 * pipeline.h - in which order a stage of a pipeline computes, and how streams get from one to the
 * next.
 *
 * The S stages have C chunks each, which are runs of neighbouring layers: chunk k of the S * C is
 * stage k mod S's. Micro-batches go through all chunks and back. The order is 1F1B, with several
 * chunks interleaved as in Megatron-LM: forwards until the pipeline is full, then a forward and a
 * backward in turn. So the micro-batches that a stage keeps activations of have a bound, whatever
 * their number. Those of a chunk go back in ascending order, which sums over units rely on.
 *
 * A stage waits for what it needs and for the send before the last, and for nothing else: the order
 * of tasks is one in which that never waits for ever.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RANKS_LAYOUT_PIPELINE_H
#define INVAR_ENGINE_RANKS_LAYOUT_PIPELINE_H

#include "engine/ranks/layout/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- tasks ----------------------------------------------------------------------------------- */

typedef struct invar_pipeline_task {
    int64_t batch;
    int chunk; /* of all stages' */
    bool is_backward;
} invar_pipeline_task;

typedef struct invar_pipeline_schedule {
    invar_pipeline_task *tasks; /* (count) in their order */
    int64_t count;
} invar_pipeline_schedule;

/* Of a stage, for so many micro-batches; without `back` forwards alone. Release. */
invar_status invar_pipeline_schedule_make(invar_pipeline_schedule *out, int stages, int chunks,
                                          int stage, int64_t batches, bool back) INVAR_MUST_USE;
void invar_pipeline_schedule_release(invar_pipeline_schedule *tasks);

/* Micro-batches that a chunk has gone forward with, and not back, at a time, at most. */
int64_t invar_pipeline_max_in_flight(const invar_pipeline_schedule *tasks, int chunk);

/* ---- ways ------------------------------------------------------------------------------------ */

#define INVAR_PIPELINE_SENDS 2 /* under way at a time */

typedef struct invar_pipeline_pending_send {
    invar_comm_request *ticket; /* NULL: none */
    void *data;
    size_t bytes;
} invar_pipeline_pending_send;

/* Streams from each stage to the next, behind the last comes the first; or gradients back. */
typedef struct invar_pipeline_channel {
    const invar_layout *layout; /* borrowed; NULL: nothing moves */
    bool is_backward;
    invar_pipeline_pending_send sends[INVAR_PIPELINE_SENDS];
    int next; /* send */
    void *recv_buffer;
    size_t got_bytes;
} invar_pipeline_channel;

/* Settle before release, unless nothing was sent. */
void invar_pipeline_channel_init(invar_pipeline_channel *out, const invar_layout *layout,
                                 bool back);
void invar_pipeline_channel_release(invar_pipeline_channel *way);

/* The host's memory that is sent next, for the caller to fill. */
invar_status invar_pipeline_room(void **out, invar_pipeline_channel *way,
                                 size_t bytes) INVAR_MUST_USE;
invar_status invar_pipeline_pending_send_on(invar_pipeline_channel *way,
                                            size_t bytes) INVAR_MUST_USE;

/* What came; until the next one. */
invar_status invar_pipeline_receive(void **out, invar_pipeline_channel *way,
                                    size_t bytes) INVAR_MUST_USE;

/* Waits for what was sent. */
invar_status invar_pipeline_channel_flush(invar_pipeline_channel *way) INVAR_MUST_USE;

/* `data` becomes what the last stage has there. */
invar_status invar_pipeline_share(const invar_layout *layout, const char *phase, void *data,
                                  size_t bytes) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
