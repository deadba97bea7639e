/*
 * profiling_backend.c - tests of the backend that profiles the ops and memory of another one.
 *
 * The backend behind it is the fake GPU. Results must not depend on profiling, calls count only
 * while it is on, rows differ by shape, and memory is counted by the name of its allocation.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/bench/profiling_backend.h"

#include <string.h>

#include "engine/model/graph/op_runner.h"
#include "tests/device/fake_gpu.h"
#include "tests/ops.h"

enum { ROWS = 3, COLS = 8 };

typedef struct fixture {
    invar_profiling_backend *profiler;
    invar_device dev;
    invar_op_runner caller;
    float *x, *y; /* (ROWS, COLS) in the device's memory */
} fixture;

static float *alloc_operand(const fixture *b, const char *what)
{
    return invar_test_device_alloc(&b->dev, ROWS * COLS * sizeof(float), what);
}

static int setup(void **state)
{
    static fixture b;
    float x[ROWS * COLS];

    for (int i = 0; i < ROWS * COLS; i++)
        x[i] = (float)(i - 7) * 0.25f;
    invar_fake_gpu_begin(0);
    assert_ok(invar_profiling_backend_new(&b.profiler, invar_fake_gpu_backend()));
    (void)invar_profiling_backend_attach(&b.dev, b.profiler);
    assert_ok(invar_device_open(&b.dev));
    invar_op_runner_init(&b.caller, &b.dev);
    b.x = alloc_operand(&b, "operands");
    b.y = alloc_operand(&b, "results");
    assert_ok(invar_device_upload(&b.dev, b.x, x, sizeof x));
    *state = &b;
    return 0;
}

static int teardown(void **state)
{
    fixture *b = *state;

    invar_device_free(&b->dev, b->x);
    invar_device_free(&b->dev, b->y);
    invar_op_runner_release(&b->caller);
    invar_device_close(&b->dev);
    invar_profiling_backend_free(b->profiler);
    return invar_fake_gpu_counted().opens != 0 || invar_fake_gpu_counted().live != 0;
}

/* Computes y = x + x on the device and downloads y to `out`. */
static void run_add(float out[ROWS * COLS], fixture *b)
{
    invar_tensor x = invar_tensor_2d(b->x, INVAR_DTYPE_F32, ROWS, COLS);
    invar_tensor y = invar_tensor_2d(b->y, INVAR_DTYPE_F32, ROWS, COLS);

    assert_ok(INVAR_CALL(&b->caller, ADD, add, .out = y, .a = x, .b = x));
    assert_ok(invar_device_download(&b->dev, out, b->y, ROWS * COLS * sizeof *out));
}

static const invar_profile_row *find_row(const fixture *b, const char *name)
{
    int64_t count;
    const invar_profile_row *rows = invar_profiling_backend_rows(&count, b->profiler);

    for (int64_t i = 0; i < count; i++)
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    return NULL;
}

static void test_profiling_backend__keeps_results(void **state)
{
    fixture *b = *state;
    float off[ROWS * COLS], on[ROWS * COLS];

    run_add(off, b);
    assert_ok(invar_profiling_backend_begin(b->profiler, &b->dev));
    run_add(on, b);
    invar_profiling_backend_end(b->profiler);
    for (int i = 0; i < ROWS * COLS; i++)
        assert_true(off[i] == (float)(i - 7) * 0.5f);
    assert_memory_equal(on, off, sizeof on);
}

static void test_profiling_backend__counts_only_while_on(void **state)
{
    fixture *b = *state;
    float out[ROWS * COLS];
    double all = 0.0, before = 1e9;
    int64_t count;
    const invar_profile_row *rows;

    run_add(out, b);
    rows = invar_profiling_backend_rows(&count, b->profiler);
    assert_int_equal(count, 0);
    assert_ok(invar_profiling_backend_begin(b->profiler, &b->dev));
    run_add(out, b);
    run_add(out, b);
    invar_profiling_backend_end(b->profiler);
    run_add(out, b);
    assert_int_equal(find_row(b, "add")->calls, 2);
    assert_int_equal(find_row(b, "from the device")->calls, 2);
    rows = invar_profiling_backend_rows(&count, b->profiler);
    assert_int_equal(count, 2);
    for (int64_t i = 0; i < count; i++) {
        assert_true(rows[i].seconds >= 0.0 && rows[i].seconds <= before);
        before = rows[i].seconds;
        all += rows[i].seconds;
    }
    assert_true(all <= invar_profiling_backend_seconds(b->profiler));
    assert_ok(invar_profiling_backend_begin(b->profiler, &b->dev));
    assert_null(find_row(b, "add"));
    invar_profiling_backend_end(b->profiler);
}

static void test_profiling_backend__separates_shapes(void **state)
{
    fixture *b = *state;
    invar_tensor x = invar_tensor_2d(b->x, INVAR_DTYPE_F32, ROWS, COLS);
    invar_tensor w = invar_tensor_2d(b->x, INVAR_DTYPE_F32, 2, COLS);
    invar_tensor y = invar_tensor_2d(b->y, INVAR_DTYPE_F32, ROWS, 2);
    int64_t count;
    const invar_profile_row *rows;

    assert_ok(invar_profiling_backend_begin(b->profiler, &b->dev));
    for (int64_t n = 1; n <= 2; n++) {
        w.shape[0] = y.shape[1] = y.row_stride = n;
        assert_ok(
            INVAR_CALL(&b->caller, LINEAR_FWD, linear_fwd, .y = y, .x = x, .w = w, .k_shards = 1));
    }
    invar_profiling_backend_end(b->profiler);
    rows = invar_profiling_backend_rows(&count, b->profiler);
    assert_int_equal(count, 2);
    for (int64_t i = 0; i < count; i++) {
        bool one = strcmp(rows[i].shape, "3x1x8 f32") == 0;
        assert_true(one || strcmp(rows[i].shape, "3x2x8 f32") == 0);
        assert_int_equal(rows[i].calls, 1);
    }
}

static void test_profiling_backend__counts_memory_by_name(void **state)
{
    fixture *b = *state;
    size_t each = ROWS * COLS * sizeof(float);
    float *more = alloc_operand(b, "operands, too");

    assert_int_equal(invar_profiling_backend_allocated_bytes(b->profiler, "operands"), 2 * each);
    assert_int_equal(invar_profiling_backend_allocated_bytes(b->profiler, NULL), 3 * each);
    invar_device_free(&b->dev, more);
    assert_int_equal(invar_profiling_backend_allocated_bytes(b->profiler, "operands"), each);
    assert_int_equal(invar_profiling_backend_allocated_bytes(b->profiler, "others"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_profiling_backend__keeps_results, setup, teardown),
        cmocka_unit_test_setup_teardown(test_profiling_backend__counts_only_while_on, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_profiling_backend__separates_shapes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_profiling_backend__counts_memory_by_name, setup,
                                        teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
