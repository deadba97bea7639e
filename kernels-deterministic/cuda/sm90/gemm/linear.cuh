/*
 * linear.cuh - what y, dx and dw of linear layers make of their arguments.
 *
 * Segments and tokens lie in device memory. They are checked on the device, once, and a copy goes
 * on: the kernels of products see segments that ascend within the rows, or none at all.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_GEMM_LINEAR_CUH
#define INVAR_KERNELS_CUDA_SM90_GEMM_LINEAR_CUH

#include "kernels-deterministic/cuda/common/kernel.cuh"
#include "kernels-deterministic/cuda/sm90/gemm/gemm.h"

#define THREADS 256

static inline invar_gemm_operand operand(const invar_tensor *t, bool k_outer)
{
    return {t->data, t->scale, t->dtype, t->scale_rows, k_outer, t->row_stride};
}

/* One block. Segments that are not good become empty ones; `some`: of more. */
static __global__ void copy_segments(int64_t *to, const int64_t *start, int64_t count, int64_t rows,
                                     invar_op op, invar_cuda_fault *fault, bool some)
{
    bool good = invar_segments_good(start, count, rows, op, fault, some);

    for (int64_t i = threadIdx.x; i <= count; i += THREADS)
        to[i] = good ? start[i] : 0;
}

#endif
