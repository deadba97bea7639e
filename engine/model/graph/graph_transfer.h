/*
 * graph_transfer.h - the moves of a program: bytes that go between ranks behind its calls.
 *
 * Nothing is added on the way: what the bytes are for is up to the calls that follow. Those of a
 * far device go through the host's memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_GRAPH_TRANSFER_H
#define INVAR_ENGINE_MODEL_GRAPH_GRAPH_TRANSFER_H

#include "engine/model/graph/op_graph.h"
#include "engine/model/graph/op_runner.h"
#include "engine/ranks/layout/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed but for the layout; release. */
typedef struct invar_transfer_runner {
    const invar_layout *layout; /* borrowed */
    size_t *give, *get;         /* (ranks) bytes */
    int64_t *start;             /* (experts + 1) of a far device: rows of experts */
    int64_t experts;
    char *host; /* of a far device: what is given, then what is got */
    size_t bytes;
} invar_transfer_runner;

void invar_transfer_runner_release(invar_transfer_runner *mover, const invar_device *dev);

/* A move of this run's memory. On a device that is dry it counts, if ranks are imagined. */
invar_status invar_transfer_runner_run(invar_transfer_runner *mover, invar_op_runner *caller,
                                       const invar_graph_transfer *move) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
