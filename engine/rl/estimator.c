/*
 * estimator.c - advantage estimators: GRPO, GSPO, REINFORCE++, PPO (GAE), on-policy distillation.
 *
 * The table comes from estimators.def; a function may serve several rows. Each operator is one fp32
 * operation, in the order of docs/arithmetic.md, section 13; reordering changes bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/rl/estimator.h"

#include "engine/rl/kl.h"

#include "base/invar_banned.h"

static const invar_estimator_traits facts[INVAR_ESTIMATOR_COUNT] = {
#define INVAR_ESTIMATOR(ID, NAME, ...) [INVAR_ESTIMATOR_##ID] = {__VA_ARGS__},
#include "engine/rl/estimators.def"
#undef INVAR_ESTIMATOR
};

static const char *const names[INVAR_ESTIMATOR_COUNT] = {
#define INVAR_ESTIMATOR(ID, NAME, ...) [INVAR_ESTIMATOR_##ID] = (NAME),
#include "engine/rl/estimators.def"
#undef INVAR_ESTIMATOR
};

const invar_choices invar_estimator_choices = {names, INVAR_ESTIMATOR_COUNT};

const invar_estimator_traits *invar_estimator_traits_of(invar_estimator estimator)
{
    INVAR_CHECK((unsigned)estimator < INVAR_ESTIMATOR_COUNT);
    return &facts[estimator];
}

/* Returns kl_coef times the KL divergence at token t; +0 if the coefficient is 0. */
static float kl_penalty(const invar_advantage_state *e, int64_t t)
{
    const invar_rl_batch *batch = e->batch;
    invar_kl_term term;

    if (e->options->kl.reward_coef == 0.0f)
        return 0.0f;
    term = invar_kl_at(e->options->kl.type, batch->old_logp[t], batch->ref_logp[t]);
    return e->options->kl.reward_coef * term.value;
}

void invar_estimate_reward(invar_advantage_state *e, int64_t sample)
{
    for (int64_t t = e->batch->offsets[sample]; t < e->batch->offsets[sample + 1]; t++) {
        float a = e->traits->needs_reward ? e->reward[sample] : 0.0f;
        if (!e->batch->mask[t])
            continue;
        e->advantage[t] = e->traits->penalized ? a - kl_penalty(e, t) : a;
        e->returns[t] = e->advantage[t];
    }
}

/*
 * Returns the reward of token t: minus its KL penalty, plus the sample's reward at the last
 * unmasked token.
 */
static float token_reward(const invar_advantage_state *e, int64_t sample, int64_t t, bool last)
{
    float g = -kl_penalty(e, t);

    return last ? g + e->reward[sample] : g;
}

void invar_estimate_return(invar_advantage_state *e, int64_t sample)
{
    float sum = 0.0f;
    bool last = true;

    for (int64_t t = e->batch->offsets[sample + 1] - 1; t >= e->batch->offsets[sample]; t--) {
        bool counts = e->batch->mask[t] != 0;
        float g = counts ? token_reward(e, sample, t, last) : 0.0f;
        sum = g + e->options->gamma * sum;
        if (!counts)
            continue;
        last = false;
        e->advantage[t] = sum;
        e->returns[t] = sum;
    }
}

void invar_estimate_gae(invar_advantage_state *e, int64_t sample)
{
    const float *value = e->batch->values;
    float gamma = e->options->gamma, decay = gamma * e->options->lambd;
    float next_value = 0.0f, next = 0.0f;
    bool last = true;

    for (int64_t t = e->batch->offsets[sample + 1] - 1; t >= e->batch->offsets[sample]; t--) {
        if (e->batch->mask[t]) {
            float delta = (token_reward(e, sample, t, last) + gamma * next_value) - value[t];
            next = delta + decay * next;
            next_value = value[t];
            last = false;
            e->advantage[t] = next;
            e->returns[t] = next + value[t];
        }
        if (e->batch->branch_start &&
            e->batch->branch_start[t]) { // the previous branch ends before this token
            next_value = next = 0.0f;
            last = true;
        }
    }
}
