/*
 * moe_linear.c - tests that each expert of a grouped linear layer is the dense layer on its rows.
 *
 * The dense layers have their own tests against naive chains (linear.c). Here every format is
 * compared with them expert by expert, and plain formats also with a naive fmaf chain. Controls: dw
 * without units, and the weights of other experts, give other bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "tests/formats.h"

#define EXPERTS 5

/* Row offsets of the experts: the first and the last are empty, the third has one row. */
static const int64_t starts[EXPERTS + 1] = {0, 0, 3, 4, 37, 37};
static const invar_row_offsets experts = {starts, EXPERTS};
enum { ROWS = 37, TOKENS = 40, ATOM = 128 };

static invar_tensor expert_rows(const invar_tensor *t, int e)
{
    return invar_tensor_rows(t, starts[e], starts[e + 1] - starts[e]);
}

static invar_tensor expert_weights(const invar_tensor *w, int e)
{
    int64_t n = w->shape[0] / EXPERTS;

    return invar_tensor_rows(w, e * n, n);
}

static invar_tensor make_operand(const invar_device *dev, invar_dtype storage, invar_dtype dtype,
                                 int64_t rows, int64_t cols, bool weights, uint64_t seed)
{
    invar_tensor plain = invar_test_normal_2d(storage, rows, cols, seed), view, t;

    if (dtype == INVAR_DTYPE_FP8 && weights) { // every expert has its own scale blocks
        view = invar_tensor_quantized(NULL, NULL, dtype, INVAR_FP8_BLOCK, rows, cols);
        view.scale_period = (int32_t)(rows / EXPERTS);
        t = invar_test_tensor(view);
        assert_ok(invar_quantize(dev, &(invar_quantize_args){.q = t, .x = plain}));
    } else {
        t = invar_test_quantized(dev, &plain, dtype, weights);
    }
    invar_test_free(&plain);
    return t;
}

/* ---- y --------------------------------------------------------------------------------------- */

static void check_fwd(const invar_device *dev, const invar_test_format *f, int64_t n, int64_t k,
                      int32_t k_shards)
{
    invar_tensor x = make_operand(dev, f->storage, f->x, ROWS, k, false, 1);
    invar_tensor w = make_operand(dev, f->storage, f->w, EXPERTS * n, k, true, 2);
    invar_tensor y = invar_test_strided(invar_tensor_2d(NULL, f->storage, ROWS, n), 3);
    invar_tensor expected = invar_test_tensor(invar_tensor_2d(NULL, f->storage, ROWS, n));

    assert_ok(
        invar_moe_linear_fwd(dev, &(invar_moe_linear_fwd_args){y, x, w, experts, k_shards, ATOM}));
    for (int e = 0; e < EXPERTS; e++)
        assert_ok(invar_linear_fwd(dev, &(invar_linear_fwd_args){.y = expert_rows(&expected, e),
                                                                 .x = expert_rows(&x, e),
                                                                 .w = expert_weights(&w, e),
                                                                 .k_shards = k_shards,
                                                                 .k_atom = ATOM}));
    invar_assert_bits_tensor(&y, &expected, f->name);
    invar_test_free(&x, &w, &y, &expected);
}

/* ---- dx -------------------------------------------------------------------------------------- */

static void check_dx(const invar_device *dev, const invar_test_format *f, int64_t k, int64_t width,
                     int32_t parts, int32_t k_shards)
{
    invar_moe_linear_dx_args a = {.n_parts = parts,
                                  .experts = experts,
                                  .k_shards = k_shards,
                                  .k_atom = {ATOM, ATOM, 2 * ATOM}};
    invar_tensor expected = invar_test_tensor(invar_tensor_2d(NULL, f->storage, ROWS, k));

    a.dx = invar_test_strided(invar_tensor_2d(NULL, f->storage, ROWS, k), 1);
    for (int p = 0; p < parts; p++) {
        a.parts[p].dy = make_operand(dev, f->storage, f->x, ROWS, width, false, 3);
        a.parts[p].w = make_operand(dev, f->storage, f->w, EXPERTS * width, k, true, 4);
    }
    assert_ok(invar_moe_linear_dx(dev, &a));
    for (int e = 0; e < EXPERTS; e++) {
        invar_linear_dx_args dense = {.dx = expert_rows(&expected, e),
                                      .n_parts = parts,
                                      .k_shards = k_shards,
                                      .k_atom = {ATOM, ATOM, 2 * ATOM}};
        for (int p = 0; p < parts; p++)
            dense.parts[p] = (invar_linear_part){expert_rows(&a.parts[p].dy, e),
                                                 expert_weights(&a.parts[p].w, e)};
        assert_ok(invar_linear_dx(dev, &dense));
    }
    invar_assert_bits_tensor(&a.dx, &expected, f->name);
    for (int p = 0; p < parts; p++)
        invar_test_free(&a.parts[p].dy, &a.parts[p].w);
    invar_test_free(&a.dx, &expected);
}

