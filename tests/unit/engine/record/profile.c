/*
 * profile.c - tests of the op profile: each op once, in its phase, on the CPU and on the fake GPU.
 *
 * Sums must equal the sums over the single events, and times must lie within the wall clock of the
 * test. Calls outside of the profiled window are the control: they must not appear.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/profile.h"

#include <string.h>
#include <time.h>

#include "engine/model/graph/cuda_graph_cache.h"
#include "tests/device/fake_gpu.h"
#include "tests/ops.h"

enum { ROWS = 3, COLS = 5 };

typedef struct profile_fixture {
    invar_profile *profile;
    invar_device dev;
    float *a, *b;
} profile_fixture;

static profile_fixture t;

static float *zero_block(void)
{
    static const float zeros[ROWS * COLS];
    float *batch = invar_test_device_alloc(&t.dev, sizeof zeros, "a block");

    assert_ok(invar_device_upload(&t.dev, batch, zeros, sizeof zeros));
    return batch;
}

static void open_on(const invar_backend *backend)
{
    t = (profile_fixture){.dev = {.backend = backend, .numerics = INVAR_NUMERICS_IEEE}};
    assert_ok(invar_profile_new(&t.profile));
    t.dev.profiler = invar_profile_meter(t.profile);
    assert_ok(invar_device_open(&t.dev));
    t.a = zero_block();
    t.b = zero_block();
}

static int setup_cpu(void **state)
{
    (void)state;
    open_on(invar_backend_cpu());
    return 0;
}

static int setup_fake_gpu(void **state)
{
    (void)state;
    invar_fake_gpu_begin(0);
    open_on(invar_fake_gpu_backend());
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    invar_device_free(&t.dev, t.a);
    invar_device_free(&t.dev, t.b);
    invar_device_close(&t.dev);
    invar_profile_free(t.profile);
    return 0;
}

static invar_add_args add_args(float *to)
{
    invar_tensor a = invar_tensor_2d(t.a, INVAR_DTYPE_F32, ROWS, COLS);

    return (invar_add_args){
        .out = invar_tensor_2d(to, INVAR_DTYPE_F32, ROWS, COLS), .a = a, .b = a};
}

static void run_adds(int times)
{
    invar_add_args args = add_args(t.b);

    for (int i = 0; i < times; i++)
        assert_ok(invar_op_run(&t.dev, INVAR_OP_ADD, &args));
}

static int64_t unix_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static invar_profile_batch take_batch(void)
{
    invar_profile_batch batch;

    invar_profile_flush(t.profile);
    assert_ok(invar_profile_take(&batch, t.profile));
    return batch;
}

/* Returns the number of events with this name; events of memory have no name. */
static int64_t count_events(const invar_profile_batch *batch, const char *name)
{
    int64_t found = 0;

    for (size_t i = 0; i < batch->n_events; i++)
        found += batch->events[i].name && strcmp(batch->events[i].name, name) == 0;
    return found;
}

static const invar_profile_sum *find_sum(const invar_profile_batch *batch, const char *phase,
                                         const char *op)
{
    for (size_t i = 0; i < batch->n_sums; i++)
        if (strcmp(batch->sums[i].phase, phase) == 0 && strcmp(batch->sums[i].op, op) == 0)
            return &batch->sums[i];
    return NULL;
}

static void test_calls(void **state)
{
    int64_t test_start_ns = unix_ns(), total_ns = 0, longest_ns = 0;
    invar_profile_batch batch;

    (void)state;
    run_adds(3); // the profile is off
    invar_profile_switch(t.profile, true);
    invar_profile_phase(t.profile, "train");
    run_adds(7);
    invar_profile_phase(t.profile, NULL);
    assert_ok(invar_device_zero(&t.dev, t.a, sizeof(float)));
    invar_profile_switch(t.profile, false);
    run_adds(3);
    batch = take_batch();
    assert_int_equal(count_events(&batch, "add"), 7);
    assert_int_equal(count_events(&batch, "zero"), 1);
    assert_int_equal(batch.n_sums, 2);
    assert_int_equal(batch.left_out, 0);
    for (size_t i = 0; i < batch.n_events; i++) {
        const invar_profile_event *e = &batch.events[i];

        assert_true(e->start_ns >= test_start_ns && e->start_ns + e->duration_ns <= unix_ns());
        if (!e->name || strcmp(e->name, "add") != 0)
            continue;
        assert_string_equal(e->phase, "train");
        assert_string_equal(e->operands, "out f32[3,5] a f32[3,5] b f32[3,5]");
        total_ns += e->duration_ns;
        longest_ns = e->duration_ns > longest_ns ? e->duration_ns : longest_ns;
    }
    assert_non_null(find_sum(&batch, "train", "add"));
    assert_int_equal(find_sum(&batch, "train", "add")->calls, 7);
    assert_int_equal(find_sum(&batch, "train", "add")->duration_ns, total_ns);
    assert_int_equal(find_sum(&batch, "train", "add")->longest_ns, longest_ns);
    assert_non_null(find_sum(&batch, "other", "zero"));
    assert_int_equal(take_batch().n_events, 0); // each event is returned once
}

