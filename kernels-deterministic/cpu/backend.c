/*
 * backend.c - the op table of the CPU.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cpu/cpu.h"

#include "base/invar_banned.h"

/* Calls through the real type of each op: function pointers are not cast. */
#define INVAR_OP(ID, fn, name, revision, numerics)                                                 \
    static size_t workspace_##fn(const invar_device *dev, const void *args)                        \
    {                                                                                              \
        return invar_cpu_##fn##_workspace(dev, args);                                              \
    }                                                                                              \
    static invar_status run_##fn(const invar_device *dev, const void *args, void *workspace)       \
    {                                                                                              \
        return invar_cpu_##fn(dev, args, workspace);                                               \
    }
#include "kernels-deterministic/ops.def"
#undef INVAR_OP

static const invar_backend cpu = {
    .abi = INVAR_BACKEND_ABI,
    .name = "cpu",
    .ops =
        {
#define INVAR_OP(ID, fn, name, revision, numerics) [INVAR_OP_##ID] = {workspace_##fn, run_##fn},
#include "kernels-deterministic/ops.def"
#undef INVAR_OP
        },
};

const invar_backend *invar_backend_cpu(void)
{
    return &cpu;
}
