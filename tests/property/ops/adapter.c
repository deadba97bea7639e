/*
 * adapter.c - a linear layer with a LoRA adapter rounds its output once, row by row.
 *
 * For every format and numerics: rows alone on three threads have the bits of the batch, a zero
 * adapter gives the bits of the layer without adapter, and zeros that pad the rank change nothing.
 * Controls that must differ: rounding the adapter's output before the addition (as peft does),
 * scaling after the second product, and a merged weight.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/formats.h"

enum { ROWS = 40, N = 160, K = 256, R = 16, PADDED_RANK = 32 };

#define FACTOR 1.3f

typedef struct layer {
    const invar_test_format *format;
    invar_device dev;
    invar_tensor plain_x, plain_w; /* values before quantization */
    invar_tensor x, w, a, b;
    invar_tensor y; /* output of all rows */
} layer;

static invar_tensor make_matrix(invar_dtype dtype, int64_t rows, int64_t cols)
{
    return invar_test_tensor(invar_tensor_2d(NULL, dtype, rows, cols));
}

static void matrix_product(const invar_device *dev, const invar_tensor *y, const invar_tensor *x,
                           const invar_tensor *w)
{
    assert_ok(
        invar_linear_fwd(dev, &(invar_linear_fwd_args){.y = *y, .x = *x, .w = *w, .k_shards = 1}));
}

/* sums (2 * rows, N) f32: the layer's product and the adapter's, which y is rounded from. */
static void adapted_sums(const layer *l, const invar_device *dev, const invar_tensor *sums,
                         int64_t first, int64_t rows)
{
    invar_tensor x = invar_tensor_rows(&l->x, first, rows);
    invar_tensor plain = invar_tensor_rows(&l->plain_x, first, rows);
    invar_tensor low_rank = make_matrix(INVAR_DTYPE_F32, rows, l->a.shape[0]);
    invar_tensor u = make_matrix(l->format->storage, rows, l->a.shape[0]);
    invar_tensor base = invar_tensor_rows(sums, 0, rows);
    invar_tensor added = invar_tensor_rows(sums, rows, rows);

    matrix_product(dev, &base, &x, &l->w);
    matrix_product(dev, &low_rank, &plain, &l->a);
    assert_ok(invar_scale(dev, &(invar_scale_args){.y = u, .x = low_rank, .factor = FACTOR}));
    matrix_product(dev, &added, &u, &l->b);
    invar_test_free(&low_rank, &u);
}

static void run_adapted(const layer *l, const invar_device *dev, const invar_tensor *y,
                        int64_t first)
{
    invar_tensor sums = make_matrix(INVAR_DTYPE_F32, 2 * y->shape[0], N);

    adapted_sums(l, dev, &sums, first, y->shape[0]);
    assert_ok(invar_shards_fold(dev, &(invar_shards_fold_args){.y = *y, .x = sums, .shards = 2}));
    invar_test_free(&sums);
}

static void set_up(layer *l, const invar_test_format *format, invar_numerics numerics)
{
    l->format = format;
    invar_test_device_init(&l->dev, numerics, INVAR_CPU_PATH_SIMD, 1);
    l->plain_x = invar_test_normal_2d(format->storage, ROWS, K, 1);
    l->plain_w = invar_test_normal_2d(format->storage, N, K, 2);
    l->a = invar_test_normal_2d(format->storage, R, K, 3);
    l->b = invar_test_normal_2d(format->storage, N, R, 4);
    l->x = invar_test_quantized(&l->dev, &l->plain_x, format->x, false);
    l->w = invar_test_quantized(&l->dev, &l->plain_w, format->w, true);
    l->y = make_matrix(format->storage, ROWS, N);
    run_adapted(l, &l->dev, &l->y, 0);
}

static void tear_down(layer *l)
{
    invar_test_free(&l->plain_x, &l->plain_w, &l->x, &l->w, &l->a, &l->b, &l->y);
    invar_test_device_release(&l->dev);
}

static void for_all(void (*check)(layer *l))
{
    for (int numerics = 0; numerics < INVAR_NUMERICS_COUNT; numerics++)
        for (int i = 0; i < INVAR_TEST_FORMATS; i++) {
            layer l;
            set_up(&l, &invar_test_formats[i], (invar_numerics)numerics);
            check(&l);
            tear_down(&l);
        }
}

static void check_rows_alone(layer *l)
{
    invar_device threads;

    invar_test_device_init(&threads, l->dev.numerics, INVAR_CPU_PATH_SIMD, 3);
    for (int64_t first = 0, m = 1; first < ROWS; first += m, m = first % 7 + 1) {
        int64_t rows = m < ROWS - first ? m : ROWS - first;
        invar_tensor y = make_matrix(l->format->storage, rows, N);
        invar_tensor expected = invar_tensor_rows(&l->y, first, rows);
        run_adapted(l, &threads, &y, first);
        invar_assert_bits_tensor(&y, &expected, l->format->name);
        invar_test_free(&y);
    }
    invar_test_device_release(&threads);
}

