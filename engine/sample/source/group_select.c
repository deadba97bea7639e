/*
 * group_select.c - dynamic sampling: selects groups for the batch in index order.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/source/group_select.h"

#include <inttypes.h>

#include "base/invar_banned.h"

invar_status invar_group_selection_init(invar_group_selection *c, int64_t wanted, int64_t round,
                                        int64_t max_rounds)
{
    *c = (invar_group_selection){.batch_groups = wanted, .round = round, .max_rounds = max_rounds};
    if (wanted < 1 || round < 1 || max_rounds < 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "dynamic sampling: %" PRId64 " groups from rounds of %" PRId64
                          ", at most %" PRId64 "; expected 1 or more, 1 or more, 0 or more",
                          wanted, round, max_rounds);
    return INVAR_OK;
}

invar_status invar_group_selection_next(int64_t *out, const invar_group_selection *c)
{
    *out = c->chosen < c->batch_groups ? c->round : 0;
    if (*out > 0 && c->max_rounds > 0 && c->rounds == c->max_rounds)
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "dynamic sampling: the filter kept %" PRId64 " of the %" PRId64
                          " groups wanted, in %" PRId64 " rounds of %" PRId64
                          " prompts: loosen it, or the task is too easy or too hard",
                          c->chosen, c->batch_groups, c->rounds, c->round);
    return INVAR_OK;
}

void invar_group_selection_take(invar_group_outcome *fates_out, invar_group_selection *c,
                                const bool *keep, int64_t groups)
{
    for (int64_t i = 0; i < groups; i++) {
        if (!keep[i]) {
            fates_out[i] = INVAR_GROUP_FILTERED;
            c->filtered++;
        } else if (c->chosen < c->batch_groups) {
            fates_out[i] = INVAR_GROUP_BATCH;
            c->chosen++;
        } else {
            fates_out[i] = INVAR_GROUP_SURPLUS;
            c->surplus++;
        }
    }
    c->consumed += groups;
    c->rounds++;
}
