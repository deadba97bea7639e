/*
 * pipeline_exec.h - micro-batches through the layers and back, in the order of the pipeline.
 *
 * Only engine/train includes this. A lane is what a micro-batch has from its forward to its
 * backward: a pass with its activations, the packed rows, the gradients that the loss gave. One
 * rank alone has one lane. A stage of a pipeline has as many for each of its chunks as there are
 * micro-batches under way there. What happens besides the layers is the caller's.
 *
 * Data-parallel ranks walk in rounds: each has one of as many neighbouring micro-batches.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_PIPELINE_EXEC_H
#define INVAR_ENGINE_TRAIN_PIPELINE_EXEC_H

#include "engine/ranks/layout/pipeline.h"
#include "engine/train/batch_plan.h"
#include "engine/train/micro_batch.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_inflight_micro_batch {
    invar_pass *pass;
    invar_micro_batch batch;
    float *gradient; /* (2, capacity): dnow, dentropy */
    int64_t capacity;
    int chunk;
    int64_t dp_round; /* that it is on its way with; -1: none */
} invar_inflight_micro_batch;

typedef struct invar_inflight_micro_batches {
    invar_inflight_micro_batch *items; /* (count) by chunks */
    int64_t count;
} invar_inflight_micro_batches;

/* A lane for all that can be under way at a time; pass->chunk is set here. Free. */
invar_status invar_inflight_micro_batches_new(invar_inflight_micro_batches *out,
                                              const invar_device *dev,
                                              const invar_pass_options *pass,
                                              const invar_layout *layout) INVAR_MUST_USE;
void invar_inflight_micro_batches_free(invar_inflight_micro_batches *lanes);

/* Room for so many tokens' gradients. */
invar_status invar_inflight_micro_batch_room(invar_inflight_micro_batch *lane,
                                             int64_t tokens) INVAR_MUST_USE;

/* Both ways of a stage. */
typedef struct invar_pipeline_channels {
    invar_pipeline_channel forth, back;
} invar_pipeline_channels;

typedef struct invar_dp_round {
    int64_t number;
    int64_t first, count;          /* micro-batches */
    int64_t local_micro_batch;     /* this rank's; -1: it has none */
    int64_t first_token, n_tokens; /* responses before them; of all of them, */
    int64_t tokens_before;         /* and of those before this rank's own */
} invar_dp_round;

typedef struct invar_pipeline_exec invar_pipeline_exec;
struct invar_pipeline_exec {
    const invar_layout *layout; /* NULL: one rank */
    bool alone;                 /* no other rank takes part: what comes from one is missing */
    int ranks, rank;            /* that divide the plan's micro-batches, and this one */
    invar_inflight_micro_batches *lanes;
    invar_pipeline_channels *ways;
    const invar_model *model;
    const invar_rl_sample *samples;
    const invar_batch_plan *plan;
    float temperature;
    bool replay; /* the routing of the rollout */
    /* After the layers, by ranks without a micro-batch of this round, too. */
    invar_status (*on_forward)(invar_pipeline_exec *w, const invar_dp_round *round,
                               invar_inflight_micro_batch *lane);
    /* In place of the layers' backward; NULL: forwards alone. */
    invar_status (*on_backward)(invar_pipeline_exec *w, const invar_dp_round *round,
                                invar_inflight_micro_batch *lane);
    void *payload;
    /* Behind each task; NULL: nobody asks. */
    invar_status (*tick)(void *watcher);
    void *watcher;
};

/* All of the plan. A failure is told to the other ranks of a pipeline at once. */
invar_status invar_pipeline_exec_run(invar_pipeline_exec *walk) INVAR_MUST_USE;

int64_t invar_pipeline_exec_rounds(const invar_pipeline_exec *walk);
invar_dp_round invar_pipeline_exec_round(const invar_pipeline_exec *walk, int64_t number);

/* Is it the chunk that the head is behind? */
bool invar_pipeline_exec_ends(const invar_pipeline_exec *walk,
                              const invar_inflight_micro_batch *lane);

/* The backward of a chunk that others follow, from the gradient that these send. */
invar_status invar_pipeline_exec_back(invar_pipeline_exec *walk, invar_inflight_micro_batch *lane,
                                      invar_grads *grads) INVAR_MUST_USE;

/* After the backward of a chunk: its gradient goes to the one before. */
invar_status invar_pipeline_exec_pass_back(invar_pipeline_exec *walk,
                                           const invar_inflight_micro_batch *lane) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
