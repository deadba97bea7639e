/*
 * quantize.c - tests of fp8, mxfp8 and int4 against references that search for the nearest code.
 *
 * A linear layer on packed weights (rollout) must have the bits of one on their dequantized values
 * (training).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels-deterministic/math/bf16.h"
#include "tests/ops.h"

typedef struct format {
    const char *name;
    invar_dtype dtype;
    int32_t scale_rows;
    int64_t block;
} format;

static const format formats[] = {{"fp8 1x128", INVAR_DTYPE_FP8, 1, 128},
                                 {"fp8 128x128", INVAR_DTYPE_FP8, 128, 128},
                                 {"mxfp8", INVAR_DTYPE_MXFP8, 1, 32},
                                 {"int4", INVAR_DTYPE_INT4, 1, 32}};

enum { FORMATS = sizeof formats / sizeof *formats };

static invar_tensor quantized_new(const format *f, int64_t rows, int64_t cols, int64_t gap)
{
    return invar_test_strided(
        invar_tensor_quantized(NULL, NULL, f->dtype, f->scale_rows, rows, cols), gap);
}

/* ---- references ------------------------------------------------------------------------------ */

/* Returns the value of a code below 0x7F, which has no sign. */
static double e4m3_value(int code)
{
    int exponent = code >> 3, fraction = code & 7;

    return exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);
}

/* Returns the code nearest to x, the even one of two equally near; saturates. */
static uint8_t e4m3_ref(double x)
{
    double a = fabs(x);
    int code = 0;

    while (code < 0x7E && a > e4m3_value(code + 1))
        code++;
    if (code < 0x7E) {
        double below = a - e4m3_value(code), above = e4m3_value(code + 1) - a;
        if (above < below || (above == below && code % 2 == 1))
            code++;
    }
    return (uint8_t)(code | (signbit(x) ? 0x80 : 0));
}

/* End of the scale block at (row, first). The last block may be smaller. */
static int64_t end_row(const invar_tensor *x, const format *f, int64_t row)
{
    return row + f->scale_rows < x->shape[0] ? row + f->scale_rows : x->shape[0];
}

static int64_t end_col(const invar_tensor *x, const format *f, int64_t first)
{
    return first + f->block < x->shape[1] ? first + f->block : x->shape[1];
}

static double block_amax(const invar_tensor *x, const format *f, int64_t row, int64_t first)
{
    double amax = 0.0;

    for (int64_t r = row; r < end_row(x, f, row); r++)
        for (int64_t i = first; i < end_col(x, f, first); i++)
            amax = fmax(amax, fabs((double)invar_test_get(x, r, i)));
    return amax;
}

/* Returns the number of scales of a row. */
static int64_t scales_per_row(const invar_tensor *q, int64_t block)
{
    return (q->shape[1] + block - 1) / block;
}

static void fp8_block_ref(const invar_tensor *q, const invar_tensor *x, const format *f,
                          int64_t row, int64_t first)
{
    float s = (float)fmax(block_amax(x, f, row, first), 0x1p-96) / 448.0f;

    ((float *)q->scale)[row / f->scale_rows * scales_per_row(q, 128) + first / 128] = s;
    for (int64_t r = row; r < end_row(x, f, row); r++)
        for (int64_t i = first; i < end_col(x, f, first); i++)
            ((uint8_t *)q->data)[r * q->row_stride + i] =
                e4m3_ref((double)(invar_test_get(x, r, i) / s));
}

static void mxfp8_block_ref(const invar_tensor *q, const invar_tensor *x, const format *f,
                            int64_t row, int64_t first)
{
    double amax = block_amax(x, f, row, first);
    int e = -118;

    while (e < 118 && ldexp(448.0, e) < amax)
        e++;
    ((uint8_t *)q->scale)[row * scales_per_row(q, 32) + first / 32] = (uint8_t)(e + 127);
    for (int64_t i = first; i < end_col(x, f, first); i++)
        ((uint8_t *)q->data)[row * q->row_stride + i] =
            e4m3_ref(ldexp((double)invar_test_get(x, row, i), -e));
}

