/*
 * dw_overwrite.c - a weight gradient that is overwritten equals one that is zeroed and added to.
 *
 * Random calls of linear.dw and moe.linear.dw (tests/gpu/cases), with edge shapes, no rows, and
 * experts without rows, run twice: with `fresh` on a dw of NaN, and without it on a dw of zeros.
 * Control: adding to a dw of NaN gives another digest.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <string.h>

#include "tests/gpu/cases/cases.h"
#include "tests/ops.h"

#define CASES ((uint64_t)invar_test_count(50, 200))

static void zero_rows(const invar_tensor *dw)
{
    for (int64_t i = 0; i < dw->shape[0]; i++)
        memset((float *)dw->data + i * dw->row_stride, 0, (size_t)dw->shape[1] * sizeof(float));
}

/* Turns off `fresh`, so that the call adds to dw, and zeroes dw if `zeros`. */
static void clear_fresh(invar_case *c, bool zeros)
{
    bool dense = c->op == INVAR_OP_LINEAR_DW;

    *(dense ? &c->args.linear_dw.fresh : &c->args.moe_linear_dw.fresh) = 0;
    if (zeros)
        zero_rows(dense ? &c->args.linear_dw.dw : &c->args.moe_linear_dw.dw);
}

static invar_digest run_case(const invar_device *dev, invar_case *c)
{
    invar_digest digest;

    assert_ok(invar_case_run(dev, c));
    digest = invar_case_digest(c);
    invar_case_free(c);
    return digest;
}

static void compare_overwrite(const invar_device *dev, invar_op op, uint64_t seed)
{
    invar_case fresh, zeroed, poisoned;
    invar_digest expected, got;

    invar_case_make(&fresh, op, dev->numerics, INVAR_CASE_FUSED + seed);
    invar_case_make(&zeroed, op, dev->numerics, INVAR_CASE_FUSED + seed);
    clear_fresh(&zeroed, true);
    expected = run_case(dev, &zeroed);
    got = run_case(dev, &fresh);
    if (memcmp(&got, &expected, sizeof got) != 0)
        fail_msg("%s, seed %" PRIu64 ", %s", invar_op_name(op), seed, fresh.text);
    if (seed != 1)
        return;
    // control: without `fresh`, the old values of dw change the result
    invar_case_make(&poisoned, op, dev->numerics, INVAR_CASE_FUSED + seed);
    clear_fresh(&poisoned, false);
    got = run_case(dev, &poisoned);
    assert_true(memcmp(&got, &expected, sizeof got) != 0);
}

static void test_linear_dw__fresh_is_zeroed(void **state)
{
    (void)state;
    for (int numerics = 0; numerics < INVAR_NUMERICS_COUNT; numerics++) {
        invar_device dev;

        invar_test_device_init(&dev, (invar_numerics)numerics, INVAR_CPU_PATH_SIMD, 2);
        for (uint64_t seed = 0; seed < CASES; seed++) {
            compare_overwrite(&dev, INVAR_OP_LINEAR_DW, seed);
            compare_overwrite(&dev, INVAR_OP_MOE_LINEAR_DW, seed);
        }
        invar_test_device_release(&dev);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_dw__fresh_is_zeroed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
