/*
 * rollout_open.c - a sample that joins others at any time is the one that it is alone.
 *
 * Groups with settings of their own join a rollout in random order and at random passes, beside
 * others that are dropped in the middle, in caches with hardly a page to spare. Each is compared
 * bit by bit with a run of its group alone, where nothing is guessed; in the crowd tokens are
 * guessed by look-up, by a draft model, or not at all. Settings of another group are shown to
 * matter.
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

/* That of group g: no two are alike. */
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

/* Every group by a run of its own. */
static void run_alone(invar_rl_samples *out, const invar_model *model, const invar_device *dev)
{
    invar_rollout *rollout;

    assert_ok(prompts_new(out, GROUPS, EACH, LONGEST, model->spec.vocab));
    assert_ok(invar_rollout_new(&rollout, model, NULL, dev, &(invar_rollout_exec_options){0}));
    for (int64_t g = 0; g < GROUPS; g++) {
        const invar_sampling_params p = sampling_of(g);
        group now = group_of(out, g);
        assert_ok(invar_rollout_run(rollout, now.samples, now.count, &p, NULL, NULL));
    }
    invar_rollout_free(rollout);
}

/* ---- a crowd --------------------------------------------------------------------------------- */

typedef struct crowd {
    invar_rollout *rollout;
    const invar_model *model;
    const invar_rl_samples *expected;
    uint64_t seed, luck;
    int64_t dropped;
    invar_sampling_params sampling[GROUPS]; /* lives as long as the samples */
} crowd;

static int64_t pick(crowd *c, int64_t below)
{
    return invar_test_random(c->seed, c->luck++) % below;
}

static void step(crowd *c)
{
    assert_ok(invar_rollout_step(c->rollout));
}

/* Every group joins once, in random order; some of them leave, and join anew as they were. */
static void run_round(crowd *c, const char *what)
{
    invar_rl_samples samples, spare;
    int64_t order[GROUPS];
    bool running = true;

    assert_ok(prompts_new(&samples, GROUPS, EACH, LONGEST, c->model->spec.vocab));
    assert_ok(prompts_new(&spare, GROUPS, EACH, LONGEST, c->model->spec.vocab));
    for (int64_t g = 0; g < GROUPS; g++)
        order[g] = g;
    for (int64_t g = GROUPS - 1; g > 0; g--) {
        int64_t other = pick(c, g + 1), held = order[g];
        order[g] = order[other];
        order[other] = held;
    }
    for (int64_t i = 0; i < GROUPS; i++) {
        group now = group_of(&samples, order[i]), gone = group_of(&spare, order[i]);

        assert_ok(invar_rollout_add(c->rollout, gone.samples, gone.count, &c->sampling[order[i]]));
        for (int64_t n = pick(c, 4); n > 0; n--)
            step(c);
        c->dropped += !is_finished(&gone);
        invar_rollout_cancel(c->rollout, gone.samples, gone.count);
        assert_ok(invar_rollout_add(c->rollout, now.samples, now.count, &c->sampling[order[i]]));
        for (int64_t n = pick(c, 5); n > 0; n--)
            step(c);
    }
    invar_rl_samples_reset(&spare); // nobody looks at what was dropped
    for (int passes = 0; running; passes++) {
        running = false;
        for (int64_t g = 0; g < GROUPS; g++) {
            group now = group_of(&samples, g);
            running = running || !is_finished(&now);
        }
        if (running)
            step(c);
        assert_true(passes < 10000);
    }
    prompts_assert_equal(&samples, c->expected, what);
    invar_rl_samples_reset(&samples);
}

/* Who guesses, as the number of the way says; the model itself is the draft. */
static invar_speculation speculation_of(int64_t number, const invar_model *model)
{
    const invar_speculation kinds[] = {
        {INVAR_SPECULATIVE_ALGORITHM_NONE, 0, {1, 1}, NULL},
        {INVAR_SPECULATIVE_ALGORITHM_NGRAM, 1 + number % 4, {1, 3}, NULL},
        {INVAR_SPECULATIVE_ALGORITHM_DRAFT, 1 + number % 3, {1, 1}, model}};

    return kinds[number % 3];
}

