/*
 * subject.c - one model of the oracle with its fixtures, and the engine's results on it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/oracle/model/subject.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/files/hf/hf.h"
#include "engine/rl/loss.h"

/* ---- fixtures -------------------------------------------------------------------------------- */

const void *invar_subject_data(const invar_subject *s, const char *name, invar_oracle_type type,
                               int64_t count)
{
    char full[200];
    const invar_oracle_tensor *t;

    snprintf(full, sizeof full, "%s/%s", s->name, name);
    t = invar_oracle_find(s->oracle, full);
    if (!t)
        fail_msg("the fixtures have no %s", full);
    if (t->type != type || (count >= 0 && t->count != count))
        fail_msg("%s is not of the type or the size that the engine gives", full);
    return t->data;
}

double invar_subject_number(const invar_subject *s, const char *kind, const char *name)
{
    char full[200];
    const invar_oracle_tensor *t;

    snprintf(full, sizeof full, "%s/%s.%s", s->name, kind, name);
    t = invar_oracle_find(s->oracle, full);
    if (!t || t->rank != 0 || (t->type != INVAR_ORACLE_F64 && t->type != INVAR_ORACLE_I64))
        fail_msg("the fixtures have no number %s", full);
    return t->type == INVAR_ORACLE_F64 ? *(const double *)t->data
                                       : (double)*(const int64_t *)t->data;
}

static invar_row_offsets row_offsets_of(const invar_subject *s, const char *name)
{
    char full[200];
    const invar_oracle_tensor *t;

    snprintf(full, sizeof full, "%s/%s", s->name, name);
    t = invar_oracle_find(s->oracle, full);
    if (!t || t->type != INVAR_ORACLE_I64 || t->rank != 1)
        fail_msg("the fixtures have no segments %s", full);
    return (invar_row_offsets){t->data, t->count - 1};
}

/* ---- the model ------------------------------------------------------------------------------- */

bool invar_subject_fits(const char *folder, const char *name, invar_format format)
{
    char dir[1000];
    invar_model_spec spec;
    invar_model *model = NULL;
    invar_device dev;
    invar_status status;

    snprintf(dir, sizeof dir, "%s/%s", folder, name);
    assert_ok(invar_model_spec_read(&spec, dir, ""));
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    status = invar_model_new(&model, &spec, format, NULL, &dev);
    assert_true(status == INVAR_OK || status == INVAR_E_UNSUPPORTED);
    invar_model_free(model);
    invar_test_device_release(&dev);
    return status == INVAR_OK;
}

void invar_subject_init(invar_subject *s, const invar_oracle *oracle, const char *folder,
                        const char *name, invar_format format, invar_numerics numerics)
{
    char dir[1000];
    invar_model_spec spec;

    memset(s, 0, sizeof *s);
    s->oracle = oracle;
    s->name = name;
    snprintf(dir, sizeof dir, "%s/%s", folder, name);
    invar_test_device_init(&s->dev, numerics, INVAR_CPU_PATH_SIMD, 2);
    assert_ok(invar_model_spec_read(&spec, dir, ""));
    assert_ok(invar_model_new(&s->model, &spec, format, NULL, &s->dev));
    assert_ok(invar_hf_load(s->model, dir, &s->dev));

    s->samples = row_offsets_of(s, "samples");
    s->rows = s->samples.offsets[s->samples.count];
    s->tokens = invar_subject_data(s, "tokens", INVAR_ORACLE_I32, s->rows);
    s->targets = invar_subject_data(s, "targets", INVAR_ORACLE_I32, s->rows);
    s->positions = calloc((size_t)s->rows, sizeof *s->positions);
    assert_non_null(s->positions);
    for (int64_t i = 0; i < s->samples.count; i++)
        for (int64_t row = s->samples.offsets[i]; row < s->samples.offsets[i + 1]; row++)
            s->positions[row] = (int32_t)(row - s->samples.offsets[i]);
}

