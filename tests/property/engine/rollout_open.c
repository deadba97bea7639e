/*
 * rollout_open.c - a sample that joins a running rollout is the one that it is alone.
 *
 * Groups with their own sampling parameters join an open rollout in random order and at random
 * passes, next to others that are canceled in the middle, with hardly a page to spare, and with
 * drafts of n-grams, of a draft model or none. Each is compared bit by bit with a run of its group
 * alone without drafts. Control: the sampling parameters of another group give other samples.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>

#include "engine/sample/rollout/model_runner.h"
#include "tests/device/fake_gpu.h"
#include "tests/property/engine/rollout_variants.h"
#include "tests/unit/engine/sample/rollout/prompts.h"

enum { GROUPS = 7, EACH = 4, LONGEST = 11, RESPONSE = 16, CONTEXT = LONGEST + RESPONSE };

/* ---- settings -------------------------------------------------------------------------------- */

/* Returns the sampling parameters of group g. No two groups have equal ones. */
static invar_sampling_params sampling_of(int64_t g)
{
    invar_sampling_params p = PROMPTS_SAMPLING(RESPONSE);

    p.seed = 11 + (uint32_t)g % 3;
    p.temperature = g % 4 == 1 ? 0.0f : 0.6f + 0.1f * (float)g;
    p.top_k = g % 3 == 2 ? 20 : 0;
    p.top_p = g % 2 ? 0.9f : 1.0f;
    p.min_p = g % 5 == 3 ? 0.05f : 0.0f;
    p.max_response = RESPONSE - g;
    p.min_response = g % 3;
    p.n_stop_ids = g % 4 == 2 ? 0 : 6 - g % 3;
    return p;
}

/* The samples of one group. */
typedef struct group {
    invar_rl_sample *samples;
    int64_t count;
} group;

static group group_of(const invar_rl_samples *all, int64_t g)
{
    group out = {NULL, 0};

    for (int64_t i = 0; i < all->count; i++)
        if (all->items[i].group == g) {
            out.samples = out.samples ? out.samples : &all->items[i];
            out.count++;
        }
    return out;
}

static bool is_finished(const group *g)
{
    for (int64_t i = 0; i < g->count; i++)
        if (g->samples[i].finish == INVAR_FINISH_NONE)
            return false;
    return true;
}

/* Runs every group alone. */
static void run_alone(invar_rl_samples *out, const invar_model *model, const invar_device *dev)
{
    invar_rollout *rollout;

    assert_ok(prompts_new(out, GROUPS, EACH, LONGEST, model->spec.vocab));
    assert_ok(invar_rollout_new(&rollout, model, NULL, dev, &(invar_rollout_exec_options){0}));
    for (int64_t g = 0; g < GROUPS; g++) {
        const invar_sampling_params p = sampling_of(g);
        group current = group_of(out, g);
        assert_ok(invar_rollout_run(rollout, current.samples, current.count, &p, NULL, NULL));
    }
    invar_rollout_free(rollout);
}

/* ---- a stream of groups ---------------------------------------------------------------------- */

typedef struct stream {
    invar_rollout *rollout;
    const invar_model *model;
    const invar_rl_samples *expected;
    uint64_t seed, n_random; /* n_random counts the random numbers drawn */
    int64_t dropped;
    invar_sampling_params sampling[GROUPS]; /* must outlive the samples */
} stream;

static int64_t random_below(stream *c, int64_t below)
{
    return invar_test_random(c->seed, c->n_random++) % below;
}

static void run_pass(stream *c)
{
    assert_ok(invar_rollout_step(c->rollout));
}

/*
 * Every group joins once, in random order. Before that, a copy of it joins and is canceled,
 * possibly in the middle.
 */
