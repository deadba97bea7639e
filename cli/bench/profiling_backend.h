/*
 * profiling_backend.h - a backend that passes everything on to another one, and measures.
 *
 * Its table stands where a backend's own would stand, so the engine above it is the one that runs
 * otherwise. Its own memory, not the host's, is always counted. Time is taken while the meter is
 * on: then the device is waited for after every op and every copy, so that each has its own; what
 * such a wait takes on an idle device is left out again. The backend behind it can be exchanged
 * between ops for one with the same memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_BENCH_PROFILING_BACKEND_H
#define INVAR_CLI_BENCH_PROFILING_BACKEND_H

#include "kernels-deterministic/ops.h"

typedef struct invar_profiling_backend invar_profiling_backend;

invar_status invar_profiling_backend_new(invar_profiling_backend **out,
                                         const invar_backend *behind) INVAR_MUST_USE;
void invar_profiling_backend_free(invar_profiling_backend *meter);

/* For a device, and all that is made with it; the meter outlives them. */
const invar_backend *invar_profiling_backend_backend(const invar_profiling_backend *meter);

void invar_profiling_backend_exchange(invar_profiling_backend *meter, const invar_backend *behind);

/* Takes times from now on, and forgets those it has; or ends it, and keeps them. */
invar_status invar_profiling_backend_begin(invar_profiling_backend *meter,
                                           const invar_device *dev) INVAR_MUST_USE;
void invar_profiling_backend_end(invar_profiling_backend *meter);

/* All calls of an op with operands of these extents, or all copies in one direction. */
typedef struct invar_profile_row {
    const char *name; /* "linear.fwd" */
    char shape[48];   /* rows x outputs x inputs and the like; "": not told apart */
    int64_t calls;
    double seconds;
} invar_profile_row;

/* The longest first; borrowed until the next begin. */
const invar_profile_row *invar_profiling_backend_rows(int64_t *count_out,
                                                      invar_profiling_backend *meter);

/* Seconds from begin to end, without the waits. */
double invar_profiling_backend_seconds(const invar_profiling_backend *meter);

/* Bytes that are taken now under this name; NULL: of all names. */
size_t invar_profiling_backend_taken(const invar_profiling_backend *meter, const char *what);

#endif
