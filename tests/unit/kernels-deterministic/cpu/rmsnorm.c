/*
 * rmsnorm.c - tests of RMSNorm and its gradients against plain loops, float64 and finite
 * differences.
 *
 * Controls: other reductions, token blocks, head orders and roundings give other bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdlib.h>

#include "tests/ops.h"

#define EPS 1e-6f

/* Tensors of one call. Equal shapes and types give equal values. */
typedef struct norm {
    invar_tensor y, x, dy, dx; /* (T, H, D) */
    invar_tensor weight, dweight;
    int64_t start[3]; /* row offsets of two units */
    int32_t head_shards;
    int64_t head_atom;
} norm;

static norm norm_new(invar_dtype dtype, invar_dtype weight_dtype, int64_t t, int64_t h, int64_t d)
{
    invar_tensor view = invar_tensor_3d(NULL, dtype, t, h, d);
    norm n = {.y = invar_test_strided(view, 3),
              .x = invar_test_strided(view, 1),
              .dy = invar_test_strided(view, 2),
              .dx = invar_test_tensor(view),
              .weight = invar_test_tensor(invar_tensor_1d(NULL, weight_dtype, d)),
              .dweight = invar_test_tensor(invar_tensor_1d(NULL, INVAR_DTYPE_F32, d)),
              .start = {0, t / 3, t}};

    invar_test_fill_normal(&n.x, 1, 2.0f);
    invar_test_fill_normal(&n.dy, 2, 0.5f);
    invar_test_fill_normal(&n.weight, 3, 1.0f);
    invar_test_fill_normal(&n.dweight, 4, 1.0f);
    return n;
}

static void norm_free(norm *n)
{
    invar_test_free(&n->y, &n->x, &n->dy, &n->dx, &n->weight, &n->dweight);
}

static void norm_run(const invar_device *dev, const norm *n)
{
    assert_ok(invar_rmsnorm_fwd(
        dev, &(invar_rmsnorm_fwd_args){.y = n->y, .x = n->x, .weight = n->weight, .eps = EPS}));
    assert_ok(invar_rmsnorm_bwd(dev, &(invar_rmsnorm_bwd_args){.dx = n->dx,
                                                               .dweight = n->dweight,
                                                               .dy = n->dy,
                                                               .x = n->x,
                                                               .weight = n->weight,
                                                               .units = {n->start, 2},
                                                               .eps = EPS,
                                                               .head_shards = n->head_shards,
                                                               .head_atom = n->head_atom}));
}

/* ---- reference, as in the contract ----------------------------------------------------------- */

static float reduce_ascending(const float *x, int64_t n)
{
    float sum = 0.0f;

    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    return sum;
}

/* How the reference computes; every variant other than `contract` is a negative control. */
typedef struct variant {
    float (*reduce)(const float *x, int64_t n);
    int64_t block;
    bool heads_descending;
    bool products_rounded;
    bool straight; /* blocks are added to the running sum directly, not to the sum of their unit */
} variant;

static const variant contract = {invar_test_reduce, 128, false, false, false};

static float rstd_ref(const norm *n, int64_t t, int64_t first, const variant *v)
{
    int64_t d = n->x.shape[2];
    float *squares = calloc((size_t)d, sizeof *squares), mean;

    for (int64_t i = 0; i < d; i++) {
        float x = invar_test_get(&n->x, t, first + i);
        squares[i] = x * x;
    }
    mean = v->reduce(squares, d) / (float)d;
    free(squares);
    return isfinite(mean) ? 1.0f / sqrtf(mean + EPS) : NAN;
}

