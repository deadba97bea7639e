/*
 * graph_exec.c - executes the nodes and transfers of an op graph, with or without hooks.
 *
 * Symbolic addresses are replaced in a copy of each node's arguments, so the graph itself is never
 * changed. With hooks, a data-flow tracker (dataflow.h) steps through the same nodes, dropped ones
 * included, and shows the points of each node after it ran. Transfers of a dropped node still run
 * unless they are dropped too.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/graph/graph_exec.h"

#include <stdalign.h>
#include <string.h>

#include "engine/model/graph/dataflow.h"

#include "base/invar_banned.h"

/* Copies the node's arguments with the addresses of this execution. */
static void resolve_arguments(char *args, const invar_op_graph *graph, const invar_graph_node *call,
                              const invar_graph_exec_args *run)
{
    const int64_t fresh = run->overwrite;

    (void)invar_op_args_copy(args, call->op, graph->bytes + call->args);
    for (int32_t i = call->address_offsets; i < call->address_offsets + call->n_address_offsets;
         i++) {
        char *at = args + graph->address_offsets[i];
        const void *name;
        memcpy(&name, at, sizeof name);
        name = invar_op_graph_address(graph, name, run);
        memcpy(at, &name, sizeof name);
    }
    if (call->overwrite_offset >= 0)
        memcpy(args + call->overwrite_offset, &fresh, sizeof fresh);
}

/*
 * Fills the planned buffers whose last user is node `call` with bytes that are NaN in every float
 * type.
 */
static invar_status poison_dead_buffers(const invar_op_graph *graph, int32_t call,
                                        const invar_graph_exec_args *run)
{
    unsigned char nan[4096];

    memset(nan, 0xFF, sizeof nan);
    for (int32_t i = 0; i < graph->n_buffers; i++) {
        const invar_graph_buffer *room = &graph->buffers[i];
        char *at = (char *)run->block + room->offset;
        if (room->input >= 0 || room->last != call)
            continue;
        for (size_t done = 0; done < room->bytes; done += sizeof nan) {
            size_t left = room->bytes - done;
            INVAR_TRY(invar_device_upload(&run->op_runner->dev, at + done, nan,
                                          left < sizeof nan ? left : sizeof nan));
        }
    }
    return INVAR_OK;
}

static invar_status run_transfer(const invar_op_graph *graph, const invar_graph_transfer *named,
                                 const invar_graph_exec_args *run)
{
    invar_graph_transfer transfer = *named;

    transfer.full = invar_op_graph_find(graph, &transfer.full, run);
    transfer.local = invar_op_graph_find(graph, &transfer.local, run);
    if (transfer.experts.offsets)
        transfer.experts.offsets = (const int64_t *)(const void *)invar_op_graph_address(
            graph, transfer.experts.offsets, run);
    return invar_transfer_runner_run(run->transfers, run->op_runner, &transfer);
}

static invar_status run_transfers(const invar_op_graph *graph, int32_t first, int32_t count,
                                  const invar_graph_exec_args *run)
{
    for (int32_t i = first; i < first + count; i++)
        if (!graph->transfers[i].dropped)
            INVAR_TRY(run_transfer(graph, &graph->transfers[i], run));
    return INVAR_OK;
}

/* Starts a tracker at node `first` if there are hooks; *out is NULL without them. */
static invar_status start_tracker(invar_dataflow_tracker **out, const invar_op_graph *graph,
                                  int32_t first, const invar_graph_exec_args *run)
{
    *out = NULL;
    if (!run->hooks || !run->hooks->on_value)
        return INVAR_OK;
    INVAR_TRY(invar_dataflow_new(out, graph, run));
    for (int32_t i = 0; i < first; i++)
        invar_dataflow_pass(*out);
    return INVAR_OK;
}

/* Does what follows node `i`: its transfers, and its points unless it is dropped. */
static invar_status finish_node(const invar_op_graph *graph, int32_t i,
                                const invar_graph_exec_args *run, invar_dataflow_tracker *watch)
{
    const invar_graph_node *call = &graph->nodes[i];

    INVAR_TRY(run_transfers(graph, call->transfers, call->n_transfers, run));
    if (watch && call->dropped)
        invar_dataflow_pass(watch);
    if (call->dropped)
        return INVAR_OK;
    if (watch)
        INVAR_TRY(invar_dataflow_show(watch));
    return run->poison ? poison_dead_buffers(graph, i, run) : INVAR_OK;
}

invar_status invar_op_graph_run(const invar_op_graph *graph, int32_t section,
                                const invar_graph_exec_args *run)
{
    int32_t first = graph->section_start[section], end = graph->section_start[section + 1];
    alignas(max_align_t) char args[INVAR_OP_ARGS_MAX];
    invar_dataflow_tracker *watch;
    invar_status status = INVAR_OK;

    INVAR_CHECK(section < graph->n_sections);
    INVAR_TRY(run_transfers(graph, graph->lead_transfers[section], graph->n_lead_transfers[section],
                            run));
    INVAR_TRY(start_tracker(&watch, graph, first, run));
    for (int32_t i = first; i < end && status == INVAR_OK; i++) {
        const invar_graph_node *call = &graph->nodes[i];

        if (!call->dropped) {
            resolve_arguments(args, graph, call, run);
            run->op_runner->layer = call->layer;
            if (watch)
                status = invar_dataflow_before(watch, args);
            if (status == INVAR_OK)
                status = invar_op_runner_run(run->op_runner, call->op, args);
        }
        if (status == INVAR_OK)
            status = finish_node(graph, i, run, watch);
    }
    invar_dataflow_free(watch);
    return status;
}
