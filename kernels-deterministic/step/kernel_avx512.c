/*
 * kernel_avx512.c - the ieee micro-kernel on 512-bit vectors, for x86-64 machines that have them.
 *
 * The program is built for AVX2; this one function is built for AVX-512 and chosen when the machine
 * says that it has it. One accumulator per cell, one fused multiply-add per product, as everywhere:
 * the width never shows in a result.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/step/kernel.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "base/invar_banned.h"

#define ROWS 8 // 16 of 32 registers accumulate
#define VECTORS 2
#define W 16
#define COLS (VECTORS * W)

__attribute__((target("avx512f"))) static void run(float *acc, int64_t ld, const float *a,
                                                   const int16_t *a_exp, const float *b,
                                                   const int16_t *b_exp, int64_t k)
{
    __m512 c[ROWS][VECTORS];

    (void)a_exp;
    (void)b_exp;
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++) {
        c[i][0] = _mm512_loadu_ps(acc + i * ld);
        c[i][1] = _mm512_loadu_ps(acc + i * ld + W);
    }
    for (int64_t p = 0; p < k; p++) {
        __m512 x = _mm512_loadu_ps(b + p * COLS), y = _mm512_loadu_ps(b + p * COLS + W);
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; i++) {
            __m512 s = _mm512_set1_ps(a[p * ROWS + i]);
            c[i][0] = _mm512_fmadd_ps(x, s, c[i][0]);
            c[i][1] = _mm512_fmadd_ps(y, s, c[i][1]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++) {
        _mm512_storeu_ps(acc + i * ld, c[i][0]);
        _mm512_storeu_ps(acc + i * ld + W, c[i][1]);
    }
}

static const invar_kernel wide = {ROWS, COLS, 1, INVAR_KERNEL_NO_EXPONENTS, 0, run};

const invar_kernel *invar_kernel_ieee_widest(void)
{
    return __builtin_cpu_supports("avx512f") ? &wide : &invar_kernel_ieee_simd;
}

#else

#include "base/invar_banned.h"

const invar_kernel *invar_kernel_ieee_widest(void)
{
    return &invar_kernel_ieee_simd;
}

#endif
