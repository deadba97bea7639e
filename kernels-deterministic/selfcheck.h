/*
 * selfcheck.h - every op once, on fixed data, each result as a digest.
 *
 * A decoder layer with attention, a dense and an expert block, head, loss, backward and optimizer,
 * written out as op calls on data from Philox. What it yields depends on storage type and numerics
 * alone: not on threads, code path, compiler, device or machine. Goldens of these digests travel
 * with the binary; a first look at a new machine or compiler, and the cross-architecture test, are
 * this.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_SELFCHECK_H
#define INVAR_KERNELS_SELFCHECK_H

#include "kernels-deterministic/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Receives one result: `what` names the value, "attention.fwd o". */
typedef invar_status (*invar_selfcheck_emit)(void *payload, invar_op op, const char *what,
                                             const invar_digest *digest);

/* Recorded results, "storage numerics op revision digest what", up to a NULL. */
extern const char *const invar_selfcheck_golden[];

/* Scratch that dev->scratch must allow for a run with up to `threads` threads, or on a GPU. */
size_t invar_selfcheck_scratch(int threads);

/*
 * storage: f32 or bf16. The device is open and its scratch lies in its memory, which may be far.
 * Stops at the first failure, of an op or of `emit`.
 */
invar_status invar_selfcheck_run(const invar_device *dev, invar_dtype storage,
                                 invar_selfcheck_emit emit, void *payload) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
