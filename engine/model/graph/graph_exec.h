/*
 * graph_exec.h - executes an op graph and shows its intermediate values to hooks.
 *
 * The graph names memory symbolically and each execution supplies the addresses, so one graph
 * serves any weights and any memory block. Hooks do not change what runs: after a node they see its
 * points.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_GRAPH_EXEC_H
#define INVAR_ENGINE_MODEL_GRAPH_GRAPH_EXEC_H

#include "engine/model/graph/graph_args.h"

/*
 * Runs the nodes of one section in order, with their transfers. Collective if the graph has
 * transfers.
 */
invar_status invar_op_graph_run(const invar_op_graph *graph, int32_t section,
                                const invar_graph_exec_args *run) INVAR_MUST_USE;

#endif
