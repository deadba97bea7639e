/*
 * kernel.h - micro-kernels: a small tile of chains over packed panels.
 *
 * A tile has rows x cols accumulators. Panels are k-major: a[p * rows + i] and b[p * cols + j] are
 * the p-th operands of row i and column j, as floats (every storage type is exact in f32). The sm90
 * kernels also read the exponents of the operands, in the same layout, from invar_kernel_exponent.
 * acc[i * ld + j] = CHAIN(acc[i * ld + j]; a row i, b column j): each chain belongs to one tile, so
 * the size and the position of a tile never change a bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_STEP_KERNEL_H
#define INVAR_KERNELS_STEP_KERNEL_H

#include <stdint.h>
#include <string.h>

/*
 * Continues the chains of a tile by k products; k is a multiple of `group`, with panels padded by
 * zeros.
 */
typedef void (*invar_kernel_fn)(float *acc, int64_t ld, const float *a, const int8_t *a_exp,
                                const float *b, const int8_t *b_exp, int64_t k);

/* Continues one chain by one group, with the reference step. */
typedef void (*invar_kernel_reference_fn)(float *acc, const float *a, int64_t a_stride,
                                          const float *b, int64_t b_stride);

typedef struct invar_kernel {
    int rows;
    int cols;
    int group;       /* products per step */
    int min_exp;     /* smallest exponent of the operand type; INVAR_KERNEL_NO_EXPONENTS for
                        panels without exponents */
    int toward_zero; /* 1 if the caller must set rounding toward zero for `run` */
    invar_kernel_fn run;
    /* sm90 only: the reference step, for operands outside of the exponent range; else NULL */
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
 * Exponents of operands. That of zero is so small that no product with it reaches the range of the
 * kernels, 2^-100 and above, as long as the other operand is below 2^28. Panels with larger values,
 * infinities or NaN have no exponents and are computed by the reference.
 */
#define INVAR_KERNEL_EXP_ZERO (-128)
#define INVAR_KERNEL_EXP_MAX 27

/* Returns the exponent of an operand, at least min_exp; INVAR_KERNEL_EXP_ZERO for a zero. */
static inline int32_t invar_kernel_exponent(float value, int min_exp)
{
    uint32_t bits;
    int32_t exp;

    memcpy(&bits, &value, sizeof bits);
    exp = (int32_t)(bits >> 23 & 0xFF) - 127;
    exp = exp > min_exp ? exp : min_exp;
    return bits << 1 == 0 ? INVAR_KERNEL_EXP_ZERO : exp;
}

/* Rows in storage: of bf16 if `bf16` is not 0, else of f32; `stride` elements apart. */
typedef struct invar_kernel_rows {
    const void *data;
    int64_t stride;
    int bf16;
} invar_kernel_rows;

/*
 * The ieee chains of few rows without packing: `rows` rows of a, at most INVAR_KERNEL_DIRECT_ROWS,
 * with INVAR_KERNEL_DIRECT_COLS rows of b.
 */
#define INVAR_KERNEL_DIRECT_ROWS 4
#define INVAR_KERNEL_DIRECT_COLS 16
void invar_kernel_ieee_direct(float *acc, int64_t ld, int rows, const float *a, int64_t a_stride,
                              const invar_kernel_rows *b, int64_t k);

/* The kernels of one instruction set. All sets give the same bits. */
typedef struct invar_kernels {
    invar_kernel ieee;
    invar_kernel sm90_bf16;
    invar_kernel sm90_e4m3;
} invar_kernels;

extern const invar_kernels invar_kernels_portable; /* plain C */
extern const invar_kernels invar_kernels_simd;     /* the vectors that every machine of the
                                                      architecture has */
#if defined(__x86_64__)
extern const invar_kernels invar_kernels_avx512;
#endif

/* Returns the widest kernels that this machine can run. */
const invar_kernels *invar_kernels_widest(void);

/* Computes a tile with the reference step of the kernel. */
void invar_kernel_reference(const invar_kernel *kernel, float *acc, int64_t ld, const float *a,
                            const float *b, int64_t k);
/* The reference steps of a kernel with bf16 and with e4m3 operands. */
void invar_kernel_sm90_bf16_one(float *acc, const float *a, int64_t a_stride, const float *b,
                                int64_t b_stride);
void invar_kernel_sm90_e4m3_one(float *acc, const float *a, int64_t a_stride, const float *b,
                                int64_t b_stride);

#endif
