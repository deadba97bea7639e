/*
 * lost.cu - invar on a GPU that fails or has little free memory, for tests/gpu/faults.sh.
 *
 * Linked with --wrap=invar_backend_cuda, so that the program gets the backend table of this file.
 * Environment: INVAR_TEST_LOSE=N launches a kernel that traps after the N-th op, which is a sticky
 * error like any fault of a kernel or of the machine; INVAR_TEST_COUNT=FILE writes the number of
 * ops to FILE at the end; INVAR_TEST_FREE=N leaves only N MiB of the GPU's memory free.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <cstdio>
#include <cstdlib>

#include "kernels-deterministic/cuda/common/cuda.h"

extern "C" const invar_backend *__real_invar_backend_cuda(void);
extern "C" const invar_backend *__wrap_invar_backend_cuda(void);

static __global__ void trap_kernel()
{
    asm volatile("trap;");
}

static long long env_number(const char *name)
{
    const char *text = getenv(name);

    return text ? atoll(text) : 0;
}

static long long calls;

static void write_calls()
{
    const char *name = getenv("INVAR_TEST_COUNT");
    FILE *file = name ? fopen(name, "w") : nullptr;

    if (file) {
        (void)fprintf(file, "%lld\n", calls);
        (void)fclose(file);
    }
}

static invar_status run(const invar_device *dev, invar_op op, const void *args, void *workspace)
{
    static const long long last = env_number("INVAR_TEST_LOSE");
    invar_status status = __real_invar_backend_cuda()->ops[op].run(dev, args, workspace);

    if (++calls == last)
        trap_kernel<<<1, 1, 0, invar_cuda_of(dev)->stream>>>();
    return status;
}

#define INVAR_OP(ID, fn, name, revision, numerics)                                                 \
    static invar_status run_##fn(const invar_device *dev, const void *args, void *workspace)       \
    {                                                                                              \
        return run(dev, INVAR_OP_##ID, args, workspace);                                           \
    }
#include "kernels-deterministic/ops.def"
#undef INVAR_OP

/* Allocates GPU memory until only this number of MiB is free; 0 to allocate nothing. */
static void fill_memory(long long left)
{
    size_t free_bytes = 0, all, kept = (size_t)left << 20, least = (size_t)2 << 20;
    void *block;

    if (left == 0 || cudaMemGetInfo(&free_bytes, &all) != cudaSuccess)
        return;
    // the free memory is not contiguous
    for (size_t bytes = free_bytes; bytes >= least;) {
        (void)cudaMemGetInfo(&free_bytes, &all);
        bytes = free_bytes > kept && bytes > free_bytes - kept ? free_bytes - kept : bytes;
        if (free_bytes <= kept || bytes < least)
            break;
        if (cudaMalloc(&block, bytes) != cudaSuccess)
            bytes /= 2;
    }
    (void)cudaGetLastError();
}

const invar_backend *__wrap_invar_backend_cuda(void)
{
    static invar_backend table;

    if (!table.name) {
        fill_memory(env_number("INVAR_TEST_FREE"));
        (void)atexit(write_calls);
        table = *__real_invar_backend_cuda();
#define INVAR_OP(ID, fn, name, revision, numerics) table.ops[INVAR_OP_##ID].run = run_##fn;
#include "kernels-deterministic/ops.def"
#undef INVAR_OP
    }
    return &table;
}
