/*
 * swiglu.c - tests of SwiGLU and its gradients against plain loops, float64 and finite differences.
 *
 * Quantized outputs of a fused call must have the bits of the op `quantize` on the plain outputs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdlib.h>

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
    assert_ok(
        invar_swiglu_fwd(dev, &(invar_swiglu_fwd_args){.y = g->y, .gate = g->gate, .up = g->up}));
    assert_ok(invar_swiglu_bwd(
        dev, &(invar_swiglu_bwd_args){
                 .dgate = g->dgate, .dup = g->dup, .dy = g->dy, .gate = g->gate, .up = g->up}));
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

/* ---- quantized ------------------------------------------------------------------------------- */

static invar_tensor quantized_new(const invar_tensor *like, invar_dtype dtype)
{
    return invar_test_tensor(
        invar_tensor_quantized(NULL, NULL, dtype, 1, like->shape[0], like->shape[1]));
}

static void assert_quantized(const invar_device *dev, const invar_tensor *codes,
                             const invar_tensor *plain)
{
    invar_tensor expected = quantized_new(plain, codes->dtype);

    assert_ok(invar_quantize(dev, &(invar_quantize_args){expected, *plain}));
    invar_assert_bits_tensor(codes, &expected, "what is quantised too");
    invar_test_free(&expected);
}

static void check_quantized(const invar_device *dev, invar_dtype dtype, invar_dtype format,
                            int64_t rows, int64_t cols)
{
    invar_tensor view = invar_tensor_2d(NULL, dtype, rows, cols), t[8], plain[3], q[3];

    for (int i = 0; i < 8; i++) {
        t[i] = invar_test_strided(view, 8 * (i % 2));
        invar_test_fill_normal(&t[i], (uint64_t)i, i == 1 ? 4.0f : 1.0f);
    }
    for (int i = 0; i < 3; i++)
        q[i] = quantized_new(&view, format);
    assert_ok(invar_swiglu_fwd(dev, &(invar_swiglu_fwd_args){.y = t[3], .gate = t[1], .up = t[2]}));
    assert_ok(invar_swiglu_bwd(
        dev, &(invar_swiglu_bwd_args){
                 .dgate = t[4], .dup = t[5], .dy = t[0], .gate = t[1], .up = t[2]}));
    for (int i = 0; i < 3; i++)
        plain[i] = invar_test_copy(&t[3 + i]);
    assert_ok(invar_swiglu_fwd(
        dev, &(invar_swiglu_fwd_args){.y = t[6], .gate = t[1], .up = t[2], .y_q = q[0]}));
    assert_ok(invar_swiglu_bwd(dev, &(invar_swiglu_bwd_args){.dgate = t[7],
                                                             .dup = t[0], // in place
                                                             .dy = t[0],
                                                             .gate = t[1],
                                                             .up = t[2],
                                                             .dgate_q = q[1],
                                                             .dup_q = q[2]}));
    invar_assert_bits_tensor(&t[6], &plain[0], "y");
    invar_assert_bits_tensor(&t[7], &plain[1], "dgate");
    invar_assert_bits_tensor(&t[0], &plain[2], "dup");
    for (int i = 0; i < 3; i++) {
        assert_quantized(dev, &q[i], &plain[i]);
        invar_test_free(&plain[i], &q[i]);
    }
    for (int i = 0; i < 8; i++)
        invar_test_free(&t[i]);
}

/*
 * The last two shapes are large enough for a GPU to fuse both ops into one pass. The CPU has one
 * path for all shapes, and runs these only under `full`.
 */
