/*
 * elementwise.h - runs an element-wise function over a tensor on the thread pool.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CPU_ELEMENTWISE_H
#define INVAR_KERNELS_CPU_ELEMENTWISE_H

#include "kernels-deterministic/device.h"

/* Maximum of elements per call: fits on the stack, and is a multiple of all scale blocks. */
#define INVAR_PIECE 512

/* Processes the elements (row, first) to (row, first + count - 1). */
typedef void (*invar_elementwise_fn)(const void *payload, int64_t row, int64_t first,
                                     int64_t count);

/*
 * Splits each row of (rows, cols) into pieces of at most INVAR_PIECE elements and calls `run` once
 * for each piece, from several threads. `first` is a multiple of INVAR_PIECE. A vector is one row.
 */
invar_status invar_elementwise_run(const invar_device *dev, int64_t rows, int64_t cols,
                                   invar_elementwise_fn run, const void *payload) INVAR_MUST_USE;

/* Defines the two functions of an element-wise op; `piece` computes the output `out`. */
#define INVAR_ELEMENTWISE_OP(fn, out, piece)                                                       \
    INVAR_NO_WORKSPACE(cpu, fn)                                                                    \
    invar_status invar_cpu_##fn(const invar_device *dev, const invar_##fn##_args *a,               \
                                void *workspace)                                                   \
    {                                                                                              \
        (void)workspace;                                                                           \
        return invar_elementwise_run(dev, a->out.shape[0], a->out.shape[1], piece, a);             \
    }

#endif