static void head_ref(const norm *n, int64_t t, int64_t first, float rstd, const variant *v)
{
    int64_t d = n->x.shape[2];
    float *terms = calloc((size_t)d, sizeof *terms), mean;

    for (int64_t i = 0; i < d; i++) {
        float xhat = invar_test_get(&n->x, t, first + i) * rstd;
        float w = invar_test_get(&n->weight, 0, i);
        invar_test_set(&n->y, t, first + i, xhat * w);
        terms[i] = (invar_test_get(&n->dy, t, first + i) * w) * xhat;
    }
    mean = v->reduce(terms, d) / (float)d;
    for (int64_t i = 0; i < d; i++) {
        float xhat = invar_test_get(&n->x, t, first + i) * rstd;
        float g = invar_test_get(&n->dy, t, first + i) * invar_test_get(&n->weight, 0, i);
        invar_test_set(&n->dx, t, first + i, rstd * fmaf(-xhat, mean, g));
    }
    free(terms);
}

/* Returns whether head h is in a logical shard: atom a of n is in shard floor(a V / n). */
static bool in_shard(const norm *n, int64_t h, int32_t shard)
{
    int64_t atoms;

    if (n->head_shards <= 1)
        return true;
    atoms = (n->x.shape[1] + n->head_atom - 1) / n->head_atom;
    return h / n->head_atom * n->head_shards / atoms == shard;
}

/* One element of dweight for the tokens of a block and the heads of a shard; `rstd` is (T * H). */
static float dweight_shard_ref(const norm *n, const float *rstd, int64_t col, int64_t begin,
                               int64_t end, const variant *v, int32_t shard)
{
    int64_t heads = n->x.shape[1], d = n->x.shape[2];
    float sum = 0.0f;

    for (int64_t t = begin; t < end; t++)
        for (int64_t i = 0; i < heads; i++) {
            int64_t h = v->heads_descending ? heads - 1 - i : i;
            if (!in_shard(n, h, shard))
                continue;
            float xhat = invar_test_get(&n->x, t, h * d + col) * rstd[t * heads + h];
            float dy = invar_test_get(&n->dy, t, h * d + col);
            sum = v->products_rounded ? sum + dy * xhat : fmaf(dy, xhat, sum);
        }
    return sum;
}

/* Adds the shards of a block as a binary tree, adjacent shards first. */
static float dweight_block_ref(const norm *n, const float *rstd, int64_t col, int64_t begin,
                               int64_t end, const variant *v, int32_t shard, int32_t shards)
{
    if (shards == 1)
        return dweight_shard_ref(n, rstd, col, begin, end, v, shard);
    return dweight_block_ref(n, rstd, col, begin, end, v, shard, shards / 2) +
           dweight_block_ref(n, rstd, col, begin, end, v, shard + shards / 2, shards / 2);
}

static void norm_ref(const norm *n, const variant *v)
{
    int64_t heads = n->x.shape[1], d = n->x.shape[2];
    int32_t shards = n->head_shards > 1 ? n->head_shards : 1;
    float *dweight = n->dweight.data;
    float *rstd = calloc((size_t)(n->x.shape[0] * heads), sizeof *rstd);

    for (int64_t i = 0; i < n->x.shape[0] * heads; i++) {
        rstd[i] = rstd_ref(n, i / heads, i % heads * d, v);
        head_ref(n, i / heads, i % heads * d, rstd[i], v);
    }
    for (int64_t col = 0; col < d; col++)
        for (int u = 0; u < 2; u++) {
            float unit = 0.0f;
            for (int64_t t = n->start[u]; t < n->start[u + 1]; t += v->block) {
                int64_t end = t + v->block < n->start[u + 1] ? t + v->block : n->start[u + 1];
                float sum = dweight_block_ref(n, rstd, col, t, end, v, 0, shards);
                if (v->straight)
                    dweight[col] = dweight[col] + sum;
                else
                    unit = unit + sum;
            }
            if (!v->straight && n->start[u] < n->start[u + 1])
                dweight[col] = dweight[col] + unit;
        }
    free(rstd);
}

