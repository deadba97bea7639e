/*
 * sfu.cuh - ex2 and rcp of the special function unit: the bits of math/sfu.h by one instruction
 * each.
 *
 * These are the only approximate instructions that a kernel may use (test style.cuda). Their bits
 * are known, and every GPU is compared with math/sfu.h before it runs numerics sm90
 * (hardware_check.cu).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_SFU_CUH
#define INVAR_KERNELS_CUDA_SM90_SFU_CUH

/* Returns invar_sfu_ex2(x), in one instruction. */
__device__ __forceinline__ float invar_unit_ex2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Returns invar_sfu_rcp(x), in one instruction. */
__device__ __forceinline__ float invar_unit_rcp(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
