/*
 * kernel_vectors.h - micro-kernels on the vectors of simd.h.
 *
 * Each source file that includes this is compiled with the flags of one vector width.
 *
 * ieee: one accumulator vector per tile cell, one fused multiply-add per product.
 *
 * sm90: the tensor-core step computed exactly in floats.
 *   - The product of two bf16 (or e4m3) is exact in f32.
 *   - E, the largest exponent of the group, comes from integer additions of stored exponents.
 *   - Multiplying by 2^(F-E) is exact, and converting to int32 truncates toward zero, as the
 *     hardware does when it aligns each term. Sixteen terms stay below 2^31, so the sum is exact.
 *   - Converting the sum back under round-toward-zero is the hardware's final truncation, and
 *     multiplying by 2^(E-F) is exact. So these kernels run with that rounding mode.
 * This is valid for groups with 27 <= E + 127 <= 248 and |sum| clear of 2^31, and for groups in
 * which every term is a zero, the accumulator included. Below that range results could be
 * subnormal, above it they could overflow. Rows with a lane out of range are computed by the
 * reference step.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_STEP_KERNEL_VECTORS_H
#define INVAR_KERNELS_STEP_KERNEL_VECTORS_H

#include "kernels-deterministic/step/kernel.h"
#include "kernels-deterministic/step/simd.h"
#include "kernels-deterministic/step/step.h"

#define W INVAR_VF_WIDTH

/* Loops over the cells of a tile must be unrolled, or the accumulators do not stay in registers. */
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* ---- ieee ------------------------------------------------------------------------------------ */

#if defined(__aarch64__)
#define IEEE_ROWS 4 // 16 of 32 registers accumulate, one holds the operands of all rows
#define IEEE_VECTORS 4
#elif INVAR_VF_WIDTH == 16
#define IEEE_ROWS 8 // 16 of 32 registers accumulate
#define IEEE_VECTORS 2
#else
#define IEEE_ROWS 6 // 12 of 16 registers accumulate
#define IEEE_VECTORS 2
#endif
#define IEEE_COLS (IEEE_VECTORS * W)

/* Adds one product to every chain of one vector of columns. */
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

static inline void run_ieee(float *acc, int64_t ld, const float *a, const int8_t *a_exp,
                            const float *b, const int8_t *b_exp, int64_t k)
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

/* ---- sm90 ------------------------------------------------------------------------------------ */

#define SM90_VECTORS 4 // one vector of exponents describes this many vectors of floats
#define SM90_COLS (SM90_VECTORS * W)
#define SM90_ROWS 8
/* Rows that share the loads of b: the maximum that registers allow. */
#if defined(__aarch64__) || INVAR_VF_WIDTH == 16
#define BLOCK 2
#else
#define BLOCK 1
#endif

/* The exponent field of a float: the biased exponent times 2^23. */
#define FIELD(exp) ((int32_t)((uint32_t)(exp) << 23))
#define EXP_LOW FIELD(27)
#define EXP_HIGH FIELD(248)
/* The aligned accumulator is below 2^26, so the full sum can overflow only above this limit. */
#define SUM_LIMIT (INT32_MAX - (1 << 26))

/* One row of a group between the pass over exponents and the end of the group. */
typedef struct group_row {
    invar_vf scale[SM90_VECTORS]; /* 2^(F-E) */
    invar_vi sum[SM90_VECTORS];
} group_row;

/* Extreme values over some lanes, to decide whether all are in range. */
typedef struct extremes {
    invar_vi low;  /* smallest E */
    invar_vi high; /* largest E */
    invar_vi sum;  /* largest sum in magnitude, without the accumulator */
} extremes;

static inline extremes no_extremes(void)
{
    extremes e = {invar_vi_set1(EXP_LOW), invar_vi_set1(EXP_HIGH), invar_vi_set1(0)};

    return e;
}

static inline bool out_of_range(extremes e)
{
    return invar_vi_any((e.low < EXP_LOW) | (e.high > EXP_HIGH) | (e.sum > SUM_LIMIT));
}

