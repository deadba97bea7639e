/*
 * formats.c - the formats of linear layers for tests.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/formats.h"

const invar_test_format invar_test_formats[INVAR_TEST_FORMATS] = {
    {"f32", INVAR_DTYPE_F32, INVAR_DTYPE_F32, INVAR_DTYPE_F32},
    {"bf16", INVAR_DTYPE_BF16, INVAR_DTYPE_BF16, INVAR_DTYPE_BF16},
    {"fp8", INVAR_DTYPE_BF16, INVAR_DTYPE_FP8, INVAR_DTYPE_FP8},
    {"mxfp8", INVAR_DTYPE_BF16, INVAR_DTYPE_MXFP8, INVAR_DTYPE_MXFP8},
    {"int4", INVAR_DTYPE_BF16, INVAR_DTYPE_BF16, INVAR_DTYPE_INT4},
};

invar_tensor invar_test_quantized(const invar_device *dev, const invar_tensor *plain,
                                  invar_dtype dtype, bool weight)
{
    invar_tensor q;

    if (dtype == plain->dtype)
        return invar_test_copy(plain);
    q = invar_test_tensor(invar_tensor_quantized(
        NULL, NULL, dtype, weight && dtype == INVAR_DTYPE_FP8 ? INVAR_FP8_BLOCK : 1,
        plain->shape[0], plain->shape[1]));
    assert_ok(invar_quantize(dev, &(invar_quantize_args){.q = q, .x = *plain}));
    return q;
}

invar_tensor invar_test_normal_2d(invar_dtype dtype, int64_t rows, int64_t cols, uint64_t seed)
{
    invar_tensor t = invar_test_tensor(invar_tensor_2d(NULL, dtype, rows, cols));

    invar_test_fill_normal(&t, seed, 1.0f);
    return t;
}
