/*
 * partition.h - which part of a model a rank holds.
 *
 * Tensor-parallel ranks hold whole pieces of what logical tensor parallelism cuts, an aligned run
 * of them each, and all of everything else. Expert-parallel ranks hold a run of the experts of
 * every layer each. Ranks of a pipeline hold whole layers: rank s of S has, of S * C runs of
 * layers, every S-th from s on; the first of all has the embedding, the last the norm and the head
 * behind the layers, and a tied embedding, too. Context-parallel ranks hold the same parameters,
 * and of the rows of a pass a run each (engine/model/graph/row_partition.h).
 *
 * A part is plain data and a function of the layout, so every rank knows what every other one has.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_PARTITION_H
#define INVAR_ENGINE_MODEL_PARTITION_H

#include "engine/model/graph/param.h"
#include "engine/model/spec.h"
#include "engine/ranks/layout/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_model_partition {
    int32_t tensor, tensors;   /* this one of so many */
    int32_t expert_tensors;    /* those that divide an expert: 1 or all */
    int32_t expert, experts;   /* this one of those that have other experts */
    int32_t context, contexts; /* this one of those that have other rows */
    int32_t stage, stages;     /* of a pipeline */
    int32_t chunks;            /* runs of layers of a stage */
} invar_model_partition;

/* Of a rank of the world; NULL: the whole model. */
invar_model_partition invar_model_partition_of(const invar_layout *layout, int rank);

/*
 * The ranks that hold a model together are numbered as those of the world are: how many there are,
 * the number of one, and the one with a number.
 */
int32_t invar_model_partition_ranks(const invar_model_partition *part);
int32_t invar_model_partition_number(const invar_model_partition *part);
invar_model_partition invar_model_partition_numbered(const invar_model_partition *part,
                                                     int32_t number);

/*
 * Refuses a layout that the model's logical sizes, heads or layers do not allow, and names those
 * that they do. With all parameters declared; `quantized`: linear layers have scales.
 */
invar_status invar_model_partition_check(const invar_model_partition *part,
                                         const invar_model_spec *spec, const invar_param *params,
                                         int64_t count, bool quantized) INVAR_MUST_USE;

/* The layers [first, first + count) of run `chunk` of a stage, chunks counted over all stages. */
invar_index_range invar_model_partition_chunk(const invar_model_partition *part, int64_t layers,
                                              int64_t chunk);

/* Does it hold this layer? */
bool invar_model_partition_has(const invar_model_partition *part, int64_t layers, int64_t layer);

/* What it holds of a parameter, of which everything but the tensors is known. */
invar_param_shard invar_model_partition_box(const invar_model_partition *part,
                                            const invar_model_spec *spec, const invar_param *param);

/* Is a piece of an expert in the box? */
static inline bool invar_param_shard_has(const invar_param_shard *box, int64_t expert,
                                         int32_t piece)
{
    return expert >= box->expert && expert < box->expert + box->experts && piece >= box->piece &&
           piece < box->piece + box->pieces;
}

/* The number of the first part, among those that hold a model, that has a piece of an expert. */
int32_t invar_model_partition_first(const invar_model_partition *any, const invar_model_spec *spec,
                                    const invar_param *param, int64_t expert, int32_t piece);

/*
 * A box in the order of its memory, as runs of elements that lie together in the whole parameter:
 * run k begins there at invar_param_shard_run_at.
 */
typedef struct invar_shard_runs {
    int64_t count;      /* of all its experts */
    int64_t in_expert;  /* of each */
    int64_t length;     /* elements of a run */
    int64_t first;      /* where the first begins */
    int64_t step, jump; /* from one to the next; from an expert's first to the next one's */
} invar_shard_runs;

invar_shard_runs invar_param_shard_runs_of(const invar_param *param, const invar_param_shard *box);

static inline int64_t invar_param_shard_run_at(const invar_shard_runs *runs, int64_t run)
{
    return runs->first + run / runs->in_expert * runs->jump + run % runs->in_expert * runs->step;
}

/* A box's elements out of the whole parameter, and into it. */
void invar_param_shard_take(float *out, const invar_param *param, const invar_param_shard *box,
                            const float *whole);
void invar_param_shard_put(float *whole, const invar_param *param, const invar_param_shard *box,
                           const float *values);

#ifdef __cplusplus
}
#endif
#endif
