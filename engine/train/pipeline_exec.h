/*
 * pipeline_exec.h - runs the micro-batches of a step through the layers in pipeline order.
 *
 * Private to engine/train. The order is 1F1B, with virtual stages interleaved as in Megatron-LM
 * (engine/ranks/layout/pipeline.h). A slot (invar_inflight_micro_batch) holds what a micro-batch
 * needs from its forward to its backward: a pass with its activations, the packed rows, and the
 * gradients from the loss. One rank alone has one slot; a pipeline stage has as many per model
 * chunk as micro-batches are in flight there. The caller does everything besides the layers, in
 * on_forward and on_backward.
 *
 * Data-parallel ranks work in rounds: each rank has one of the consecutive micro-batches of a
 * round.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_PIPELINE_EXEC_H
#define INVAR_ENGINE_TRAIN_PIPELINE_EXEC_H

#include "engine/ranks/layout/pipeline.h"
#include "engine/train/batch_plan.h"
#include "engine/train/micro_batch.h"

/* Slot for one micro-batch from its forward to its backward. */
typedef struct invar_inflight_micro_batch {
    invar_pass *pass;
    invar_micro_batch batch;
    /*
     * gradients of the loss for the round's response tokens of all data-parallel ranks: (n_tokens)
     * of log-probs or values, then (n_tokens) of entropies
     */
    float *gradient;
    int64_t capacity; /* numbers that `gradient` has room for */
    /* model chunk of the pass, among the chunks of all stages */
    int chunk;
    int64_t dp_round; /* data-parallel round whose micro-batch is in flight here; -1 if idle */
} invar_inflight_micro_batch;

typedef struct invar_inflight_micro_batches {
    invar_inflight_micro_batch *items; /* (count) slots, sorted by model chunk */
    int64_t count;
} invar_inflight_micro_batches;

/*
 * Makes a slot for each micro-batch that can be in flight at a time; pass->chunk is ignored. Free
 * with invar_inflight_micro_batches_free.
 */
invar_status invar_inflight_micro_batches_new(invar_inflight_micro_batches *out,
                                              const invar_device *dev,
                                              const invar_pass_options *pass,
                                              const invar_layout *layout) INVAR_MUST_USE;
void invar_inflight_micro_batches_free(invar_inflight_micro_batches *slots);

/* Grows the gradient buffer of a slot to at least `tokens` tokens. */
invar_status invar_inflight_micro_batch_reserve(invar_inflight_micro_batch *micro_batch,
                                                int64_t tokens) INVAR_MUST_USE;

/* Forward and backward channels of a stage. */
typedef struct invar_pipeline_channels {
    invar_pipeline_channel forward, backward;
} invar_pipeline_channels;

/* Micro-batches that the data-parallel ranks compute at the same time. */
typedef struct invar_dp_round {
    /* index of the round in the plan */
    int64_t number;
    int64_t first, count;      /* micro-batches of the round */
    int64_t local_micro_batch; /* micro-batch of this rank, or -1 */
    /* response tokens of all earlier rounds; response tokens of this round, on all ranks */
    int64_t first_token, n_tokens;
    int64_t tokens_before; /* response tokens of this round, on lower data-parallel ranks */
} invar_dp_round;

typedef struct invar_pipeline_exec invar_pipeline_exec;

/* One execution of a plan. The caller fills in all fields; everything is borrowed. */
struct invar_pipeline_exec {
    const invar_layout *layout; /* NULL if there is one rank */
    bool dry_run; /* dry run: no other rank takes part, and nothing is sent or received */
    /*
     * data-parallel ranks that divide the micro-batches of the plan, and the index of this rank;
     * 1 and 0 if the plan has only micro-batches of this rank, as in scoring
     */
    int ranks, rank;
    invar_inflight_micro_batches *slots;
    invar_pipeline_channels *channels;
    const invar_model *model;
    const invar_rl_sample *samples;
    /* micro-batches of these data-parallel ranks */
    const invar_batch_plan *plan;
    /* temperature of the log-probs; 1 is used if it is 0 */
    float temperature;
    bool replay; /* the routers use the routing that the rollout recorded */
    /*
     * Called after the layers of a micro-batch, also on a rank without one in this round:
     * local_micro_batch is -1 then, and the slot's pass and rows are not of this round.
     */
    invar_status (*on_forward)(invar_pipeline_exec *w, const invar_dp_round *round,
                               invar_inflight_micro_batch *lane);
    /*
     * Runs the backward of a micro-batch; also called on a rank without one in this round. NULL if
     * there are forwards only.
     */
    invar_status (*on_backward)(invar_pipeline_exec *w, const invar_dp_round *round,
                                invar_inflight_micro_batch *lane);
    /* used by the callbacks only */
    void *payload;
    /*
     * Called with progress_payload after each forward and each backward of a micro-batch; a failure
     * ends the run. NULL if it is not needed. A dry run does not call it.
     */
    invar_status (*on_progress)(void *watcher);
    void *progress_payload;
};

/*
 * Runs all micro-batches of the plan. In a pipeline, a failure is sent to the other ranks at once.
 */
invar_status invar_pipeline_exec_run(invar_pipeline_exec *exec) INVAR_MUST_USE;

/* Returns the number of data-parallel rounds of the plan. */
int64_t invar_pipeline_exec_rounds(const invar_pipeline_exec *exec);
/* Returns the round with this index. */
invar_dp_round invar_pipeline_exec_round(const invar_pipeline_exec *exec, int64_t number);

/* Returns true if the head follows the slot's model chunk. */
bool invar_pipeline_exec_has_head(const invar_pipeline_exec *exec,
                                  const invar_inflight_micro_batch *micro_batch);

/*
 * Receives the gradient from which the backward of a model chunk that is not the last one starts:
 * the next chunk sends it.
 */
invar_status
invar_pipeline_exec_receive_grad(invar_pipeline_exec *exec,
                                 invar_inflight_micro_batch *micro_batch) INVAR_MUST_USE;

/*
 * Sends the gradient of a model chunk's input to the previous chunk. Call after its backward; does
 * nothing for the first chunk.
 */
invar_status
invar_pipeline_exec_send_grad(invar_pipeline_exec *exec,
                              const invar_inflight_micro_batch *micro_batch) INVAR_MUST_USE;

#endif
