/*
 * fake_gpu_offload.c - optimizer moments in host memory change no bit of AdamW.
 *
 * The moments are moved to the device in chunks (optimizer-cpu-offload). On the fake GPU
 * (tests/device/fake_gpu.h), masters, weights and moments are compared with those of an optimizer
 * that keeps its moments on the device, for chunks of any size and every format, and the device
 * memory must be exactly the documented amount.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/model/graph/host_staging.h"
#include "engine/train/offload.h"
#include "engine/train/optimizer.h"
#include "tests/device/fake_gpu.h"
#include "tests/model.h"

enum { STEPS = 3 };

static const invar_adamw_options adamw = {0.9f, 0.98f, 1e-8f, 0.1f, 1.0f};

typedef struct device_pair {
    invar_device near, far;
} device_pair;

static void device_init(device_pair *d)
{
    invar_test_device_init(&d->near, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 2);
    invar_fake_gpu_begin(0);
    d->far = d->near;
    d->far.backend = invar_fake_gpu_backend();
    d->far.scratch = NULL;
    assert_ok(invar_device_open(&d->far));
}

static void device_release(device_pair *d)
{
    assert_int_equal(invar_fake_gpu_counted().live, 0);
    invar_device_close(&d->far);
    assert_int_equal(invar_fake_gpu_counted().opens, 0);
    invar_test_device_release(&d->near);
}

static size_t bytes_of(const invar_param *p)
{
    return (size_t)(p->master.shape[0] * p->master.row_stride) * sizeof(float);
}

static void fill_gradients(invar_grads *grads, const invar_model *model, int step)
{
    for (int64_t p = 0; p < model->n_params; p++) {
        size_t bytes = bytes_of(&model->params[p]);
        float *values = malloc(bytes);

        assert_non_null(values);
        for (size_t i = 0; i < bytes / sizeof(float); i++)
            values[i] = invar_test_normal((uint64_t)(step * 1000 + p), i, 0.1f);
        assert_ok(invar_device_upload(&model->dev, grads->tensors[p].data, values, bytes));
        free(values);
    }
}

/* Copies master, weight and both moments of a parameter to host memory. */
static void read_param(invar_tensor out[4], const invar_optimizer *o, const invar_param *p,
                       int64_t i)
{
    const invar_tensor from[4] = {p->master, p->weight, o->m[i], o->v[i]};

    for (int j = 0; j < 4; j++) {
        invar_host_window window = {.dev = j < 2 ? &o->dev : invar_optimizer_device(o)};
        invar_tensor near;

        assert_ok(invar_host_window_tensor(&near, &window, &from[j]));
        out[j] = invar_test_copy(&near);
        invar_host_window_release(&window);
    }
}

/* State after the steps. */
typedef struct step_state {
    invar_tensor (
        *param_tensors)[4]; /* (count) master, weight and both moments of each parameter */
    int64_t count;
} step_state;

static void step_state_release(step_state *a)
{
    for (int64_t i = 0; i < a->count; i++)
        for (int j = 0; j < 4; j++)
            invar_test_free(&a->param_tensors[i][j]);
    free(a->param_tensors);
}

/*
 * Trains a new model for some steps. `chunk` is the size of a chunk in bytes; 0 keeps the moments
 * on the device.
 */
static step_state train_steps(const invar_device *dev, invar_format format, size_t chunk)
{
    invar_model *model = invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, format, 5, dev);
    invar_optimizer *optimizer = NULL;
    invar_grads *grads = NULL;
    step_state out = {.count = model->n_params};
    float norm, clip;

    assert_ok(invar_optimizer_new(&optimizer, model, chunk));
    assert_ok(invar_grads_new(&grads, model));
    for (int step = 0; step < STEPS; step++) {
        fill_gradients(grads, model, step);
        assert_ok(invar_optimizer_norm(&norm, &clip, model, grads, true, adamw.clip_grad, dev));
        assert_ok(invar_optimizer_step(optimizer, model, grads, clip, 0.01f, true, &adamw, dev));
    }
    out.param_tensors = calloc((size_t)out.count, sizeof *out.param_tensors);
    assert_non_null(out.param_tensors);
    for (int64_t i = 0; i < out.count; i++)
        read_param(out.param_tensors[i], optimizer, &model->params[i], i);
    invar_grads_free(grads);
    invar_optimizer_free(optimizer);
    invar_model_free(model);
    return out;
}

static void test_fake_gpu_offload__chunks_change_no_bit(void **state)
{
    const size_t chunks[] = {INVAR_ALIGN * (size_t)invar_test_count(13, 1), 8192,
                             INVAR_OPTIMIZER_CHUNK_BYTES};
    static const char *const names[] = {"master", "weight", "m", "v"};
    device_pair d;

    (void)state;
    device_init(&d);
    for (int format = 0; format < INVAR_FORMAT_COUNT; format++) {
        step_state on_device = train_steps(&d.far, (invar_format)format, 0);

        for (size_t p = 0; p < sizeof chunks / sizeof *chunks; p++) {
            step_state got = train_steps(&d.far, (invar_format)format, chunks[p]);

            assert_int_equal(got.count, on_device.count);
            for (int64_t i = 0; i < got.count; i++)
                for (int j = 0; j < 4; j++)
                    invar_assert_bits_tensor(&got.param_tensors[i][j],
                                             &on_device.param_tensors[i][j], names[j]);
            step_state_release(&got);
        }
        step_state_release(&on_device);
    }
    device_release(&d);
}

