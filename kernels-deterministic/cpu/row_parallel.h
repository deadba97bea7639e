/*
 * row_parallel.h - runs independent rows on the thread pool.
 *
 * For ops whose output row depends on nothing that another row writes. Neither the thread that
 * computes a row nor the number of rows per task changes a bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CPU_ROW_PARALLEL_H
#define INVAR_KERNELS_CPU_ROW_PARALLEL_H

#include "kernels-deterministic/device.h"

typedef struct invar_row_parallel_job {
    int64_t rows;
    int64_t rows_per_task; /* at least 1; more if rows are cheap */
    size_t scratch;        /* bytes per thread, undefined content, aligned to 64 bytes if the
                              workspace is; 0 for no scratch */
    void (*run)(const void *payload, int64_t row, void *scratch);
    const void *payload;
} invar_row_parallel_job;

/* Returns the bytes of workspace for `scratch` bytes per thread; 0 for 0 bytes. */
size_t invar_row_parallel_workspace(const invar_device *dev, size_t scratch);

/* Runs all rows. `workspace` has invar_row_parallel_workspace(dev, job->scratch) bytes. */
invar_status invar_row_parallel_run(const invar_device *dev, const invar_row_parallel_job *job,
                                    void *workspace) INVAR_MUST_USE;

/*
 * Defines the two functions of an op whose rows are independent. `count` is the number of rows and
 * `bytes` the scratch of a thread, both for the arguments `a`; `one` computes a row.
 */
#define INVAR_ROW_PARALLEL_OP(fn, count, per_task, bytes, one)                                     \
    size_t invar_cpu_##fn##_workspace(const invar_device *dev, const invar_##fn##_args *a)         \
    {                                                                                              \
        (void)a;                                                                                   \
        return invar_row_parallel_workspace(dev, (bytes));                                         \
    }                                                                                              \
    invar_status invar_cpu_##fn(const invar_device *dev, const invar_##fn##_args *a,               \
                                void *workspace)                                                   \
    {                                                                                              \
        invar_row_parallel_job job = {(count), (per_task), (bytes), one, a};                       \
                                                                                                   \
        return invar_row_parallel_run(dev, &job, workspace);                                       \
    }

#endif