static void test_rmsnorm__bits_match_reference(void **state)
{
    static const int64_t shapes[][3] = {{1, 1, 1},   {2, 1, 255},  {3, 1, 4096}, {2, 2, 4097},
                                        {5, 3, 128}, {200, 1, 40}, {390, 2, 7},  {2, 1, 8192}};

    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int d = 0; d < 4; d++) {
            const int64_t *e = shapes[s];
            invar_dtype weight = d < 2 ? INVAR_DTYPE_F32 : invar_test_storage[d % 2];
            norm got = norm_new(invar_test_storage[d % 2], weight, e[0], e[1], e[2]);
            norm expected = norm_new(invar_test_storage[d % 2], weight, e[0], e[1], e[2]);

            norm_run(*state, &got);
            norm_ref(&expected, &contract);
            invar_assert_bits_tensor(&got.y, &expected.y, "rmsnorm.fwd: y");
            invar_assert_bits_tensor(&got.dx, &expected.dx, "rmsnorm.bwd: dx");
            invar_assert_bits_tensor(&got.dweight, &expected.dweight, "rmsnorm.bwd: dweight");
            norm_free(&got);
            norm_free(&expected);
        }
}

/*
 * Even and uneven shards, atoms of several heads, and shards without heads. Control: more than one
 * shard gives another dweight, but the same dx.
 */
static void test_rmsnorm__shards_of_heads(void **state)
{
    static const int64_t cases[][2] = {{8, 1}, {11, 1}, {11, 2}, {3, 1}, {16, 1}}; // heads, atom

    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int32_t shards = 1; shards <= 8; shards *= 2) {
            norm got = norm_new(INVAR_DTYPE_F32, INVAR_DTYPE_F32, 150, cases[c][0], 16);
            norm expected = norm_new(INVAR_DTYPE_F32, INVAR_DTYPE_F32, 150, cases[c][0], 16);
            norm one = norm_new(INVAR_DTYPE_F32, INVAR_DTYPE_F32, 150, cases[c][0], 16);

            got.head_shards = expected.head_shards = shards;
            got.head_atom = expected.head_atom = cases[c][1];
            norm_run(*state, &got);
            norm_ref(&expected, &contract);
            norm_run(*state, &one);
            invar_assert_bits_tensor(&got.dweight, &expected.dweight, "dweight of shards");
            invar_assert_bits_tensor(&got.dx, &one.dx, "dx of shards");
            assert_int_equal(invar_tensors_differ(&got.dweight, &one.dweight), shards > 1);
            norm_free(&got);
            norm_free(&expected);
            norm_free(&one);
        }
}

/* Runs the backward with block sums, into rows that held NaN. The caller frees the result. */
static invar_tensor run_block_sums(const invar_device *dev, const norm *n)
{
    invar_row_offsets units = {n->start, 2};
    invar_tensor sums = invar_test_strided(
        invar_tensor_2d(NULL, INVAR_DTYPE_F32, invar_token_blocks_max(&units, n->x.shape[0]),
                        n->x.shape[2]),
        5);

    invar_test_fill(&sums, NAN);
    assert_ok(invar_rmsnorm_bwd(dev, &(invar_rmsnorm_bwd_args){.dx = n->dx,
                                                               .block_sums = sums,
                                                               .dy = n->dy,
                                                               .x = n->x,
                                                               .weight = n->weight,
                                                               .units = units,
                                                               .eps = EPS,
                                                               .head_shards = n->head_shards,
                                                               .head_atom = n->head_atom}));
    return sums;
}

static void block_sums_ref(const invar_tensor *sums, const norm *n)
{
    int64_t heads = n->x.shape[1], d = n->x.shape[2], row = 0;
    int32_t shards = n->head_shards > 1 ? n->head_shards : 1;
    float *rstd = calloc((size_t)(n->x.shape[0] * heads), sizeof *rstd);

    for (int64_t i = 0; i < n->x.shape[0] * heads; i++)
        rstd[i] = rstd_ref(n, i / heads, i % heads * d, &contract);
    invar_test_fill(sums, 0.0f);
    for (int u = 0; u < 2; u++)
        for (int64_t t = n->start[u], unit_end = n->start[u + 1]; t < unit_end; t += 128, row++) {
            int64_t end = t + 128 < unit_end ? t + 128 : unit_end;
            for (int64_t col = 0; col < d; col++)
                invar_test_set(sums, row, col,
                               dweight_block_ref(n, rstd, col, t, end, &contract, 0, shards));
        }
    free(rstd);
}

