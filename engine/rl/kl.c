/*
 * kl.c - estimators of the KL divergence at one token, and their derivatives.
 *
 * The estimators of kls.def are k1, k2, k3 and low_var. A limit applies to the final value, after
 * the multiplication by a ratio. docs/arithmetic.md, section 13, has the order of operations.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/rl/kl.h"

#include "kernels-deterministic/math/elementary.h"

#include "base/invar_banned.h"

static const float LOG_RATIO_LIMIT = 20.0f;

invar_ratio invar_ratio_of(float log_ratio)
{
    float low = log_ratio < -LOG_RATIO_LIMIT ? -LOG_RATIO_LIMIT : log_ratio;
    float x = low > LOG_RATIO_LIMIT ? LOG_RATIO_LIMIT : low;
    invar_ratio ratio = {invar_exp(x), x != log_ratio};

    return ratio;
}

/*
 * Returns exp(y) - 1 - y. Near 0 the plain expression is dominated by rounding errors of either
 * sign; the series is accurate and never negative.
 */
static float exp_remainder(float y)
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

/* ---- estimators, before their limit ---------------------------------------------------------- */

static invar_kl_term k1(float logp, float base)
{
    return (invar_kl_term){logp - base, 1.0f};
}

static invar_kl_term k2(float logp, float base)
{
    float x = logp - base;

    return (invar_kl_term){(x * x) * 0.5f, x};
}

static invar_kl_term k3(float logp, float base)
{
    float y = base - logp, value = exp_remainder(y);

    return (invar_kl_term){value, -(y + value)};
}

static invar_kl_term low_var(float logp, float base)
{
    float far = base - logp;
    float low = far < -LOG_RATIO_LIMIT ? -LOG_RATIO_LIMIT : far;
    float y = low > LOG_RATIO_LIMIT ? LOG_RATIO_LIMIT : low;
    float value = exp_remainder(y);

    return (invar_kl_term){value, y == far ? -(y + value) : 0.0f};
}

static const invar_kl_traits kl_traits[INVAR_KL_COUNT] = {
#define INVAR_KL(ID, NAME, ...) [INVAR_KL_##ID] = {__VA_ARGS__},
#include "engine/rl/kls.def"
#undef INVAR_KL
};

static const char *const names[INVAR_KL_COUNT] = {
#define INVAR_KL(ID, NAME, ...) [INVAR_KL_##ID] = (NAME),
#include "engine/rl/kls.def"
#undef INVAR_KL
};

const invar_choices invar_kl_choices = {names, INVAR_KL_COUNT};

const invar_kl_traits *invar_kl_traits_of(invar_kl type)
{
    INVAR_CHECK((unsigned)type < INVAR_KL_COUNT);
    return &kl_traits[type];
}

static invar_kl_term limit_term(const invar_kl_traits *kl, invar_kl_term term)
{
    if (kl->limit > 0.0f && invar_abs_f32(term.value) > kl->limit) {
        term.value = term.value > 0.0f ? kl->limit : -kl->limit;
        term.slope = 0.0f;
    }
    return term;
}

invar_kl_term invar_kl_at(invar_kl type, float logp, float base)
{
    const invar_kl_traits *kl = invar_kl_traits_of(type);

    return limit_term(kl, kl->estimate(logp, base));
}

invar_kl_term invar_kl_unbiased(invar_kl type, float logp, float base, float old)
{
    const invar_kl_traits *kl = invar_kl_traits_of(type);
    invar_kl_term term = kl->estimate(logp, base);
    invar_ratio ratio = invar_ratio_of(logp - old);
    float moving = ratio.cut ? 0.0f : term.value;

    term.slope = ratio.value * (term.slope + moving);
    term.value = ratio.value * term.value;
    return limit_term(kl, term);
}
