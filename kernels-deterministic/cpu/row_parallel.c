/*
 * row_parallel.c - independent rows over the device's pool.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cpu/row_parallel.h"

#include "base/invar_banned.h"

#define CACHE_LINE ((size_t)64) // threads must not share a line

typedef struct rows_task {
    const invar_row_parallel_job *job;
    char *workspace;
} rows_task;

static size_t scratch_each(size_t scratch)
{
    return (scratch + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
}

size_t invar_row_parallel_workspace(const invar_device *dev, size_t scratch)
{
    return scratch_each(scratch) * (size_t)invar_pool_threads(dev->pool);
}

static invar_status run_task(void *payload, int64_t task, int worker)
{
    const rows_task *t = payload;
    const invar_row_parallel_job *job = t->job;
    int64_t first = task * job->rows_per_task, end = first + job->rows_per_task;
    void *scratch = NULL;

    if (job->scratch > 0)
        scratch = t->workspace + (size_t)worker * scratch_each(job->scratch);
    for (int64_t row = first; row < end && row < job->rows; row++)
        job->run(job->payload, row, scratch);
    return INVAR_OK;
}

invar_status invar_row_parallel_run(const invar_device *dev, const invar_row_parallel_job *job,
                                    void *workspace)
{
    rows_task task = {job, workspace};
    int64_t tasks = (job->rows + job->rows_per_task - 1) / job->rows_per_task;

    return invar_pool_run(dev->pool, tasks, run_task, &task);
}
