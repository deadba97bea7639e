/*
 * point_list.h - lists the points of a pass for a rank that records but does not compute them.
 *
 * Pipeline stages list the values of their layers and the parameter gradients that these add to.
 * Rank 0 merges the lists of all stages into the order in which a single rank would have shown the
 * values, and defines their points.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_PROBE_POINT_LIST_H
#define INVAR_ENGINE_MODEL_PROBE_POINT_LIST_H

#include "engine/model/graph/graph_exec.h"
#include "engine/model/probe/rank_buffer.h"

#define INVAR_POINT_DEF_OP 48

/* Definition of a point: an observed value without its data. */
typedef struct invar_point_def {
    invar_value_name name;
    int64_t place; /* position in the order of a single rank */
    char op[INVAR_POINT_DEF_OP];
    bool backward, stream;
    invar_value_name inputs[INVAR_DATAFLOW_INPUTS];
    int n_inputs;
    invar_tensor rows; /* type and shape only */
} invar_point_def;

/*
 * Positions increase with the layers and, in the backward, as the layers decrease. A value without
 * a layer belongs to the embedding, before all layers, or to the head if values of layers have been
 * shown before (`deep`).
 */
void invar_point_def_of(invar_point_def *out, const invar_observed_value *value, bool deep);

/* Returns the observed value without data; borrows from `listed`. */
invar_observed_value invar_point_def_value(const invar_point_def *listed);

/* Checks a definition received from another rank; returns INVAR_E_CORRUPT if it is invalid. */
invar_status invar_point_def_check(const invar_point_def *listed) INVAR_MUST_USE;

/* Points that one parameter gradient was computed from; the caller chooses its number. */
typedef struct invar_point_grad_inputs {
    int64_t number;
    invar_value_name inputs[INVAR_DATAFLOW_INPUTS];
    int n_inputs;
} invar_point_grad_inputs;

/* Zero-initialize before use. Release with invar_point_list_release. */
typedef struct invar_point_list {
    invar_point_def *values; /* (count) definitions in order, each name once */
    int64_t count, capacity;
    invar_point_grad_inputs *sums; /* (n_sums) each number once */
    int64_t n_sums, sums_capacity;
} invar_point_list;

/* Empties the list; its memory stays allocated. */
void invar_point_list_reset(invar_point_list *list);
void invar_point_list_release(invar_point_list *list);

/*
 * Adds a value unless its name is listed already; sets the inputs of a gradient, replacing earlier
 * ones of the same number.
 */
invar_status invar_point_list_add(invar_point_list *list,
                                  const invar_observed_value *value) INVAR_MUST_USE;
invar_status invar_point_list_add_sum(invar_point_list *list, int64_t number,
                                      const invar_observed_grad *sum) INVAR_MUST_USE;

/* Pack appends the complete list; unpack merges the list of another rank by position. */
invar_status invar_point_list_pack(invar_rank_buffer *to,
                                   const invar_point_list *list) INVAR_MUST_USE;
invar_status invar_point_list_unpack(invar_point_list *list,
                                     invar_rank_buffer_reader *from) INVAR_MUST_USE;

#endif
