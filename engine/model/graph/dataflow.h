/*
 * dataflow.h - what the points of a program were computed from, and how they are shown.
 *
 * A watch follows a list of calls from its beginning. Nobody writes down what a point depends on:
 * it is the points that its call has read, and of results without a point those behind them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_DATAFLOW_H
#define INVAR_ENGINE_MODEL_GRAPH_DATAFLOW_H

#include "engine/model/graph/graph_exec.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_dataflow_tracker invar_dataflow_tracker;

/* Before the first call. The program stays as it is meanwhile. */
invar_status invar_dataflow_new(invar_dataflow_tracker **out, const invar_op_graph *program,
                                const invar_graph_exec_args *run) INVAR_MUST_USE;
void invar_dataflow_free(invar_dataflow_tracker *watch);

/* Goes on to the next call, without looking. */
void invar_dataflow_pass(invar_dataflow_tracker *watch);

/*
 * The next call is about to run with these arguments. Where the probe wants that and the call is
 * fused, its parts run now, aside: neither what the call reads nor what it adds to changes.
 */
invar_status invar_dataflow_before(invar_dataflow_tracker *watch, const void *args) INVAR_MUST_USE;

/* Goes on to the next call, which has just run, and shows its points and those of its parts. */
invar_status invar_dataflow_show(invar_dataflow_tracker *watch) INVAR_MUST_USE;

/*
 * For whoever is shown a value: *out = its rows in the order of tokens, in the device's memory,
 * until the next value.
 */
invar_status invar_dataflow_rows(invar_tensor *out,
                                 const invar_observed_value *value) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