/* Block sums are followed by +0, leave dx unchanged, and fold into dweight. */
static void test_rmsnorm__block_sums(void **state)
{
    static const int64_t shapes[][3] = {{1, 1, 1},    {200, 1, 40},  {390, 2, 7},
                                        {384, 3, 16}, {150, 11, 16}, {3, 1, 4097}};

    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int d = 0; d < 4; d++) {
            const int64_t *e = shapes[s];
            norm n = norm_new(invar_test_storage[d % 2], INVAR_DTYPE_F32, e[0], e[1], e[2]);
            invar_tensor sums, expected, dx, folded = invar_test_copy(&n.dweight);

            n.head_shards = d < 2 ? 0 : 4;
            n.head_atom = 1;
            sums = run_block_sums(*state, &n);
            expected = invar_test_tensor(sums);
            block_sums_ref(&expected, &n);
            invar_assert_bits_tensor(&sums, &expected, "block sums");
            dx = invar_test_copy(&n.dx);
            norm_run(*state, &n);
            invar_assert_bits_tensor(&dx, &n.dx, "dx beside block sums");
            assert_ok(invar_token_fold(*state,
                                       &(invar_token_fold_args){folded, sums, {n.start, 2}, e[0]}));
            invar_assert_bits_tensor(&folded, &n.dweight, "dweight of block sums");
            invar_test_free(&sums, &expected, &dx, &folded);
            norm_free(&n);
        }
}

static void test_rmsnorm__controls_differ(void **state)
{
    static const struct {
        variant v;
        bool y_differs;
    } controls[] = {{{reduce_ascending, 128, false, false, false}, true},
                    {{invar_test_reduce, 64, false, false, false}, false},
                    {{invar_test_reduce, 128, true, false, false}, false},
                    {{invar_test_reduce, 128, false, true, false}, false},
                    {{invar_test_reduce, 128, false, false, true}, false}};
    norm got = norm_new(INVAR_DTYPE_F32, INVAR_DTYPE_F32, 200, 2, 32);

    norm_run(*state, &got);
    for (size_t i = 0; i < sizeof controls / sizeof *controls; i++) {
        norm control = norm_new(INVAR_DTYPE_F32, INVAR_DTYPE_F32, 200, 2, 32);
        norm_ref(&control, &controls[i].v);
        assert_int_equal(invar_tensors_differ(&got.y, &control.y), controls[i].y_differs);
        assert_int_equal(invar_tensors_differ(&got.dx, &control.dx), controls[i].y_differs);
        assert_true(invar_tensors_differ(&got.dweight, &control.dweight));
        norm_free(&control);
    }
    norm_free(&got);
}

static void test_rmsnorm__dx_does_not_depend_on_dweight(void **state)
{
    norm with = norm_new(INVAR_DTYPE_BF16, INVAR_DTYPE_BF16, 20, 2, 64);
    norm without = norm_new(INVAR_DTYPE_BF16, INVAR_DTYPE_BF16, 20, 2, 64);

    norm_run(*state, &with);
    assert_ok(invar_rmsnorm_bwd(*state, &(invar_rmsnorm_bwd_args){.dx = without.dx,
                                                                  .dy = without.dy,
                                                                  .x = without.x,
                                                                  .weight = without.weight,
                                                                  .eps = EPS}));
    invar_assert_bits_tensor(&without.dx, &with.dx, "dx");
    norm_free(&with);
    norm_free(&without);
}

