/*
 * loss.c - tests of the loss: exact on-policy, independent of the grouping, strict about bad input.
 *
 * Gradients of on-policy samples, clip limits and counts are compared with closed forms. Calls with
 * groups of any size and order must give the bits of one call. Accuracy is tested in torch.c and
 * gradient.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/unit/engine/rl/batch.h"

static fixture f;
static float dnow[TOKENS], dentropy[TOKENS], grouped_dnow[TOKENS], grouped_dentropy[TOKENS];

/* ---- on-policy ------------------------------------------------------------------------------- */

static void make_on_policy(void)
{
    fixture_init(&f, 1, 40);
    memcpy(f.now, f.old_logp, sizeof f.now);
    memcpy(f.ref_logp, f.old_logp, sizeof f.now);
    memcpy(f.rollout_logp, f.old_logp, sizeof f.now);
}

/* On-policy the ratio is 1 and the KL is 0, so the gradient is -advantage over the token count. */
static void check_on_policy(const invar_rl_options *options)
{
    invar_loss *loss = run_whole(&f, options, dnow, dentropy);

    assert_true(metric(loss, "train/ppo_kl") == 0.0);
    assert_true(metric(loss, "train/kl_loss") == 0.0);
    assert_true(metric(loss, "train/pg_clipfrac") == 0.0);
    assert_true(metric(loss, "train/ess_ratio") == 1.0);
    assert_true(metric(loss, "train/train_rollout_logprob_abs_diff") == 0.0);
    assert_true(metric(loss, "train/train_rollout_kl") == 0.0);
    for (int64_t i = 0; i < SAMPLES; i++) {
        float count = 0.0f, factor;
        for (int64_t t = f.start[i]; t < f.start[i + 1]; t++)
            count += f.mask[t];
        factor = 1.0f / ((count < 1.0f ? 1.0f : count) * (float)SAMPLES);
        for (int64_t t = f.start[i]; t < f.start[i + 1]; t++) {
            float expected = f.mask[t] ? -f.advantage[t] * factor : 0.0f;
            if (options->estimator != INVAR_ESTIMATOR_GSPO && options->kl.type != INVAR_KL_K1)
                assert_true(dnow[t] == expected);
        }
    }
    invar_loss_free(loss);
}

static void test_rl_loss__on_policy_is_exact(void **state)
{
    invar_rl_options options = usual_options();

    (void)state;
    make_on_policy();
    // the mean of ess_ratio is exact only if every sample has unmasked tokens
    memset(f.mask, 1, sizeof f.mask);
    options.kl.use_loss = true;
    options.kl.loss_coef = 0.5f;
    for (int kind = INVAR_KL_K1; kind <= INVAR_KL_LOW_VAR; kind++) {
        options.kl.type = (invar_kl)kind;
        for (int variant = 0; variant < 4; variant++) {
            options.kl.unbiased = variant & 1;
            options.estimator = variant & 2 ? INVAR_ESTIMATOR_GSPO : INVAR_ESTIMATOR_GRPO;
            check_on_policy(&options);
        }
    }
    options.mis.use = true;
    options.mis.high = 2.0f;
    options.mis.rs.use = options.mis.batch_normalize = true;
    options.mis.rs.veto = 1e-4f;
    check_on_policy(&options);

    // control: one bit of one log-prob changes the metrics
    f.now[3] = nextafterf(f.now[3], 0.0f);
    invar_loss *loss = run_whole(&f, &options, dnow, dentropy);
    assert_true(metric(loss, "train/ppo_kl") != 0.0);
    invar_loss_free(loss);
}

/* ---- grouping -------------------------------------------------------------------------------- */

enum { VARIANTS = 9 };

static invar_rl_options variant(int number)
{
    invar_rl_options o = usual_options();

    o.entropy_coef = 0.01f;
    o.kl.use_loss = true;
    o.kl.loss_coef = 0.1f;
    o.per_token_loss = number % 2;
    o.estimator = number % 3 == 1 ? INVAR_ESTIMATOR_GSPO : INVAR_ESTIMATOR_GRPO;
    o.tis.use = number == 2 || number == 3;
    o.tis.high = 1.3f;
    o.mis.use = number > 3 && number < 7;
    o.mis.level = (invar_mis_level)(number % 3);
    o.mis.mode = (invar_mis_mode)(number / 2 % 3);
    o.mis.high = 1.5f;
    o.mis.rs.use = number > 4;
    o.mis.batch_normalize = true;
    o.opsm.use = number == 7;
    o.opsm.delta = 0.001f;
    o.loss = number == 8 ? INVAR_LOSS_VALUE : INVAR_LOSS_POLICY;
    o.clip.value = 0.2f;
    return o;
}

