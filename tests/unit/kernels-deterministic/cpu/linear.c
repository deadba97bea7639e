/*
 * linear.c - tests of the linear layers against a naive form of their expression, and float64.
 *
 * The naive form computes one output element at a time: the reference dot-step or fmaf, in order of
 * k, atom by atom into logical shards, which are then folded. It shares no code with the tiles and
 * panels of the op, nor with its shard boundaries. By default every shape, number of shards, format
 * and numerics runs, but not every combination.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "kernels-deterministic/math/bf16.h"
#include "kernels-deterministic/step/step.h"
#include "kernels-deterministic/tensor_row.h"
#include "tests/formats.h"

static invar_tensor make_normal_2d(invar_dtype dtype, int64_t rows, int64_t cols, uint64_t seed)
{
    invar_tensor t = invar_test_strided(invar_tensor_2d(NULL, dtype, rows, cols), 3);

    invar_test_fill_normal(&t, seed, 1.0f);
    return t;
}

/* Returns random values in the format `dtype`. */
static invar_tensor make_operand(const invar_device *dev, const invar_test_format *f,
                                 invar_dtype dtype, int64_t rows, int64_t cols, bool weight,
                                 uint64_t seed)
{
    invar_tensor plain = make_normal_2d(f->storage, rows, cols, seed), q;

    if (dtype == f->storage)
        return plain;
    q = invar_test_quantized(dev, &plain, dtype, weight);
    invar_test_free(&plain);
    return q;
}

/* ---- the naive form -------------------------------------------------------------------------- */

/* An operand that is read by (row, k), possibly transposed. */
typedef struct naive_operand {
    const invar_tensor *t;
    bool transposed;
} naive_operand;

static float value_at(naive_operand o, int64_t row, int64_t k)
{
    float value[2];
    int64_t r = o.transposed ? k : row, c = o.transposed ? row : k;

    // int4 is read in pairs
    invar_tensor_row_load(value, o.t, r, c & ~INT64_C(1), c % 2 + 1);
    return value[c % 2];
}

static float scale_of(naive_operand o, int64_t row, int64_t k)
{
    return o.transposed ? invar_tensor_row_fp8_scale(o.t, k, row)
                        : invar_tensor_row_fp8_scale(o.t, row, k);
}

static float step_bf16(float acc, const float *a, const float *b)
{
    uint16_t x[INVAR_STEP_BF16], y[INVAR_STEP_BF16];
    uint32_t bits;

    for (int p = 0; p < INVAR_STEP_BF16; p++) {
        x[p] = invar_bf16_from_f32(a[p]);
        y[p] = invar_bf16_from_f32(b[p]);
    }
    memcpy(&bits, &acc, sizeof bits);
    bits = invar_step_sm90_bf16_ref(bits, x, y);
    memcpy(&acc, &bits, sizeof bits);
    return acc;
}

static uint8_t byte_at(naive_operand o, int64_t row, int64_t k)
{
    int64_t r = o.transposed ? k : row, c = o.transposed ? row : k;

    return ((const uint8_t *)o.t->data)[r * o.t->row_stride + c];
}

/* One dot-step over the values from k on, padded with zeros from `end` on. */
static float step_e4m3(float acc, naive_operand a, int64_t i, naive_operand b, int64_t j, int64_t k,
                       int64_t end)
{
    uint8_t x[INVAR_STEP_FP8] = {0}, y[INVAR_STEP_FP8] = {0};
    uint32_t bits;

    for (int p = 0; p < INVAR_STEP_FP8 && k + p < end; p++) {
        x[p] = byte_at(a, i, k + p);
        y[p] = byte_at(b, j, k + p);
    }
    memcpy(&bits, &acc, sizeof bits);
    bits = invar_step_sm90_e4m3_ref(bits, x, y);
    memcpy(&acc, &bits, sizeof bits);
    return acc;
}

