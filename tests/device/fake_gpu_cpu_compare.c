/*
 * fake_gpu_cpu_compare.c - runs cpu_gpu_compare.c on the fake GPU, on any machine (fake_gpu.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/device/fake_gpu.h"

/* Replaces invar_backend_cuda of the program. */
const invar_backend *__wrap_invar_backend_cuda(void);

const invar_backend *__wrap_invar_backend_cuda(void)
{
    return invar_fake_gpu_backend();
}