static void int4_block_ref(const invar_tensor *q, const invar_tensor *x, const format *f,
                           int64_t row, int64_t first)
{
    float s = invar_round_bf16(fmaxf((float)block_amax(x, f, row, first) / 7.0f, 0x1p-24f));
    uint8_t *packed = (uint8_t *)q->data + row * q->row_stride / 2;

    ((uint16_t *)q->scale)[row * scales_per_row(q, 32) + first / 32] = invar_bf16_from_f32(s);
    for (int64_t i = first; i < first + 32; i += 2) {
        float even = fminf(fmaxf(nearbyintf(invar_test_get(x, row, i) / s), -7.0f), 7.0f);
        float odd = fminf(fmaxf(nearbyintf(invar_test_get(x, row, i + 1) / s), -7.0f), 7.0f);
        packed[i / 2] = (uint8_t)(((int)even + 8) | ((int)odd + 8) << 4);
    }
}

static void quantize_ref(const invar_tensor *q, const invar_tensor *x, const format *f)
{
    for (int64_t row = 0; row < x->shape[0]; row += f->scale_rows)
        for (int64_t first = 0; first < x->shape[1]; first += f->block) {
            if (f->dtype == INVAR_DTYPE_FP8)
                fp8_block_ref(q, x, f, row, first);
            else if (f->dtype == INVAR_DTYPE_MXFP8)
                mxfp8_block_ref(q, x, f, row, first);
            else
                int4_block_ref(q, x, f, row, first);
        }
}

/* Returns the scale at (row, col). */
static double scale_ref(const invar_tensor *q, int64_t row, int64_t col)
{
    int64_t block = q->dtype == INVAR_DTYPE_FP8 ? 128 : 32;
    int64_t index = row / q->scale_rows * scales_per_row(q, block) + col / block;

    if (q->dtype == INVAR_DTYPE_FP8)
        return (double)((float *)q->scale)[index];
    if (q->dtype == INVAR_DTYPE_MXFP8)
        return ldexp(1.0, ((uint8_t *)q->scale)[index] - 127);
    return (double)invar_f32_from_bf16(((uint16_t *)q->scale)[index]);
}

/* Returns the dequantized value at (row, col). */
static double value_ref(const invar_tensor *q, int64_t row, int64_t col)
{
    double scale = scale_ref(q, row, col);
    uint8_t code;

    if (q->dtype == INVAR_DTYPE_INT4) {
        code = ((uint8_t *)q->data)[(row * q->row_stride + col) / 2];
        code = col % 2 ? code >> 4 : code & 15;
        return (double)invar_round_bf16((float)((code - 8) * scale));
    }
    code = ((uint8_t *)q->data)[row * q->row_stride + col];
    return (code & 0x80 ? -e4m3_value(code & 0x7F) : e4m3_value(code)) * scale;
}

/* ---- quantize and dequantize ----------------------------------------------------------------- */

/* Fills rows with very different magnitudes, including zeros, subnormals and huge numbers. */
static void fill_rows(const invar_tensor *x)
{
    static const float scales[] = {1.0f,   0.02f,  0.0f,  1e-20f, 0x1p-90f,
                                   1e-38f, 1e-44f, 1e20f, 3e38f,  448.0f};

    for (int64_t r = 0; r < x->shape[0]; r++) {
        invar_tensor row = invar_tensor_rows(x, r, 1);
        float scale = x->shape[0] > 100 ? scales[r / 128 % 10] : scales[r % 10];
        invar_test_fill_normal(&row, (uint64_t)r + 1, fminf(scale, 1e38f));
    }
}

/* Returns a number of columns with a smaller last scale block, if the format permits one. */
static int64_t partial_columns(const format *f, int64_t cols)
{
    return f->dtype == INVAR_DTYPE_INT4 ? cols : cols - 15;
}

