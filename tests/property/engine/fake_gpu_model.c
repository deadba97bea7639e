/*
 * fake_gpu_model.c - generation and scoring on a device whose memory the host cannot touch.
 *
 * Tokens, log-probabilities and routing have the CPU's bits, whatever is shared, hidden, cut into
 * pieces or run as a graph on the way: see tests/device/fake_gpu.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/audit/audit.h"
#include "engine/model/probe/point_names.h"
#include "engine/train/optimizer.h"
#include "engine/train/trainer.h"
#include "tests/device/fake_gpu.h"
#include "tests/unit/engine/sample/rollout/prompts.h"

enum { GROUPS = 5, EACH = 4, LONGEST = 11, RESPONSE = 12, TOKENS = 1024, MANY = 600 };

static const int32_t ends[] = {96, 3, 17, 40, 3};

typedef struct both {
    invar_device near, far;
    invar_model *near_model, *far_model;
} both;

static void both_new(both *b, invar_test_model kind, invar_format format, invar_numerics numerics)
{
    invar_test_device_init(&b->near, numerics, INVAR_CPU_PATH_SIMD, 2);
    invar_far_begin(0);
    b->far = b->near;
    b->far.backend = invar_far_backend();
    b->far.scratch = NULL;
    assert_ok(invar_device_open(&b->far));
    b->near_model = invar_test_model_new(kind, format, 3, &b->near);
    b->far_model = invar_test_model_new(kind, format, 3, &b->far);
}

static void both_free(both *b)
{
    invar_model_free(b->near_model);
    invar_model_free(b->far_model);
    assert_int_equal(invar_far_counted().live, 0);
    invar_device_close(&b->far);
    assert_int_equal(invar_far_counted().opens, 0);
    invar_test_device_release(&b->near);
}

static void generate(invar_rl_samples *out, const invar_model *model, const invar_device *dev,
                     const invar_rollout_exec_options *limits,
                     const invar_sampling_params *sampling)
{
    invar_rollout *rollout;

    assert_ok(prompts_new(out, GROUPS, EACH, LONGEST, model->spec.vocab));
    assert_ok(invar_rollout_new(&rollout, model, NULL, dev, limits));
    assert_ok(invar_rollout_run(rollout, out->items, out->count, sampling, NULL, NULL));
    invar_rollout_free(rollout);
}

/* The samples' own sequences through the cache. */
static void score_cached(float out[TOKENS], const invar_rl_samples *samples,
                         const invar_model *model, const invar_device *dev, int64_t chunk)
{
    const invar_rollout_exec_options limits = {.prefill_chunk = chunk, .page_size = 4};
    const int32_t *tokens[GROUPS * EACH];
    float *logp[GROUPS * EACH];
    int64_t n[GROUPS * EACH], next = 0;
    invar_rollout *rollout;

    for (int64_t i = 0; i < samples->count; i++) {
        tokens[i] = samples->items[i].tokens;
        n[i] = samples->items[i].n_tokens;
        logp[i] = out + next;
        next += n[i] - 1;
    }
    assert_true(next <= TOKENS);
    assert_ok(invar_rollout_new(&rollout, model, NULL, dev, &limits));
    assert_ok(invar_rollout_score(rollout, tokens, n, samples->count, 0.8f, logp));
    invar_rollout_free(rollout);
}

static void score_packed(float out[2][TOKENS], const invar_rl_samples *samples,
                         const invar_model *model, const invar_device *dev)
{
    const invar_trainer_options options = {
        .plan = {1, 1, 8, 0}, .head_rows = 5, .temperature = 0.8f, .replay = model};
    invar_trainer *trainer;

    assert_ok(invar_trainer_new(&trainer, dev, &options));
    assert_ok(invar_trainer_score(trainer, model, samples->items, samples->count, out[0], out[1]));
    invar_trainer_free(trainer);
}

static void check(invar_test_model kind, invar_format format, invar_numerics numerics,
                  const invar_rollout_exec_options *limits, const invar_sampling_params *sampling)
{
    static float near[3][TOKENS], far[3][TOKENS];
    invar_rl_samples expected, got;
    invar_digest a, b;
    char what[100];
    both m;

    (void)snprintf(what, sizeof what, "%s %s %s", invar_test_model_name(kind),
                   invar_format_name(format), invar_numerics_name(numerics));
    both_new(&m, kind, format, numerics);
    assert_ok(invar_model_hash(&a, m.near_model, &m.near));
    assert_ok(invar_model_hash(&b, m.far_model, &m.far));
    assert_true(invar_digest_equal(&a, &b));
    generate(&expected, m.near_model, &m.near, limits, sampling);
    generate(&got, m.far_model, &m.far, limits, sampling);
    prompts_assert_equal(&got, &expected, what);
    memset(near, 0, sizeof near);
    memset(far, 0, sizeof far);
    score_cached(near[0], &expected, m.near_model, &m.near, 7);
    score_cached(far[0], &expected, m.far_model, &m.far, 1);
    score_packed(near + 1, &expected, m.near_model, &m.near);
    score_packed(far + 1, &expected, m.far_model, &m.far);
    invar_assert_bits_f32(far[0], near[0], 3 * TOKENS, what);
    invar_rl_samples_reset(&expected);
    invar_rl_samples_reset(&got);
    both_free(&m);
}

