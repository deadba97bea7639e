/*
 * far_cuda.c - invar with the far backend of the tests in the place of CUDA: see tests/far.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/far.h"

const invar_backend *invar_backend_cuda(void)
{
    return invar_far_backend();
}
