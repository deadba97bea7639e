/*
 * token_sums.c - tests of sums over tokens, embedding, addition, scaling and the fold of shards.
 *
 * References are plain loops in the order of the contract, and float64. Controls: other block
 * sizes, orders and roundings give other bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>

#include "tests/ops.h"

/* ---- sums over tokens ------------------------------------------------------------------------ */

/* Order of a sum over tokens. The contract is {128, false, false}; other values are controls. */
typedef struct order {
    int64_t block;
    bool descending;
    bool straight; /* blocks are added to the running sum directly, not to the sum of their unit */
} order;

static float block_sum_ref(const invar_tensor *x, int64_t col, int64_t begin, int64_t end,
                           bool descending)
{
    float sum = 0.0f;

    for (int64_t i = 0; i < end - begin; i++)
        sum = sum + invar_test_get(x, descending ? end - 1 - i : begin + i, col);
    return sum;
}

/* Returns (n) random values, because ops add to a sum that is not zero. */
static invar_tensor running_sum(int64_t n)
{
    invar_tensor out = invar_test_tensor(invar_tensor_1d(NULL, INVAR_DTYPE_F32, n));

    invar_test_fill_normal(&out, 7, 1.0f);
    return out;
}

static invar_tensor token_sum(const invar_device *dev, const invar_tensor *x,
                              invar_row_offsets units)
{
    invar_tensor out = running_sum(x->shape[1]);

    assert_ok(invar_token_sum(dev, &(invar_token_sum_args){out, *x, units}));
    return out;
}

static invar_tensor token_sum_ref(const invar_tensor *x, invar_row_offsets units, order o)
{
    invar_tensor out = running_sum(x->shape[1]);
    float *running = out.data;

    for (int64_t col = 0; col < x->shape[1]; col++)
        for (int64_t u = 0; u < units.count; u++) {
            int64_t end = units.offsets[u + 1];
            float unit = 0.0f;
            for (int64_t t = units.offsets[u]; t < end; t += o.block) {
                float sum =
                    block_sum_ref(x, col, t, t + o.block < end ? t + o.block : end, o.descending);
                if (o.straight)
                    running[col] = running[col] + sum;
                else
                    unit = unit + sum;
            }
            if (!o.straight && units.offsets[u] < end)
                running[col] = running[col] + unit;
        }
    return out;
}

static const order contract = {128, false, false};

static void test_token_sum__bits_match_reference(void **state)
{
    static const int64_t starts[][5] = {
        {0, 0, 0, 0, 0},         {0, 1, 1, 1, 1},         {0, 127, 127, 255, 255},
        {0, 128, 256, 257, 257}, {0, 129, 130, 131, 300}, {0, 3, 3, 280, 1000},
    };
    static const int64_t widths[] = {1, 7, 512, 513, 700};

    for (size_t s = 0; s < sizeof starts / sizeof *starts; s++)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
            for (int d = 0; d < 2; d++) {
                invar_row_offsets units = {starts[s], 4};
                invar_tensor x = invar_test_strided(
                    invar_tensor_2d(NULL, invar_test_storage[d], starts[s][4], widths[w]),
                    (int64_t)s);
                invar_tensor got, expected;

                invar_test_fill_normal(&x, s + 1, 1.0f);
                got = token_sum(*state, &x, units);
                expected = token_sum_ref(&x, units, contract);
                invar_assert_bits_tensor(&got, &expected, "token.sum");
                invar_test_free(&x, &got, &expected);
            }
}

static void test_token_sum__controls_differ(void **state)
{
    static const int64_t start[] = {0, 100, 300};
    static const order controls[] = {
        {64, false, false}, {256, false, false}, {128, true, false}, {128, false, true}};
    invar_row_offsets units = {start, 2};
    invar_tensor x = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 300, 8)), got;

    invar_test_fill_normal(&x, 1, 1.0f);
    got = token_sum(*state, &x, units);
    for (size_t i = 0; i < sizeof controls / sizeof *controls; i++) {
        invar_tensor control = token_sum_ref(&x, units, controls[i]);
        assert_true(invar_tensors_differ(&got, &control));
        invar_test_free(&control);
    }
    invar_test_free(&x, &got);
}

