/*
 * compare.c - complete models against the results of transformers and PyTorch in float64.
 *
 *   test.oracle.model [FOLDER]
 *
 * FOLDER (default tests/oracle/model) has one Hugging Face folder per case, and fixtures.bin. The
 * test compares log-probabilities, gradients and one AdamW step, and prints the largest errors.
 * README.md describes the cases. Controls: a change of 2 % in any parameter, another loss, and a
 * shifted comparison must be outside the limits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/oracle/model/subject.h"

static const char *folder = INVAR_TEST_DATA "/oracle/model";
static invar_oracle *oracle;

static const char *const cases[] = {
    "llama", "llama_tied", "qwen2",     "qwen2_window",
    "qwen3", "qwen3_wide", "qwen3_moe", "qwen3_moe_step",
};

#define CASES (sizeof cases / sizeof *cases)

/* Limits of fp32: absolute for log-probabilities, relative in norm for each parameter. */
#define LOGP_LIMIT 1e-4
#define GRAD_LIMIT 1e-3
#define STEP_LIMIT 1e-3
#define LOSS_LIMIT 1e-4

static const double temperatures[] = {1.0, 0.7};

/* ---- report ---------------------------------------------------------------------------------- */

#define MAX_REPORT 400

static struct report {
    char what[60];
    double error, limit;
} reports[MAX_REPORT];
static int n_reports;

static void report_error(const invar_subject *s, const char *what, double error, double limit)
{
    struct report *r = &reports[n_reports++];

    assert_true(n_reports < MAX_REPORT);
    snprintf(r->what, sizeof r->what, "%s | %s", s->name, what);
    r->error = error;
    r->limit = limit;
}

static void print_reports(void)
{
    printf("| model | result | error | limit |\n| --- | --- | --- | --- |\n");
    for (int i = 0; i < n_reports; i++)
        printf("| %s | %.1e | %.0e |\n", reports[i].what, reports[i].error, reports[i].limit);
}

static int64_t count_of(const invar_tensor *t)
{
    return t->shape[0] * invar_tensor_row_elements(t);
}

/* ---- log-probabilities ----------------------------------------------------------------------- */

/*
 * Absolute errors of log-probabilities and entropies. `moved` is the mean error if every row is
 * compared with the next, for a control.
 */
typedef struct score_error {
    double worst, mean, entropy, moved;
} score_error;

static score_error score_errors(const invar_subject *s, double temperature)
{
    float *logp = calloc((size_t)s->rows * 2, sizeof *logp), *entropy = logp + s->rows;
    score_error e = {0};
    char name[30];
    const double *expected, *expected_entropy;

    assert_non_null(logp);
    snprintf(name, sizeof name, "logp.%.1f", temperature);
    expected = invar_subject_data(s, name, INVAR_ORACLE_F64, s->rows);
    snprintf(name, sizeof name, "entropy.%.1f", temperature);
    expected_entropy = invar_subject_data(s, name, INVAR_ORACLE_F64, s->rows);
    invar_subject_score(s, (float)temperature, logp, entropy);
    for (int64_t i = 0; i < s->rows; i++) {
        double difference = fabs((double)logp[i] - expected[i]);
        e.worst = fmax(e.worst, difference);
        e.mean += difference / (double)s->rows;
        e.moved += fabs((double)logp[i] - expected[(i + 1) % s->rows]) / (double)s->rows;
        e.entropy = fmax(e.entropy, fabs((double)entropy[i] - expected_entropy[i]));
    }
    free(logp);
    return e;
}

static void test_fp32__log_probabilities(void **state)
{
    invar_subject s;

    for (int numerics = 0; numerics < INVAR_NUMERICS_COUNT; numerics++) {
        invar_subject_init(&s, oracle, folder, *state, INVAR_FORMAT_FP32, (invar_numerics)numerics);
        for (int t = 0; t < 2; t++) {
            score_error e = score_errors(&s, temperatures[t]);
            char what[40];

            snprintf(what, sizeof what, "log-probs at %.1f, %s", temperatures[t],
                     invar_numerics_name((invar_numerics)numerics));
            report_error(&s, what, fmax(e.worst, e.entropy), LOGP_LIMIT);
            assert_true(e.worst <= LOGP_LIMIT && e.entropy <= LOGP_LIMIT);
        }
        invar_subject_release(&s);
    }
}

/*
 * Control: 2 % on every second element of any one parameter must be outside the limit. (A factor on
 * all elements would not show, because the norms after q_proj and k_proj remove their scale.)
 */
