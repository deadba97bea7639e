/*
 * cpu.h - the CPU backend: two functions per op.
 *
 * invar_cpu_<op>_workspace returns the scratch bytes of a call, invar_cpu_<op> runs it. The
 * arguments have passed the check of the op. Work is split into tasks that write disjoint outputs;
 * each task computes complete output elements, so the split never changes a bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CPU_CPU_H
#define INVAR_KERNELS_CPU_CPU_H

#include "kernels-deterministic/ops.h"

#define INVAR_OP(ID, fn, name, revision, numerics)                                                 \
    size_t invar_cpu_##fn##_workspace(const invar_device *dev, const invar_##fn##_args *args);     \
    invar_status invar_cpu_##fn(const invar_device *dev, const invar_##fn##_args *args,            \
                                void *workspace) INVAR_MUST_USE;
#include "kernels-deterministic/ops.def"
#undef INVAR_OP

#endif
