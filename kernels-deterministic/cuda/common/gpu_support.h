/*
 * gpu_support.h - checks whether this build can run on a driver and a GPU.
 *
 * Plain C without CUDA, so that tests without a GPU can check every outcome.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_COMMON_GPU_SUPPORT_H
#define INVAR_KERNELS_CUDA_COMMON_GPU_SUPPORT_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Returns INVAR_E_NODEVICE if the driver cannot run this build. `driver` and `runtime` are the CUDA
 * versions of the driver and of this build as CUDA reports them (13000 for 13.0); `driver` is 0 if
 * there is no driver.
 */
invar_status invar_gpu_check_driver(int driver, int runtime) INVAR_MUST_USE;

/*
 * Returns INVAR_E_NODEVICE if the compute capability of the GPU, `major`.`minor`, is not 9.0.
 * `ordinal` and `name` are used in the error message only.
 */
invar_status invar_gpu_check_capability(int ordinal, const char *name, int major,
                                        int minor) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