static const invar_sampling_params usual = {.seed = 11,
                                            .temperature = 0.8f,
                                            .top_p = 1.0f,
                                            .max_response = RESPONSE,
                                            .stop_ids = ends,
                                            .n_stop_ids = 5};

static void test_far_model__every_kind_and_format(void **state)
{
    const invar_rollout_exec_options limits = {
        .concurrency = 7, .prefill_chunk = 9, .page_size = 4};
    int step = invar_test_full() ? 1 : 3;

    (void)state;
    for (int i = 0; i < INVAR_TEST_MODEL_COUNT * INVAR_FORMAT_COUNT; i += step)
        check((invar_test_model)(i % INVAR_TEST_MODEL_COUNT),
              (invar_format)(i / INVAR_TEST_MODEL_COUNT),
              i % 2 ? INVAR_NUMERICS_SM90 : INVAR_NUMERICS_IEEE, &limits, &usual);
}

/* Prompts that are shared or not, ends out of reach for a while, one token after another. */
static void test_far_model__every_way_of_sampling(void **state)
{
    static const invar_rollout_exec_options ways[] = {
        {.concurrency = 64},
        {.concurrency = 3, .prefill_chunk = 2, .page_size = 1},
        {.page_size = 16, .no_prefix_sharing = true}};
    invar_sampling_params sampling[3] = {usual, usual, usual};

    (void)state;
    sampling[0].min_response = RESPONSE / 2;
    sampling[1].min_response = 3;
    sampling[1].temperature = 0.0f;
    sampling[2].top_k = 9;
    sampling[2].top_p = 0.9f;
    sampling[2].min_p = 0.01f;
    for (int i = 0; i < 3; i++) {
        check(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, INVAR_NUMERICS_IEEE, &ways[i],
              &sampling[i]);
        check(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_FP32, INVAR_NUMERICS_IEEE, &ways[i],
              &sampling[(i + 1) % 3]);
    }
}

/* ---- graphs ---------------------------------------------------------------------------------- */

/* How decoding runs: as graphs, launched one by one, or graphs that cannot be made. */
typedef enum decoding { GRAPHS, PLAIN, REFUSED, AUDITED, DECODINGS } decoding;

/* Two generations in a row by one rollout, whose second has the first one's graphs. */
static void generate_twice(invar_rl_samples out[2], const invar_model *model,
                           const invar_device *dev, const invar_rollout_exec_options *limits,
                           decoding how)
{
    invar_rollout_exec_options own = *limits;
    invar_sampling_params sampling = usual;
    invar_rollout *rollout;
    invar_audit *audit = NULL;

    own.no_graphs = how == PLAIN;
    assert_ok(invar_rollout_new(&rollout, model, NULL, dev, &own));
    if (how == REFUSED)
        invar_far_refuse_graphs();
    if (how == AUDITED) {
        assert_ok(invar_audit_new(&audit, dev, &(invar_audit_options){.elements = 4}));
        invar_rollout_audit(rollout, audit);
    }
    for (int i = 0; i < 2; i++) {
        assert_ok(prompts_new(&out[i], GROUPS, EACH, LONGEST, model->spec.vocab));
        sampling.seed = 11 + (uint32_t)i;
        sampling.max_response = 3 * RESPONSE;
        assert_ok(invar_rollout_run(rollout, out[i].items, out[i].count, &sampling, NULL, NULL));
    }
    invar_rollout_free(rollout);
    invar_audit_free(audit);
}

static void check_graphs(invar_test_model kind, const invar_rollout_exec_options *limits)
{
    invar_rl_samples expected[2], got[2];

    for (int how = 0; how < DECODINGS; how++) {
        int64_t runs;
        both m;

        both_new(&m, kind, INVAR_FORMAT_BF16, INVAR_NUMERICS_IEEE);
        if (how == 0)
            generate_twice(expected, m.near_model, &m.near, limits, PLAIN);
        generate_twice(got, m.far_model, &m.far, limits, (decoding)how);
        runs = invar_far_counted().graph_runs;
        if ((how == GRAPHS) != (runs > 0))
            fail_msg("decoding %d: %d graphs ran", how, (int)runs);
        for (int i = 0; i < 2; i++) {
            prompts_assert_equal(&got[i], &expected[i], "graphs");
            invar_rl_samples_reset(&got[i]);
        }
        both_free(&m);
        assert_int_equal(invar_far_counted().live_graphs, 0);
    }
    for (int i = 0; i < 2; i++)
        invar_rl_samples_reset(&expected[i]);
}

