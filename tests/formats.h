/*
 * formats.h - the formats of linear layers for tests: f32, bf16, fp8, mxfp8 and int4.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_FORMATS_H
#define INVAR_TESTS_FORMATS_H

#include "tests/ops.h"

typedef struct invar_test_format {
    const char *name;
    invar_dtype storage; /* type of the tensors that are quantized, and of activations that are
                            not */
    invar_dtype x;       /* type of inputs and output gradients */
    invar_dtype w;
} invar_test_format;

#define INVAR_TEST_FORMATS 5         /* f32, bf16, fp8, mxfp8, int4 */
#define INVAR_TEST_STORAGE_FORMATS 2 /* the first two */

extern const invar_test_format invar_test_formats[INVAR_TEST_FORMATS];

/*
 * Returns `plain` in the format `dtype`, a copy if it has that type; fp8 weights get 128x128
 * scales.
 */
invar_tensor invar_test_quantized(const invar_device *dev, const invar_tensor *plain,
                                  invar_dtype dtype, bool weight);

/* Returns a contiguous tensor of standard normal values. */
invar_tensor invar_test_normal_2d(invar_dtype dtype, int64_t rows, int64_t cols, uint64_t seed);

#endif