static void test_adapter__bits_invariant_to_batch(void **state)
{
    (void)state;
    for_all(check_rows_alone);
}

static void check_zero_adapter(layer *l)
{
    invar_tensor y = make_matrix(l->format->storage, ROWS, N), plain = invar_test_copy(&y);

    invar_test_fill(&l->b, 0.0f);
    run_adapted(l, &l->dev, &y, 0);
    matrix_product(&l->dev, &plain, &l->x, &l->w);
    invar_assert_bits_tensor(&y, &plain, l->format->name);
    invar_test_free(&y, &plain);
}

static void test_adapter__zero_leaves_the_layer(void **state)
{
    (void)state;
    for_all(check_zero_adapter);
}

/* Returns a tensor of zeros with `from` in its first rows and columns. */
static invar_tensor zero_padded(const invar_tensor *from, int64_t rows, int64_t cols)
{
    invar_tensor to = make_matrix(from->dtype, rows, cols);

    invar_test_fill(&to, 0.0f);
    for (int64_t i = 0; i < from->shape[0]; i++)
        for (int64_t j = 0; j < from->shape[1]; j++)
            invar_test_set(&to, i, j, invar_test_get(from, i, j));
    return to;
}

static void check_padded_rank(layer *l)
{
    invar_tensor y = make_matrix(l->format->storage, ROWS, N);
    layer wide = *l;

    wide.a = zero_padded(&l->a, PADDED_RANK, K);
    wide.b = zero_padded(&l->b, N, PADDED_RANK);
    run_adapted(&wide, &l->dev, &y, 0);
    invar_assert_bits_tensor(&y, &l->y, l->format->name);
    invar_test_free(&wide.a, &wide.b, &y);
}

static void test_adapter__zeros_fill_up_the_rank(void **state)
{
    (void)state;
    for_all(check_padded_rank);
}

/* Control: y as peft computes it, with the adapter's output rounded before the addition. */
static void rounded_twice(const layer *l, const invar_tensor *y)
{
    invar_tensor sums = make_matrix(INVAR_DTYPE_F32, 2 * ROWS, N);

    adapted_sums(l, &l->dev, &sums, 0, ROWS);
    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t j = 0; j < N; j++) {
            float base = invar_test_get(&sums, i, j);
            invar_test_set(y, i, j, invar_test_get(&sums, ROWS + i, j));
            invar_test_set(y, i, j, base + invar_test_get(y, i, j));
        }
    invar_test_free(&sums);
}

/* Control: y with the factor applied after the second product. */
static void late_factor(const layer *l, const invar_tensor *y)
{
    invar_tensor low_rank = make_matrix(l->format->storage, ROWS, R);
    invar_tensor base = make_matrix(INVAR_DTYPE_F32, ROWS, N),
                 added = make_matrix(INVAR_DTYPE_F32, ROWS, N);

    matrix_product(&l->dev, &base, &l->x, &l->w);
    matrix_product(&l->dev, &low_rank, &l->plain_x, &l->a);
    matrix_product(&l->dev, &added, &low_rank, &l->b);
    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t j = 0; j < N; j++)
            invar_test_set(y, i, j,
                           invar_test_get(&base, i, j) + FACTOR * invar_test_get(&added, i, j));
    invar_test_free(&low_rank, &base, &added);
}

static void merged(const layer *l, const invar_tensor *y)
{
    invar_tensor w = invar_test_copy(&l->plain_w), codes;

    for (int64_t n = 0; n < N; n++)
        for (int64_t k = 0; k < K; k++) {
            float sum = invar_test_get(&w, n, k);
            for (int64_t r = 0; r < R; r++)
                sum += FACTOR * invar_test_get(&l->b, n, r) * invar_test_get(&l->a, r, k);
            invar_test_set(&w, n, k, sum);
        }
    codes = invar_test_quantized(&l->dev, &w, l->format->w, true);
    matrix_product(&l->dev, y, &l->x, &codes);
    invar_test_free(&w, &codes);
}

static void check_controls(layer *l)
{
    invar_tensor y = make_matrix(l->format->storage, ROWS, N);

    rounded_twice(l, &y);
    assert_int_equal(invar_tensors_differ(&l->y, &y), l->format->storage == INVAR_DTYPE_BF16);
    late_factor(l, &y);
    assert_true(invar_tensors_differ(&l->y, &y));
    merged(l, &y);
    assert_true(invar_tensors_differ(&l->y, &y));
    invar_test_free(&y);
}

static void test_adapter__controls_are_caught(void **state)
{
    (void)state;
    for_all(check_controls);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adapter__bits_invariant_to_batch),
        cmocka_unit_test(test_adapter__zero_leaves_the_layer),
        cmocka_unit_test(test_adapter__zeros_fill_up_the_rank),
        cmocka_unit_test(test_adapter__controls_are_caught),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