/* Computes the loss in calls of `size` samples, with `backwards` the last samples first. */
static invar_loss *run_grouped(const invar_rl_options *options, int64_t size, bool backwards)
{
    int64_t calls = (SAMPLES + size - 1) / size;
    invar_loss *loss;

    memset(grouped_dnow, 0xFF, sizeof grouped_dnow);
    memset(grouped_dentropy, 0xFF, sizeof grouped_dentropy);
    assert_ok(invar_loss_new(&loss, &f.batch, options, f.advantage, f.returns));
    for (int64_t call = 0; call < calls; call++) {
        int64_t first = (backwards ? calls - 1 - call : call) * size;
        int64_t count = first + size > SAMPLES ? SAMPLES - first : size, at = f.start[first];
        assert_ok(invar_loss_run(loss, first, count, f.now + at, f.entropy + at, grouped_dnow + at,
                                 grouped_dentropy + at));
    }
    return loss;
}

static void check_same_metrics(invar_loss *a, invar_loss *b)
{
    const invar_loss_metric *x, *y;
    size_t n, m;

    assert_ok(invar_loss_metrics(&x, &n, a));
    assert_ok(invar_loss_metrics(&y, &m, b));
    assert_int_equal(n, m);
    for (size_t i = 0; i < n; i++) {
        assert_string_equal(x[i].name, y[i].name);
        assert_memory_equal(&x[i].value, &y[i].value, sizeof(double));
    }
}

static void test_rl_loss__bits_invariant_to_grouping(void **state)
{
    (void)state;
    for (int seed = 0; seed < invar_test_count(3, 100); seed++) {
        fixture_init(&f, (uint64_t)(100 + 20 * seed), seed % 2 ? LONGEST : 9);
        for (int number = 0; number < VARIANTS; number++) {
            invar_rl_options options = variant(number);
            invar_loss *expected = run_whole(&f, &options, dnow, dentropy);
            for (int64_t size = 1; size <= SAMPLES; size++) {
                invar_loss *grouped = run_grouped(&options, size, size % 2);
                invar_assert_bits_f32(grouped_dnow, dnow, f.tokens, "dL/dnow");
                invar_assert_bits_f32(grouped_dentropy, dentropy, f.tokens, "dL/dentropy");
                check_same_metrics(grouped, expected);
                invar_loss_free(grouped);
            }
            invar_loss_free(expected);
        }
    }
}

/* Control: half of the samples as a step of their own have other gradients. */
static void test_rl_loss__token_count_is_of_the_step(void **state)
{
    (void)state;
    fixture_init(&f, 7, 30);
    for (int number = 1; number < 8; number += 2) {
        invar_rl_options options = variant(
            number); // per_token_loss is set: gradients are divided by the step's token count
        invar_rl_batch first = f.batch;
        invar_loss *loss = run_whole(&f, &options, dnow, dentropy);
        invar_loss_free(loss);
        first.samples = SAMPLES / 2;
        assert_ok(invar_loss_new(&loss, &first, &options, f.advantage, f.returns));
        assert_ok(
            invar_loss_run(loss, 0, SAMPLES / 2, f.now, f.entropy, grouped_dnow, grouped_dentropy));
        assert_true(
            invar_bits_differ(grouped_dnow, dnow, (size_t)f.start[SAMPLES / 2] * sizeof(float)));
        invar_loss_free(loss);
    }
}

/* The gradient of a token depends on its own sample only, and not on masked tokens. */
static void test_rl_loss__samples_are_independent(void **state)
{
    invar_rl_options options = variant(2);
    invar_loss *loss;

    (void)state;
    fixture_init(&f, 8, 30);
    loss = run_whole(&f, &options, dnow, dentropy);
    invar_loss_free(loss);
    for (int64_t t = f.start[5]; t < f.start[6]; t++)
        f.now[t] -= 0.5f;
    for (int64_t t = 0; t < f.tokens; t++)
        f.now[t] = f.mask[t] ? f.now[t] : NAN; // masked tokens have no effect
    loss = run_whole(&f, &options, grouped_dnow, grouped_dentropy);
    invar_loss_free(loss);
    invar_assert_bits_f32(grouped_dnow, dnow, f.start[5], "samples before");
    invar_assert_bits_f32(grouped_dnow + f.start[6], dnow + f.start[6], f.tokens - f.start[6],
                          "samples behind");
    assert_true(invar_bits_differ(grouped_dnow + f.start[5], dnow + f.start[5],
                                  (size_t)(f.start[6] - f.start[5]) * sizeof(float)));
}