/* Checks the row of a head in y and dx: all NaN, or equal to the row of `other`. */
static void assert_head(const norm *n, const norm *other, int64_t t, int64_t h, bool is_nan)
{
    int64_t d = n->x.shape[2];

    for (int64_t i = h * d; i < h * d + d; i++) {
        float y = invar_test_get(&n->y, t, i), dx = invar_test_get(&n->dx, t, i);
        assert_int_equal(isnan(y) && isnan(dx), is_nan);
        if (!is_nan) {
            assert_float_equal(y, invar_test_get(&other->y, t, i), 0.0f);
            assert_float_equal(dx, invar_test_get(&other->dx, t, i), 0.0f);
        }
    }
}

/*
 * A mean of squares that overflows gives NaN in y, dx and dweight, not a row of zeros; large values
 * whose squares do not overflow have the bits of the reference.
 */
static void test_rmsnorm__squares_that_overflow_are_nan(void **state)
{
    static const struct {
        float value; /* stored at two positions of a head */
        bool overflows;
    } rows[] = {{0x1p63f, false},    {0x1.6p63f, false}, {0x1p64f, true},   {-0x1p64f, true},
                {0x1.fep127f, true}, {INFINITY, true},   {-INFINITY, true}, {NAN, true}};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int d = 0; d < 2; d++) {
            norm got = norm_new(invar_test_storage[d], INVAR_DTYPE_F32, 5, 3, 40);
            norm expected = norm_new(invar_test_storage[d], INVAR_DTYPE_F32, 5, 3, 40);

            invar_test_set(&got.x, 2, 40 + 7, rows[i].value);
            invar_test_set(&got.x, 2, 40 + 39, rows[i].value);
            invar_test_set(&expected.x, 2, 40 + 7, rows[i].value);
            invar_test_set(&expected.x, 2, 40 + 39, rows[i].value);
            norm_run(*state, &got);
            norm_ref(&expected, &contract);
            for (int64_t h = 0; h < 15; h++)
                assert_head(&got, &expected, h / 3, h % 3, h == 2 * 3 + 1 && rows[i].overflows);
            if (!rows[i].overflows)
                invar_assert_bits_tensor(&got.dweight, &expected.dweight, "dweight");
            for (int64_t col = 0; col < 40; col++)
                assert_int_equal(isnan(invar_test_get(&got.dweight, 0, col)), rows[i].overflows);
            norm_free(&got);
            norm_free(&expected);
        }
}

/* ---- accuracy and gradients ------------------------------------------------------------------ */

enum { T = 6, H = 2, D = 48, N = T * H * D };

/* Inputs and results in double, computed from the inputs as stored. */
typedef struct exact {
    double x[N], dy[N], weight[D];
    double y[N], dx[N], dweight[D];
} exact;

static double rstd_f64(const double *x)
{
    double sum = 0.0;

    for (int i = 0; i < D; i++)
        sum += x[i] * x[i];
    return 1.0 / sqrt(sum / D + (double)EPS);
}

static void head_f64(exact *e, int first)
{
    const double *x = e->x + first, *dy = e->dy + first;
    double rstd = rstd_f64(x), mean = 0.0;

    for (int i = 0; i < D; i++)
        mean += dy[i] * e->weight[i] * x[i] * rstd / D;
    for (int i = 0; i < D; i++) {
        double xhat = x[i] * rstd;
        e->y[first + i] = xhat * e->weight[i];
        e->dx[first + i] = rstd * (dy[i] * e->weight[i] - xhat * mean);
        e->dweight[i] += dy[i] * xhat;
    }
}

static void exact_from(exact *e, const norm *n)
{
    for (int i = 0; i < N; i++) {
        e->x[i] = (double)invar_test_get(&n->x, i / (H * D), i % (H * D));
        e->dy[i] = (double)invar_test_get(&n->dy, i / (H * D), i % (H * D));
    }
    for (int i = 0; i < D; i++) {
        e->weight[i] = (double)invar_test_get(&n->weight, 0, i);
        e->dweight[i] = (double)invar_test_get(&n->dweight, 0, i);
    }
    for (int first = 0; first < N; first += D)
        head_f64(e, first);
}

