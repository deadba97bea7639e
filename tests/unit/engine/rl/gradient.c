/*
 * gradient.c - tests of dL/dlogp against finite differences of a naive loss in float64.
 *
 * The naive loss is also compared with the metric train/loss. Control: derivatives shifted by one
 * token must be detected.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/unit/engine/rl/batch.h"

static fixture f;
static float dnow[TOKENS], dentropy[TOKENS];

/* ---- naive loss ------------------------------------------------------------------------------ */

static double kl_of(invar_kl type, double x)
{
    switch (type) {
    case INVAR_KL_K1: return x;
    case INVAR_KL_K2: return x * x / 2;
    default: return expm1(-x) + x;
    }
}

static double mean_distance(const double *now, int64_t i)
{
    double sum = 0, count = 0;

    for (int64_t t = f.start[i]; t < f.start[i + 1]; t++) {
        sum += f.mask[t] ? (double)f.old_logp[t] - now[t] : 0;
        count += f.mask[t];
    }
    return sum / fmax(count, 1);
}

static double policy_token(const invar_rl_options *o, double x, double a)
{
    double ratio = exp(x), low = 1 - (double)o->clip.low, high = 1 + (double)o->clip.high;
    double l = fmax(-ratio * a, -fmin(fmax(ratio, low), high) * a);

    return o->clip.dual > 0 && a < 0 ? fmin(l, -(double)o->clip.dual * a) : l;
}

static double token_loss(const invar_rl_options *o, const double *now, int64_t i, int64_t t)
{
    double x = o->estimator == INVAR_ESTIMATOR_GSPO ? -mean_distance(now, i)
                                                    : now[t] - (double)f.old_logp[t];
    double l, k = kl_of(o->kl.type, now[t] - (double)f.ref_logp[t]);

    if (o->loss == INVAR_LOSS_SFT)
        return -now[t];
    if (o->loss == INVAR_LOSS_VALUE) {
        double old = (double)f.values[t], clip = (double)o->clip.value, r = (double)f.returns[t];
        double cut = fmin(fmax(now[t], old - clip), old + clip);
        return fmax((now[t] - r) * (now[t] - r), (cut - r) * (cut - r));
    }
    l = policy_token(o, x, (double)f.advantage[t]);
    k *= o->kl.unbiased ? exp(now[t] - (double)f.old_logp[t]) : 1;
    return o->kl.use_loss ? l + (double)o->kl.loss_coef * k : l;
}

static double loss_of(const invar_rl_options *o, const double *now, double *count_out)
{
    double total = 0, all = 0;

    for (int64_t i = 0; i < SAMPLES; i++) {
        double sum = 0, count = 0;
        for (int64_t t = f.start[i]; t < f.start[i + 1]; t++) {
            sum += f.mask[t] ? token_loss(o, now, i, t) : 0;
            count += f.mask[t];
        }
        total += o->per_token_loss ? sum : sum / fmax(count, 1) / SAMPLES;
        all += count;
    }
    *count_out = all;
    return o->per_token_loss ? total / fmax(all, 1) : total;
}

/* Sets the central difference. Returns false at a kink, where left and right slopes disagree. */
static bool central_difference(double *out, const invar_rl_options *o, double *now, int64_t t)
{
    const double h = 1e-6;
    double original = now[t], count, center = loss_of(o, now, &count), left, right;

    now[t] = original + h;
    right = (loss_of(o, now, &count) - center) / h;
    now[t] = original - h;
    left = (center - loss_of(o, now, &count)) / h;
    now[t] = original;
    *out = (left + right) / 2;
    return fabs(left - right) < 1e-4 * (fabs(left) + fabs(right)) + 1e-7;
}

/* ---- sweeps ---------------------------------------------------------------------------------- */

enum { VARIANTS = 24 };

static invar_rl_options variant(int n)
{
    invar_rl_options o = usual_options();

    o.kl.use_loss = n % 2;
    o.kl.loss_coef = 0.3f;
    o.kl.type = (invar_kl)(n / 2 % 4);
    o.kl.unbiased = n % 4 == 3;
    o.estimator = n % 3 == 2 ? INVAR_ESTIMATOR_GSPO : INVAR_ESTIMATOR_GRPO;
    o.clip.low = o.clip.high = n % 3 == 2 ? 0.05f : 0.2f;
    o.clip.dual = n % 5 == 1 ? 1.2f : 0.0f;
    o.per_token_loss = n / 4 % 2;
    o.loss = n == 20 ? INVAR_LOSS_SFT : n == 22 ? INVAR_LOSS_VALUE : INVAR_LOSS_POLICY;
    o.clip.value = 0.3f;
    return o;
}

/*
 * Compares the derivative of each token with that at distance `shift`, 0 or 1 for the control.
 * Returns the number of compared tokens and sets the number of errors.
 */
static int64_t check_derivatives(const invar_rl_options *o, int64_t shift, int64_t *errors_out)
{
    static double now[TOKENS];
    int64_t compared = 0;
    invar_loss *loss = run_whole(&f, o, dnow, dentropy);
    double count, value;

    for (int64_t t = 0; t < f.tokens; t++)
        now[t] = (double)f.now[t];
    assert_true(fabs(metric(loss, "train/loss") - loss_of(o, now, &count)) < 1e-5);
    *errors_out = 0;
    for (int64_t t = 0; t < f.tokens; t++) {
        if (!central_difference(&value, o, now, t))
            continue;
        compared++;
        *errors_out +=
            fabs((double)dnow[(t + shift) % f.tokens] - value) > 2e-5 * fabs(value) + 1e-7;
    }
    invar_loss_free(loss);
    return compared;
}

static void test_rl_gradient__accuracy_vs_differences(void **state)
{
    int64_t errors, all = 0;

    (void)state;
    for (int seed = 0; seed < invar_test_count(2, 60); seed++) {
        fixture_init(&f, (uint64_t)(1000 + 50 * seed), 6);
        for (int n = 0; n < VARIANTS; n++) {
            invar_rl_options o = variant(n);
            all += check_derivatives(&o, 0, &errors);
            if (errors > 0)
                fail_msg("variant %d, seed %d: %d derivatives are wrong", n, seed, (int)errors);
        }
    }
    assert_true(all > 1000);
    for (int n = 0; n < 6; n += 3) { // control: shifted by one token
        invar_rl_options o = variant(n);
        check_derivatives(&o, 1, &errors);
        assert_true(errors > 10);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rl_gradient__accuracy_vs_differences),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
