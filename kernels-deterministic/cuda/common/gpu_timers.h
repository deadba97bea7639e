/*
 * gpu_timers.h - when ops ran on the GPU: events of CUDA, and ranges for Nsight.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_COMMON_GPU_TIMERS_H
#define INVAR_KERNELS_CUDA_COMMON_GPU_TIMERS_H

#include "kernels-deterministic/cuda/common/cuda.h"

/* Those of invar_device_timers; the calling thread is on the GPU of the device already. */
invar_status invar_cuda_timer_set(const invar_device *dev, int64_t at) INVAR_MUST_USE;
invar_status invar_cuda_timer_read(const invar_device *dev, int64_t *ns_out,
                                   int64_t count) INVAR_MUST_USE;
void invar_cuda_timer_range(const char *name);

/* With the context. */
void invar_cuda_timers_free(invar_cuda *cuda);

#endif