static void run_crowd(const invar_rl_samples *expected, const invar_model *model,
                      const invar_device *dev, const way *w, int64_t guesses, int rounds)
{
    invar_rollout_exec_options limits = way_limits(w, CONTEXT);
    invar_rollout_counters counted;
    crowd c = {.model = model, .expected = expected, .seed = 31 + (uint64_t)(w - ways)};
    char what[160];

    limits.speculation = speculation_of(guesses, model);
    way_describe(what, sizeof what, w);
    for (int64_t g = 0; g < GROUPS; g++)
        c.sampling[g] = sampling_of(g);
    assert_ok(invar_rollout_new(&c.rollout, model, NULL, dev, &limits));
    assert_ok(invar_rollout_open_stream(c.rollout, CONTEXT));
    for (int i = 0; i < rounds; i++)
        run_round(&c, what);
    assert_true(c.dropped > 0);
    step(&c); // of nothing, which retires the last
    assert_int_equal(c.rollout->cache->n_free, c.rollout->cache->shape.pages);
    invar_rollout_get_counters(&counted, c.rollout);
    assert_int_equal(counted.accepted > 0,
                     limits.speculation.algorithm != INVAR_SPECULATIVE_ALGORITHM_NONE);
    invar_rollout_close(c.rollout);
    invar_rollout_free(c.rollout);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void sweep(invar_test_model kind, invar_format format, invar_numerics numerics,
                  int64_t each_way, int rounds)
{
    invar_rl_samples expected;
    invar_model *model;
    invar_device dev;

    invar_test_device_init(&dev, numerics, INVAR_CPU_PATH_SIMD, 1);
    model = invar_test_model_new(kind, format, 3, &dev);
    run_alone(&expected, model, &dev);
    invar_test_device_release(&dev);
    for (int64_t i = 0; i < WAYS; i += each_way) {
        invar_test_device_init(&dev, numerics, INVAR_CPU_PATH_SIMD, ways[i].threads);
        for (int64_t guesses = 0; guesses < 3; guesses++)
            run_crowd(&expected, model, &dev, &ways[i], i + guesses, rounds);
        invar_test_device_release(&dev);
    }
    invar_model_free(model);
    invar_rl_samples_reset(&expected);
}

static void test_rollout_open__a_crowd_changes_nothing(void **state)
{
    bool full = invar_test_full();

    (void)state;
    sweep(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP32, INVAR_NUMERICS_IEEE, 1, full ? 60 : 8);
    sweep(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, INVAR_NUMERICS_SM90, full ? 1 : 5,
          full ? 30 : 4);
    if (full)
        sweep(INVAR_TEST_MODEL_WINDOW, INVAR_FORMAT_FP32, INVAR_NUMERICS_IEEE, 1, 20);
}

/* Memory that the host cannot touch, and decoding by graphs. */
static void test_rollout_open__far_device(void **state)
{
    invar_rl_samples expected;
    invar_model *model;
    invar_device dev, far;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    model = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP32, 3, &dev);
    run_alone(&expected, model, &dev);
    invar_model_free(model);
    far = (invar_device){.backend = invar_far_backend(), .numerics = INVAR_NUMERICS_IEEE};
    assert_ok(invar_device_open(&far));
    model = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP32, 3, &far);
    for (int64_t guesses = 0; guesses < 3; guesses++) {
        run_crowd(&expected, model, &far, &ways[2], guesses, 2);
        run_crowd(&expected, model, &far, &ways[7], guesses, 2);
    }
    invar_model_free(model);
    invar_device_close(&far);
    invar_rl_samples_reset(&expected);
    invar_test_device_release(&dev);
}

/* The control: with the settings of its neighbour a group is another one. */
static void test_rollout_open__settings_are_its_own(void **state)
{
    invar_rl_samples expected, samples;
    const invar_sampling_params wrong = sampling_of(5);
    invar_rollout *rollout;
    invar_model *model;
    invar_device dev;
    group now, alone;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    model = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP32, 3, &dev);
    run_alone(&expected, model, &dev);
    assert_ok(prompts_new(&samples, GROUPS, EACH, LONGEST, model->spec.vocab));
    now = group_of(&samples, 6);
    alone = group_of(&expected, 6);
    assert_ok(invar_rollout_new(&rollout, model, NULL, &dev, &(invar_rollout_exec_options){0}));
    assert_ok(invar_rollout_open_stream(rollout, CONTEXT));
    assert_ok(invar_rollout_add(rollout, now.samples, now.count, &wrong));
    while (!is_finished(&now))
        assert_ok(invar_rollout_step(rollout));
    for (int64_t i = 0; i < now.count; i++)
        assert_false(prompts_equal(&now.samples[i], &alone.samples[i]));
    invar_rollout_free(rollout); // and closes it
    invar_model_free(model);
    invar_rl_samples_reset(&samples);
    invar_rl_samples_reset(&expected);
    invar_test_device_release(&dev);
}

/* What cannot join leaves no trace. */
static void test_rollout_open__refusals(void **state)
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
    for (int64_t i = 0; i < s->n_tokens - 1; i++) // the last one is put in nowhere
        if (s->tokens[i] == token)
            return true;
    return false;
}

/* A token whose embedding is damaged spoils the samples that have it, and no others. */
static void test_rollout_open__not_finite_ends_alone(void **state)
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
    for (int round = 0; round < 3; round++) { // also in pages that a spoilt one has had
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
        cmocka_unit_test(test_rollout_open__a_crowd_changes_nothing),
        cmocka_unit_test(test_rollout_open__far_device),
        cmocka_unit_test(test_rollout_open__settings_are_its_own),
        cmocka_unit_test(test_rollout_open__refusals),
        cmocka_unit_test(test_rollout_open__not_finite_ends_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
