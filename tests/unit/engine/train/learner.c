/*
 * learner.c - a learner alone: what it knows of its weights, what it shows, when it rests.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/learner.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "tests/model.h"

enum { SAMPLES = 3, MOST = 64 };

static const invar_learner_options options = {
    .schedule = {.style = INVAR_DECAY_CONSTANT, .lr = 0.01},
    .adamw = {0.9f, 0.98f, 1e-8f, 0.1f, 1.0f},
    .prefix = ""};

/* A learner with all it needs to learn. */
typedef struct scene {
    const invar_device *dev;
    invar_model *model;
    invar_trainer *trainer;
    invar_rl_samples samples;
    invar_learner learner;
    invar_probe *probe;
} scene;

static invar_status push(void *payload, int64_t first, int64_t count, const float *now,
                         const float *entropy, float *dnow, float *dentropy)
{
    const scene *s = payload;
    int64_t tokens = 0;

    (void)now, (void)entropy, (void)dentropy;
    for (int64_t i = first; i < first + count; i++)
        tokens += invar_rl_sample_response(&s->samples.items[i]);
    for (int64_t t = 0; t < tokens; t++)
        dnow[t] = invar_test_normal((uint64_t)first, (uint64_t)t, 1.0f);
    return INVAR_OK;
}

static void open_scene(scene *s, const invar_device *dev, const invar_learner_options *o)
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

static void close_scene(scene *s)
{
    invar_probe_free(s->probe);
    invar_learner_close(&s->learner);
    invar_trainer_free(s->trainer);
    invar_rl_samples_reset(&s->samples);
    invar_model_free(s->model);
}

static void differentiate(scene *s)
{
    const invar_trainer_loss loss = {.run = push, .payload = s};
    float now[MOST];
    invar_trainer_result result = {.train_logp = now};

    assert_true(invar_trainer_tokens(s->samples.items, SAMPLES) <= MOST);
    assert_ok(invar_learner_forward_backward(&s->learner, s->trainer, s->samples.items, SAMPLES,
                                             &loss, &result));
}

/* One step, recorded; what the probe has then is borrowed. */
static invar_probe_result step(scene *s, bool rest)
{
    invar_probe_result points;

    differentiate(s);
    assert_ok(invar_learner_step(&s->learner, 3, rest));
    invar_probe_begin(s->probe, NULL);
    assert_ok(invar_learner_record_points(&s->learner, s->probe));
    assert_ok(invar_probe_finish(&points, s->probe));
    assert_ok(invar_learner_end_step(&s->learner, &points));
    return points;
}

static invar_digest hash_of(const scene *s)
{
    invar_digest hash;

    assert_ok(invar_model_hash(&hash, s->model, s->dev));
    return hash;
}

/* The hash that points give is that of the model, however AdamW makes the digests. */
static void test_learner__knows_its_weights(void **state)
{
    const invar_device *devs = *state;
    invar_learner_options visiting = options;
    scene s;

    visiting.offload_chunk_bytes = INVAR_ALIGN;
    for (int i = 0; i < 2; i++) {
        invar_digest before, after, known;

        open_scene(&s, &devs[0], i ? &visiting : &options);
        assert_ok(invar_learner_hash(&before, &s.learner));
        known = hash_of(&s);
        assert_true(invar_digest_equal(&before, &known));
        (void)step(&s, false);
        assert_true(s.learner.hashed && s.learner.stepped && s.learner.lr == 0.01f);
        assert_ok(invar_learner_hash(&after, &s.learner));
        known = hash_of(&s);
        assert_true(invar_digest_equal(&after, &known));
        assert_false(invar_digest_equal(&after, &before));
        assert_true(s.learner.grads->overwrite_next); // zero again
        // a step that is not recorded leaves nothing known
        differentiate(&s);
        assert_ok(invar_learner_step(&s.learner, 4, false));
        assert_ok(invar_learner_end_step(&s.learner, NULL));
        assert_false(s.learner.hashed);
        close_scene(&s);
    }
}

static void test_learner__rests(void **state)
{
    const invar_device *devs = *state;
    invar_digest before, after;
    scene s;

    open_scene(&s, &devs[0], &options);
    before = hash_of(&s);
    (void)step(&s, true);
    after = hash_of(&s);
    assert_true(invar_digest_equal(&before, &after));
    assert_true(s.learner.norm > 0.0f && s.learner.lr == 0.01f && !s.learner.stepped);
    assert_ok(invar_learner_hash(&after, &s.learner));
    assert_true(invar_digest_equal(&before, &after));
    close_scene(&s);
}

/* Gradients, then weights, in canonical order and under its own name. */
static void test_learner__shows_gradients_and_weights(void **state)
{
    const invar_device *devs = *state;
    invar_learner_options critic = options;
    invar_probe_result points;
    char name[200];
    scene s;

    critic.prefix = "critic.";
    open_scene(&s, &devs[0], &critic);
    points = step(&s, false);
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
    close_scene(&s);
}

/* The same steps twice are the same bits; after a reset they are others. */
static void test_learner__moments_count(void **state)
{
    const invar_device *devs = *state;
    invar_digest hashes[3];
    scene s;

    for (int i = 0; i < 3; i++) {
        open_scene(&s, &devs[0], &options);
        (void)step(&s, false);
        if (i == 2)
            assert_ok(invar_learner_reset(&s.learner));
        (void)step(&s, false);
        hashes[i] = hash_of(&s);
        close_scene(&s);
    }
    assert_true(invar_digest_equal(&hashes[0], &hashes[1]));
    assert_false(invar_digest_equal(&hashes[0], &hashes[2]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learner__knows_its_weights),
        cmocka_unit_test(test_learner__rests),
        cmocka_unit_test(test_learner__shows_gradients_and_weights),
        cmocka_unit_test(test_learner__moments_count),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
