/*
 * kl.c - the estimators of KL at one token, and their derivatives.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/rl/kl.h"

#include "kernels-deterministic/math/elementary.h"

#include "base/invar_banned.h"

static const float LOG_RATIO_LIMIT = 20.0f;
static const float LOW_VAR_LIMIT = 10.0f;

invar_ratio invar_ratio_of(float log_ratio)
{
    float low = log_ratio < -LOG_RATIO_LIMIT ? -LOG_RATIO_LIMIT : log_ratio;
    float x = low > LOG_RATIO_LIMIT ? LOG_RATIO_LIMIT : low;
    invar_ratio ratio = {invar_exp(x), x != log_ratio};

    return ratio;
}

/*
 * exp(y) - 1 - y. Near 0 the plain expression is all rounding error, of either sign; the series
 * keeps it accurate and not negative.
 */
static float exp_rest(float y)
{
    float p = 0x1.71de3ap-19f; // 1 / 9!

    if (invar_abs_f32(y) > 0.5f)
        return (invar_exp(y) - 1.0f) - y;
    p = invar_fmaf(p, y, 0x1.a01a02p-16f); // 1 / 8!
    p = invar_fmaf(p, y, 0x1.a01a02p-13f);
    p = invar_fmaf(p, y, 0x1.6c16c2p-10f);
    p = invar_fmaf(p, y, 0x1.111112p-7f);
    p = invar_fmaf(p, y, 0x1.555556p-5f);
    p = invar_fmaf(p, y, 0x1.555556p-3f);
    p = invar_fmaf(p, y, 0.5f);
    return (y * y) * p;
}

/* Before the last clamp of low_var_kl, which comes after a ratio. */
static invar_kl_term estimate(invar_kl type, float logp, float base)
{
    float x = logp - base;
    float y = base - logp;
    invar_kl_term term = {x, 1.0f};

    switch (type) {
    case INVAR_KL_K1: break;
    case INVAR_KL_K2:
        term.value = (x * x) * 0.5f;
        term.slope = x;
        break;
    case INVAR_KL_K3:
        term.value = exp_rest(y);
        term.slope = -(y + term.value);
        break;
    case INVAR_KL_LOW_VAR:
        y = y < -LOG_RATIO_LIMIT ? -LOG_RATIO_LIMIT : y;
        y = y > LOG_RATIO_LIMIT ? LOG_RATIO_LIMIT : y;
        term.value = exp_rest(y);
        term.slope = y == base - logp ? -(y + term.value) : 0.0f;
        break;
    }
    return term;
}

static invar_kl_term bound(invar_kl type, invar_kl_term term)
{
    if (type == INVAR_KL_LOW_VAR && invar_abs_f32(term.value) > LOW_VAR_LIMIT) {
        term.value = term.value > 0.0f ? LOW_VAR_LIMIT : -LOW_VAR_LIMIT;
        term.slope = 0.0f;
    }
    return term;
}

invar_kl_term invar_kl_at(invar_kl type, float logp, float base)
{
    return bound(type, estimate(type, logp, base));
}

invar_kl_term invar_kl_unbiased(invar_kl type, float logp, float base, float old)
{
    invar_kl_term term = estimate(type, logp, base);
    invar_ratio ratio = invar_ratio_of(logp - old);
    float moving = ratio.cut ? 0.0f : term.value;

    term.slope = ratio.value * (term.slope + moving);
    term.value = ratio.value * term.value;
    return bound(type, term);
}
