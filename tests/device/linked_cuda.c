/*
 * linked_cuda.c - the CUDA backend that a program has linked, in place of that of the module.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/module.h"

const invar_backend *invar_backend_cuda(void)
{
    return invar_cuda_backend();
}
