/*
 * fake_gpu_model.c - generation and scoring on the fake GPU have the bits of the CPU.
 *
 * The host cannot access the memory of the fake GPU (tests/device/fake_gpu.h). Tokens, log-probs
 * and routing are compared for every kind of model and format, for several sampling parameters,
 * and with CUDA graphs, without them, if they cannot be created, and with an audit. The number of
 * times that the host waits for the device in a training step must be the minimum.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/audit/audit.h"
#include "engine/model/probe/point_names.h"
#include "engine/train/optimizer.h"
#include "engine/train/trainer.h"
#include "tests/device/fake_gpu.h"
#include "tests/unit/engine/sample/rollout/prompts.h"

enum { GROUPS = 5, EACH = 4, LONGEST = 11, RESPONSE = 12, TOKENS = 1024, MANY_SAMPLES = 600 };

static const int32_t ends[] = {96, 3, 17, 40, 3};

typedef struct model_pair {
    invar_device near, far;
    invar_model *near_model, *far_model;
} model_pair;

static void model_pair_new(model_pair *b, invar_test_model kind, invar_format format,
                           invar_numerics numerics)
{
    invar_test_device_init(&b->near, numerics, INVAR_CPU_PATH_SIMD, 2);
    invar_fake_gpu_begin(0);
    b->far = b->near;
    b->far.backend = invar_fake_gpu_backend();
    b->far.scratch = NULL;
    assert_ok(invar_device_open(&b->far));
    b->near_model = invar_test_model_new(kind, format, 3, &b->near);
    b->far_model = invar_test_model_new(kind, format, 3, &b->far);
}

static void model_pair_free(model_pair *b)
{
    invar_model_free(b->near_model);
    invar_model_free(b->far_model);
    assert_int_equal(invar_fake_gpu_counted().live, 0);
    invar_device_close(&b->far);
    assert_int_equal(invar_fake_gpu_counted().opens, 0);
    invar_test_device_release(&b->near);
}

static void generate_samples(invar_rl_samples *out, const invar_model *model,
                             const invar_device *dev, const invar_rollout_exec_options *limits,
                             const invar_sampling_params *sampling)
{
    invar_rollout *rollout;

    assert_ok(prompts_new(out, GROUPS, EACH, LONGEST, model->spec.vocab));
    assert_ok(invar_rollout_new(&rollout, model, NULL, dev, limits));
    assert_ok(invar_rollout_run(rollout, out->items, out->count, sampling, NULL, NULL));
    invar_rollout_free(rollout);
}

/* Scores the sequences of the samples with the KV cache. */
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

static void check_bits(invar_test_model kind, invar_format format, invar_numerics numerics,
                       const invar_rollout_exec_options *limits,
                       const invar_sampling_params *sampling)
{
    static float near[3][TOKENS], far[3][TOKENS];
    invar_rl_samples expected, got;
    invar_digest a, b;
    char what[100];
    model_pair m;

    (void)snprintf(what, sizeof what, "%s %s %s", invar_test_model_name(kind),
                   invar_format_name(format), invar_numerics_name(numerics));
    model_pair_new(&m, kind, format, numerics);
    assert_ok(invar_model_hash(&a, m.near_model, &m.near));
    assert_ok(invar_model_hash(&b, m.far_model, &m.far));
    assert_true(invar_digest_equal(&a, &b));
    generate_samples(&expected, m.near_model, &m.near, limits, sampling);
    generate_samples(&got, m.far_model, &m.far, limits, sampling);
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
    model_pair_free(&m);
}

static const invar_sampling_params default_sampling = {.seed = 11,
                                                       .temperature = 0.8f,
                                                       .top_p = 1.0f,
                                                       .max_response = RESPONSE,
                                                       .stop_ids = ends,
                                                       .n_stop_ids = 5};

static void test_fake_gpu_model__every_kind_and_format(void **state)
{
    const invar_rollout_exec_options limits = {
        .concurrency = 7, .prefill_chunk = 9, .page_size = 4};
    int step = invar_test_full() ? 1 : 3;

    (void)state;
    for (int i = 0; i < INVAR_TEST_MODEL_COUNT * INVAR_FORMAT_COUNT; i += step)
        check_bits((invar_test_model)(i % INVAR_TEST_MODEL_COUNT),
                   (invar_format)(i / INVAR_TEST_MODEL_COUNT),
                   i % 2 ? INVAR_NUMERICS_SM90 : INVAR_NUMERICS_IEEE, &limits, &default_sampling);
}

