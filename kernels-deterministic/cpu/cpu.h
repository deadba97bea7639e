/*
 * cpu.h - the CPU backend: two functions per op.
 *
 * invar_cpu_<op>_workspace says how much scratch the op needs, invar_cpu_<op> runs it. Arguments
 * have passed the op's check. Work is cut into tasks that write disjoint output; each task computes
 * whole output elements, so the cut never shows in a bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CPU_CPU_H
#define INVAR_KERNELS_CPU_CPU_H

#include "kernels-deterministic/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_OP(ID, fn, name, revision, numerics)                                                 \
    size_t invar_cpu_##fn##_workspace(const invar_device *dev, const invar_##fn##_args *args);     \
    invar_status invar_cpu_##fn(const invar_device *dev, const invar_##fn##_args *args,            \
                                void *workspace) INVAR_MUST_USE;
#include "kernels-deterministic/ops.def"
#undef INVAR_OP

#ifdef __cplusplus
}
#endif
#endif
