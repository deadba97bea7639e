/*
 * row_parallel.h - independent rows over the device's pool.
 *
 * For ops whose output row depends on nothing that another row writes. Which thread computes a row
 * and how many rows make a task never shows in a bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CPU_ROW_PARALLEL_H
#define INVAR_KERNELS_CPU_ROW_PARALLEL_H

#include "kernels-deterministic/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_row_parallel_job {
    int64_t rows;
    int64_t rows_per_task; /* >= 1: more for cheap rows */
    size_t scratch;        /* bytes that `run` needs; undefined at first, aligned to 64 bytes */
    void (*run)(const void *payload, int64_t row, void *scratch);
    const void *payload;
} invar_row_parallel_job;

/* What invar_row_parallel_run needs for rows with `scratch` bytes each; 0 for 0. */
size_t invar_row_parallel_workspace(const invar_device *dev, size_t scratch);

invar_status invar_row_parallel_run(const invar_device *dev, const invar_row_parallel_job *job,
                                    void *workspace) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
