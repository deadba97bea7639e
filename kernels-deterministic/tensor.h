/*
 * tensor.h - data types and tensor views of the ops.
 *
 * An invar_tensor is a view and owns no memory. Index 0 may be strided, with row_stride elements
 * between rows; all further indices are contiguous. So a slice of the columns of a wider buffer is
 * a tensor, too.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_TENSOR_H
#define INVAR_KERNELS_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum invar_dtype {
    INVAR_DTYPE_NONE = 0, /* an absent optional tensor */
    INVAR_DTYPE_F32,
    INVAR_DTYPE_BF16,
    INVAR_DTYPE_FP8,   /* e4m3 with f32 scales: 1x128 blocks (scale_rows 1) or 128x128 (128) */
    INVAR_DTYPE_MXFP8, /* e4m3 with E8M0 scales, 1x32 along the last index */
    INVAR_DTYPE_INT4,  /* two per byte, bf16 scales, groups of 32 along the last index */
    INVAR_DTYPE_I32,
    INVAR_DTYPE_I64,
    INVAR_DTYPE_COUNT
} invar_dtype;

#define INVAR_MAX_RANK 4

#define INVAR_FP8_BLOCK 128
#define INVAR_MX_BLOCK 32
#define INVAR_INT4_BLOCK 32

typedef struct invar_tensor {
    void *data;
    void *scale; /* quantized types only: (bands, ceil(cols / block)), contiguous */
    invar_dtype dtype;
    int32_t rank;
    int32_t scale_rows;   /* rows of a band, which share scales: 1, or 128 for fp8 weights */
    int32_t scale_period; /* rows after which a new band starts (those of one expert); 0 for never
                             */
    int64_t shape[INVAR_MAX_RANK];
    int64_t row_stride; /* elements between consecutive values of index 0 */
} invar_tensor;

/* Return contiguous views of memory without scales. */
invar_tensor invar_tensor_1d(void *data, invar_dtype dtype, int64_t n);
invar_tensor invar_tensor_2d(void *data, invar_dtype dtype, int64_t rows, int64_t cols);
invar_tensor invar_tensor_3d(void *data, invar_dtype dtype, int64_t n0, int64_t n1, int64_t n2);
invar_tensor invar_tensor_4d(void *data, invar_dtype dtype, int64_t n0, int64_t n1, int64_t n2,
                             int64_t n3);

/* Returns a contiguous view of a quantized type, with scale_period 0. */
invar_tensor invar_tensor_quantized(void *data, void *scale, invar_dtype dtype, int32_t scale_rows,
                                    int64_t rows, int64_t cols);

/* Returns the columns [first, first + cols) of a tensor of rank 2 without scales. */
invar_tensor invar_tensor_columns(const invar_tensor *t, int64_t first, int64_t cols);

/*
 * Returns the rows [first, first + rows). `first` must be the first row of a band of scales. If it
 * is inside a period, the rows must not extend beyond the end of the period.
 */
invar_tensor invar_tensor_rows(const invar_tensor *t, int64_t first, int64_t rows);

/* Returns "bf16", "f32", ...; "unknown" if dtype is out of range. */
const char *invar_dtype_name(invar_dtype dtype);

/* Returns the bits of one element: 32, 16, 8, 8, 4, 32, 64; 0 for INVAR_DTYPE_NONE. */
int invar_dtype_bits(invar_dtype dtype);

/*
 * Returns the columns that share a scale: 128, 32 or 32 for the quantized types, 0 for the others.
 */
int64_t invar_dtype_scale_block(invar_dtype dtype);

/*
 * A band: the rows of a quantized tensor that share scales. Each has scale_rows rows, except the
 * last one of the tensor and the last one of a period, which may have fewer.
 */
typedef struct invar_band {
    int64_t first;
    int64_t rows;
} invar_band;

int64_t invar_tensor_bands(const invar_tensor *t);
int64_t invar_tensor_band_index(const invar_tensor *t, int64_t row);
invar_band invar_tensor_band(const invar_tensor *t, int64_t number);

/*
 * Returns the number of scale blocks in a row of a quantized tensor; the last one may have fewer
 * columns.
 */
int64_t invar_tensor_scale_blocks(const invar_tensor *t);

/* Returns the bytes of the scales; 0 for types without scales. */
size_t invar_tensor_scale_bytes(const invar_tensor *t);

/* Returns the product of the extents of all indices except index 0. */
int64_t invar_tensor_row_elements(const invar_tensor *t);

static inline bool invar_tensor_present(const invar_tensor *t)
{
    return t->dtype != INVAR_DTYPE_NONE;
}

#ifdef __cplusplus
}
#endif
#endif