static void test_rmsnorm__accuracy_vs_f64(void **state)
{
    static const double rounding[2] = {0x1p-21, 0x1p-8};
    exact *e = malloc(sizeof *e);

    for (int d = 0; d < 2; d++) {
        norm n = norm_new(invar_test_storage[d], invar_test_storage[d], T, H, D);
        exact_from(e, &n);
        norm_run(*state, &n);
        invar_assert_close(&n.y, e->y, rounding[d] * 1.01, 0.0, "y");
        invar_assert_close(&n.dx, e->dx, rounding[d] * 1.01, 0x1p-22, "dx");
        invar_assert_close(&n.dweight, e->dweight, 0x1p-21, 0x1p-20, "dweight");
        norm_free(&n);
    }
    free(e);
}

/* Returns the sum of dy * y, the function whose gradients the backward computes. */
static double loss_f64(exact *e)
{
    double loss = 0.0;

    for (int first = 0; first < N; first += D)
        head_f64(e, first);
    for (int i = 0; i < N; i++)
        loss += e->dy[i] * e->y[i];
    return loss;
}

static double central_difference(exact *e, double *value)
{
    const double h = 1e-5, at = *value;
    double up, down;

    *value = at + h;
    up = loss_f64(e);
    *value = at - h;
    down = loss_f64(e);
    *value = at;
    return (up - down) / (2 * h);
}

static void test_rmsnorm__gradients_vs_finite_differences(void **state)
{
    norm n = norm_new(INVAR_DTYPE_F32, INVAR_DTYPE_F32, T, H, D);
    exact *e = malloc(sizeof *e);

    invar_test_fill(&n.dweight, 0.0f);
    exact_from(e, &n);
    norm_run(*state, &n);
    for (int i = 0; i < N; i += 5) {
        float got = invar_test_get(&n.dx, i / (H * D), i % (H * D));
        assert_true(fabs(central_difference(e, &e->x[i]) - (double)got) < 1e-6);
    }
    for (int i = 0; i < D; i++)
        assert_true(fabs(central_difference(e, &e->weight[i]) -
                         (double)invar_test_get(&n.dweight, 0, i)) < 2e-6);
    free(e);
    norm_free(&n);
}

/* ---- with a rotation ------------------------------------------------------------------------- */

static invar_tensor as_rows(const invar_tensor *t)
{
    invar_tensor rows = invar_tensor_2d(t->data, t->dtype, t->shape[0], t->shape[1] * t->shape[2]);

    rows.row_stride = t->row_stride;
    return rows;
}

/* Runs the norm and the rotation as two ops. */
static void run_norm_then_rope(const invar_device *dev, const norm *n, const invar_rope_args *r)
{
    norm_run(dev, n);
    assert_ok(
        invar_rope_fwd(dev, &(invar_rope_fwd_args){n->y, n->y, r->positions, r->cosine, r->sine}));
}

