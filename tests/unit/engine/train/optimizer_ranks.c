/*
 * optimizer_ranks.c - tests of AdamW on ranks that divide the moments.
 *
 * Weights, moments and masters must be those of one rank bit for bit, before and after a resume,
 * and the transferred bytes must be those of the bucket plans. Ranks are threads; one of them may
 * have the fake GPU with offloaded moments.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/model/graph/host_staging.h"
#include "engine/model/shard/master_weights.h"
#include "engine/ranks/layout/bucket_plan.h"
#include "engine/train/optimizer.h"
#include "tests/device/fake_gpu.h"
#include "tests/model.h"
#include "tests/ranks.h"

enum { STEPS = 3 };
#define SECONDS 60

static const invar_adamw_options adamw = {
    .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .weight_decay = 0.1f};

/* Shared data of the ranks; each rank uses its own elements of the arrays. */
typedef struct ranks_case {
    invar_model *models[MAX_RANKS];
    invar_grads *grads[MAX_RANKS];
    invar_device devs[MAX_RANKS];
    invar_model *start;          /* initial model of one rank */
    invar_model *before, *after; /* model of one rank after STEPS steps and after one more */
    invar_optimizer *optimizer_before, *optimizer_after; /* optimizers of `before` and of `after` */
    size_t chunk_bytes[MAX_RANKS],
        bucket; /* offload chunk of each rank; bucket size, 0 for the default */
} ranks_case;

static invar_status run_steps(invar_optimizer *o, invar_model *model, const invar_grads *grads,
                              int count, const invar_device *dev)
{
    for (int i = 0; i < count; i++)
        INVAR_TRY(invar_optimizer_step(o, model, grads, 0.5f, 0.01f * (float)(o->steps + 1), true,
                                       &adamw, dev));
    return INVAR_OK;
}

/* ---- one rank and several -------------------------------------------------------------------- */

static bool differs_from(const invar_tensor *expected, const invar_tensor *of,
                         const invar_device *dev)
{
    invar_host_window window = {.dev = dev};
    invar_tensor window_tensor;
    bool result = invar_host_window_tensor(&window_tensor, &window, of) != INVAR_OK ||
                  invar_tensors_differ(expected, &window_tensor);

    invar_host_window_release(&window);
    return result;
}

static invar_status compare_model(const invar_model *a, const invar_model *b, int rank)
{
    for (int64_t i = 0; i < a->n_params; i++) {
        const invar_param *p = &b->params[i];
        invar_tensor own =
            invar_tensor_rows(&a->params[i].master, p->master_row, p->master.shape[0]);
        if ((own.shape[0] > 0 && differs_from(&own, &p->master, &b->dev)) ||
            differs_from(&a->params[i].weight, &p->weight, &b->dev))
            return INVAR_FAIL(INVAR_E_MISMATCH, 0, "rank %d has another %s", rank, p->name);
    }
    return INVAR_OK;
}

static invar_status compare_moments(const invar_optimizer *one, const invar_optimizer *o, int rank)
{
    bool whole = !o->divided || rank == 0;

    for (int64_t i = 0; i < o->params; i++)
        if (whole ? differs_from(&one->m[i], &o->m[i], invar_optimizer_device(o)) ||
                        differs_from(&one->v[i], &o->v[i], invar_optimizer_device(o))
                  : o->m[i].data || o->v[i].data)
            return INVAR_FAIL(INVAR_E_MISMATCH, 0, "rank %d has other moments", rank);
    return INVAR_OK;
}

/* Adds the bytes that `times` transfers of all buckets send and receive on this rank. */
static invar_status add_expected(uint64_t bytes_expected[2], const invar_layout *layout,
                                 const size_t *bytes,
                                 void (*make)(invar_comm_transfer *, invar_bucket_plan *, int64_t),
                                 int times)
{
    const invar_layout_axis *data = &layout->data;
    uint64_t sent, received;
    invar_comm_transfer transfer;
    invar_bucket_plan x;
    invar_status status =
        invar_bucket_plan_init(&x, bytes, layout->bucket_bytes, data->size, data->rank);

    for (int64_t i = 0; status == INVAR_OK && i < x.n_buckets; i++) {
        make(&transfer, &x, i);
        transfer.phase = "plan";
        status = invar_comm_transfer_bytes(&sent, &received, &transfer, data->rank, data->size);
        bytes_expected[0] += (uint64_t)times * sent;
        bytes_expected[1] += (uint64_t)times * received;
    }
    invar_bucket_plan_release(&x);
    return status;
}