static size_t aligned(size_t bytes)
{
    return (bytes + INVAR_ALIGN - 1) / INVAR_ALIGN * INVAR_ALIGN;
}

/*
 * If the moments are in host memory, the device has two chunks per moment, or one of each if they
 * fit; otherwise it has the moments and digests of the masters.
 */
static void test_fake_gpu_offload__uses_the_documented_memory(void **state)
{
    static const size_t chunks[] = {0, INVAR_ALIGN, 8192, INVAR_OPTIMIZER_CHUNK_BYTES};
    device_pair d;

    (void)state;
    device_init(&d);
    for (size_t p = 0; p < sizeof chunks / sizeof *chunks; p++) {
        invar_model *model =
            invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, 5, &d.far);
        invar_optimizer *optimizer = NULL;
        invar_grads *grads = NULL;
        size_t before, moments = 0, digests = (size_t)model->n_params * sizeof(invar_digest);
        bool on_device = chunks[p] == 0;

        for (int64_t i = 0; i < model->n_params; i++)
            moments += 2 * aligned(bytes_of(&model->params[i]));
        assert_true(moments > 8 * 8192);
        assert_ok(invar_grads_new(&grads, model));
        fill_gradients(grads, model, 0);
        before = invar_fake_gpu_counted().bytes;
        assert_ok(invar_optimizer_new(&optimizer, model, chunks[p]));
        assert_int_equal(invar_fake_gpu_counted().bytes - before,
                         on_device             ? moments + aligned(digests)
                         : chunks[p] > moments ? moments
                                               : 4 * chunks[p]);
        assert_ok(invar_optimizer_step(optimizer, model, grads, 1.0f, 0.1f, true, &adamw, &d.far));
        assert_int_equal(invar_optimizer_device(optimizer) != NULL, on_device);
        assert_int_equal(invar_optimizer_can_hash(optimizer), on_device);
        invar_grads_free(grads);
        invar_optimizer_free(optimizer);
        assert_int_equal(invar_fake_gpu_counted().opens, 1); // the download context is closed
        invar_model_free(model);
    }
    device_release(&d);
}

static void test_fake_gpu_offload__reset_equals_a_new_optimizer(void **state)
{
    device_pair d;
    invar_model *model;
    invar_optimizer *optimizer = NULL;
    invar_grads *grads = NULL;

    (void)state;
    device_init(&d);
    model = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, 5, &d.far);
    assert_ok(invar_optimizer_new(&optimizer, model, 4 * INVAR_ALIGN));
    assert_ok(invar_grads_new(&grads, model));
    fill_gradients(grads, model, 1);
    assert_ok(invar_optimizer_step(optimizer, model, grads, 1.0f, 0.1f, false, &adamw, &d.far));
    assert_true(((const float *)optimizer->m[0].data)[0] != 0.0f);
    assert_ok(invar_optimizer_reset(optimizer));
    assert_int_equal(optimizer->steps, 0);
    assert_true(optimizer->beta1_power == 1.0f && optimizer->beta2_power == 1.0f);
    for (int64_t i = 0; i < model->n_params; i++)
        for (size_t at = 0; at < bytes_of(&model->params[i]); at++) {
            assert_int_equal(((const char *)optimizer->m[i].data)[at], 0);
            assert_int_equal(((const char *)optimizer->v[i].data)[at], 0);
        }
    invar_grads_free(grads);
    invar_optimizer_free(optimizer);
    invar_model_free(model);
    device_release(&d);
}

static invar_status fail_if_called(void *payload, size_t first, size_t bytes,
                                   void *const chunk_addresses[INVAR_OFFLOAD_ARRAYS])
{
    (void)payload, (void)first, (void)bytes, (void)chunk_addresses;
    fail_msg("there is nothing to work on");
    return INVAR_OK;
}

static void test_fake_gpu_offload__nothing_to_move(void **state)
{
    void *const no_addresses[INVAR_OFFLOAD_ARRAYS] = {NULL};
    invar_offload *offload;
    device_pair d;

    (void)state;
    device_init(&d);
    assert_ok(invar_offload_new(&offload, &d.far, 0, INVAR_ALIGN));
    assert_ok(invar_offload_run(offload, no_addresses, fail_if_called, NULL));
    invar_offload_free(offload);
    device_release(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fake_gpu_offload__chunks_change_no_bit),
        cmocka_unit_test(test_fake_gpu_offload__uses_the_documented_memory),
        cmocka_unit_test(test_fake_gpu_offload__reset_equals_a_new_optimizer),
        cmocka_unit_test(test_fake_gpu_offload__nothing_to_move),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