/* Copies that an op makes belong to the op and are no events of their own. */
static void test_within(void **state)
{
    invar_tensor grads = invar_tensor_2d(t.a, INVAR_DTYPE_F32, ROWS, COLS);
    float norm, clip;
    invar_grad_norm_args args = {
        .norm = &norm, .clip = &clip, .grads = &grads, .count = 1, .max_norm = 1};
    invar_op_runner caller;
    invar_profile_batch batch;

    (void)state;
    invar_op_runner_init(&caller, &t.dev);
    invar_profile_switch(t.profile, true);
    assert_ok(invar_op_runner_run(&caller, INVAR_OP_GRAD_NORM, &args));
    batch = take_batch();
    assert_int_equal(count_events(&batch, "grad.norm"), 1);
    assert_int_equal(batch.n_sums, 1);
    invar_op_runner_release(&caller);
}

/* More ops than there are device timers, without reading any in between. */
static void test_many(void **state)
{
    invar_profile_batch batch;
    int64_t end_ns = 0;

    (void)state;
    invar_profile_switch(t.profile, true);
    run_adds(INVAR_DEVICE_TIMERS_MAX);
    batch = take_batch();
    assert_int_equal(count_events(&batch, "add"), INVAR_DEVICE_TIMERS_MAX);
    for (size_t i = 0; i < batch.n_events; i++) {
        if (!batch.events[i].name)
            continue;
        assert_true(batch.events[i].start_ns >= end_ns && batch.events[i].duration_ns >= 0);
        end_ns = batch.events[i].start_ns + batch.events[i].duration_ns;
    }
}

/* While the profile is on, ops run outside of CUDA graphs; later passes use the graph again. */
static void test_graphs(void **state)
{
    static const invar_cuda_graph_key key = {1, 1, 1};
    invar_add_args args = add_args(t.b);
    invar_op_runner caller;
    invar_cuda_graph_cache *cache;
    invar_profile_batch batch;

    (void)state;
    invar_op_runner_init(&caller, &t.dev);
    assert_ok(invar_cuda_graph_cache_new(&cache, &t.dev));
    caller.graph_cache = cache;
    for (int pass = 0; pass < 9; pass++) {
        int64_t graphs = invar_fake_gpu_counted().graph_runs;

        invar_profile_switch(t.profile, pass >= 3 && pass < 6);
        invar_cuda_graph_cache_begin(cache, &key);
        for (int i = 0; i < 4; i++)
            assert_ok(invar_op_runner_run(&caller, INVAR_OP_ADD, &args));
        assert_ok(invar_cuda_graph_cache_flush(cache));
        invar_cuda_graph_cache_end(cache);
        // the first pass is recorded; later passes run the graph
        assert_int_equal(invar_fake_gpu_counted().graph_runs - graphs,
                         pass > 0 && !(pass >= 3 && pass < 6));
    }
    batch = take_batch();
    assert_int_equal(count_events(&batch, "add"), 12);
    invar_cuda_graph_cache_free(cache);
    invar_op_runner_release(&caller);
}

/* An op's own error message is kept; a lost device fails the next invar_profile_take only. */
static void test_failures(void **state)
{
    invar_add_args args = add_args(t.b);
    invar_profile_batch batch;

    (void)state;
    invar_profile_switch(t.profile, true);
    run_adds(1);
    args.a.shape[0] = 1;
    assert_fails(invar_op_run(&t.dev, INVAR_OP_ADD, &args), INVAR_E_INVALID, "add");
    invar_error_clear();
    invar_fake_gpu_lose(1, false);
    args = add_args(t.b);
    assert_fails(invar_op_run(&t.dev, INVAR_OP_ADD, &args), INVAR_E_CUDA, "");
    invar_error_clear();
    invar_fake_gpu_lose(0, false);
    invar_profile_flush(t.profile);
    assert_fails(invar_profile_take(&batch, t.profile), INVAR_E_CUDA, "");
    assert_ok(invar_profile_take(&batch, t.profile)); // reported once
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_calls, setup_cpu, teardown),
        cmocka_unit_test_setup_teardown(test_calls, setup_fake_gpu, teardown),
        cmocka_unit_test_setup_teardown(test_within, setup_cpu, teardown),
        cmocka_unit_test_setup_teardown(test_within, setup_fake_gpu, teardown),
        cmocka_unit_test_setup_teardown(test_many, setup_cpu, teardown),
        cmocka_unit_test_setup_teardown(test_many, setup_fake_gpu, teardown),
        cmocka_unit_test_setup_teardown(test_graphs, setup_fake_gpu, teardown),
        cmocka_unit_test_setup_teardown(test_failures, setup_fake_gpu, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