/* Each step gathers the weights in their compute type; the moments are collected once. */
static invar_status check_traffic(const invar_model *model)
{
    const invar_layout *layout = model->layout;
    invar_comm_stats gathered = invar_comm_get_stats(layout->data.comm, INVAR_COMM_ALLGATHERV);
    invar_comm_stats collected = invar_comm_get_stats(layout->data.comm, INVAR_COMM_ALLTOALLV);
    uint64_t bytes_expected[4] = {0};
    invar_zero_ranges weights = {0}, moments = {0};
    invar_status status = INVAR_OK;

    if (layout->data.size > 1) {
        status = invar_zero_ranges_weights(&weights, model);
        if (status == INVAR_OK)
            status = invar_zero_ranges_masters(&moments, model);
        if (status == INVAR_OK)
            status = add_expected(bytes_expected, layout, weights.bytes, invar_bucket_plan_gather,
                                  STEPS);
        if (status == INVAR_OK)
            status = add_expected(bytes_expected + 2, layout, moments.bytes,
                                  invar_bucket_plan_collect, 2);
    }
    invar_zero_ranges_release(&weights);
    invar_zero_ranges_release(&moments);
    if (status == INVAR_OK &&
        (gathered.sent != bytes_expected[0] || gathered.received != bytes_expected[1] ||
         collected.sent != bytes_expected[2] || collected.received != bytes_expected[3]))
        status = INVAR_FAIL(INVAR_E_MISMATCH, 0, "rank %d moved other bytes than planned",
                            layout->data.rank);
    return status;
}

/* Reports whether a rank has more moments than its share plus the largest parameter. */
static bool exceeds_share(const invar_optimizer *o, const invar_model *model)
{
    int64_t max_elements = 0;

    for (int64_t i = 0; i < model->n_params; i++)
        if (invar_param_elements(&model->params[i]) > max_elements)
            max_elements = invar_param_elements(&model->params[i]);
    return o->local_bytes > o->full_bytes / (size_t)model->layout->data.size +
                                2 * (size_t)max_elements * sizeof(float);
}

static invar_status first_steps(const ranks_case *l, int r)
{
    invar_optimizer *o;
    invar_status status;

    INVAR_TRY(invar_optimizer_new(&o, l->models[r], l->chunk_bytes[r]));
    status = run_steps(o, l->models[r], l->grads[r], STEPS, &l->devs[r]);
    if (status == INVAR_OK)
        status = invar_optimizer_collect(o, l->models[r]);
    if (status == INVAR_OK)
        status = compare_moments(l->optimizer_before, o, r);
    if (status == INVAR_OK)
        status = check_traffic(l->models[r]);
    if (status == INVAR_OK)
        status = compare_model(l->before, l->models[r], r);
    if (status == INVAR_OK && exceeds_share(o, l->models[r]))
        status = INVAR_FAIL(INVAR_E_MISMATCH, 0, "rank %d has too much", r);
    invar_optimizer_free(o);
    return status;
}

/* Compares the master of a parameter, whose rows all ranks read together. */
static invar_status read_param(const ranks_case *l, const invar_model *model, int64_t i)
{
    invar_tensor master = invar_param_local_tensor(&model->params[i], NULL);
    invar_status status;

    master.data = malloc(invar_host_staging_span(&master));
    status = invar_full_masters_read(master.data, model, i);
    if (status == INVAR_OK && invar_tensors_differ(&l->after->params[i].master, &master))
        status = INVAR_FAIL(INVAR_E_MISMATCH, 0, "%s was read otherwise", model->params[i].name);
    free(master.data);
    return status;
}

/* Checks that rank 0 collects the masters of all ranks, and that each rank can read them. */
static invar_status check_masters(const ranks_case *l, int r)
{
    invar_model *model = l->models[r];
    bool has_masters = model->layout->data.size > 1 && model->format != INVAR_FORMAT_FP32;
    invar_full_masters all = {.tensors = NULL};
    invar_status status = invar_full_masters_collect(&all, model);

    for (int64_t i = 0; all.memory && status == INVAR_OK && i < model->n_params; i++)
        if (invar_tensors_differ(&l->after->params[i].master, &all.tensors[i]))
            status = INVAR_FAIL(INVAR_E_MISMATCH, 0, "%s was collected otherwise",
                                model->params[i].name);
    if (status == INVAR_OK && (all.memory != NULL) != (has_masters && r == 0))
        status = INVAR_FAIL(INVAR_E_MISMATCH, 0, "rank %d has collected masters or has not", r);
    invar_full_masters_release(&all);
    for (int64_t i = 0; status == INVAR_OK && i < model->n_params; i++)
        status = read_param(l, model, i);
    return status == INVAR_OK ? compare_model(l->after, model, r) : status;
}

/* Loads the moments of one rank, as a resumed run does, and makes one more step. */
static invar_status resume_and_step(const ranks_case *l, int r)
{
    invar_optimizer *o;
    invar_status status;

    INVAR_TRY(invar_optimizer_new(&o, l->models[r], l->chunk_bytes[r]));
    status = INVAR_OK;
    for (int64_t i = 0; i < o->params && status == INVAR_OK; i++) {
        status = invar_optimizer_load(o, l->models[r], i, false, l->optimizer_before->m[i].data);
        if (status == INVAR_OK)
            status = invar_optimizer_load(o, l->models[r], i, true, l->optimizer_before->v[i].data);
    }
    o->steps = l->optimizer_before->steps;
    o->beta1_power = l->optimizer_before->beta1_power;
    o->beta2_power = l->optimizer_before->beta2_power;
    if (status == INVAR_OK)
        status = run_steps(o, l->models[r], l->grads[r], 1, &l->devs[r]);
    if (status == INVAR_OK)
        status = invar_optimizer_collect(o, l->models[r]);
    if (status == INVAR_OK)
        status = compare_moments(l->optimizer_after, o, r);
    if (status == INVAR_OK)
        status = check_masters(l, r);
    invar_optimizer_free(o);
    return status;
}

