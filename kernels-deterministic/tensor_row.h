/*
 * tensor_row.h - loads a row of any float tensor as f32 and stores it back.
 *
 * The CPU ops compute in f32 and access storage through these functions, so that rounding happens
 * in one place. A row is one value of index 0; its columns are all further indices, flattened. A
 * vector is one row.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_TENSOR_ROW_H
#define INVAR_KERNELS_TENSOR_ROW_H

#include "kernels-deterministic/tensor.h"

/*
 * dst[i] = the value at (row, first + i) as f32. mxfp8 and int4 give the bf16 value that they
 * represent; fp8 gives the e4m3 value without its scale. For int4, `first` must be even.
 */
void invar_tensor_row_load(float *dst, const invar_tensor *t, int64_t row, int64_t first,
                           int64_t count);

/*
 * Rounds src to the type of t (f32 or bf16) and stores it at (row, first) and the columns after it.
 */
void invar_tensor_row_store(const invar_tensor *t, int64_t row, int64_t first, int64_t count,
                            const float *src);

/* Returns the scale of an fp8 tensor at (row, col). */
float invar_tensor_row_fp8_scale(const invar_tensor *t, int64_t row, int64_t col);

#endif
