/*
 * copying_backend.c - tests of the copying backend: ops of the fake GPU on tensors of the heap.
 *
 * Results come back into host memory, and bytes between the rows of a tensor stay. Control: an op
 * that writes outside its tensors, or to an input, is detected.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/device/copying_backend.h"

#include <stdlib.h>
#include <string.h>

#include "tests/device/fake_gpu.h"
#include "tests/ops.h"

/* Fault of the backend's op `add`, in addition to its sum: a write past, before or to a tensor. */
static enum { NO_FAULT, WRITES_AFTER, WRITES_BEFORE, WRITES_INPUT } add_fault;

static invar_status run_add(const invar_device *dev, const void *args, void *scratch)
{
    const invar_add_args *a = args;
    size_t bytes = (size_t)((a->out.shape[0] - 1) * a->out.row_stride + a->out.shape[1]) * 4;
    char one = 1;

    INVAR_TRY(invar_fake_gpu_backend()->ops[INVAR_OP_ADD].run(dev, args, scratch));
    switch (add_fault) {
    case WRITES_AFTER: return invar_device_upload(dev, (char *)a->out.data + bytes, &one, 1);
    case WRITES_BEFORE: return invar_device_upload(dev, (char *)a->out.data - 1, &one, 1);
    case WRITES_INPUT: return invar_device_upload(dev, a->b.data, &one, 1);
    default: return INVAR_OK;
    }
}

/* Takes the place of the CUDA backend: the fake GPU with the op above. */
const invar_backend *invar_backend_cuda(void)
{
    static invar_backend backend;

    backend = *invar_fake_gpu_backend();
    backend.ops[INVAR_OP_ADD].run = run_add;
    return &backend;
}

static int setup(void **state)
{
    static invar_device dev;

    add_fault = NO_FAULT;
    if (setenv("INVAR_TEST_DEVICE", "cuda", 1) != 0)
        return 1;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    *state = &dev;
    return 0;
}

static int teardown(void **state)
{
    invar_test_device_release(*state);
    return 0;
}

static invar_tensor random_tensor(uint64_t seed)
{
    invar_tensor t = invar_test_strided(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 3, 5), 2);

    invar_test_fill_normal(&t, seed, 1.0f);
    return t;
}

static void assert_sums(const invar_tensor *got, const invar_tensor *a, const invar_tensor *b)
{
    for (int64_t i = 0; i < 3; i++)
        for (int64_t j = 0; j < 5; j++)
            assert_true(invar_test_get(got, i, j) ==
                        invar_test_get(a, i, j) + invar_test_get(b, i, j));
}

static void test_copying_backend__copies_results_back(void **state)
{
    const invar_device *dev = *state;
    invar_tensor a = random_tensor(1), b = random_tensor(2), out = random_tensor(3);
    int64_t ops = invar_fake_gpu_counted().ops;
    uint32_t gap[2], untouched[2];

    memcpy(gap, (float *)out.data + 5, sizeof gap);
    assert_ok(invar_add(dev, &(invar_add_args){out, a, b}));
    assert_int_equal(invar_fake_gpu_counted().ops, ops + 1); // the op ran on the fake GPU
    assert_sums(&out, &a, &b);
    memcpy(untouched, (float *)out.data + 5, sizeof untouched);
    assert_memory_equal(untouched, gap, sizeof gap); // the bytes between the rows
    invar_test_free(&a, &b, &out);
}

/* A tensor that is input and output is one copy, not two. A call without rows copies nothing. */
static void test_copying_backend__overlap_and_no_rows(void **state)
{
    const invar_device *dev = *state;
    invar_tensor a = random_tensor(1), b = random_tensor(2), a_before = invar_test_copy(&a),
                 no_rows = a;

    assert_ok(invar_add(dev, &(invar_add_args){a, a, b}));
    assert_sums(&a, &a_before, &b);
    no_rows.shape[0] = 0;
    assert_ok(invar_add(dev, &(invar_add_args){no_rows, no_rows, no_rows}));
    invar_test_free(&a, &b, &a_before);
}

/* An argument that is only read may lie in read-only memory: it is not copied back. */
static void test_copying_backend__accepts_read_only_inputs(void **state)
{
    static const int64_t start[] = {0, 1, 3};
    const invar_device *dev = *state;
    invar_tensor x = random_tensor(1),
                 sum = invar_test_tensor(invar_tensor_1d(NULL, INVAR_DTYPE_F32, 5));

    invar_test_fill(&sum, 0.0f);
    assert_ok(invar_token_sum(dev, &(invar_token_sum_args){sum, x, {start, 2}}));
    for (int64_t j = 0; j < 5; j++)
        assert_true(invar_test_get(&sum, j, 0) ==
                    invar_test_get(&x, 0, j) +
                        (invar_test_get(&x, 1, j) + invar_test_get(&x, 2, j)));
    invar_test_free(&x, &sum);
}

static void test_copying_backend__detects_stray_writes(void **state)
{
    const invar_device *dev = *state;
    invar_tensor a = random_tensor(1), b = random_tensor(2), out = random_tensor(3),
                 b_before = invar_test_copy(&b);

    add_fault = WRITES_AFTER;
    assert_fails(invar_add(dev, &(invar_add_args){out, a, b}), INVAR_E_STATE,
                 "add wrote beside its tensors");
    add_fault = WRITES_BEFORE;
    assert_fails(invar_add(dev, &(invar_add_args){out, a, b}), INVAR_E_STATE,
                 "add wrote beside its tensors");
    add_fault = WRITES_INPUT;
    assert_ok(invar_add(dev, &(invar_add_args){out, a, b}));
    assert_true(invar_tensors_differ(&b, &b_before)); // the changed input is copied back
    invar_test_free(&a, &b, &out, &b_before);
}

static void test_copying_backend__unknown_device_has_no_backend(void **state)
{
    (void)state;
    assert_int_equal(setenv("INVAR_TEST_DEVICE", "abacus", 1), 0);
    assert_null(invar_test_ops_backend());
    assert_null(invar_test_heap_backend());
    assert_int_equal(unsetenv("INVAR_TEST_DEVICE"), 0);
    assert_ptr_equal(invar_test_heap_backend(), invar_backend_cpu());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_copying_backend__copies_results_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_copying_backend__overlap_and_no_rows, setup, teardown),
        cmocka_unit_test_setup_teardown(test_copying_backend__accepts_read_only_inputs, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_copying_backend__detects_stray_writes, setup,
                                        teardown),
        cmocka_unit_test(test_copying_backend__unknown_device_has_no_backend),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
