/*
 * ranks.c - tests of scoring and training on several data-parallel ranks.
 *
 * Every rank must have the results of one rank bit for bit, and the transferred bytes must be those
 * of the plans. Ranks are threads, with and without an adversarial message schedule; rank 1 may
 * have its model on the fake GPU. The training step itself is in tests/train_step_case.h. By
 * default the numbers of ranks of a plan are distributed over the models; under `full` all models
 * run all of them with both schedules.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include "engine/model/shard/zero_partition.h"
#include "engine/ranks/layout/bucket_plan.h"
#include "tests/device/fake_gpu.h"
#include "tests/ranks.h"
#include "tests/train_step_case.h"

#define SECONDS 60

/* Returns the device of a rank: the fake GPU for rank 1 if the case has one. */
static const invar_device *device_of(const train_step_case *l, int rank)
{
    return l->has_far && rank == 1 ? &l->far : &l->near;
}

/* ---- one rank and several -------------------------------------------------------------------- */

typedef struct traffic {
    uint64_t sent, received;
} traffic;

static invar_status plan_transfer(traffic *to, invar_comm_transfer *transfer,
                                  const invar_layout_axis *data)
{
    uint64_t sent, received;

    transfer->phase = "plan";
    INVAR_TRY(invar_comm_transfer_bytes(&sent, &received, transfer, data->rank, data->size));
    to->sent += sent;
    to->received += received;
    return INVAR_OK;
}

/* Plans `times` gathers of four bytes per response token; rank r has samples[r][0 to 1]. */
static invar_status plan_tokens(traffic *to, const train_step_case *l,
                                const invar_layout_axis *data, int64_t (*samples)[2], int times)
{
    size_t bytes[MAX_RANKS];
    invar_comm_transfer transfer = {.op = INVAR_COMM_ALLGATHERV, .out_bytes = bytes};

    for (int r = 0; r < data->size; r++)
        bytes[r] = 4 * (size_t)(l->start[samples[r][1]] - l->start[samples[r][0]]);
    for (int i = 0; i < times; i++)
        INVAR_TRY(plan_transfer(to, &transfer, data));
    return INVAR_OK;
}

/* Plans all transfers of a step: out[0] is for gathers, out[1] for all-to-all. */
static invar_status plan_step(traffic out[2], const train_step_case *l, const invar_layout *layout,
                              const invar_zero_ranges *zero_ranges)
{
    const invar_layout_axis *data = &layout->data;
    int times = l->model->spec.value_head ? 1 : 2;
    int64_t ranges[MAX_RANKS][2], rows[SAMPLES];
    invar_bucket_plan x = {0};
    invar_comm_transfer transfer;
    invar_batch_plan plan = {0};
    invar_status status;

    for (int r = 0; r < data->size; r++) {
        invar_index_range range = invar_layout_range_of(SAMPLES, data->size, r);
        ranges[r][0] = range.first;
        ranges[r][1] = range.first + range.count;
    }
    INVAR_TRY(plan_tokens(&out[0], l, data, ranges, times));
    for (int64_t i = 0; i < SAMPLES; i++)
        rows[i] = invar_micro_batch_rows(&l->samples->items[i]);
    INVAR_TRY(invar_batch_plan_make(&plan, rows, SAMPLES, &l->options.plan));
    status = invar_bucket_plan_init(&x, zero_ranges->bytes, layout->bucket_bytes, data->size,
                                    data->rank);
    for (int64_t first = 0; status == INVAR_OK && first < plan.units; first += data->size) {
        int64_t n_left = plan.units - first;
        for (int64_t r = 0; r < data->size; r++) {
            ranges[r][0] = plan.unit_sample[r < n_left ? first + r : plan.units];
            ranges[r][1] = plan.unit_sample[r < n_left ? first + r + 1 : plan.units];
        }
        status = plan_tokens(&out[0], l, data, ranges, times);
        for (int64_t i = 0; status == INVAR_OK && i < x.n_buckets; i++) {
            invar_bucket_plan_scatter(&transfer, &x, i,
                                      (int)(n_left < data->size ? n_left : data->size));
            status = plan_transfer(&out[1], &transfer, data);
        }
    }
    for (int64_t i = 0; status == INVAR_OK && i < x.n_buckets; i++) {
        invar_bucket_plan_gather(&transfer, &x, i);
        status = plan_transfer(&out[0], &transfer, data);
    }
    if (invar_model_sparse_layers(l->model) > 0) {
        out[0].sent += 16 * ((uint64_t)data->size - 1);
        out[0].received += 16 * ((uint64_t)data->size - 1);
    }
    invar_bucket_plan_release(&x);
    invar_batch_plan_release(&plan);
    return status;
}

