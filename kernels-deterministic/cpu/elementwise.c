/*
 * elementwise.c - runs element-wise work over the device's pool, in pieces of rows. The ops add and
 * scale are in token_sums.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cpu/elementwise.h"

#include "kernels-deterministic/cpu/row_parallel.h"

#include "base/invar_banned.h"

#define PIECES_PER_TASK 16

typedef struct piece_job {
    int64_t cols;
    int64_t across; /* pieces per row */
    invar_elementwise_fn run;
    const void *payload;
} piece_job;

static void run_piece(const void *payload, int64_t piece, void *scratch)
{
    const piece_job *job = payload;
    int64_t first = piece % job->across * INVAR_PIECE, left = job->cols - first;

    (void)scratch;
    job->run(job->payload, piece / job->across, first, left < INVAR_PIECE ? left : INVAR_PIECE);
}

invar_status invar_elementwise_run(const invar_device *dev, int64_t rows, int64_t cols,
                                   invar_elementwise_fn run, const void *payload)
{
    piece_job job = {cols, (cols + INVAR_PIECE - 1) / INVAR_PIECE, run, payload};
    invar_row_parallel_job pieces = {rows * job.across, PIECES_PER_TASK, 0, run_piece, &job};

    return invar_row_parallel_run(dev, &pieces, NULL);
}