/* Sequences that end one after another, with pages to spare for fillers or none. */
static void test_far_model__graphs_change_no_bit(void **state)
{
    static const invar_rollout_exec_options ways[] = {
        {.concurrency = 16},
        {.concurrency = 10, .page_size = 2},
        {.page_size = 16, .pages = 9},
        {.page_size = 1, .pages = 48},          // samples give way to others
        {.concurrency = 5, .prefill_chunk = 1}, // passes that no token is drawn from
    };

    (void)state;
    for (int i = 0; i < 5; i++) {
        check_graphs(INVAR_TEST_MODEL_DENSE, &ways[i]);
        if (i == 0 || invar_test_full())
            check_graphs(INVAR_TEST_MODEL_EXPERTS, &ways[i]);
    }
}

/* Sequences of one length: all passes but the first ones are graphs, whatever the model. */
static void test_far_model__passes_that_are_alike_are_graphs(void **state)
{
    static const int32_t prompt[] = {5, 6, 7};
    const invar_rollout_exec_options limits = {.page_size = 64};
    invar_sampling_params sampling = usual;
    int step = invar_test_full() ? 1 : 3;

    (void)state;
    sampling.n_stop_ids = 0;
    for (int i = 0; i < INVAR_TEST_MODEL_COUNT * INVAR_FORMAT_COUNT; i += step) {
        invar_rollout_counters counted;
        invar_rl_samples samples = {0};
        invar_rollout *rollout;
        both m;

        both_new(&m, (invar_test_model)(i % INVAR_TEST_MODEL_COUNT),
                 (invar_format)(i / INVAR_TEST_MODEL_COUNT), INVAR_NUMERICS_IEEE);
        for (uint32_t n = 0; n < 4; n++)
            assert_ok(prompts_add(&samples, prompt, 3, n, n));
        assert_ok(invar_rollout_new(&rollout, m.far_model, NULL, &m.far, &limits));
        assert_ok(invar_rollout_run(rollout, samples.items, samples.count, &sampling, NULL, NULL));
        invar_rollout_get_counters(&counted, rollout);
        invar_rollout_free(rollout);
        invar_rl_samples_reset(&samples);
        // the prompts, the first of its kind, one more where that has grown the scratch
        if (counted.passes < RESPONSE || invar_far_counted().graph_runs < counted.passes - 3)
            fail_msg("%s: %d of %d passes were graphs",
                     invar_test_model_name((invar_test_model)(i % INVAR_TEST_MODEL_COUNT)),
                     (int)invar_far_counted().graph_runs, (int)counted.passes);
        both_free(&m);
    }
}

/* ---- draws ----------------------------------------------------------------------------------- */

/* One prompt, and more samples of it than draw at a time. */
static void generate_many(invar_rl_samples *out, const invar_model *model, const invar_device *dev,
                          int64_t concurrency)
{
    static const int32_t prompt[] = {5, 6, 7};
    const invar_rollout_exec_options limits = {.concurrency = concurrency};
    invar_sampling_params sampling = usual;
    invar_rollout *rollout;

    *out = (invar_rl_samples){0};
    for (uint32_t i = 0; i < MANY; i++)
        assert_ok(prompts_add(out, prompt, 3, 0, i));
    sampling.max_response = 2;
    sampling.min_response = 1;
    assert_ok(invar_rollout_new(&rollout, model, NULL, dev, &limits));
    assert_ok(invar_rollout_run(rollout, out->items, out->count, &sampling, NULL, NULL));
    invar_rollout_free(rollout);
}

static void test_far_model__more_draws_than_fit(void **state)
{
    invar_rl_samples few, near, far;
    both m;

    (void)state;
    both_new(&m, INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, INVAR_NUMERICS_IEEE);
    generate_many(&few, m.near_model, &m.near, 7);
    generate_many(&near, m.near_model, &m.near, MANY);
    generate_many(&far, m.far_model, &m.far, MANY);
    prompts_assert_equal(&near, &few, "many at a time");
    prompts_assert_equal(&far, &few, "many at a time, far");
    invar_rl_samples_reset(&few);
    invar_rl_samples_reset(&near);
    invar_rl_samples_reset(&far);
    both_free(&m);
}

/* ---- training -------------------------------------------------------------------------------- */