static invar_status compare_traffic(const train_step_case *l, const invar_layout *layout,
                                    const invar_zero_ranges *zero_ranges)
{
    invar_comm_stats counted[] = {invar_comm_get_stats(layout->data.comm, INVAR_COMM_ALLGATHERV),
                                  invar_comm_get_stats(layout->data.comm, INVAR_COMM_ALLTOALLV)};
    traffic expected_traffic[2] = {0};

    INVAR_TRY(plan_step(expected_traffic, l, layout, zero_ranges));
    for (int i = 0; i < 2; i++)
        if (counted[i].sent != expected_traffic[i].sent ||
            counted[i].received != expected_traffic[i].received)
            return INVAR_FAIL(INVAR_E_MISMATCH, 0, "rank %d moved %d and %d bytes, not %d and %d",
                              layout->data.rank, (int)counted[i].sent, (int)counted[i].received,
                              (int)expected_traffic[i].sent, (int)expected_traffic[i].received);
    return INVAR_OK;
}

static invar_status check_traffic(const train_step_case *l, const invar_layout *layout,
                                  const invar_model *model)
{
    const invar_comm *comm = layout->data.comm;
    invar_zero_ranges zero_ranges;
    invar_status status;

    if (layout->data.size == 1)
        return invar_comm_get_stats(comm, INVAR_COMM_ALLGATHERV).calls +
                           invar_comm_get_stats(comm, INVAR_COMM_ALLTOALLV).calls ==
                       0
                   ? INVAR_OK
                   : INVAR_FAIL(INVAR_E_CORRUPT, 0, "one rank moves");
    status = invar_zero_ranges_grads(&zero_ranges, model, 0);
    if (status == INVAR_OK)
        status = compare_traffic(l, layout, &zero_ranges);
    invar_zero_ranges_release(&zero_ranges);
    return status;
}

static invar_status run_rank(const train_step_case *l, const invar_layout *layout)
{
    const invar_device *dev = device_of(l, layout->data.rank);
    invar_model *model = NULL;
    outcome out = {.grads = NULL};
    invar_status status;

    INVAR_TRY(invar_test_model_part(&model, l->model, layout, dev));
    status = train_step_case_step(&out, l, layout, model, dev);
    if (status == INVAR_OK)
        status = train_step_case_compare(&out, l, model, layout->data.rank);
    if (status == INVAR_OK)
        status = check_traffic(l, layout, model);
    free(out.grads);
    invar_model_free(model);
    return status;
}

static invar_status run_rank_thread(rank_run *run)
{
    const train_step_case *l = run->payload;
    invar_layout layout;
    invar_status status;

    invar_layout_init(&layout, run->comm, SECONDS);
    if (l->bucket)
        layout.bucket_bytes = l->bucket;
    status = run_rank(l, &layout);
    if (status != INVAR_OK)
        invar_comm_abort(run->comm, invar_error_last()->message);
    return status;
}

