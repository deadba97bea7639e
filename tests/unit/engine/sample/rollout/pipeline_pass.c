/*
 * pipeline_pass.c - ranks that divide a model sample and score as one rank does, bit for bit.
 *
 * Every stage has its layers of the model and of the cache alone, and all of the samples. Ranks
 * that divide layers decode by graphs, of which each move between them ends one. One rank draws
 * token by token, several guess.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>

#include "tests/device/fake_gpu.h"
#include "tests/ranks.h"
#include "tests/unit/engine/sample/rollout/prompts.h"

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
    const invar_rollout_exec_options limits = {
        .concurrency = 4,
        .prefill_chunk = 8,
        .page_size = 4,
        .pages = 14,
        .speculation = {model->layout ? INVAR_SPECULATIVE_ALGORITHM_NGRAM
                                      : INVAR_SPECULATIVE_ALGORITHM_NONE,
                        3,
                        {1, 4},
                        NULL}};
    const invar_sampling_params sampling = PROMPTS_SAMPLING(TOKENS);
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

typedef struct shape {
    int ranks, tensor, expert, pipeline, chunks;
} shape;

static void sample_as_one(scene *s, const shape *shapes, size_t count)
{
    s->dev.pool = NULL; // a rank is a thread
    s->dev.scratch = NULL;
    assert_ok(run_scene(&s->samples, s->scores, s, NULL, &s->dev));
    for (size_t i = 0; i < count; i++) {
        const shape *now = &shapes[i];
        rank_run runs[MAX_RANKS];

        s->sizes = (invar_layout_sizes){.tensor = now->tensor,
                                        .expert = now->expert,
                                        .expert_tensor = 1,
                                        .pipeline = now->pipeline,
                                        .virtual_stages = now->chunks};
        run_ranks(runs, now->ranks, i, 0, rank_part, s);
        for (int r = 0; r < now->ranks; r++)
            if (runs[r].status != INVAR_OK)
                fail_msg("%d x %d ranks, %d stages of %d chunks: %s", now->tensor, now->expert,
                         now->pipeline, now->chunks, runs[r].error.message);
    }
    invar_rl_samples_reset(&s->samples);
    free(s);
}

static scene *scene_new(invar_test_model kind, invar_format format, const invar_device *dev,
                        bool far)
{
    scene *s = calloc(1, sizeof *s);

    s->spec = invar_test_spec(kind, true);
    s->format = format;
    s->dev = *dev;
    s->far = far;
    return s;
}

static void stages_as_one(invar_test_model kind, invar_format format, const invar_device *dev,
                          bool far)
{
    static const shape shapes[] = {
        {2, 1, 1, 2, 1}, {4, 1, 1, 4, 1}, {2, 1, 1, 2, 2}, {4, 1, 1, 4, 2}, {4, 1, 1, 2, 4}};
    scene *s = scene_new(kind, format, dev, far);

    s->spec.layers = LAYERS;
    for (int i = 0; i < LAYERS && kind == INVAR_TEST_MODEL_EXPERTS; i++)
        s->spec.sparse[i] = i % 3 != 0;
    sample_as_one(s, shapes, sizeof shapes / sizeof *shapes);
}

static void test_stages__sample_as_one(void **state)
{
    const invar_device *devs = *state;

    stages_as_one(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, &devs[1], false);
    stages_as_one(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_FP32, &devs[0], false);
}

static void test_stages__far_device(void **state)
{
    invar_far_begin(0);
    stages_as_one(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, *state, true);
    assert_true(invar_far_counted().ops > 0);
    assert_int_equal(invar_far_counted().live, 0);
}

/* Of every layer of every rank some calls lie between two moves. */
static void test_ranks__of_layers_decode_by_graphs(void **state)
{
    static const shape shapes[] = {{2, 2, 1, 1, 1}, {4, 2, 2, 1, 1}};
    scene *s = scene_new(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, *state, true);
    invar_model_spec *spec = &s->spec;
    int64_t layers = spec->layers;

    spec->logical_tp = spec->logical_etp = 2;
    spec->vocab = 3 * 256 + 9;
    spec->heads = 4;
    spec->kv_heads = 2;
    spec->intermediate = 256;
    spec->expert_intermediate = 256;
    invar_far_begin(0);
    sample_as_one(s, shapes, sizeof shapes / sizeof *shapes);
    assert_true(invar_far_counted().graphs > 2 * 2 * layers);
    assert_true(invar_far_counted().graph_runs > invar_far_counted().graphs);
    assert_int_equal(invar_far_counted().live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages__sample_as_one),
        cmocka_unit_test(test_stages__far_device),
        cmocka_unit_test(test_ranks__of_layers_decode_by_graphs),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
