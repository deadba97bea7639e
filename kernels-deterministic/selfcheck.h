/*
 * selfcheck.h - self-check: runs every op on fixed data and reports the digest of each result.
 *
 * The check is a decoder layer with attention, a dense and an expert block, head, loss, backward
 * and optimizer, written as op calls on data from Philox. The blocks are not chained: each reads
 * the normed embeddings or data of its own. The digests depend on storage type and numerics only,
 * not on threads, code path, compiler, device or machine. The expected digests are part of the
 * binary: this is the first test on a new machine or compiler, and the cross-architecture test.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_SELFCHECK_H
#define INVAR_KERNELS_SELFCHECK_H

#include "kernels-deterministic/ops.h"

/*
 * Callback for one result; `what` names the value, "o" of attention.fwd. A failure ends the
 * self-check.
 */
typedef invar_status (*invar_selfcheck_emit)(void *payload, invar_op op, const char *what,
                                             const invar_digest *digest);

/* Recorded results, "storage numerics op revision digest what"; NULL ends the list. */
extern const char *const invar_selfcheck_golden[];

/* Returns the size of dev->scratch for a self-check with up to `threads` threads, or on a GPU. */
size_t invar_selfcheck_scratch(int threads);

/*
 * Runs the self-check with storage f32 or bf16. The device is open and its scratch is an arena in
 * its own memory. Stops at the first failure of an op or of `emit`.
 */
invar_status invar_selfcheck_run(const invar_device *dev, invar_dtype storage,
                                 invar_selfcheck_emit emit, void *payload) INVAR_MUST_USE;

#endif
