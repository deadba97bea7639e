/*
 * graph_transfer.h - executes the transfers of an op graph: moves rows between ranks after a node.
 *
 * A transfer only moves bytes; sums are computed by later nodes. Without a device communicator,
 * device-local memory is copied through host memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_GRAPH_TRANSFER_H
#define INVAR_ENGINE_MODEL_GRAPH_GRAPH_TRANSFER_H

#include "engine/model/graph/op_graph.h"
#include "engine/model/graph/op_runner.h"
#include "engine/ranks/layout/layout.h"

/*
 * Runs transfers. Zero-initialize except for `layout`. Release with invar_transfer_runner_release.
 */
typedef struct invar_transfer_runner {
    const invar_layout *layout;      /* borrowed */
    size_t *send_bytes, *recv_bytes; /* (ranks) bytes sent to and received from each rank */
    int64_t *start;  /* (experts + 1) host copy of expert row offsets in device-local memory */
    int64_t experts; /* capacity of `start` */
    char *host;      /* pinned buffer for device-local memory: bytes to send, then received bytes */
    size_t bytes;
} invar_transfer_runner;

void invar_transfer_runner_release(invar_transfer_runner *transfers, const invar_device *dev);

/*
 * Runs one transfer with the addresses of this execution. Collective over the ranks of the
 * transfer's axis. On a dry-run device the transfer is counted only, and only if peers are
 * simulated.
 */
invar_status invar_transfer_runner_run(invar_transfer_runner *transfers, invar_op_runner *runner,
                                       const invar_graph_transfer *transfer) INVAR_MUST_USE;

#endif
