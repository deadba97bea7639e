/*
 * trainer.c - tests of the trainer: free plans, scoring, critic gradients, routing, heartbeats.
 *
 * Micro-batches, recomputation and head chunks must not change a bit, while other units must.
 * Gradients of a critic are compared with finite differences.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "engine/train/trainer.h"
#include "tests/model.h"
#include "tests/ranks.h"

enum { SAMPLES = 7, MAX_TOKENS = 256 };

static int64_t elements(const invar_tensor *t)
{
    return t->shape[0] * t->row_stride;
}

/* A loss whose derivatives only depend on the token, with a record of its calls. */
typedef struct token_loss {
    const invar_rl_sample *samples;
    int64_t calls, next; /* number of calls; index of the next sample */
    bool entropy;        /* the loss has a derivative of the entropy */
} token_loss;

static invar_status run_token_loss(void *payload, int64_t first, int64_t count, const float *now,
                                   const float *entropy, float *dnow, float *dentropy)
{
    token_loss *p = payload;
    int64_t at = 0;

    (void)now;
    // a failure is a status, because the loss also runs in the thread of a rank
    if (first != p->next)
        return INVAR_FAIL(INVAR_E_MISMATCH, 0, "a sample is missing, or comes twice");
    if ((dentropy != NULL) != p->entropy || (p->entropy && !entropy))
        return INVAR_FAIL(INVAR_E_MISMATCH, 0, "the loss got another entropy than it asked for");
    for (int64_t i = first; i < first + count; i++)
        for (int64_t j = 0; j < invar_rl_sample_response(&p->samples[i]); j++, at++) {
            dnow[at] = invar_test_normal((uint64_t)i, (uint64_t)j, 1.0f);
            if (dentropy)
                dentropy[at] = invar_test_normal((uint64_t)i + 100, (uint64_t)j, 0.1f);
        }
    p->calls++;
    p->next = first + count;
    return INVAR_OK;
}

typedef struct step_outcome {
    float now[MAX_TOKENS], entropy[MAX_TOKENS];
    invar_trainer_result result;
    invar_grads *grads;
} step_outcome;

static void run_step(step_outcome *out, const invar_model *model, const invar_rl_samples *samples,
                     const invar_trainer_options *options, const invar_device *dev)
{
    token_loss p = {.samples = samples->items, .entropy = !model->spec.value_head};
    invar_trainer_loss loss = {.run = run_token_loss, .payload = &p, .entropy = p.entropy};
    invar_trainer *trainer = NULL;

    memset(out, 0, sizeof *out);
    out->result = (invar_trainer_result){.train_logp = out->now, .entropy = out->entropy};
    assert_true(invar_trainer_tokens(samples->items, samples->count) <= MAX_TOKENS);
    assert_ok(invar_grads_new(&out->grads, model));
    assert_ok(invar_trainer_new(&trainer, dev, options));
    assert_ok(invar_trainer_forward_backward(trainer, model, samples->items, samples->count, &loss,
                                             out->grads, &out->result));
    assert_int_equal(p.next, samples->count);
    assert_int_equal(p.calls, out->result.micro_batches);
    invar_trainer_free(trainer);
}

static bool outcomes_equal(const step_outcome *a, const step_outcome *b, const invar_model *model)
{
    bool equal = !invar_bits_differ(a->now, b->now, sizeof a->now) &&
                 !invar_bits_differ(a->entropy, b->entropy, sizeof a->entropy);

    for (int64_t p = 0; p < model->n_params; p++)
        equal = equal && !invar_tensors_differ(&a->grads->tensors[p], &b->grads->tensors[p]);
    return equal;
}

static invar_model *new_critic(invar_test_model kind, invar_format format, const invar_device *dev)
{
    invar_model_spec spec = invar_test_spec(kind, false);
    invar_model *critic = NULL;

    spec.value_head = true;
    spec.tied = false;
    assert_ok(invar_model_new(&critic, &spec, format, NULL, dev));
    assert_ok(invar_model_init(critic, 21, dev));
    return critic;
}

/* ---- plans ----------------------------------------------------------------------------------- */

