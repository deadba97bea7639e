/*
 * linked_cuda.c - uses the CUDA backend that the program is linked with instead of the module.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/module.h"

const invar_backend *invar_backend_cuda(void)
{
    return invar_cuda_backend();
}
