/*
 * step.h - integer reference of the dot-step of numerics sm90.
 *
 * STEP(c, a[0..g), b[0..g)) as the Hopper tensor core computes it: g = 16 for bf16 operands, 32 for
 * e4m3. Every faster implementation is compared with these functions. They follow
 * docs/arithmetic.md section 2 line by line and use integers only, so neither the rounding mode nor
 * the compiler can change a result. (The dot-step of numerics ieee is fmaf.)
 *
 * Floats are passed as their bits, since a NaN must come out as exactly 0x7FFFFFFF.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_STEP_STEP_H
#define INVAR_KERNELS_STEP_STEP_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_STEP_BF16 16 /* products of one bf16 step */
#define INVAR_STEP_FP8 32  /* products of one e4m3 step */

/* Returns STEP(c, a, b) for bf16 operands. */
uint32_t invar_step_sm90_bf16_ref(uint32_t c, const uint16_t a[INVAR_STEP_BF16],
                                  const uint16_t b[INVAR_STEP_BF16]);

/* Returns STEP(c, a, b) for e4m3 operands. */
uint32_t invar_step_sm90_e4m3_ref(uint32_t c, const uint8_t a[INVAR_STEP_FP8],
                                  const uint8_t b[INVAR_STEP_FP8]);

#ifdef __cplusplus
}
#endif
#endif
