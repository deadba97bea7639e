/*
 * toy_family.c - a new model family needs one file for its block and one table row.
 *
 * tests/example_extension adds a block and its family; no product code knows them. The family must
 * have named parameters, gradients (compared with differences of the loss), the same bits in all
 * micro-batches and with recomputation, points with the right op and inputs, audits, and Hugging
 * Face files. Control: one unit for all samples gives other gradients.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/files/hf/hf.h"
#include "engine/files/hf/tensor_names.h"
#include "engine/model/audit/audit.h"
#include "engine/model/probe/point_names.h"
#include "engine/train/trainer.h"
#include "tests/model.h"

enum { SAMPLES = 4, LONGEST = 6, MOST = 64 };

static invar_model *new_toy_model(invar_format format, const invar_device *dev)
{
    bool wide = format != INVAR_FORMAT_FP32 && format != INVAR_FORMAT_BF16;
    invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_DENSE, wide);
    invar_model *model = NULL;

    spec.family = INVAR_FAMILY_TOY;
    assert_ok(invar_model_new(&model, &spec, format, NULL, dev));
    assert_ok(invar_model_init(model, 3, dev));
    return model;
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Results of a step. */
typedef struct step_result {
    invar_grads *grads;
    float logp[MOST];
    double loss; /* sum of the log-probs */
} step_result;

static invar_status run_loss(void *payload, int64_t first, int64_t count, const float *logp,
                             const float *entropy, float *dlogp, float *dentropy)
{
    const invar_rl_sample *samples = payload;

    (void)logp;
    (void)entropy;
    (void)dentropy;
    for (int64_t i = 0; i < invar_trainer_tokens(samples + first, count); i++)
        dlogp[i] = 1;
    return INVAR_OK;
}

/* How a step is executed. */
typedef struct execution {
    int64_t unit_rows; /* rows of a unit; 0 for one unit per sample */
    int64_t micro_batch;
    bool recompute;
    const invar_forward_hooks *probe;
    invar_audit *audit;
} execution;

static void run_step(step_result *out, const invar_model *model, const invar_device *dev,
                     const execution *exec)
{
    invar_trainer_options options = {
        .plan = {exec->unit_rows ? exec->unit_rows : 1, 1, exec->micro_batch, 0},
        .recompute = exec->recompute,
        .temperature = 1.0f};
    invar_trainer_result result = {.train_logp = out->logp};
    invar_rl_samples samples = {0};
    invar_trainer_loss loss = {.run = run_loss};
    invar_trainer *trainer = NULL;

    memset(out->logp, 0, sizeof out->logp);
    invar_test_samples(&samples, SAMPLES, LONGEST, model->spec.vocab, 7);
    loss.payload = samples.items;
    assert_true(invar_trainer_tokens(samples.items, samples.count) <= MOST);
    assert_ok(invar_grads_new(&out->grads, model));
    assert_ok(invar_grads_zero(out->grads));
    assert_ok(invar_trainer_new(&trainer, dev, &options));
    invar_trainer_set_hooks(trainer, exec->probe);
    invar_trainer_set_audit(trainer, exec->audit);
    assert_ok(invar_trainer_forward_backward(trainer, model, samples.items, samples.count, &loss,
                                             out->grads, &result));
    out->loss = 0;
    for (int i = 0; i < MOST; i++)
        out->loss += out->logp[i];
    invar_trainer_free(trainer);
    invar_rl_samples_reset(&samples);
}

/* ---- gradients ------------------------------------------------------------------------------- */

static double loss_of(const invar_model *model, const invar_device *dev)
{
    step_result l;

    run_step(&l, model, dev, &(execution){.micro_batch = SAMPLES});
    invar_grads_free(l.grads);
    return l.loss;
}

/*
 * Computes two slopes along a random direction in one parameter: out[0] by differences of the loss,
 * out[1] from the gradient.
 */
