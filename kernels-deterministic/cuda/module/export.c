/*
 * export.c - the symbol that the module invar-cuda.so exports.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/module.h"

#include "base/invar_banned.h"

extern INVAR_EXPORT const invar_cuda_module INVAR_CUDA_MODULE;
const invar_cuda_module INVAR_CUDA_MODULE = {INVAR_INTERFACE, invar_cuda_backend};