static void test_token_sum__accuracy_vs_f64(void **state)
{
    const invar_device *dev = *state;
    enum { T = 5000, N = 40 };
    static const int64_t start[] = {0, 1000, T};

    for (int d = 0; d < 2; d++) {
        invar_tensor x = invar_test_tensor(invar_tensor_2d(NULL, invar_test_storage[d], T, N));
        invar_tensor out = invar_test_tensor(invar_tensor_1d(NULL, INVAR_DTYPE_F32, N));
        double exact[N] = {0};

        invar_test_fill_normal(&x, 3, 1.0f);
        invar_test_fill(&out, 0.0f);
        for (int t = 0; t < T; t++)
            for (int j = 0; j < N; j++)
                exact[j] += (double)invar_test_get(&x, t, j);
        assert_ok(invar_token_sum(dev, &(invar_token_sum_args){out, x, {start, 2}}));
        invar_assert_close(&out, exact, 0x1p-20, 0x1p-15, "token.sum");
        invar_test_free(&x, &out);
    }
}

/* Returns the sums of all token blocks; the rows after them are NaN. */
static invar_tensor block_sums_ref(const invar_tensor *x, invar_row_offsets units)
{
    int64_t cols = x->shape[1], row = 0;
    invar_tensor sums = invar_test_strided(
        invar_tensor_2d(NULL, INVAR_DTYPE_F32, invar_token_blocks_max(&units, x->shape[0]), cols),
        3);

    invar_test_fill(&sums, NAN);
    for (int64_t u = 0; u < units.count; u++)
        for (int64_t t = units.offsets[u], end = units.offsets[u + 1]; t < end; t += 128, row++)
            for (int64_t col = 0; col < cols; col++)
                invar_test_set(&sums, row, col,
                               block_sum_ref(x, col, t, t + 128 < end ? t + 128 : end, false));
    return sums;
}

/* Folding the block sums gives the bits of token.sum. Control: blocks added without units. */
static void test_token_fold__matches_token_sum(void **state)
{
    static const int64_t starts[][5] = {
        {0, 0, 0, 0, 0},         {0, 1, 1, 1, 1},         {0, 127, 127, 255, 255},
        {0, 128, 256, 257, 257}, {0, 129, 130, 131, 300}, {0, 3, 3, 280, 1000},
    };
    static const int64_t widths[] = {1, 7, 512, 700};

    for (size_t s = 0; s < sizeof starts / sizeof *starts; s++)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
            invar_row_offsets units = {starts[s], 4};
            int64_t tokens = starts[s][4];
            invar_tensor x =
                invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, tokens, widths[w]));
            invar_tensor sums, got = running_sum(widths[w]), expected, control;

            invar_test_fill_normal(&x, s + 1, 1.0f);
            sums = block_sums_ref(&x, units);
            assert_ok(invar_token_fold(*state, &(invar_token_fold_args){got, sums, units, tokens}));
            expected = token_sum_ref(&x, units, contract);
            invar_assert_bits_tensor(&got, &expected, "token.fold");
            control = token_sum_ref(&x, units, (order){128, false, true});
            if (s >= 4 && widths[w] > 1) // some units have several blocks
                assert_true(invar_tensors_differ(&got, &control));
            invar_test_free(&x, &sums, &got, &expected, &control);
        }
}

/* ---- embedding ------------------------------------------------------------------------------- */

