/*
 * rollout_hooks.h - tells rollout hooks which samples own each row of an observed value.
 *
 * A pass packs rows of many samples, and several samples may share the rows of their prompt. Before
 * a value is shown, the caller writes one owner list per row; the hooks receive it with the value.
 * Owner lists are valid until the next pass. Private to engine/sample/rollout.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_ROLLOUT_ROLLOUT_HOOKS_H
#define INVAR_ENGINE_SAMPLE_ROLLOUT_ROLLOUT_HOOKS_H

#include "engine/sample/rollout/rollout.h"

/* Zero-initialize before use. Release with invar_row_ownership_release. */
typedef struct invar_row_ownership {
    invar_rollout_hooks hooks;        /* probe.on_value is NULL if no hooks are set */
    const uint32_t *draws;            /* draw indexes of the samples of the run; borrowed */
    invar_row_samples *owners;        /* (used) owner lists of this pass, one after another */
    int64_t used, capacity;           /* owners in use and allocated */
    const invar_row_samples *current; /* owner list of the next values */
} invar_row_ownership;

void invar_row_ownership_release(invar_row_ownership *row_owners);

/*
 * Starts a new pass, whose owner lists have at most `rows` rows together. Drops all earlier lists.
 */
invar_status invar_row_ownership_pass(invar_row_ownership *row_owners, int64_t rows) INVAR_MUST_USE;

/* Returns a list of `rows` owners for the next values. The caller must fill it. */
invar_row_samples *invar_row_ownership_owners(invar_row_ownership *row_owners, int64_t rows);

/* Returns hooks for invar_pass_probe that call row_owners->hooks with the current owners added. */
invar_forward_hooks invar_row_ownership_probe(invar_row_ownership *row_owners);

/* Shows the result of an op outside the op graph; `rows` has one row per current owner. */
invar_status invar_row_ownership_value(invar_row_ownership *row_owners, invar_op_runner *runner,
                                       const char *name, invar_op op, const invar_tensor *rows,
                                       const char *const *inputs) INVAR_MUST_USE;

#endif
