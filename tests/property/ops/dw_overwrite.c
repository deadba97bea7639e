/*
 * dw_overwrite.c - a gradient that is fresh has the bits of one that was zeroed before.
 *
 * Random calls of linear.dw and moe.linear.dw (tests/gpu/cases), edge shapes, no rows and experts
 * without rows among them: once with NaNs in dw and `fresh`, once with zeros there and without.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <string.h>

#include "tests/gpu/cases/cases.h"
#include "tests/ops.h"

#define CASES 200

static void zero_rows(const invar_tensor *dw)
{
    for (int64_t i = 0; i < dw->shape[0]; i++)
        memset((float *)dw->data + i * dw->row_stride, 0, (size_t)dw->shape[1] * sizeof(float));
}

/* The same call with a dw that is added to, and whether its elements are zeros. */
static void add_to(invar_case *c, bool zeros)
{
    bool dense = c->op == INVAR_OP_LINEAR_DW;

    *(dense ? &c->args.linear_dw.fresh : &c->args.moe_linear_dw.fresh) = 0;
    if (zeros)
        zero_rows(dense ? &c->args.linear_dw.dw : &c->args.moe_linear_dw.dw);
}

static invar_digest run(const invar_device *dev, invar_case *c)
{
    invar_digest digest;

    assert_ok(invar_case_run(dev, c));
    digest = invar_case_digest(c);
    invar_case_free(c);
    return digest;
}

static void compare(const invar_device *dev, invar_op op, uint64_t seed)
{
    invar_case fresh, zeroed, poisoned;
    invar_digest expected, got;

    invar_case_make(&fresh, op, dev->numerics, INVAR_CASE_MORE + seed);
    invar_case_make(&zeroed, op, dev->numerics, INVAR_CASE_MORE + seed);
    add_to(&zeroed, true);
    expected = run(dev, &zeroed);
    got = run(dev, &fresh);
    if (memcmp(&got, &expected, sizeof got) != 0)
        fail_msg("%s, seed %" PRIu64 ", %s", invar_op_name(op), seed, fresh.text);
    if (seed != 1)
        return;
    // the control: what dw held is seen where it is added to
    invar_case_make(&poisoned, op, dev->numerics, INVAR_CASE_MORE + seed);
    add_to(&poisoned, false);
    got = run(dev, &poisoned);
    assert_true(memcmp(&got, &expected, sizeof got) != 0);
}

static void test_linear_dw__fresh_is_zeroed(void **state)
{
    (void)state;
    for (int numerics = 0; numerics < INVAR_NUMERICS_COUNT; numerics++) {
        invar_device dev;

        invar_test_device_init(&dev, (invar_numerics)numerics, INVAR_CPU_PATH_SIMD, 2);
        for (uint64_t seed = 0; seed < CASES; seed++) {
            compare(&dev, INVAR_OP_LINEAR_DW, seed);
            compare(&dev, INVAR_OP_MOE_LINEAR_DW, seed);
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
