/*
 * copying_backend.c - tensors of the heap, ops elsewhere: what comes back, and what is noticed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/device/copying_backend.h"

#include <stdlib.h>
#include <string.h>

#include "tests/device/fake_gpu.h"
#include "tests/ops.h"

/* What the op over there does besides its work. */
static enum { NOTHING, WRITES_BEHIND, WRITES_BEFORE, WRITES_INPUT } mischief;

static invar_status run_add(const invar_device *dev, const void *args, void *scratch)
{
    const invar_add_args *a = args;
    size_t bytes = (size_t)((a->out.shape[0] - 1) * a->out.row_stride + a->out.shape[1]) * 4;
    char one = 1;

    INVAR_TRY(invar_far_backend()->ops[INVAR_OP_ADD].run(dev, args, scratch));
    switch (mischief) {
    case WRITES_BEHIND: return invar_device_upload(dev, (char *)a->out.data + bytes, &one, 1);
    case WRITES_BEFORE: return invar_device_upload(dev, (char *)a->out.data - 1, &one, 1);
    case WRITES_INPUT: return invar_device_upload(dev, a->b.data, &one, 1);
    default: return INVAR_OK;
    }
}

/* The far backend, with that op. */
const invar_backend *invar_backend_cuda(void)
{
    static invar_backend backend;

    backend = *invar_far_backend();
    backend.ops[INVAR_OP_ADD].run = run_add;
    return &backend;
}

static int setup(void **state)
{
    static invar_device dev;

    mischief = NOTHING;
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

static invar_tensor numbers(uint64_t seed)
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

static void test_ferry__results_come_back(void **state)
{
    const invar_device *dev = *state;
    invar_tensor a = numbers(1), b = numbers(2), out = numbers(3);
    int64_t ops = invar_far_counted().ops;
    uint32_t gap[2], untouched[2];

    memcpy(gap, (float *)out.data + 5, sizeof gap);
    assert_ok(invar_add(dev, &(invar_add_args){out, a, b}));
    assert_int_equal(invar_far_counted().ops, ops + 1); // over there, not here
    assert_sums(&out, &a, &b);
    memcpy(untouched, (float *)out.data + 5, sizeof untouched);
    assert_memory_equal(untouched, gap, sizeof gap); // between the rows
    invar_test_free(&a, &b, &out);
}

/* One tensor that is two arguments stays one; a call without rows has nothing to send. */
static void test_ferry__overlap_and_nothing(void **state)
{
    const invar_device *dev = *state;
    invar_tensor a = numbers(1), b = numbers(2), first = invar_test_copy(&a), none = a;

    assert_ok(invar_add(dev, &(invar_add_args){a, a, b}));
    assert_sums(&a, &first, &b);
    none.shape[0] = 0;
    assert_ok(invar_add(dev, &(invar_add_args){none, none, none}));
    invar_test_free(&a, &b, &first);
}

/* What is only read may be memory that cannot be written. */
static void test_ferry__constants_stay(void **state)
{
    static const int64_t start[] = {0, 1, 3};
    const invar_device *dev = *state;
    invar_tensor x = numbers(1), sum = invar_test_tensor(invar_tensor_1d(NULL, INVAR_DTYPE_F32, 5));

    invar_test_fill(&sum, 0.0f);
    assert_ok(invar_token_sum(dev, &(invar_token_sum_args){sum, x, {start, 2}}));
    for (int64_t j = 0; j < 5; j++)
        assert_true(invar_test_get(&sum, j, 0) ==
                    invar_test_get(&x, 0, j) +
                        (invar_test_get(&x, 1, j) + invar_test_get(&x, 2, j)));
    invar_test_free(&x, &sum);
}

static void test_ferry__mischief_is_noticed(void **state)
{
    const invar_device *dev = *state;
    invar_tensor a = numbers(1), b = numbers(2), out = numbers(3), b_before = invar_test_copy(&b);

    mischief = WRITES_BEHIND;
    assert_fails(invar_add(dev, &(invar_add_args){out, a, b}), INVAR_E_STATE,
                 "add wrote beside its tensors");
    mischief = WRITES_BEFORE;
    assert_fails(invar_add(dev, &(invar_add_args){out, a, b}), INVAR_E_STATE,
                 "add wrote beside its tensors");
    mischief = WRITES_INPUT;
    assert_ok(invar_add(dev, &(invar_add_args){out, a, b}));
    assert_true(invar_tensors_differ(&b, &b_before)); // and a comparison sees it
    invar_test_free(&a, &b, &out, &b_before);
}

static void test_ferry__unknown_devices_are_none(void **state)
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
        cmocka_unit_test_setup_teardown(test_ferry__results_come_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ferry__overlap_and_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ferry__constants_stay, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ferry__mischief_is_noticed, setup, teardown),
        cmocka_unit_test(test_ferry__unknown_devices_are_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
