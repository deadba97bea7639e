/*
 * rollout_points.c - the points of a rollout do not depend on its execution, and name a wrong op.
 *
 * Digests of all points are compared for any prefill chunk, pages, number of concurrent sequences,
 * prefix sharing, threads and device, with and without graphs, for sampled and for given tokens
 * (teacher forcing). Then faulty_op.h makes every op of the paged forward wrong while the tokens
 * are given, and the first point that differs must belong to it. Control: without the points of
 * level `full`, another op or none is named.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/probe/rollout_points.h"
#include "tests/device/fake_gpu.h"
#include "tests/device/faulty_op.h"
#include "tests/property/engine/points.h"
#include "tests/property/engine/rollout_variants.h"
#include "tests/unit/engine/sample/rollout/prompts.h"

enum { GROUPS = 5, EACH = 4, LONGEST = 11, RESPONSE = 9, MOST = 32 };

static const invar_sampling_params default_sampling = PROMPTS_SAMPLING(RESPONSE);

/* ---- a rollout that is watched --------------------------------------------------------------- */

static void define_tokens(invar_probe *probe)
{
    const int64_t any = -1;
    const invar_ledger_point tokens = {.name = "batch.tokens",
                                       .phase = "rollout",
                                       .layer = -1,
                                       .op = "sample",
                                       .kind = "data",
                                       .dtype = "i32",
                                       .shape = &any,
                                       .dims = 1,
                                       .shards = 1};
    int64_t number;

    assert_ok(invar_probe_define(&number, probe, &tokens));
    assert_ok(invar_probe_digest(probe, number, &(invar_digest){{0}}));
}

static void finish(points *out, invar_probe *probe, invar_rollout_points *sequences,
                   const invar_rl_samples *samples)
{
    static const char *const given[] = {"batch.tokens", NULL};
    const invar_point_namer view = {
        .probe = probe, .prefix = "rollout.", .phase = "rollout", .given = {given, NULL}};
    uint32_t draws[MOST];

    assert_true(samples->count <= MOST);
    for (int64_t i = 0; i < samples->count; i++)
        draws[i] = samples->items[i].draw_index;
    invar_probe_begin(probe, NULL);
    define_tokens(probe);
    assert_ok(invar_rollout_points_emit(sequences, &view, draws, samples->count));
    points_finish(out, probe);
}

/*
 * Records the points of a rollout: samples that have a response are teacher-forced, others sampled.
 */
static void record_points(points *out, invar_rl_samples *samples, const invar_model *model,
                          const invar_device *dev, const invar_rollout_exec_options *limits,
                          int64_t level, bool graph_safe_hooks)
{
    const invar_probe_options options = {.level = level, .dev = dev};
    invar_rollout_hooks hooks = {.on_pass_end = invar_rollout_points_flush};
    invar_rollout_points *sequences;
    invar_rollout *rollout;
    invar_probe *probe;

    assert_ok(invar_probe_new(&probe, &options));
    assert_ok(invar_rollout_points_new(&sequences, &options));
    hooks.probe = (invar_forward_hooks){.on_value = invar_rollout_points_on_value,
                                        .payload = sequences,
                                        .graph_safe = graph_safe_hooks};
    assert_ok(invar_rollout_new(&rollout, model, NULL, dev, limits));
    invar_rollout_set_hooks(rollout, &hooks);
    if (samples->items[0].finish == INVAR_FINISH_NONE)
        assert_ok(invar_rollout_run(rollout, samples->items, samples->count, &default_sampling,
                                    NULL, NULL));
    else
        assert_ok(invar_rollout_teacher_force(rollout, samples->items, samples->count,
                                              &default_sampling, NULL, NULL));
    invar_rollout_free(rollout);
    finish(out, probe, sequences, samples);
    invar_rollout_points_free(sequences);
}

static void assert_same(const points *a, const points *b, const char *what)
{
    const invar_ledger_point *p = points_first(a, b);

    if (p)
        fail_msg("%s: %s differs", what, p->name);
}