static void run_all_groups(stream *c, const char *what)
{
    invar_rl_samples samples, canceled;
    int64_t order[GROUPS];
    bool running = true;

    assert_ok(prompts_new(&samples, GROUPS, EACH, LONGEST, c->model->spec.vocab));
    assert_ok(prompts_new(&canceled, GROUPS, EACH, LONGEST, c->model->spec.vocab));
    for (int64_t g = 0; g < GROUPS; g++)
        order[g] = g;
    for (int64_t g = GROUPS - 1; g > 0; g--) {
        int64_t other = random_below(c, g + 1), swapped = order[g];
        order[g] = order[other];
        order[other] = swapped;
    }
    for (int64_t i = 0; i < GROUPS; i++) {
        group current = group_of(&samples, order[i]),
              canceled_group = group_of(&canceled, order[i]);

        assert_ok(invar_rollout_add(c->rollout, canceled_group.samples, canceled_group.count,
                                    &c->sampling[order[i]]));
        for (int64_t n = random_below(c, 4); n > 0; n--)
            run_pass(c);
        c->dropped += !is_finished(&canceled_group);
        invar_rollout_cancel(c->rollout, canceled_group.samples, canceled_group.count);
        assert_ok(
            invar_rollout_add(c->rollout, current.samples, current.count, &c->sampling[order[i]]));
        for (int64_t n = random_below(c, 5); n > 0; n--)
            run_pass(c);
    }
    invar_rl_samples_reset(&canceled); // canceled samples are not compared
    for (int passes = 0; running; passes++) {
        running = false;
        for (int64_t g = 0; g < GROUPS; g++) {
            group current = group_of(&samples, g);
            running = running || !is_finished(&current);
        }
        if (running)
            run_pass(c);
        assert_true(passes < 10000);
    }
    prompts_assert_equal(&samples, c->expected, what);
    invar_rl_samples_reset(&samples);
}

/* Returns the speculation with a number. The draft model is the model itself. */
static invar_speculation speculation_of(int64_t number, const invar_model *model)
{
    const invar_speculation kinds[] = {
        {INVAR_SPECULATIVE_ALGORITHM_NONE, 0, {1, 1}, NULL},
        {INVAR_SPECULATIVE_ALGORITHM_NGRAM, 1 + number % 4, {1, 3}, NULL},
        {INVAR_SPECULATIVE_ALGORITHM_DRAFT, 1 + number % 3, {1, 1}, model}};

    return kinds[number % 3];
}

