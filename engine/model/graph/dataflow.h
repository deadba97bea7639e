/*
 * dataflow.h - tracks from which points each value of an op graph was computed, and shows points.
 *
 * A tracker steps through the nodes of a graph from the first one. Dependencies are derived, not
 * declared: a point depends on the points that its node has read, and a value without a point on
 * those that it was computed from.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_DATAFLOW_H
#define INVAR_ENGINE_MODEL_GRAPH_DATAFLOW_H

#include "engine/model/graph/graph_args.h"

typedef struct invar_dataflow_tracker invar_dataflow_tracker;

/*
 * Creates a tracker before the first node. `graph` and `run` are borrowed and must not change
 * while it is in use.
 */
invar_status invar_dataflow_new(invar_dataflow_tracker **out, const invar_op_graph *graph,
                                const invar_graph_exec_args *run) INVAR_MUST_USE;
void invar_dataflow_free(invar_dataflow_tracker *tracker);

/* Steps over the next node without showing its points. */
void invar_dataflow_pass(invar_dataflow_tracker *tracker);

/*
 * Call before the next node runs with these arguments. If the hooks ask for decomposed calls and
 * the node is fused, its parts run now, into separate buffers: the node's inputs and accumulators
 * do not change.
 */
invar_status invar_dataflow_before(invar_dataflow_tracker *tracker,
                                   const void *args) INVAR_MUST_USE;

/* Steps over the next node, which has just run, and shows its points and those of its parts. */
invar_status invar_dataflow_show(invar_dataflow_tracker *tracker) INVAR_MUST_USE;

/*
 * *out = the rows of a value that a hook sees, in token order, in device memory that is valid until
 * the next value.
 */
invar_status invar_dataflow_rows(invar_tensor *out,
                                 const invar_observed_value *value) INVAR_MUST_USE;

#endif