static void test_embedding_fwd__copies_rows(void **state)
{
    const invar_device *dev = *state;
    enum { T = 300, V = 50, D = 70 };

    for (int d = 0; d < 2; d++) {
        invar_tensor out =
            invar_test_strided(invar_tensor_2d(NULL, invar_test_storage[d], T, D), 5);
        invar_tensor table =
            invar_test_strided(invar_tensor_2d(NULL, invar_test_storage[d], V, D), 1);
        invar_tensor ids = invar_test_tensor(invar_tensor_1d(NULL, INVAR_DTYPE_I32, T));

        invar_test_fill_normal(&table, 1, 1.0f);
        invar_test_fill_index(&ids, 2, V);
        assert_ok(invar_embedding_fwd(dev, &(invar_embedding_fwd_args){out, table, ids}));
        for (int64_t t = 0; t < T; t++) {
            invar_tensor row = invar_tensor_rows(&out, t, 1);
            invar_tensor expected = invar_tensor_rows(&table, ((int32_t *)ids.data)[t], 1);
            invar_assert_bits_tensor(&row, &expected, "embedding.fwd");
        }
        invar_test_free(&out, &table, &ids);
    }
}

/* Order in which rows with equal ids are added. The contract is all false; others are controls. */
typedef struct scatter_order {
    bool descending; /* tokens of a unit from the last to the first */
    bool straight;   /* tokens are added to the table directly, not to the sum of their unit */
} scatter_order;

/* Adds, for each unit, row of the table and column, the tokens of the unit with the id. */
static void embedding_bwd_ref(const invar_embedding_bwd_args *a, scatter_order o)
{
    for (int64_t u = 0; u < a->units.count; u++)
        for (int64_t id = 0; id < a->dtable.shape[0]; id++)
            for (int64_t j = 0; j < a->dout.shape[1]; j++) {
                int64_t begin = a->units.offsets[u], end = a->units.offsets[u + 1];
                float sum = o.straight ? invar_test_get(&a->dtable, id, j) : 0.0f;
                bool found = false;
                for (int64_t i = 0; i < end - begin; i++) {
                    int64_t t = o.descending ? end - 1 - i : begin + i;
                    if (((int32_t *)a->ids.data)[t] != id)
                        continue;
                    sum = sum + invar_test_get(&a->dout, t, j);
                    found = true;
                }
                if (found)
                    invar_test_set(&a->dtable, id, j,
                                   o.straight ? sum : invar_test_get(&a->dtable, id, j) + sum);
            }
}

static void test_embedding_bwd__bits_match_reference(void **state)
{
    const invar_device *dev = *state;
    enum { T = 300, V = 20, D = 700 };
    static const int64_t starts[][5] = {{0, 0, 100, 101, T}, {0, T, T, T, T}, {0, 60, 120, 180, T}};
    static const scatter_order controls[] = {{true, false}, {false, true}};
    invar_tensor view = invar_tensor_2d(NULL, INVAR_DTYPE_F32, V, D);

    for (int i = 0; i < 6; i++) {
        invar_row_offsets units = {starts[i / 2], 4};
        invar_tensor dout =
            invar_test_strided(invar_tensor_2d(NULL, invar_test_storage[i % 2], T, D), 9);
        invar_tensor ids = invar_test_tensor(invar_tensor_1d(NULL, INVAR_DTYPE_I32, T));
        invar_tensor got = invar_test_strided(view, 4), before, expected;

        invar_test_fill_normal(&dout, 1, 1.0f);
        invar_test_fill_index(&ids, 2, V - 1); // no token has the last id: its row must not change
        invar_test_fill_normal(&got, 3, 1.0f);
        before = invar_test_copy(&got);
        expected = invar_test_copy(&got);
        assert_ok(invar_embedding_bwd(dev, &(invar_embedding_bwd_args){got, dout, ids, units}));
        embedding_bwd_ref(&(invar_embedding_bwd_args){expected, dout, ids, units},
                          (scatter_order){false, false});
        invar_assert_bits_tensor(&got, &expected, "embedding.bwd");
        for (size_t c = 0; c < sizeof controls / sizeof *controls; c++) {
            invar_tensor control = invar_test_copy(&before);
            embedding_bwd_ref(&(invar_embedding_bwd_args){control, dout, ids, units}, controls[c]);
            if (i % 2 == 0 || controls[c].straight) // few sums of bf16 inputs are rounded
                assert_true(invar_tensors_differ(&got, &control));
            invar_test_free(&control);
        }
        invar_test_free(&dout, &ids, &got, &before, &expected);
    }
}