static void test_swiglu__quantized_outputs_match_quantize(void **state)
{
    static const invar_dtype formats[] = {INVAR_DTYPE_FP8, INVAR_DTYPE_MXFP8, INVAR_DTYPE_INT4};

    for (int f = 0; f < 3; f++)
        for (int d = 0; d < 2; d++) {
            check_quantized(*state, invar_test_storage[d], formats[f], 7, 384);
            check_quantized(*state, invar_test_storage[d], formats[f], 0, 128);
        }
    if (invar_test_full() || getenv("INVAR_TEST_DEVICE")) {
        check_quantized(*state, INVAR_DTYPE_BF16, INVAR_DTYPE_FP8, 8205, 512);
        check_quantized(*state, INVAR_DTYPE_BF16, INVAR_DTYPE_MXFP8, 43701, 96);
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
        // the derivative of silu has a zero near -1.28, so the error is absolute there
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

static void test_swiglu__rejects_bad_arguments(void **state)
{
    float data[64] = {0};
    uint16_t half[64] = {0};
    invar_tensor x = invar_tensor_2d(data, INVAR_DTYPE_F32, 4, 8), none = {0};
    invar_tensor x16 = invar_tensor_2d(half, INVAR_DTYPE_BF16, 4, 8);
    invar_tensor narrow = invar_tensor_2d(data, INVAR_DTYPE_F32, 4, 7);
    uint8_t codes[64], scales[16];
    invar_tensor wide = invar_tensor_2d(data, INVAR_DTYPE_F32, 1, 32);
    invar_tensor other = invar_tensor_2d(data + 32, INVAR_DTYPE_F32, 1, 32);
    invar_tensor q = invar_tensor_quantized(codes, scales, INVAR_DTYPE_MXFP8, 1, 1, 32);
    invar_tensor int4 = invar_tensor_quantized(codes + 32, scales + 8, INVAR_DTYPE_INT4, 1, 1, 32);
    invar_tensor inside = invar_tensor_quantized(data, scales + 8, INVAR_DTYPE_MXFP8, 1, 1, 32);

#define FWD(Y, GATE, UP, CODES)                                                                    \
    invar_swiglu_fwd(*state, &(invar_swiglu_fwd_args){.y = Y, .gate = GATE, .up = UP, .y_q = CODES})
    assert_invalid(FWD(none, x, x, none), "swiglu.fwd: y: missing");
    assert_invalid(FWD(x, x16, x, none), "swiglu.fwd: gate is bf16 but y is f32");
    assert_invalid(FWD(x, x, narrow, none), "swiglu.fwd: up: extent 7 of index 1; expected 8");
    assert_invalid(FWD(x, x, x, x), "swiglu.fwd: y_q: type f32");
    assert_invalid(FWD(x, x, x, q), "swiglu.fwd: y_q: extent 1 of index 0; expected 4");
    assert_invalid(FWD(wide, wide, wide, inside), "swiglu.fwd: y_q and y overlap");
#define BWD(DGATE, DUP, DY, GATE, UP) BWD_CODES(DGATE, DUP, DY, GATE, UP, none, none)
#define BWD_CODES(DGATE, DUP, DY, GATE, UP, DGATE_Q, DUP_Q)                                        \
    invar_swiglu_bwd(*state, &(invar_swiglu_bwd_args){.dgate = DGATE,                              \
                                                      .dup = DUP,                                  \
                                                      .dy = DY,                                    \
                                                      .gate = GATE,                                \
                                                      .up = UP,                                    \
                                                      .dgate_q = DGATE_Q,                          \
                                                      .dup_q = DUP_Q})
    assert_invalid(BWD(x, x, none, x, x), "swiglu.bwd: dy: missing");
    assert_invalid(BWD(none, x, x, x, x), "swiglu.bwd: dgate is none");
    assert_invalid(BWD(x, x16, x, x, x), "swiglu.bwd: dup is bf16");
    assert_invalid(BWD(x, x, x, narrow, x), "swiglu.bwd: gate: extent 7");
    assert_invalid(BWD(x, x, x, x, narrow), "swiglu.bwd: up: extent 7");
    assert_invalid(BWD_CODES(wide, other, wide, wide, wide, q, none), "swiglu.bwd: dup_q");
    assert_invalid(BWD_CODES(wide, other, wide, wide, wide, none, q), "swiglu.bwd: dgate_q");
    assert_invalid(BWD_CODES(wide, other, wide, wide, wide, q, int4), "differ in their format");
    assert_invalid(BWD_CODES(wide, other, wide, wide, wide, q, q), "dgate_q and dup_q overlap");
    assert_invalid(BWD_CODES(wide, other, wide, wide, wide, q, inside), "dup_q and d");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_swiglu__bits_match_reference),
        cmocka_unit_test(test_swiglu__quantized_outputs_match_quantize),
        cmocka_unit_test(test_swiglu__accuracy_vs_f64),
        cmocka_unit_test(test_swiglu__gradients_vs_finite_differences),
        cmocka_unit_test(test_swiglu__rejects_bad_arguments),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