static void run_stream(const invar_rl_samples *expected, const invar_model *model,
                       const invar_device *dev, const rollout_variant *w, int64_t speculation_index,
                       int rounds)
{
    invar_rollout_exec_options limits = variant_limits(w, CONTEXT);
    invar_rollout_counters counted;
    stream c = {.model = model, .expected = expected, .seed = 31 + (uint64_t)(w - variants)};
    char what[160];

    limits.speculation = speculation_of(speculation_index, model);
    variant_describe(what, sizeof what, w);
    for (int64_t g = 0; g < GROUPS; g++)
        c.sampling[g] = sampling_of(g);
    assert_ok(invar_rollout_new(&c.rollout, model, NULL, dev, &limits));
    assert_ok(invar_rollout_open_stream(c.rollout, CONTEXT));
    for (int i = 0; i < rounds; i++)
        run_all_groups(&c, what);
    assert_true(c.dropped > 0);
    run_pass(&c); // retires the last sequence
    assert_int_equal(c.rollout->cache->n_free, c.rollout->cache->shape.pages);
    invar_rollout_get_counters(&counted, c.rollout);
    assert_int_equal(counted.accepted > 0,
                     limits.speculation.algorithm != INVAR_SPECULATIVE_ALGORITHM_NONE);
    invar_rollout_close(c.rollout);
    invar_rollout_free(c.rollout);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void check_variants(invar_test_model kind, invar_format format, invar_numerics numerics,
                           int64_t variant_step, int rounds)
{
    invar_rl_samples expected;
    invar_model *model;
    invar_device dev;

    invar_test_device_init(&dev, numerics, INVAR_CPU_PATH_SIMD, 1);
    model = invar_test_model_new(kind, format, 3, &dev);
    run_alone(&expected, model, &dev);
    invar_test_device_release(&dev);
    for (int64_t i = 0; i < VARIANTS; i += variant_step) {
        invar_test_device_init(&dev, numerics, INVAR_CPU_PATH_SIMD, variants[i].threads);
        for (int64_t speculation_index = 0; speculation_index < 3; speculation_index++)
            run_stream(&expected, model, &dev, &variants[i], i + speculation_index, rounds);
        invar_test_device_release(&dev);
    }
    invar_model_free(model);
    invar_rl_samples_reset(&expected);
}

static void test_rollout_open__other_groups_change_nothing(void **state)
{
    bool full = invar_test_full();

    (void)state;
    check_variants(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP32, INVAR_NUMERICS_IEEE, 1,
                   full ? 60 : 8);
    check_variants(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, INVAR_NUMERICS_SM90, full ? 1 : 5,
                   full ? 30 : 4);
    if (full)
        check_variants(INVAR_TEST_MODEL_WINDOW, INVAR_FORMAT_FP32, INVAR_NUMERICS_IEEE, 1, 20);
}

/* On the fake GPU, whose memory the host cannot access, with decode graphs. */
static void test_rollout_open__fake_gpu(void **state)
{
    invar_rl_samples expected;
    invar_model *model;
    invar_device dev, far;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    model = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP32, 3, &dev);
    run_alone(&expected, model, &dev);
    invar_model_free(model);
    far = (invar_device){.backend = invar_fake_gpu_backend(), .numerics = INVAR_NUMERICS_IEEE};
    assert_ok(invar_device_open(&far));
    model = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP32, 3, &far);
    for (int64_t speculation_index = 0; speculation_index < 3; speculation_index++) {
        run_stream(&expected, model, &far, &variants[2], speculation_index, 2);
        run_stream(&expected, model, &far, &variants[7], speculation_index, 2);
    }
    invar_model_free(model);
    invar_device_close(&far);
    invar_rl_samples_reset(&expected);
    invar_test_device_release(&dev);
}

/* Control: the parameters of another group give other samples. */
static void test_rollout_open__other_parameters_change_samples(void **state)
{
    invar_rl_samples expected, samples;
    const invar_sampling_params wrong = sampling_of(5);
    invar_rollout *rollout;
    invar_model *model;
    invar_device dev;
    group current, alone;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    model = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP32, 3, &dev);
    run_alone(&expected, model, &dev);
    assert_ok(prompts_new(&samples, GROUPS, EACH, LONGEST, model->spec.vocab));
    current = group_of(&samples, 6);
    alone = group_of(&expected, 6);
    assert_ok(invar_rollout_new(&rollout, model, NULL, &dev, &(invar_rollout_exec_options){0}));
    assert_ok(invar_rollout_open_stream(rollout, CONTEXT));
    assert_ok(invar_rollout_add(rollout, current.samples, current.count, &wrong));
    while (!is_finished(&current))
        assert_ok(invar_rollout_step(rollout));
    for (int64_t i = 0; i < current.count; i++)
        assert_false(prompts_equal(&current.samples[i], &alone.samples[i]));
    invar_rollout_free(rollout); // this also closes the stream
    invar_model_free(model);
    invar_rl_samples_reset(&samples);
    invar_rl_samples_reset(&expected);
    invar_test_device_release(&dev);
}