/* Continues a chain over k values [k0, k0 + n). */
static float naive_chain(float acc, const invar_device *dev, naive_operand a, int64_t i,
                         naive_operand b, int64_t j, int64_t k0, int64_t n)
{
    bool fp8 = a.t->dtype == INVAR_DTYPE_FP8;
    bool sm90 = dev->numerics == INVAR_NUMERICS_SM90 && a.t->dtype != INVAR_DTYPE_F32;
    int64_t group = !sm90 ? 1 : fp8 ? INVAR_STEP_FP8 : INVAR_STEP_BF16;
    float partial = 0.0f;

    for (int64_t k = 0; k < n; k += group) {
        float x[INVAR_STEP_BF16] = {0}, y[INVAR_STEP_BF16] = {0};
        float *chain = fp8 ? &partial : &acc;
        for (int64_t p = 0; p < group && p < INVAR_STEP_BF16 && k + p < n; p++) {
            x[p] = value_at(a, i, k0 + k + p);
            y[p] = value_at(b, j, k0 + k + p);
        }
        if (!sm90)
            *chain = fmaf(x[0], y[0], *chain);
        else
            *chain = fp8 ? step_e4m3(*chain, a, i, b, j, k0 + k, k0 + n) : step_bf16(*chain, x, y);
        if (fp8 && ((k + group) % INVAR_FP8_BLOCK == 0 || k + group >= n)) {
            acc = fmaf(partial, scale_of(a, i, k0 + k) * scale_of(b, j, k0 + k), acc);
            partial = 0.0f;
        }
    }
    return acc;
}

/* Continues the chain of every shard over its atoms of k. */
static void naive_shards(float *shard, int32_t shards, int64_t atom, const invar_device *dev,
                         naive_operand a, int64_t i, naive_operand b, int64_t j, int64_t k)
{
    int64_t n = (k + atom - 1) / atom;

    for (int64_t index = 0; index < n; index++) {
        float *chain = &shard[index * shards / n];
        int64_t left = k - index * atom;
        *chain = naive_chain(*chain, dev, a, i, b, j, index * atom, left < atom ? left : atom);
    }
}

/* Adds shards as a binary tree: ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)). */
static float fold_shards(const float *shard, int32_t n)
{
    return n == 1 ? shard[0] : fold_shards(shard, n / 2) + fold_shards(shard + n / 2, n / 2);
}

/* ---- forward --------------------------------------------------------------------------------- */

static void check_forward(invar_numerics numerics, const invar_test_format *f, int64_t m, int64_t n,
                          int64_t k, int32_t k_shards, int64_t atom, invar_dtype out)
{
    invar_linear_fwd_args args = {.k_shards = k_shards, .k_atom = atom};
    invar_device dev;
    invar_tensor x, w, y, expected, bias;

    invar_test_device_init(&dev, numerics, INVAR_CPU_PATH_SIMD, 1);
    x = make_operand(&dev, f, f->x, m, k, false, 1);
    w = make_operand(&dev, f, f->w, n, k, true, 2);
    bias = invar_test_tensor(invar_tensor_1d(NULL, f->storage, n));
    invar_test_fill_normal(&bias, 3, 1.0f);
    y = invar_test_strided(invar_tensor_2d(NULL, out, m, n), 5);
    expected = invar_test_tensor(invar_tensor_2d(NULL, out, m, n));
    args.y = y, args.x = x, args.w = w, args.bias = bias;
    assert_ok(invar_linear_fwd(&dev, &args));
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float shard[INVAR_LINEAR_MAX_SHARDS] = {0};
            naive_shards(shard, k_shards, atom, &dev, (naive_operand){&x, false}, i,
                         (naive_operand){&w, false}, j, k);
            invar_test_set(&expected, i, j,
                           (fold_shards(shard, k_shards) + 0.0f) + invar_test_get(&bias, j, 0));
        }
    invar_assert_bits_tensor(&y, &expected, f->name);
    invar_test_free(&x, &w, &y, &expected, &bias);
    invar_test_device_release(&dev);
}