static void test_quantize__bits_match_reference(void **state)
{
    for (int f = 0; f < FORMATS; f++)
        for (int i = 0; i < 4; i++) {
            int d = i % 2;
            int64_t rows = formats[f].scale_rows == 128 ? 10 * 128 - i / 2 * 29 : 20;
            int64_t cols = i < 2 ? 384 : partial_columns(&formats[f], 384);
            invar_tensor x =
                invar_test_strided(invar_tensor_2d(NULL, invar_test_storage[d], rows, cols), 3);
            invar_tensor got = quantized_new(&formats[f], rows, cols, 10);
            invar_tensor expected = quantized_new(&formats[f], rows, cols, 0);

            fill_rows(&x);
            assert_ok(invar_quantize(*state, &(invar_quantize_args){got, x}));
            quantize_ref(&expected, &x, &formats[f]);
            invar_assert_bits_tensor(&got, &expected, formats[f].name);
            invar_test_free(&x, &got, &expected);
        }
}

static void test_quantize__rounds_to_bf16(void **state)
{
    static const float special[] = {0.0f,    -0.0f,     INFINITY,  -INFINITY, NAN,
                                    FLT_MAX, 0x1p-149f, 0x1.01p0f, 0x1.03p0f};
    enum { SPECIAL = sizeof special / sizeof *special };
    const int64_t sizes[][2] = {{1, 1}, {3, 7}, {5, 8}, {2, 5000}, {1, 100001}, {0, 4}, {4, 0}};

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t rows = sizes[i][0], cols = sizes[i][1];
        invar_tensor x =
            invar_test_strided(invar_tensor_2d(NULL, INVAR_DTYPE_F32, rows, cols), (int64_t)i % 3);
        invar_tensor q =
            invar_test_strided(invar_tensor_2d(NULL, INVAR_DTYPE_BF16, rows, cols), (int64_t)i % 2);

        invar_test_fill_normal(&x, i, 1.0f);
        for (int64_t j = 0; j < SPECIAL && rows > 0 && j < cols; j++)
            invar_test_set(&x, rows - 1, cols - 1 - j, special[j]);
        assert_ok(invar_quantize(*state, &(invar_quantize_args){q, x}));
        for (int64_t j = 0; j < rows * cols; j++)
            assert_int_equal(
                ((const uint16_t *)q.data)[j / cols * q.row_stride + j % cols],
                invar_bf16_from_f32(((const float *)x.data)[j / cols * x.row_stride + j % cols]));
        invar_test_free(&x, &q);
    }
}

static void test_dequantize__bits_match_reference(void **state)
{
    for (int f = 0; f < FORMATS; f++)
        for (int d = 0; d < 2; d++) {
            int64_t rows = 250, cols = partial_columns(&formats[f], 640);
            invar_tensor source =
                invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, rows, cols));
            invar_tensor q = quantized_new(&formats[f], rows, cols, 6);
            invar_tensor view = invar_tensor_2d(NULL, invar_test_storage[d], rows, cols);
            invar_tensor got = invar_test_strided(view, 1), expected = invar_test_tensor(view);

            invar_test_fill_normal(&source, 1, 3.0f);
            assert_ok(invar_quantize(*state, &(invar_quantize_args){q, source}));
            for (int64_t i = 0; i < rows * cols; i++)
                invar_test_set(&expected, i / cols, i % cols,
                               (float)value_ref(&q, i / cols, i % cols));
            assert_ok(invar_dequantize(*state, &(invar_dequantize_args){got, q}));
            invar_assert_bits_tensor(&got, &expected, formats[f].name);
            invar_test_free(&source, &q, &got, &expected);
        }
}

static void test_quantize__accuracy_vs_f64(void **state)
{
    // error relative to the value: half an ulp of e4m3; for int4, rounding the product to bf16
    static const double relative[FORMATS] = {0x1.01p-4, 0x1.01p-4, 0x1p-4, 0x1.01p-8};
    // error relative to the scale: half the smallest e4m3 value; for int4, half a step, and a
    // little more, because amax / s may slightly exceed 7
    static const double of_scale[FORMATS] = {0x1.01p-10, 0x1.01p-10, 0x1p-10, 0.52};

    for (int f = 0; f < FORMATS; f++) {
        invar_tensor x = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 128, 256));
        invar_tensor dequantized =
            invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 128, 256));
        invar_tensor q = quantized_new(&formats[f], 128, 256, 0);

        invar_test_fill_normal(&x, 1, 1.0f);
        assert_ok(invar_quantize(*state, &(invar_quantize_args){q, x}));
        assert_ok(invar_dequantize(*state, &(invar_dequantize_args){dequantized, q}));
        for (int64_t i = 0; i < 128 * 256; i++) {
            double value = (double)invar_test_get(&x, i / 256, i % 256);
            double error = fabs((double)invar_test_get(&dequantized, i / 256, i % 256) - value);
            assert_true(error <=
                        relative[f] * fabs(value) + of_scale[f] * scale_ref(&q, i / 256, i % 256));
        }
        invar_test_free(&x, &dequantized, &q);
    }
}

