/*
 * old_cuda.c - a CUDA module of another build.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/module.h"

extern INVAR_EXPORT const invar_cuda_module INVAR_CUDA_MODULE;
const invar_cuda_module INVAR_CUDA_MODULE = {"another", NULL};
