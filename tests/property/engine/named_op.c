/*
 * named_op.c - the first point that differs names the op that computed something else.
 *
 * For every op of a training step, faulty_op.h flips a bit in each row of its result, and the
 * points of the step are compared with those of a correct step. The first point that differs must
 * belong to the wrong op, with equal inputs; only ops that make nothing but parameter gradients
 * may have no such point. Controls: without a wrong op no point differs, and without the points of
 * level `full` another op is named.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "engine/model/probe/point_names.h"
#include "engine/train/trainer.h"
#include "tests/device/faulty_op.h"
#include "tests/model.h"
#include "tests/property/engine/points.h"

enum { SAMPLES = 5, LONGEST = 6, MOST = 256 };

static invar_op wrong_op; /* op that is wrong */
static bool with_parts;   /* fused calls are also computed by their parts */
static bool tied;         /* the model is dense and its head is its embedding */

/* ---- a step ---------------------------------------------------------------------------------- */

typedef struct outcome {
    points points;
    float logp[MOST], entropy[MOST];
    invar_grads *grads;
} outcome;

/* A loss whose derivatives depend on the log-probs. */
static invar_status run_loss(void *payload, int64_t first, int64_t count, const float *logp,
                             const float *entropy, float *dlogp, float *dentropy)
{
    const invar_rl_sample *samples = payload;
    int64_t tokens = invar_trainer_tokens(samples + first, count);

    (void)dentropy;
    (void)entropy;
    for (int64_t i = 0; i < tokens; i++)
        dlogp[i] = logp[i] + (float)i;
    return INVAR_OK;
}

static void run_step(outcome *out, const invar_model *model, const invar_rl_samples *samples,
                     const invar_device *dev, int64_t level)
{
    invar_trainer_options options = {.plan = {1, 1, 2, 0}, .temperature = 1.0f};
    invar_trainer_loss loss = {.run = run_loss, .payload = samples->items};
    invar_trainer_result result = {.train_logp = out->logp, .entropy = out->entropy};
    const invar_probe_options probe_options = {.level = level};
    invar_point_namer view = {.prefix = ""};
    invar_forward_hooks hooks = {
        .on_value = invar_probe_on_value, .payload = &view, .parts = with_parts};
    invar_trainer *trainer = NULL;

    memset(out, 0, sizeof *out);
    assert_ok(invar_probe_new(&view.probe, &probe_options));
    invar_probe_begin(view.probe, NULL);
    assert_ok(invar_grads_new(&out->grads, model));
    assert_ok(invar_grads_zero(out->grads));
    assert_ok(invar_trainer_new(&trainer, dev, &options));
    invar_trainer_set_hooks(trainer, &hooks);
    assert_ok(invar_trainer_forward_backward(trainer, model, samples->items, samples->count, &loss,
                                             out->grads, &result));
    assert_true(result.micro_batches > 1);
    invar_trainer_free(trainer);
    points_finish(&out->points, view.probe);
}

static void release_outcome(outcome *o)
{
    points_release(&o->points);
    invar_grads_free(o->grads);
}

/* ---- the property ---------------------------------------------------------------------------- */

/*
 * Returns whether the op makes gradients of parameters only, which are points of the run, not of
 * the step. An add makes the sum of a tied head's two gradients.
 */
static bool makes_gradients(invar_op op)
{
    return op == INVAR_OP_LINEAR_DW || op == INVAR_OP_MOE_LINEAR_DW || op == INVAR_OP_TOKEN_SUM ||
           op == INVAR_OP_TOKEN_FOLD || op == INVAR_OP_EMBEDDING_BWD ||
           (op == INVAR_OP_ADD && tied);
}

static void assert_wrong_op_named(const outcome *correct, const outcome *faulty, const char *what)
{
    // log-probs are points of the run; the first point here is the loss that depends on them
    const char *op = wrong_op == INVAR_OP_LOGPROB_FWD ? "loss" : invar_op_name(wrong_op);

    if (points_first(&correct->points, &faulty->points) || !makes_gradients(wrong_op))
        (void)points_named(&correct->points, &faulty->points, op, what);
}

static bool gradients_differ(const outcome *a, const outcome *b, const invar_model *model)
{
    for (int64_t i = 0; i < model->n_params; i++)
        if (invar_tensors_differ(&a->grads->tensors[i], &b->grads->tensors[i]))
            return true;
    return false;
}

/* Tests every op, one after the other. Returns the number of ops that the step uses. */
static int check_all_ops(invar_test_model kind, invar_format format, const invar_device *dev)
{
    invar_model *model = invar_test_model_new(kind, format, 3, dev);
    invar_device faulty_device = *dev;
    invar_rl_samples samples = {0};
    outcome correct, faulty;
    int n_used = 0;

    tied = model->spec.tied && model->spec.experts.count == 0;
    invar_test_samples(&samples, SAMPLES, LONGEST, model->spec.vocab, 7);
    run_step(&correct, model, &samples, dev, INVAR_PROBE_FULL);
    run_step(&faulty, model, &samples, dev, INVAR_PROBE_FULL); // control: no op is wrong
    assert_null(points_first(&correct.points, &faulty.points));
    assert_false(gradients_differ(&correct, &faulty, model));
    release_outcome(&faulty);
    for (wrong_op = 0; wrong_op < INVAR_OP_COUNT; wrong_op++) {
        if (wrong_op == INVAR_OP_MOE_PLAN) // the result is an order of rows, not numbers
            continue;
        faulty_device.backend = invar_faulty_op_backend(wrong_op, NULL);
        run_step(&faulty, model, &samples, &faulty_device, INVAR_PROBE_FULL);
        if (invar_faulty_op_calls()) {
            assert_wrong_op_named(&correct, &faulty, invar_test_model_name(kind));
            if (makes_gradients(wrong_op)) // the bit may vanish in later rounding of other results
                assert_true(gradients_differ(&correct, &faulty, model));
            n_used++;
        }
        release_outcome(&faulty);
    }
    release_outcome(&correct);
    invar_rl_samples_reset(&samples);
    invar_model_free(model);
    return n_used;
}

