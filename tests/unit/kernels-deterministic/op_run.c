/*
 * op_run.c - tests of devices and op tables: every op exists, none falls back, errors name the op.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "kernels-deterministic/step/simd.h"
#include "tests/ops.h"

static float data[4];

static invar_add_args add_args(void)
{
    invar_tensor t = invar_tensor_2d(data, INVAR_DTYPE_F32, 2, 2);

    return (invar_add_args){.out = t, .a = t, .b = t};
}

static void test_device__cpu_has_every_op(void **state)
{
    (void)state;
    assert_int_equal(invar_backend_cpu()->abi, INVAR_BACKEND_ABI);
    for (int op = 0; op < INVAR_OP_COUNT; op++) {
        assert_non_null(invar_backend_cpu()->ops[op].run);
        assert_non_null(invar_backend_cpu()->ops[op].workspace);
        assert_true(invar_op_revision((invar_op)op) >= 1);
    }
}

static void test_device__names_are_unique(void **state)
{
    (void)state;
    for (int a = 0; a < INVAR_OP_COUNT; a++)
        for (int b = 0; b < a; b++)
            assert_string_not_equal(invar_op_name((invar_op)a), invar_op_name((invar_op)b));
    assert_null(invar_op_name(INVAR_OP_COUNT));
}

static void test_device__ops_with_products_depend_on_numerics(void **state)
{
    (void)state;
    assert_true(invar_op_depends_on_numerics(INVAR_OP_LINEAR_FWD));
    assert_true(invar_op_depends_on_numerics(INVAR_OP_ATTENTION_PAGED));
    assert_false(invar_op_depends_on_numerics(INVAR_OP_RMSNORM_FWD));
    assert_false(invar_op_depends_on_numerics(INVAR_OP_COUNT));
}

static void test_device__missing_op_is_an_error(void **state)
{
    invar_backend incomplete = *invar_backend_cpu();
    invar_add_args args = add_args();
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    memset(&incomplete.ops[INVAR_OP_ADD], 0, sizeof incomplete.ops[INVAR_OP_ADD]);
    incomplete.name = "hollow";
    dev.backend = &incomplete;
    assert_fails(invar_add(&dev, &args), INVAR_E_UNSUPPORTED,
                 "add: not implemented by backend hollow");
    incomplete.abi++;
    assert_fails(invar_add(&dev, &args), INVAR_E_UNSUPPORTED, "table version");
    invar_test_device_release(&dev);
}

static void test_device__rejects_unknown_op_and_numerics(void **state)
{
    invar_add_args args = add_args();
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    assert_fails(invar_op_run(&dev, INVAR_OP_COUNT, &args), INVAR_E_INVALID, "does not exist");
    dev.numerics = INVAR_NUMERICS_COUNT;
    assert_fails(invar_add(&dev, &args), INVAR_E_INVALID, "add: numerics 2");
    invar_test_device_release(&dev);
}

/* Scratch that is absent or too small is reported before anything is written. */
static void test_device__scratch_too_small_is_an_error(void **state)
{
    float input[4] = {0};
    invar_tensor t = invar_tensor_2d(input, INVAR_DTYPE_F32, 2, 2);
    invar_linear_fwd_args args = {
        .y = invar_tensor_2d(data, INVAR_DTYPE_F32, 2, 2), .x = t, .w = t, .k_shards = 1};
    invar_device dev = {.backend = invar_backend_cpu()};
    float before[4] = {1, 2, 3, 4};
    size_t bytes;

    (void)state;
    memcpy(data, before, sizeof data);
    assert_fails(invar_linear_fwd(&dev, &args), INVAR_E_STATE, "linear.fwd: needs");
    assert_ok(invar_op_workspace(&bytes, &dev, INVAR_OP_LINEAR_FWD, &args));
    assert_ok(invar_arena_new(&dev.scratch, "small"));
    assert_ok(invar_arena_plan_scratch(dev.scratch, bytes - 1024));
    assert_ok(invar_arena_reserve(dev.scratch));
    assert_fails(invar_linear_fwd(&dev, &args), INVAR_E_STATE, "linear.fwd");
    invar_arena_free(dev.scratch);
    assert_memory_equal(data, before, sizeof data);

    // scratch of exactly the reported size is enough
    assert_ok(invar_arena_new(&dev.scratch, "exact"));
    assert_ok(invar_arena_plan_scratch(dev.scratch, bytes));
    assert_ok(invar_arena_reserve(dev.scratch));
    assert_ok(invar_linear_fwd(&dev, &args));
    invar_arena_free(dev.scratch);
}

static void test_device__rejects_another_rounding_mode(void **state)
{
    invar_add_args args = add_args();
    invar_device dev;
    invar_status status;
    uint64_t mode;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    mode = invar_rounding_toward_zero();
    status = invar_add(&dev, &args);
    invar_rounding_restore(mode);
    assert_fails(status, INVAR_E_STATE, "add: this thread rounds");
    assert_ok(invar_add(&dev, &args));
    invar_test_device_release(&dev);
}

/*
 * A copy of arguments keeps all fields and clears the padding between them. The source has no zero
 * byte, so each cleared byte is padding or a field that was left out.
 */
static void test_args__copy_keeps_all_fields(void **state)
{
    static unsigned char from[INVAR_OP_ARGS_MAX], to[INVAR_OP_ARGS_MAX];

    (void)state;
    memset(from, 0xFF, sizeof from);
    for (int op = 0; op < INVAR_OP_COUNT; op++) {
        size_t bytes = invar_op_args_copy(to, (invar_op)op, from), cleared = 0;
        for (size_t i = 0; i < bytes; i++)
            cleared += to[i] == 0;
        if (cleared > 8) // padding after 4-byte fields that precede an 8-byte field or the end
            fail_msg("%s: %d bytes are not copied", invar_op_name((invar_op)op), (int)cleared);
        if (op == INVAR_OP_LINEAR_FWD || op == INVAR_OP_LINEAR_DX || op == INVAR_OP_MOE_LINEAR_DX)
            assert_int_equal(cleared, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_args__copy_keeps_all_fields),
        cmocka_unit_test(test_device__cpu_has_every_op),
        cmocka_unit_test(test_device__names_are_unique),
        cmocka_unit_test(test_device__ops_with_products_depend_on_numerics),
        cmocka_unit_test(test_device__missing_op_is_an_error),
        cmocka_unit_test(test_device__rejects_unknown_op_and_numerics),
        cmocka_unit_test(test_device__rejects_another_rounding_mode),
        cmocka_unit_test(test_device__scratch_too_small_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