/* ---- execution ------------------------------------------------------------------------------- */

static void check_variant(const points *expected, const invar_model *model,
                          const rollout_variant *w, bool given)
{
    const invar_rollout_exec_options limits = variant_limits(w, LONGEST + RESPONSE);
    invar_rl_samples samples;
    invar_device dev;
    points got;
    char what[100];

    variant_describe(what, sizeof what, w);
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, w->threads);
    assert_ok(prompts_new(&samples, GROUPS, EACH, LONGEST, model->spec.vocab));
    record_points(&got, &samples, model, &dev, &limits, INVAR_PROBE_FULL, true);
    assert_same(expected, &got, what);
    points_release(&got);
    if (given) {
        snprintf(what + strlen(what), sizeof what - strlen(what), ", given");
        record_points(&got, &samples, model, &dev, &limits, INVAR_PROBE_FULL, true);
        assert_same(expected, &got, what);
        points_release(&got);
    }
    invar_rl_samples_reset(&samples);
    invar_test_device_release(&dev);
}

/*
 * Checks the fake GPU, whose memory the host cannot access: with graphs, without them, and with
 * hooks that are not graph safe.
 */
static void check_fake_gpu(const points *expected, const invar_device *near, invar_test_model kind,
                           invar_format format)
{
    static const char *const names[] = {"far", "far without graphs", "far without a tape"};
    invar_device dev = *near;
    invar_rl_samples samples;
    invar_model *model;
    points got;

    for (int i = 0; i < 3; i++) {
        // passes of 9 and of 11 sequences are padded in graphs
        const invar_rollout_exec_options limits = {.concurrency = 12, .no_graphs = i == 1};
        invar_fake_gpu_begin(0);
        dev.backend = invar_fake_gpu_backend();
        dev.scratch = NULL;
        assert_ok(invar_device_open(&dev));
        model = invar_test_model_new(kind, format, 3, &dev);
        assert_ok(prompts_new(&samples, GROUPS, EACH, LONGEST, model->spec.vocab));
        record_points(&got, &samples, model, &dev, &limits, INVAR_PROBE_FULL, i < 2);
        assert_same(expected, &got, names[i]);
        assert_int_equal(invar_fake_gpu_counted().graph_runs > 0, i == 0);
        points_release(&got);
        invar_rl_samples_reset(&samples);
        invar_model_free(model);
        assert_int_equal(invar_fake_gpu_counted().live, 0);
        invar_device_close(&dev);
    }
}

static const struct {
    invar_test_model kind;
    invar_format format;
} settings[] = {{INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16},
                {INVAR_TEST_MODEL_BIAS, INVAR_FORMAT_FP32},
                {INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16},
                {INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP8},
                {INVAR_TEST_MODEL_WINDOW, INVAR_FORMAT_MXFP8}};

enum { SETTINGS = sizeof settings / sizeof *settings };

static void test_rollout_points__do_not_depend_on_execution(void **state)
{
    const invar_device *dev = *state;

    for (int64_t i = 0; i < SETTINGS; i++) {
        invar_model *model = invar_test_model_new(settings[i].kind, settings[i].format, 3, dev);
        const invar_rollout_exec_options limits = {0};
        invar_rl_samples samples;
        points expected;

        assert_ok(prompts_new(&samples, GROUPS, EACH, LONGEST, model->spec.vocab));
        record_points(&expected, &samples, model, dev, &limits, INVAR_PROBE_FULL, true);
        for (int64_t n = 0; n < invar_test_count(3, VARIANTS); n++)
            check_variant(&expected, model, &variants[(i + 2 * n) % VARIANTS], n == 0);
        check_fake_gpu(&expected, dev, settings[i].kind, settings[i].format);
        points_release(&expected);
        invar_rl_samples_reset(&samples);
        invar_model_free(model);
    }
}