static void test_rmsnorm__rotation_matches_rope(void **state)
{
    static const invar_dtype types[] = {INVAR_DTYPE_F32, INVAR_DTYPE_BF16};
    enum { POSITIONS = 5 };

    for (int i = 0; i < 2; i++) {
        norm separate = norm_new(types[i], INVAR_DTYPE_F32, T, H, D), fused = separate;
        invar_tensor rotated_dy = invar_test_tensor(separate.dy),
                     residual_copy = invar_test_tensor(separate.dx);
        invar_rope_args r = {
            .positions = invar_test_tensor(invar_tensor_1d(NULL, INVAR_DTYPE_I32, T)),
            .cosine = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, POSITIONS, D / 2)),
            .sine = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, POSITIONS, D / 2))};

        invar_test_fill_index(&r.positions, 5, POSITIONS);
        invar_test_fill_normal(&r.cosine, 6, 1.0f);
        invar_test_fill_normal(&r.sine, 7, 1.0f);
        fused.y = invar_test_tensor(separate.y);
        fused.dx = invar_test_tensor(separate.dx);
        fused.dweight = invar_test_tensor(separate.dweight);
        invar_test_fill_normal(&fused.dweight, 4, 1.0f);
        assert_ok(invar_rmsnorm_fwd(
            *state, &(invar_rmsnorm_fwd_args){fused.y, fused.x, fused.weight, EPS, r}));
        invar_test_fill_normal(&fused.dx, 8, 1.0f);
        invar_test_fill_normal(&residual_copy, 8, 1.0f);
        assert_ok(invar_rmsnorm_bwd(*state, &(invar_rmsnorm_bwd_args){.dx = fused.dx,
                                                                      .dweight = fused.dweight,
                                                                      .dy = fused.dy,
                                                                      .x = fused.x,
                                                                      .weight = fused.weight,
                                                                      .units = {fused.start, 2},
                                                                      .eps = EPS,
                                                                      .rotation = r,
                                                                      .residual = fused.dx}));
        assert_ok(invar_rope_bwd(*state, &(invar_rope_bwd_args){rotated_dy, separate.dy,
                                                                r.positions, r.cosine, r.sine}));
        separate.dy = rotated_dy;
        run_norm_then_rope(*state, &separate, &r);
        assert_ok(
            invar_add(*state, &(invar_add_args){as_rows(&separate.dx), as_rows(&residual_copy),
                                                as_rows(&separate.dx)}));
        invar_assert_bits_tensor(&fused.y, &separate.y, "rotated y");
        invar_assert_bits_tensor(&fused.dx, &separate.dx, "dx of a rotated y");
        invar_assert_bits_tensor(&fused.dweight, &separate.dweight, "dweight of a rotated y");
        separate.dy = fused.dy;
        norm_free(&separate);
        invar_test_free(&fused.y, &fused.dx, &fused.dweight, &rotated_dy, &residual_copy,
                        &r.positions, &r.cosine, &r.sine);
    }
}

/* ---- bad arguments --------------------------------------------------------------------------- */