typedef struct unit_rule {
    int64_t rows, count;
} unit_rule;

/* Units of one sample, of at most two, of at most three, and of all samples. */
static const unit_rule rules[] = {{1, 1}, {MAX_TOKENS, 3}, {35, 2}, {MAX_TOKENS, 1}};
enum { RULES = sizeof rules / sizeof *rules };

static invar_trainer_options options_of(const unit_rule *rule, int64_t micro_batch,
                                        int64_t max_tokens)
{
    return (invar_trainer_options){.plan = {rule->rows, rule->count, micro_batch, max_tokens},
                                   .temperature = 0.8f};
}

static void compare_plans(const invar_model *model, const invar_device *devs, const unit_rule *rule)
{
    invar_trainer_options plans[] = {options_of(rule, 1, 0), options_of(rule, 2, 0),
                                     options_of(rule, 0, 40), options_of(rule, 3, 25)};
    const invar_trainer_options one_micro_batch = options_of(rule, SAMPLES, 0);
    invar_rl_samples samples;
    step_outcome first, other;

    plans[1].recompute = plans[3].recompute = true;
    plans[2].head_rows = 3;
    plans[3].head_rows = 1;
    invar_test_samples(&samples, SAMPLES, 20, model->spec.vocab, 5);
    run_step(&first, model, &samples, &one_micro_batch, &devs[0]);
    assert_int_equal(first.result.micro_batches, 1);
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        invar_device dev = devs[i % INVAR_TEST_DEVICES];
        dev.numerics = devs[0].numerics;
        run_step(&other, model, &samples, &plans[i], &dev);
        assert_true(other.result.micro_batches > 1);
        assert_true(outcomes_equal(&first, &other, model));
        invar_grads_free(other.grads);
    }
    // control: units are semantic, so that other rules give other bits
    for (int i = 0; i < RULES; i++) {
        invar_trainer_options control = options_of(&rules[i], 0, 0);
        run_step(&other, model, &samples, &control, &devs[0]);
        assert_int_equal(outcomes_equal(&first, &other, model), &rules[i] == rule);
        invar_grads_free(other.grads);
    }
    invar_grads_free(first.grads);
    invar_rl_samples_reset(&samples);
}

static void test_trainer__plans_change_no_bit(void **state)
{
    const invar_device *devs = *state;
    static const invar_test_model kinds[] = {INVAR_TEST_MODEL_DENSE, INVAR_TEST_MODEL_EXPERTS};

    for (size_t i = 0; i < 2; i++) {
        invar_model *model = invar_test_model_new(kinds[i], INVAR_FORMAT_BF16, 11, &devs[0]);
        invar_model *critic = new_critic(kinds[i], INVAR_FORMAT_BF16, &devs[0]);
        for (int rule = 0; rule < RULES - 1; rule++) { // one unit has only one micro-batch
            compare_plans(model, devs, &rules[rule]);
            compare_plans(critic, devs, &rules[rule]);
        }
        invar_model_free(critic);
        invar_model_free(model);
    }
}

/* The training forward and scoring have the same bits with different plans. */
static void test_trainer__scores_what_it_trains(void **state)
{
    const invar_device *devs = *state;
    const invar_trainer_options one = {.plan = {1, 1, 1, 0}, .temperature = 0.8f};
    const invar_trainer_options all = {.plan = {1, 1, 0, 0}, .head_rows = 2, .temperature = 0.8f};
    invar_model *model =
        invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, 11, &devs[0]);
    invar_model *critic = new_critic(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, &devs[0]);
    invar_trainer *trainer = NULL;
    invar_rl_samples samples;
    float logp[MAX_TOKENS] = {0}, entropy[MAX_TOKENS] = {0}, values[MAX_TOKENS] = {0};
    step_outcome o;

    invar_test_samples(&samples, SAMPLES, 20, model->spec.vocab, 5);
    assert_ok(invar_trainer_new(&trainer, &devs[0], &all));
    assert_ok(invar_trainer_score(trainer, model, samples.items, samples.count, logp, entropy));
    assert_ok(invar_trainer_score(trainer, critic, samples.items, samples.count, values, NULL));
    run_step(&o, model, &samples, &one, &devs[0]);
    assert_false(invar_bits_differ(o.now, logp, sizeof logp));
    assert_false(invar_bits_differ(o.entropy, entropy, sizeof entropy));
    invar_grads_free(o.grads);
    run_step(&o, critic, &samples, &one, &devs[0]);
    assert_false(invar_bits_differ(o.now, values, sizeof values));
    assert_true(values[0] != 0.0f && values[0] != values[1]);
    invar_grads_free(o.grads);
    invar_trainer_free(trainer);
    invar_rl_samples_reset(&samples);
    invar_model_free(critic);
    invar_model_free(model);
}