/* Each point has another digest for one sample than for all, and for another sample. */
static void test_rollout_points__depend_on_the_samples(void **state)
{
    const invar_device *dev = *state;
    invar_model *model = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, 3, dev);
    const invar_rollout_exec_options limits = {.concurrency = 3};
    const invar_rl_sample *last;
    invar_rl_samples samples, one = {0};
    points all, alone, other;

    assert_ok(prompts_new(&samples, GROUPS, EACH, LONGEST, model->spec.vocab));
    record_points(&all, &samples, model, dev, &limits, INVAR_PROBE_FULL, true);
    last = &samples.items[samples.count - 1];
    assert_ok(prompts_add(&one, last->tokens, last->prompt_tokens, last->group, last->draw_index));
    record_points(&alone, &one, model, dev, &limits, INVAR_PROBE_FULL, true);
    for (int64_t i = 1; i < all.count; i++)
        assert_true(points_differ(&all, &alone, i));
    invar_rl_samples_reset(&samples);
    assert_ok(prompts_new(&samples, 1, 1, LONGEST, model->spec.vocab));
    record_points(&other, &samples, model, dev, &limits, INVAR_PROBE_FULL, true);
    for (int64_t i = 1; i < all.count; i++)
        assert_true(points_differ(&other, &alone, i));
    points_release(&all);
    points_release(&alone);
    points_release(&other);
    invar_rl_samples_reset(&samples);
    invar_rl_samples_reset(&one);
    invar_model_free(model);
}

/* ---- names ----------------------------------------------------------------------------------- */

/* Tests every op, one after the other. Returns the number of ops that the rollout uses. */
static int check_all_ops(invar_test_model kind, invar_format format, const invar_device *dev)
{
    invar_model *model = invar_test_model_new(kind, format, 3, dev);
    const invar_rollout_exec_options limits = {.concurrency = 4, .prefill_chunk = 5};
    invar_device faulty_device = *dev;
    invar_rl_samples samples;
    const invar_ledger_point *first;
    points right, other;
    int n_used = 0;

    assert_ok(prompts_new(&samples, GROUPS, EACH, LONGEST, model->spec.vocab));
    record_points(&right, &samples, model, dev, &limits, INVAR_PROBE_FULL, true);
    for (invar_op op = 0; op < INVAR_OP_COUNT; op++) {
        // results that are not numbers of the model
        if (op == INVAR_OP_MOE_PLAN || op == INVAR_OP_HASH_LEAVES)
            continue;
        faulty_device.backend = invar_faulty_op_backend(op, NULL);
        record_points(&other, &samples, model, &faulty_device, &limits, INVAR_PROBE_FULL, true);
        if (invar_faulty_op_calls()) {
            first = points_named(&right, &other, invar_op_name(op), invar_test_model_name(kind));
            assert_true(first->n_inputs > 0);
            n_used++;
        }
        points_release(&other);
    }
    points_release(&right);
    invar_rl_samples_reset(&samples);
    invar_model_free(model);
    return n_used;
}

static void test_rollout_points__name_every_op(void **state)
{
    static const int ops[SETTINGS] = {7, 8, 13, 9, 10};
    const invar_device *dev = *state;

    for (int64_t i = 0; i < SETTINGS; i++)
        assert_int_equal(check_all_ops(settings[i].kind, settings[i].format, dev), ops[i]);
}

