/*
 * fake_gpu_invar.c - invar with the far backend of the tests (tests/device/fake_gpu.h) in the place
 * of CUDA.
 *
 * With INVAR_TEST_LOSE=N in the environment the device is lost at its N-th call; with
 * INVAR_TEST_DELAY=N copies beside a run are late, as invar_far_delay has it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>

#include "tests/device/fake_gpu.h"

const invar_backend *invar_backend_cuda(void)
{
    const char *lose = getenv("INVAR_TEST_LOSE"), *still = getenv("INVAR_TEST_DELAY");

    if (still)
        invar_far_delay(atoll(still));
    if (lose)
        invar_far_lose(atoll(lose), false);
    return invar_far_backend();
}
