/*
 * optimizer_ranks.c - ranks that divide the moments step as one does, bit for bit.
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

/* What ranks share; each has a model of its own. */
typedef struct lesson {
    invar_model *models[MAX_RANKS];
    invar_grads *grads[MAX_RANKS];
    invar_device devs[MAX_RANKS];
    invar_model *start;          /* one rank's, */
    invar_model *before, *after; /* after STEPS and after one more */
    invar_optimizer *was, *is;   /* and its optimizers */
    size_t piece[MAX_RANKS], bucket;
} lesson;

static invar_status steps(invar_optimizer *o, invar_model *model, const invar_grads *grads,
                          int count, const invar_device *dev)
{
    for (int i = 0; i < count; i++)
        INVAR_TRY(invar_optimizer_step(o, model, grads, 0.5f, 0.01f * (float)(o->steps + 1), true,
                                       &adamw, dev));
    return INVAR_OK;
}

/* ---- one rank and several -------------------------------------------------------------------- */

static bool differ(const invar_tensor *near, const invar_tensor *of, const invar_device *dev)
{
    invar_host_window window = {.dev = dev};
    invar_tensor shown;
    bool result = invar_host_window_tensor(&shown, &window, of) != INVAR_OK ||
                  invar_tensors_differ(near, &shown);

    invar_host_window_release(&window);
    return result;
}

static invar_status same_model(const invar_model *a, const invar_model *b, int rank)
{
    for (int64_t i = 0; i < a->n_params; i++) {
        const invar_param *p = &b->params[i];
        invar_tensor own =
            invar_tensor_rows(&a->params[i].master, p->master_row, p->master.shape[0]);
        if ((own.shape[0] > 0 && differ(&own, &p->master, &b->dev)) ||
            differ(&a->params[i].weight, &p->weight, &b->dev))
            return INVAR_FAIL(INVAR_E_MISMATCH, 0, "rank %d has another %s", rank, p->name);
    }
    return INVAR_OK;
}

static invar_status same_moments(const invar_optimizer *one, const invar_optimizer *o, int rank)
{
    bool whole = !o->divided || rank == 0;

    for (int64_t i = 0; i < o->params; i++)
        if (whole ? differ(&one->m[i], &o->m[i], invar_optimizer_device(o)) ||
                        differ(&one->v[i], &o->v[i], invar_optimizer_device(o))
                  : o->m[i].data || o->v[i].data)
            return INVAR_FAIL(INVAR_E_MISMATCH, 0, "rank %d has other moments", rank);
    return INVAR_OK;
}

/* Bytes that moves of so many bytes of each rank send and receive, all pieces, `times` over. */
static invar_status count_due(uint64_t due[2], const invar_layout *layout, const size_t *bytes,
                              void (*make)(invar_comm_transfer *, invar_bucket_plan *, int64_t),
                              int times)
{
    const invar_layout_axis *data = &layout->data;
    uint64_t sent, received;
    invar_comm_transfer move;
    invar_bucket_plan x;
    invar_status status =
        invar_bucket_plan_init(&x, bytes, layout->bucket_bytes, data->size, data->rank);

    for (int64_t i = 0; status == INVAR_OK && i < x.n_buckets; i++) {
        make(&move, &x, i);
        move.phase = "plan";
        status = invar_comm_transfer_bytes(&sent, &received, &move, data->rank, data->size);
        due[0] += (uint64_t)times * sent;
        due[1] += (uint64_t)times * received;
    }
    invar_bucket_plan_release(&x);
    return status;
}