/* ---- edges ----------------------------------------------------------------------------------- */

/* Quantizes a block of `value` and zeros. Returns the first code, and the scale in *scale. */
static uint8_t first_code(const invar_device *dev, const format *f, float value, void *scale,
                          size_t scale_bytes)
{
    invar_tensor x = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 1, f->block));
    invar_tensor q = quantized_new(f, 1, f->block, 0);
    uint8_t code;

    invar_test_fill(&x, 0.0f);
    invar_test_set(&x, 0, 0, value);
    assert_ok(invar_quantize(dev, &(invar_quantize_args){q, x}));
    code = *(uint8_t *)q.data;
    memcpy(scale, q.scale, scale_bytes);
    invar_test_free(&x, &q);
    return code;
}

static void test_quantize__boundary_values(void **state)
{
    static const struct {
        float value;
        uint8_t code;
        uint8_t scale; /* E8M0 code */
    } mx[] = {{0.0f, 0x00, 9},
              {-0.0f, 0x80, 9},
              {0x1p-149f, 0x00, 9},
              {448.0f, 0x7E, 127},
              {0x1.c00002p8f, 0x76, 128},
              {-448.0f, 0xFE, 127},
              {0x1.bffffep8f, 0x7E, 127},
              {1.0f, 0x78, 119},
              {FLT_MAX, 0x7E, 245},
              {0x1.cp-110f, 0x7E, 9}};
    static const struct {
        float value;
        uint8_t code;
        float scale;
    } fp8[] = {{0.0f, 0x00, 0x1p-96f / 448.0f},
               {0x1p-96f, 0x7E, 0x1p-96f / 448.0f},
               {0x1p-97f, 0x76, 0x1p-96f / 448.0f},
               {448.0f, 0x7E, 1.0f},
               {-448.0f, 0xFE, 1.0f},
               {FLT_MAX, 0x7E, FLT_MAX / 448.0f},
               {0x1p-140f, 0x00, 0x1p-96f / 448.0f}};
    static const struct {
        float value;
        uint8_t code;
        float scale;
    } int4[] = {{0.0f, 0x88, 0x1p-24f},     {7.0f, 0x8F, 1.0f},
                {-7.0f, 0x81, 1.0f},        {0x1p-24f, 0x89, 0x1p-24f},
                {0x1p-25f, 0x88, 0x1p-24f}, {0x1.8p-24f, 0x8A, 0x1p-24f}};
    uint8_t e8m0;
    uint16_t bf16;
    float f32;

    for (size_t i = 0; i < sizeof mx / sizeof *mx; i++) {
        assert_int_equal(first_code(*state, &formats[2], mx[i].value, &e8m0, 1), mx[i].code);
        assert_int_equal(e8m0, mx[i].scale);
    }
    for (size_t i = 0; i < sizeof fp8 / sizeof *fp8; i++) {
        assert_int_equal(first_code(*state, &formats[0], fp8[i].value, &f32, 4), fp8[i].code);
        assert_true(f32 == fp8[i].scale);
    }
    for (size_t i = 0; i < sizeof int4 / sizeof *int4; i++) {
        assert_int_equal(first_code(*state, &formats[3], int4[i].value, &bf16, 2), int4[i].code);
        assert_true(invar_f32_from_bf16(bf16) == int4[i].scale);
    }
}

