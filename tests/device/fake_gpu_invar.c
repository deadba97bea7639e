/*
 * fake_gpu_invar.c - invar with the fake GPU (fake_gpu.h) as its device `cuda`.
 *
 * With INVAR_TEST_LOSE=N in the environment the device is lost at its N-th call; with
 * INVAR_TEST_DELAY=N downloads of devices other than the run's are delayed by N milliseconds of its
 * inactivity (invar_fake_gpu_delay).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>

#include "tests/device/fake_gpu.h"

const invar_backend *invar_backend_cuda(void)
{
    const char *lose = getenv("INVAR_TEST_LOSE"), *still = getenv("INVAR_TEST_DELAY");

    if (still)
        invar_fake_gpu_delay(atoll(still));
    if (lose)
        invar_fake_gpu_lose(atoll(lose), false);
    return invar_fake_gpu_backend();
}