void invar_subject_release(invar_subject *s)
{
    free(s->positions);
    invar_model_free(s->model);
    invar_test_device_release(&s->dev);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Packs the samples [first, last). `start` has capacity for their offsets. */
static invar_packed_rows pack(const invar_subject *s, int64_t first, int64_t last, int64_t *start)
{
    int64_t row0 = s->samples.offsets[first];
    invar_packed_rows rows = {0};

    for (int64_t i = first; i <= last; i++)
        start[i - first] = s->samples.offsets[i] - row0;
    rows.count = start[last - first];
    rows.ids = s->tokens + row0;
    rows.positions = s->positions + row0;
    rows.samples = (invar_row_offsets){start, last - first};
    rows.units = rows.samples;
    return rows;
}

void invar_subject_score(const invar_subject *s, float temperature, float *logp, float *entropy)
{
    invar_pass_options options = {.head_rows = 50};
    int64_t start[16], *row = calloc((size_t)s->rows, sizeof *row);
    invar_packed_rows rows = pack(s, 0, s->samples.count, start);
    invar_logit_rows head = {s->rows, row, s->targets, rows.units, temperature};
    invar_pass *pass;

    assert_non_null(row);
    for (int64_t i = 0; i < s->rows; i++)
        row[i] = i;
    assert_ok(invar_pass_new(&pass, &s->dev, &options));
    assert_ok(invar_pass_run(pass, s->model, &rows));
    assert_ok(invar_pass_head(pass, &head, logp, entropy));
    invar_pass_free(pass);
    free(row);
}

/* ---- training -------------------------------------------------------------------------------- */

/* Inputs of one kind of loss, besides the model. */
typedef struct batch {
    invar_rl_options options;
    invar_rl_batch arrays;
    const int64_t *prompt; /* (samples) number of prompt tokens */
    float *advantage;      /* (tokens) */
    float temperature;
} batch;

static void read_options(batch *b, const invar_subject *s, const char *kind)
{
    b->temperature = (float)invar_subject_number(s, kind, "temperature");
    b->options = (invar_rl_options){
        .loss = INVAR_LOSS_POLICY,
        .estimator = INVAR_ESTIMATOR_GRPO,
        .rewards_normalization = true,
        .std_normalization = true,
        .kl.type = INVAR_KL_LOW_VAR,
        .kl.use_loss = true,
        .gamma = 1.0f,
        .lambd = 1.0f,
        .kl.loss_coef = (float)invar_subject_number(s, kind, "kl_loss_coef"),
        .kl.unbiased = invar_subject_number(s, kind, "unbiased_kl") != 0,
        .clip.low = (float)invar_subject_number(s, kind, "eps_clip"),
        .clip.high = (float)invar_subject_number(s, kind, "eps_clip_high"),
        .clip.dual = (float)invar_subject_number(s, kind, "eps_clip_c"),
        .entropy_coef = (float)invar_subject_number(s, kind, "entropy_coef"),
        .per_token_loss = invar_subject_number(s, kind, "per_token") != 0,
    };
}

static void read_batch(batch *b, const invar_subject *s, const char *kind)
{
    invar_row_offsets response = row_offsets_of(s, "response");
    int64_t tokens = response.offsets[response.count];
    char name[40];

    memset(b, 0, sizeof *b);
    read_options(b, s, kind);
    b->prompt = invar_subject_data(s, "prompt", INVAR_ORACLE_I64, response.count);
    b->arrays.samples = response.count;
    b->arrays.offsets = response.offsets;
    b->arrays.group = invar_subject_data(s, "group", INVAR_ORACLE_I64, response.count);
    b->arrays.mask = invar_subject_data(s, "mask", INVAR_ORACLE_U8, tokens);
    b->arrays.reward = invar_subject_data(s, "reward", INVAR_ORACLE_F32, response.count);
    snprintf(name, sizeof name, "%s.old", kind);
    b->arrays.old_logp = invar_subject_data(s, name, INVAR_ORACLE_F32, tokens);
    b->arrays.rollout_logp = b->arrays.old_logp;
    snprintf(name, sizeof name, "%s.ref", kind);
    b->arrays.ref_logp = invar_subject_data(s, name, INVAR_ORACLE_F32, tokens);
    b->advantage = calloc((size_t)tokens, sizeof *b->advantage);
    assert_non_null(b->advantage);
    assert_ok(invar_rl_advantages(b->advantage, NULL, &b->arrays, &b->options));
}

/* Runs forward, loss and backward of the samples [first, last) of the batch. */
static void train_micro_batch(const invar_subject *s, const invar_subject_loss *options_of_loss,
                              const batch *b, invar_loss *loss, int64_t first, int64_t last,
                              invar_grads *grads)
{
    invar_pass_options options = {.train = true, .recompute = options_of_loss->recompute};
    int64_t start[16], units[16], n = 0, capacity = b->arrays.offsets[b->arrays.samples];
    invar_packed_rows rows =
        pack(s, INVAR_SUBJECT_FIRST + first, INVAR_SUBJECT_FIRST + last, start);
    int64_t *row = calloc((size_t)capacity, sizeof *row);
    int32_t *targets = calloc((size_t)capacity, sizeof *targets);
    float *work = calloc((size_t)capacity * 4, sizeof *work);
    float *logp = work, *entropy = work + capacity, *dlogp = work + 2 * capacity,
          *dentropy = work + 3 * capacity;
    invar_logit_rows head;
    invar_pass *pass;

    assert_true(row && targets && work);
    for (int64_t i = first; i < last; i++) {
        units[i - first] = n;
        for (int64_t j = start[i - first] + b->prompt[i] - 1; j < start[i - first + 1] - 1; j++) {
            row[n] = j;
            targets[n++] = rows.ids[j + 1];
        }
    }
    units[last - first] = n;
    assert_int_equal(n, b->arrays.offsets[last] - b->arrays.offsets[first]);
    head = (invar_logit_rows){n, row, targets, {units, last - first}, b->temperature};

    assert_ok(invar_pass_new(&pass, &s->dev, &options));
    assert_ok(invar_pass_run(pass, s->model, &rows));
    assert_ok(invar_pass_head(pass, &head, logp, entropy));
    assert_ok(invar_loss_run(loss, first, last - first, logp, entropy, dlogp, dentropy));
    assert_ok(
        invar_head_backward(pass, dlogp, options_of_loss->no_entropy ? NULL : dentropy, grads));
    assert_ok(invar_pass_backward(pass, grads));
    invar_pass_free(pass);
    free(row);
    free(targets);
    free(work);
}

static double loss_value(invar_loss *loss)
{
    const invar_loss_metric *metrics;
    size_t count;

    assert_ok(invar_loss_metrics(&metrics, &count, loss));
    for (size_t i = 0; i < count; i++)
        if (strcmp(metrics[i].name, "train/loss") == 0)
            return metrics[i].value;
    fail_msg("the loss has no metric train/loss");
    return 0;
}

double invar_subject_train(invar_subject *s, const invar_subject_loss *options_of_loss,
                           invar_grads **grads)
{
    batch b;
    invar_loss *loss;
    double value;

    read_batch(&b, s, options_of_loss->kind);
    assert_ok(invar_loss_new(&loss, &b.arrays, &b.options, b.advantage, NULL));
    assert_ok(invar_grads_new(grads, s->model));
    assert_ok(invar_grads_zero(*grads));
    for (int64_t first = 0; first < b.arrays.samples;) {
        int64_t samples_left = b.arrays.samples - first;
        int64_t count = options_of_loss->micro > 0 && options_of_loss->micro < samples_left
                            ? options_of_loss->micro
                            : samples_left;
        train_micro_batch(s, options_of_loss, &b, loss, first, first + count, *grads);
        first += count;
    }
    assert_ok(invar_grads_finalize(*grads, s->model, &s->dev));
    value = loss_value(loss);
    invar_loss_free(loss);
    free(b.advantage);
    return value;
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* Returns 16 signs of element i as bits; tests/oracle/model.py computes the same. */
static uint32_t sign_bits(int64_t i)
{
    uint32_t h = (uint32_t)i * UINT32_C(2654435761);

    h = (h ^ h >> 15) * UINT32_C(2246822519);
    h = (h ^ h >> 13) * UINT32_C(3266489917);
    return h ^ h >> 16;
}

double invar_subject_sketch_error(const float *sketch, const float *got, const float *before,
                                  int64_t count)
{
    double projection[INVAR_SUBJECT_SKETCH - 1] = {0}, squares = 0;

    for (int64_t i = 0; i < count; i++) {
        double value = (double)got[i] - (before ? (double)before[i] : 0.0);
        uint32_t bits = sign_bits(i);
        for (int j = 0; j < INVAR_SUBJECT_SKETCH - 1; j++)
            projection[j] += bits >> j & 1 ? -value : value;
    }
    for (int j = 0; j < INVAR_SUBJECT_SKETCH - 1; j++) {
        double squared_error = projection[j] - (double)sketch[1 + j];
        squares += squared_error * squared_error;
    }
    return sqrt(squares / (INVAR_SUBJECT_SKETCH - 1)) / (double)sketch[0];
}

double invar_subject_whole_error(const float *expected, const float *got, int64_t count)
{
    double squared_error = 0, norm = 0;

    for (int64_t i = 0; i < count; i++) {
        double d = (double)got[i] - (double)expected[i];
        squared_error += d * d;
        norm += (double)expected[i] * (double)expected[i];
    }
    return sqrt(squared_error / norm);
}
