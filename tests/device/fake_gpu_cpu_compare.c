/*
 * fake_gpu_cpu_compare.c - makes cpu_gpu_compare.c a program for every machine: its GPU is memory
 * that only looks like one (tests/device/fake_gpu.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/device/fake_gpu.h"

/* The linker puts it in the place of invar_backend_cuda. */
const invar_backend *__wrap_invar_backend_cuda(void);

const invar_backend *__wrap_invar_backend_cuda(void)
{
    return invar_far_backend();
}
