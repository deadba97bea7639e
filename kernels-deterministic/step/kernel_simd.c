/*
 * kernel_simd.c - micro-kernels on vectors.
 *
 * ieee: one accumulator vector per tile cell, one fused multiply-add per product.
 *
 * sm90: the tensor-core step on floats, exactly.
 *   - The product of two bf16 (or e4m3) is exact in f32.
 *   - E, the largest exponent of the group, comes from integer additions of stored exponents.
 *   - Multiplying by 2^(F-E) is exact, and converting to int32 truncates toward zero: this *is* the
 *     hardware's alignment of each term. Sixteen terms stay below 2^31, the sum is exact.
 *   - Converting the sum back under round-toward-zero is the hardware's final truncation, and
 *     multiplying by 2^(E-F) is exact again. So these kernels run with the rounding mode set.
 * This holds for groups with 27 <= E + 127 <= 248 and |sum| clear of 2^31, and for groups in which
 * every term is a zero, the accumulator included.
 * Below that range results could be subnormal, above it they could overflow; specials are encoded
 * as exponents that leave it. A group with a lane out of range goes to the reference, whole.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>

#include "kernels-deterministic/math/bf16.h"
#include "kernels-deterministic/step/kernel.h"
#include "kernels-deterministic/step/simd.h"
#include "kernels-deterministic/step/step.h"

#include "base/invar_banned.h"

#define W INVAR_VF_WIDTH

/* Loops over a tile's cells must vanish, or its accumulators do not stay in registers. */
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* ---- ieee ------------------------------------------------------------------------------------ */

#if defined(__aarch64__)
#define IEEE_ROWS 4 // 16 of 32 registers accumulate, one holds the operands of all rows
#define IEEE_VECTORS 4
#else
#define IEEE_ROWS 6 // 12 of 16 registers accumulate
#define IEEE_VECTORS 2
#endif
#define IEEE_COLS (IEEE_VECTORS * W)

/* One product more in every chain of one vector of columns. */
static inline void step_ieee(invar_vf c[IEEE_ROWS][IEEE_VECTORS], int v, invar_vf x, const float *a)
{
#if defined(__aarch64__)
    invar_vf s = invar_vf_load(a);

    c[0][v] = invar_vf_fma_lane(c[0][v], x, s, 0);
    c[1][v] = invar_vf_fma_lane(c[1][v], x, s, 1);
    c[2][v] = invar_vf_fma_lane(c[2][v], x, s, 2);
    c[3][v] = invar_vf_fma_lane(c[3][v], x, s, 3);
#else
    UNROLL
    for (int i = 0; i < IEEE_ROWS; i++)
        c[i][v] = invar_vf_fma(c[i][v], x, a[i]);
#endif
}

static void run_ieee(float *acc, int64_t ld, const float *a, const int16_t *a_exp, const float *b,
                     const int16_t *b_exp, int64_t k)
{
    invar_vf c[IEEE_ROWS][IEEE_VECTORS];

    (void)a_exp;
    (void)b_exp;
    UNROLL
    for (int i = 0; i < IEEE_ROWS; i++) {
        UNROLL
        for (int v = 0; v < IEEE_VECTORS; v++)
            c[i][v] = invar_vf_load(acc + i * ld + v * W);
    }
    for (int64_t p = 0; p < k; p++) {
        UNROLL
        for (int v = 0; v < IEEE_VECTORS; v++)
            step_ieee(c, v, invar_vf_load(b + p * IEEE_COLS + v * W), a + p * IEEE_ROWS);
    }
    UNROLL
    for (int i = 0; i < IEEE_ROWS; i++) {
        UNROLL
        for (int v = 0; v < IEEE_VECTORS; v++)
            invar_vf_store(acc + i * ld + v * W, c[i][v]);
    }
}

const invar_kernel invar_kernel_ieee_simd = {IEEE_ROWS, IEEE_COLS, 1, INVAR_KERNEL_NO_EXPONENTS,
                                             0,         run_ieee};

/*
 * Few rows: packing b would cost more than the products. W rows of b are loaded and transposed in
 * registers, W products at a time. Every loop but that over k has constant bounds at each call.
 */
static inline invar_vf fma_in_turn(invar_vf c, const invar_vf x[W], const float *a)
{
#if defined(__aarch64__)
    invar_vf s = invar_vf_load(a);

    c = invar_vf_fma_lane(c, x[0], s, 0);
    c = invar_vf_fma_lane(c, x[1], s, 1);
    c = invar_vf_fma_lane(c, x[2], s, 2);
    return invar_vf_fma_lane(c, x[3], s, 3);
#else
    UNROLL
    for (int r = 0; r < W; r++)
        c = invar_vf_fma(c, x[r], a[r]);
    return c;
#endif
}

#define DIRECT_VECTORS (INVAR_KERNEL_DIRECT_COLS / W)