static void test_linear_fwd__equals_the_expression(void **state)
{
    // 8 atoms; 11 atoms; 6 atoms with a short last one; 3 atoms, fewer than shards
    static const struct {
        int64_t m, k, atom;
        invar_dtype out;
    } sizes[] = {{2, 1024, 128, INVAR_DTYPE_BF16},
                 {1, 1408, 128, INVAR_DTYPE_F32},
                 {1, 1408, 256, INVAR_DTYPE_F32},
                 {2, 384, 128, INVAR_DTYPE_F32}};

    (void)state;
    for (int numerics = 0; numerics < INVAR_NUMERICS_COUNT; numerics++)
        for (int f = 0; f < INVAR_TEST_FORMATS; f++)
            for (int32_t shards = 1, i = f + numerics; shards <= 8; shards *= 2, i++)
                for (int s = 0; s < 4; s++)
                    if (invar_test_full() || s == i % 4)
                        check_forward((invar_numerics)numerics, &invar_test_formats[f], sizes[s].m,
                                      128, sizes[s].k, shards, sizes[s].atom, sizes[s].out);
}

/* Sizes that are not divisible by a tile, a dot-step or a scale block. */
static void test_linear_fwd__equals_the_expression_at_uneven_sizes(void **state)
{
    // the last size has more than one tile in each direction
    static const struct {
        int64_t m, n, k;
        int32_t shards;
        int64_t atom; /* used for formats without scale blocks */
    } sizes[] = {{1, 1, 1, 1, 16}, {13, 29, 37, 8, 16}, {5, 33, 271, 4, 48}, {245, 261, 19, 1, 16}};

    (void)state;
    for (int numerics = 0; numerics < INVAR_NUMERICS_COUNT; numerics++)
        for (int f = 0; f < INVAR_TEST_FORMATS; f++) {
            const invar_test_format *format = &invar_test_formats[f];
            int64_t block = invar_dtype_scale_block(format->x);
            if (format->w == INVAR_DTYPE_INT4)
                continue; // needs complete groups
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
                if (invar_test_full() || i < 3 || f % 2 == numerics) // the last size is large
                    check_forward((invar_numerics)numerics, format, sizes[i].m, sizes[i].n,
                                  sizes[i].k, sizes[i].shards, block ? block : sizes[i].atom,
                                  INVAR_DTYPE_F32);
        }
}

/* ---- dx -------------------------------------------------------------------------------------- */

static void check_dx(invar_numerics numerics, const invar_test_format *f, const int64_t *widths,
                     int32_t n_parts, int64_t k, int32_t k_shards)
{
    const int64_t m = 2;
    invar_device dev;
    invar_linear_dx_args args = {
        .n_parts = n_parts, .k_shards = k_shards, .k_atom = {128, 128, 256}};
    invar_tensor expected = invar_test_tensor(invar_tensor_2d(NULL, f->storage, m, k));

    invar_test_device_init(&dev, numerics, INVAR_CPU_PATH_SIMD, 1);
    args.dx = invar_test_tensor(invar_tensor_2d(NULL, f->storage, m, k));
    for (int32_t p = 0; p < n_parts; p++) {
        args.parts[p].dy = make_operand(&dev, f, f->x, m, widths[p], false, 10 + (uint64_t)p);
        args.parts[p].w = make_operand(&dev, f, f->w, widths[p], k, true, 20 + (uint64_t)p);
    }
    assert_ok(invar_linear_dx(&dev, &args));
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < k; j++) {
            float shard[INVAR_LINEAR_MAX_SHARDS] = {0};
            for (int32_t p = 0; p < n_parts; p++)
                naive_shards(shard, k_shards, args.k_atom[p], &dev,
                             (naive_operand){&args.parts[p].dy, false}, i,
                             (naive_operand){&args.parts[p].w, true}, j, widths[p]);
            invar_test_set(&expected, i, j, fold_shards(shard, k_shards) + 0.0f);
        }
    invar_assert_bits_tensor(&args.dx, &expected, f->name);
    for (int32_t p = 0; p < n_parts; p++)
        invar_test_free(&args.parts[p].dy, &args.parts[p].w);
    invar_test_free(&args.dx, &expected);
    invar_test_device_release(&dev);
}

