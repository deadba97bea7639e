/*
 * optimizer.c - tests of AdamW over a model against AdamW in double.
 *
 * Control: the model in double without weight decay must differ. Further tests: digests, weight
 * decay of matrices only, compute weights, gradients that are not finite, and reset.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/graph/op_runner.h"
#include "engine/train/optimizer.h"
#include "kernels-deterministic/math/bf16.h"
#include "tests/model.h"

static const invar_adamw_options adamw = {0.9f, 0.98f, 1e-8f, 0.1f, 1.0f};

static int64_t elements(const invar_tensor *t)
{
    return t->shape[0] * t->row_stride;
}

/* Fills gradients with values of different magnitude, which depend on the step. */
static void fill_gradients(invar_grads *grads, const invar_model *model, int step)
{
    for (int64_t p = 0; p < model->n_params; p++)
        for (int64_t i = 0; i < elements(&grads->tensors[p]); i++)
            ((float *)grads->tensors[p].data)[i] =
                invar_test_normal((uint64_t)(step * 1000 + p), (uint64_t)i, 0.1f) /
                    (float)(1 + i % 7) +
                0.01f;
}

/* ---- AdamW in double ------------------------------------------------------------------------- */

typedef struct double_adamw {
    double *master, *m, *v; /* elements of all parameters, concatenated */
    double power1, power2;  /* beta1 and beta2 to the number of steps */
} double_adamw;

static int64_t total(const invar_model *model)
{
    int64_t n = 0;

    for (int64_t p = 0; p < model->n_params; p++)
        n += elements(&model->params[p].master);
    return n;
}

static void double_adamw_new(double_adamw *t, const invar_model *model)
{
    size_t n = (size_t)total(model);
    double *to;

    t->master = to = calloc(n, sizeof(double));
    t->m = calloc(n, sizeof(double));
    t->v = calloc(n, sizeof(double));
    t->power1 = t->power2 = 1.0;
    assert_true(t->master && t->m && t->v);
    for (int64_t p = 0; p < model->n_params; p++)
        for (int64_t i = 0; i < elements(&model->params[p].master); i++)
            *to++ = (double)((const float *)model->params[p].master.data)[i];
}

static void double_adamw_free(double_adamw *t)
{
    free(t->master);
    free(t->m);
    free(t->v);
}

static double double_adamw_step(double_adamw *t, const invar_model *model, const invar_grads *grads,
                                double lr, double decay)
{
    double squares = 0.0, norm, clip;
    int64_t at = 0;

    for (int64_t p = 0; p < model->n_params; p++)
        for (int64_t i = 0; i < elements(&grads->tensors[p]); i++) {
            double g = (double)((const float *)grads->tensors[p].data)[i];
            squares += g * g;
        }
    norm = sqrt(squares);
    clip = (double)adamw.clip_grad / (norm + 1e-6);
    clip = adamw.clip_grad > 0.0f && clip < 1.0 ? clip : 1.0;
    t->power1 *= (double)adamw.beta1;
    t->power2 *= (double)adamw.beta2;
    for (int64_t p = 0; p < model->n_params; p++)
        for (int64_t i = 0; i < elements(&grads->tensors[p]); i++, at++) {
            double g = (double)((const float *)grads->tensors[p].data)[i] * clip;
            double own = model->params[p].cols ? decay : 0.0; // only matrices decay
            t->m[at] = (double)adamw.beta1 * t->m[at] + (1.0 - (double)adamw.beta1) * g;
            t->v[at] = (double)adamw.beta2 * t->v[at] + (1.0 - (double)adamw.beta2) * g * g;
            t->master[at] -= lr * (t->m[at] / (1.0 - t->power1) /
                                       (sqrt(t->v[at] / (1.0 - t->power2)) + (double)adamw.eps) +
                                   own * t->master[at]);
        }
    return norm;
}

/* Returns the largest difference between the masters of the model and those in double. */
static double max_distance(const double_adamw *t, const invar_model *model)
{
    double max = 0.0;
    int64_t at = 0;

    for (int64_t p = 0; p < model->n_params; p++)
        for (int64_t i = 0; i < elements(&model->params[p].master); i++, at++) {
            double d =
                fabs((double)((const float *)model->params[p].master.data)[i] - t->master[at]);
            max = d > max ? d : max;
        }
    return max;
}

