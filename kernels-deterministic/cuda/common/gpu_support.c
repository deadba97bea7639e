/*
 * gpu_support.c - checks whether this build can run on a driver and a GPU.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/common/gpu_support.h"

#include "base/invar_banned.h"

invar_status invar_gpu_check_driver(int driver, int runtime)
{
    if (driver <= 0)
        return INVAR_FAIL(INVAR_E_NODEVICE, 0,
                          "no NVIDIA driver here (libcuda.so.1): install one for CUDA %d.%d, or "
                          "choose device = cpu",
                          runtime / 1000, runtime % 1000 / 10);
    // a driver runs programs that were built with any CUDA of its own major version or an older one
    if (driver / 1000 < runtime / 1000)
        return INVAR_FAIL(INVAR_E_NODEVICE, 0,
                          "the NVIDIA driver is for CUDA %d.%d, this build needs CUDA %d.%d: "
                          "install a newer driver, or choose device = cpu",
                          driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    return INVAR_OK;
}

invar_status invar_gpu_check_capability(int ordinal, const char *name, int major, int minor)
{
    if (major != 9 || minor != 0)
        return INVAR_FAIL(INVAR_E_NODEVICE, 0,
                          "GPU %d is a %s of compute capability %d.%d; this build runs on 9.0 "
                          "(H100, H200): choose device = cpu",
                          ordinal, name, major, minor);
    return INVAR_OK;
}