static inline __attribute__((always_inline)) void run_direct(float *acc, int64_t ld, int rows,
                                                             const float *a, int64_t a_stride,
                                                             const invar_kernel_rows *b, bool bf16,
                                                             int64_t k)
{
    invar_vf c[INVAR_KERNEL_DIRECT_ROWS][DIRECT_VECTORS];
    int64_t p = 0;

    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int v = 0; v < DIRECT_VECTORS; v++)
            c[i][v] = invar_vf_load(acc + i * ld + v * W);
    }
    for (; p + W <= k; p += W) {
        UNROLL
        for (int v = 0; v < DIRECT_VECTORS; v++) {
            invar_vf x[W];
            UNROLL
            for (int r = 0; r < W; r++) {
                int64_t at = (v * W + r) * b->stride + p;
                x[r] = bf16 ? invar_vf_load_bf16((const uint16_t *)b->data + at)
                            : invar_vf_load((const float *)b->data + at);
            }
            invar_vf_transpose(x);
            UNROLL
            for (int i = 0; i < rows; i++)
                c[i][v] = fma_in_turn(c[i][v], x, a + i * a_stride + p);
        }
    }
    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int v = 0; v < DIRECT_VECTORS; v++)
            invar_vf_store(acc + i * ld + v * W, c[i][v]);
    }
    for (; p < k; p++)
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < INVAR_KERNEL_DIRECT_COLS; j++) {
                int64_t at = j * b->stride + p;
                float x = bf16 ? invar_f32_from_bf16(((const uint16_t *)b->data)[at])
                               : ((const float *)b->data)[at];
                acc[i * ld + j] = fmaf(a[i * a_stride + p], x, acc[i * ld + j]);
            }
}

void invar_kernel_ieee_direct(float *acc, int64_t ld, int rows, const float *a, int64_t a_stride,
                              const invar_kernel_rows *b, int64_t k)
{
    switch (rows * 2 + (b->bf16 != 0)) {
    case 2: run_direct(acc, ld, 1, a, a_stride, b, false, k); return;
    case 3: run_direct(acc, ld, 1, a, a_stride, b, true, k); return;
    case 4: run_direct(acc, ld, 2, a, a_stride, b, false, k); return;
    case 5: run_direct(acc, ld, 2, a, a_stride, b, true, k); return;
    case 6: run_direct(acc, ld, 3, a, a_stride, b, false, k); return;
    case 7: run_direct(acc, ld, 3, a, a_stride, b, true, k); return;
    case 8: run_direct(acc, ld, 4, a, a_stride, b, false, k); return;
    default: run_direct(acc, ld, 4, a, a_stride, b, true, k); return;
    }
}

/* ---- sm90 ------------------------------------------------------------------------------------ */

#define SM90_ROWS 8
#define SM90_COLS (2 * W)
/* Rows that share the loads of b, as many as registers allow. */
#if defined(__aarch64__)
#define BLOCK 4
#else
#define BLOCK 2
#endif

/* Exponents here carry the bias of f32, 127, as the field of an accumulator does. */
#define EXP_LOW 27
#define EXP_HIGH 248
#define EXP_NOTHING (-7000) /* at or below: every product of the group is a zero */

/* What one row and one vector of columns needs between the two passes over a group. */
typedef struct lane {
    invar_vf scale;   /* 2^(F-E) */
    invar_vf unscale; /* 2^(E-F) */
    invar_vi sum;
    invar_vi bad;
} lane;

static inline lane begin_group(invar_vf c, invar_vi products_exp, int fraction)
{
    invar_vi bits = invar_vi_from_bits(c);
    // a zero carries no exponent; a subnormal one below the range, unless a product is in it
    invar_vi zero = invar_vi_is_zero(invar_vi_shift_left(bits, 1));
    invar_vi c_exp = invar_vi_or(invar_vi_exponent(bits), invar_vi_shift_left(zero, 14));
    invar_vi exp = invar_vi_max(products_exp, c_exp);
    invar_vi used =
        invar_vi_min(invar_vi_max(exp, invar_vi_set1(EXP_LOW)), invar_vi_set1(EXP_HIGH));
    lane l;

    l.bad =
        invar_vi_and(invar_vi_sub(exp, used), invar_vi_greater(exp, invar_vi_set1(EXP_NOTHING)));
    l.scale = invar_vf_from_bits(
        invar_vi_shift_left(invar_vi_sub(invar_vi_set1(254 + fraction), used), 23));
    l.unscale =
        invar_vf_from_bits(invar_vi_shift_left(invar_vi_sub(used, invar_vi_set1(fraction)), 23));
    l.sum = invar_vi_set1(0);
    return l;
}

static inline void add_product(lane *l, invar_vf b, float a)
{
    l->sum = invar_vi_add(l->sum, invar_vi_truncate(invar_vf_mul(invar_vf_scale(b, a), l->scale)));
}

