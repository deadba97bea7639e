/*
 * cases_linear.c - conversions, quantization and linear layers against PyTorch.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdio.h>

#include "kernels-deterministic/math/bf16.h"
#include "kernels-deterministic/math/mx.h"
#include "tests/formats.h"
#include "tests/oracle/ops/cases.h"

/* ---- conversions ----------------------------------------------------------------------------- */

/*
 * Compares all 256 codes of a format. Any NaN is accepted for a NaN, because Invar chooses its own.
 */
static void convert_codes(const invar_oracle_run *r, const char *name, float (*convert)(uint8_t))
{
    const float *expected = invar_oracle_data(r, name, INVAR_ORACLE_F32, 256);

    for (int code = 0; code < 256; code++) {
        float got = convert((uint8_t)code);
        if (isnan(expected[code]))
            assert_true(isnan(got));
        else
            invar_assert_bits_f32(&got, &expected[code], 1, name);
    }
}

static float from_e4m3(uint8_t x)
{
    return invar_f32_from_e4m3(x);
}

static float from_e5m2(uint8_t x)
{
    return invar_f32_from_e5m2(x);
}

static float from_e8m0(uint8_t x)
{
    return invar_f32_from_e8m0(x);
}

void invar_oracle_convert(invar_oracle_run *r)
{
    const invar_oracle_tensor *x = invar_oracle_fixture(r, "x");
    const float *values = invar_oracle_data(r, "x", INVAR_ORACLE_F32, x->count);
    const uint16_t *bf16 = invar_oracle_data(r, "bf16", INVAR_ORACLE_BF16, x->count);
    const uint8_t *e4m3 = invar_oracle_data(r, "e4m3", INVAR_ORACLE_U8, x->count);
    const uint8_t *e5m2 = invar_oracle_data(r, "e5m2", INVAR_ORACLE_U8, x->count);

    for (int64_t i = 0; i < x->count; i++) {
        float value = values[i];
        if (isnan(value)) {
            assert_true(isnan(invar_round_bf16(value)));
            assert_true(isnan(from_e4m3(invar_e4m3_from_f32(value))));
            assert_true(isnan(from_e5m2(invar_e5m2_from_f32(value))));
            continue;
        }
        assert_int_equal(invar_bf16_from_f32(value), bf16[i]);
        assert_int_equal(invar_e4m3_from_f32(value), e4m3[i]);
        assert_int_equal(invar_e5m2_from_f32(value), e5m2[i]);
    }
    convert_codes(r, "from_e4m3", from_e4m3);
    convert_codes(r, "from_e5m2", from_e5m2);
    convert_codes(r, "from_e8m0", from_e8m0);
}

/* ---- quantization ---------------------------------------------------------------------------- */

static invar_tensor quantized(invar_oracle_run *r, const invar_tensor *x, invar_dtype dtype,
                              bool weight)
{
    return invar_oracle_add_owned(r, invar_test_quantized(&r->dev, x, dtype, weight));
}

/* Compares codes and scales. `scales` has the columns per scale and the bytes of a scale. */
static void expect_quantized(const invar_oracle_run *r, const char *name, const invar_tensor *q)
{
    static const struct {
        int64_t block;
        size_t size;
    } scales[INVAR_DTYPE_COUNT] = {[INVAR_DTYPE_FP8] = {INVAR_FP8_BLOCK, 4},
                                   [INVAR_DTYPE_MXFP8] = {INVAR_MX_BLOCK, 1},
                                   [INVAR_DTYPE_INT4] = {INVAR_INT4_BLOCK, 2}};
    int64_t blocks = q->shape[0] / q->scale_rows * (q->shape[1] / scales[q->dtype].block);
    char scale[48];

    invar_oracle_expect_equal(r, name, q);
    snprintf(scale, sizeof scale, "%s.scale", name);
    invar_oracle_expect_bits(r, scale, q->scale, (size_t)blocks * scales[q->dtype].size);
}

void invar_oracle_quantize(invar_oracle_run *r)
{
    static const invar_dtype formats[] = {INVAR_DTYPE_FP8, INVAR_DTYPE_MXFP8, INVAR_DTYPE_INT4};
    invar_tensor x = invar_oracle_input(r, "x");

    for (int i = 0; i < 3; i++) {
        invar_tensor q = quantized(r, &x, formats[i], false),
                     back = invar_oracle_output_like(r, &x);
        const char *name = invar_dtype_name(formats[i]);
        char back_name[32];

        expect_quantized(r, name, &q);
        assert_ok(invar_dequantize(&r->dev, &(invar_dequantize_args){.x = back, .q = q}));
        snprintf(back_name, sizeof back_name, "%s.back", name);
        invar_oracle_expect_equal(r, back_name, &back);
    }
}

/* ---- f32 and bf16 ---------------------------------------------------------------------------- */

static void forward(invar_oracle_run *r, const invar_tensor *x, const invar_tensor *w,
                    const invar_tensor *bias)
{
    for (int32_t shards = 1; shards <= 4; shards *= 2) {
        invar_tensor y = invar_oracle_storage(r, x->shape[0], w->shape[0]);
        invar_linear_fwd_args args = {
            .y = y, .x = *x, .w = *w, .k_shards = shards, .k_atom = x->shape[1] / shards};

        assert_ok(invar_linear_fwd(&r->dev, &args));
        invar_oracle_expect(r, "linear.fwd", "y_without_bias", &y, INVAR_ORACLE_ROUNDED);
        invar_oracle_reject(r, "y", &y, INVAR_ORACLE_ROUNDED);
        args.bias = *bias;
        assert_ok(invar_linear_fwd(&r->dev, &args));
        invar_oracle_expect(r, "linear.fwd", "y", &y, INVAR_ORACLE_ROUNDED);
    }
}