/* Each step what ops read of weights, in their type; once the moments. */
static invar_status check_traffic(const invar_model *model)
{
    const invar_layout *layout = model->layout;
    invar_comm_stats gathered = invar_comm_get_stats(layout->data.comm, INVAR_COMM_ALLGATHERV);
    invar_comm_stats collected = invar_comm_get_stats(layout->data.comm, INVAR_COMM_ALLTOALLV);
    uint64_t due[4] = {0};
    invar_zero_ranges weights = {0}, moments = {0};
    invar_status status = INVAR_OK;

    if (layout->data.size > 1) {
        status = invar_zero_ranges_weights(&weights, model);
        if (status == INVAR_OK)
            status = invar_zero_ranges_masters(&moments, model);
        if (status == INVAR_OK)
            status = count_due(due, layout, weights.bytes, invar_bucket_plan_gather, STEPS);
        if (status == INVAR_OK)
            status = count_due(due + 2, layout, moments.bytes, invar_bucket_plan_collect, 2);
    }
    invar_zero_ranges_release(&weights);
    invar_zero_ranges_release(&moments);
    if (status == INVAR_OK && (gathered.sent != due[0] || gathered.received != due[1] ||
                               collected.sent != due[2] || collected.received != due[3]))
        status = INVAR_FAIL(INVAR_E_MISMATCH, 0, "rank %d moved other bytes than planned",
                            layout->data.rank);
    return status;
}

/* No rank has more than its share by more than the largest parameter, which may have one owner. */
static bool has_too_much(const invar_optimizer *o, const invar_model *model)
{
    int64_t most = 0;

    for (int64_t i = 0; i < model->n_params; i++)
        if (invar_param_elements(&model->params[i]) > most)
            most = invar_param_elements(&model->params[i]);
    return o->local_bytes >
           o->full_bytes / (size_t)model->layout->data.size + 2 * (size_t)most * sizeof(float);
}

static invar_status first_steps(const lesson *l, int r)
{
    invar_optimizer *o;
    invar_status status;

    INVAR_TRY(invar_optimizer_new(&o, l->models[r], l->piece[r]));
    status = steps(o, l->models[r], l->grads[r], STEPS, &l->devs[r]);
    if (status == INVAR_OK)
        status = invar_optimizer_collect(o, l->models[r]);
    if (status == INVAR_OK)
        status = same_moments(l->was, o, r);
    if (status == INVAR_OK)
        status = check_traffic(l->models[r]);
    if (status == INVAR_OK)
        status = same_model(l->before, l->models[r], r);
    if (status == INVAR_OK && has_too_much(o, l->models[r]))
        status = INVAR_FAIL(INVAR_E_MISMATCH, 0, "rank %d has too much", r);
    invar_optimizer_free(o);
    return status;
}

/* All rows of a parameter, which each rank reads together with the others. */
static invar_status read_param(const lesson *l, const invar_model *model, int64_t i)
{
    invar_tensor is = invar_param_local_tensor(&model->params[i], NULL);
    invar_status status;

    is.data = malloc(invar_host_staging_span(&is));
    status = invar_full_masters_read(is.data, model, i);
    if (status == INVAR_OK && invar_tensors_differ(&l->after->params[i].master, &is))
        status = INVAR_FAIL(INVAR_E_MISMATCH, 0, "%s was read otherwise", model->params[i].name);
    free(is.data);
    return status;
}

/* Masters of its own rows are here, those of others come from them. */
static invar_status check_masters(const lesson *l, int r)
{
    invar_model *model = l->models[r];
    bool apart = model->layout->data.size > 1 && model->format != INVAR_FORMAT_FP32;
    invar_full_masters all = {.tensors = NULL};
    invar_status status = invar_full_masters_collect(&all, model);

    for (int64_t i = 0; all.memory && status == INVAR_OK && i < model->n_params; i++)
        if (invar_tensors_differ(&l->after->params[i].master, &all.tensors[i]))
            status = INVAR_FAIL(INVAR_E_MISMATCH, 0, "%s was collected otherwise",
                                model->params[i].name);
    if (status == INVAR_OK && (all.memory != NULL) != (apart && r == 0))
        status = INVAR_FAIL(INVAR_E_MISMATCH, 0, "rank %d has collected masters or has not", r);
    invar_full_masters_release(&all);
    for (int64_t i = 0; status == INVAR_OK && i < model->n_params; i++)
        status = read_param(l, model, i);
    return status == INVAR_OK ? same_model(l->after, model, r) : status;
}

