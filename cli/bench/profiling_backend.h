/*
 * profiling_backend.h - times the ops of a device and counts its memory by name.
 *
 * Memory is counted from the time at which the profiler is attached. While profiling is on, the
 * device is synchronized after every op and copy, so that each has a time of its own; the cost of
 * synchronizing an idle device is subtracted.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_BENCH_PROFILING_BACKEND_H
#define INVAR_CLI_BENCH_PROFILING_BACKEND_H

#include "kernels-deterministic/ops.h"

typedef struct invar_profiling_backend invar_profiling_backend;

invar_status invar_profiling_backend_new(invar_profiling_backend **out,
                                         const invar_backend *inner) INVAR_MUST_USE;
void invar_profiling_backend_free(invar_profiling_backend *profiler);

/*
 * Attaches the profiler to a device that is not open yet, and returns its backend, whose ops may be
 * exchanged between calls. The profiler must outlive the device and everything allocated with it.
 */
invar_backend *invar_profiling_backend_attach(invar_device *dev, invar_profiling_backend *profiler);

/* Start and stop profiling. Starting discards earlier times; stopping keeps them. */
invar_status invar_profiling_backend_begin(invar_profiling_backend *profiler,
                                           const invar_device *dev) INVAR_MUST_USE;
void invar_profiling_backend_end(invar_profiling_backend *profiler);

/*
 * Total time of all calls of an op with operands of equal extents, or of all copies in one
 * direction.
 */
typedef struct invar_profile_row {
    const char *name; /* such as "linear.fwd" */
    char shape[48];   /* rows x outputs x inputs or similar; empty if calls are not distinguished */
    int64_t calls;
    double seconds;
} invar_profile_row;

/* Returns the rows, the longest time first; borrowed until profiling starts again. */
const invar_profile_row *invar_profiling_backend_rows(int64_t *count_out,
                                                      invar_profiling_backend *profiler);

/* Returns the seconds between start and stop, without the synchronizations. */
double invar_profiling_backend_seconds(const invar_profiling_backend *profiler);

/* Returns the bytes that are allocated under a name with this prefix; NULL for all names. */
size_t invar_profiling_backend_allocated_bytes(const invar_profiling_backend *profiler,
                                               const char *what);

#endif