/* ---- corners of the clip --------------------------------------------------------------------- */

static float gradient_of(float log_ratio, float advantage, const invar_rl_options *options)
{
    static const int64_t start[] = {0, 1};
    static const uint8_t mask[] = {1};
    float old = -1.0f, now = old + log_ratio, slope;
    invar_rl_batch batch = {.samples = 1, .offsets = start, .mask = mask, .old_logp = &old};
    invar_loss *loss;

    assert_ok(invar_loss_new(&loss, &batch, options, &advantage, NULL));
    assert_ok(invar_loss_run(loss, 0, 1, &now, NULL, &slope, NULL));
    invar_loss_free(loss);
    return slope;
}

static void test_rl_loss__clip_limits(void **state)
{
    invar_rl_options o = usual_options();
    float ratio;

    (void)state;
    assert_true(gradient_of(0.0f, 2.0f, &o) == -2.0f);
    assert_true(gradient_of(0.0f, -2.0f, &o) == 2.0f);
    assert_true(gradient_of(0.5f, 2.0f, &o) ==
                0.0f); // ratio above the range, positive advantage: clipped
    assert_true(gradient_of(0.5f, -2.0f, &o) >
                3.0f); // ratio above the range, negative advantage: not clipped
    assert_true(gradient_of(-0.5f, -2.0f, &o) == 0.0f);
    assert_true(gradient_of(-0.5f, 2.0f, &o) < -1.0f);
    assert_true(gradient_of(0.23f, 2.0f, &o) < 0.0f); // below 1.28 but above 1.2: asymmetric
    assert_true(gradient_of(-0.23f, -2.0f, &o) == 0.0f);

    // at the limit itself both branches are equal, and the gradient is not clipped
    o.clip.high = 0.25f;
    ratio = 1.25f;
    for (float x = 0.2231f; x < 0.2232f; x = nextafterf(x, 1.0f)) {
        float slope = gradient_of(x, 1.0f, &o);
        if (slope == -ratio)
            break;
        assert_true(slope > -ratio);
        assert_true(x < 0.22315f);
    }

    // dual clip bounds the loss of a large ratio with a negative advantage
    o.clip.dual = 3.0f;
    assert_true(gradient_of(1.0f, -2.0f, &o) > 5.0f);
    assert_true(gradient_of(1.2f, -2.0f, &o) == 0.0f);
    assert_true(gradient_of(-1.2f, 2.0f, &o) < 0.0f);

    // beyond a log-ratio of 20, the ratio is constant
    o.clip.dual = 0.0f;
    assert_true(gradient_of(20.0f, -1.0f, &o) > 4e8f);
    assert_true(gradient_of(21.0f, -1.0f, &o) == 0.0f);
}

/* ---- counts ---------------------------------------------------------------------------------- */

static void test_rl_loss__counts_unmasked_tokens(void **state)
{
    invar_rl_options options = usual_options();
    int64_t counted = 0;
    invar_loss *loss;

    (void)state;
    fixture_init(&f, 9, 12);
    memset(f.mask + f.start[2], 0, (size_t)(f.start[3] - f.start[2]));
    for (int64_t t = 0; t < f.tokens; t++)
        counted += f.mask[t];
    options.loss = INVAR_LOSS_SFT;
    options.per_token_loss = true;
    loss = run_whole(&f, &options, dnow, dentropy);
    for (int64_t t = 0; t < f.tokens; t++)
        assert_true(dnow[t] == (f.mask[t] ? -1.0f / (float)counted : 0.0f));
    invar_loss_free(loss);

    options.loss = INVAR_LOSS_POLICY; // a step with all tokens masked has loss 0 and gradients 0
    memset(f.mask, 0, sizeof f.mask);
    loss = run_whole(&f, &options, dnow, dentropy);
    assert_true(metric(loss, "train/loss") == 0.0);
    for (int64_t t = 0; t < f.tokens; t++)
        assert_true(dnow[t] == 0.0f);
    invar_loss_free(loss);
}

