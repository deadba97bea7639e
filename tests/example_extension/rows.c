/*
 * rows.c - functions of the example estimator and reward.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/example_extension/rows.h"

#include "engine/rl/estimator.h"
#include "engine/rl/reward/reward_functions.h"

#include "base/invar_banned.h"

/* The advantage is the reward at the first unmasked token, times gamma at each further one. */
void invar_toy_estimate(invar_advantage_state *e, int64_t sample)
{
    float a = e->reward[sample];

    for (int64_t t = e->batch->offsets[sample]; t < e->batch->offsets[sample + 1]; t++) {
        if (!e->batch->mask[t])
            continue;
        e->advantage[t] = e->returns[t] = a;
        a = e->options->gamma * a;
    }
}

/* The reward is 1 if response and label have the same length. */
invar_status invar_toy_judge(double *out, const invar_reward_input *c)
{
    *out = c->response.length == c->label.length ? 1.0 : 0.0;
    return INVAR_OK;
}
