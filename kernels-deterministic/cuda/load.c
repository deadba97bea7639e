/*
 * load.c - the CUDA backend is that of the module; tests put another one here.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/module.h"

#include "base/invar_banned.h"

const invar_backend *invar_backend_cuda(void)
{
    return invar_cuda_module_backend();
}
