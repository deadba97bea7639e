/*
 * partition.h - which part of a model a rank holds: its coordinates on the model-parallel axes.
 *
 * Tensor-parallel ranks hold consecutive logical shards of the parameters that logical tensor
 * parallelism splits, and all of the others. Expert-parallel ranks hold a range of the experts of
 * every layer. Pipeline stages hold complete layers: stage s of S has model chunks s, s + S, ... of
 * S * C; the first chunk includes the embedding, the last one the last norm and the head, and also
 * a tied embedding. Context-parallel ranks hold the same parameters and divide the rows of a pass
 * (engine/model/graph/row_partition.h).
 *
 * A partition is plain data and a function of the layout, so every rank knows what the others hold.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_PARTITION_H
#define INVAR_ENGINE_MODEL_PARTITION_H

#include "engine/model/graph/param.h"
#include "engine/model/spec/spec.h"
#include "engine/ranks/layout/layout.h"

typedef struct invar_model_partition {
    int32_t tensor, tensors;   /* tensor-parallel rank and size */
    int32_t expert_tensors;    /* ranks that divide an expert: 1 or all of `tensors` */
    int32_t expert, experts;   /* expert-parallel rank and size */
    int32_t context, contexts; /* context-parallel rank and size */
    int32_t stage, stages;     /* pipeline stage and number of stages */
    int32_t chunks;            /* model chunks (virtual stages) per stage */
} invar_model_partition;

/* Returns the partition of a rank of the world; the full model if `layout` is NULL. */
invar_model_partition invar_model_partition_of(const invar_layout *layout, int rank);

/*
 * Ranks that hold one copy of the model together, numbered in the order of the world: their number,
 * the number of one of them, and the partition with a given number.
 */
int32_t invar_model_partition_ranks(const invar_model_partition *part);
int32_t invar_model_partition_number(const invar_model_partition *part);
invar_model_partition invar_model_partition_numbered(const invar_model_partition *part,
                                                     int32_t number);

/*
 * Rejects a layout that the model's logical sizes, heads or layers do not allow; the error names
 * sizes that fit. All parameters must be declared. `quantized`: linear layers have scales.
 */
invar_status invar_model_partition_check(const invar_model_partition *part,
                                         const invar_model_spec *spec, const invar_param *params,
                                         int64_t count, bool quantized) INVAR_MUST_USE;

/* Layers of model chunk `chunk`, counted over all stages. */
invar_index_range invar_model_partition_chunk(const invar_model_partition *part, int64_t layers,
                                              int64_t chunk);

/* Returns true if the partition holds this layer. */
bool invar_model_partition_has(const invar_model_partition *part, int64_t layers, int64_t layer);

/*
 * Returns the shard of a parameter that the partition holds. `param` must be complete except for
 * its tensors.
 */
invar_param_shard invar_model_partition_shard(const invar_model_partition *part,
                                              const invar_model_spec *spec,
                                              const invar_param *param);

/* Returns true if a logical shard of an expert is in the shard `shard`. */
static inline bool invar_param_shard_has(const invar_param_shard *shard, int64_t expert,
                                         int32_t logical_shard)
{
    return expert >= shard->expert && expert < shard->expert + shard->experts &&
           logical_shard >= shard->first_shard &&
           logical_shard < shard->first_shard + shard->n_shards;
}

/* Returns the number of the first partition that holds a logical shard of an expert. */
int32_t invar_model_partition_first(const invar_model_partition *any, const invar_model_spec *spec,
                                    const invar_param *param, int64_t expert,
                                    int32_t logical_shard);

/*
 * A local shard in the order of its memory, as runs of elements that are contiguous in the full
 * parameter; run k starts at invar_param_shard_run_at.
 */
typedef struct invar_shard_runs {
    int64_t count;      /* runs of all experts */
    int64_t in_expert;  /* runs per expert */
    int64_t length;     /* elements of a run */
    int64_t first;      /* start of the first run */
    int64_t step, jump; /* distance from a run to the next; distance from the first run of an
                           expert to that of the next */
} invar_shard_runs;

invar_shard_runs invar_param_shard_runs_of(const invar_param *param,
                                           const invar_param_shard *shard);

static inline int64_t invar_param_shard_run_at(const invar_shard_runs *runs, int64_t run)
{
    return runs->first + run / runs->in_expert * runs->jump + run % runs->in_expert * runs->step;
}

/* Copy the elements of a shard out of the full parameter, and into it. */
void invar_param_shard_extract(float *out, const invar_param *param, const invar_param_shard *shard,
                               const float *full);
void invar_param_shard_insert(float *full, const invar_param *param, const invar_param_shard *shard,
                              const float *values);

#endif