/* Compares dx in one part, and in two parts that share the input, like gate and up. */
static void input_gradient(invar_oracle_run *r, const invar_tensor *dy, const invar_tensor *w)
{
    int64_t half = dy->shape[1] / 2;
    invar_tensor dx = invar_oracle_storage(r, dy->shape[0], w->shape[1]);
    invar_linear_dx_args args = {.dx = dx, .parts = {{*dy, *w}}, .n_parts = 1, .k_atom = {half}};

    for (args.k_shards = 1; args.k_shards <= 2; args.k_shards++) {
        assert_ok(invar_linear_dx(&r->dev, &args));
        invar_oracle_expect(r, "linear.dx", "dx", &dx, INVAR_ORACLE_ROUNDED);
    }
    args.k_shards = 1;
    args.n_parts = 2;
    for (int i = 0; i < 2; i++)
        args.parts[i] = (invar_linear_part){invar_tensor_columns(dy, i * half, half),
                                            invar_tensor_rows(w, i * half, half)};
    assert_ok(invar_linear_dx(&r->dev, &args));
    invar_oracle_expect(r, "linear.dx", "dx", &dx, INVAR_ORACLE_ROUNDED);
    // Control: the parts exchanged.
    args.parts[0].w = invar_tensor_rows(w, half, half);
    args.parts[1].w = invar_tensor_rows(w, 0, half);
    assert_ok(invar_linear_dx(&r->dev, &args));
    invar_oracle_reject(r, "dx", &dx, INVAR_ORACLE_ROUNDED);
}

void invar_oracle_linear(invar_oracle_run *r)
{
    invar_tensor x = invar_oracle_input(r, "x"), w = invar_oracle_input(r, "w");
    invar_tensor bias = invar_oracle_input(r, "bias"), dy = invar_oracle_input(r, "dy");
    invar_tensor dw = invar_oracle_sum(r, &w), dbias = invar_oracle_sum(r, &bias);
    invar_row_offsets units = invar_oracle_row_offsets(r, "units");

    forward(r, &x, &w, &bias);
    input_gradient(r, &dy, &w);
    assert_ok(invar_linear_dw(&r->dev,
                              &(invar_linear_dw_args){.dw = dw, .dy = dy, .x = x, .units = units}));
    invar_oracle_expect(r, "linear.dw", "dw", &dw, INVAR_ORACLE_IN_F32);
    assert_ok(
        invar_token_sum(&r->dev, &(invar_token_sum_args){.out = dbias, .x = dy, .units = units}));
    invar_oracle_expect(r, "token.sum", "dbias", &dbias, INVAR_ORACLE_IN_F32);
}

/* ---- low precision --------------------------------------------------------------------------- */

/*
 * The tensor core truncates the products of fp8 and their sum 13 bits below the largest exponent:
 * each of 33 terms loses up to 2^-13 of it, about half of that on average, and signs cancel. The
 * other formats multiply as bf16 does.
 */
#define FP8_SM90 ((invar_oracle_limit){{0x1p-9, 0x1p-11}, {0x1p-8 + 0x1p-9, 0x1p-8 + 0x1p-11}})

static invar_oracle_limit low_limit(const invar_oracle_run *r, invar_dtype w)
{
    bool cut = w == INVAR_DTYPE_FP8 && r->dev.numerics == INVAR_NUMERICS_SM90;

    return cut ? FP8_SM90 : INVAR_ORACLE_ROUNDED;
}

static void low_format(invar_oracle_run *r, const invar_test_format *f)
{
    invar_tensor w = invar_oracle_input(r, "w"), x = invar_oracle_input(r, "x");
    invar_tensor dy = invar_oracle_input(r, "dy");
    invar_tensor qw = quantized(r, &w, f->w, true);
    invar_tensor qx = quantized(r, &x, f->x, false), qdy = quantized(r, &dy, f->x, false);
    invar_tensor y = invar_oracle_storage(r, x.shape[0], w.shape[0]);
    invar_tensor dx = invar_oracle_storage(r, dy.shape[0], w.shape[1]);
    char name[32];

    snprintf(name, sizeof name, "%s.w", f->name);
    expect_quantized(r, name, &qw);
    assert_ok(invar_linear_fwd(
        &r->dev, &(invar_linear_fwd_args){
                     .y = y, .x = qx, .w = qw, .k_shards = 2, .k_atom = qx.shape[1] / 2}));
    snprintf(name, sizeof name, "%s.y", f->name);
    invar_oracle_expect(r, "linear.fwd", name, &y, low_limit(r, f->w));
    assert_ok(invar_linear_dx(
        &r->dev,
        &(invar_linear_dx_args){.dx = dx, .parts = {{qdy, qw}}, .n_parts = 1, .k_shards = 1}));
    snprintf(name, sizeof name, "%s.dx", f->name);
    invar_oracle_expect(r, "linear.dx", name, &dx, low_limit(r, f->w));
}

void invar_oracle_linear_low(invar_oracle_run *r)
{
    for (int i = INVAR_TEST_STORAGE_FORMATS; i < INVAR_TEST_FORMATS; i++)
        low_format(r, &invar_test_formats[i]);
}