/* A single wrong call, in the last pass, is found. */
static void test_rollout_points__name_a_single_call(void **state)
{
    static const struct {
        invar_op op;
        const char *point, *coarse;
    } cases[] = {{INVAR_OP_KV_WRITE, "rollout.layer.1.k.cache", "rollout.layer.1.attn"},
                 {INVAR_OP_ATTENTION_PAGED, "rollout.layer.1.o", NULL}, // rounded away
                 {INVAR_OP_SAMPLE, "rollout.token", NULL}};
    const invar_device *dev = *state;
    invar_model *model = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, 3, dev);
    const invar_rollout_exec_options limits = {.concurrency = 4};
    invar_device faulty_device = *dev;
    invar_rl_samples samples;
    const invar_ledger_point *first;
    points right[2], other;
    int64_t last;

    assert_ok(prompts_new(&samples, GROUPS, EACH, LONGEST, model->spec.vocab));
    for (int level = INVAR_PROBE_POINT; level <= INVAR_PROBE_FULL; level++)
        record_points(&right[level - 1], &samples, model, dev, &limits, level, true);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        faulty_device.backend = invar_faulty_op_backend(cases[i].op, NULL);
        record_points(&other, &samples, model, &faulty_device, &limits, INVAR_PROBE_FULL, true);
        points_release(&other);
        last = invar_faulty_op_calls() - 1;
        faulty_device.backend = invar_faulty_op_backend(cases[i].op, NULL);
        invar_faulty_op_skip(last);
        record_points(&other, &samples, model, &faulty_device, &limits, INVAR_PROBE_FULL, true);
        assert_int_equal(invar_faulty_op_calls(), 1);
        first = points_named(&right[1], &other, invar_op_name(cases[i].op), "the last call");
        assert_string_equal(first->name, cases[i].point);
        assert_true(points_differ(&right[1], &other, points_number(&other, cases[i].point)));
        points_release(&other);
        // control: the points of level `point` name another op or none for the same call
        faulty_device.backend = invar_faulty_op_backend(cases[i].op, NULL);
        invar_faulty_op_skip(last);
        record_points(&other, &samples, model, &faulty_device, &limits, INVAR_PROBE_POINT, true);
        assert_int_equal(invar_faulty_op_calls(), 1);
        first = points_first(&right[0], &other);
        if (cases[i].coarse) {
            assert_non_null(first);
            assert_string_equal(first->name, cases[i].coarse);
            assert_string_equal(first->op, "linear.fwd");
        } else {
            assert_null(first);
        }
        points_release(&other);
    }
    points_release(&right[0]);
    points_release(&right[1]);
    invar_rl_samples_reset(&samples);
    invar_model_free(model);
}

/* Given samples must be ones that could have been sampled. */
static void test_rollout_points__given_samples_are_checked(void **state)
{
    const invar_device *dev = *state;
    invar_model *model = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, 3, dev);
    const invar_rollout_exec_options limits = {0};
    invar_sampling_params shorter = default_sampling;
    invar_rl_samples samples;
    invar_rollout *rollout;
    invar_rl_sample *s;
    int32_t token;

    assert_ok(prompts_new(&samples, GROUPS, EACH, LONGEST, model->spec.vocab));
    assert_ok(invar_rollout_new(&rollout, model, NULL, dev, &limits));
    assert_fails(invar_rollout_teacher_force(rollout, samples.items, samples.count,
                                             &default_sampling, NULL, NULL),
                 INVAR_E_INVALID, "expected a response");
    assert_ok(
        invar_rollout_run(rollout, samples.items, samples.count, &default_sampling, NULL, NULL));
    assert_ok(invar_rollout_teacher_force(rollout, samples.items, samples.count, &default_sampling,
                                          NULL, NULL));
    shorter.max_response = 1;
    assert_fails(
        invar_rollout_teacher_force(rollout, samples.items, samples.count, &shorter, NULL, NULL),
        INVAR_E_INVALID, "tokens at most");
    s = &samples.items[2];
    token = s->tokens[s->n_tokens - 1];
    s->tokens[s->n_tokens - 1] = (int32_t)model->spec.vocab;
    assert_fails(invar_rollout_teacher_force(rollout, samples.items, samples.count,
                                             &default_sampling, NULL, NULL),
                 INVAR_E_INVALID, "in the response of sample 2");
    s->tokens[s->n_tokens - 1] = token;
    invar_rollout_free(rollout);
    invar_rl_samples_reset(&samples);
    invar_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rollout_points__do_not_depend_on_execution),
        cmocka_unit_test(test_rollout_points__depend_on_the_samples),
        cmocka_unit_test(test_rollout_points__name_every_op),
        cmocka_unit_test(test_rollout_points__name_a_single_call),
        cmocka_unit_test(test_rollout_points__given_samples_are_checked),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