/* ---- critic ---------------------------------------------------------------------------------- */

/* Returns the objective whose derivatives run_token_loss sets, in double. */
static double objective(invar_trainer *trainer, const invar_model *critic,
                        const invar_rl_samples *samples)
{
    float values[MAX_TOKENS];
    double sum = 0.0;
    int64_t at = 0;

    assert_ok(invar_trainer_score(trainer, critic, samples->items, samples->count, values, NULL));
    for (int64_t i = 0; i < samples->count; i++)
        for (int64_t j = 0; j < invar_rl_sample_response(&samples->items[i]); j++)
            sum += (double)values[at++] * (double)invar_test_normal((uint64_t)i, (uint64_t)j, 1.0f);
    return sum;
}

/* Compares the derivative along a random direction of one parameter with central differences. */
static void assert_slope(invar_trainer *trainer, invar_model *critic,
                         const invar_rl_samples *samples, const invar_grads *grads, int64_t p,
                         const invar_device *dev)
{
    const invar_param *param = &critic->params[p];
    float *master = param->master.data;
    const float *grad = grads->tensors[p].data;
    int64_t n = elements(&param->master);
    double slope = 0.0, size = 0.0, up, down, h;
    float *start = malloc((size_t)n * sizeof *start);

    assert_non_null(start);
    memcpy(start, master, (size_t)n * sizeof *start);
    for (int64_t i = 0; i < n; i++) {
        slope += (double)grad[i] * (double)invar_test_normal((uint64_t)p + 7, (uint64_t)i, 1.0f);
        size += (double)grad[i] * (double)grad[i];
    }
    h = 0.02 / sqrt((double)n);
    for (int64_t i = 0; i < n; i++)
        master[i] = start[i] + (float)h * invar_test_normal((uint64_t)p + 7, (uint64_t)i, 1.0f);
    assert_ok(invar_model_update_weights(critic, dev));
    up = objective(trainer, critic, samples);
    for (int64_t i = 0; i < n; i++)
        master[i] = start[i] - (float)h * invar_test_normal((uint64_t)p + 7, (uint64_t)i, 1.0f);
    assert_ok(invar_model_update_weights(critic, dev));
    down = objective(trainer, critic, samples);
    memcpy(master, start, (size_t)n * sizeof *start);
    assert_ok(invar_model_update_weights(critic, dev));
    free(start);
    assert_true(size > 0.0);
    // fp32 sums have about six digits; the curvature leaves about three of the difference
    if (fabs((up - down) / (2.0 * h) - slope) > 0.02 * sqrt(size))
        fail_msg("%s: the slope is %g by differences, %g by the backward; norm %g", param->name,
                 (up - down) / (2.0 * h), slope, sqrt(size));
}

static void test_trainer__critic_gradients_are_slopes(void **state)
{
    const invar_device *dev = *state;
    const invar_trainer_options options = {.plan = {1, 1, 3, 0}, .temperature = 1.0f};
    static const invar_test_model kinds[] = {INVAR_TEST_MODEL_DENSE, INVAR_TEST_MODEL_BIAS};

    for (size_t i = 0; i < 2; i++) {
        invar_model *critic = new_critic(kinds[i], INVAR_FORMAT_FP32, dev);
        invar_trainer *trainer = NULL;
        invar_rl_samples samples;
        step_outcome o;

        invar_test_samples(&samples, SAMPLES, 12, critic->spec.vocab, 5);
        run_step(&o, critic, &samples, &options, dev);
        assert_ok(invar_trainer_new(&trainer, dev, &options));
        for (int64_t p = 0; p < critic->n_params; p++)
            assert_slope(trainer, critic, &samples, o.grads, p, dev);
        invar_trainer_free(trainer);
        invar_grads_free(o.grads);
        invar_rl_samples_reset(&samples);
        invar_model_free(critic);
    }
}

