/*
 * backend.c - the backend table of the CPU: its ops, and memory on the heap.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cpu/cpu.h"

#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

/* Calls each op with its real argument type, because function pointers must not be converted. */
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

/* ---- memory: the heap ------------------------------------------------------------------------ */

static invar_status cpu_alloc(const invar_device *dev, void **out, size_t bytes, const char *what)
{
    (void)dev;
    return invar_alloc(out, bytes, 1, what);
}

static void cpu_free(const invar_device *dev, void *block)
{
    (void)dev;
    invar_free(block);
}

static invar_status cpu_copy(const invar_device *dev, void *to, const void *from, size_t bytes)
{
    (void)dev;
    if (bytes > 0)
        memcpy(to, from, bytes);
    return INVAR_OK;
}

static invar_status cpu_copy_strided(const invar_device *dev, void *to, const void *from,
                                     size_t bytes, size_t stride, size_t count)
{
    for (size_t i = 0; i < count; i++)
        INVAR_TRY(cpu_copy(dev, (char *)to + i * stride, (const char *)from + i * stride, bytes));
    return INVAR_OK;
}

static invar_status cpu_zero(const invar_device *dev, void *at, size_t bytes)
{
    (void)dev;
    if (bytes > 0)
        memset(at, 0, bytes);
    return INVAR_OK;
}

static invar_status cpu_synchronize(const invar_device *dev)
{
    (void)dev;
    return INVAR_OK;
}

static const invar_backend cpu = {
    .abi = INVAR_BACKEND_ABI,
    .name = "cpu",
    .memory = {false, cpu_alloc, cpu_free, cpu_alloc, cpu_free, NULL, NULL, cpu_copy, cpu_copy,
               cpu_copy, cpu_copy_strided, cpu_zero, cpu_synchronize},
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
