/*
 * gpu_support.h - whether this build can run on a GPU, from what is known before anything runs
 * there.
 *
 * Plain C without CUDA, so that tests without a GPU see every verdict.
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
 * CUDA versions as CUDA gives them, 13000 for 13.0: that of the driver, 0 where there is none, and
 * that of this build. INVAR_E_NODEVICE.
 */
invar_status invar_gpu_check_driver(int driver, int runtime) INVAR_MUST_USE;

/* The GPU's number, its name, its compute capability. INVAR_E_NODEVICE. */
invar_status invar_gpu_check_capability(int ordinal, const char *name, int major,
                                        int minor) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
