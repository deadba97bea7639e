/*
 * named_op.c - an op that computes something else is named by the first point that differs.
 *
 * For every op of a training step, a device whose op flips a bit in every row of its result. The
 * points of the step are then compared as a diff does: the first one that differs has that op, its
 * inputs are equal, and every op that has no point makes gradients of parameters alone.
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

static invar_op planted;
static bool with_parts; /* fused calls are computed by their parts, too */
static bool tied;       /* a dense model whose head is its embedding */

/* ---- a step ---------------------------------------------------------------------------------- */

typedef struct outcome {
    points points;
    float now[MOST], entropy[MOST];
    invar_grads *grads;
} outcome;

/* A loss whose derivatives depend on the log-probabilities. */
static invar_status run_loss(void *payload, int64_t first, int64_t count, const float *now,
                             const float *entropy, float *dnow, float *dentropy)
{
    const invar_rl_sample *samples = payload;
    int64_t tokens = invar_trainer_tokens(samples + first, count);

    (void)dentropy;
    (void)entropy;
    for (int64_t i = 0; i < tokens; i++)
        dnow[i] = now[i] + (float)i;
    return INVAR_OK;
}

static void learn(outcome *out, const invar_model *model, const invar_rl_samples *samples,
                  const invar_device *dev, int64_t level)
{
    invar_trainer_options options = {.plan = {1, 1, 2, 0}, .temperature = 1.0f};
    invar_trainer_loss loss = {.run = run_loss, .payload = samples->items};
    invar_trainer_result result = {.train_logp = out->now, .entropy = out->entropy};
    const invar_probe_options watched = {.level = level};
    invar_point_namer view = {.prefix = ""};
    invar_forward_hooks show = {
        .on_value = invar_probe_on_value, .payload = &view, .parts = with_parts};
    invar_trainer *trainer = NULL;

    memset(out, 0, sizeof *out);
    assert_ok(invar_probe_new(&view.probe, &watched));
    invar_probe_begin(view.probe, NULL);
    assert_ok(invar_grads_new(&out->grads, model));
    assert_ok(invar_grads_zero(out->grads));
    assert_ok(invar_trainer_new(&trainer, dev, &options));
    invar_trainer_set_hooks(trainer, &show);
    assert_ok(invar_trainer_forward_backward(trainer, model, samples->items, samples->count, &loss,
                                             out->grads, &result));
    assert_true(result.micro_batches > 1);
    invar_trainer_free(trainer);
    points_finish(&out->points, view.probe);
}

static void release(outcome *o)
{
    points_release(&o->points);
    invar_grads_free(o->grads);
}

/* ---- the property ---------------------------------------------------------------------------- */

/* Makes parameters' gradients and nothing else: the run's own points have those. An add, too, of a
 * tied head's two gradients. */
static bool makes_gradients(invar_op op)
{
    return op == INVAR_OP_LINEAR_DW || op == INVAR_OP_MOE_LINEAR_DW || op == INVAR_OP_TOKEN_SUM ||
           op == INVAR_OP_TOKEN_FOLD || op == INVAR_OP_EMBEDDING_BWD ||
           (op == INVAR_OP_ADD && tied);
}

static void assert_named(const outcome *right, const outcome *other, const char *what)
{
    // log-probabilities are points of the run; here the loss that is made of them shows
    const char *op = planted == INVAR_OP_LOGPROB_FWD ? "loss" : invar_op_name(planted);

    if (points_first(&right->points, &other->points) || !makes_gradients(planted))
        (void)points_named(&right->points, &other->points, op, what);
}

static bool gradients_differ(const outcome *a, const outcome *b, const invar_model *model)
{
    for (int64_t i = 0; i < model->n_params; i++)
        if (invar_tensors_differ(&a->grads->tensors[i], &b->grads->tensors[i]))
            return true;
    return false;
}

/* How many ops the step uses. */
static int sweep(invar_test_model kind, invar_format format, const invar_device *dev)
{
    invar_model *model = invar_test_model_new(kind, format, 3, dev);
    invar_device bad = *dev;
    invar_rl_samples samples = {0};
    outcome right, other;
    int used = 0;

    tied = model->spec.tied && model->spec.experts == 0;
    invar_test_samples(&samples, SAMPLES, LONGEST, model->spec.vocab, 7);
    learn(&right, model, &samples, dev, INVAR_PROBE_FULL);
    learn(&other, model, &samples, dev, INVAR_PROBE_FULL); // a control: nothing is planted
    assert_null(points_first(&right.points, &other.points));
    assert_false(gradients_differ(&right, &other, model));
    release(&other);
    for (planted = 0; planted < INVAR_OP_COUNT; planted++) {
        if (planted == INVAR_OP_MOE_PLAN) // an order of rows, no numbers
            continue;
        bad.backend = invar_wrong_backend(planted, NULL);
        learn(&other, model, &samples, &bad, INVAR_PROBE_FULL);
        if (invar_wrong_calls()) {
            assert_named(&right, &other, invar_test_model_name(kind));
            if (makes_gradients(planted)) // elsewhere a bit may vanish when it is rounded
                assert_true(gradients_differ(&right, &other, model));
            used++;
        }
        release(&other);
    }
    release(&right);
    invar_rl_samples_reset(&samples);
    invar_model_free(model);
    return used;
}

