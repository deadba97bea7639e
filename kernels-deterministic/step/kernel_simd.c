/*
 * kernel_simd.c - micro-kernels on baseline vectors (NEON, AVX2), and unpacked products of few
 * rows.
 *
 * If A has few rows, packing B would take longer than the products. Then W rows of B are loaded and
 * transposed in registers, W products at a time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>

#include "kernels-deterministic/math/bf16.h"
#include "kernels-deterministic/step/kernel_vectors.h"

#include "base/invar_banned.h"

const invar_kernels invar_kernels_simd = INVAR_KERNELS_OF_VECTORS;

const invar_kernels *invar_kernels_widest(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
        return &invar_kernels_avx512;
#endif
    return &invar_kernels_simd;
}

/* Adds x[r] * a[r] to c for r = 0 .. W - 1, one fused operation after the other. */
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

/* All loops except the one over k have constant bounds at each call, so they are unrolled. */
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