/* ---- routing --------------------------------------------------------------------------------- */

/* Stores the routing that the model chooses in the samples. */
static void record_routing(invar_rl_samples *samples, const invar_model *model,
                           const invar_device *dev)
{
    int64_t route = invar_model_sparse_layers(model) * model->spec.experts.per_token;
    invar_pass *pass = NULL;

    assert_ok(invar_pass_new(&pass, dev, &(invar_pass_options){0}));
    for (int64_t i = 0; i < samples->count; i++) {
        const int64_t unit[] = {i, i + 1};
        invar_rl_sample *s = &samples->items[i];
        size_t bytes = (size_t)(invar_micro_batch_rows(s) * route) * sizeof *s->routing;
        invar_micro_batch batch = {0};

        assert_ok(invar_micro_batch_fill(
            &batch, samples->items, &(invar_micro_batch_plan){i, 1, unit, 1, 1.0f, route, false}));
        assert_ok(invar_pass_run(pass, model, &batch.rows));
        assert_ok(INVAR_ALLOC_SIZED(s->routing, bytes, 1, "routing"));
        memcpy(s->routing, batch.routing, bytes);
        s->route_size = route;
        invar_micro_batch_release(&batch);
    }
    invar_pass_free(pass);
}

static void test_trainer__routing_is_compared_and_replayed(void **state)
{
    const invar_device *dev = *state;
    invar_trainer_options options = {.plan = {1, 1, 2, 0}, .temperature = 1.0f};
    invar_model *model = invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_FP32, 11, dev);
    invar_model *other = invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_FP32, 11, dev);
    invar_rl_samples samples;
    step_outcome no_replay, o;
    int32_t *first;

    invar_test_samples(&samples, SAMPLES, 20, model->spec.vocab, 5);
    record_routing(&samples, model, dev);
    run_step(&no_replay, model, &samples, &options, dev);
    assert_true(no_replay.result.routes > 0);
    assert_int_equal(no_replay.result.routes_differ, 0);
    // one differing choice in the samples is counted and, without a replay, has no other effect
    first = samples.items[2].routing +
            (invar_micro_batch_rows(&samples.items[2]) - 1) * samples.items[2].route_size;
    first[0] = (first[0] + 1) % 6 == first[1] ? (first[0] + 2) % 6 : (first[0] + 1) % 6;
    run_step(&o, model, &samples, &options, dev);
    assert_int_equal(o.result.routes_differ, 1);
    assert_true(outcomes_equal(&no_replay, &o, model));
    invar_grads_free(o.grads);
    // a replay uses the recorded choice, but only in the model that options.replay names
    options.replay = model;
    run_step(&o, model, &samples, &options, dev);
    assert_true(o.result.routes_differ >= 1);
    assert_false(outcomes_equal(&no_replay, &o, model));
    invar_grads_free(o.grads);
    run_step(&o, other, &samples, &options, dev);
    assert_true(outcomes_equal(&no_replay, &o, model));
    invar_grads_free(o.grads);
    invar_grads_free(no_replay.grads);
    invar_rl_samples_reset(&samples);
    invar_model_free(other);
    invar_model_free(model);
}