/* ---- invalid input --------------------------------------------------------------------------- */

/* Computes the loss with `value` at one token of sample 2 in an array. */
static invar_status run_poisoned(float *array, int64_t token, float value)
{
    invar_rl_options options = variant(5);
    float *element = &array[f.start[2] + token], original = *element;
    invar_loss *loss = NULL;
    invar_status status;

    *element = value;
    status = invar_loss_new(&loss, &f.batch, &options, f.advantage, f.returns);
    if (status == INVAR_OK)
        status = invar_loss_run(loss, 0, SAMPLES, f.now, f.entropy, dnow, dentropy);
    invar_loss_free(loss);
    *element = original;
    return status;
}

static void test_rl_loss__names_what_is_not_finite(void **state)
{
    float *arrays[] = {f.old_logp, f.rollout_logp, f.ref_logp, f.now, f.entropy, f.advantage};
    const char *const names[] = {"old log-prob",     "rollout's", "reference",
                                 "training forward", "entropy",   "advantage"};
    const float values[] = {NAN, INFINITY, -INFINITY};

    (void)state;
    fixture_init(&f, 10, 20);
    f.start[3] = f.start[2] + 5 > f.start[3] ? f.start[2] + 5 : f.start[3];
    for (int64_t i = 4; i <= SAMPLES; i++)
        f.start[i] = f.start[i] < f.start[i - 1] ? f.start[i - 1] : f.start[i];
    f.tokens = f.start[SAMPLES];
    memset(f.mask, 1, sizeof f.mask);
    f.mask[f.start[2] + 3] = 0;
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        for (int j = 0; j < 3; j++) {
            assert_fails(run_poisoned(arrays[i], 4, values[j]), INVAR_E_STATE, names[i]);
            assert_non_null(strstr(invar_error_last()->message, "sample 2, response token 4"));
            assert_ok(run_poisoned(arrays[i], 3, values[j]));
        }
    }
    // finite numbers with a product that is not finite
    assert_fails(run_poisoned(f.advantage, 4, -3e38f), INVAR_E_STATE, "sample 2, response token 4");
}

static void test_rl_loss__every_sample_once(void **state)
{
    invar_rl_options options = usual_options();
    const invar_loss_metric *metrics;
    invar_loss *loss;
    size_t count;

    (void)state;
    fixture_init(&f, 11, 10);
    assert_ok(invar_loss_new(&loss, &f.batch, &options, f.advantage, NULL));
    assert_ok(invar_loss_run(loss, 0, 2, f.now, NULL, dnow, NULL));
    assert_fails(invar_loss_metrics(&metrics, &count, loss), INVAR_E_STATE, "sample 2 is missing");
    assert_fails(invar_loss_run(loss, 1, 1, f.now, NULL, dnow, NULL), INVAR_E_STATE,
                 "sample 1 was already taken");
    assert_fails(invar_loss_run(loss, SAMPLES, 1, f.now, NULL, dnow, NULL), INVAR_E_INVALID, "of");
    invar_loss_free(loss);
}