/* A NaN or infinity makes all dequantized values of its scale block not finite, and no others. */
static void test_quantize__not_finite_values_stay_visible(void **state)
{
    static const float faults[] = {NAN, INFINITY, -INFINITY};

    for (int f = 0; f < FORMATS; f++)
        for (int k = 0; k < 3; k++) {
            int64_t rows = 2 * formats[f].scale_rows, cols = 2 * formats[f].block;
            invar_tensor x = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, rows, cols));
            invar_tensor q = quantized_new(&formats[f], rows, cols, 0);

            invar_test_fill_normal(&x, 1, 1.0f);
            invar_test_set(&x, 0, formats[f].block, faults[k]);
            assert_ok(invar_quantize(*state, &(invar_quantize_args){q, x}));
            assert_ok(invar_dequantize(*state, &(invar_dequantize_args){x, q}));
            for (int64_t i = 0; i < rows * cols; i++) {
                bool hit = i / cols < formats[f].scale_rows && i % cols >= formats[f].block;
                assert_int_equal(isfinite(invar_test_get(&x, i / cols, i % cols)), !hit);
            }
            invar_test_free(&x, &q);
        }
}

/* All codes under all scales of the clamp range. */
static void test_dequantize__mxfp8_is_exact_in_bf16(void **state)
{
    enum { SCALES = 245 - 9 + 1 };
    invar_tensor q = quantized_new(&formats[2], SCALES, 256, 0);
    invar_tensor half = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_BF16, SCALES, 256));

    for (int64_t r = 0; r < SCALES; r++)
        for (int64_t i = 0; i < 256; i++) {
            ((uint8_t *)q.data)[r * 256 + i] = (uint8_t)i;
            ((uint8_t *)q.scale)[r * 8 + i / 32] = (uint8_t)(9 + r);
        }
    assert_ok(invar_dequantize(*state, &(invar_dequantize_args){half, q}));
    for (int64_t r = 0; r < SCALES; r++)
        for (int64_t i = 0; i < 256; i++)
            if ((i & 0x7F) == 0x7F)
                assert_true(isnan(invar_test_get(&half, r, i)));
            else
                assert_true((double)invar_test_get(&half, r, i) == value_ref(&q, r, i));
    invar_test_free(&q, &half);
}

/* Experts in one tensor with scale_period have the codes and scales of separate tensors. */
static void test_quantize__scale_period_separates_experts(void **state)
{
    static const int64_t widths[] = {1, 100, 128, 200, 256};

    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        int64_t width = widths[i], experts = 3, cols = 150;
        invar_tensor x =
            invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, experts * width, cols));
        invar_tensor view =
            invar_tensor_quantized(NULL, NULL, INVAR_DTYPE_FP8, 128, experts * width, cols);
        invar_tensor all, dequantized = invar_test_copy(&x),
                          dequantized_experts = invar_test_copy(&x);

        view.scale_period = (int32_t)width;
        all = invar_test_tensor(view);
        invar_test_fill_normal(&x, i, 1.0f);
        assert_ok(invar_quantize(*state, &(invar_quantize_args){all, x}));
        assert_ok(invar_dequantize(*state, &(invar_dequantize_args){dequantized, all}));
        for (int64_t e = 0; e < experts; e++) {
            invar_tensor expected = quantized_new(&formats[1], width, cols, 0);
            invar_tensor got = invar_tensor_rows(&all, e * width, width);
            assert_ok(invar_quantize(
                *state, &(invar_quantize_args){expected, invar_tensor_rows(&x, e * width, width)}));
            invar_assert_bits_tensor(&got, &expected, "an expert");
            assert_ok(invar_dequantize(
                *state, &(invar_dequantize_args){
                            invar_tensor_rows(&dequantized_experts, e * width, width), expected}));
            invar_test_free(&expected);
        }
        invar_assert_bits_tensor(&dequantized, &dequantized_experts, "back");
        invar_test_free(&x, &all, &dequantized, &dequantized_experts);
    }
}

/* ---- rollout and training -------------------------------------------------------------------- */