/*
 * Several execution options and sampling parameters: without prefix sharing, stop ids that are
 * excluded at first, greedy sampling.
 */
static void test_fake_gpu_model__every_sampling_parameter(void **state)
{
    static const invar_rollout_exec_options options_of[] = {
        {.concurrency = 64},
        {.concurrency = 3, .prefill_chunk = 2, .page_size = 1},
        {.page_size = 16, .no_prefix_sharing = true}};
    invar_sampling_params sampling[3] = {default_sampling, default_sampling, default_sampling};

    (void)state;
    sampling[0].min_response = RESPONSE / 2;
    sampling[1].min_response = 3;
    sampling[1].temperature = 0.0f;
    sampling[2].top_k = 9;
    sampling[2].top_p = 0.9f;
    sampling[2].min_p = 0.01f;
    for (int i = 0; i < 3; i++) {
        check_bits(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, INVAR_NUMERICS_IEEE, &options_of[i],
                   &sampling[i]);
        check_bits(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_FP32, INVAR_NUMERICS_IEEE, &options_of[i],
                   &sampling[(i + 1) % 3]);
    }
}

/* ---- graphs ---------------------------------------------------------------------------------- */

/* How decode passes run: as graphs, op by op, with graphs that cannot be created, or audited. */
typedef enum decode_mode { GRAPHS, PLAIN, REFUSED, AUDITED, DECODE_MODES } decode_mode;