static void test_linear_dx__equals_the_expression(void **state)
{
    (void)state;
    for (int numerics = 0; numerics < INVAR_NUMERICS_COUNT; numerics++)
        for (int f = 0; f < INVAR_TEST_FORMATS; f++)
            for (int32_t parts = 1; parts <= 3; parts += 2)
                for (int32_t shards = 1, i = 0; shards <= 8; shards *= parts > 1 ? 2 : 8, i++) {
                    if (!invar_test_full() && i % 2 != (f + numerics) % 2)
                        continue;
                    // 11 atoms, 3 atoms, and 3 atoms with a short last one; sharded part by part
                    check_dx((invar_numerics)numerics, &invar_test_formats[f],
                             (const int64_t[]){1408, 384, 640}, parts, 128, shards);
                }
}

/* The last scale block of a part is short, and the next part begins a new one. */
static void test_linear_dx__equals_the_expression_at_uneven_sizes(void **state)
{
    (void)state;
    for (int numerics = 0; numerics < INVAR_NUMERICS_COUNT; numerics++)
        for (int f = 0; f < INVAR_TEST_FORMATS; f++) {
            const invar_test_format *format = &invar_test_formats[f];
            if (format->w == INVAR_DTYPE_INT4)
                continue; // needs complete groups
            for (int32_t shards = 1; shards <= 4; shards *= 4)
                check_dx((invar_numerics)numerics, format, (const int64_t[]){336, 48, 61}, 3, 147,
                         shards);
            if (format->w == INVAR_DTYPE_FP8)
                check_dx((invar_numerics)numerics, format, (const int64_t[]){130, 3, 67}, 3, 5, 1);
        }
}

/* ---- dw -------------------------------------------------------------------------------------- */

static void test_linear_dw__equals_the_expression(void **state)
{
    static const int64_t starts[] = {0, 1, 18, 18, 50, 70};
    const invar_row_offsets units = {starts, 5};
    const int64_t t = 70, n = 19, k = 23;

    (void)state;
    for (int numerics = 0; numerics < INVAR_NUMERICS_COUNT; numerics++)
        for (int f = 0; f < INVAR_TEST_STORAGE_FORMATS; f++) {
            invar_device dev;
            invar_tensor dy = make_normal_2d(invar_test_formats[f].storage, t, n, 1);
            invar_tensor x = make_normal_2d(invar_test_formats[f].storage, t, k, 2);
            invar_tensor dw = invar_test_strided(invar_tensor_2d(NULL, INVAR_DTYPE_F32, n, k), 2);
            invar_tensor expected;

            invar_test_fill_normal(&dw, 3, 1.0f); // dw is added to earlier micro-batches
            expected = invar_test_copy(&dw);
            invar_test_device_init(&dev, (invar_numerics)numerics, INVAR_CPU_PATH_SIMD, 1);
            assert_ok(invar_linear_dw(
                &dev, &(invar_linear_dw_args){.dw = dw, .dy = dy, .x = x, .units = units}));
            for (int64_t i = 0; i < n; i++)
                for (int64_t j = 0; j < k; j++)
                    for (int64_t u = 0; u < units.count; u++) {
                        float unit = naive_chain(0.0f, &dev, (naive_operand){&dy, true}, i,
                                                 (naive_operand){&x, true}, j, starts[u],
                                                 starts[u + 1] - starts[u]);
                        if (starts[u + 1] > starts[u])
                            invar_test_set(&expected, i, j,
                                           invar_test_get(&expected, i, j) + (unit + 0.0f));
                    }
            invar_assert_bits_tensor(&dw, &expected, invar_test_formats[f].name);
            invar_test_free(&dy, &x, &dw, &expected);
            invar_test_device_release(&dev);
        }
}

/* ---- accuracy -------------------------------------------------------------------------------- */