/* A unit without the id adds nothing, so -0 stays; a unit with the sum +0 adds +0. */
static void test_embedding_bwd__absent_ids_add_nothing(void **state)
{
    static const int64_t start[] = {0, 1, 2, 2};
    float table[] = {-0.0f, -0.0f, 1.0f}, rows[] = {-0.0f, 0.0f};
    const float expected[] = {-0.0f, 0.0f, 1.0f};
    int32_t index[] = {1, 1};

    assert_ok(invar_embedding_bwd(
        *state, &(invar_embedding_bwd_args){invar_tensor_2d(table, INVAR_DTYPE_F32, 3, 1),
                                            invar_tensor_2d(rows, INVAR_DTYPE_F32, 2, 1),
                                            invar_tensor_1d(index, INVAR_DTYPE_I32, 2),
                                            {start, 3}}));
    invar_assert_bits_f32(table, expected, 3, "embedding.bwd");
}

static void test_embedding_bwd__accuracy_vs_f64(void **state)
{
    const invar_device *dev = *state;
    enum { T = 1000, V = 10, D = 16 };
    static const int64_t start[] = {0, 300, T};

    for (int d = 0; d < 2; d++) {
        invar_tensor dout = invar_test_tensor(invar_tensor_2d(NULL, invar_test_storage[d], T, D));
        invar_tensor ids = invar_test_tensor(invar_tensor_1d(NULL, INVAR_DTYPE_I32, T));
        invar_tensor dtable = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, V, D));
        double exact[V * D] = {0};

        invar_test_fill_normal(&dout, 1, 1.0f);
        invar_test_fill_index(&ids, 2, V);
        invar_test_fill(&dtable, 0.0f);
        for (int64_t t = 0; t < T; t++)
            for (int64_t j = 0; j < D; j++)
                exact[((int32_t *)ids.data)[t] * D + j] += (double)invar_test_get(&dout, t, j);
        assert_ok(
            invar_embedding_bwd(dev, &(invar_embedding_bwd_args){dtable, dout, ids, {start, 2}}));
        invar_assert_close(&dtable, exact, 0x1p-20, 0x1p-17, "embedding.bwd");
        invar_test_free(&dout, &ids, &dtable);
    }
}

/* ---- addition -------------------------------------------------------------------------------- */

static void test_add__bits_match_reference(void **state)
{
    const invar_device *dev = *state;
    for (int d = 0; d < 2; d++)
        for (int64_t cols = 1; cols <= 1300; cols = cols * 3 + 1) {
            invar_tensor view = invar_tensor_2d(NULL, invar_test_storage[d], 37, cols);
            invar_tensor a = invar_test_strided(view, 1), b = invar_test_strided(view, 2);
            invar_tensor out = invar_test_strided(view, 3), expected = invar_test_tensor(view);

            invar_test_fill_normal(&a, 1, 1.0f);
            invar_test_fill_normal(&b, 2, 0.01f);
            for (int64_t i = 0; i < 37; i++)
                for (int64_t j = 0; j < cols; j++)
                    invar_test_set(&expected, i, j,
                                   invar_test_get(&a, i, j) + invar_test_get(&b, i, j));
            assert_ok(invar_add(dev, &(invar_add_args){out, a, b}));
            invar_assert_bits_tensor(&out, &expected, "add");
            // in place, both ways
            invar_test_free(&out);
            out = invar_test_copy(&b);
            assert_ok(invar_add(dev, &(invar_add_args){a, a, b}));
            invar_assert_bits_tensor(&a, &expected, "add, out is a");
            invar_test_fill_normal(&a, 1, 1.0f);
            assert_ok(invar_add(dev, &(invar_add_args){out, a, out}));
            invar_assert_bits_tensor(&out, &expected, "add, out is b");
            invar_test_free(&a, &b, &out, &expected);
        }
}

