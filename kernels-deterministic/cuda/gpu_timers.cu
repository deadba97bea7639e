/*
 * gpu_timers.cu - CUDA event timers of a device, created when they are first used, and NVTX ranges.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/common/gpu_timers.h"

#include <nvtx3/nvToolsExt.h>

#include "base/alloc.h"

static invar_status ensure_event(invar_cuda *cuda, int64_t at)
{
    if (!cuda->marks) {
        INVAR_TRY(INVAR_ALLOC(cuda->marks, INVAR_DEVICE_TIMERS_MAX, "marks of the profile"));
        for (int64_t i = 0; i < INVAR_DEVICE_TIMERS_MAX; i++)
            cuda->marks[i] = NULL;
    }
    if (!cuda->marks[at])
        INVAR_CUDA_TRY("mark", cudaEventCreate(&cuda->marks[at]));
    return INVAR_OK;
}

invar_status invar_cuda_timer_set(const invar_device *dev, int64_t at)
{
    invar_cuda *cuda = invar_cuda_of(dev);

    INVAR_TRY(ensure_event(cuda, at));
    INVAR_CUDA_TRY("mark", cudaEventRecord(cuda->marks[at], cuda->stream));
    return INVAR_OK;
}

invar_status invar_cuda_timer_read(const invar_device *dev, int64_t *ns_out, int64_t count)
{
    const invar_cuda *cuda = invar_cuda_of(dev);
    float milliseconds;

    if (count == 0)
        return INVAR_OK;
    INVAR_CUDA_TRY("mark", cudaEventSynchronize(cuda->marks[count - 1]));
    for (int64_t i = 0; i < count; i++) {
        INVAR_CUDA_TRY("mark", cudaEventElapsedTime(&milliseconds, cuda->marks[0], cuda->marks[i]));
        ns_out[i] = (int64_t)((double)milliseconds * 1e6);
    }
    return INVAR_OK;
}

void invar_cuda_timer_range(const char *name)
{
    if (name)
        (void)nvtxRangePushA(name);
    else
        (void)nvtxRangePop();
}

void invar_cuda_timers_free(invar_cuda *cuda)
{
    for (int64_t i = 0; cuda->marks && i < INVAR_DEVICE_TIMERS_MAX; i++)
        if (cuda->marks[i])
            (void)cudaEventDestroy(cuda->marks[i]);
    invar_free(cuda->marks);
    cuda->marks = NULL;
}