static void test_fp32__sees_every_parameter(void **state)
{
    invar_subject s;

    invar_subject_init(&s, oracle, folder, *state, INVAR_FORMAT_FP32, INVAR_NUMERICS_IEEE);
    for (int64_t i = 0; i < s.model->n_params; i++) {
        invar_tensor *master = &s.model->params[i].master;
        invar_tensor good = invar_test_copy(master);
        size_t bytes = (size_t)count_of(master) * sizeof(float);

        for (int64_t j = 0; j < count_of(master); j += 2)
            ((float *)master->data)[j] *= 1.02f;
        assert_ok(invar_model_update_weights(s.model, &s.dev));
        if (score_errors(&s, 1.0).worst <= LOGP_LIMIT)
            fail_msg("2 %% on %s went unseen", s.model->params[i].name);
        memcpy(master->data, good.data, bytes);
        invar_test_free(&good);
    }
    invar_subject_release(&s);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* Returns the index of a parameter in the fixtures. */
static int64_t index_of_param(const invar_subject *s, const char *name)
{
    char full[100];
    const invar_oracle_tensor *t;
    const char *at, *end;

    snprintf(full, sizeof full, "%s/params", s->name);
    t = invar_oracle_find(s->oracle, full);
    assert_non_null(t);
    at = t->data;
    end = at + t->count;
    for (int64_t param_index = 0; at < end; param_index++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((stop ? stop : end) - at);
        if (length == strlen(name) && memcmp(at, name, length) == 0)
            return param_index;
        at += length + 1;
    }
    fail_msg("the fixtures have no parameter %s", name);
    return -1;
}

static int64_t count_params(const invar_subject *s)
{
    char full[100];
    const invar_oracle_tensor *t;
    int64_t count = 1;

    snprintf(full, sizeof full, "%s/params", s->name);
    t = invar_oracle_find(s->oracle, full);
    assert_non_null(t);
    for (int64_t i = 0; i < t->count; i++)
        count += ((const char *)t->data)[i] == '\n';
    return count;
}

/* Returns the largest relative error of a parameter's gradient; *least_out gets the smallest. */
static double grad_errors(const invar_subject *s, const char *kind, const invar_grads *grads,
                          double *min_out)
{
    double worst = 0, min_error = INFINITY;
    const float *sketches;
    char name[40];

    assert_int_equal(count_params(s), s->model->n_params);
    snprintf(name, sizeof name, "grad.%s", kind);
    sketches =
        invar_subject_data(s, name, INVAR_ORACLE_F32, s->model->n_params * INVAR_SUBJECT_SKETCH);
    for (int64_t i = 0; i < s->model->n_params; i++) {
        const invar_param *p = &s->model->params[i];
        const float *sketch = sketches + index_of_param(s, p->name) * INVAR_SUBJECT_SKETCH;
        double e =
            invar_subject_sketch_error(sketch, grads->tensors[i].data, NULL, count_of(&p->master));
        worst = fmax(worst, e);
        min_error = fmin(min_error, e);
    }
    *min_out = min_error;
    return worst;
}

/*
 * Like grad_errors, for the parameters whose complete gradient is in the fixtures; 0 if there is
 * none.
 */
static double whole_errors(const invar_subject *s, const invar_grads *grads)
{
    double worst = 0;

    for (int64_t i = 0; i < s->model->n_params; i++) {
        const invar_param *p = &s->model->params[i];
        const invar_oracle_tensor *t;
        char full[200];

        snprintf(full, sizeof full, "%s/grad.sample/%s", s->name, p->name);
        t = invar_oracle_find(s->oracle, full);
        if (!t)
            continue;
        assert_int_equal(t->type, INVAR_ORACLE_F32);
        assert_int_equal(t->count, count_of(&p->master));
        worst = fmax(worst, invar_subject_whole_error(t->data, grads->tensors[i].data, t->count));
    }
    return worst;
}

static double train_and_compare_loss(invar_subject *s, invar_subject_loss options,
                                     invar_grads **grads)
{
    char name[40];
    const float *expected;

    snprintf(name, sizeof name, "%s.loss", options.kind);
    expected = invar_subject_data(s, name, INVAR_ORACLE_F32, 1);
    return fabs(invar_subject_train(s, &options, grads) - (double)expected[0]);
}

static void assert_same_grads(const invar_subject *s, const invar_grads *a, const invar_grads *b)
{
    for (int64_t i = 0; i < s->model->n_params; i++)
        invar_assert_bits_tensor(&a->tensors[i], &b->tensors[i], s->model->params[i].name);
}

static void test_fp32__gradients(void **state)
{
    static const char *const kinds[] = {"sample", "token"};
    invar_subject s;
    invar_grads *grads[2], *recomputed;
    double min_error;

    invar_subject_init(&s, oracle, folder, *state, INVAR_FORMAT_FP32, INVAR_NUMERICS_IEEE);
    for (int k = 0; k < 2; k++) {
        double loss = train_and_compare_loss(&s, (invar_subject_loss){.kind = kinds[k]}, &grads[k]);
        double worst = grad_errors(&s, kinds[k], grads[k], &min_error);
        char what[40];

        snprintf(what, sizeof what, "gradients of %s", kinds[k]);
        report_error(&s, what, worst, GRAD_LIMIT);
        assert_true(loss <= LOSS_LIMIT);
        assert_true(worst <= GRAD_LIMIT);
        // micro-batches and recomputation must not change bits
        train_and_compare_loss(
            &s, (invar_subject_loss){.kind = kinds[k], .micro = 4 - k, .recompute = true},
            &recomputed);
        assert_same_grads(&s, grads[k], recomputed);
        invar_grads_free(recomputed);
    }
    if (whole_errors(&s, grads[0]) > 0)
        report_error(&s, "gradients, whole", whole_errors(&s, grads[0]), GRAD_LIMIT);
    assert_true(whole_errors(&s, grads[0]) <= GRAD_LIMIT);

    // Controls: no parameter has the gradient of the other loss, or of the loss without entropy.
    grad_errors(&s, "sample", grads[1], &min_error);
    assert_true(min_error > 10 * GRAD_LIMIT);
    train_and_compare_loss(&s, (invar_subject_loss){.kind = "token", .no_entropy = true},
                           &recomputed);
    grad_errors(&s, "token", recomputed, &min_error);
    assert_true(min_error > GRAD_LIMIT);
    invar_grads_free(recomputed);
    for (int k = 0; k < 2; k++)
        invar_grads_free(grads[k]);
    invar_subject_release(&s);
}

/* ---- a step of the optimizer ----------------------------------------------------------------- */

static invar_tensor flat_view(const invar_tensor *t)
{
    return invar_tensor_1d(t->data, INVAR_DTYPE_F32, count_of(t));
}

/* Runs AdamW from zero moments on a copy of the master weights. Returns the error of the change. */
static double step_error(const invar_subject *s, int64_t i, const invar_grads *grads, float clip,
                         const float *sketch)
{
    const invar_param *p = &s->model->params[i];
    int64_t count = count_of(&p->master);
    invar_tensor like = invar_tensor_1d(NULL, INVAR_DTYPE_F32, count);
    invar_tensor master = invar_test_copy(&p->master), m = invar_test_tensor(like),
                 v = invar_test_tensor(like);
    invar_adamw_args args = {.master = flat_view(&master),
                             .m = m,
                             .v = v,
                             .grad = flat_view(&grads->tensors[i]),
                             .clip = clip,
                             .lr = 1e-3f,
                             .beta1 = 0.9f,
                             .beta2 = 0.95f,
                             .eps =
                                 *(const float *)invar_subject_data(s, "eps", INVAR_ORACLE_F32, 1),
                             .weight_decay = 0.1f,
                             .beta1_power = 0.9f,
                             .beta2_power = 0.95f};
    double e;

    invar_test_fill(&m, 0.0f);
    invar_test_fill(&v, 0.0f);
    assert_ok(invar_adamw(&s->dev, &args));
    e = invar_subject_sketch_error(sketch, master.data, p->master.data, count);
    invar_test_free(&master, &m, &v);
    return e;
}

static void test_fp32__step(void **state)
{
    invar_subject s;
    invar_grads *grads;
    float norm, clip;
    double worst = 0, norm_error;
    const float *sketches;
    invar_grad_norm_args args = {.norm = &norm, .clip = &clip};

    invar_subject_init(&s, oracle, folder, *state, INVAR_FORMAT_FP32, INVAR_NUMERICS_IEEE);
    train_and_compare_loss(&s, (invar_subject_loss){.kind = "sample"}, &grads);
    args.grads = grads->tensors;
    args.count = s.model->n_params;
    args.max_norm = *(const float *)invar_subject_data(&s, "max_norm", INVAR_ORACLE_F32, 1);
    assert_ok(invar_grad_norm(&s.dev, &args));
    norm_error = fabs((double)norm / (double)*(const float *)invar_subject_data(
                                         &s, "grad_norm", INVAR_ORACLE_F32, 1) -
                      1);
    assert_true(norm_error <= GRAD_LIMIT);
    sketches =
        invar_subject_data(&s, "step", INVAR_ORACLE_F32, s.model->n_params * INVAR_SUBJECT_SKETCH);
    for (int64_t i = 0; i < s.model->n_params; i++) {
        const float *sketch =
            sketches + index_of_param(&s, s.model->params[i].name) * INVAR_SUBJECT_SKETCH;
        worst = fmax(worst, step_error(&s, i, grads, clip, sketch));
    }
    report_error(&s, "norm of the gradients", norm_error, GRAD_LIMIT);
    report_error(&s, "AdamW", worst, STEP_LIMIT);
    assert_true(worst <= STEP_LIMIT);
    invar_grads_free(grads);
    invar_subject_release(&s);
}

/* ---- lower precision ------------------------------------------------------------------------- */

/*
 * Lower precisions have no oracle of their own here; the ops have theirs. The mean error of
 * log-probabilities against float64 must stay below a bound that a wrong scale, layout or weight
 * would exceed by far. The models have weights far larger than trained ones, so errors are large,
 * too.
 */
static const struct format_limit {
    invar_format format;
    double mean;
} format_limits[] = {
    {INVAR_FORMAT_BF16, 0.05},
    {INVAR_FORMAT_FP8, 0.5},
    {INVAR_FORMAT_MXFP8, 0.5},
    {INVAR_FORMAT_INT4, 0.8},
};

#define FORMATS (sizeof format_limits / sizeof *format_limits)

static void test_low_precision__log_probabilities(void **state)
{
    for (size_t f = 0; f < FORMATS; f++) {
        invar_format format = format_limits[f].format;

        if (!invar_subject_fits(folder, *state, format))
            continue;
        for (int numerics = 0; numerics < INVAR_NUMERICS_COUNT; numerics++) {
            invar_subject s;
            score_error e;
            char what[40];

            invar_subject_init(&s, oracle, folder, *state, format, (invar_numerics)numerics);
            e = score_errors(&s, 1.0);
            snprintf(what, sizeof what, "mean of log-probs, %s, %s", invar_format_name(format),
                     invar_numerics_name((invar_numerics)numerics));
            report_error(&s, what, e.mean, format_limits[f].mean);
            assert_true(e.mean <= format_limits[f].mean);
            assert_true(e.moved > format_limits[f].mean); // Control: the comparison can fail.
            invar_subject_release(&s);
        }
    }
}

/* Checks that every format runs on at least one case, because the test above skips the others. */
static void test_low_precision__every_format_is_there(void **state)
{
    (void)state;
    for (size_t f = 0; f < FORMATS; f++) {
        int fits = 0;
        for (size_t i = 0; i < CASES; i++)
            fits += invar_subject_fits(folder, cases[i], format_limits[f].format);
        assert_true(fits > 0);
    }
}

/* ---- main ------------------------------------------------------------------------------------ */

/* Runs last: every tensor of the file must have been compared or used as an input. */
static void test_oracle__uses_every_tensor(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < oracle->count; i++)
        if (!oracle->tensors[i].used)
            fail_msg("nobody used %s", oracle->tensors[i].name);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        CMUnitTestFunction run;
    } kinds[] = {
        {"log-probabilities", test_fp32__log_probabilities},
        {"sees every parameter", test_fp32__sees_every_parameter},
        {"gradients", test_fp32__gradients},
        {"step", test_fp32__step},
        {"low precision", test_low_precision__log_probabilities},
    };
    enum { KINDS = sizeof kinds / sizeof *kinds };
    static char names[CASES * KINDS][80];
    static struct CMUnitTest tests[CASES * KINDS + 2];
    char path[1000];
    int failed;

    if (argc > 1)
        folder = argv[1];
    snprintf(path, sizeof path, "%s/fixtures.bin", folder);
    if (invar_oracle_open(&oracle, path) != INVAR_OK) {
        fprintf(stderr, "%s\n", invar_error_last()->message);
        return 1;
    }
    for (size_t i = 0; i < CASES * KINDS; i++) {
        snprintf(names[i], sizeof names[i], "%s: %s", cases[i / KINDS], kinds[i % KINDS].name);
        tests[i] = (struct CMUnitTest){names[i], kinds[i % KINDS].run, NULL, NULL,
                                       (void *)(uintptr_t)cases[i / KINDS]};
    }
    tests[CASES * KINDS] =
        (struct CMUnitTest)cmocka_unit_test(test_low_precision__every_format_is_there);
    tests[CASES * KINDS + 1] = (struct CMUnitTest)cmocka_unit_test(test_oracle__uses_every_tensor);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    print_reports();
    invar_oracle_close(oracle);
    return failed != 0;
}
