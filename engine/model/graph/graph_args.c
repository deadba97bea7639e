/*
 * graph_args.c - addresses of the memory that an op graph names.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/graph/graph_args.h"

#include "base/invar_banned.h"

char *invar_op_graph_address(const invar_op_graph *graph, const void *name,
                             const invar_graph_exec_args *run)
{
    const invar_graph_buffer *room = &graph->buffers[invar_op_graph_buffer_of(name)];
    const char *base = room->input < 0 ? run->block : run->inputs[room->input];

    if (!base) // an input that is not supplied
        return NULL;
    return (char *)(uintptr_t)base + room->offset + invar_op_graph_offset_of(name);
}

invar_tensor invar_op_graph_find(const invar_op_graph *graph, const invar_tensor *tensor,
                                 const invar_graph_exec_args *run)
{
    invar_tensor t = *tensor;

    if (t.data)
        t.data = invar_op_graph_address(graph, t.data, run);
    if (t.scale)
        t.scale = invar_op_graph_address(graph, t.scale, run);
    return t;
}