static void check_ranks(train_step_case *l, int size, uint64_t schedule)
{
    rank_run runs[MAX_RANKS];

    run_ranks(runs, size, schedule, 0, run_rank_thread, l);
    for (int r = 0; r < size; r++)
        if (runs[r].status != INVAR_OK)
            fail_msg("rank %d of %d: %s", r, size, runs[r].error.message);
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* Plans with 7 units of one sample, 4 units of two samples (the last of one), and one unit. */
static const invar_batch_plan_options plans[] = {{1, 1, 2, 0}, {MOST, 3, 0, 40}, {MOST, 1, 0, 0}};
static const int sizes[] = {1, 2, 3, 4, 8};
enum { SIZES = sizeof sizes / sizeof *sizes };

static size_t models; /* number of models that check_plans has checked */

static void check_plans(train_step_case *l)
{
    outcome expected;

    for (size_t p = 0; p < sizeof plans / sizeof *plans; p++) {
        l->options = (invar_trainer_options){.plan = plans[p],
                                             .temperature = 0.8f,
                                             .recompute = p == 1,
                                             .head_rows = p == 1 ? 3 : 0};
        assert_ok(train_step_case_step(&expected, l, NULL, l->model, &l->near));
        l->expected = &expected;
        for (size_t s = 0; s < SIZES; s++) {
            size_t pair = SIZES * p + s;
            bool scheduled = models / 4 % 2 == pair / 4 % 2;

            // four models together have every pair, one half of them with a schedule
            if (!invar_test_full() && pair % 4 != models % 4)
                continue;
            l->bucket = s % 2 ? 1 : 0;
            if (invar_test_full() || !scheduled)
                check_ranks(l, sizes[s], 0);
            if (invar_test_full() || scheduled)
                check_ranks(l, sizes[s], 11 * p + s + 1);
        }
        free(expected.grads);
    }
    models++;
}

/* Makes a model. If it is wide, the rows of a parameter belong to several ranks. */
static invar_model *make_model(invar_test_model kind, invar_format format, bool wide,
                               const invar_device *dev)
{
    invar_model_spec spec = invar_test_spec(kind, true);
    invar_model *model = NULL;

    if (!wide)
        return invar_test_model_new(kind, format, 11, dev);
    assert_ok(invar_model_new(&model, &spec, format, NULL, dev));
    assert_ok(invar_model_init(model, 11, dev));
    return model;
}

static void test_ranks__equal_one_rank(void **state)
{
    static const invar_test_model kinds[] = {INVAR_TEST_MODEL_DENSE, INVAR_TEST_MODEL_EXPERTS};
    static const invar_format formats[] = {INVAR_FORMAT_FP32, INVAR_FORMAT_BF16, INVAR_FORMAT_FP8};
    const invar_device *devs = *state;
    invar_rl_samples samples;
    train_step_case l;

    for (size_t k = 0; k < 2; k++)
        for (size_t f = 0; f < 3; f++) {
            const invar_device *dev = &devs[f % 2]; // both numerics
            invar_model *model = make_model(kinds[k], formats[f], f == 1, dev);
            invar_test_samples(&samples, SAMPLES, 20, model->spec.vocab, 5);
            train_step_case_init(&l, model, &samples, dev);
            check_plans(&l);
            invar_rl_samples_reset(&samples);
            invar_model_free(model);
        }
}

static void test_ranks__critic(void **state)
{
    const invar_device *dev = *state;
    invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_DENSE, false);
    invar_model *critic = NULL;
    invar_rl_samples samples;
    train_step_case l;

    spec.value_head = true;
    spec.tied = false;
    assert_ok(invar_model_new(&critic, &spec, INVAR_FORMAT_BF16, NULL, dev));
    assert_ok(invar_model_init(critic, 21, dev));
    invar_test_samples(&samples, SAMPLES, 20, spec.vocab, 5);
    train_step_case_init(&l, critic, &samples, dev);
    check_plans(&l);
    invar_rl_samples_reset(&samples);
    invar_model_free(critic);
}

/* One rank has its gradients on the fake GPU, the others have them on the host. */
static void test_ranks__fake_gpu(void **state)
{
    const invar_device *dev = *state;
    invar_model *model = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, 11, dev);
    invar_rl_samples samples;
    train_step_case l;

    invar_test_samples(&samples, SAMPLES, 20, model->spec.vocab, 5);
    train_step_case_init(&l, model, &samples, dev);
    assert_ok(invar_fake_gpu_open(&l.far, &l.near));
    l.has_far = true;
    check_plans(&l);
    assert_true(invar_fake_gpu_counted().ops > 0);
    assert_int_equal(invar_fake_gpu_counted().live, 0);
    invar_device_close(&l.far);
    invar_rl_samples_reset(&samples);
    invar_model_free(model);
}