/* Generates twice with one rollout; the second time has the graphs of the first. */
static void generate_twice(invar_rl_samples out[2], const invar_model *model,
                           const invar_device *dev, const invar_rollout_exec_options *limits,
                           decode_mode mode)
{
    invar_rollout_exec_options own = *limits;
    invar_sampling_params sampling = default_sampling;
    invar_rollout *rollout;
    invar_audit *audit = NULL;

    own.no_graphs = mode == PLAIN;
    assert_ok(invar_rollout_new(&rollout, model, NULL, dev, &own));
    if (mode == REFUSED)
        invar_fake_gpu_refuse_graphs();
    if (mode == AUDITED) {
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

/* Checks the first `modes` ways to run decode passes. */
static void check_graphs(invar_test_model kind, const invar_rollout_exec_options *limits, int modes)
{
    invar_rl_samples expected[2], got[2];

    for (int mode = 0; mode < modes; mode++) {
        int64_t runs;
        model_pair m;

        model_pair_new(&m, kind, INVAR_FORMAT_BF16, INVAR_NUMERICS_IEEE);
        if (mode == 0)
            generate_twice(expected, m.near_model, &m.near, limits, PLAIN);
        generate_twice(got, m.far_model, &m.far, limits, (decode_mode)mode);
        runs = invar_fake_gpu_counted().graph_runs;
        if ((mode == GRAPHS) != (runs > 0))
            fail_msg("decoding %d: %d graphs ran", mode, (int)runs);
        for (int i = 0; i < 2; i++) {
            prompts_assert_equal(&got[i], &expected[i], "graphs");
            invar_rl_samples_reset(&got[i]);
        }
        model_pair_free(&m);
        assert_int_equal(invar_fake_gpu_counted().live_graphs, 0);
    }
    for (int i = 0; i < 2; i++)
        invar_rl_samples_reset(&expected[i]);
}

/* Sequences end one after the other, with and without pages for the padding sequences of graphs. */
static void test_fake_gpu_model__graphs_change_no_bit(void **state)
{
    static const invar_rollout_exec_options options_of[] = {
        {.concurrency = 16},
        {.concurrency = 10, .page_size = 2},
        {.page_size = 16, .pages = 9},
        {.page_size = 1, .pages = 48},          // samples are preempted
        {.concurrency = 5, .prefill_chunk = 1}, // passes without sampled tokens
    };

    (void)state;
    for (int i = 0; i < 5; i++) {
        int modes = i == 3 || invar_test_full() ? DECODE_MODES : 1; // graphs only, except for one

        check_graphs(INVAR_TEST_MODEL_DENSE, &options_of[i], modes);
        if (i == 0 || invar_test_full())
            check_graphs(INVAR_TEST_MODEL_EXPERTS, &options_of[i], modes);
    }
}

/*
 * If all sequences have the same length, all passes except the first ones are graphs, for every
 * model.
 */
static void test_fake_gpu_model__equal_passes_are_graphs(void **state)
{
    static const int32_t prompt[] = {5, 6, 7};
    const invar_rollout_exec_options limits = {.page_size = 64};
    invar_sampling_params sampling = default_sampling;
    int step = invar_test_full() ? 1 : 3;

    (void)state;
    sampling.n_stop_ids = 0;
    for (int i = 0; i < INVAR_TEST_MODEL_COUNT * INVAR_FORMAT_COUNT; i += step) {
        invar_rollout_counters counted;
        invar_rl_samples samples = {0};
        invar_rollout *rollout;
        model_pair m;

        model_pair_new(&m, (invar_test_model)(i % INVAR_TEST_MODEL_COUNT),
                       (invar_format)(i / INVAR_TEST_MODEL_COUNT), INVAR_NUMERICS_IEEE);
        for (uint32_t n = 0; n < 4; n++)
            assert_ok(prompts_add(&samples, prompt, 3, n, n));
        assert_ok(invar_rollout_new(&rollout, m.far_model, NULL, &m.far, &limits));
        assert_ok(invar_rollout_run(rollout, samples.items, samples.count, &sampling, NULL, NULL));
        invar_rollout_get_counters(&counted, rollout);
        invar_rollout_free(rollout);
        invar_rl_samples_reset(&samples);
        // at most three passes are not: the prefill, the first decode pass, and one after the
        // scratch grew
        if (counted.passes < RESPONSE || invar_fake_gpu_counted().graph_runs < counted.passes - 3)
            fail_msg("%s: %d of %d passes were graphs",
                     invar_test_model_name((invar_test_model)(i % INVAR_TEST_MODEL_COUNT)),
                     (int)invar_fake_gpu_counted().graph_runs, (int)counted.passes);
        model_pair_free(&m);
    }
}

/* ---- draws ----------------------------------------------------------------------------------- */

/* Generates more samples of one prompt than are sampled in one call. */
static void generate_many(invar_rl_samples *out, const invar_model *model, const invar_device *dev,
                          int64_t concurrency)
{
    static const int32_t prompt[] = {5, 6, 7};
    const invar_rollout_exec_options limits = {.concurrency = concurrency};
    invar_sampling_params sampling = default_sampling;
    invar_rollout *rollout;

    *out = (invar_rl_samples){0};
    for (uint32_t i = 0; i < MANY_SAMPLES; i++)
        assert_ok(prompts_add(out, prompt, 3, 0, i));
    sampling.max_response = 2;
    sampling.min_response = 1;
    assert_ok(invar_rollout_new(&rollout, model, NULL, dev, &limits));
    assert_ok(invar_rollout_run(rollout, out->items, out->count, &sampling, NULL, NULL));
    invar_rollout_free(rollout);
}

static void test_fake_gpu_model__more_draws_than_fit(void **state)
{
    invar_rl_samples few_at_a_time, near, far;
    model_pair m;

    (void)state;
    model_pair_new(&m, INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, INVAR_NUMERICS_IEEE);
    generate_many(&few_at_a_time, m.near_model, &m.near, 7);
    generate_many(&near, m.near_model, &m.near, MANY_SAMPLES);
    generate_many(&far, m.far_model, &m.far, MANY_SAMPLES);
    prompts_assert_equal(&near, &few_at_a_time, "many at a time");
    prompts_assert_equal(&far, &few_at_a_time, "many at a time, far");
    invar_rl_samples_reset(&few_at_a_time);
    invar_rl_samples_reset(&near);
    invar_rl_samples_reset(&far);
    model_pair_free(&m);
}

/* ---- training -------------------------------------------------------------------------------- */

static invar_status sum_loss(void *payload, int64_t first, int64_t count, const float *logps,
                             const float *entropy, float *dlogps, float *dentropy)
{
    int64_t tokens = invar_trainer_tokens((const invar_rl_sample *)payload + first, count);

    (void)logps, (void)entropy, (void)dentropy;
    for (int64_t i = 0; i < tokens; i++)
        dlogps[i] = -1.0f;
    return INVAR_OK;
}

/* Returns how often the host waits for the device in the second of two optimizer steps. */
static int64_t count_waits(const model_pair *m, const invar_rl_samples *samples, invar_model *model,
                           const invar_trainer_options *options, bool probed,
                           int64_t *micro_batches_out)
{
    const invar_adamw_options adamw = {
        .beta1 = 0.9f, .beta2 = 0.98f, .eps = 1e-8f, .clip_grad = 1.0f};
    static float logps[TOKENS];
    invar_trainer_loss loss = {.run = sum_loss, .payload = samples->items};
    invar_trainer_result result = {.train_logp = logps};
    invar_optimizer *optimizer;
    invar_trainer *trainer;
    invar_grads *grads;
    invar_probe *probe;
    invar_point_namer view = {.prefix = ""};
    const invar_forward_hooks hooks = {.on_value = invar_probe_on_value, .payload = &view};
    invar_probe_result points;
    float norm, clip;
    int64_t before = 0;

    assert_ok(invar_probe_new(&probe,
                              &(invar_probe_options){.level = INVAR_PROBE_POINT, .dev = &m->far}));
    view.probe = probe;
    assert_ok(invar_trainer_new(&trainer, &m->far, options));
    invar_trainer_set_hooks(trainer, probed ? &hooks : NULL);
    assert_ok(invar_optimizer_new(&optimizer, model, 0));
    assert_ok(invar_grads_new(&grads, model));
    for (int step = 0; step < 2; step++) {
        before = invar_fake_gpu_counted().waits;
        invar_probe_begin(probe, NULL);
        assert_ok(invar_grads_zero(grads));
        assert_ok(invar_trainer_forward_backward(trainer, model, samples->items, samples->count,
                                                 &loss, grads, &result));
        assert_ok(invar_optimizer_norm(&norm, &clip, model, grads, true, adamw.clip_grad, &m->far));
        assert_ok(
            invar_optimizer_step(optimizer, model, grads, clip, 1e-3f, true, &adamw, &m->far));
        assert_ok(invar_probe_finish(&points, probe));
        assert_int_equal(points.count > 0, probed);
    }
    *micro_batches_out = result.micro_batches;
    before = invar_fake_gpu_counted().waits - before;
    invar_grads_free(grads);
    invar_optimizer_free(optimizer);
    invar_trainer_free(trainer);
    invar_probe_free(probe);
    return before;
}

/*
 * A step waits once per micro-batch for the log-probs and once for the expert ids, once for the
 * norm, and, if it is probed, once for the digests.
 */
static void test_fake_gpu_model__a_step_waits_for_what_is_recorded(void **state)
{
    const invar_rollout_exec_options limits = {.concurrency = 7};
    const invar_trainer_options options[] = {
        {.plan = {TOKENS, 3, 1, 0}, .head_rows = TOKENS, .temperature = 1.0f},
        {.plan = {TOKENS, 3, 4, 0}, .head_rows = TOKENS, .temperature = 1.0f},
        {.plan = {TOKENS, 3, 100, 0}, .head_rows = TOKENS, .temperature = 1.0f}};

    (void)state;
    for (int kind = 0; kind < INVAR_TEST_MODEL_COUNT; kind++) {
        invar_rl_samples samples;
        model_pair m;

        model_pair_new(&m, (invar_test_model)kind, INVAR_FORMAT_BF16, INVAR_NUMERICS_IEEE);
        generate_samples(&samples, m.near_model, &m.near, &limits, &default_sampling);
        for (int i = 0; i < 2 * (int)(sizeof options / sizeof *options); i++) {
            bool probed = i % 2;
            int64_t micro_batches;
            int64_t waits =
                count_waits(&m, &samples, m.far_model, &options[i / 2], probed, &micro_batches);

            if (waits != micro_batches * (m.far_model->spec.experts.count ? 2 : 1) + 1 + probed)
                fail_msg("%s: %d waits in a step of %d micro-batches%s",
                         invar_test_model_name((invar_test_model)kind), (int)waits,
                         (int)micro_batches, probed ? ", watched" : "");
        }
        invar_rl_samples_reset(&samples);
        model_pair_free(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fake_gpu_model__every_kind_and_format),
        cmocka_unit_test(test_fake_gpu_model__every_sampling_parameter),
        cmocka_unit_test(test_fake_gpu_model__graphs_change_no_bit),
        cmocka_unit_test(test_fake_gpu_model__equal_passes_are_graphs),
        cmocka_unit_test(test_fake_gpu_model__more_draws_than_fit),
        cmocka_unit_test(test_fake_gpu_model__a_step_waits_for_what_is_recorded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
