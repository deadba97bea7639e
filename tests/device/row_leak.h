/*
 * row_leak.h - a backend with one wrong op, whose rows depend on other rows: a negative control.
 *
 * The op gets one input tensor with its rows moved down by one: row i is computed from row i - 1.
 * Only row 0 is right, and so is any row that is computed alone. The input is in host memory,
 * without scales.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_DEVICE_ROW_LEAK_H
#define INVAR_TESTS_DEVICE_ROW_LEAK_H

#include <stdlib.h>
#include <string.h>

#include "kernels-deterministic/device.h"
#include "kernels-deterministic/tensor.h"

static struct {
    invar_backend backend;
    size_t input; /* offset of the input in the arguments */
    invar_op_impl right;
} row_leak;

static inline invar_status row_leak_run(const invar_device *dev, const void *args, void *workspace)
{
    const invar_tensor *t = (const void *)((const char *)args + row_leak.input);
    size_t rows = (size_t)t->shape[0], bits = (size_t)invar_dtype_bits(t->dtype);
    size_t bytes = (size_t)invar_tensor_row_elements(t) * bits / 8;
    size_t stride = (size_t)t->row_stride * bits / 8;
    char *data = t->data, *before = malloc(rows * bytes + 1);
    invar_status status;

    INVAR_CHECK(before && data);
    for (size_t i = 0; i < rows; i++)
        memcpy(before + i * bytes, data + i * stride, bytes);
    for (size_t i = 1; i < rows; i++)
        memcpy(data + i * stride, before + (i - 1) * bytes, bytes);
    status = row_leak.right.run(dev, args, workspace);
    for (size_t i = 0; i < rows; i++)
        memcpy(data + i * stride, before + i * bytes, bytes);
    free(before);
    return status;
}

/*
 * Returns the backend with the wrong op, valid until the next call. `input` is the offset of the
 * input tensor in the arguments of the op.
 */
static inline const invar_backend *row_leak_backend(const invar_backend *right, invar_op op,
                                                    size_t input)
{
    row_leak.backend = *right;
    row_leak.input = input;
    row_leak.right = right->ops[op];
    row_leak.backend.ops[op].run = row_leak_run;
    return &row_leak.backend;
}

#endif
