/*
 * rollout_hooks.h - whose the rows of a pass are, for those who look at a rollout.
 *
 * Only engine/sample/rollout includes this.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_ROLLOUT_ROLLOUT_HOOKS_H
#define INVAR_ENGINE_SAMPLE_ROLLOUT_ROLLOUT_HOOKS_H

#include "engine/sample/rollout/rollout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed at first; release. */
typedef struct invar_row_ownership {
    invar_rollout_hooks watcher; /* `take` NULL: nobody looks */
    const uint32_t *draws;       /* of the samples of the run; borrowed */
    invar_row_samples *owners;   /* (used) of this pass, list after list */
    int64_t used, room;
    const invar_row_samples *current; /* of the values that come next */
} invar_row_ownership;

void invar_row_ownership_release(invar_row_ownership *show);

/* A new pass, whose lists have `rows` owners altogether at most. */
invar_status invar_row_ownership_pass(invar_row_ownership *show, int64_t rows) INVAR_MUST_USE;

/* The owners of the values that come next, `rows` of them, to be written by the caller. */
invar_row_samples *invar_row_ownership_owners(invar_row_ownership *show, int64_t rows);

/* For invar_pass_probe: `take` of the watcher, with the owners. */
invar_forward_hooks invar_row_ownership_probe(invar_row_ownership *show);

/* A result of an op that is in no program, a row for each of the owners. */
invar_status invar_row_ownership_value(invar_row_ownership *show, invar_op_runner *caller,
                                       const char *name, invar_op op, const invar_tensor *rows,
                                       const char *const *inputs) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
