/*
 * kernel.h - micro-kernels: one small tile of chains over packed panels.
 *
 * A tile is `rows` x `cols` accumulators. Panels are k-major: a[p * rows + i], b[p * cols + j] are
 * the p-th operands of row i and column j, as floats (every storage type is exact in f32). The
 * sm90 kernels also read exponents, laid out alike, as made by invar_kernel_exponent.
 * acc[i * ld + j] = CHAIN(acc[i * ld + j]; a row i, b column j): every chain is the tile's own, so
 * nothing about a tile's size or place can reach a bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_STEP_KERNEL_H
#define INVAR_KERNELS_STEP_KERNEL_H

#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* k is a multiple of `group`; panels are padded with zeros to that. */
typedef void (*invar_kernel_fn)(float *acc, int64_t ld, const float *a, const int16_t *a_exp,
                                const float *b, const int16_t *b_exp, int64_t k);

typedef struct invar_kernel {
    int rows;
    int cols;
    int group;       /* products per step */
    int min_exp;     /* of the operand type; INVAR_KERNEL_NO_EXPONENTS: panels without exponents */
    int toward_zero; /* runs with the rounding mode set toward zero */
    invar_kernel_fn run;
} invar_kernel;

#define INVAR_KERNEL_NO_EXPONENTS 0
#define INVAR_KERNEL_MAX_ROWS 16
#if defined(__x86_64__)
#define INVAR_KERNEL_MAX_COLS 32
#else
#define INVAR_KERNEL_MAX_COLS 16
#endif

/* Exponents that stand for a zero and for an infinity or NaN; a sum with either is out of range. */
#define INVAR_KERNEL_EXP_ZERO (-8192)
#define INVAR_KERNEL_EXP_SPECIAL 16000

/* The exponent of an operand; a's carry bias 0, b's the bias of f32, so that sums carry it once. */
#define INVAR_KERNEL_BIAS_A 0
#define INVAR_KERNEL_BIAS_B 127

static inline int16_t invar_kernel_exponent(float value, int min_exp, int bias)
{
    uint32_t bits;
    int32_t field, exp;

    memcpy(&bits, &value, sizeof bits);
    field = (int32_t)(bits >> 23 & 0xFF);
    exp = (field - 127 > min_exp ? field - 127 : min_exp) + bias;
    exp = field == 0xFF ? INVAR_KERNEL_EXP_SPECIAL : exp;
    exp = bits << 1 == 0 ? INVAR_KERNEL_EXP_ZERO : exp;
    return (int16_t)exp;
}

/* Rows as they are stored: of f32 or, if `bf16`, of bf16; `stride` elements apart. */
typedef struct invar_kernel_rows {
    const void *data;
    int64_t stride;
    int bf16;
} invar_kernel_rows;

/*
 * The ieee chains of few rows without packing: `rows` (at most INVAR_KERNEL_DIRECT_ROWS) rows of a
 * with INVAR_KERNEL_DIRECT_COLS rows of b.
 */
#define INVAR_KERNEL_DIRECT_ROWS 4
#define INVAR_KERNEL_DIRECT_COLS 16
void invar_kernel_ieee_direct(float *acc, int64_t ld, int rows, const float *a, int64_t a_stride,
                              const invar_kernel_rows *b, int64_t k);

extern const invar_kernel invar_kernel_ieee_simd;
extern const invar_kernel invar_kernel_ieee_portable;

/* invar_kernel_ieee_simd, or a wider one that this very machine has; the same bits. */
const invar_kernel *invar_kernel_ieee_widest(void);

extern const invar_kernel invar_kernel_sm90_bf16_simd;
extern const invar_kernel invar_kernel_sm90_bf16_portable;
extern const invar_kernel invar_kernel_sm90_e4m3_simd;
extern const invar_kernel invar_kernel_sm90_e4m3_portable;

/* One column of a tile by the reference step: what a SIMD kernel calls out of its range. */
void invar_kernel_sm90_bf16_one(float *acc, const float *a, int64_t a_stride, const float *b,
                                int64_t b_stride);
void invar_kernel_sm90_e4m3_one(float *acc, const float *a, int64_t a_stride, const float *b,
                                int64_t b_stride);

#ifdef __cplusplus
}
#endif
#endif