/* Rollout files may have a routing size without routing, or the routing of another model. */
static void test_trainer__reads_foreign_routing_only_to_replay(void **state)
{
    const invar_device *dev = *state;
    invar_trainer_options options = {.plan = {1, 1, 2, 0}, .temperature = 1.0f};
    invar_model *model = invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_FP32, 11, dev);
    invar_trainer *trainer = NULL;
    invar_rl_samples samples;
    float logp[MAX_TOKENS];
    int64_t all;
    step_outcome o;

    invar_test_samples(&samples, SAMPLES, 20, model->spec.vocab, 5);
    samples.items[1].route_size = 1 << 20;
    run_step(&o, model, &samples, &options, dev);
    assert_int_equal(o.result.routes, 0);
    invar_grads_free(o.grads);
    record_routing(&samples, model, dev);
    run_step(&o, model, &samples, &options, dev);
    all = o.result.routes;
    invar_grads_free(o.grads);
    samples.items[1].route_size = 1;
    run_step(&o, model, &samples, &options, dev);
    assert_int_equal(o.result.routes_differ, 0);
    assert_int_equal(o.result.routes, all - invar_micro_batch_rows(&samples.items[1]) *
                                                invar_model_spec_route(&model->spec));
    invar_grads_free(o.grads);
    options.replay = model;
    assert_ok(invar_trainer_new(&trainer, dev, &options));
    assert_fails(invar_trainer_score(trainer, model, samples.items, samples.count, logp, NULL),
                 INVAR_E_INVALID, "another model sampled it");
    invar_trainer_free(trainer);
    invar_rl_samples_reset(&samples);
    invar_model_free(model);
}

/* ---- a slow rank ----------------------------------------------------------------------------- */

typedef struct slow_case {
    const invar_model *model;
    const invar_device *dev;
    invar_rl_samples samples;
} slow_case;

static invar_status sleep_in_loss(void *payload, int64_t first, int64_t count, const float *now,
                                  const float *entropy, float *dnow, float *dentropy)
{
    token_loss p = {.samples = payload, .next = first};

    nanosleep(&(struct timespec){.tv_nsec = 250000000}, NULL);
    return run_token_loss(&p, first, count, now, entropy, dnow, dentropy);
}

static invar_status send_heartbeat(void *world)
{
    invar_layout_heartbeat(world);
    return INVAR_OK;
}

/* Rank 0 trains for longer than the timeout of rank 1, and sends heartbeats. */
static invar_status train_slowly(rank_run *run)
{
    slow_case *s = run->payload;
    const invar_trainer_loss loss = {.run = sleep_in_loss, .payload = s->samples.items};
    invar_layout world;
    invar_trainer_options options = {.plan = {1, 1, 1, 0},
                                     .temperature = 1.0f,
                                     .on_progress = send_heartbeat,
                                     .payload = &world};
    float now[MAX_TOKENS];
    invar_trainer_result result = {.train_logp = now};
    invar_trainer *trainer = NULL;
    invar_grads *grads = NULL;
    invar_status status = INVAR_OK;

    invar_layout_init(&world, run->comm, 1);
    if (invar_comm_rank(run->comm) == 0) {
        INVAR_TRY(invar_grads_new(&grads, s->model));
        status = invar_trainer_new(&trainer, s->dev, &options);
        if (status == INVAR_OK)
            status = invar_trainer_forward_backward(trainer, s->model, s->samples.items,
                                                    s->samples.count, &loss, grads, &result);
        invar_trainer_free(trainer);
        invar_grads_free(grads);
    }
    INVAR_TRY(status);
    return invar_comm_run(run->comm, &(invar_comm_transfer){.op = INVAR_COMM_BARRIER,
                                                            .phase = "step",
                                                            .timeout_s = world.timeout_s});
}

static void test_trainer__a_slow_rank_is_awaited(void **state)
{
    slow_case s = {.dev = *state};
    invar_model *model = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, 11, s.dev);
    rank_run runs[MAX_RANKS];

    s.model = model;
    invar_test_samples(&s.samples, SAMPLES, 20, model->spec.vocab, 5);
    run_ranks(runs, 2, 0, 0, train_slowly, &s);
    assert_ok(ranks_status(runs, 2));
    invar_rl_samples_reset(&s.samples);
    invar_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trainer__plans_change_no_bit),
        cmocka_unit_test(test_trainer__scores_what_it_trains),
        cmocka_unit_test(test_trainer__critic_gradients_are_slopes),
        cmocka_unit_test(test_trainer__routing_is_compared_and_replayed),
        cmocka_unit_test(test_trainer__reads_foreign_routing_only_to_replay),
        cmocka_unit_test(test_trainer__a_slow_rank_is_awaited),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
