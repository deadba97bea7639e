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
typedef void (*invar_kernel_fn)(float *acc, int64_t ld, const float *a, const int8_t *a_exp,
                                const float *b, const int8_t *b_exp, int64_t k);

/* One chain, one group further, by the reference step. */
typedef void (*invar_kernel_reference_fn)(float *acc, const float *a, int64_t a_stride,
                                          const float *b, int64_t b_stride);

typedef struct invar_kernel {
    int rows;
    int cols;
    int group;       /* products per step */
    int min_exp;     /* of the operand type; INVAR_KERNEL_NO_EXPONENTS: panels without exponents */
    int toward_zero; /* runs with the rounding mode set toward zero */
    invar_kernel_fn run;
    /* of sm90: the same step, for operands beyond the range of exponents */
    invar_kernel_reference_fn reference;
} invar_kernel;

#define INVAR_KERNEL_NO_EXPONENTS 0
#define INVAR_KERNEL_MAX_ROWS 16
#if defined(__x86_64__)
#define INVAR_KERNEL_MAX_COLS 64
#else
#define INVAR_KERNEL_MAX_COLS 16
#endif

/*
 * Exponents of operands. A zero's is so small that no product with it reaches the range of the
 * kernels, 2^-100 and above; that holds for operands below 2^28. Panels with larger ones (an
 * infinity and NaN are) have no exponents: they go to the reference.
 */
#define INVAR_KERNEL_EXP_ZERO (-128)
#define INVAR_KERNEL_EXP_MAX 27

static inline int32_t invar_kernel_exponent(float value, int min_exp)
{
    uint32_t bits;
    int32_t exp;

    memcpy(&bits, &value, sizeof bits);
    exp = (int32_t)(bits >> 23 & 0xFF) - 127;
    exp = exp > min_exp ? exp : min_exp;
    return bits << 1 == 0 ? INVAR_KERNEL_EXP_ZERO : exp;
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

/* The kernels of one kind of machine. All kinds give the same bits. */
typedef struct invar_kernels {
    invar_kernel ieee;
    invar_kernel sm90_bf16;
    invar_kernel sm90_e4m3;
} invar_kernels;

extern const invar_kernels invar_kernels_portable; /* plain C */
extern const invar_kernels invar_kernels_simd;     /* the vectors of the architecture */
#if defined(__x86_64__)
extern const invar_kernels invar_kernels_avx512;
#endif

/* invar_kernels_simd, or wider ones that this very machine has. */
const invar_kernels *invar_kernels_widest(void);

/* The tile by the reference step; all that a SIMD kernel leaves out. */
void invar_kernel_reference(const invar_kernel *kernel, float *acc, int64_t ld, const float *a,
                            const float *b, int64_t k);
void invar_kernel_sm90_bf16_one(float *acc, const float *a, int64_t a_stride, const float *b,
                                int64_t b_stride);
void invar_kernel_sm90_e4m3_one(float *acc, const float *a, int64_t a_stride, const float *b,
                                int64_t b_stride);

#ifdef __cplusplus
}
#endif
#endif
