/*
 * model.c - bits of log-probs and gradients do not depend on how samples are executed.
 *
 * Every kind of model in every format it supports, with and without LoRA adapters: in
 * micro-batches of any size, with activations stored or recomputed, with logits in head chunks of
 * several sizes, on 1 to 3 threads. The reference is one micro-batch of all samples. Gradients of
 * adapters are also compared with differences of losses. Controls: other tokens, other weights or
 * other adapters change the log-probs, and no gradient is zero throughout.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "engine/train/micro_batch.h"
#include "engine/train/optimizer.h"
#include "tests/model.h"

#define SAMPLES 7
#define MAX_TOKENS 512

/* How one run executes the same samples. */
typedef struct execution {
    int64_t micro_batch; /* number of samples */
    bool recompute;
    int64_t head_rows;
    bool poison;
} execution;

typedef struct outcome {
    float logp[MAX_TOKENS], entropy[MAX_TOKENS];
    int64_t tokens;
    invar_grads *grads;
} outcome;

/*
 * Poisons the gradients before zeroing them, as the previous step would leave them. Elements that
 * zeroing leaves out must be written before they are read.
 */
static void new_gradients(invar_grads **out, const invar_model *model)
{
    assert_ok(invar_grads_new(out, model));
    memset((*out)->memory, 0xFF, (*out)->bytes);
    assert_ok(invar_grads_zero(*out));
}

static void fill_gradient(float *out, int64_t first, int64_t count, uint64_t seed, float scale)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = invar_test_normal(seed, (uint64_t)(first + i), scale);
}

static void run_samples(outcome *out, const invar_model *model, const invar_rl_samples *samples,
                        const invar_device *dev, const execution *exec)
{
    invar_pass_options options = {.train = true,
                                  .recompute = exec->recompute,
                                  .head_rows = exec->head_rows,
                                  .poison = exec->poison};
    invar_micro_batch batch = {0};
    invar_pass *pass = NULL;
    int64_t units[SAMPLES + 1];

    for (int64_t i = 0; i <= SAMPLES; i++)
        units[i] = i;
    out->tokens = 0;
    assert_ok(invar_pass_new(&pass, dev, &options));
    new_gradients(&out->grads, model);
    for (int64_t first = 0; first < samples->count; first += exec->micro_batch) {
        int64_t left = samples->count - first;
        int64_t count = exec->micro_batch < left ? exec->micro_batch : left;
        invar_micro_batch_plan plan = {first, count, units + first, count, 0.7f, 0, false};
        float dlogp[MAX_TOKENS], dentropy[MAX_TOKENS];

        assert_ok(invar_micro_batch_fill(&batch, samples->items, &plan));
        assert_ok(invar_pass_run(pass, model, &batch.rows));
        assert_ok(invar_pass_head(pass, &batch.head, out->logp + out->tokens,
                                  out->entropy + out->tokens));
        fill_gradient(dlogp, out->tokens, batch.head.count, 3, 1.0f);
        fill_gradient(dentropy, out->tokens, batch.head.count, 4, 0.1f);
        assert_ok(invar_head_backward(pass, dlogp, dentropy, out->grads));
        assert_ok(invar_pass_backward(pass, out->grads));
        out->tokens += batch.head.count;
    }
    assert_ok(invar_grads_finalize(out->grads, model, dev));
    invar_micro_batch_release(&batch);
    invar_pass_free(pass);
}

static void assert_same(const outcome *a, const outcome *b, const invar_model *model)
{
    assert_int_equal(a->tokens, b->tokens);
    invar_assert_bits_f32(a->logp, b->logp, a->tokens, "log-probabilities");
    invar_assert_bits_f32(a->entropy, b->entropy, a->tokens, "entropies");
    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_tensor *t = &a->grads->tensors[i];
        invar_assert_bits_f32(t->data, b->grads->tensors[i].data, t->shape[0] * t->row_stride,
                              model->params[i].name);
    }
}

/* Fails if a gradient is zero throughout, which would make every comparison of it empty. */
static void assert_not_zero(const outcome *a, const invar_model *model)
{
    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_tensor *t = &a->grads->tensors[i];
        const float *values = t->data;
        int64_t count = t->shape[0] * t->row_stride, nonzero = 0;
        for (int64_t j = 0; j < count; j++)
            nonzero += values[j] != 0.0f;
        if (!nonzero)
            fail_msg("the gradient of %s is zero", model->params[i].name);
    }
}

#define RANK 5

static invar_model *new_model(invar_test_model kind, invar_format format, bool adapted,
                              const invar_device *dev)
{
    return adapted ? invar_test_model_adapted(kind, format, 11, RANK, false, dev)
                   : invar_test_model_new(kind, format, 11, dev);
}