/* Returns E of one vector, from the exponents of its products and its accumulator. */
static inline invar_vi largest_exponent(invar_vi products, const float *c)
{
    return invar_vi_max(products, (invar_vi)invar_vf_load(c) & FIELD(255));
}

static inline void begin_group_row(group_row *g, extremes *e, const float *c, invar_vb products,
                                   int fraction)
{
    invar_vi exps[SM90_VECTORS];

    invar_vb_fields(exps, products);
    UNROLL
    for (int v = 0; v < SM90_VECTORS; v++) {
        invar_vi exp = largest_exponent(exps[v], c + v * W);
        // else a group of zeros would give -0
        invar_vi used = invar_vi_max(exp, invar_vi_set1(EXP_LOW));

        e->low = invar_vi_min(e->low, exp);
        e->high = invar_vi_max(e->high, exp);
        g->scale[v] = (invar_vf)invar_vi_sub(invar_vi_set1(FIELD(254 + fraction)), used);
        g->sum[v] = invar_vi_set1(0);
    }
}

static inline void add_products(group_row *g, const invar_vf b[SM90_VECTORS], float a)
{
    UNROLL
    for (int v = 0; v < SM90_VECTORS; v++)
        g->sum[v] = invar_vi_add(g->sum[v], invar_vi_truncate(b[v] * a * g->scale[v]));
}

/* Writes the new accumulators to r. */
static inline void end_group_row(invar_vf r[SM90_VECTORS], extremes *e, const group_row *g,
                                 const float *c, int32_t keep)
{
    UNROLL
    for (int v = 0; v < SM90_VECTORS; v++) {
        invar_vf unscale = (invar_vf)invar_vi_sub(invar_vi_set1(FIELD(254)), (invar_vi)g->scale[v]);
        invar_vi aligned = invar_vi_truncate(invar_vf_load(c + v * W) * g->scale[v]);

        e->sum = invar_vi_max(e->sum, invar_vi_abs(g->sum[v]));
        r[v] = invar_vf_convert(invar_vi_add(g->sum[v], aligned)) * unscale;
        r[v] = (invar_vf)((invar_vi)r[v] & keep);
    }
}

/*
 * Like out_of_range for one row, but without the lanes in which all terms, the accumulator
 * included, are zero: those lanes are in range.
 */
static __attribute__((noinline, unused)) bool row_out_of_range(invar_vb products, invar_vi sum,
                                                               const float *c, const float *a,
                                                               const float *b, int group)
{
    extremes e = no_extremes();
    invar_vi exps[SM90_VECTORS];

    e.sum = sum;
    invar_vb_fields(exps, products);
    for (int v = 0; v < SM90_VECTORS; v++) {
        invar_vi exp = largest_exponent(exps[v], c + v * W);
        invar_vi terms = (invar_vi)invar_vf_load(c + v * W);

        for (int p = 0; p < group; p++)
            if (a[p * SM90_ROWS] != 0.0f)
                terms |= (invar_vi)invar_vf_load(b + p * SM90_COLS + v * W);
        terms &= INT32_MAX; // without the sign
        e.high = invar_vi_max(e.high, exp);
        e.low = invar_vi_min(e.low, invar_vi_max(exp, (terms < 1) & EXP_LOW));
    }
    return out_of_range(e);
}