static void test_add__accuracy_vs_f64(void **state)
{
    const invar_device *dev = *state;
    static const double rounding[] = {0x1p-24, 0x1p-8}; // half an ulp
    enum { N = 500 };

    for (int d = 0; d < 2; d++) {
        invar_tensor view = invar_tensor_2d(NULL, invar_test_storage[d], 1, N);
        invar_tensor a = invar_test_tensor(view), b = invar_test_tensor(view);
        invar_tensor out = invar_test_tensor(view);
        double exact[N];

        invar_test_fill_normal(&a, 1, 1.0f);
        invar_test_fill_normal(&b, 2, 1.0f);
        for (int i = 0; i < N; i++)
            exact[i] = (double)invar_test_get(&a, 0, i) + (double)invar_test_get(&b, 0, i);
        assert_ok(invar_add(dev, &(invar_add_args){out, a, b}));
        // the sum is rounded to f32 first, so the error is a little more than half an ulp
        invar_assert_close(&out, exact, rounding[d] * (1 + 0x1p-10), 0.0, "add");
        invar_test_free(&a, &b, &out);
    }
}

/* ---- fold of logical shards ------------------------------------------------------------------ */

/* How the reference folds. The contract is all false; other values are controls. */
typedef struct fold_order {
    bool ascending; /* shards are added one after another instead of as a tree */
    bool exact;     /* the residual is added to the sum before it is rounded */
} fold_order;

static float tree_ref(const invar_tensor *x, int64_t rows, int64_t row, int64_t col, int32_t first,
                      int32_t shards)
{
    if (shards == 1)
        return invar_test_get(x, first * rows + row, col);
    return tree_ref(x, rows, row, col, first, shards / 2) +
           tree_ref(x, rows, row, col, first + shards / 2, shards / 2);
}

static void shards_fold_ref(const invar_shards_fold_args *a, fold_order o)
{
    int64_t rows = a->y.shape[0];

    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < a->y.shape[1]; j++) {
            float sum = tree_ref(&a->x, rows, i, j, 0, a->shards);
            if (o.ascending) {
                sum = 0.0f;
                for (int32_t v = 0; v < a->shards; v++)
                    sum += invar_test_get(&a->x, v * rows + i, j);
            }
            if (!o.exact)
                invar_test_set(&a->y, i, j, sum + 0.0f);
            if (invar_tensor_present(&a->residual))
                invar_test_set(&a->y, i, j,
                               invar_test_get(&a->residual, i, j) +
                                   (o.exact ? sum : invar_test_get(&a->y, i, j)));
        }
}

static void check_shards_fold(const invar_device *dev, invar_dtype dtype, int32_t shards,
                              bool added)
{
    enum { ROWS = 9, COLS = 700 };
    invar_tensor view = invar_tensor_2d(NULL, dtype, ROWS, COLS);
    invar_tensor expected = invar_test_tensor(view), control = invar_test_tensor(view);
    invar_shards_fold_args a = {
        .y = invar_test_strided(view, 3),
        .x = invar_test_strided(invar_tensor_2d(NULL, INVAR_DTYPE_F32, shards * ROWS, COLS), 1),
        .shards = shards};
    invar_shards_fold_args ref = a;

    invar_test_fill_normal(&a.x, 1, 1.0f);
    if (added) {
        a.residual = ref.residual = invar_test_strided(view, 5);
        invar_test_fill_normal(&a.residual, 2, 1.0f);
    }
    assert_ok(invar_shards_fold(dev, &a));
    ref.y = expected;
    shards_fold_ref(&ref, (fold_order){false, false});
    invar_assert_bits_tensor(&a.y, &expected, "shards.fold");
    ref.y = control;
    shards_fold_ref(&ref, (fold_order){true, false});
    if (dtype == INVAR_DTYPE_F32) // rounded to bf16, few sums differ
        assert_int_equal(invar_tensors_differ(&a.y, &control), shards > 2);
    if (added) {
        shards_fold_ref(&ref, (fold_order){false, true});
        assert_int_equal(invar_tensors_differ(&a.y, &control), dtype == INVAR_DTYPE_BF16);
        invar_test_free(&a.y);
        a.y = a.residual;
        assert_ok(invar_shards_fold(dev, &a));
        invar_assert_bits_tensor(&a.y, &expected, "shards.fold, y is the residual");
    }
    invar_test_free(&a.y, &a.x, &expected, &control);
}