static size_t n_checked; /* number of models that check_executions has checked */

static void check_executions(invar_test_model kind, invar_format format, invar_numerics numerics,
                             bool adapted)
{
    static const execution executions[] = {{1, false, 0, true},
                                           {2, true, 0, true},
                                           {SAMPLES, true, 1, true},
                                           {3, false, 5, false},
                                           {SAMPLES, false, 4, true}};
    invar_device dev;
    invar_rl_samples samples;
    outcome reference = {0};
    invar_model *model;

    invar_test_device_init(&dev, numerics, INVAR_CPU_PATH_SIMD, 2);
    model = new_model(kind, format, adapted, &dev);
    invar_test_samples(&samples, SAMPLES, 20, model->spec.vocab, 5);
    run_samples(&reference, model, &samples, &dev, &(execution){.micro_batch = SAMPLES});
    assert_not_zero(&reference, model);
    for (size_t i = 0; i < sizeof executions / sizeof *executions; i++) {
        invar_device other;
        outcome got = {0};

        // by default two of them, and others for the next model
        if (!invar_test_full() && (i + n_checked) % 5 > 1)
            continue;
        invar_test_device_init(&other, numerics, INVAR_CPU_PATH_SIMD, 1 + (int)i % 3);
        run_samples(&got, model, &samples, &other, &executions[i]);
        assert_same(&got, &reference, model);
        invar_grads_free(got.grads);
        invar_test_device_release(&other);
    }
    n_checked++;
    invar_grads_free(reference.grads);
    invar_rl_samples_reset(&samples);
    invar_model_free(model);
    invar_test_device_release(&dev);
}

static void check_all_executions(bool adapted)
{
    for (int kind = 0; kind < INVAR_TEST_MODEL_COUNT; kind++)
        for (int format = 0; format < INVAR_FORMAT_COUNT; format++)
            for (int numerics = 0; numerics < INVAR_NUMERICS_COUNT; numerics++) {
                // the default runs every kind in f32, which does not depend on the numerics, and
                // every format of two kinds, whose numerics alternate
                bool usual_kind =
                    kind == INVAR_TEST_MODEL_DENSE || kind == INVAR_TEST_MODEL_EXPERTS;
                bool selected = format == INVAR_FORMAT_FP32
                                    ? numerics == INVAR_NUMERICS_IEEE
                                    : usual_kind && (kind / 4 + format + adapted + numerics) % 2;
                if (!invar_test_full() && !selected)
                    continue;
                check_executions((invar_test_model)kind, (invar_format)format,
                                 (invar_numerics)numerics, adapted);
            }
}

static void test_model__bits_invariant_to_execution(void **state)
{
    (void)state;
    check_all_executions(false);
}

static void test_model__bits_invariant_to_execution_with_adapters(void **state)
{
    (void)state;
    check_all_executions(true);
}

/*
 * Zero adapters must leave the log-probs of the model without adapters, whose weights come from the
 * same seed. Control: adapters that are not zero change them.
 */
static void check_zero_adapters(invar_test_model kind, invar_format format)
{
    execution default_execution = {.micro_batch = SAMPLES};
    outcome plain = {0}, zero = {0}, nonzero = {0};
    invar_model *base = NULL, *adapted, *other;
    invar_rl_samples samples;
    invar_device dev;

    invar_test_device_init(&dev, INVAR_NUMERICS_SM90, INVAR_CPU_PATH_SIMD, 1);
    adapted = invar_test_model_adapted(kind, format, 11, RANK, true, &dev);
    other = invar_test_model_adapted(kind, format, 11, RANK, false, &dev);
    adapted->spec.lora.rank = 0;
    assert_ok(invar_model_new(&base, &adapted->spec, format, NULL, &dev));
    adapted->spec.lora.rank = RANK;
    assert_ok(invar_model_init(base, 11, &dev));
    invar_test_samples(&samples, SAMPLES, 20, base->spec.vocab, 5);
    run_samples(&plain, base, &samples, &dev, &default_execution);
    run_samples(&zero, adapted, &samples, &dev, &default_execution);
    run_samples(&nonzero, other, &samples, &dev, &default_execution);
    invar_assert_bits_f32(zero.logp, plain.logp, plain.tokens, "adapters that are zero");
    assert_true(invar_bits_differ(nonzero.logp, plain.logp, sizeof plain.logp));
    invar_grads_free(plain.grads);
    invar_grads_free(zero.grads);
    invar_grads_free(nonzero.grads);
    invar_rl_samples_reset(&samples);
    invar_model_free(base);
    invar_model_free(adapted);
    invar_model_free(other);
    invar_test_device_release(&dev);
}

