/*
 * tensor_row.h - rows of any float tensor as f32, and back.
 *
 * The CPU ops compute in f32 and touch storage only here, so that rounding happens in one place.
 * A row is index 0; its columns are all further indices, flattened. A vector counts as one row.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_TENSOR_ROW_H
#define INVAR_KERNELS_TENSOR_ROW_H

#include "kernels-deterministic/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * dst[i] = the value at (row, first + i). mxfp8 and int4 yield the bf16 value that they stand for;
 * fp8 yields the e4m3 value without its scale. For int4, first is even.
 */
void invar_tensor_row_load(float *dst, const invar_tensor *t, int64_t row, int64_t first,
                           int64_t count);

/* Rounds into storage (f32 or bf16). */
void invar_tensor_row_store(const invar_tensor *t, int64_t row, int64_t first, int64_t count,
                            const float *src);

/* The scale of an fp8 tensor at (row, col). */
float invar_tensor_row_fp8_scale(const invar_tensor *t, int64_t row, int64_t col);

#ifdef __cplusplus
}
#endif
#endif