/* As a run goes on from a checkpoint. */
static invar_status go_on(const lesson *l, int r)
{
    invar_optimizer *o;
    invar_status status;

    INVAR_TRY(invar_optimizer_new(&o, l->models[r], l->piece[r]));
    status = INVAR_OK;
    for (int64_t i = 0; i < o->params && status == INVAR_OK; i++) {
        status = invar_optimizer_load(o, l->models[r], i, false, l->was->m[i].data);
        if (status == INVAR_OK)
            status = invar_optimizer_load(o, l->models[r], i, true, l->was->v[i].data);
    }
    o->steps = l->was->steps;
    o->beta1_power = l->was->beta1_power;
    o->beta2_power = l->was->beta2_power;
    if (status == INVAR_OK)
        status = steps(o, l->models[r], l->grads[r], 1, &l->devs[r]);
    if (status == INVAR_OK)
        status = invar_optimizer_collect(o, l->models[r]);
    if (status == INVAR_OK)
        status = same_moments(l->is, o, r);
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

static invar_status rank_part(rank_run *run)
{
    lesson *l = run->payload;
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
        status = go_on(l, r);
    if (status != INVAR_OK)
        invar_comm_abort(run->comm, invar_error_last()->message);
    invar_grads_free(l->grads[r]);
    invar_model_free(l->models[r]);
    return status;
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* The one rank, whose `count` steps are those that the others must make. */
static void make_one(invar_model **model, invar_optimizer **o, invar_test_model kind,
                     invar_format format, int count, const invar_device *dev)
{
    invar_grads *grads;

    *model = invar_test_model_new(kind, format, 3, dev);
    assert_ok(fill_grads(&grads, *model));
    assert_ok(invar_optimizer_new(o, *model, 0));
    assert_ok(steps(*o, *model, grads, count, dev));
    invar_grads_free(grads);
}

/* `far`: the device of rank 1, whose moments visit it; NULL: it has none. */
static void check(invar_test_model kind, invar_format format, int size, uint64_t schedule,
                  const invar_device *dev, const invar_device *far)
{
    lesson l = {.bucket = schedule % 2};
    rank_run runs[MAX_RANKS];

    make_one(&l.before, &l.was, kind, format, STEPS, dev);
    make_one(&l.after, &l.is, kind, format, STEPS + 1, dev);
    for (int r = 0; r < size; r++) {
        l.devs[r] = far && r == 1 ? *far : *dev;
        l.devs[r].pool = NULL; // a rank is a thread
        l.piece[r] = far && r == 1 ? 4 * INVAR_ALIGN : 0;
    }
    l.start = invar_test_model_new(kind, format, 3, dev);
    run_ranks(runs, size, schedule, 0, rank_part, &l);
    for (int r = 0; r < size; r++)
        if (runs[r].status != INVAR_OK)
            fail_msg("rank %d of %d: %s", r, size, runs[r].error.message);
    invar_model_free(l.start);
    invar_optimizer_free(l.was);
    invar_optimizer_free(l.is);
    invar_model_free(l.before);
    invar_model_free(l.after);
}

static void test_optimizer_ranks__step_as_one(void **state)
{
    static const int sizes[] = {1, 2, 3, 8, 16};
    const invar_device *dev = *state;

    for (int format = 0; format < INVAR_FORMAT_COUNT; format++)
        for (size_t s = (size_t)format % 2; s < sizeof sizes / sizeof *sizes; s += 2)
            check(s % 3 ? INVAR_TEST_MODEL_EXPERTS : INVAR_TEST_MODEL_DENSE, (invar_format)format,
                  sizes[s], s, dev, NULL);
}

static void test_optimizer_ranks__far_device(void **state)
{
    const invar_device *dev = *state;
    invar_device far;

    assert_ok(invar_far_open(&far, dev));
    check(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, 2, 1, dev, &far);
    check(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP8, 3, 2, dev, &far);
    assert_int_equal(invar_far_counted().live, 0);
    invar_device_close(&far);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optimizer_ranks__step_as_one),
        cmocka_unit_test(test_optimizer_ranks__far_device),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
