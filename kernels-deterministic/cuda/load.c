/*
 * load.c - invar_backend_cuda, the backend of the module; tests link a file of their own instead.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/module.h"

#include "base/invar_banned.h"

const invar_backend *invar_backend_cuda(void)
{
    return invar_cuda_module_backend();
}
