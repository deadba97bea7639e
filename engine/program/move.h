/*
 * move.h - the moves of a program: bytes that go between ranks behind its calls.
 *
 * Nothing is added on the way: what the bytes are for is up to the calls that follow. Those of a
 * far device go through the host's memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_PROGRAM_MOVE_H
#define INVAR_ENGINE_PROGRAM_MOVE_H

#include "engine/layout/layout.h"
#include "engine/program/call.h"
#include "engine/program/program.h"

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