static void test_optimizer__follows_adamw_in_double(void **state)
{
    const invar_device *dev = *state;
    const float lr = 0.01f;

    for (int kind = 0; kind < INVAR_TEST_MODEL_COUNT; kind++) {
        invar_model *model =
            invar_test_model_new((invar_test_model)kind, INVAR_FORMAT_FP32, 5, dev);
        invar_optimizer *optimizer = NULL;
        invar_grads *grads = NULL;
        double_adamw with_decay, no_decay; // control without weight decay
        float norm, clip;

        assert_ok(invar_optimizer_new(&optimizer, model, 0));
        assert_ok(invar_grads_new(&grads, model));
        double_adamw_new(&with_decay, model);
        double_adamw_new(&no_decay, model);
        for (int step = 0; step < 20; step++) {
            double expected;
            fill_gradients(grads, model, step);
            assert_ok(
                invar_optimizer_norm(&norm, &clip, model, grads, false, adamw.clip_grad, dev));
            assert_ok(invar_optimizer_step(optimizer, model, grads, clip, lr, false, &adamw, dev));
            expected = double_adamw_step(&with_decay, model, grads, (double)lr,
                                         (double)adamw.weight_decay);
            assert_true(fabs((double)norm - expected) < 1e-5 * expected);
            assert_true(clip < 1.0f);
            (void)double_adamw_step(&no_decay, model, grads, (double)lr, 0.0);
        }
        assert_int_equal(optimizer->steps, 20);
        assert_true(max_distance(&with_decay, model) < 2e-6);
        assert_true(max_distance(&no_decay, model) > 1e-4);
        double_adamw_free(&with_decay);
        double_adamw_free(&no_decay);
        invar_grads_free(grads);
        invar_optimizer_free(optimizer);
        invar_model_free(model);
    }
}

static void assert_digests(const invar_device *dev, const invar_digest *digests,
                           const invar_tensor *tensor, int64_t p)
{
    invar_digest expected;

    assert_ok(invar_hash_tree(dev, &(invar_hash_tree_args){&expected, tensor, 1, 1, NULL}));
    assert_memory_equal(&digests[p], &expected, sizeof expected);
}

/* The norm hashes gradients and the step hashes masters, but only if requested. */
static void test_optimizer__hashes_what_it_reads_and_writes(void **state)
{
    const invar_device *dev = *state;

    for (int kind = 0; kind < INVAR_TEST_MODEL_COUNT; kind++) {
        invar_model *model =
            invar_test_model_new((invar_test_model)kind, INVAR_FORMAT_BF16, 5, dev);
        size_t bytes = (size_t)model->n_params * sizeof(invar_digest);
        invar_digest *masters = calloc(1, bytes), *none = calloc(1, bytes);
        invar_optimizer *optimizer = NULL;
        invar_grads *grads = NULL;
        float norm[2], clip[2];

        assert_ok(invar_optimizer_new(&optimizer, model, 0));
        assert_ok(invar_grads_new(&grads, model));
        assert_true(invar_optimizer_can_hash(optimizer));
        fill_gradients(grads, model, 0);
        memset(grads->digests, 0, bytes);
        memset(optimizer->digests, 0, bytes);
        assert_ok(invar_optimizer_norm(&norm[0], &clip[0], model, grads, false, 1.0f, dev));
        assert_ok(invar_optimizer_step(optimizer, model, grads, 1.0f, 0.1f, false, &adamw, dev));
        assert_ok(invar_optimizer_digests(masters, optimizer, model));
        assert_memory_equal(grads->digests, none, bytes);
        assert_memory_equal(masters, none, bytes);
        assert_ok(invar_optimizer_norm(&norm[1], &clip[1], model, grads, true, 1.0f, dev));
        assert_ok(invar_optimizer_step(optimizer, model, grads, 1.0f, 0.1f, true, &adamw, dev));
        assert_ok(invar_optimizer_digests(masters, optimizer, model));
        for (int64_t p = 0; p < model->n_params; p++) {
            assert_digests(dev, grads->digests, &grads->tensors[p], p);
            assert_digests(dev, masters, &model->params[p].master, p);
        }
        assert_true(norm[0] == norm[1] && clip[0] == clip[1]);
        free(masters);
        free(none);
        invar_grads_free(grads);
        invar_optimizer_free(optimizer);
        invar_model_free(model);
    }
}

/* A step with zero gradients decays the matrices (embedding, router, head), no norm or bias. */
static void test_optimizer__decays_only_matrices(void **state)
{
    const invar_device *dev = *state;

    for (int kind = 0; kind < INVAR_TEST_MODEL_COUNT; kind++) {
        invar_model *model =
            invar_test_model_new((invar_test_model)kind, INVAR_FORMAT_FP32, 5, dev);
        invar_model *before =
            invar_test_model_new((invar_test_model)kind, INVAR_FORMAT_FP32, 5, dev);
        invar_optimizer *optimizer = NULL;
        invar_grads *grads = NULL;

        assert_ok(invar_optimizer_new(&optimizer, model, 0));
        assert_ok(invar_grads_new(&grads, model));
        assert_ok(invar_optimizer_step(optimizer, model, grads, 1.0f, 0.1f, false, &adamw, dev));
        for (int64_t p = 0; p < model->n_params; p++) {
            const invar_param *param = &model->params[p];
            bool changed = invar_tensors_differ(&param->master, &before->params[p].master);
            assert_int_equal(changed, param->cols > 0);
        }
        invar_grads_free(grads);
        invar_optimizer_free(optimizer);
        invar_model_free(before);
        invar_model_free(model);
    }
}

