/*
 * course.c - what a run does after which rollout, and when it ends.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/course.h"

#include "base/invar_banned.h"

bool invar_course_ended(const invar_course *c, const invar_course_place *at)
{
    return at->rollout >= c->rollouts || (c->most > 0 && at->done >= c->most) ||
           (c->until >= 0 && at->step > c->until);
}

static int64_t less(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t invar_course_steps(const invar_course *c, const invar_course_place *at, int64_t per_rollout)
{
    int64_t rollouts = c->rollouts - at->rollout;

    if (c->most > 0)
        rollouts = less(rollouts, c->most - at->done);
    if (c->until >= 0) // the whole rollout that has the step
        rollouts = less(rollouts, (c->until - at->step) / per_rollout + 1);
    return at->step + rollouts * per_rollout;
}

static bool due(int64_t interval, int64_t rollout)
{
    return interval > 0 && rollout % interval == 0;
}

invar_course_turn invar_course_after(const invar_course *c, const invar_course_place *at,
                                     int signal)
{
    bool ended = invar_course_ended(c, at);
    invar_course_turn turn = {.move_reference = due(c->ref_interval, at->rollout),
                              .evaluate = due(c->eval_interval, at->rollout),
                              .last = ended || signal,
                              .stopped = ended ? 0 : signal};

    turn.save = turn.last || due(c->save_interval, at->rollout);
    return turn;
}