/* The aligned accumulator is below 2^26, so the full sum overflows only beyond this. */
#define SUM_LIMIT (INT32_MAX - (1 << 26))

static inline invar_vf end_group(lane *l, invar_vf c)
{
    l->bad = invar_vi_or(l->bad, invar_vi_greater(invar_vi_abs(l->sum), invar_vi_set1(SUM_LIMIT)));
    l->sum = invar_vi_add(l->sum, invar_vi_truncate(invar_vf_mul(c, l->scale)));
    return invar_vf_mul(invar_vf_convert(l->sum), l->unscale);
}

typedef void (*one_fn)(float *acc, const float *a, int64_t a_stride, const float *b,
                       int64_t b_stride);

/* `group`, `fraction` and `keep` are constants at every call, so each form is its own loop. */
static inline void run_sm90(float *acc, int64_t ld, const float *a, const int16_t *a_exp,
                            const float *b, const int16_t *b_exp, int64_t k, int group,
                            int fraction, int32_t keep, one_fn one)
{
    for (int64_t p0 = 0; p0 < k; p0 += group) {
        const float *ag = a + p0 * SM90_ROWS, *bg = b + p0 * SM90_COLS;
        const int16_t *aeg = a_exp + p0 * SM90_ROWS, *beg = b_exp + p0 * SM90_COLS;

        for (int i0 = 0; i0 < SM90_ROWS; i0 += BLOCK) {
            invar_vh exp[BLOCK];
            lane low[BLOCK], high[BLOCK];

            UNROLL
            for (int i = 0; i < BLOCK; i++)
                exp[i] = invar_vh_set1(2 * INVAR_KERNEL_EXP_ZERO);
            for (int p = 0; p < group; p++) {
                invar_vh be = invar_vh_load(beg + p * SM90_COLS);
                UNROLL
                for (int i = 0; i < BLOCK; i++)
                    exp[i] = invar_vh_max(
                        exp[i], invar_vh_add(be, invar_vh_set1(aeg[p * SM90_ROWS + i0 + i])));
            }
            UNROLL
            for (int i = 0; i < BLOCK; i++) {
                float *c = acc + (i0 + i) * ld;
                low[i] = begin_group(invar_vf_load(c), invar_vh_low(exp[i]), fraction);
                high[i] = begin_group(invar_vf_load(c + W), invar_vh_high(exp[i]), fraction);
            }
            for (int p = 0; p < group; p++) {
                invar_vf b0 = invar_vf_load(bg + p * SM90_COLS);
                invar_vf b1 = invar_vf_load(bg + p * SM90_COLS + W);
                UNROLL
                for (int i = 0; i < BLOCK; i++) {
                    float x = ag[p * SM90_ROWS + i0 + i];
                    add_product(&low[i], b0, x);
                    add_product(&high[i], b1, x);
                }
            }
            UNROLL
            for (int i = 0; i < BLOCK; i++) {
                float *c = acc + (i0 + i) * ld;
                invar_vf r0 = end_group(&low[i], invar_vf_load(c));
                invar_vf r1 = end_group(&high[i], invar_vf_load(c + W));
                if (invar_vi_any(invar_vi_or(low[i].bad, high[i].bad))) {
                    for (int j = 0; j < SM90_COLS; j++)
                        one(c + j, ag + i0 + i, SM90_ROWS, bg + j, SM90_COLS);
                    continue;
                }
                r0 = invar_vf_from_bits(invar_vi_and(invar_vi_from_bits(r0), invar_vi_set1(keep)));
                r1 = invar_vf_from_bits(invar_vi_and(invar_vi_from_bits(r1), invar_vi_set1(keep)));
                invar_vf_store(c, r0);
                invar_vf_store(c + W, r1);
            }
        }
    }
}

static void run_sm90_bf16(float *acc, int64_t ld, const float *a, const int16_t *a_exp,
                          const float *b, const int16_t *b_exp, int64_t k)
{
    run_sm90(acc, ld, a, a_exp, b, b_exp, k, INVAR_STEP_BF16, 25, -1, invar_kernel_sm90_bf16_one);
}

static void run_sm90_e4m3(float *acc, int64_t ld, const float *a, const int16_t *a_exp,
                          const float *b, const int16_t *b_exp, int64_t k)
{
    // the result keeps 13 of the 23 fraction bits
    run_sm90(acc, ld, a, a_exp, b, b_exp, k, INVAR_STEP_FP8, 13, -(1 << 10),
             invar_kernel_sm90_e4m3_one);
}

const invar_kernel invar_kernel_sm90_bf16_simd = {SM90_ROWS, SM90_COLS, INVAR_STEP_BF16,
                                                  -126,      1,         run_sm90_bf16};
const invar_kernel invar_kernel_sm90_e4m3_simd = {SM90_ROWS, SM90_COLS, INVAR_STEP_FP8,
                                                  -6,        1,         run_sm90_e4m3};
