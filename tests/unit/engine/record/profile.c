/*
 * profile.c - tests of the profile: every call of a device once, near and far, in its phase.
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

typedef struct bench {
    invar_profile *profile;
    invar_device dev;
    float *a, *b;
} bench;

static bench t;

static float *block(void)
{
    static const float zeros[ROWS * COLS];
    float *taken = invar_test_take(&t.dev, sizeof zeros, "a block");

    assert_ok(invar_device_upload(&t.dev, taken, zeros, sizeof zeros));
    return taken;
}

static void open_on(const invar_backend *backend)
{
    t = (bench){.dev = {.backend = backend, .numerics = INVAR_NUMERICS_IEEE}};
    assert_ok(invar_profile_new(&t.profile));
    t.dev.profiler = invar_profile_meter(t.profile);
    assert_ok(invar_device_open(&t.dev));
    t.a = block();
    t.b = block();
}

static int near(void **state)
{
    (void)state;
    open_on(invar_backend_cpu());
    return 0;
}

static int far(void **state)
{
    (void)state;
    invar_far_begin(0);
    open_on(invar_far_backend());
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

static invar_add_args sum_of(float *to)
{
    invar_tensor a = invar_tensor_2d(t.a, INVAR_DTYPE_F32, ROWS, COLS);

    return (invar_add_args){
        .out = invar_tensor_2d(to, INVAR_DTYPE_F32, ROWS, COLS), .a = a, .b = a};
}

static void add(int times)
{
    invar_add_args args = sum_of(t.b);

    for (int i = 0; i < times; i++)
        assert_ok(invar_op_run(&t.dev, INVAR_OP_ADD, &args));
}

static int64_t unix_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static invar_profile_batch take(void)
{
    invar_profile_batch taken;

    invar_profile_flush(t.profile);
    assert_ok(invar_profile_take(&taken, t.profile));
    return taken;
}

/* Calls of the name, in the events; memory has none. */
static int64_t count(const invar_profile_batch *taken, const char *name)
{
    int64_t found = 0;

    for (size_t i = 0; i < taken->n_events; i++)
        found += taken->events[i].name && strcmp(taken->events[i].name, name) == 0;
    return found;
}

static const invar_profile_sum *sum(const invar_profile_batch *taken, const char *phase,
                                    const char *op)
{
    for (size_t i = 0; i < taken->n_sums; i++)
        if (strcmp(taken->sums[i].phase, phase) == 0 && strcmp(taken->sums[i].op, op) == 0)
            return &taken->sums[i];
    return NULL;
}

static void test_calls(void **state)
{
    int64_t before = unix_ns(), spent = 0, longest = 0;
    invar_profile_batch taken;

    (void)state;
    add(3); // it is off
    invar_profile_switch(t.profile, true);
    invar_profile_phase(t.profile, "train");
    add(7);
    invar_profile_phase(t.profile, NULL);
    assert_ok(invar_device_zero(&t.dev, t.a, sizeof(float)));
    invar_profile_switch(t.profile, false);
    add(3);
    taken = take();
    assert_int_equal(count(&taken, "add"), 7);
    assert_int_equal(count(&taken, "zero"), 1);
    assert_int_equal(taken.n_sums, 2);
    assert_int_equal(taken.left_out, 0);
    for (size_t i = 0; i < taken.n_events; i++) {
        const invar_profile_event *e = &taken.events[i];

        assert_true(e->start_ns >= before && e->start_ns + e->duration_ns <= unix_ns());
        if (!e->name || strcmp(e->name, "add") != 0)
            continue;
        assert_string_equal(e->phase, "train");
        assert_string_equal(e->operands, "out f32[3,5] a f32[3,5] b f32[3,5]");
        spent += e->duration_ns;
        longest = e->duration_ns > longest ? e->duration_ns : longest;
    }
    assert_non_null(sum(&taken, "train", "add"));
    assert_int_equal(sum(&taken, "train", "add")->calls, 7);
    assert_int_equal(sum(&taken, "train", "add")->duration_ns, spent);
    assert_int_equal(sum(&taken, "train", "add")->longest_ns, longest);
    assert_non_null(sum(&taken, "other", "zero"));
    assert_int_equal(take().n_events, 0); // each once
}