static void test_moe_linear__equals_the_dense_layer_per_expert(void **state)
{
    (void)state;
    for (int i = 0; i < INVAR_TEST_FORMATS * INVAR_NUMERICS_COUNT; i++) {
        const invar_test_format *f = &invar_test_formats[i / INVAR_NUMERICS_COUNT];
        invar_device dev;

        invar_test_device_init(&dev, (invar_numerics)(i % INVAR_NUMERICS_COUNT),
                               INVAR_CPU_PATH_SIMD, 1);
        for (int32_t shards = 1; shards <= 8; shards *= (int32_t)invar_test_count(8, 2)) {
            check_fwd(&dev, f, 128, 384, shards);
            for (int32_t parts = 1; parts <= 3; parts += (int32_t)invar_test_count(2, 1))
                check_dx(&dev, f, 128, 384, parts, shards);
        }
        if (f->w != INVAR_DTYPE_INT4) { // int4 needs complete groups
            check_fwd(&dev, f, 147, 205, 1);
            check_dx(&dev, f, 150, 208, 2, 1);
        }
        invar_test_device_release(&dev);
    }
}

/* ---- dw -------------------------------------------------------------------------------------- */

/* Token offsets of the units. One is empty, and some experts have no row in some units. */
static const int64_t unit_starts[] = {0, 2, 11, 11, 12, 33, TOKENS};
static const invar_row_offsets units = {unit_starts, 6};

static invar_tensor make_row_token(void)
{
    invar_tensor t = invar_test_tensor(invar_tensor_1d(NULL, INVAR_DTYPE_I32, ROWS));

    for (int e = 0; e < EXPERTS; e++)
        for (int64_t row = starts[e]; row < starts[e + 1]; row++)
            ((int32_t *)t.data)[row] = (int32_t)(e + row - starts[e]);
    return t;
}

/* Computes the row offsets of the units within the rows of one expert. */
static void expert_units(int64_t *start, int e, const invar_tensor *row_token)
{
    const int32_t *token = row_token->data;

    for (int64_t u = 0; u <= units.count; u++) {
        start[u] = 0;
        for (int64_t row = starts[e]; row < starts[e + 1]; row++)
            start[u] += token[row] < units.offsets[u];
    }
}

typedef struct weight_gradient {
    invar_moe_linear_dw_args args;
    invar_tensor expected; /* initialized with a copy of dw, to which the op adds */
} weight_gradient;

static weight_gradient weight_gradient_new(invar_dtype storage, int64_t n, int64_t k)
{
    weight_gradient g = {.args = {.dw = invar_test_normal_2d(INVAR_DTYPE_F32, EXPERTS * n, k, 1),
                                  .dy = invar_test_normal_2d(storage, ROWS, n, 2),
                                  .x = invar_test_normal_2d(storage, ROWS, k, 3),
                                  .row_token = make_row_token(),
                                  .experts = experts,
                                  .units = units}};

    g.expected = invar_test_copy(&g.args.dw);
    return g;
}

static void weight_gradient_free(weight_gradient *g)
{
    invar_test_free(&g->args.dw, &g->args.dy, &g->args.x, &g->args.row_token, &g->expected);
}