static void test_shards_fold__bits_match_reference(void **state)
{
    for (int d = 0; d < 2; d++)
        for (int32_t shards = 1; shards <= INVAR_LINEAR_MAX_SHARDS; shards *= 2)
            for (int added = 0; added < 2; added++)
                check_shards_fold(*state, invar_test_storage[d], shards, added);
}

/* A sum of -0 becomes +0, as at the end of a chain on a single rank. */
static void test_shards_fold__minus_zero_becomes_plus_zero(void **state)
{
    float shards[] = {-0.0f, 1.0f, -0.0f, -1.0f}, y[2], old[] = {-0.0f, -0.0f};
    const float zero[] = {0.0f, 0.0f};
    invar_shards_fold_args a = {.y = invar_tensor_2d(y, INVAR_DTYPE_F32, 1, 2),
                                .x = invar_tensor_2d(shards, INVAR_DTYPE_F32, 2, 2),
                                .shards = 2};

    assert_ok(invar_shards_fold(*state, &a));
    invar_assert_bits_f32(y, zero, 2, "y");
    a.residual = invar_tensor_2d(old, INVAR_DTYPE_F32, 1, 2);
    assert_ok(invar_shards_fold(*state, &a));
    invar_assert_bits_f32(y, zero, 2, "y with a residual");
}

/* ---- scaling --------------------------------------------------------------------------------- */

/* Multiplies by the factor. Control: with `round_first`, x is also rounded before. */
static void scale_ref(const invar_tensor *y, const invar_scale_args *a, bool round_first)
{
    for (int64_t i = 0; i < y->shape[0]; i++)
        for (int64_t j = 0; j < y->shape[1]; j++) {
            float x = invar_test_get(&a->x, i, j);
            if (round_first) {
                invar_test_set(y, i, j, x);
                x = invar_test_get(y, i, j);
            }
            invar_test_set(y, i, j, a->factor * x);
        }
}

static void check_scale(const invar_device *dev, invar_dtype dtype, float factor)
{
    enum { ROWS = 9, COLS = 700 };
    invar_tensor view = invar_tensor_2d(NULL, dtype, ROWS, COLS);
    invar_tensor expected = invar_test_tensor(view);
    invar_scale_args a = {
        .y = invar_test_strided(view, 3),
        .x = invar_test_strided(invar_tensor_2d(NULL, INVAR_DTYPE_F32, ROWS, COLS), 1),
        .factor = factor};

    invar_test_fill_normal(&a.x, 1, 1.0f);
    assert_ok(invar_scale(dev, &a));
    scale_ref(&expected, &a, false);
    invar_assert_bits_tensor(&a.y, &expected, "scale");
    scale_ref(&expected, &a, true);
    assert_int_equal(invar_tensors_differ(&a.y, &expected), dtype == INVAR_DTYPE_BF16);
    if (dtype == INVAR_DTYPE_F32) {
        invar_test_free(&a.y);
        a.y = a.x;
        assert_ok(invar_scale(dev, &a));
        invar_assert_bits_tensor(&a.y, &expected, "scale, y is x");
        invar_test_free(&a.y, &expected);
        return;
    }
    invar_test_free(&a.y, &a.x, &expected);
}

static void test_scale__bits_match_reference(void **state)
{
    static const float factors[] = {2.0f / 3.0f, -1.7f, 3.0f};

    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 3; i++)
            check_scale(*state, invar_test_storage[d], factors[i]);
}

/* ---- bad arguments --------------------------------------------------------------------------- */