/*
 * Bounds |error| against float64, relative to sum |x_i w_i|. In the worst case f32 loses 2^-24 per
 * product, and sm90 2^-25 of the largest term per dot-step; fp8 partial sums keep 13 fraction bits.
 */
static void test_linear_fwd__accuracy_vs_f64(void **state)
{
    (void)state;
    for (int numerics = 0; numerics < INVAR_NUMERICS_COUNT; numerics++)
        for (int f = 0; f < INVAR_TEST_FORMATS; f++) {
            bool fp8 = invar_test_formats[f].x == INVAR_DTYPE_FP8;
            bool int4 = invar_test_formats[f].w == INVAR_DTYPE_INT4;
            const int64_t m = invar_test_count(2, 6), n = 130, k = int4 ? 2048 : 2009;
            double bound = fp8 && numerics == INVAR_NUMERICS_SM90 ? 2e-3 : 2e-5;
            invar_device dev;
            invar_tensor x, w, y;

            invar_test_device_init(&dev, (invar_numerics)numerics, INVAR_CPU_PATH_SIMD, 1);
            x = make_operand(&dev, &invar_test_formats[f], invar_test_formats[f].x, m, k, false, 1);
            w = make_operand(&dev, &invar_test_formats[f], invar_test_formats[f].w, n, k, true, 2);
            y = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, m, n));
            assert_ok(invar_linear_fwd(
                &dev, &(invar_linear_fwd_args){.y = y, .x = x, .w = w, .k_shards = 1}));
            for (int64_t i = 0; i < m; i++)
                for (int64_t j = 0; j < n; j++) {
                    double sum = 0.0, size = 0.0, error;
                    for (int64_t p = 0; p < k; p++) {
                        naive_operand a = {&x, false}, b = {&w, false};
                        double term = (double)value_at(a, i, p) * (double)value_at(b, j, p);
                        if (fp8)
                            term *= (double)scale_of(a, i, p) * (double)scale_of(b, j, p);
                        sum += term;
                        size += fabs(term);
                    }
                    error = fabs((double)invar_test_get(&y, i, j) - sum) / size;
                    if (error > bound)
                        fail_msg("%s %s: (%d, %d) is off by %g", invar_test_formats[f].name,
                                 invar_numerics_name(dev.numerics), (int)i, (int)j, error);
                }
            invar_test_free(&x, &w, &y);
            invar_test_device_release(&dev);
        }
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void test_linear__rejects_bad_arguments(void **state)
{
    float data[16 * 128] = {0}, written[8 * 8] = {0};
    uint8_t bytes[256 * 128] = {0};
    invar_tensor f = invar_tensor_2d(data, INVAR_DTYPE_F32, 4, 8);
    invar_tensor b = invar_tensor_2d(data, INVAR_DTYPE_BF16, 4, 8);
    invar_tensor out = invar_tensor_2d(written, INVAR_DTYPE_F32, 4, 4);
    invar_tensor q = invar_tensor_quantized(bytes, data, INVAR_DTYPE_FP8, 1, 4, 128);
    const int64_t good[] = {0, 4}, backwards[] = {0, 3, 2}, short_of[] = {0, 3};
    invar_linear_fwd_args fwd = {.y = out, .x = f, .w = f, .k_shards = 1}, bad;
    invar_linear_dx_args dx = {.dx = invar_tensor_2d(written, INVAR_DTYPE_F32, 4, 8),
                               .parts = {{invar_tensor_2d(data, INVAR_DTYPE_F32, 4, 4), f}},
                               .n_parts = 1,
                               .k_shards = 1},
                         bad_dx;
    invar_linear_dw_args dw = {.dw = invar_tensor_2d(written, INVAR_DTYPE_F32, 8, 8),
                               .dy = f,
                               .x = f,
                               .units = {good, 1}},
                         bad_dw;
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    assert_ok(invar_linear_fwd(&dev, &fwd));
    bad = fwd, bad.x.rank = 3;
    assert_fails(invar_linear_fwd(&dev, &bad), INVAR_E_INVALID, "linear.fwd: x: rank 3");
    bad = fwd, bad.x.data = NULL;
    assert_fails(invar_linear_fwd(&dev, &bad), INVAR_E_INVALID, "linear.fwd: x: no data");
    bad = fwd, bad.x.row_stride = 7;
    assert_fails(invar_linear_fwd(&dev, &bad), INVAR_E_INVALID, "linear.fwd: x: row stride 7");
    bad = fwd, bad.x.shape[0] = -1;
    assert_fails(invar_linear_fwd(&dev, &bad), INVAR_E_INVALID, "linear.fwd: x: extent -1");
    bad = fwd, bad.x.shape[1] = bad.x.row_stride = INT64_MAX;
    assert_fails(invar_linear_fwd(&dev, &bad), INVAR_E_INVALID, "linear.fwd: x: ");
    bad = fwd, bad.w = b;
    assert_fails(invar_linear_fwd(&dev, &bad), INVAR_E_INVALID, "linear.fwd: w: no product of f32");
    bad = fwd, bad.w.shape[1] = 7;
    assert_fails(invar_linear_fwd(&dev, &bad), INVAR_E_INVALID, "linear.fwd: w: extent 7");
    bad = fwd, bad.y.shape[1] = 3;
    assert_fails(invar_linear_fwd(&dev, &bad), INVAR_E_INVALID, "linear.fwd: y: extent 3");
    bad = fwd, bad.y.dtype = INVAR_DTYPE_NONE;
    assert_fails(invar_linear_fwd(&dev, &bad), INVAR_E_INVALID, "linear.fwd: y: missing");
    bad = fwd, bad.k_shards = 3;
    assert_fails(invar_linear_fwd(&dev, &bad), INVAR_E_INVALID, "linear.fwd: k_shards: 3 shards");
    bad = fwd, bad.k_shards = 16;
    assert_fails(invar_linear_fwd(&dev, &bad), INVAR_E_INVALID, "a power of two up to 8");
    bad = fwd, bad.x = bad.w = b, bad.k_shards = 2, bad.k_atom = 8;
    assert_fails(invar_linear_fwd(&dev, &bad), INVAR_E_INVALID,
                 "linear.fwd: k_atom: 8 values; a chain of these types is cut into shards at"
                 " multiples of 16");
    bad.k_atom = 16; // a single short atom
    assert_ok(invar_linear_fwd(&dev, &bad));
    bad.k_atom = -16;
    assert_fails(invar_linear_fwd(&dev, &bad), INVAR_E_INVALID, "linear.fwd: k_atom: -16 values");
    bad = fwd, bad.bias = invar_tensor_1d(data, INVAR_DTYPE_F32, 5);
    assert_fails(invar_linear_fwd(&dev, &bad), INVAR_E_INVALID, "linear.fwd: bias: extent 5");
    bad = fwd, bad.x = bad.w = q;
    assert_fails(invar_linear_fwd(&dev, &bad), INVAR_E_INVALID, "weights take 128x128 scales");
    bad.x.scale = NULL;
    assert_fails(invar_linear_fwd(&dev, &bad), INVAR_E_INVALID, "x: an fp8 tensor without scales");
    bad = fwd, bad.x = bad.w = q, bad.x.scale_rows = 0;
    assert_fails(invar_linear_fwd(&dev, &bad), INVAR_E_INVALID, "x: scales of 0 rows; expected 1");
    bad = fwd, bad.x = b, bad.w = invar_tensor_quantized(bytes, data, INVAR_DTYPE_INT4, 1, 4, 8);
    assert_fails(invar_linear_fwd(&dev, &bad), INVAR_E_INVALID, "int4 needs a multiple of 32");
    bad = fwd, bad.x = bad.w = q, bad.w.scale_rows = 128, bad.w.scale_period = 3;
    assert_fails(invar_linear_fwd(&dev, &bad), INVAR_E_INVALID, "scales that begin anew after 3");
    bad.w.scale_period = -1;
    assert_fails(invar_linear_fwd(&dev, &bad), INVAR_E_INVALID,
                 "after -1 rows; expected 0 or more");
    bad = fwd, bad.x = bad.w = q, bad.x.scale_period = 2;
    assert_fails(invar_linear_fwd(&dev, &bad), INVAR_E_INVALID, "x: scales begin anew after 2");

    assert_ok(invar_linear_dx(&dev, &dx));
    bad_dx = dx, bad_dx.n_parts = 4;
    assert_fails(invar_linear_dx(&dev, &bad_dx), INVAR_E_INVALID, "linear.dx: n_parts: 4");
    bad_dx = dx, bad_dx.parts[0].w = out;
    assert_fails(invar_linear_dx(&dev, &bad_dx), INVAR_E_INVALID, "linear.dx: w: extent 4");
    bad_dx = dx, bad_dx.dx = b, bad_dx.n_parts = 2;
    bad_dx.parts[0] = bad_dx.parts[1] =
        (invar_linear_part){invar_tensor_2d(data, INVAR_DTYPE_BF16, 4, 4), b};
    assert_fails(invar_linear_dx(&dev, &bad_dx), INVAR_E_INVALID, "needs a multiple of 16");

    bad_dw = dw, bad_dw.units = (invar_row_offsets){backwards, 2};
    assert_fails(invar_linear_dw(&dev, &bad_dw), INVAR_E_INVALID, "linear.dw: units: segment 1");
    bad_dw = dw, bad_dw.fresh = 2;
    assert_fails(invar_linear_dw(&dev, &bad_dw), INVAR_E_INVALID, "linear.dw: fresh: ");
    bad_dw = dw, bad_dw.units = (invar_row_offsets){short_of, 1};
    assert_fails(invar_linear_dw(&dev, &bad_dw), INVAR_E_INVALID, "cover rows 0 to 3");
    bad_dw = dw, bad_dw.dy = b;
    assert_fails(invar_linear_dw(&dev, &bad_dw), INVAR_E_INVALID, "dy is bf16 but x is f32");
    invar_test_device_release(&dev);
}

