/*
 * point_list.h - what a pass shows, by name: for a rank that did not compute it, but records it.
 *
 * Stages of a pipeline list the values of their layers, and the gradients of parameters that these
 * add to. Rank 0 puts the lists of all stages into the order that one rank would have shown them
 * in, and defines their points.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_PROBE_POINT_LIST_H
#define INVAR_ENGINE_MODEL_PROBE_POINT_LIST_H

#include "engine/model/graph/graph_exec.h"
#include "engine/model/probe/rank_buffer.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_POINT_DEF_OP 48

/* A value without its rows. */
typedef struct invar_point_def {
    invar_value_name name;
    int64_t place; /* in the order of one rank */
    char op[INVAR_POINT_DEF_OP];
    bool backward, stream;
    invar_value_name inputs[INVAR_DATAFLOW_INPUTS];
    int n_inputs;
    invar_tensor rows; /* type and shape alone */
} invar_point_def;

/*
 * Places go up with the layers, and on with the backward down again. A value of no layer is the
 * embedding's, before them, or where values of layers have been shown (`deep`) the head's.
 */
void invar_point_def_of(invar_point_def *out, const invar_observed_value *value, bool deep);

/* As it was shown, but for its rows; borrows from `listed`. */
invar_observed_value invar_point_def_value(const invar_point_def *listed);

/* Of a listed value that has arrived: INVAR_E_CORRUPT where it is none. */
invar_status invar_point_def_check(const invar_point_def *listed) INVAR_MUST_USE;

/* What the gradient with a number, of a learner's choice, is computed from. */
typedef struct invar_point_grad_inputs {
    int64_t number;
    invar_value_name inputs[INVAR_DATAFLOW_INPUTS];
    int n_inputs;
} invar_point_grad_inputs;

/* Zeroed, it is empty; release. */
typedef struct invar_point_list {
    invar_point_def *values; /* (count) each name once, in order */
    int64_t count, room;
    invar_point_grad_inputs *sums; /* (n_sums) each number once */
    int64_t n_sums, sums_room;
} invar_point_list;

/* Empty again. */
void invar_point_list_reset(invar_point_list *listing);
void invar_point_list_release(invar_point_list *listing);

/* A value that is listed already stays as it is; of a gradient the last sum counts. */
invar_status invar_point_list_add(invar_point_list *listing,
                                  const invar_observed_value *value) INVAR_MUST_USE;
invar_status invar_point_list_add_sum(invar_point_list *listing, int64_t number,
                                      const invar_observed_grad *sum) INVAR_MUST_USE;

/* All of it; and what another rank has packed, in its place among the values that are here. */
invar_status invar_point_list_pack(invar_rank_buffer *to,
                                   const invar_point_list *listing) INVAR_MUST_USE;
invar_status invar_point_list_unpack(invar_point_list *listing,
                                     invar_rank_buffer_reader *from) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