static void test_token__rejects_bad_arguments(void **state)
{
    const invar_device *dev = *state;
    static const int64_t start[] = {0, 4}, backwards[] = {0, 5, 4}, gap[] = {1, 4};
    float data[64] = {0}, more[64] = {0};
    uint16_t half[64] = {0};
    int32_t index[4] = {0, 1, 2, 3};
    invar_tensor x = invar_tensor_2d(data, INVAR_DTYPE_F32, 4, 8), wrong;
    invar_tensor x16 = invar_tensor_2d(half, INVAR_DTYPE_BF16, 4, 8);
    invar_tensor v = invar_tensor_1d(data, INVAR_DTYPE_F32, 8), none = {0};
    invar_tensor ids = invar_tensor_1d(index, INVAR_DTYPE_I32, 4);
    invar_tensor table = invar_tensor_2d(data, INVAR_DTYPE_F32, 3, 8);
    invar_tensor v7 = invar_tensor_1d(data, INVAR_DTYPE_F32, 7);
    invar_tensor big = invar_tensor_2d(more, INVAR_DTYPE_F32, 4, 8);
    invar_row_offsets units = {start, 1};

#define TOKEN_SUM(...) invar_token_sum(dev, &(invar_token_sum_args){__VA_ARGS__})
    assert_invalid(TOKEN_SUM(v7, x, units), "token.sum: out: extent 7 of index 0; expected 8");
    assert_invalid(TOKEN_SUM(v, none, units), "token.sum: x: missing");
    assert_invalid(TOKEN_SUM(invar_tensor_1d(half, INVAR_DTYPE_BF16, 8), x, units),
                   "token.sum: out: type");
    assert_invalid(TOKEN_SUM(v, ids, units), "token.sum: x: type i32");
    assert_invalid(TOKEN_SUM(v, v, units), "token.sum: x: rank 1");
    assert_invalid(TOKEN_SUM(v, x, {backwards, 2}), "token.sum: units: segment 1");
    assert_invalid(TOKEN_SUM(v, x, {gap, 1}), "token.sum: units: segments cover rows 1");
    assert_invalid(TOKEN_SUM(v, x, {NULL, 0}), "token.sum: units: 0 segments");
    wrong = x;
    wrong.row_stride = 7;
    assert_invalid(TOKEN_SUM(v, wrong, units), "token.sum: x: row stride 7");
    wrong = x;
    wrong.data = NULL;
    assert_invalid(TOKEN_SUM(v, wrong, units), "token.sum: x: no data");
#define TOKEN_FOLD(...) invar_token_fold(dev, &(invar_token_fold_args){__VA_ARGS__})
    assert_invalid(TOKEN_FOLD(v, big, units, 4),
                   "token.fold: sums: extent 4 of index 0; expected 1");
    wrong = invar_tensor_rows(&big, 0, 1);
    assert_invalid(TOKEN_FOLD(v7, wrong, units, 4), "token.fold: out: extent 7");
    assert_invalid(TOKEN_FOLD(v, wrong, units, -1), "token.fold: tokens: -1");
    assert_invalid(TOKEN_FOLD(v, wrong, {gap, 1}, 4), "token.fold: units: segments cover rows 1");
    assert_invalid(TOKEN_FOLD(v, wrong, units, 5), "token.fold: units: segments cover rows 0");
    wrong = invar_tensor_rows(&x16, 0, 1);
    assert_invalid(TOKEN_FOLD(v, wrong, units, 4), "token.fold: sums: type bf16");
#define SHARDS_FOLD(...) invar_shards_fold(dev, &(invar_shards_fold_args){__VA_ARGS__})
    wrong = invar_tensor_rows(&big, 0, 2);
    assert_invalid(SHARDS_FOLD(wrong, x, none, 3), "shards.fold: shards: 3");
    assert_invalid(SHARDS_FOLD(wrong, x, none, 16), "shards.fold: shards: 16");
    assert_invalid(SHARDS_FOLD(wrong, x, none, 4),
                   "shards.fold: x: extent 4 of index 0; expected 8");
    assert_invalid(SHARDS_FOLD(wrong, x16, none, 2), "shards.fold: x: type bf16");
    assert_invalid(SHARDS_FOLD(wrong, x, big, 2), "shards.fold: residual");
    assert_invalid(SHARDS_FOLD(none, x, none, 2), "shards.fold: y: missing");
#define EMBEDDING_FWD(...) invar_embedding_fwd(dev, &(invar_embedding_fwd_args){__VA_ARGS__})
    assert_invalid(EMBEDDING_FWD(x, table, ids),
                   "embedding.fwd: ids: value 3 in row 3; expected 0 to 2");
    assert_invalid(EMBEDDING_FWD(x16, x, ids), "embedding.fwd: table is f32 but out is bf16");
    assert_invalid(EMBEDDING_FWD(x, x, v), "embedding.fwd: ids: type f32");
    assert_invalid(EMBEDDING_FWD(none, x, ids), "embedding.fwd: out: missing");
#define EMBEDDING_BWD(...) invar_embedding_bwd(dev, &(invar_embedding_bwd_args){__VA_ARGS__})
    assert_invalid(EMBEDDING_BWD(table, x, ids, units), "embedding.bwd: ids: value 3");
    assert_invalid(EMBEDDING_BWD(x16, x, ids, units), "embedding.bwd: dtable: type bf16");
    assert_invalid(EMBEDDING_BWD(big, x, ids, {gap, 1}), "embedding.bwd: units: segments cover");
    assert_invalid(EMBEDDING_BWD(big, x, ids, {NULL, 0}), "embedding.bwd: units: 0 segments");
    index[2] = -1;
    assert_invalid(EMBEDDING_BWD(big, x, ids, units), "embedding.bwd: ids: value -1 in row 2");
#define ADD(...) invar_add(dev, &(invar_add_args){__VA_ARGS__})
    assert_invalid(ADD(x, table, x), "add: a: extent 3");
    assert_invalid(ADD(x, x, x16), "add: b is bf16 but out is f32");
    assert_invalid(ADD(none, x, x), "add: out: missing");
#define SCALE(...) invar_scale(dev, &(invar_scale_args){__VA_ARGS__})
    assert_invalid(SCALE(x, table, 1.0f), "scale: x: extent 3");
    assert_invalid(SCALE(x, x16, 1.0f), "scale: x: type bf16");
    assert_invalid(SCALE(none, x, 1.0f), "scale: y: missing");
    assert_invalid(SCALE(big, x, INFINITY), "scale: factor: inf");
}

