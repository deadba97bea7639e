/*
 * adapter.c - a linear layer with an adapter, as the ops make it: one rounding, row by row.
 *
 * Every format and numerics: rows alone have the bits of the batch, more threads change none, an
 * adapter that is zero leaves the layer as it is, and zeros that fill up the rank change nothing.
 * Controls: an adapter's output that is rounded before it is added, a factor behind the second
 * product, a merged weight.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/formats.h"

enum { ROWS = 40, N = 160, K = 256, R = 16, FILLED = 32 };

#define FACTOR 1.3f

typedef struct layer {
    const invar_test_format *format;
    invar_device dev;
    invar_tensor plain_x, plain_w; /* before quantization */
    invar_tensor x, w, a, b;
    invar_tensor y; /* of all rows */
} layer;

static invar_tensor make(invar_dtype dtype, int64_t rows, int64_t cols)
{
    return invar_test_tensor(invar_tensor_2d(NULL, dtype, rows, cols));
}

static void product(const invar_device *dev, const invar_tensor *y, const invar_tensor *x,
                    const invar_tensor *w)
{
    assert_ok(
        invar_linear_fwd(dev, &(invar_linear_fwd_args){.y = *y, .x = *x, .w = *w, .k_shards = 1}));
}

/* sums: what y is rounded from, the layer's own and the adapter's. */
static void adapted_sums(const layer *l, const invar_device *dev, const invar_tensor *sums,
                         int64_t first, int64_t rows)
{
    invar_tensor x = invar_tensor_rows(&l->x, first, rows);
    invar_tensor plain = invar_tensor_rows(&l->plain_x, first, rows);
    invar_tensor low = make(INVAR_DTYPE_F32, rows, l->a.shape[0]);
    invar_tensor u = make(l->format->storage, rows, l->a.shape[0]);
    invar_tensor base = invar_tensor_rows(sums, 0, rows);
    invar_tensor added = invar_tensor_rows(sums, rows, rows);

    product(dev, &base, &x, &l->w);
    product(dev, &low, &plain, &l->a);
    assert_ok(invar_scale(dev, &(invar_scale_args){.y = u, .x = low, .factor = FACTOR}));
    product(dev, &added, &u, &l->b);
    invar_test_free(&low, &u);
}

static void adapted(const layer *l, const invar_device *dev, const invar_tensor *y, int64_t first)
{
    invar_tensor sums = make(INVAR_DTYPE_F32, 2 * y->shape[0], N);

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
    l->y = make(format->storage, ROWS, N);
    adapted(l, &l->dev, &l->y, 0);
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

static void rows_alone(layer *l)
{
    invar_device threads;

    invar_test_device_init(&threads, l->dev.numerics, INVAR_CPU_PATH_SIMD, 3);
    for (int64_t first = 0, m = 1; first < ROWS; first += m, m = first % 7 + 1) {
        int64_t rows = m < ROWS - first ? m : ROWS - first;
        invar_tensor y = make(l->format->storage, rows, N);
        invar_tensor expected = invar_tensor_rows(&l->y, first, rows);
        adapted(l, &threads, &y, first);
        invar_assert_bits_tensor(&y, &expected, l->format->name);
        invar_test_free(&y);
    }
    invar_test_device_release(&threads);
}

static void test_adapter__bits_invariant_to_batch(void **state)
{
    (void)state;
    for_all(rows_alone);
}

static void zero_adapter(layer *l)
{
    invar_tensor y = make(l->format->storage, ROWS, N), plain = invar_test_copy(&y);

    invar_test_fill(&l->b, 0.0f);
    adapted(l, &l->dev, &y, 0);
    product(&l->dev, &plain, &l->x, &l->w);
    invar_assert_bits_tensor(&y, &plain, l->format->name);
    invar_test_free(&y, &plain);
}

static void test_adapter__zero_leaves_the_layer(void **state)
{
    (void)state;
    for_all(zero_adapter);
}

/* The values of `from` in the first rows and columns of a tensor of zeros. */
static invar_tensor filled_up(const invar_tensor *from, int64_t rows, int64_t cols)
{
    invar_tensor to = make(from->dtype, rows, cols);

    invar_test_fill(&to, 0.0f);
    for (int64_t i = 0; i < from->shape[0]; i++)
        for (int64_t j = 0; j < from->shape[1]; j++)
            invar_test_set(&to, i, j, invar_test_get(from, i, j));
    return to;
}

static void filled_rank(layer *l)
{
    invar_tensor y = make(l->format->storage, ROWS, N);
    layer wide = *l;

    wide.a = filled_up(&l->a, FILLED, K);
    wide.b = filled_up(&l->b, N, FILLED);
    adapted(&wide, &l->dev, &y, 0);
    invar_assert_bits_tensor(&y, &l->y, l->format->name);
    invar_test_free(&wide.a, &wide.b, &y);
}

static void test_adapter__zeros_fill_up_the_rank(void **state)
{
    (void)state;
    for_all(filled_rank);
}

/* y as peft has it: the adapter's output is rounded before it is added. */
static void rounded_twice(const layer *l, const invar_tensor *y)
{
    invar_tensor sums = make(INVAR_DTYPE_F32, 2 * ROWS, N);

    adapted_sums(l, &l->dev, &sums, 0, ROWS);
    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t j = 0; j < N; j++) {
            float base = invar_test_get(&sums, i, j);
            invar_test_set(y, i, j, invar_test_get(&sums, ROWS + i, j));
            invar_test_set(y, i, j, base + invar_test_get(y, i, j));
        }
    invar_test_free(&sums);
}

/* y with the factor behind the second product. */
static void late_factor(const layer *l, const invar_tensor *y)
{
    invar_tensor low = make(l->format->storage, ROWS, R);
    invar_tensor base = make(INVAR_DTYPE_F32, ROWS, N), added = make(INVAR_DTYPE_F32, ROWS, N);

    product(&l->dev, &base, &l->x, &l->w);
    product(&l->dev, &low, &l->plain_x, &l->a);
    product(&l->dev, &added, &low, &l->b);
    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t j = 0; j < N; j++)
            invar_test_set(y, i, j,
                           invar_test_get(&base, i, j) + FACTOR * invar_test_get(&added, i, j));
    invar_test_free(&low, &base, &added);
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
    product(&l->dev, y, &l->x, &codes);
    invar_test_free(&w, &codes);
}

static void other_orders(layer *l)
{
    invar_tensor y = make(l->format->storage, ROWS, N);

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
    for_all(other_orders);
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