/* group, fraction, keep and one are constants at every call, so each form gets its own loop. */
static inline __attribute__((always_inline)) void run_sm90(float *acc, int64_t ld, const float *a,
                                                           const int8_t *a_exp, const float *b,
                                                           const int8_t *b_exp, int64_t k,
                                                           int group, int fraction, int32_t keep,
                                                           invar_kernel_reference_fn one)
{
    for (int64_t p0 = 0; p0 < k; p0 += group) {
        const float *ag = a + p0 * SM90_ROWS, *bg = b + p0 * SM90_COLS;
        const int8_t *aeg = a_exp + p0 * SM90_ROWS, *beg = b_exp + p0 * SM90_COLS;

        for (int i0 = 0; i0 < SM90_ROWS; i0 += BLOCK) {
            invar_vb exp[BLOCK];
            group_row rows[BLOCK];
            extremes e = no_extremes();
            invar_vf r[BLOCK][SM90_VECTORS];
            invar_vi sums[BLOCK];
            bool doubt;

            UNROLL
            for (int i = 0; i < BLOCK; i++)
                exp[i] = invar_vb_set1(INVAR_KERNEL_EXP_ZERO);
            UNROLL
            for (int p = 0; p < group; p++) {
                invar_vb be = invar_vb_load(beg + p * SM90_COLS);
                UNROLL
                for (int i = 0; i < BLOCK; i++)
                    exp[i] = invar_vb_max(
                        exp[i], invar_vb_add(be, invar_vb_set1(aeg[p * SM90_ROWS + i0 + i])));
            }
            UNROLL
            for (int i = 0; i < BLOCK; i++)
                begin_group_row(&rows[i], &e, acc + (i0 + i) * ld, exp[i], fraction);
            UNROLL
            for (int p = 0; p < group; p++) {
                invar_vf x[SM90_VECTORS];
                UNROLL
                for (int v = 0; v < SM90_VECTORS; v++)
                    x[v] = invar_vf_load(bg + p * SM90_COLS + v * W);
                UNROLL
                for (int i = 0; i < BLOCK; i++)
                    add_products(&rows[i], x, ag[p * SM90_ROWS + i0 + i]);
            }
            UNROLL
            for (int i = 0; i < BLOCK; i++) {
                end_group_row(r[i], &e, &rows[i], acc + (i0 + i) * ld, keep);
                sums[i] = e.sum;
            }
            doubt = out_of_range(e);
            UNROLL
            for (int i = 0; i < BLOCK; i++) {
                float *c = acc + (i0 + i) * ld;

                if (doubt && row_out_of_range(exp[i], sums[i], c, ag + i0 + i, bg, group)) {
                    for (int j = 0; j < SM90_COLS; j++)
                        one(c + j, ag + i0 + i, SM90_ROWS, bg + j, SM90_COLS);
                    continue;
                }
                UNROLL
                for (int v = 0; v < SM90_VECTORS; v++)
                    invar_vf_store(c + v * W, r[i][v]);
            }
        }
    }
}

static inline void run_sm90_bf16(float *acc, int64_t ld, const float *a, const int8_t *a_exp,
                                 const float *b, const int8_t *b_exp, int64_t k)
{
    run_sm90(acc, ld, a, a_exp, b, b_exp, k, INVAR_STEP_BF16, 25, -1, invar_kernel_sm90_bf16_one);
}

static inline void run_sm90_e4m3(float *acc, int64_t ld, const float *a, const int8_t *a_exp,
                                 const float *b, const int8_t *b_exp, int64_t k)
{
    // the result keeps 13 of the 23 fraction bits
    run_sm90(acc, ld, a, a_exp, b, b_exp, k, INVAR_STEP_FP8, 13, -(1 << 10),
             invar_kernel_sm90_e4m3_one);
}

#define INVAR_KERNELS_OF_VECTORS                                                                   \
    {                                                                                              \
        {IEEE_ROWS, IEEE_COLS, 1, INVAR_KERNEL_NO_EXPONENTS, 0, run_ieee, NULL},                   \
            {SM90_ROWS, SM90_COLS,     INVAR_STEP_BF16,           -126,                            \
             1,         run_sm90_bf16, invar_kernel_sm90_bf16_one},                                \
            {SM90_ROWS,                                                                            \
             SM90_COLS,                                                                            \
             INVAR_STEP_FP8,                                                                       \
             -6,                                                                                   \
             1,                                                                                    \
             run_sm90_e4m3,                                                                        \
             invar_kernel_sm90_e4m3_one},                                                          \
    }

#endif
