/*
 * fake_cuda.c - a module with a CUDA backend that can do nothing.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/module.h"

static const invar_backend *backend(void)
{
    static const invar_backend nothing = {.abi = INVAR_BACKEND_ABI, .name = "fake"};

    return &nothing;
}

extern INVAR_EXPORT const invar_cuda_module INVAR_CUDA_MODULE;
const invar_cuda_module INVAR_CUDA_MODULE = {INVAR_INTERFACE, backend};
