/*
 * pipeline_pass.c - tests of sampling and scoring on ranks that divide a model.
 *
 * Samples and scores must equal those of one rank bit for bit. Each stage has its own layers of the
 * model and of the KV cache, and all samples. Tensor-parallel ranks decode with CUDA graphs, which
 * end at each transfer. One rank samples token by token, several ranks with speculative decoding.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>

#include "tests/device/fake_gpu.h"
#include "tests/ranks.h"
#include "tests/unit/engine/sample/rollout/prompts.h"

enum { LAYERS = 8, GROUPS = 5, EACH = 3, LONGEST = 9, TOKENS = 14, SECONDS = 60 };

typedef struct pass_fixture {
    invar_model_spec spec;
    invar_format format;
    invar_device dev; /* device of one rank, and base of the ranks' devices */
    bool fake_gpu;    /* ranks use the fake GPU */
    invar_layout_sizes sizes;
    invar_rl_samples samples;                      /* samples of one rank */
    float scores[GROUPS * EACH][LONGEST + TOKENS]; /* scores of one rank */
} pass_fixture;

static invar_status score_samples(float (*out)[LONGEST + TOKENS], invar_rollout *rollout,
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

/* Samples and scores with few pages, so that some samples are preempted. */
static invar_status sample_and_score(invar_rl_samples *out, float (*scores)[LONGEST + TOKENS],
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
        status = score_samples(scores, rollout, out);
    invar_rollout_free(rollout);
    return status;
}

static invar_status run_model(invar_rl_samples *out, float (*scores)[LONGEST + TOKENS],
                              const pass_fixture *s, const invar_layout *layout,
                              const invar_device *dev)
{
    invar_model *model;
    invar_status status;

    INVAR_TRY(invar_model_new(&model, &s->spec, s->format, layout, dev));
    status = invar_model_init(model, 3, dev);
    if (status == INVAR_OK)
        status = sample_and_score(out, scores, model, dev);
    invar_model_free(model);
    return status;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static invar_status compare_with_one_rank(const pass_fixture *s, const invar_rl_samples *samples,
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

static invar_status run_rank(rank_run *run)
{
    const pass_fixture *s = run->payload;
    int rank = invar_comm_rank(run->comm);
    float(*scores)[LONGEST + TOKENS] = calloc(GROUPS * EACH, sizeof *scores);
    invar_rl_samples samples = {0};
    invar_device dev = s->dev;
    invar_layout layout;
    invar_status status;

    invar_layout_init(&layout, run->comm, SECONDS);
    if (s->fake_gpu)
        dev.backend = invar_fake_gpu_backend();
    status = invar_layout_divide(&layout, &s->sizes);
    if (status == INVAR_OK && s->fake_gpu)
        status = invar_device_open(&dev);
    if (status == INVAR_OK)
        status = run_model(&samples, scores, s, &layout, &dev);
    if (status == INVAR_OK)
        status = compare_with_one_rank(s, &samples, scores, rank);
    if (status != INVAR_OK)
        invar_comm_abort(run->comm, invar_error_last()->message);
    if (s->fake_gpu)
        invar_device_close(&dev);
    invar_rl_samples_reset(&samples);
    invar_layout_release(&layout);
    free(scores);
    return status;
}

/* ---- tests ----------------------------------------------------------------------------------- */

typedef struct layout_shape {
    int ranks, tensor, expert, pipeline, chunks;
} layout_shape;

static void check_shapes(pass_fixture *s, const layout_shape *shapes, size_t count)
{
    s->dev.pool = NULL; // each rank is one thread
    s->dev.scratch = NULL;
    assert_ok(run_model(&s->samples, s->scores, s, NULL, &s->dev));
    for (size_t i = 0; i < count; i++) {
        const layout_shape *current = &shapes[i];
        rank_run runs[MAX_RANKS];

        s->sizes = (invar_layout_sizes){.tensor = current->tensor,
                                        .expert = current->expert,
                                        .expert_tensor = 1,
                                        .pipeline = current->pipeline,
                                        .virtual_stages = current->chunks};
        run_ranks(runs, current->ranks, i, 0, run_rank, s);
        for (int r = 0; r < current->ranks; r++)
            if (runs[r].status != INVAR_OK)
                fail_msg("%d x %d ranks, %d stages of %d chunks: %s", current->tensor,
                         current->expert, current->pipeline, current->chunks,
                         runs[r].error.message);
    }
    invar_rl_samples_reset(&s->samples);
    free(s);
}

static pass_fixture *new_fixture(invar_test_model kind, invar_format format,
                                 const invar_device *dev, bool fake_gpu)
{
    pass_fixture *s = calloc(1, sizeof *s);

    s->spec = invar_test_spec(kind, true);
    s->format = format;
    s->dev = *dev;
    s->fake_gpu = fake_gpu;
    return s;
}

/* By default the models with the numbers 0 to 2 share the shapes. */
static void check_stages(invar_test_model kind, invar_format format, const invar_device *dev,
                         bool fake_gpu, size_t number)
{
    static const layout_shape shapes[] = {
        {2, 1, 1, 2, 1}, {4, 1, 1, 4, 2}, {2, 1, 1, 2, 2}, {4, 1, 1, 4, 1}, {4, 1, 1, 2, 4}};
    size_t first = invar_test_full() ? 0 : 2 * number - (number == 2);
    pass_fixture *s = new_fixture(kind, format, dev, fake_gpu);

    s->spec.layers = LAYERS;
    for (int i = 0; i < LAYERS && kind == INVAR_TEST_MODEL_EXPERTS; i++)
        s->spec.experts.sparse[i] = i % 3 != 0;
    check_shapes(s, shapes + first, invar_test_full() ? sizeof shapes / sizeof *shapes : 2);
}

static void test_pipeline_pass__stages_equal_one_rank(void **state)
{
    const invar_device *devs = *state;

    check_stages(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, &devs[1], false, 0);
    check_stages(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_FP32, &devs[0], false, 1);
}

static void test_pipeline_pass__stages_on_the_fake_gpu(void **state)
{
    invar_fake_gpu_begin(0);
    check_stages(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, *state, true, 2);
    assert_true(invar_fake_gpu_counted().ops > 0);
    assert_int_equal(invar_fake_gpu_counted().live, 0);
}

/* Tensor-parallel ranks: the ops of each layer between two transfers form a graph. */
static void test_pipeline_pass__tensor_ranks_decode_with_graphs(void **state)
{
    static const layout_shape shapes[] = {{2, 2, 1, 1, 1}, {4, 2, 2, 1, 1}};
    pass_fixture *s = new_fixture(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, *state, true);
    invar_model_spec *spec = &s->spec;
    int64_t layers = spec->layers;

    spec->logical_tp = spec->logical_etp = 2;
    spec->vocab = 3 * 256 + 9;
    spec->attention.heads = 4;
    spec->attention.kv_heads = 2;
    spec->intermediate = 256;
    spec->experts.intermediate = 256;
    invar_fake_gpu_begin(0);
    check_shapes(s, shapes, sizeof shapes / sizeof *shapes);
    assert_true(invar_fake_gpu_counted().graphs > 2 * 2 * layers);
    assert_true(invar_fake_gpu_counted().graph_runs > invar_fake_gpu_counted().graphs);
    assert_int_equal(invar_fake_gpu_counted().live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pipeline_pass__stages_equal_one_rank),
        cmocka_unit_test(test_pipeline_pass__stages_on_the_fake_gpu),
        cmocka_unit_test(test_pipeline_pass__tensor_ranks_decode_with_graphs),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