/* What an op copies belongs to it. */
static void test_within(void **state)
{
    invar_tensor grads = invar_tensor_2d(t.a, INVAR_DTYPE_F32, ROWS, COLS);
    float norm, clip;
    invar_grad_norm_args args = {
        .norm = &norm, .clip = &clip, .grads = &grads, .count = 1, .max_norm = 1};
    invar_op_runner caller;
    invar_profile_batch taken;

    (void)state;
    invar_op_runner_init(&caller, &t.dev);
    invar_profile_switch(t.profile, true);
    assert_ok(invar_op_runner_run(&caller, INVAR_OP_GRAD_NORM, &args));
    taken = take();
    assert_int_equal(count(&taken, "grad.norm"), 1);
    assert_int_equal(taken.n_sums, 1);
    invar_op_runner_release(&caller);
}

/* More than there are marks, none of them read in between. */
static void test_many(void **state)
{
    invar_profile_batch taken;
    int64_t end_ns = 0;

    (void)state;
    invar_profile_switch(t.profile, true);
    add(INVAR_DEVICE_TIMERS_MAX);
    taken = take();
    assert_int_equal(count(&taken, "add"), INVAR_DEVICE_TIMERS_MAX);
    for (size_t i = 0; i < taken.n_events; i++) {
        if (!taken.events[i].name)
            continue;
        assert_true(taken.events[i].start_ns >= end_ns && taken.events[i].duration_ns >= 0);
        end_ns = taken.events[i].start_ns + taken.events[i].duration_ns;
    }
}

/* In the window decoding runs no graph, and what was a graph before is one again after it. */
static void test_graphs(void **state)
{
    static const invar_cuda_graph_key key = {1, 1, 1};
    invar_add_args args = sum_of(t.b);
    invar_op_runner caller;
    invar_cuda_graph_cache *tape;
    invar_profile_batch taken;

    (void)state;
    invar_op_runner_init(&caller, &t.dev);
    assert_ok(invar_cuda_graph_cache_new(&tape, &t.dev));
    caller.graph_cache = tape;
    for (int pass = 0; pass < 9; pass++) {
        int64_t graphs = invar_far_counted().graph_runs;

        invar_profile_switch(t.profile, pass >= 3 && pass < 6);
        invar_cuda_graph_cache_begin(tape, &key);
        for (int i = 0; i < 4; i++)
            assert_ok(invar_op_runner_run(&caller, INVAR_OP_ADD, &args));
        assert_ok(invar_cuda_graph_cache_flush(tape));
        invar_cuda_graph_cache_end(tape);
        // the first pass is noted; from the second on it is a graph
        assert_int_equal(invar_far_counted().graph_runs - graphs,
                         pass > 0 && !(pass >= 3 && pass < 6));
    }
    taken = take();
    assert_int_equal(count(&taken, "add"), 12);
    invar_cuda_graph_cache_free(tape);
    invar_op_runner_release(&caller);
}

/* The message of an op that fails stays; a device that is lost is told, and ends nothing here. */
static void test_failures(void **state)
{
    invar_add_args args = sum_of(t.b);
    invar_profile_batch taken;

    (void)state;
    invar_profile_switch(t.profile, true);
    add(1);
    args.a.shape[0] = 1;
    assert_fails(invar_op_run(&t.dev, INVAR_OP_ADD, &args), INVAR_E_INVALID, "add");
    invar_error_clear();
    invar_far_lose(1, false);
    args = sum_of(t.b);
    assert_fails(invar_op_run(&t.dev, INVAR_OP_ADD, &args), INVAR_E_CUDA, "");
    invar_error_clear();
    invar_far_lose(0, false);
    invar_profile_flush(t.profile);
    assert_fails(invar_profile_take(&taken, t.profile), INVAR_E_CUDA, "");
    assert_ok(invar_profile_take(&taken, t.profile)); // told once
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_calls, near, teardown),
        cmocka_unit_test_setup_teardown(test_calls, far, teardown),
        cmocka_unit_test_setup_teardown(test_within, near, teardown),
        cmocka_unit_test_setup_teardown(test_within, far, teardown),
        cmocka_unit_test_setup_teardown(test_many, near, teardown),
        cmocka_unit_test_setup_teardown(test_many, far, teardown),
        cmocka_unit_test_setup_teardown(test_graphs, far, teardown),
        cmocka_unit_test_setup_teardown(test_failures, far, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
