/*
 * show.h - whose the rows of a pass are, for those who look at a rollout.
 *
 * Only engine/rollout includes this.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_ROLLOUT_SHOW_H
#define INVAR_ENGINE_ROLLOUT_SHOW_H

#include "engine/rollout/rollout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed at first; release. */
typedef struct invar_show {
    invar_rollout_watcher watcher; /* `take` NULL: nobody looks */
    const uint32_t *draws;         /* of the samples of the run; borrowed */
    invar_row_owner *owners;       /* (used) of this pass, list after list */
    int64_t used, room;
    const invar_row_owner *now; /* of the values that come next */
} invar_show;

void invar_show_release(invar_show *show);

/* A new pass, whose lists have `rows` owners altogether at most. */
invar_status invar_show_pass(invar_show *show, int64_t rows) INVAR_MUST_USE;

/* The owners of the values that come next, `rows` of them, to be written by the caller. */
invar_row_owner *invar_show_owners(invar_show *show, int64_t rows);

/* For invar_pass_probe: `take` of the watcher, with the owners. */
invar_forward_probe invar_show_probe(invar_show *show);

/* A result of an op that is in no program, a row for each of the owners. */
invar_status invar_show_value(invar_show *show, invar_caller *caller, const char *name, invar_op op,
                              const invar_tensor *rows, const char *const *inputs) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