static void test_named_op__dense(void **state)
{
    const invar_device *dev = *state;

    assert_int_equal(sweep(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, dev), 13);
}

static void test_named_op__bias(void **state)
{
    const invar_device *dev = *state;

    assert_int_equal(sweep(INVAR_TEST_MODEL_BIAS, INVAR_FORMAT_FP32, dev), 15);
}

static void test_named_op__experts(void **state)
{
    const invar_device *dev = *state;

    assert_int_equal(sweep(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, dev), 23);
}

static void test_named_op__quantized(void **state)
{
    const invar_device *dev = *state;

    assert_int_equal(sweep(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP8, dev), 15);
    assert_int_equal(sweep(INVAR_TEST_MODEL_BIAS, INVAR_FORMAT_MXFP8, dev), 17);
}

/* Of every fused call; how many results there are. */
static int compare_parts(const points *p)
{
    int compared = 0;

    for (int64_t i = 0; i < p->count; i++) {
        const char *name = p->of[i].name;
        size_t length = strlen(name) - strlen(".parts");
        char whole[200];
        if (strlen(name) < strlen(".parts") || strcmp(name + length, ".parts") != 0)
            continue;
        snprintf(whole, sizeof whole, "%.*s", (int)length, name);
        assert_true(invar_digest_equal(&p->digests[i], &p->digests[points_number(p, whole)]));
        compared++;
    }
    return compared;
}

/* Its parts give what the right device gives: the fused call alone is wrong. */
static void assert_parts_are_right(const points *right, const points *other,
                                   const invar_ledger_point *fused)
{
    char name[200];
    int64_t parts, whole = points_number(right, fused->name);

    snprintf(name, sizeof name, "%s.parts", fused->name);
    parts = points_number(right, name);
    assert_false(points_differ(right, other, parts));
    assert_true(invar_digest_equal(&right->digests[whole], &right->digests[parts]));
    assert_false(invar_digest_equal(&other->digests[whole], &other->digests[parts]));
}

/* A fault of a fused kernel alone: watching runs the same calls, so it is there to be seen. */
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
    invar_device bad = *dev;
    invar_rl_samples samples = {0};
    const invar_ledger_point *first;
    outcome right, other;

    invar_test_samples(&samples, SAMPLES, LONGEST, model->spec.vocab, 7);
    with_parts = true;
    learn(&right, model, &samples, dev, INVAR_PROBE_FULL);
    // of a layer q.proj, k.proj, v, q, k, attn, gate, up, act, mlp; dattn, dq.proj, dk.proj, dx
    assert_int_equal(compare_parts(&right.points), 14 * model->spec.layers);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        planted = cases[i].op;
        bad.backend = invar_wrong_backend(planted, cases[i].field);
        learn(&other, model, &samples, &bad, INVAR_PROBE_FULL);
        assert_true(invar_wrong_calls() > 0);
        assert_named(&right, &other, "fused");
        first = points_first(&right.points, &other.points);
        assert_string_equal(first->name, cases[i].point);
        assert_parts_are_right(&right.points, &other.points, first);
        release(&other);
    }
    with_parts = false;
    release(&right);
    invar_rl_samples_reset(&samples);
    invar_model_free(model);
}

/* A control: without the finer points another op is named. */
static void test_named_op__needs_the_finer_points(void **state)
{
    const invar_device *dev = *state;
    invar_model *model = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, 3, dev);
    invar_device bad = *dev;
    invar_rl_samples samples = {0};
    outcome right, other;

    planted = INVAR_OP_ATTENTION_FWD;
    bad.backend = invar_wrong_backend(planted, NULL);
    invar_test_samples(&samples, SAMPLES, LONGEST, model->spec.vocab, 7);
    learn(&right, model, &samples, dev, INVAR_PROBE_POINT);
    learn(&other, model, &samples, &bad, INVAR_PROBE_POINT);
    assert_string_equal(points_first(&right.points, &other.points)->op, "linear.fwd");
    release(&right);
    release(&other);
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
