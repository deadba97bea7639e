/*
 * walk.h - micro-batches through the layers and back, in the order of the pipeline.
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
#ifndef INVAR_ENGINE_TRAIN_WALK_H
#define INVAR_ENGINE_TRAIN_WALK_H

#include "engine/layout/pipeline.h"
#include "engine/train/micro_batch.h"
#include "engine/train/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_lane {
    invar_pass *pass;
    invar_micro_batch batch;
    float *gradient; /* (2, capacity): dnow, dentropy */
    int64_t capacity;
    int chunk;
    int64_t round; /* that it is on its way with; -1: none */
} invar_lane;

typedef struct invar_lanes {
    invar_lane *of; /* (count) by chunks */
    int64_t count;
} invar_lanes;

/* A lane for all that can be under way at a time; pass->chunk is set here. Free. */
invar_status invar_lanes_new(invar_lanes *out, const invar_device *dev,
                             const invar_pass_options *pass,
                             const invar_layout *layout) INVAR_MUST_USE;
void invar_lanes_free(invar_lanes *lanes);

/* Room for so many tokens' gradients. */
invar_status invar_lane_room(invar_lane *lane, int64_t tokens) INVAR_MUST_USE;

/* Both ways of a stage. */
typedef struct invar_ways {
    invar_pipeline_way forth, back;
} invar_ways;

typedef struct invar_round {
    int64_t number;
    int64_t first, count;  /* micro-batches */
    int64_t own;           /* this rank's; -1: it has none */
    int64_t token, tokens; /* responses before them; of all of them, */
    int64_t before;        /* and of those before this rank's own */
} invar_round;

typedef struct invar_walk invar_walk;
struct invar_walk {
    const invar_layout *layout; /* NULL: one rank */
    bool alone;                 /* no other rank takes part: what comes from one is missing */
    int ranks, rank;            /* that divide the plan's micro-batches, and this one */
    invar_lanes *lanes;
    invar_ways *ways;
    const invar_model *model;
    const invar_rl_sample *samples;
    const invar_plan *plan;
    float temperature;
    bool replay; /* the routing of the rollout */
    /* After the layers, by ranks without a micro-batch of this round, too. */
    invar_status (*forth)(invar_walk *w, const invar_round *round, invar_lane *lane);
    /* In place of the layers' backward; NULL: forwards alone. */
    invar_status (*back)(invar_walk *w, const invar_round *round, invar_lane *lane);
    void *payload;
    /* Behind each task; NULL: nobody asks. */
    invar_status (*tick)(void *watcher);
    void *watcher;
};

/* All of the plan. A failure is told to the other ranks of a pipeline at once. */
invar_status invar_walk_run(invar_walk *walk) INVAR_MUST_USE;

int64_t invar_walk_rounds(const invar_walk *walk);
invar_round invar_walk_round(const invar_walk *walk, int64_t number);

/* Is it the chunk that the head is behind? */
bool invar_walk_ends(const invar_walk *walk, const invar_lane *lane);

/* The backward of a chunk that others follow, from the gradient that these send. */
invar_status invar_walk_back(invar_walk *walk, invar_lane *lane, invar_grads *grads) INVAR_MUST_USE;

/* After the backward of a chunk: its gradient goes to the one before. */
invar_status invar_walk_pass_back(invar_walk *walk, const invar_lane *lane) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