static void directional_slopes(double out[2], invar_model *model, int64_t param,
                               const invar_grads *grads, const invar_device *dev)
{
    const invar_param *p = &model->params[param];
    int64_t n = p->rows * (p->cols ? p->cols : 1);
    const float *d = grads->tensors[param].data;
    float *w = p->master.data, *before = calloc((size_t)n, sizeof *before);
    const double h = 1e-2;
    double loss[2];

    assert_non_null(before);
    memcpy(before, w, (size_t)n * sizeof *w);
    out[1] = 0;
    for (int sign = 0; sign < 2; sign++) {
        for (int64_t i = 0; i < n; i++) {
            double v = (int)(invar_test_random(11, (uint64_t)(i + 1000 * param)) % 3) - 1;
            w[i] = (float)(before[i] + (sign ? h : -h) * v / sqrt((double)n));
            if (sign)
                out[1] += d[i] * v / sqrt((double)n);
        }
        assert_ok(invar_model_update_weights(model, dev));
        loss[sign] = loss_of(model, dev);
    }
    out[0] = (loss[1] - loss[0]) / (2 * h);
    memcpy(w, before, (size_t)n * sizeof *w);
    assert_ok(invar_model_update_weights(model, dev));
    free(before);
}

static void test_toy_family__gradients_are_differences_of_the_loss(void **state)
{
    const invar_device *dev = *state;
    invar_model *model = new_toy_model(INVAR_FORMAT_FP32, dev);
    int n_large = 0;
    step_result l;

    run_step(&l, model, dev, &(execution){.micro_batch = SAMPLES});
    for (int64_t i = 0; i < model->n_params; i++) {
        double results[2], scale;
        directional_slopes(results, model, i, l.grads, dev);
        scale = fabs(results[0]) + fabs(results[1]);
        if (fabs(results[0] - results[1]) > 0.02 * scale + 2e-3)
            fail_msg("%s: %g by differences, %g by the gradient", model->params[i].name, results[0],
                     results[1]);
        n_large += scale > 0.05;
    }
    assert_true(n_large > model->n_params / 2); // otherwise the comparison would prove little
    invar_grads_free(l.grads);
    invar_model_free(model);
}

/* ---- the same bits --------------------------------------------------------------------------- */

/* Returns the number of parameters whose gradients differ. */
static int64_t count_differing(const step_result *a, const step_result *b, const invar_model *model)
{
    int64_t count = 0;

    for (int64_t p = 0; p < model->n_params; p++)
        count += invar_tensors_differ(&a->grads->tensors[p], &b->grads->tensors[p]);
    return count;
}

static void test_toy_family__bits_invariant_to_execution(void **state)
{
    static const execution executions[] = {
        {.micro_batch = 1},
        {.micro_batch = 2, .recompute = true},
        {.micro_batch = SAMPLES},
        {.micro_batch = SAMPLES, .unit_rows = MOST}}; // a single unit, hence other sums
    const invar_device *dev = *state;

    for (int format = 0; format < INVAR_FORMAT_COUNT; format++) {
        invar_model *model = new_toy_model((invar_format)format, dev);
        step_result results[4];
        for (int i = 0; i < 4; i++)
            run_step(&results[i], model, dev, &executions[i]);
        for (int i = 1; i < 4; i++)
            invar_assert_bits_f32(results[i].logp, results[0].logp, MOST,
                                  invar_format_name(format));
        assert_int_equal(count_differing(&results[1], &results[0], model), 0);
        assert_int_equal(count_differing(&results[2], &results[0], model), 0);
        assert_true(count_differing(&results[3], &results[0], model) >
                    model->n_params / 2); // control: one unit
        for (int i = 0; i < 4; i++)
            invar_grads_free(results[i].grads);
        invar_model_free(model);
    }
}

/* ---- points and audits ----------------------------------------------------------------------- */

static const invar_ledger_point *find_point(const invar_probe_result *r, const char *name)
{
    for (int64_t i = 0; i < r->count; i++)
        if (strcmp(r->points[i].name, name) == 0)
            return &r->points[i];
    fail_msg("there is no point %s", name);
    return NULL;
}

/* Compares a point with "op: input input". */
static void assert_point(const invar_probe_result *r, const char *name, const char *expected)
{
    const invar_ledger_point *p = find_point(r, name);
    char text[300];
    size_t used = (size_t)snprintf(text, sizeof text, "%s:", p->op);

    for (size_t i = 0; i < p->n_inputs; i++)
        used +=
            (size_t)snprintf(text + used, sizeof text - used, " %s", r->points[p->inputs[i]].name);
    assert_string_equal(text, expected);
}

