/*
 * fake_cuda.c - a CUDA module whose GPU differs from numerics sm90 and runs no op.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>

#include "kernels-deterministic/cuda/module.h"

/* Reports a GPU with wrong results; the environment sets the driver. */
static invar_status measure_gpu(const invar_device *dev, invar_device_info *out)
{
    const char *driver = getenv("FAKE_DRIVER");

    (void)dev;
    *out = (invar_device_info){.name = "Fake GPU", .step_outputs = 8, .step_differences = 1};
    (void)snprintf(out->driver, sizeof out->driver, "%s", driver ? driver : "1.0");
    return INVAR_OK;
}

static const invar_backend *fake_backend(void)
{
    static const invar_backend no_ops = {
        .abi = INVAR_BACKEND_ABI, .name = "fake", .measure = measure_gpu};

    return &no_ops;
}

extern INVAR_EXPORT const invar_cuda_module INVAR_CUDA_MODULE;
const invar_cuda_module INVAR_CUDA_MODULE = {INVAR_INTERFACE, fake_backend};
