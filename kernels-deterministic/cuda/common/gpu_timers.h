/*
 * gpu_timers.h - CUDA event timers and NVTX ranges: when ops ran on the GPU.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_COMMON_GPU_TIMERS_H
#define INVAR_KERNELS_CUDA_COMMON_GPU_TIMERS_H

#include "kernels-deterministic/cuda/common/cuda.h"

/*
 * The functions of invar_device_timers (device.h). The GPU of the device must be current in the
 * calling thread.
 */
invar_status invar_cuda_timer_set(const invar_device *dev, int64_t at) INVAR_MUST_USE;
invar_status invar_cuda_timer_read(const invar_device *dev, int64_t *ns_out,
                                   int64_t count) INVAR_MUST_USE;
void invar_cuda_timer_range(const char *name);

/* Destroys the events of the context; called when the context is closed. */
void invar_cuda_timers_free(invar_cuda *cuda);

#endif