static void test_rmsnorm__rejects_bad_arguments(void **state)
{
    static const int64_t start[] = {0, 3}, all[] = {0, 4};
    float data[64] = {0};
    uint16_t half[64] = {0};
    invar_tensor x = invar_tensor_3d(data, INVAR_DTYPE_F32, 4, 2, 8), none = {0};
    invar_tensor row = invar_tensor_2d(data, INVAR_DTYPE_F32, 1, 8);
    invar_tensor x16 = invar_tensor_3d(half, INVAR_DTYPE_BF16, 4, 2, 8);
    invar_tensor w = invar_tensor_1d(data, INVAR_DTYPE_F32, 8);
    invar_tensor w16 = invar_tensor_1d(half, INVAR_DTYPE_BF16, 8);
    invar_tensor matrix = invar_tensor_2d(data, INVAR_DTYPE_F32, 4, 16);
    invar_tensor empty = invar_tensor_3d(data, INVAR_DTYPE_F32, 4, 2, 0);
    int32_t positions[] = {0, 0, 1, 2};
    float angles[16] = {0};
    invar_tensor table = invar_tensor_2d(angles, INVAR_DTYPE_F32, 2, 4);
    invar_rope_args rotation = {.positions = none};

#define FWD(...)                                                                                   \
    invar_rmsnorm_fwd(*state, &(invar_rmsnorm_fwd_args){__VA_ARGS__, .rotation = rotation})
    assert_invalid(FWD(x, none, w, EPS), "rmsnorm.fwd: x: missing");
    assert_invalid(FWD(x, matrix, w, EPS), "rmsnorm.fwd: x: rank 2");
    assert_invalid(FWD(x, empty, w, EPS), "rmsnorm.fwd: x: nothing to normalise over");
    assert_invalid(FWD(x16, x, w, EPS), "rmsnorm.fwd: y is bf16 but x is f32");
    assert_invalid(FWD(x, x, w16, EPS), "rmsnorm.fwd: weight: type bf16");
    assert_invalid(FWD(x, x, invar_tensor_1d(data, INVAR_DTYPE_F32, 7), EPS),
                   "rmsnorm.fwd: weight: extent 7");
    assert_invalid(FWD(x, x, w, 0.0f), "rmsnorm.fwd: eps: 0");
    assert_invalid(FWD(x, x, w, NAN), "rmsnorm.fwd: eps: nan");
#define BWD(dx, dweight, ...)                                                                      \
    invar_rmsnorm_bwd(                                                                             \
        *state, &(invar_rmsnorm_bwd_args){dx, dweight, .dy = __VA_ARGS__, .rotation = rotation})
    assert_invalid(BWD(x16, w, x, x, w, {start, 1}, EPS), "rmsnorm.bwd: dx is bf16 but x is f32");
    assert_invalid(BWD(x, w, x16, x, w, {start, 1}, EPS), "rmsnorm.bwd: dy is bf16 but x is f32");
    assert_invalid(BWD(x, w16, x, x, w, {start, 1}, EPS), "rmsnorm.bwd: dweight: type bf16");
    assert_invalid(BWD(x, w, x, x, w, {start, 1}, EPS),
                   "rmsnorm.bwd: units: segments cover rows 0 to 3");
    assert_invalid(BWD(x, w, x, x, none, {start, 1}, EPS), "rmsnorm.bwd: weight: missing");
    assert_invalid(BWD(x, w, x, x, w, {start, 1}, -1.0f), "rmsnorm.bwd: eps: -1");
    assert_invalid(BWD(x, none, x, x, w, {start, 1}, EPS, .residual = x16),
                   "rmsnorm.bwd: residual is bf16 but x is f32");
    assert_invalid(BWD(x, none, x, x, w, {start, 1}, EPS, .residual = matrix),
                   "rmsnorm.bwd: residual");
    assert_invalid(BWD(x, none, x, x, w, {all, 1}, EPS, .block_sums = matrix),
                   "rmsnorm.bwd: block_sums: extent 4 of index 0; expected 1");
    assert_invalid(BWD(x, w, x, x, w, {all, 1}, EPS, .block_sums = row),
                   "rmsnorm.bwd: block_sums: not beside dweight");
    assert_invalid(BWD(x, none, x, x, w, {start, 1}, EPS, .block_sums = row),
                   "rmsnorm.bwd: units: segments cover rows 0 to 3");
    rotation.cosine = table;
    assert_invalid(FWD(x, x, w, EPS), "rmsnorm.fwd: a rotation without positions");
    rotation.positions = invar_tensor_1d(positions, INVAR_DTYPE_I32, 4);
    assert_invalid(FWD(x, x, w, EPS), "rmsnorm.fwd: sine is none but cosine is f32");
    rotation.sine = table;
    assert_invalid(FWD(x, x, w, EPS), "rmsnorm.fwd: positions: value 2");
    assert_invalid(BWD(x, none, x, x, w, {start, 1}, EPS), "rmsnorm.bwd: positions: value 2");
    rotation.cosine = rotation.sine = invar_tensor_2d(angles, INVAR_DTYPE_F32, 3, 5);
    assert_invalid(FWD(x, x, w, EPS), "rmsnorm.fwd: cosine: extent 5");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rmsnorm__bits_match_reference),
        cmocka_unit_test(test_rmsnorm__shards_of_heads),
        cmocka_unit_test(test_rmsnorm__block_sums),
        cmocka_unit_test(test_rmsnorm__controls_differ),
        cmocka_unit_test(test_rmsnorm__dx_does_not_depend_on_dweight),
        cmocka_unit_test(test_rmsnorm__squares_that_overflow_are_nan),
        cmocka_unit_test(test_rmsnorm__accuracy_vs_f64),
        cmocka_unit_test(test_rmsnorm__gradients_vs_finite_differences),
        cmocka_unit_test(test_rmsnorm__rotation_matches_rope),
        cmocka_unit_test(test_rmsnorm__rejects_bad_arguments),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
