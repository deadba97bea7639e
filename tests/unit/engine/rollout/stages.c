/*
 * stages.c - stages of a pipeline sample and score as one rank does, bit for bit.
 *
 * Every stage has its layers of the model and of the cache alone, and all of the samples.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>

#include "tests/device/far.h"
#include "tests/ranks.h"
#include "tests/unit/engine/rollout/prompts.h"

enum { LAYERS = 8, GROUPS = 5, EACH = 3, LONGEST = 9, TOKENS = 14, SECONDS = 60 };

typedef struct scene {
    invar_model_spec spec;
    invar_format format;
    invar_device dev; /* of one rank, */
    bool far;         /* which several have memory of their own on */
    invar_layout_sizes sizes;
    invar_rl_samples samples; /* that one rank came to */
    float scores[GROUPS * EACH][LONGEST + TOKENS];
} scene;

static invar_status score(float (*out)[LONGEST + TOKENS], invar_rollout *rollout,
                          const invar_rl_samples *samples)
{
    const int32_t *tokens[GROUPS * EACH];
    float *logp[GROUPS * EACH];
    int64_t n[GROUPS * EACH];

    for (int64_t i = 0; i < samples->count; i++) {
        tokens[i] = samples->items[i].tokens;
        n[i] = samples->items[i].n_tokens;
        logp[i] = out[i];
    }
    return invar_rollout_score(rollout, tokens, n, samples->count, 0.8f, logp);
}

/* Few pages: some samples have to give way. */
static invar_status sample(invar_rl_samples *out, float (*scores)[LONGEST + TOKENS],
                           const invar_model *model, const invar_device *dev)
{
    const invar_rollout_limits limits = {.concurrency = 4, .chunk = 8, .page_size = 4, .pages = 14};
    const invar_sampling sampling = PROMPTS_SAMPLING(TOKENS);
    invar_rollout *rollout;
    invar_status status = prompts_new(out, GROUPS, EACH, LONGEST, model->spec.vocab);

    INVAR_TRY(invar_rollout_new(&rollout, model, NULL, dev, &limits));
    if (status == INVAR_OK)
        status = invar_rollout_run(rollout, out->items, out->count, &sampling, NULL, NULL);
    if (status == INVAR_OK)
        status = score(scores, rollout, out);
    invar_rollout_free(rollout);
    return status;
}

static invar_status run_scene(invar_rl_samples *out, float (*scores)[LONGEST + TOKENS],
                              const scene *s, const invar_layout *layout, const invar_device *dev)
{
    invar_model *model;
    invar_status status;

    INVAR_TRY(invar_model_new(&model, &s->spec, s->format, layout, dev));
    status = invar_model_init(model, 3, dev);
    if (status == INVAR_OK)
        status = sample(out, scores, model, dev);
    invar_model_free(model);
    return status;
}

/* ---- a rank ---------------------------------------------------------------------------------- */

static invar_status compare(const scene *s, const invar_rl_samples *samples,
                            float (*scores)[LONGEST + TOKENS], int rank)
{
    for (int64_t i = 0; i < samples->count; i++) {
        if (!prompts_equal(&samples->items[i], &s->samples.items[i]))
            return INVAR_FAIL(INVAR_E_MISMATCH, 0, "sample %d of rank %d differs", (int)i, rank);
        if (!prompts_same(scores[i], s->scores[i], samples->items[i].n_tokens - 1, sizeof(float)))
            return INVAR_FAIL(INVAR_E_MISMATCH, 0, "score %d of rank %d differs", (int)i, rank);
    }
    return INVAR_OK;
}

static invar_status rank_part(rank_run *run)
{
    const scene *s = run->payload;
    int rank = invar_comm_rank(run->comm);
    float(*scores)[LONGEST + TOKENS] = calloc(GROUPS * EACH, sizeof *scores);
    invar_rl_samples samples = {0};
    invar_device dev = s->dev;
    invar_layout layout;
    invar_status status;

    invar_layout_init(&layout, run->comm, SECONDS);
    if (s->far)
        dev.backend = invar_far_backend();
    status = invar_layout_divide(&layout, &s->sizes);
    if (status == INVAR_OK && s->far)
        status = invar_device_open(&dev);
    if (status == INVAR_OK)
        status = run_scene(&samples, scores, s, &layout, &dev);
    if (status == INVAR_OK)
        status = compare(s, &samples, scores, rank);
    if (status != INVAR_OK)
        invar_comm_abort(run->comm, invar_error_last()->message);
    if (s->far)
        invar_device_close(&dev);
    invar_rl_samples_reset(&samples);
    invar_layout_release(&layout);
    free(scores);
    return status;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void sample_as_one(invar_test_model kind, invar_format format, const invar_device *dev,
                          bool far)
{
    static const int shapes[][3] = {{2, 2, 1}, {4, 4, 1}, {2, 2, 2}, {4, 4, 2}, {4, 2, 4}};
    scene *s = calloc(1, sizeof *s);

    s->spec = invar_test_spec(kind, true);
    s->spec.layers = LAYERS;
    for (int i = 0; i < LAYERS && kind == INVAR_TEST_MODEL_EXPERTS; i++)
        s->spec.sparse[i] = i % 3 != 0;
    s->format = format;
    s->dev = *dev;
    s->dev.pool = NULL; // a rank is a thread
    s->dev.scratch = NULL;
    s->far = far;
    assert_ok(run_scene(&s->samples, s->scores, s, NULL, &s->dev));
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        rank_run runs[MAX_RANKS];

        s->sizes = (invar_layout_sizes){.tensor = 1,
                                        .expert = 1,
                                        .expert_tensor = 1,
                                        .pipeline = shapes[i][1],
                                        .chunks = shapes[i][2]};
        run_ranks(runs, shapes[i][0], i, 0, rank_part, s);
        for (int r = 0; r < shapes[i][0]; r++)
            if (runs[r].status != INVAR_OK)
                fail_msg("%d stages of %d chunks: %s", shapes[i][1], shapes[i][2],
                         runs[r].error.message);
    }
    invar_rl_samples_reset(&s->samples);
    free(s);
}

static void test_stages__sample_as_one(void **state)
{
    const invar_device *devs = *state;

    sample_as_one(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, &devs[1], false);
    sample_as_one(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_FP32, &devs[0], false);
}

static void test_stages__far_device(void **state)
{
    invar_far_begin(0);
    sample_as_one(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, *state, true);
    assert_true(invar_far_counted().ops > 0);
    assert_int_equal(invar_far_counted().live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages__sample_as_one),
        cmocka_unit_test(test_stages__far_device),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