static invar_status fill_grads(invar_grads **out, const invar_model *model)
{
    size_t count = model->grad_bytes / sizeof(float);
    float *values = malloc(model->grad_bytes);
    invar_status status = invar_grads_new(out, model);

    for (size_t i = 0; i < count; i++)
        values[i] = invar_test_normal(9, i, 1.0f);
    if (status == INVAR_OK)
        status = invar_device_upload(&(*out)->dev, (*out)->memory, values, model->grad_bytes);
    free(values);
    return status;
}

static invar_status run_rank(rank_run *run)
{
    ranks_case *l = run->payload;
    int r = invar_comm_rank(run->comm);
    invar_layout layout;
    invar_status status;

    invar_layout_init(&layout, run->comm, SECONDS);
    if (l->bucket)
        layout.bucket_bytes = l->bucket;
    status = invar_test_model_part(&l->models[r], l->start, &layout, &l->devs[r]);
    if (status == INVAR_OK)
        status = fill_grads(&l->grads[r], l->models[r]);
    if (status == INVAR_OK)
        status = first_steps(l, r);
    if (status == INVAR_OK)
        status = resume_and_step(l, r);
    if (status != INVAR_OK)
        invar_comm_abort(run->comm, invar_error_last()->message);
    invar_grads_free(l->grads[r]);
    invar_model_free(l->models[r]);
    return status;
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* Makes the model and the optimizer of one rank after `count` steps. */
static void make_reference(invar_model **model, invar_optimizer **o, invar_test_model kind,
                           invar_format format, int count, const invar_device *dev)
{
    invar_grads *grads;

    *model = invar_test_model_new(kind, format, 3, dev);
    assert_ok(fill_grads(&grads, *model));
    assert_ok(invar_optimizer_new(o, *model, 0));
    assert_ok(run_steps(*o, *model, grads, count, dev));
    invar_grads_free(grads);
}

/* `fake_gpu` is the device of rank 1, which offloads its moments; NULL if all ranks use `dev`. */
static void check_ranks(invar_test_model kind, invar_format format, int size, uint64_t schedule,
                        const invar_device *dev, const invar_device *fake_gpu)
{
    ranks_case l = {.bucket = schedule % 2};
    rank_run runs[MAX_RANKS];

    make_reference(&l.before, &l.optimizer_before, kind, format, STEPS, dev);
    make_reference(&l.after, &l.optimizer_after, kind, format, STEPS + 1, dev);
    for (int r = 0; r < size; r++) {
        l.devs[r] = fake_gpu && r == 1 ? *fake_gpu : *dev;
        l.devs[r].pool = NULL; // each rank is one thread
        l.chunk_bytes[r] = fake_gpu && r == 1 ? 4 * INVAR_ALIGN : 0;
    }
    l.start = invar_test_model_new(kind, format, 3, dev);
    run_ranks(runs, size, schedule, 0, run_rank, &l);
    for (int r = 0; r < size; r++)
        if (runs[r].status != INVAR_OK)
            fail_msg("rank %d of %d: %s", r, size, runs[r].error.message);
    invar_model_free(l.start);
    invar_optimizer_free(l.optimizer_before);
    invar_optimizer_free(l.optimizer_after);
    invar_model_free(l.before);
    invar_model_free(l.after);
}

static void test_optimizer_ranks__equal_one_rank(void **state)
{
    static const int sizes[] = {1, 2, 3, 8, 16};
    const invar_device *dev = *state;

    for (int format = 0; format < INVAR_FORMAT_COUNT; format++)
        for (size_t s = (size_t)format % 2; s < sizeof sizes / sizeof *sizes; s += 2)
            check_ranks(s % 3 ? INVAR_TEST_MODEL_EXPERTS : INVAR_TEST_MODEL_DENSE,
                        (invar_format)format, sizes[s], s, dev, NULL);
}

static void test_optimizer_ranks__fake_gpu(void **state)
{
    const invar_device *dev = *state;
    invar_device fake_gpu;

    assert_ok(invar_fake_gpu_open(&fake_gpu, dev));
    check_ranks(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, 2, 1, dev, &fake_gpu);
    check_ranks(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP8, 3, 2, dev, &fake_gpu);
    assert_int_equal(invar_fake_gpu_counted().live, 0);
    invar_device_close(&fake_gpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optimizer_ranks__equal_one_rank),
        cmocka_unit_test(test_optimizer_ranks__fake_gpu),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
