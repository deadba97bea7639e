/*
 * run_schedule.c - decides what a run does after each rollout, and when it ends.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/run_schedule.h"

#include "base/minmax.h"

#include "base/invar_banned.h"

bool invar_run_schedule_ended(const invar_run_schedule *c, const invar_run_progress *at)
{
    return at->rollout >= c->rollouts || (c->max_rollouts > 0 && at->done >= c->max_rollouts) ||
           (c->until >= 0 && at->step > c->until);
}

int64_t invar_run_schedule_steps(const invar_run_schedule *c, const invar_run_progress *at,
                                 int64_t per_rollout)
{
    int64_t rollouts = c->rollouts - at->rollout;

    if (c->max_rollouts > 0)
        rollouts = invar_min_i64(rollouts, c->max_rollouts - at->done);
    if (c->until >= 0) // the rollout that contains the step is completed
        rollouts = invar_min_i64(rollouts, (c->until - at->step) / per_rollout + 1);
    return at->step + rollouts * per_rollout;
}

static bool is_due(int64_t interval, int64_t rollout)
{
    return interval > 0 && rollout % interval == 0;
}

invar_run_actions invar_run_schedule_after(const invar_run_schedule *c,
                                           const invar_run_progress *at, int signal)
{
    bool ended = invar_run_schedule_ended(c, at);
    invar_run_actions turn = {.move_reference = is_due(c->ref_interval, at->rollout),
                              .evaluate = is_due(c->eval_interval, at->rollout),
                              .last = ended || signal,
                              .stopped = ended ? 0 : signal};

    turn.save = turn.last || is_due(c->save_interval, at->rollout);
    return turn;
}
