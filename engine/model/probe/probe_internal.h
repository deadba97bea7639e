/*
 * probe_internal.h - state of a probe: points, their values of this step, data in device memory.
 *
 * Private to probe.c and probe_serialize.c. Points and skipped points share one name table. Leaves
 * that are still in device memory have reserved slots in their points; invar_probe_read_leaves must
 * run before any code reads them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_PROBE_PROBE_INTERNAL_H
#define INVAR_ENGINE_MODEL_PROBE_PROBE_INTERNAL_H

#include "engine/model/graph/host_staging.h"
#include "engine/model/probe/leaf_hasher.h"
#include "engine/model/probe/probe.h"
#include "engine/model/tensor_hasher.h"

/* Value of a point in the current step. */
typedef struct invar_probe_value {
    invar_digest *leaves; /* (count) */
    int64_t count, capacity;
    uint64_t bytes;
    int64_t shards;
    bool present;
    bool complete;        /* complete: nothing may be added */
    bool external_digest; /* the digest was computed elsewhere */
    bool has_stats;       /* `stat` is valid */
    invar_ledger_stat stat;
    /*
     * Partial probe: amounts that have been packed, and statistics of the samples not packed yet.
     */
    struct {
        int64_t leaves, shards;
        uint64_t bytes;
    } packed;
    invar_ledger_stat *samples; /* (n_samples) */
    int64_t n_samples, samples_capacity;
} invar_probe_value;

/* Leaves of a point that are still in device memory: numbers [first, first + count). */
typedef struct invar_probe_pending_leaves {
    int64_t point, first, count;
} invar_probe_pending_leaves;

enum { INVAR_PROBE_SOURCES = 32 };

/* Points that another point was computed from. */
typedef struct invar_probe_sources {
    int64_t points[INVAR_PROBE_SOURCES];
    int64_t count;
} invar_probe_sources;

/*
 * A point above the level, and the points that replace it as an input. The k-th has the point
 * number -2 - k if the dump wants it.
 */
typedef struct invar_probe_skipped_point {
    char name[INVAR_LEDGER_NAME_BYTES + 1];
    invar_probe_sources sources;
} invar_probe_skipped_point;

struct invar_probe {
    invar_probe_options options;
    invar_dump *dump;
    /*
     * Arrays of `capacity`. The texts and arrays of a point are one allocation, which starts at
     * points[i].name.
     */
    invar_ledger_point *points;
    invar_digest *digests;
    invar_probe_value *values;
    int64_t count, capacity;
    invar_ledger_stat *stats; /* (stats_capacity) of the last result */
    int64_t stats_capacity;
    int64_t listed; /* number of points in the last result */
    invar_probe_skipped_point *skipped;
    int64_t n_skipped, skipped_capacity;
    /*
     * Hash table of the names of points and skipped points: 0 if free, or a key (see key_of_point).
     */
    int64_t *table; /* (table_size) slots; table_size is a power of two, or 0 */
    int64_t table_size;
    invar_host_window window; /* window to tensors that are read back */
    /* Complete tensors that are hashed on the device when the step is finished. */
    invar_tensor_hasher digesting;
    int64_t *awaited; /* (digesting.count) point of each tensor */
    int64_t awaited_capacity;
    /* Rows that were hashed on the device and not read yet, and whose leaves they are, in order. */
    invar_leaf_hasher leaves;
    invar_probe_pending_leaves *pending;
    int64_t n_pending, pending_capacity;
};

/*
 * Returns the key of a name: point number + 1; negative if it is above the level; 0 if it is
 * unknown.
 */
int64_t invar_probe_find(const invar_probe *probe, const char *name);

/* Downloads all pending leaves and stores them in their points. */
invar_status invar_probe_read_leaves(invar_probe *probe) INVAR_MUST_USE;

/* Ensures capacity for `count` more leaves. */
invar_status invar_probe_grow_leaves(invar_probe_value *value, int64_t count) INVAR_MUST_USE;

#endif
