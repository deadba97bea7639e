/*
 * gather.h - a tensor of which every rank of an axis has a part becomes whole on each of them.
 *
 * Bytes move, and nothing is added: what the parts are for is up to the calls that follow. A far
 * device's memory goes through the host's.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_PROGRAM_GATHER_H
#define INVAR_ENGINE_PROGRAM_GATHER_H

#include "engine/layout/layout.h"
#include "engine/program/call.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed but for the layout; release. */
typedef struct invar_gatherer {
    const invar_layout *layout; /* borrowed */
    size_t *counts;             /* (ranks) bytes of a part */
    int64_t *start;             /* (experts + 1) of a far device: rows of experts */
    int64_t experts;
    char *host; /* of a far device: where parts meet */
    size_t bytes;
} invar_gatherer;

void invar_gatherer_release(invar_gatherer *gatherer, const invar_device *dev);

/*
 * `whole` is contiguous, and as many equal parts as there are ranks on the tensor axis; `own` is
 * this rank's, in its place or elsewhere. On a device that is dry nothing happens.
 */
invar_status invar_gatherer_run(invar_gatherer *gatherer, invar_caller *caller,
                                const invar_tensor *whole, const void *own) INVAR_MUST_USE;

/*
 * The rows of experts [start[e], start[e + 1]), of which each rank of the expert axis has those of
 * a run of experts. Where they begin is read where the device has it.
 */
invar_status invar_gatherer_rows(invar_gatherer *gatherer, invar_caller *caller,
                                 const invar_tensor *rows,
                                 const invar_segments *experts) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
