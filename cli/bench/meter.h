/*
 * meter.h - a backend that passes everything on to another one, and measures.
 *
 * Its table stands where a backend's own would stand, so the engine above it is the one that runs
 * otherwise. Its own memory, not the host's, is always counted. Time is taken while the meter is
 * on: then the device is waited for after every op and every copy, so that each has its own; what
 * such a wait takes on an idle device is left out again. The backend behind it can be exchanged
 * between ops for one with the same memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_BENCH_METER_H
#define INVAR_CLI_BENCH_METER_H

#include "kernels-deterministic/ops.h"

typedef struct invar_meter invar_meter;

invar_status invar_meter_new(invar_meter **out, const invar_backend *behind) INVAR_MUST_USE;
void invar_meter_free(invar_meter *meter);

/* For a device, and all that is made with it; the meter outlives them. */
const invar_backend *invar_meter_backend(const invar_meter *meter);

void invar_meter_exchange(invar_meter *meter, const invar_backend *behind);

/* Takes times from now on, and forgets those it has; or ends it, and keeps them. */
invar_status invar_meter_begin(invar_meter *meter, const invar_device *dev) INVAR_MUST_USE;
void invar_meter_end(invar_meter *meter);

/* All calls of an op with operands of these extents, or all copies in one direction. */
typedef struct invar_meter_row {
    const char *name; /* "linear.fwd" */
    char shape[48];   /* rows x outputs x inputs and the like; "": not told apart */
    int64_t calls;
    double seconds;
} invar_meter_row;

/* The longest first; borrowed until the next begin. */
const invar_meter_row *invar_meter_rows(int64_t *count_out, invar_meter *meter);

/* Seconds from begin to end, without the waits. */
double invar_meter_seconds(const invar_meter *meter);

/* Bytes that are taken now under this name; NULL: of all names. */
size_t invar_meter_taken(const invar_meter *meter, const char *what);

#endif