static void test_token__nothing_to_do(void **state)
{
    const invar_device *dev = *state;
    float one = 3.0f;
    invar_tensor v = invar_tensor_1d(&one, INVAR_DTYPE_F32, 1);
    invar_tensor empty = invar_tensor_2d(NULL, INVAR_DTYPE_F32, 0, 1);
    invar_tensor ids = invar_tensor_1d(NULL, INVAR_DTYPE_I32, 0);
    invar_tensor table = invar_tensor_2d(&one, INVAR_DTYPE_F32, 1, 1);

    assert_ok(TOKEN_SUM(v, empty, {NULL, 0}));
    assert_ok(EMBEDDING_FWD(empty, table, ids));
    assert_ok(EMBEDDING_BWD(table, empty, ids, {NULL, 0}));
    assert_ok(ADD(empty, empty, empty));
    assert_ok(SCALE(empty, empty, 2.0f));
    assert_true(one == 3.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_token_sum__bits_match_reference),
        cmocka_unit_test(test_token_sum__controls_differ),
        cmocka_unit_test(test_token_sum__accuracy_vs_f64),
        cmocka_unit_test(test_token_fold__matches_token_sum),
        cmocka_unit_test(test_embedding_fwd__copies_rows),
        cmocka_unit_test(test_embedding_bwd__bits_match_reference),
        cmocka_unit_test(test_embedding_bwd__absent_ids_add_nothing),
        cmocka_unit_test(test_embedding_bwd__accuracy_vs_f64),
        cmocka_unit_test(test_add__bits_match_reference),
        cmocka_unit_test(test_add__accuracy_vs_f64),
        cmocka_unit_test(test_shards_fold__bits_match_reference),
        cmocka_unit_test(test_shards_fold__minus_zero_becomes_plus_zero),
        cmocka_unit_test(test_scale__bits_match_reference),
        cmocka_unit_test(test_token__rejects_bad_arguments),
        cmocka_unit_test(test_token__nothing_to_do),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