/* The tree is folded while shards are computed: twice as many shards need one more tile. */
static void test_linear__scratch_of_shards(void **state)
{
    float data[64] = {0}, result[64];
    invar_tensor t = invar_tensor_2d(data, INVAR_DTYPE_F32, 8, 8);
    invar_tensor out = invar_tensor_2d(result, INVAR_DTYPE_F32, 8, 8);
    invar_linear_fwd_args fwd = {.y = out, .x = t, .w = t, .k_atom = 1};
    invar_linear_dx_args dx = {.dx = out, .parts = {{t, t}}, .n_parts = 1, .k_atom = {1}};
    size_t bytes[4], dx_bytes[4];
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    dev.backend = invar_backend_cpu(); // a GPU has other scratch
    for (int i = 0; i < 4; i++) {
        fwd.k_shards = dx.k_shards = 1 << i;
        assert_ok(invar_op_workspace(&bytes[i], &dev, INVAR_OP_LINEAR_FWD, &fwd));
        assert_ok(invar_op_workspace(&dx_bytes[i], &dev, INVAR_OP_LINEAR_DX, &dx));
    }
    assert_true(bytes[1] > bytes[0]);
    for (size_t i = 1; i < 4; i++) {
        assert_int_equal(bytes[i] - bytes[0], i * (bytes[1] - bytes[0]));
        assert_int_equal(dx_bytes[i], bytes[i]);
    }
    invar_test_device_release(&dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_fwd__equals_the_expression),
        cmocka_unit_test(test_linear_fwd__equals_the_expression_at_uneven_sizes),
        cmocka_unit_test(test_linear_dx__equals_the_expression),
        cmocka_unit_test(test_linear_dx__equals_the_expression_at_uneven_sizes),
        cmocka_unit_test(test_linear_dw__equals_the_expression),
        cmocka_unit_test(test_linear_fwd__accuracy_vs_f64),
        cmocka_unit_test(test_linear__rejects_bad_arguments),
        cmocka_unit_test(test_linear__scratch_of_shards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
