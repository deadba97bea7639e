/*
 * rows.c - the toy's estimator and reward, a function each.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/example_extension/rows.h"

#include "engine/rl/estimator.h"
#include "engine/rl/reward/reward_functions.h"

#include "base/invar_banned.h"

/* The reward at the first token that counts, gamma times as much at each of the others. */
void invar_toy_estimate(invar_advantage_state *e, int64_t sample)
{
    float a = e->reward[sample];

    for (int64_t t = e->batch->start[sample]; t < e->batch->start[sample + 1]; t++) {
        if (!e->batch->mask[t])
            continue;
        e->advantage[t] = e->returns[t] = a;
        a = e->options->gamma * a;
    }
}

/* 1 when response and label are equally long. */
invar_status invar_toy_judge(double *out, const invar_reward_input *c)
{
    *out = c->response.length == c->label.length ? 1.0 : 0.0;
    return INVAR_OK;
}
