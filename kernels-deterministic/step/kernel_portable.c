/*
 * kernel_portable.c - micro-kernels in plain C: the reference step and fmaf.
 *
 * Slow and simple. The SIMD kernels are compared with these, and call the *_one functions for
 * groups outside the range that their arithmetic covers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "kernels-deterministic/math/fp8.h"
#include "kernels-deterministic/step/kernel.h"
#include "kernels-deterministic/step/step.h"

#include "base/invar_banned.h"

#define ROWS 4
#define COLS 4

void invar_kernel_sm90_bf16_one(float *acc, const float *a, int64_t a_stride, const float *b,
                                int64_t b_stride)
{
    uint16_t x[INVAR_STEP_BF16], y[INVAR_STEP_BF16];
    uint32_t bits;

    for (int p = 0; p < INVAR_STEP_BF16; p++) {
        memcpy(&bits, &a[p * a_stride], sizeof bits);
        x[p] = (uint16_t)(bits >> 16);
        memcpy(&bits, &b[p * b_stride], sizeof bits);
        y[p] = (uint16_t)(bits >> 16);
    }
    memcpy(&bits, acc, sizeof bits);
    bits = invar_step_sm90_bf16_ref(bits, x, y);
    memcpy(acc, &bits, sizeof bits);
}

void invar_kernel_sm90_e4m3_one(float *acc, const float *a, int64_t a_stride, const float *b,
                                int64_t b_stride)
{
    uint8_t x[INVAR_STEP_FP8], y[INVAR_STEP_FP8];
    uint32_t bits;

    for (int p = 0; p < INVAR_STEP_FP8; p++) {
        x[p] = invar_e4m3_from_f32(a[p * a_stride]); // exact: the panel holds e4m3 values
        y[p] = invar_e4m3_from_f32(b[p * b_stride]);
    }
    memcpy(&bits, acc, sizeof bits);
    bits = invar_step_sm90_e4m3_ref(bits, x, y);
    memcpy(acc, &bits, sizeof bits);
}

void invar_kernel_reference(const invar_kernel *kernel, float *acc, int64_t ld, const float *a,
                            const float *b, int64_t k)
{
    int rows = kernel->rows, cols = kernel->cols;

    for (int64_t p = 0; p < k; p += kernel->group)
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < cols; j++)
                kernel->reference(&acc[i * ld + j], &a[p * rows + i], rows, &b[p * cols + j], cols);
}

static void run_ieee(float *acc, int64_t ld, const float *a, const int8_t *a_exp, const float *b,
                     const int8_t *b_exp, int64_t k)
{
    (void)a_exp;
    (void)b_exp;
    for (int64_t p = 0; p < k; p++)
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < COLS; j++)
                acc[i * ld + j] = fmaf(a[p * ROWS + i], b[p * COLS + j], acc[i * ld + j]);
}

static void run_sm90_bf16(float *acc, int64_t ld, const float *a, const int8_t *a_exp,
                          const float *b, const int8_t *b_exp, int64_t k)
{
    (void)a_exp;
    (void)b_exp;
    invar_kernel_reference(&invar_kernels_portable.sm90_bf16, acc, ld, a, b, k);
}

static void run_sm90_e4m3(float *acc, int64_t ld, const float *a, const int8_t *a_exp,
                          const float *b, const int8_t *b_exp, int64_t k)
{
    (void)a_exp;
    (void)b_exp;
    invar_kernel_reference(&invar_kernels_portable.sm90_e4m3, acc, ld, a, b, k);
}

const invar_kernels invar_kernels_portable = {
    {ROWS, COLS, 1, INVAR_KERNEL_NO_EXPONENTS, 0, run_ieee, NULL},
    {ROWS, COLS, INVAR_STEP_BF16, INVAR_KERNEL_NO_EXPONENTS, 0, run_sm90_bf16,
     invar_kernel_sm90_bf16_one},
    {ROWS, COLS, INVAR_STEP_FP8, INVAR_KERNEL_NO_EXPONENTS, 0, run_sm90_e4m3,
     invar_kernel_sm90_e4m3_one},
};
