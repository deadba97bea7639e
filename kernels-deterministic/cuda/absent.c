/*
 * absent.c - a build without CUDA has no such backend.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/device.h"

#include "base/invar_banned.h"

const invar_backend *invar_backend_cuda(void)
{
    return NULL;
}