static void test_model__zero_adapters_leave_the_base(void **state)
{
    (void)state;
    for (int kind = 0; kind < INVAR_TEST_MODEL_COUNT; kind++)
        for (int format = 0; format < INVAR_FORMAT_COUNT; format++)
            if (invar_test_full() ? kind == INVAR_TEST_MODEL_EXPERTS || format == INVAR_FORMAT_BF16
                                  : (kind + format) % 5 == 0) // every kind and format once
                check_zero_adapters((invar_test_model)kind, (invar_format)format);
}

/* Returns the loss whose gradient run_samples computes. */
static double loss_of(const invar_model *model, const invar_rl_samples *samples,
                      const invar_device *dev)
{
    outcome got = {0};
    double loss = 0;

    run_samples(&got, model, samples, dev, &(execution){.micro_batch = SAMPLES});
    for (int64_t i = 0; i < got.tokens; i++)
        loss += (double)invar_test_normal(3, (uint64_t)i, 1.0f) * (double)got.logp[i] +
                (double)invar_test_normal(4, (uint64_t)i, 0.1f) * (double)got.entropy[i];
    invar_grads_free(got.grads);
    return loss;
}

/* Compares the largest element of a gradient with a difference of losses. */
static void check_difference(invar_model *model, const invar_tensor *grad, int64_t param,
                             const invar_rl_samples *samples, const invar_device *dev)
{
    const double step = 4e-3;
    const float *d = grad->data;
    float *values = model->params[param].master.data, saved;
    int64_t at = 0;
    double up, down, difference;

    for (int64_t j = 0; j < grad->shape[0] * grad->row_stride; j++)
        at = fabsf(d[j]) > fabsf(d[at]) ? j : at;
    saved = values[at];
    values[at] = saved + (float)step;
    up = loss_of(model, samples, dev);
    values[at] = saved - (float)step;
    down = loss_of(model, samples, dev);
    values[at] = saved;
    difference = (up - down) / (2 * step);
    if (fabs(difference - (double)d[at]) > 0.02 * fabs(difference) + 0.01)
        fail_msg("%s: gradient %g, difference %g", model->params[param].name, (double)d[at],
                 difference);
}

static void test_model__accuracy_of_adapters_gradients(void **state)
{
    invar_test_model kinds[] = {INVAR_TEST_MODEL_BIAS, INVAR_TEST_MODEL_EXPERTS};

    (void)state;
    for (int k = 0; k < 2; k++) {
        outcome got = {0};
        invar_rl_samples samples;
        invar_model *model;
        invar_device dev;

        invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
        model = new_model(kinds[k], INVAR_FORMAT_FP32, true, &dev);
        invar_test_samples(&samples, SAMPLES, 20, model->spec.vocab, 5);
        run_samples(&got, model, &samples, &dev, &(execution){.micro_batch = SAMPLES});
        // by default every second parameter, and the others for the other kind
        for (int64_t i = invar_test_full() ? 0 : k; i < model->n_params;
             i += invar_test_count(2, 1))
            check_difference(model, &got.grads->tensors[i], i, &samples, &dev);
        invar_grads_free(got.grads);
        invar_rl_samples_reset(&samples);
        invar_model_free(model);
        invar_test_device_release(&dev);
    }
}

/* Control: another token inside a sample, or another weight, changes the log-probs. */
static void test_model__bits_follow_the_inputs(void **state)
{
    invar_device dev;
    invar_rl_samples samples;
    outcome a = {0}, b = {0}, c = {0};
    execution default_execution = {.micro_batch = SAMPLES};
    invar_model *model;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    model = invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, 11, &dev);
    invar_test_samples(&samples, SAMPLES, 20, model->spec.vocab, 5);
    run_samples(&a, model, &samples, &dev, &default_execution);
    samples.items[3].tokens[0] ^= 1;
    run_samples(&b, model, &samples, &dev, &default_execution);
    assert_true(invar_bits_differ(a.logp, b.logp, sizeof a.logp));
    samples.items[3].tokens[0] ^= 1;
    ((float *)model->params[0].master.data)[samples.items[0].tokens[0] * model->spec.hidden] +=
        1.0f;
    assert_ok(invar_model_update_weights(model, &dev));
    run_samples(&c, model, &samples, &dev, &default_execution);
    assert_true(invar_bits_differ(a.logp, c.logp, sizeof a.logp));
    invar_grads_free(a.grads);
    invar_grads_free(b.grads);
    invar_grads_free(c.grads);
    invar_rl_samples_reset(&samples);
    invar_model_free(model);
    invar_test_device_release(&dev);
}