static void test_toy_family__has_points(void **state)
{
    const invar_device *dev = *state;
    invar_model *model = new_toy_model(INVAR_FORMAT_BF16, dev);
    invar_probe_options options = {.level = INVAR_PROBE_FULL};
    invar_point_namer view = {.prefix = ""};
    invar_forward_hooks hooks = {.on_value = invar_probe_on_value, .payload = &view, .parts = true};
    invar_probe_result points;
    invar_probe *probe = NULL;
    step_result l;

    assert_ok(invar_probe_new(&probe, &options));
    view.probe = probe;
    invar_probe_begin(probe, NULL);
    run_step(&l, model, dev, &(execution){.micro_batch = 2, .probe = &hooks});
    assert_ok(invar_probe_finish(&points, probe));
    assert_point(&points, "layer.0.act.norm", "rmsnorm.fwd: layer.0.act");
    assert_point(&points, "layer.0.mlp", "linear.fwd: layer.0.side.act layer.0.half");
    assert_point(&points, "layer.0.dact", "rmsnorm.bwd: layer.0.dact.norm layer.0.act");
    // the gradient of the residual stream has three parts, added in the order of the backward
    assert_point(&points, "layer.0.dattn.side.norm",
                 "rmsnorm.bwd: layer.0.dside.norm layer.0.attn");
    invar_probe_free(probe);
    invar_grads_free(l.grads);
    invar_model_free(model);
}

static invar_status found(void *payload, const invar_audit_finding *finding)
{
    (void)payload;
    (void)finding;
    return INVAR_OK;
}

static void test_toy_family__is_audited(void **state)
{
    const invar_device *dev = *state;
    invar_model *model = new_toy_model(INVAR_FORMAT_BF16, dev);
    invar_audit_options options = {.elements = 200, .found = found};
    invar_audit *audit = NULL;
    int64_t checked, differ;
    step_result l;

    assert_ok(invar_audit_new(&audit, dev, &options));
    for (int64_t step = 0; step < 2; step++) { // the first step counts the calls
        invar_audit_begin(audit, step, INVAR_AUDIT_TRAIN);
        run_step(&l, model, dev, &(execution){.micro_batch = SAMPLES, .audit = audit});
        invar_audit_end(audit);
        invar_grads_free(l.grads);
    }
    invar_audit_counted(&checked, &differ, audit);
    assert_true(checked > 20);
    assert_int_equal(differ, 0);
    invar_audit_free(audit);
    invar_model_free(model);
}

/* ---- files ----------------------------------------------------------------------------------- */

static void test_toy_family__survives_save_and_load(void **state)
{
    static const char folder[] = INVAR_TEST_WORK "/toy_family";
    const invar_device *dev = *state;
    invar_model *model = new_toy_model(INVAR_FORMAT_BF16, dev), *reloaded = NULL;
    char name[INVAR_HF_NAME_SIZE];
    invar_digest hash[2];
    invar_model_spec spec;

    invar_hf_name(name, invar_model_find(model, "model.layers.1.mlp.act_norm.weight"), 0);
    assert_string_equal(name, "model.layers.1.mlp.act_norm.weight");
    assert_ok(invar_hf_save(model, NULL, folder, INVAR_DTYPE_F32, 0, NULL));
    assert_ok(invar_model_spec_read(&spec, folder, ""));
    assert_int_equal(spec.family, INVAR_FAMILY_TOY);
    assert_ok(invar_model_new(&reloaded, &spec, INVAR_FORMAT_BF16, NULL, dev));
    assert_ok(invar_hf_load(reloaded, folder, dev));
    assert_ok(invar_model_hash(&hash[0], model, dev));
    assert_ok(invar_model_hash(&hash[1], reloaded, dev));
    assert_true(invar_digest_equal(&hash[0], &hash[1]));
    invar_model_free(reloaded);
    invar_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_toy_family__gradients_are_differences_of_the_loss),
        cmocka_unit_test(test_toy_family__bits_invariant_to_execution),
        cmocka_unit_test(test_toy_family__has_points),
        cmocka_unit_test(test_toy_family__is_audited),
        cmocka_unit_test(test_toy_family__survives_save_and_load),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
