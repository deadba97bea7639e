/*
 * lag.c - computes the declared asynchronous schedule.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/source/lag.h"

#include "base/minmax.h"

#include "base/invar_banned.h"

int64_t invar_lag_begin(const invar_lag *lag, int64_t rollout)
{
    return invar_max_i64(0, rollout - lag->rollouts);
}

int64_t invar_lag_goal(const invar_lag *lag, int64_t rollout, int64_t tick)
{
    int64_t ticks = tick - invar_lag_begin(lag, rollout) + 1;

    if (ticks <= 0)
        return 0;
    return tick >= rollout || lag->segment == 0 ? INT64_MAX : ticks * lag->segment;
}
