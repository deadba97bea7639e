/*
 * swiglu.c - the gated activation and its gradients against plain loops, double and finite
 * differences.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>

#include "kernels-deterministic/math/elementary.h"
#include "tests/ops.h"

enum { T = 9, D = 600, N = T * D };

typedef struct gated {
    invar_tensor y, gate, up, dy, dgate, dup;
} gated;

static gated gated_new(invar_dtype dtype)
{
    invar_tensor view = invar_tensor_2d(NULL, dtype, T, D);
    gated g = {invar_test_strided(view, 1), invar_test_strided(view, 2),
               invar_test_strided(view, 3), invar_test_strided(view, 4),
               invar_test_strided(view, 5), invar_test_strided(view, 6)};

    invar_test_fill_normal(&g.gate, 1, 4.0f);
    invar_test_fill_normal(&g.up, 2, 1.0f);
    invar_test_fill_normal(&g.dy, 3, 1.0f);
    return g;
}

static void gated_free(gated *g)
{
    invar_test_free(&g->y, &g->gate, &g->up, &g->dy, &g->dgate, &g->dup);
}

static void gated_run(const invar_device *dev, const gated *g)
{
    assert_ok(invar_swiglu_fwd(dev, &(invar_swiglu_fwd_args){g->y, g->gate, g->up}));
    assert_ok(
        invar_swiglu_bwd(dev, &(invar_swiglu_bwd_args){g->dgate, g->dup, g->dy, g->gate, g->up}));
}

static void test_swiglu__bits_match_reference(void **state)
{
    for (int d = 0; d < 2; d++) {
        gated got = gated_new(invar_test_storage[d]), expected = gated_new(invar_test_storage[d]);

        gated_run(*state, &got);
        for (int i = 0; i < T; i++)
            for (int j = 0; j < D; j++) {
                float gate = invar_test_get(&got.gate, i, j), up = invar_test_get(&got.up, i, j);
                float dy = invar_test_get(&got.dy, i, j);
                invar_test_set(&expected.y, i, j, invar_silu(gate) * up);
                invar_test_set(&expected.dup, i, j, dy * invar_silu(gate));
                invar_test_set(&expected.dgate, i, j, (dy * up) * invar_silu_grad(gate));
            }
        invar_assert_bits_tensor(&got.y, &expected.y, "swiglu.fwd: y");
        invar_assert_bits_tensor(&got.dup, &expected.dup, "swiglu.bwd: dup");
        invar_assert_bits_tensor(&got.dgate, &expected.dgate, "swiglu.bwd: dgate");
        gated_free(&got);
        gated_free(&expected);
    }
}

static double sigmoid_f64(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static double silu_grad_f64(double x)
{
    return sigmoid_f64(x) * (1.0 + x * (1.0 - sigmoid_f64(x)));
}

static void test_swiglu__accuracy_vs_f64(void **state)
{
    static const double rounding[2] = {0x1p-21, 0x1.01p-8};
    static double y[N], dup[N], dgate[N];

    for (int d = 0; d < 2; d++) {
        gated g = gated_new(invar_test_storage[d]);

        for (int i = 0; i < N; i++) {
            double gate = (double)invar_test_get(&g.gate, i / D, i % D);
            double up = (double)invar_test_get(&g.up, i / D, i % D);
            double dy = (double)invar_test_get(&g.dy, i / D, i % D);
            y[i] = gate * sigmoid_f64(gate) * up;
            dup[i] = dy * gate * sigmoid_f64(gate);
            dgate[i] = dy * up * silu_grad_f64(gate);
        }
        gated_run(*state, &g);
        invar_assert_close(&g.y, y, rounding[d], 0.0, "y");
        invar_assert_close(&g.dup, dup, rounding[d], 0.0, "dup");
        // silu' has a zero near -1.28: there the error is absolute
        invar_assert_close(&g.dgate, dgate, rounding[d], 0x1p-22, "dgate");
        gated_free(&g);
    }
}

static void test_swiglu__gradients_vs_finite_differences(void **state)
{
    gated g = gated_new(INVAR_DTYPE_F32);
    const double h = 1e-5;

    gated_run(*state, &g);
    for (int i = 0; i < N; i += 7) {
        double gate = (double)invar_test_get(&g.gate, i / D, i % D);
        double up = (double)invar_test_get(&g.up, i / D, i % D);
        double dy = (double)invar_test_get(&g.dy, i / D, i % D);
        double by_gate =
            ((gate + h) * sigmoid_f64(gate + h) - (gate - h) * sigmoid_f64(gate - h)) / (2 * h);
        assert_true(fabs(dy * up * by_gate - (double)invar_test_get(&g.dgate, i / D, i % D)) <
                    3e-6);
        assert_true(fabs(dy * gate * sigmoid_f64(gate) -
                         (double)invar_test_get(&g.dup, i / D, i % D)) < 3e-6);
    }
    gated_free(&g);
}

static void test_swiglu__bad_arguments_are_refused(void **state)
{
    float data[64] = {0};
    uint16_t half[64] = {0};
    invar_tensor x = invar_tensor_2d(data, INVAR_DTYPE_F32, 4, 8), none = {0};
    invar_tensor x16 = invar_tensor_2d(half, INVAR_DTYPE_BF16, 4, 8);
    invar_tensor narrow = invar_tensor_2d(data, INVAR_DTYPE_F32, 4, 7);

#define FWD(...) invar_swiglu_fwd(*state, &(invar_swiglu_fwd_args){__VA_ARGS__})
    assert_refused(FWD(none, x, x), "swiglu.fwd: y: missing");
    assert_refused(FWD(x, x16, x), "swiglu.fwd: gate is bf16 but y is f32");
    assert_refused(FWD(x, x, narrow), "swiglu.fwd: up: extent 7 of index 1; expected 8");
#define BWD(...) invar_swiglu_bwd(*state, &(invar_swiglu_bwd_args){__VA_ARGS__})
    assert_refused(BWD(x, x, none, x, x), "swiglu.bwd: dy: missing");
    assert_refused(BWD(none, x, x, x, x), "swiglu.bwd: dgate is none");
    assert_refused(BWD(x, x16, x, x, x), "swiglu.bwd: dup is bf16");
    assert_refused(BWD(x, x, x, narrow, x), "swiglu.bwd: gate: extent 7");
    assert_refused(BWD(x, x, x, x, narrow), "swiglu.bwd: up: extent 7");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_swiglu__bits_match_reference),
        cmocka_unit_test(test_swiglu__accuracy_vs_f64),
        cmocka_unit_test(test_swiglu__gradients_vs_finite_differences),
        cmocka_unit_test(test_swiglu__bad_arguments_are_refused),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