static void test_moe_linear_dw__equals_the_dense_layer_per_expert(void **state)
{
    (void)state;
    for (int i = 0; i < INVAR_TEST_STORAGE_FORMATS * INVAR_NUMERICS_COUNT; i++) {
        weight_gradient g = weight_gradient_new(invar_test_formats[i / 2].storage, 19, 45);
        invar_device dev;

        invar_test_device_init(&dev, (invar_numerics)(i % 2), INVAR_CPU_PATH_SIMD, 1);
        assert_ok(invar_moe_linear_dw(&dev, &g.args));
        for (int e = 0; e < EXPERTS; e++) {
            int64_t own[sizeof unit_starts / sizeof *unit_starts];
            expert_units(own, e, &g.args.row_token);
            assert_ok(invar_linear_dw(&dev, &(invar_linear_dw_args){expert_weights(&g.expected, e),
                                                                    expert_rows(&g.args.dy, e),
                                                                    expert_rows(&g.args.x, e),
                                                                    {own, units.count},
                                                                    0}));
        }
        invar_assert_bits_tensor(&g.args.dw, &g.expected, "dw");
        weight_gradient_free(&g);
        invar_test_device_release(&dev);
    }
}

/* Control: one chain over all tokens of an expert, not divided into units, gives other bits. */
static void test_moe_linear_dw__control_of_units(void **state)
{
    static const int64_t one_unit[] = {0, TOKENS};

    (void)state;
    for (int i = 0; i < INVAR_TEST_STORAGE_FORMATS * INVAR_NUMERICS_COUNT; i++) {
        weight_gradient g = weight_gradient_new(invar_test_formats[i / 2].storage, 19, 45);
        invar_moe_linear_dw_args uncut = g.args;
        invar_device dev;

        uncut.dw = g.expected;
        uncut.units = (invar_row_offsets){one_unit, 1};
        invar_test_device_init(&dev, (invar_numerics)(i % 2), INVAR_CPU_PATH_SIMD, 1);
        assert_ok(invar_moe_linear_dw(&dev, &g.args));
        assert_ok(invar_moe_linear_dw(&dev, &uncut));
        assert_true(invar_tensors_differ(&g.args.dw, &uncut.dw));
        weight_gradient_free(&g);
        invar_test_device_release(&dev);
    }
}

/* ---- naive chains ---------------------------------------------------------------------------- */

