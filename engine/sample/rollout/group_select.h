/*
 * group_select.h - dynamic sampling: which groups become the batch.
 *
 * Prompts come in rounds, in the order of the data. Of each finished round the groups that a filter
 * keeps join the batch in that order, until it is full; a kept group that comes later is surplus.
 * All prompts of a round are consumed. So batch and data cursor are a function of the data and the
 * filter; when a group was finished plays no part.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_ROLLOUT_GROUP_SELECT_H
#define INVAR_ENGINE_SAMPLE_ROLLOUT_GROUP_SELECT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum invar_group_outcome {
    INVAR_GROUP_BATCH,    /* in the batch */
    INVAR_GROUP_FILTERED, /* the filter did not keep it */
    INVAR_GROUP_SURPLUS   /* kept, but the batch was full */
} invar_group_outcome;

typedef struct invar_group_selection {
    int64_t batch_groups; /* groups of a batch: rollout-batch-size */
    int64_t round;        /* prompts of a round: over-sampling-batch-size */
    int64_t max_rounds;   /* 0: as many as it takes */
    /* So far: */
    int64_t rounds;
    int64_t consumed; /* prompts: how far the data cursor moves */
    int64_t chosen;   /* groups in the batch */
    int64_t filtered;
    int64_t surplus;
} invar_group_selection;

/* Refuses numbers below 1, and rounds below 0. */
invar_status invar_group_selection_init(invar_group_selection *choice, int64_t wanted,
                                        int64_t round, int64_t max_rounds) INVAR_MUST_USE;

/*
 * *out = prompts of the next round; 0: the batch is full. INVAR_E_STATE when max_rounds did not
 * fill it.
 */
invar_status invar_group_selection_next(int64_t *out,
                                        const invar_group_selection *choice) INVAR_MUST_USE;

/* A finished round of so many groups: keep[i] of them in order; their fates. */
void invar_group_selection_take(invar_group_outcome *fates_out, invar_group_selection *choice,
                                const bool *keep, int64_t groups);

#ifdef __cplusplus
}
#endif
#endif
