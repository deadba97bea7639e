/*
 * group_select.h - dynamic sampling: selects the groups that become the batch.
 *
 * Prompts are sampled in rounds, in data order. After each round the groups that the filter keeps
 * join the batch in that order until it is full; later kept groups are surplus. All prompts of a
 * round are consumed. So batch and data cursor are a function of the data and the filter; the time
 * at which a group finished must never matter.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SOURCE_GROUP_SELECT_H
#define INVAR_ENGINE_SAMPLE_SOURCE_GROUP_SELECT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef enum invar_group_outcome {
    INVAR_GROUP_BATCH,    /* in the batch */
    INVAR_GROUP_FILTERED, /* rejected by the filter */
    INVAR_GROUP_SURPLUS   /* kept by the filter when the batch was full */
} invar_group_outcome;

typedef struct invar_group_selection {
    int64_t batch_groups; /* groups of a batch: key rollout-batch-size */
    int64_t round;        /* prompts of a round: key over-sampling-batch-size */
    int64_t max_rounds;   /* 0 for no limit */
    int64_t rounds;       /* finished rounds; the counters below sum over them */
    int64_t consumed;     /* prompts; the data cursor moves by this number */
    int64_t chosen;       /* groups in the batch */
    int64_t filtered;     /* groups rejected by the filter */
    int64_t surplus;      /* groups kept when the batch was full */
} invar_group_selection;

/*
 * Starts a selection of `wanted` groups. Returns INVAR_E_INVALID if `wanted` or `round` is below 1
 * or `max_rounds` is below 0.
 */
invar_status invar_group_selection_init(invar_group_selection *selection, int64_t wanted,
                                        int64_t round, int64_t max_rounds) INVAR_MUST_USE;

/*
 * *out = number of prompts of the next round; 0 if the batch is full. Returns INVAR_E_STATE if
 * max_rounds rounds did not fill the batch.
 */
invar_status invar_group_selection_next(int64_t *out,
                                        const invar_group_selection *selection) INVAR_MUST_USE;

/*
 * Adds a finished round of `groups` groups. keep[i] is the verdict of the filter on group i, in
 * data order; fates_out[i] receives its outcome.
 */
void invar_group_selection_take(invar_group_outcome *fates_out, invar_group_selection *selection,
                                const bool *keep, int64_t groups);

#endif
