/*
 * profile.h - measures every op and copy of one device: start, duration and phase.
 *
 *     invar_profile_new(&profile);
 *     dev.profiler = invar_profile_meter(profile);       before anything copies the device
 *     invar_profile_switch(profile, true);               the window begins
 *     invar_profile_phase(profile, "train");  ...        ops run
 *     invar_profile_flush(profile);  invar_profile_take(&taken, profile);
 *
 * Times are device times: on a GPU those of events on its stream, read when something waits for the
 * GPU anyway or every few thousand ops; else times of the host's clock. In the window, ops of a
 * CUDA graph run one by one (engine/model/graph/cuda_graph_cache.h). No result depends on a
 * profile. A failure is reported by invar_profile_take, and the profile is then incomplete.
 *
 * Threads: one thread calls ops of the device and flushes; another one may switch, set the phase
 * and take.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_PROFILE_H
#define INVAR_ENGINE_RECORD_PROFILE_H

#include "kernels-deterministic/device.h"

typedef struct invar_profile invar_profile;

#define INVAR_PROFILE_EVENTS 1000000 /* events between two takes; later ones are in the sums only */
#define INVAR_PROFILE_SAMPLE_NS 5000000 /* shortest time between two memory samples */

/* An op, a copy, or a sample of the memory in use. */
typedef struct invar_profile_event {
    const char *name;     /* "linear.fwd"; NULL for a memory sample */
    const char *phase;    /* phase of the call */
    const char *operands; /* "out bf16[8,64] x bf16[8,32] w bf16[64,32]"; empty for a copy */
    int64_t start_ns;     /* Unix time */
    int64_t duration_ns;
    size_t bytes; /* scratch of an op, size of a copy, or memory in use */
} invar_profile_event;

/* Sum over all calls of an op in a phase. */
typedef struct invar_profile_sum {
    const char *phase, *op;
    int64_t calls, duration_ns, longest_ns;
} invar_profile_sum;

/* Events and sums since the last take. Borrowed until the next take. */
typedef struct invar_profile_batch {
    const invar_profile_event *events; /* in the order of their ends */
    size_t n_events;
    int64_t left_out; /* events that exceeded INVAR_PROFILE_EVENTS */
    const invar_profile_sum *sums;
    size_t n_sums;
} invar_profile_batch;

invar_status invar_profile_new(invar_profile **out) INVAR_MUST_USE;
void invar_profile_free(invar_profile *profile);

/* Returns the profiler to install in the device; NULL if `profile` is NULL. */
invar_op_profiler *invar_profile_meter(invar_profile *profile);

/* Starts or stops measuring. */
void invar_profile_switch(invar_profile *profile, bool on);

/* Sets the phase of the following ops: a constant, or NULL outside of phases. */
void invar_profile_phase(invar_profile *profile, const char *phase);

/* Waits for all measured ops, so that they have a time. */
void invar_profile_flush(invar_profile *profile);

/*
 * Returns the events that have a time and were not taken yet. Fails with the first failure since
 * the last call.
 */
invar_status invar_profile_take(invar_profile_batch *out, invar_profile *profile) INVAR_MUST_USE;

#endif