/* Under ieee, each element of y, dx and dw is a chain of fmaf in ascending order. */
static void test_moe_linear__equals_naive_chains(void **state)
{
    const int64_t n = 21, k = 35;
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    for (int i = 0; i < INVAR_TEST_STORAGE_FORMATS; i++) {
        invar_dtype storage = invar_test_formats[i].storage;
        weight_gradient g = weight_gradient_new(storage, n, k);
        invar_tensor *dy = &g.args.dy, *x = &g.args.x;
        invar_tensor w = invar_test_normal_2d(storage, EXPERTS * n, k, 4);
        invar_tensor y = invar_test_normal_2d(storage, ROWS, n, 5), y_ref = invar_test_copy(&y);
        invar_tensor dx = invar_test_normal_2d(storage, ROWS, k, 6), dx_ref = invar_test_copy(&dx);
        const int32_t *token = g.args.row_token.data;

        assert_ok(
            invar_moe_linear_fwd(&dev, &(invar_moe_linear_fwd_args){y, *x, w, experts, 1, 0}));
        assert_ok(invar_moe_linear_dx(
            &dev, &(invar_moe_linear_dx_args){dx, {{*dy, w}}, 1, experts, 1, {0}}));
        assert_ok(invar_moe_linear_dw(&dev, &g.args));
        for (int e = 0; e < EXPERTS; e++) {
            for (int64_t row = starts[e]; row < starts[e + 1]; row++) {
                for (int64_t col = 0; col < n; col++) {
                    float acc = 0.0f;
                    for (int64_t j = 0; j < k; j++)
                        acc = fmaf(invar_test_get(x, row, j), invar_test_get(&w, e * n + col, j),
                                   acc);
                    invar_test_set(&y_ref, row, col, acc);
                }
                for (int64_t col = 0; col < k; col++) {
                    float acc = 0.0f;
                    for (int64_t j = 0; j < n; j++)
                        acc = fmaf(invar_test_get(dy, row, j), invar_test_get(&w, e * n + j, col),
                                   acc);
                    invar_test_set(&dx_ref, row, col, acc);
                }
            }
            for (int64_t element = 0; element < n * k; element++) {
                float running = invar_test_get(&g.expected, e * n + element / k, element % k),
                      acc = 0.0f;
                for (int64_t row = starts[e], u = 0; row < starts[e + 1]; row++) {
                    for (; token[row] >= units.offsets[u + 1]; u++, acc = 0.0f)
                        running += acc;
                    acc = fmaf(invar_test_get(dy, row, element / k),
                               invar_test_get(x, row, element % k), acc);
                }
                invar_test_set(&g.expected, e * n + element / k, element % k, running + acc);
            }
        }
        invar_assert_bits_tensor(&y, &y_ref, "y");
        invar_assert_bits_tensor(&dx, &dx_ref, "dx");
        invar_assert_bits_tensor(&g.args.dw, &g.expected, "dw");
        invar_test_free(&w, &y, &y_ref, &dx, &dx_ref);
        weight_gradient_free(&g);
    }
    invar_test_device_release(&dev);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void test_moe_linear__rejects_bad_arguments(void **state)
{
    float x_data[4 * 16] = {0}, w_data[6 * 16] = {0}, y_data[4 * 3] = {0}, dx_data[4 * 16];
    int32_t token[4] = {0, 2, 1, 2};
    const int64_t two[] = {0, 2, 4}, backwards[] = {0, 3, 2, 4}, unit[] = {0, 3};
    const invar_tensor x = invar_tensor_2d(x_data, INVAR_DTYPE_F32, 4, 16);
    const invar_tensor w = invar_tensor_2d(w_data, INVAR_DTYPE_F32, 2 * 3, 16);
    const invar_tensor y = invar_tensor_2d(y_data, INVAR_DTYPE_F32, 4, 3);
    const invar_tensor out = invar_tensor_2d(dx_data, INVAR_DTYPE_F32, 4, 16);
    const invar_tensor row_token = invar_tensor_1d(token, INVAR_DTYPE_I32, 4);
    const invar_moe_linear_fwd_args fwd = {y, x, w, {two, 2}, 1, 0};
    const invar_moe_linear_dx_args dx = {out, {{y, w}}, 1, {two, 2}, 1, {0}};
    static const int64_t many[(1 << 16) + 1], beyond[] = {0, 2, 5};
    invar_moe_linear_fwd_args plain = fwd;
    const invar_moe_linear_dw_args dw = {w, y, x, row_token, {two, 2}, {unit, 1}, 0};
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    assert_ok(invar_moe_linear_fwd(&dev, &fwd));
    assert_field_invalid(moe_linear_fwd, fwd, x.rank, 1, "moe.linear.fwd: x: rank 1");
    assert_field_invalid(moe_linear_fwd, fwd, y.shape[0], 3, "moe.linear.fwd: y: extent 3");
    assert_field_invalid(moe_linear_fwd, fwd, w.shape[0], 5, "moe.linear.fwd: w: extent 5");
    assert_field_invalid(moe_linear_fwd, fwd, w.dtype, INVAR_DTYPE_BF16,
                         "moe.linear.fwd: w: no product of f32");
    assert_field_invalid(moe_linear_fwd, fwd, w.dtype, INVAR_DTYPE_NONE, "moe.linear.fwd: w: ");
    assert_field_invalid(moe_linear_fwd, fwd, k_shards, 3, "moe.linear.fwd: k_shards: 3 shards");
    assert_field_invalid(moe_linear_fwd, fwd, k_shards, 2, "moe.linear.fwd: k_atom: 0 values");
    assert_field_invalid(moe_linear_fwd, fwd, experts.offsets, beyond,
                         "moe.linear.fwd: experts: segments cover rows 0 to 5; there are 4");
    assert_field_invalid(moe_linear_fwd, fwd, experts.offsets, NULL,
                         "moe.linear.fwd: experts: 2 segments");
    assert_field_invalid(moe_linear_fwd, fwd, experts, ((invar_row_offsets){backwards, 3}),
                         "segment 1 runs back");
    plain.w.scale_rows = 0; // ignored for a type without scales
    assert_ok(invar_moe_linear_fwd(&dev, &plain));
    // 2^48 rows times 2^16 experts overflow to 0
    plain = (invar_moe_linear_fwd_args){y, x, w, {many, 1 << 16}, 1, 0};
    plain.x.shape[0] = plain.y.shape[0] = plain.w.shape[0] = 0;
    plain.y.shape[1] = plain.y.row_stride = INT64_C(1) << 48;
    assert_invalid(invar_moe_linear_fwd(&dev, &plain), "moe.linear.fwd: w: 65536 experts of ");

    assert_ok(invar_moe_linear_dx(&dev, &dx));
    assert_field_invalid(moe_linear_dx, dx, n_parts, 0, "moe.linear.dx: n_parts: 0");
    assert_field_invalid(moe_linear_dx, dx, parts[0].w.shape[0], 3, "moe.linear.dx: w: extent 3");
    assert_field_invalid(moe_linear_dx, dx, parts[0].dy.shape[0], 3, "moe.linear.dx: dy: extent 3");
    assert_field_invalid(moe_linear_dx, dx, experts.offsets, beyond,
                         "moe.linear.dx: experts: segments cover");
    assert_field_invalid(moe_linear_dx, dx, k_shards, 0, "moe.linear.dx: k_shards: 0 shards");
    assert_field_invalid(moe_linear_dx, dx, k_shards, 8, "moe.linear.dx: k_atom: 0 values");

    assert_ok(invar_moe_linear_dw(&dev, &dw));
    assert_field_invalid(moe_linear_dw, dw, dw.shape[0], 5, "moe.linear.dw: dw: extent 5");
    assert_field_invalid(moe_linear_dw, dw, x.dtype, INVAR_DTYPE_BF16,
                         "moe.linear.dw: dy is f32 but x is bf16");
    assert_field_invalid(moe_linear_dw, dw, row_token.shape[0], 3,
                         "moe.linear.dw: row_token: extent 3");
    assert_field_invalid(moe_linear_dw, dw, units.offsets, two,
                         "moe.linear.dw: row_token: value 2 in row 1");
    assert_field_invalid(moe_linear_dw, dw, fresh, -1, "moe.linear.dw: fresh: ");
    assert_field_invalid(moe_linear_dw, dw, experts.offsets, beyond,
                         "moe.linear.dw: experts: segments cover");
    token[1] = 0;
    assert_field_invalid(moe_linear_dw, dw, x, x,
                         "moe.linear.dw: row_token: row 1: the tokens of an expert");
    invar_test_device_release(&dev);
}

/* A call with some of the experts computes the rows that a call with all of them does. */
static void test_moe_linear__some_experts(void **state)
{
    enum { FIRST = 1, COUNT = 3, N = 6, K = 10 };
    invar_tensor x = invar_test_normal_2d(INVAR_DTYPE_F32, ROWS, K, 1);
    invar_tensor w = invar_test_normal_2d(INVAR_DTYPE_F32, EXPERTS * N, K, 2);
    invar_tensor all_experts = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, ROWS, N));
    invar_tensor some_experts = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, ROWS, N));
    invar_moe_linear_fwd_args fwd = {
        .y = all_experts, .x = x, .w = w, .experts = experts, .k_shards = 1};
    size_t bytes = (size_t)((starts[FIRST + COUNT] - starts[FIRST]) * N) * sizeof(float);
    invar_tensor expected_rows = invar_tensor_rows(&all_experts, starts[FIRST], 1);
    invar_tensor got_rows = invar_tensor_rows(&some_experts, starts[FIRST], 1);
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 2);
    assert_ok(invar_moe_linear_fwd(&dev, &fwd));
    fwd.y = some_experts;
    fwd.w = invar_tensor_rows(&w, FIRST * N, COUNT * N);
    fwd.experts = (invar_row_offsets){starts + FIRST, COUNT};
    assert_ok(invar_moe_linear_fwd(&dev, &fwd));
    assert_memory_equal(expected_rows.data, got_rows.data, bytes);
    fwd.w = invar_tensor_rows(&w, 0, COUNT * N); // control: weights of other experts
    assert_ok(invar_moe_linear_fwd(&dev, &fwd));
    assert_memory_not_equal(expected_rows.data, got_rows.data, bytes);
    invar_test_free(&x, &w, &all_experts, &some_experts);
    invar_test_device_release(&dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moe_linear__some_experts),
        cmocka_unit_test(test_moe_linear__equals_the_dense_layer_per_expert),
        cmocka_unit_test(test_moe_linear_dw__equals_the_dense_layer_per_expert),
        cmocka_unit_test(test_moe_linear_dw__control_of_units),
        cmocka_unit_test(test_moe_linear__equals_naive_chains),
        cmocka_unit_test(test_moe_linear__rejects_bad_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
