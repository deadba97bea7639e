/*
 * learner.c - tests of the learner: weight hash, recorded points, steps without an update, reset.
 *
 * The hash that the learner derives from recorded digests is compared with a hash of the model.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/learner.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "tests/model.h"

enum { SAMPLES = 3, MAX_TOKENS = 64 };

static const invar_learner_options options = {
    .schedule = {.style = INVAR_DECAY_CONSTANT, .lr = 0.01},
    .adamw = {0.9f, 0.98f, 1e-8f, 0.1f, 1.0f},
    .prefix = ""};

/* A learner with a model, a trainer, samples and a probe. */
typedef struct learner_fixture {
    const invar_device *dev;
    invar_model *model;
    invar_trainer *trainer;
    invar_rl_samples samples;
    invar_learner learner;
    invar_probe *probe;
} learner_fixture;

static invar_status fill_gradient(void *payload, int64_t first, int64_t count, const float *now,
                                  const float *entropy, float *dnow, float *dentropy)
{
    const learner_fixture *s = payload;
    int64_t tokens = 0;

    (void)now, (void)entropy, (void)dentropy;
    for (int64_t i = first; i < first + count; i++)
        tokens += invar_rl_sample_response(&s->samples.items[i]);
    for (int64_t t = 0; t < tokens; t++)
        dnow[t] = invar_test_normal((uint64_t)first, (uint64_t)t, 1.0f);
    return INVAR_OK;
}

static void open_fixture(learner_fixture *s, const invar_device *dev,
                         const invar_learner_options *o)
{
    const invar_trainer_options trainer = {.plan = {1, 1, 1, 0}, .temperature = 1.0f};
    const invar_probe_options probe = {.dev = dev};
    invar_learner_options own = *o;

    memset(s, 0, sizeof *s);
    own.dev = s->dev = dev;
    s->model = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, 11, dev);
    invar_test_samples(&s->samples, SAMPLES, 8, s->model->spec.vocab, 5);
    assert_ok(invar_trainer_new(&s->trainer, dev, &trainer));
    assert_ok(invar_learner_open(&s->learner, s->model, true, &own));
    assert_ok(invar_probe_new(&s->probe, &probe));
}

static void close_fixture(learner_fixture *s)
{
    invar_probe_free(s->probe);
    invar_learner_close(&s->learner);
    invar_trainer_free(s->trainer);
    invar_rl_samples_reset(&s->samples);
    invar_model_free(s->model);
}

static void run_backward(learner_fixture *s)
{
    const invar_trainer_loss loss = {.run = fill_gradient, .payload = s};
    float now[MAX_TOKENS];
    invar_trainer_result result = {.train_logp = now};

    assert_true(invar_trainer_tokens(s->samples.items, SAMPLES) <= MAX_TOKENS);
    assert_ok(invar_learner_forward_backward(&s->learner, s->trainer, s->samples.items, SAMPLES,
                                             &loss, &result));
}

/* Makes a recorded step. The returned points are borrowed from the probe. */
static invar_probe_result run_step(learner_fixture *s, bool skip_update)
{
    invar_probe_result points;

    run_backward(s);
    assert_ok(invar_learner_step(&s->learner, 3, skip_update));
    invar_probe_begin(s->probe, NULL);
    assert_ok(invar_learner_record_points(&s->learner, s->probe));
    assert_ok(invar_probe_finish(&points, s->probe));
    assert_ok(invar_learner_end_step(&s->learner, &points));
    return points;
}

static invar_digest model_hash(const learner_fixture *s)
{
    invar_digest hash;

    assert_ok(invar_model_hash(&hash, s->model, s->dev));
    return hash;
}

/* The hash from the points equals the model's, with resident and with offloaded moments. */
static void test_learner__weight_hash(void **state)
{
    const invar_device *devs = *state;
    invar_learner_options offloaded = options;
    learner_fixture s;

    offloaded.offload_chunk_bytes = INVAR_ALIGN;
    for (int i = 0; i < 2; i++) {
        invar_digest before, after, expected;

        open_fixture(&s, &devs[0], i ? &offloaded : &options);
        assert_ok(invar_learner_hash(&before, &s.learner));
        expected = model_hash(&s);
        assert_true(invar_digest_equal(&before, &expected));
        (void)run_step(&s, false);
        assert_true(s.learner.hashed && s.learner.stepped && s.learner.lr == 0.01f);
        assert_ok(invar_learner_hash(&after, &s.learner));
        expected = model_hash(&s);
        assert_true(invar_digest_equal(&after, &expected));
        assert_false(invar_digest_equal(&after, &before));
        assert_true(s.learner.grads->overwrite_next); // the gradients count as zero
        // a step that is not recorded makes the hash unknown
        run_backward(&s);
        assert_ok(invar_learner_step(&s.learner, 4, false));
        assert_ok(invar_learner_end_step(&s.learner, NULL));
        assert_false(s.learner.hashed);
        close_fixture(&s);
    }
}

static void test_learner__skips_the_update(void **state)
{
    const invar_device *devs = *state;
    invar_digest before, after;
    learner_fixture s;

    open_fixture(&s, &devs[0], &options);
    before = model_hash(&s);
    (void)run_step(&s, true);
    after = model_hash(&s);
    assert_true(invar_digest_equal(&before, &after));
    assert_true(s.learner.norm > 0.0f && s.learner.lr == 0.01f && !s.learner.stepped);
    assert_ok(invar_learner_hash(&after, &s.learner));
    assert_true(invar_digest_equal(&before, &after));
    close_fixture(&s);
}

/* Points are the gradients, then the weights, in canonical order and with the prefix. */
static void test_learner__records_gradients_and_weights(void **state)
{
    const invar_device *devs = *state;
    invar_learner_options critic = options;
    invar_probe_result points;
    char name[200];
    learner_fixture s;

    critic.prefix = "critic.";
    open_fixture(&s, &devs[0], &critic);
    points = run_step(&s, false);
    assert_int_equal(points.count, 2 * s.model->n_params);
    for (int64_t i = 0; i < points.count; i++) {
        const invar_ledger_point *p = &points.points[i];
        bool weight = i >= s.model->n_params;
        (void)snprintf(name, sizeof name, "critic.%s.%s", weight ? "weight" : "grad",
                       s.model->params[i % s.model->n_params].name);
        assert_string_equal(p->name, name);
        assert_string_equal(p->op, weight ? "adamw" : p->op);
        assert_int_equal(p->n_inputs, 0); // finer points are not recorded
        assert_int_equal(p->level, INVAR_PROBE_STEP);
    }
    close_fixture(&s);
}

/* Repeated steps give the same bits; control: a reset of the moments gives others. */
static void test_learner__moments_affect_the_next_step(void **state)
{
    const invar_device *devs = *state;
    invar_digest hashes[3];
    learner_fixture s;

    for (int i = 0; i < 3; i++) {
        open_fixture(&s, &devs[0], &options);
        (void)run_step(&s, false);
        if (i == 2)
            assert_ok(invar_learner_reset(&s.learner));
        (void)run_step(&s, false);
        hashes[i] = model_hash(&s);
        close_fixture(&s);
    }
    assert_true(invar_digest_equal(&hashes[0], &hashes[1]));
    assert_false(invar_digest_equal(&hashes[0], &hashes[2]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learner__weight_hash),
        cmocka_unit_test(test_learner__skips_the_update),
        cmocka_unit_test(test_learner__records_gradients_and_weights),
        cmocka_unit_test(test_learner__moments_affect_the_next_step),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