/* Differing routes are counted on the rank that has the sample; all ranks get the sum. */
static void test_ranks__routes_are_counted(void **state)
{
    const invar_device *dev = *state;
    invar_model *model = invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_FP32, 11, dev);
    invar_rl_samples samples;
    outcome expected;
    train_step_case l;

    invar_test_samples(&samples, SAMPLES, 20, model->spec.vocab, 5);
    train_step_case_route(&samples, model);
    train_step_case_init(&l, model, &samples, dev);
    l.options = (invar_trainer_options){.plan = plans[0], .temperature = 1.0f};
    assert_ok(train_step_case_step(&expected, &l, NULL, model, &l.near));
    assert_true(0 < expected.result.routes_differ &&
                expected.result.routes_differ < expected.result.routes);
    l.expected = &expected;
    check_ranks(&l, 3, 5);
    free(expected.grads);
    invar_rl_samples_reset(&samples);
    invar_model_free(model);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* The loss fails on one rank; the other ranks fail with the same message. */
static void test_ranks__loss_fails(void **state)
{
    const invar_device *dev = *state;
    invar_model *model = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP32, 11, dev);
    invar_rl_samples samples;
    rank_run runs[MAX_RANKS];
    train_step_case l;

    invar_test_samples(&samples, SAMPLES, 20, model->spec.vocab, 5);
    train_step_case_init(&l, model, &samples, dev);
    l.options = (invar_trainer_options){.plan = plans[0], .temperature = 1.0f};
    l.failing = 2;
    run_ranks(runs, 3, 0, 0, run_rank_thread, &l);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(runs[r].status, r == 2 ? INVAR_E_STATE : INVAR_E_IO);
        assert_non_null(strstr(runs[r].error.message, "the loss of sample 6 is no number"));
        assert_true(r == 2 || strstr(runs[r].error.message, "rank 2 on "));
    }
    invar_rl_samples_reset(&samples);
    invar_model_free(model);
}

static invar_status fail_if_called(void *payload, int64_t first, int64_t count, const float *now,
                                   const float *entropy, float *dnow, float *dentropy)
{
    (void)payload;
    (void)first;
    (void)count;
    (void)now;
    (void)entropy;
    (void)dnow;
    (void)dentropy;
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "the loss is asked");
}

/* Gradients that are not zero are rejected before any transfer, although rank 1 never answers. */
static void test_ranks__refuses(void **state)
{
    const invar_device *dev = *state;
    invar_model *model = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP32, 11, dev);
    invar_trainer_options options = {.plan = plans[0], .temperature = 1.0f};
    float now[MOST], entropy[MOST];
    invar_trainer_result result = {.train_logp = now, .entropy = entropy};
    invar_trainer_loss loss = {.run = fail_if_called, .entropy = true};
    invar_rl_samples samples;
    invar_trainer *trainer;
    invar_grads *grads;
    invar_layout layout;
    invar_comm *comms[2];

    invar_test_samples(&samples, SAMPLES, 20, model->spec.vocab, 5);
    assert_ok(invar_comm_threads(comms, 2, 0));
    invar_layout_init(&layout, comms[0], SECONDS);
    options.layout = &layout;
    assert_ok(invar_trainer_new(&trainer, dev, &options));
    assert_ok(invar_grads_new(&grads, model));
    grads->overwrite_next = false;
    assert_fails(invar_trainer_forward_backward(trainer, model, samples.items, SAMPLES, &loss,
                                                grads, &result),
                 INVAR_E_INVALID, "gradients of zero only");
    invar_grads_free(grads);
    invar_trainer_free(trainer);
    invar_comm_free(comms[0]);
    invar_comm_free(comms[1]);
    invar_rl_samples_reset(&samples);
    invar_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks__equal_one_rank),
        cmocka_unit_test(test_ranks__critic),
        cmocka_unit_test(test_ranks__fake_gpu),
        cmocka_unit_test(test_ranks__routes_are_counted),
        cmocka_unit_test(test_ranks__loss_fails),
        cmocka_unit_test(test_ranks__refuses),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