/* The compute weights after a step are those of the new masters, in every format. */
static void test_optimizer__compute_weights_follow(void **state)
{
    const invar_device *devs = *state;

    for (int format = 0; format < INVAR_FORMAT_COUNT; format++) {
        invar_model *model =
            invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, (invar_format)format, 5, &devs[0]);
        invar_model *requantized =
            invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, (invar_format)format, 5, &devs[0]);
        invar_optimizer *optimizer = NULL;
        invar_grads *grads = NULL;

        assert_ok(invar_optimizer_new(&optimizer, model, 0));
        assert_ok(invar_grads_new(&grads, model));
        fill_gradients(grads, model, 1);
        assert_ok(
            invar_optimizer_step(optimizer, model, grads, 1.0f, 0.1f, false, &adamw, &devs[2]));
        for (int64_t p = 0; p < model->n_params; p++) {
            assert_true(
                invar_tensors_differ(&model->params[p].weight, &requantized->params[p].weight));
            memcpy(requantized->params[p].master.data, model->params[p].master.data,
                   (size_t)elements(&model->params[p].master) * sizeof(float));
        }
        assert_ok(invar_model_update_weights(requantized, &devs[1]));
        for (int64_t p = 0; p < model->n_params; p++)
            invar_assert_bits_tensor(&model->params[p].weight, &requantized->params[p].weight,
                                     model->params[p].name);
        invar_grads_free(grads);
        invar_optimizer_free(optimizer);
        invar_model_free(requantized);
        invar_model_free(model);
    }
}

static void test_optimizer__names_a_gradient_that_is_not_finite(void **state)
{
    const invar_device *dev = *state;
    invar_model *model = invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_FP32, 5, dev);
    invar_grads *grads = NULL;
    const invar_param *bad = invar_model_find(model, "model.layers.1.mlp.experts.down_proj.weight");
    float norm, clip, *value;

    assert_ok(invar_grads_new(&grads, model));
    fill_gradients(grads, model, 1);
    value = grads->tensors[bad - model->params].data;
    value += elements(&bad->master) - 1;
    *value = NAN;
    assert_fails(invar_optimizer_norm(&norm, &clip, model, grads, false, 1.0f, dev), INVAR_E_STATE,
                 "model.layers.1.mlp.experts.down_proj.weight");
    *value = INFINITY;
    assert_fails(invar_optimizer_norm(&norm, &clip, model, grads, false, 1.0f, dev), INVAR_E_STATE,
                 "model.layers.1.mlp.experts.down_proj.weight");
    // finite gradients with a sum of squares that overflows
    for (int64_t p = 0; p < model->n_params; p++)
        ((float *)grads->tensors[p].data)[0] = 1e19f;
    *value = 0.0f;
    assert_fails(invar_optimizer_norm(&norm, &clip, model, grads, false, 1.0f, dev), INVAR_E_STATE,
                 "overflows");
    fill_gradients(grads, model, 1);
    assert_ok(invar_optimizer_norm(&norm, &clip, model, grads, false, 0.0f, dev));
    assert_true(clip == 1.0f); // clip_grad 0: no clipping
    invar_grads_free(grads);
    invar_model_free(model);
}

static void test_optimizer__reset_equals_a_new_one(void **state)
{
    const invar_device *dev = *state;
    invar_model *a = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, 5, dev);
    invar_model *b = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, 5, dev);
    invar_optimizer *stepped = NULL, *unused = NULL;
    invar_grads *grads = NULL;

    assert_ok(invar_optimizer_new(&stepped, a, 0));
    assert_ok(invar_optimizer_new(&unused, b, 0));
    assert_ok(invar_grads_new(&grads, a));
    fill_gradients(grads, a, 1);
    assert_ok(invar_optimizer_step(stepped, a, grads, 1.0f, 0.1f, false, &adamw, dev));
    assert_ok(invar_model_copy(b, a));
    fill_gradients(grads, a, 2);
    assert_ok(invar_optimizer_step(unused, b, grads, 1.0f, 0.1f, false, &adamw, dev));
    {
        invar_tensor start = invar_test_copy(&a->params[0].master);
        assert_ok(invar_optimizer_step(stepped, a, grads, 1.0f, 0.1f, false, &adamw, dev));
        assert_true(invar_tensors_differ(&a->params[0].master, &b->params[0].master)); // moments
        memcpy(a->params[0].master.data, start.data, (size_t)elements(&start) * sizeof(float));
        invar_test_free(&start);
    }
    assert_ok(invar_optimizer_reset(stepped));
    assert_int_equal(stepped->steps, 0);
    assert_ok(invar_optimizer_step(stepped, a, grads, 1.0f, 0.1f, false, &adamw, dev));
    invar_assert_bits_tensor(&a->params[0].master, &b->params[0].master, "after a reset");
    invar_grads_free(grads);
    invar_optimizer_free(stepped);
    invar_optimizer_free(unused);
    invar_model_free(a);
    invar_model_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optimizer__follows_adamw_in_double),
        cmocka_unit_test(test_optimizer__hashes_what_it_reads_and_writes),
        cmocka_unit_test(test_optimizer__decays_only_matrices),
        cmocka_unit_test(test_optimizer__compute_weights_follow),
        cmocka_unit_test(test_optimizer__names_a_gradient_that_is_not_finite),
        cmocka_unit_test(test_optimizer__reset_equals_a_new_one),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