static void test_named_op__dense(void **state)
{
    const invar_device *dev = *state;

    assert_int_equal(check_all_ops(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, dev), 13);
}

static void test_named_op__bias(void **state)
{
    const invar_device *dev = *state;

    assert_int_equal(check_all_ops(INVAR_TEST_MODEL_BIAS, INVAR_FORMAT_FP32, dev), 15);
}

static void test_named_op__experts(void **state)
{
    const invar_device *dev = *state;

    assert_int_equal(check_all_ops(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, dev), 23);
}

static void test_named_op__quantized(void **state)
{
    const invar_device *dev = *state;

    assert_int_equal(check_all_ops(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP8, dev), 15);
    assert_int_equal(check_all_ops(INVAR_TEST_MODEL_BIAS, INVAR_FORMAT_MXFP8, dev), 17);
}

/* Compares every fused call with its parts. Returns the number of results. */
static int compare_parts(const points *p)
{
    int n_compared = 0;

    for (int64_t i = 0; i < p->count; i++) {
        const char *name = p->defs[i].name;
        size_t length = strlen(name) - strlen(".parts");
        char fused_point[200];
        if (strlen(name) < strlen(".parts") || strcmp(name + length, ".parts") != 0)
            continue;
        snprintf(fused_point, sizeof fused_point, "%.*s", (int)length, name);
        assert_true(invar_digest_equal(&p->digests[i], &p->digests[points_number(p, fused_point)]));
        n_compared++;
    }
    return n_compared;
}

/* Asserts that the parts have the correct result, while that of the fused call is wrong. */
static void assert_parts_are_right(const points *correct, const points *faulty,
                                   const invar_ledger_point *fused)
{
    char name[200];
    int64_t parts, fused_point = points_number(correct, fused->name);

    snprintf(name, sizeof name, "%s.parts", fused->name);
    parts = points_number(correct, name);
    assert_false(points_differ(correct, faulty, parts));
    assert_true(invar_digest_equal(&correct->digests[fused_point], &correct->digests[parts]));
    assert_false(invar_digest_equal(&faulty->digests[fused_point], &faulty->digests[parts]));
}

/* A fault in a fused kernel only is found, since probing does not replace fused calls. */
static void test_named_op__fused_alone(void **state)
{
    static const struct {
        invar_op op;
        const char *field, *point;
    } cases[] = {{INVAR_OP_LINEAR_FWD, "residual", "layer.0.attn"},
                 {INVAR_OP_RMSNORM_FWD, "rotation.positions", "layer.0.q"},
                 {INVAR_OP_RMSNORM_BWD, "residual", "layer.1.dattn"}};
    const invar_device *dev = *state;
    invar_model *model = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, 3, dev);
    invar_device faulty_device = *dev;
    invar_rl_samples samples = {0};
    const invar_ledger_point *first;
    outcome correct, faulty;

    invar_test_samples(&samples, SAMPLES, LONGEST, model->spec.vocab, 7);
    with_parts = true;
    run_step(&correct, model, &samples, dev, INVAR_PROBE_FULL);
    // per layer: q.proj, k.proj, v, q, k, attn, gate, up, act, mlp; dattn, dq.proj, dk.proj, dx
    assert_int_equal(compare_parts(&correct.points), 14 * model->spec.layers);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        wrong_op = cases[i].op;
        faulty_device.backend = invar_faulty_op_backend(wrong_op, cases[i].field);
        run_step(&faulty, model, &samples, &faulty_device, INVAR_PROBE_FULL);
        assert_true(invar_faulty_op_calls() > 0);
        assert_wrong_op_named(&correct, &faulty, "fused");
        first = points_first(&correct.points, &faulty.points);
        assert_string_equal(first->name, cases[i].point);
        assert_parts_are_right(&correct.points, &faulty.points, first);
        release_outcome(&faulty);
    }
    with_parts = false;
    release_outcome(&correct);
    invar_rl_samples_reset(&samples);
    invar_model_free(model);
}

/* Control: without the points of level `full`, another op is named. */
static void test_named_op__needs_the_finer_points(void **state)
{
    const invar_device *dev = *state;
    invar_model *model = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, 3, dev);
    invar_device faulty_device = *dev;
    invar_rl_samples samples = {0};
    outcome correct, faulty;

    wrong_op = INVAR_OP_ATTENTION_FWD;
    faulty_device.backend = invar_faulty_op_backend(wrong_op, NULL);
    invar_test_samples(&samples, SAMPLES, LONGEST, model->spec.vocab, 7);
    run_step(&correct, model, &samples, dev, INVAR_PROBE_POINT);
    run_step(&faulty, model, &samples, &faulty_device, INVAR_PROBE_POINT);
    assert_string_equal(points_first(&correct.points, &faulty.points)->op, "linear.fwd");
    release_outcome(&correct);
    release_outcome(&faulty);
    invar_rl_samples_reset(&samples);
    invar_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_named_op__dense),
        cmocka_unit_test(test_named_op__bias),
        cmocka_unit_test(test_named_op__experts),
        cmocka_unit_test(test_named_op__quantized),
        cmocka_unit_test(test_named_op__fused_alone),
        cmocka_unit_test(test_named_op__needs_the_finer_points),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