static void test_rl_loss__requires_its_inputs(void **state)
{
    invar_rl_options options = usual_options();
    invar_rl_batch batch;
    invar_loss *loss;

    (void)state;
    fixture_init(&f, 12, 10);
    batch = f.batch;
    batch.old_logp = NULL;
    assert_fails(invar_loss_new(&loss, &batch, &options, f.advantage, NULL), INVAR_E_INVALID,
                 "old log-prob");
    assert_fails(invar_loss_new(&loss, &f.batch, &options, NULL, NULL), INVAR_E_INVALID,
                 "advantages");
    batch = f.batch;
    batch.ref_logp = batch.rollout_logp = NULL;
    options.kl.use_loss = true;
    assert_fails(invar_loss_new(&loss, &batch, &options, f.advantage, NULL), INVAR_E_INVALID,
                 "use-kl-loss");
    options = usual_options();
    options.tis.use = true;
    assert_fails(invar_loss_new(&loss, &batch, &options, f.advantage, NULL), INVAR_E_INVALID,
                 "use-tis");
    options = usual_options();
    options.clip.dual = 0.9f;
    assert_fails(invar_loss_new(&loss, &f.batch, &options, f.advantage, NULL), INVAR_E_INVALID,
                 "eps-clip-c");
    options = usual_options();
    options.tis.use = true;
    options.tis.low = 3.0f;
    options.tis.high = 2.0f;
    assert_fails(invar_loss_new(&loss, &f.batch, &options, f.advantage, NULL), INVAR_E_INVALID,
                 "3 to 2: nothing");
    options = usual_options();
    options.mis.use = true; // mis_high is missing
    assert_fails(invar_loss_new(&loss, &f.batch, &options, f.advantage, NULL), INVAR_E_INVALID,
                 "MIS");
    options = usual_options();
    options.loss = INVAR_LOSS_CUSTOM;
    assert_fails(invar_loss_new(&loss, &f.batch, &options, f.advantage, NULL), INVAR_E_INVALID,
                 "plug-in");
    options = usual_options();
    options.entropy_coef = 0.1f;
    assert_ok(invar_loss_new(&loss, &f.batch, &options, f.advantage, NULL));
    assert_fails(invar_loss_run(loss, 0, 1, f.now, NULL, dnow, NULL), INVAR_E_INVALID, "entropies");
    invar_loss_free(loss);
    batch = f.batch;
    options = usual_options();
    batch.samples = 0;
    assert_fails(invar_loss_new(&loss, &batch, &options, f.advantage, NULL), INVAR_E_INVALID,
                 "at least one");
    f.start[3] = f.start[4] + 1;
    assert_fails(invar_loss_new(&loss, &f.batch, &options, f.advantage, NULL), INVAR_E_INVALID,
                 "starts must ascend");
}

/* ---- custom loss ----------------------------------------------------------------------------- */

/* The loss of REINFORCE, -advantage * logp. Fails at sample 5 if the call count is negative. */
static invar_status reinforce_loss(float *loss_out, float *dlogp_out,
                                   const invar_loss_sample *sample, void *payload)
{
    int *calls = payload;

    ++*calls;
    if (sample->sample == 5 && *calls < 0)
        return INVAR_FAIL(INVAR_E_IO, 0, "the plug-in is gone");
    for (int64_t t = 0; t < sample->tokens; t++) {
        loss_out[t] = -sample->advantage[t] * sample->logp[t];
        dlogp_out[t] = -sample->advantage[t];
    }
    return INVAR_OK;
}

static void test_rl_loss__custom_loss(void **state)
{
    int calls = 0;
    invar_loss_custom custom = {reinforce_loss, &calls};
    invar_rl_options options = usual_options();
    invar_loss *loss;

    (void)state;
    fixture_init(&f, 13, 10);
    options.loss = INVAR_LOSS_CUSTOM;
    options.custom = &custom;
    loss = run_whole(&f, &options, dnow, dentropy);
    assert_int_equal(calls, SAMPLES);
    invar_loss_free(loss);

    // on-policy, the policy loss has the same gradient
    options.loss = INVAR_LOSS_POLICY;
    memcpy(f.now, f.old_logp, sizeof f.now);
    loss = run_whole(&f, &options, grouped_dnow, grouped_dentropy);
    invar_loss_free(loss);
    for (int64_t t = 0; t < f.tokens; t++)
        assert_true(grouped_dnow[t] == dnow[t]);

    options.loss = INVAR_LOSS_CUSTOM;
    calls = -100;
    assert_ok(invar_loss_new(&loss, &f.batch, &options, f.advantage, NULL));
    assert_fails(invar_loss_run(loss, 0, SAMPLES, f.now, NULL, dnow, NULL), INVAR_E_IO, "is gone");
    invar_loss_free(loss);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rl_loss__on_policy_is_exact),
        cmocka_unit_test(test_rl_loss__bits_invariant_to_grouping),
        cmocka_unit_test(test_rl_loss__token_count_is_of_the_step),
        cmocka_unit_test(test_rl_loss__samples_are_independent),
        cmocka_unit_test(test_rl_loss__clip_limits),
        cmocka_unit_test(test_rl_loss__counts_unmasked_tokens),
        cmocka_unit_test(test_rl_loss__names_what_is_not_finite),
        cmocka_unit_test(test_rl_loss__every_sample_once),
        cmocka_unit_test(test_rl_loss__requires_its_inputs),
        cmocka_unit_test(test_rl_loss__custom_loss),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
