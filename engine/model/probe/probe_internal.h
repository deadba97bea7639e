/*
 * probe_internal.h - a probe from the inside: what it keeps of its points.
 *
 * Only the files of the probe include this.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_PROBE_PROBE_INTERNAL_H
#define INVAR_ENGINE_MODEL_PROBE_PROBE_INTERNAL_H

#include "engine/model/graph/host_staging.h"
#include "engine/model/probe/leaf_hasher.h"
#include "engine/model/probe/probe.h"
#include "engine/model/tensor_hasher.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a point has got in this step. */
typedef struct invar_probe_value {
    invar_digest *leaves; /* (count) */
    int64_t count, capacity;
    uint64_t bytes;
    int64_t shards;
    bool present;
    bool whole;   /* nothing may be added */
    bool given;   /* the digest came from elsewhere */
    bool counted; /* there are statistics */
    invar_ledger_stat stat;
    /* Of a part: what was packed of it, and statistics of the samples that were not. */
    struct {
        int64_t leaves, shards;
        uint64_t bytes;
    } packed;
    invar_ledger_stat *samples; /* (n_samples) */
    int64_t n_samples, samples_capacity;
} invar_probe_value;

/* Leaves of a point that are still in far memory: `count` from number `first` on. */
typedef struct invar_probe_pending_leaves {
    int64_t point, first, count;
} invar_probe_pending_leaves;

enum { INVAR_PROBE_SOURCES = 32 };

/* Points that another is computed from. */
typedef struct invar_probe_sources {
    int64_t points[INVAR_PROBE_SOURCES];
    int64_t count;
} invar_probe_sources;

/* A point above the level: what stands for it where it is an input. The k-th has the number -2 - k
 * where the dump wants it. */
typedef struct invar_probe_skipped_point {
    char name[INVAR_LEDGER_NAME_BYTES + 1];
    invar_probe_sources sources;
} invar_probe_skipped_point;

struct invar_probe {
    invar_probe_options options;
    invar_dump *dump;
    /* Arrays of `capacity`; the texts and arrays of a point are one block, points[i].name. */
    invar_ledger_point *points;
    invar_digest *digests;
    invar_probe_value *values;
    int64_t count, capacity;
    invar_ledger_stat *stats; /* (stats_capacity) of the last result */
    int64_t stats_capacity;
    int64_t listed; /* points of the last result */
    invar_probe_skipped_point *absent;
    int64_t n_absent, absent_capacity;
    /* Names of both, hashed: 0, or a key (see key_of_point). */
    int64_t *table; /* (table_size) a power of two, or 0 */
    int64_t table_size;
    invar_host_window window; /* tensors that are read back */
    /* Tensors that are hashed where they are: their points, and the digests that are not read. */
    invar_tensor_hasher digesting;
    int64_t *awaited; /* (digesting.count) */
    int64_t awaited_capacity;
    /* Rows that are hashed where they are: whose leaves those are that are not read, in order. */
    invar_leaf_hasher leaves;
    invar_probe_pending_leaves *far;
    int64_t n_far, far_capacity;
};

/* The key of the name: a point's number and 1; below 0: it is above the level; 0: unknown. */
int64_t invar_probe_find(const invar_probe *probe, const char *name);

/* All leaves that are in far memory, to their points. */
invar_status invar_probe_read_leaves(invar_probe *probe) INVAR_MUST_USE;

/* Room for so many more leaves. */
invar_status invar_probe_grow_leaves(invar_probe_value *value, int64_t count) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
