/*
 * profile.h - every op and copy of one device: when it ran, for how long, in which phase.
 *
 *     invar_profile_new(&profile);
 *     dev.meter = invar_profile_meter(profile);          before anything copies the device
 *     invar_profile_switch(profile, true);               the window begins
 *     invar_profile_phase(profile, "train");  ...        ops run
 *     invar_profile_flush(profile);  invar_profile_take(&taken, profile);
 *
 * Times are those of the device: on a GPU of events on its stream, which are read when something
 * waits for the GPU anyway, or every few thousand ops; else of the host's clock. Ops of a graph run
 * one by one in the window (engine/model/graph/cuda_graph_cache.h). No result depends on any of
 * this, and a profile that fails says so when it is taken, and is not complete.
 *
 * One thread calls ops of the device and settles; another may switch, name the phase and take.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_PROFILE_H
#define INVAR_ENGINE_RECORD_PROFILE_H

#include "kernels-deterministic/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_profile invar_profile;

#define INVAR_PROFILE_EVENTS 1000000    /* between two takes; those beyond are in the sums alone */
#define INVAR_PROFILE_SAMPLE_NS 5000000 /* memory is looked at no more often */

/* An op or a copy; or, without a name, how much memory there was. */
typedef struct invar_profile_event {
    const char *name;     /* "linear.fwd"; NULL: memory */
    const char *phase;    /* in which it was called */
    const char *operands; /* "out bf16[8,64] x bf16[8,32] w bf16[64,32]"; "" of a copy */
    int64_t start_ns;     /* Unix time */
    int64_t duration_ns;
    size_t bytes; /* of its scratch; that it copied; or of the memory that is taken */
} invar_profile_event;

/* All calls of an op in a phase. */
typedef struct invar_profile_sum {
    const char *phase, *op;
    int64_t calls, duration_ns, longest_ns;
} invar_profile_sum;

/* Borrowed until the next one is taken. */
typedef struct invar_profile_batch {
    const invar_profile_event *events; /* by the order of their ends */
    size_t n_events;
    int64_t left_out; /* beyond these */
    const invar_profile_sum *sums;
    size_t n_sums;
} invar_profile_batch;

invar_status invar_profile_new(invar_profile **out) INVAR_MUST_USE;
void invar_profile_free(invar_profile *profile);

invar_op_profiler *invar_profile_meter(invar_profile *profile);

void invar_profile_switch(invar_profile *profile, bool on);

/* Ops from now on belong to it: a constant. NULL: to none. */
void invar_profile_phase(invar_profile *profile, const char *phase);

/* All ops so far have a time afterwards: waits for them. */
void invar_profile_flush(invar_profile *profile);

/* What has a time and was not taken yet. Fails with what failed since then. */
invar_status invar_profile_take(invar_profile_batch *out, invar_profile *profile) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