/* A linear layer on packed weights gives the bits of one on the dequantized bf16 weights. */
static void test_quantize__rollout_equals_training(void **state)
{
    for (int f = 2; f < FORMATS; f++) {
        const int64_t T = 5, N = 40, K = partial_columns(&formats[f], 96);
        invar_tensor master = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, N, K));
        invar_tensor w = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_BF16, N, K));
        invar_tensor x = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_BF16, T, K));
        invar_tensor packed = quantized_new(&formats[f], N, K, 0), packed_x = x;
        invar_tensor training = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, T, N));
        invar_tensor rollout = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, T, N));

        invar_test_fill_normal(&master, 1, 0.1f);
        invar_test_fill_normal(&x, 2, 1.0f);
        assert_ok(invar_quantize(*state, &(invar_quantize_args){packed, master}));
        assert_ok(invar_dequantize(*state, &(invar_dequantize_args){w, packed}));
        if (formats[f].dtype == INVAR_DTYPE_MXFP8) { // activations are mxfp8 too
            packed_x = quantized_new(&formats[f], T, K, 0);
            assert_ok(invar_quantize(*state, &(invar_quantize_args){packed_x, x}));
            assert_ok(invar_dequantize(*state, &(invar_dequantize_args){x, packed_x}));
        }
        assert_ok(invar_linear_fwd(
            *state, &(invar_linear_fwd_args){.y = training, .x = x, .w = w, .k_shards = 1}));
        assert_ok(invar_linear_fwd(
            *state,
            &(invar_linear_fwd_args){.y = rollout, .x = packed_x, .w = packed, .k_shards = 1}));
        invar_assert_bits_tensor(&rollout, &training, formats[f].name);
        if (packed_x.data != x.data)
            invar_test_free(&packed_x);
        invar_test_free(&master, &w, &x, &packed, &training, &rollout);
    }
}

/* ---- bad arguments --------------------------------------------------------------------------- */

static void test_quantize__rejects_bad_arguments(void **state)
{
    float data[256] = {0};
    uint8_t codes[256] = {0};
    invar_tensor x = invar_tensor_2d(data, INVAR_DTYPE_F32, 2, 128), none = {0}, wrong;
    invar_tensor x48 = invar_tensor_2d(data, INVAR_DTYPE_F32, 2, 48);
    invar_tensor fp8 = invar_tensor_quantized(codes, data, INVAR_DTYPE_FP8, 1, 2, 128);
    invar_tensor int4 = invar_tensor_quantized(codes, data, INVAR_DTYPE_INT4, 1, 2, 48);

#define QUANTIZE(...) invar_quantize(*state, &(invar_quantize_args){__VA_ARGS__})
#define DEQUANTIZE(...) invar_dequantize(*state, &(invar_dequantize_args){__VA_ARGS__})
    assert_invalid(QUANTIZE(x, x), "quantise: q: type f32");
    assert_invalid(QUANTIZE(fp8, fp8), "quantise: x: type fp8");
    assert_invalid(QUANTIZE(none, x), "quantise: q: missing");
    assert_invalid(QUANTIZE(fp8, x48), "quantise: q: extent 128 of index 1; expected 48");
    assert_invalid(QUANTIZE(int4, x48), "quantise: q: 48 columns; int4 needs a multiple of 32");
    wrong = fp8;
    wrong.scale = NULL;
    assert_invalid(QUANTIZE(wrong, x), "quantise: q: an fp8 tensor without scales");
    wrong = fp8;
    wrong.scale_rows = 2;
    assert_invalid(DEQUANTIZE(x, wrong), "dequantise: q: scales of 2 rows");
    wrong = invar_tensor_quantized(codes, data, INVAR_DTYPE_INT4, 1, 2, 128);
    wrong.row_stride = 129;
    assert_invalid(DEQUANTIZE(x, wrong), "dequantise: q: int4 rows must start on a byte");
    assert_invalid(DEQUANTIZE(fp8, fp8), "dequantise: x: type fp8");
    assert_invalid(DEQUANTIZE(x48, fp8), "dequantise: x: extent 48");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantize__bits_match_reference),
        cmocka_unit_test(test_quantize__rounds_to_bf16),
        cmocka_unit_test(test_dequantize__bits_match_reference),
        cmocka_unit_test(test_quantize__accuracy_vs_f64),
        cmocka_unit_test(test_quantize__boundary_values),
        cmocka_unit_test(test_quantize__not_finite_values_stay_visible),
        cmocka_unit_test(test_quantize__scale_period_separates_experts),
        cmocka_unit_test(test_dequantize__mxfp8_is_exact_in_bf16),
        cmocka_unit_test(test_quantize__rollout_equals_training),
        cmocka_unit_test(test_quantize__rejects_bad_arguments),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