/* Replaying the experts that the router chose changes nothing; control: replaying others does. */
static void test_model__routing_replays(void **state)
{
    invar_device dev;
    invar_rl_samples samples;
    invar_micro_batch batch = {0};
    invar_pass *pass = NULL;
    invar_model *model;
    float own[MAX_TOKENS], replayed[MAX_TOKENS];
    int32_t chosen[4 * MAX_TOKENS];
    int64_t units[SAMPLES + 1] = {0, 1, 2, 3, 4, 5, 6, 7};
    invar_micro_batch_plan plan = {0, SAMPLES, units, SAMPLES, 1.0f, 0, false};

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 2);
    model = invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, 11, &dev);
    invar_test_samples(&samples, SAMPLES, 20, model->spec.vocab, 5);
    assert_ok(invar_pass_new(&pass, &dev, &(invar_pass_options){0}));
    assert_ok(invar_micro_batch_fill(&batch, samples.items, &plan));
    memset(chosen, 0, sizeof chosen);
    batch.rows.routing = chosen;
    assert_ok(invar_pass_run(pass, model, &batch.rows));
    assert_ok(invar_pass_head(pass, &batch.head, own, NULL));
    batch.rows.routing = NULL;
    batch.rows.routing_replay = chosen;
    assert_ok(invar_pass_run(pass, model, &batch.rows));
    assert_ok(invar_pass_head(pass, &batch.head, replayed, NULL));
    invar_assert_bits_f32(replayed, own, batch.head.count, "replayed");
    for (int64_t i = 0; i < batch.rows.count; i++) { // other experts, still distinct
        chosen[2 * i] = (chosen[2 * i] + 1) % 6;
        chosen[2 * i + 1] = (chosen[2 * i] + 2) % 6;
    }
    assert_ok(invar_pass_run(pass, model, &batch.rows));
    assert_ok(invar_pass_head(pass, &batch.head, replayed, NULL));
    assert_true(invar_bits_differ(own, replayed, (size_t)batch.head.count * sizeof *own));
    invar_micro_batch_release(&batch);
    invar_pass_free(pass);
    invar_rl_samples_reset(&samples);
    invar_model_free(model);
    invar_test_device_release(&dev);
}

static void assert_no_gradients(invar_grads *grads, const invar_model *model,
                                const invar_device *dev)
{
    assert_ok(invar_grads_finalize(grads, model, dev));
    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_tensor *t = &grads->tensors[i];
        for (int64_t j = 0; j < t->shape[0] * t->row_stride; j++)
            if (((const uint32_t *)t->data)[j] != 0)
                fail_msg("the gradient of %s is not zero", model->params[i].name);
    }
    invar_grads_free(grads);
}

/* Without a backward, or without rows of the head, all gradients are zero. */
static void test_model__nothing_to_learn_from(void **state)
{
    static const int64_t none[1];

    (void)state;
    for (int kind = 0; kind < INVAR_TEST_MODEL_COUNT; kind++) {
        int64_t units[SAMPLES + 1] = {0, 1, 2, 3, 4, 5, 6, 7};
        invar_micro_batch_plan plan = {0, SAMPLES, units, SAMPLES, 1.0f, 0, false};
        invar_logit_rows head = {.units = {none, 0}, .temperature = 1.0f};
        invar_micro_batch batch = {0};
        invar_rl_samples samples;
        invar_pass *pass = NULL;
        invar_grads *grads;
        invar_model *model;
        invar_device dev;

        invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 2);
        model = invar_test_model_new((invar_test_model)kind, INVAR_FORMAT_FP32, 11, &dev);
        new_gradients(&grads, model);
        assert_no_gradients(grads, model, &dev);

        invar_test_samples(&samples, SAMPLES, 20, model->spec.vocab, 5);
        assert_ok(invar_pass_new(&pass, &dev, &(invar_pass_options){.train = true}));
        assert_ok(invar_micro_batch_fill(&batch, samples.items, &plan));
        new_gradients(&grads, model);
        assert_ok(invar_pass_run(pass, model, &batch.rows));
        assert_ok(invar_pass_head(pass, &head, NULL, NULL));
        assert_ok(invar_head_backward(pass, NULL, NULL, grads));
        assert_ok(invar_pass_backward(pass, grads));
        assert_no_gradients(grads, model, &dev);
        invar_micro_batch_release(&batch);
        invar_pass_free(pass);
        invar_rl_samples_reset(&samples);
        invar_model_free(model);
        invar_test_device_release(&dev);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model__bits_invariant_to_execution),
        cmocka_unit_test(test_model__bits_invariant_to_execution_with_adapters),
        cmocka_unit_test(test_model__zero_adapters_leave_the_base),
        cmocka_unit_test(test_model__accuracy_of_adapters_gradients),
        cmocka_unit_test(test_model__bits_follow_the_inputs),
        cmocka_unit_test(test_model__routing_replays),
        cmocka_unit_test(test_model__nothing_to_learn_from),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