static invar_status sum_loss(void *payload, int64_t first, int64_t count, const float *now,
                             const float *entropy, float *dnow, float *dentropy)
{
    int64_t tokens = invar_trainer_tokens((const invar_rl_sample *)payload + first, count);

    (void)now, (void)entropy, (void)dentropy;
    for (int64_t i = 0; i < tokens; i++)
        dnow[i] = -1.0f;
    return INVAR_OK;
}

/* How often the host waits for the device in the last of two optimizer steps. */
static int64_t waits_of_step(const both *m, const invar_rl_samples *samples, invar_model *model,
                             const invar_trainer_options *options, bool watched,
                             int64_t *micro_batches_out)
{
    const invar_adamw_options adamw = {
        .beta1 = 0.9f, .beta2 = 0.98f, .eps = 1e-8f, .clip_grad = 1.0f};
    static float now[TOKENS];
    invar_trainer_loss loss = {.run = sum_loss, .payload = samples->items};
    invar_trainer_result result = {.train_logp = now};
    invar_optimizer *optimizer;
    invar_trainer *trainer;
    invar_grads *grads;
    invar_probe *probe;
    invar_point_namer view = {.prefix = ""};
    const invar_forward_hooks show = {.on_value = invar_probe_on_value, .payload = &view};
    invar_probe_result points;
    float norm, clip;
    int64_t before = 0;

    assert_ok(invar_probe_new(&probe,
                              &(invar_probe_options){.level = INVAR_PROBE_POINT, .dev = &m->far}));
    view.probe = probe;
    assert_ok(invar_trainer_new(&trainer, &m->far, options));
    invar_trainer_set_hooks(trainer, watched ? &show : NULL);
    assert_ok(invar_optimizer_new(&optimizer, model, 0));
    assert_ok(invar_grads_new(&grads, model));
    for (int step = 0; step < 2; step++) {
        before = invar_far_counted().waits;
        invar_probe_begin(probe, NULL);
        assert_ok(invar_grads_zero(grads));
        assert_ok(invar_trainer_forward_backward(trainer, model, samples->items, samples->count,
                                                 &loss, grads, &result));
        assert_ok(invar_optimizer_norm(&norm, &clip, model, grads, true, adamw.clip_grad, &m->far));
        assert_ok(
            invar_optimizer_step(optimizer, model, grads, clip, 1e-3f, true, &adamw, &m->far));
        assert_ok(invar_probe_finish(&points, probe));
        assert_int_equal(points.count > 0, watched);
    }
    *micro_batches_out = result.micro_batches;
    before = invar_far_counted().waits - before;
    invar_grads_free(grads);
    invar_optimizer_free(optimizer);
    invar_trainer_free(trainer);
    invar_probe_free(probe);
    return before;
}

/*
 * For log-probabilities and the choice of experts of each micro-batch, and for the norm; for what
 * is watched once, at the end.
 */
static void test_far_model__a_step_waits_for_what_is_recorded(void **state)
{
    const invar_rollout_exec_options limits = {.concurrency = 7};
    const invar_trainer_options options[] = {
        {.plan = {TOKENS, 3, 1, 0}, .head_rows = TOKENS, .temperature = 1.0f},
        {.plan = {TOKENS, 3, 4, 0}, .head_rows = TOKENS, .temperature = 1.0f},
        {.plan = {TOKENS, 3, 100, 0}, .head_rows = TOKENS, .temperature = 1.0f}};

    (void)state;
    for (int kind = 0; kind < INVAR_TEST_MODEL_COUNT; kind++) {
        invar_rl_samples samples;
        both m;

        both_new(&m, (invar_test_model)kind, INVAR_FORMAT_BF16, INVAR_NUMERICS_IEEE);
        generate(&samples, m.near_model, &m.near, &limits, &usual);
        for (int i = 0; i < 2 * (int)(sizeof options / sizeof *options); i++) {
            bool watched = i % 2;
            int64_t micro_batches;
            int64_t waits =
                waits_of_step(&m, &samples, m.far_model, &options[i / 2], watched, &micro_batches);

            if (waits != micro_batches * (m.far_model->spec.experts ? 2 : 1) + 1 + watched)
                fail_msg("%s: %d waits in a step of %d micro-batches%s",
                         invar_test_model_name((invar_test_model)kind), (int)waits,
                         (int)micro_batches, watched ? ", watched" : "");
        }
        invar_rl_samples_reset(&samples);
        both_free(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_far_model__every_kind_and_format),
        cmocka_unit_test(test_far_model__every_way_of_sampling),
        cmocka_unit_test(test_far_model__graphs_change_no_bit),
        cmocka_unit_test(test_far_model__passes_that_are_alike_are_graphs),
        cmocka_unit_test(test_far_model__more_draws_than_fit),
        cmocka_unit_test(test_far_model__a_step_waits_for_what_is_recorded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