/* A request that is rejected leaves no trace. */
static void test_rollout_open__rejected_requests(void **state)
{
    const invar_sampling_params good = sampling_of(0);
    invar_sampling_params bad = good;
    invar_rl_samples samples;
    invar_rollout *rollout;
    invar_model *model;
    invar_device dev;
    int32_t token;

    (void)state;
    bad.max_response = 0;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    model = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP32, 3, &dev);
    assert_ok(prompts_new(&samples, 3, 2, LONGEST, model->spec.vocab));
    assert_ok(
        invar_rollout_new(&rollout, model, NULL, &dev, &(invar_rollout_exec_options){.pages = 3}));
    assert_fails(invar_rollout_open_stream(rollout, 1), INVAR_E_INVALID, "a context of 1 tokens");
    assert_fails(invar_rollout_open_stream(rollout, model->spec.max_positions + 1), INVAR_E_INVALID,
                 "");
    assert_ok(invar_rollout_open_stream(rollout, CONTEXT));
    assert_fails(invar_rollout_add(rollout, samples.items, 3, &bad), INVAR_E_INVALID, "rollout: ");
    token = samples.items[2].tokens[0];
    samples.items[2].tokens[0] = (int32_t)model->spec.vocab;
    assert_fails(invar_rollout_add(rollout, samples.items, 3, &good), INVAR_E_INVALID, "token ");
    samples.items[2].tokens[0] = token;
    bad = good;
    bad.max_response = 60;
    assert_fails(invar_rollout_add(rollout, samples.items, 1, &bad), INVAR_E_INVALID,
                 "give it more pages");
    assert_ok(invar_rollout_add(rollout, samples.items, samples.count, &good));
    while (!is_finished(&(group){samples.items, samples.count}))
        assert_ok(invar_rollout_step(rollout));
    invar_rollout_free(rollout);
    invar_model_free(model);
    invar_rl_samples_reset(&samples);
    invar_test_device_release(&dev);
}

static bool has_token(const invar_rl_sample *s, int32_t token)
{
    for (int64_t i = 0; i < s->n_tokens - 1; i++) // the last token is not an input
        if (s->tokens[i] == token)
            return true;
    return false;
}

/* A damaged embedding aborts the samples that have this token, and changes no others. */
static void test_rollout_open__not_finite_aborts_alone(void **state)
{
    const invar_sampling_params p = sampling_of(0);
    invar_rl_samples samples, expected;
    invar_rollout *rollout;
    invar_model *model;
    invar_device dev;
    const invar_param *table;
    int32_t token = 0;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    model = invar_test_model_new(INVAR_TEST_MODEL_BIAS, INVAR_FORMAT_FP32, 3, &dev);
    assert_ok(prompts_new(&expected, 4, 1, LONGEST, model->spec.vocab));
    assert_ok(
        invar_rollout_new(&rollout, model, NULL, &dev, &(invar_rollout_exec_options){.pages = 8}));
    assert_ok(invar_rollout_run(rollout, expected.items, 4, &p, NULL, NULL));
    while (!has_token(&expected.items[1], token) || has_token(&expected.items[0], token) ||
           has_token(&expected.items[2], token) || has_token(&expected.items[3], token))
        token++;
    table = invar_model_find(model, "model.embed_tokens.weight");
    for (int64_t i = 0; i < model->spec.hidden; i++)
        ((float *)table->master.data)[token * model->spec.hidden + i] = NAN;
    assert_ok(invar_model_update_weights(model, &dev));
    assert_ok(invar_rollout_open_stream(rollout, CONTEXT));
    for (int round = 0; round < 3; round++) { // later rounds use pages of an aborted sample
        assert_ok(prompts_new(&samples, 4, 1, LONGEST, model->spec.vocab));
        assert_ok(invar_rollout_add(rollout, samples.items, 4, &p));
        while (!is_finished(&(group){samples.items, 4}))
            assert_ok(invar_rollout_step(rollout));
        for (int64_t i = 0; i < 4; i++)
            assert_true(i == 1 ? samples.items[i].finish == INVAR_FINISH_ABORT
                               : prompts_equal(&samples.items[i], &expected.items[i]));
        invar_rl_samples_reset(&samples);
    }
    invar_rollout_free(rollout);
    invar_model_free(model);
    invar_rl_samples_reset(&expected);
    invar_test_device_release(&dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rollout_open__other_groups_change_nothing),
        cmocka_unit_test(test_rollout_open__fake_gpu),
        cmocka_unit_test(test_rollout_open__other_parameters_change_samples),
        cmocka_unit_test(test_rollout_open__rejected_requests),
        cmocka_unit_test(test_rollout_open__not_finite_aborts_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
