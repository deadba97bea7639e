/*
 * sample_schedule.c - computes the declared asynchronous schedule.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/source/sample_schedule.h"

#include "base/minmax.h"

#include "base/invar_banned.h"

int64_t invar_sample_schedule_begin(const invar_sample_schedule *s, int64_t rollout)
{
    return invar_max_i64(0, rollout - s->lag);
}

int64_t invar_sample_schedule_goal(const invar_sample_schedule *s, int64_t rollout, int64_t tick)
{
    int64_t ticks = tick - invar_sample_schedule_begin(s, rollout) + 1;

    if (ticks <= 0)
        return 0;
    return tick >= rollout || s->segment == 0 ? INT64_MAX : ticks * s->segment;
}
