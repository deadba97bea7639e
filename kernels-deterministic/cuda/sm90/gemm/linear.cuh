/*
 * linear.cuh - operands and row offsets of linear layers, for linear.cu and linear_dw.cu.
 *
 * Row offsets and token numbers lie in device memory. They are checked on the device, once, and the
 * kernels of products read a checked copy: row offsets that ascend within the rows, or all 0.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_GEMM_LINEAR_CUH
#define INVAR_KERNELS_CUDA_SM90_GEMM_LINEAR_CUH

#include "kernels-deterministic/cuda/common/kernel.cuh"
#include "kernels-deterministic/cuda/sm90/gemm/gemm.h"

#define THREADS 256

static inline invar_gemm_operand gemm_operand_of(const invar_tensor *t, bool k_outer)
{
    return {t->data, t->scale, t->dtype, t->scale_rows, k_outer, t->row_stride};
}

/*
 * Copies row offsets that are valid, and zeros instead of invalid ones; by one block. `some`
 * permits that they cover only some of the rows.
 */
static __global__ void copy_segments(int64_t *to, const int64_t *start, int64_t count, int64_t rows,
                                     invar_op op, invar_cuda_fault *fault, bool some)
{
    bool good = invar_segments_good(start, count, rows, op, fault, some);

    for (int64_t i = threadIdx.x; i <= count; i += THREADS)
        to[i] = good ? start[i] : 0;
}

#endif
