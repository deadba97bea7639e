/*
 * elementwise.h - element-wise work over the device's pool, in pieces of rows.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CPU_ELEMENTWISE_H
#define INVAR_KERNELS_CPU_ELEMENTWISE_H

#include "kernels-deterministic/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_PIECE 512 /* elements at most: arrays of it fit on the stack; whole scale blocks */

/* Elements (row, first) to (row, first + count - 1). */
typedef void (*invar_elementwise_fn)(const void *payload, int64_t row, int64_t first,
                                     int64_t count);

/* Every element of (rows, cols) once; `first` is a multiple of INVAR_PIECE. A vector is one row. */
invar_status invar_elementwise_run(const invar_device *dev, int64_t rows, int64_t cols,
                                   invar_elementwise_fn run, const void *payload) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
