/*
 * gpu_compare.h - an op on a GPU and its peers, timed in turn, and the rows that come of it.
 *
 * The peers come from a shared object (invar bench --peer), which may be C++.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_BENCH_GPU_COMPARE_H
#define INVAR_CLI_BENCH_GPU_COMPARE_H

#include <stdbool.h>

#include "kernels-deterministic/ops.h"

typedef invar_status (*invar_gpu_compare_fn)(const invar_device *dev, const void *args,
                                             void *workspace);

/*
 * Something to set beside an op: `run` gets the arguments of the op's call, and no workspace. It
 * queues its work on the device's stream; where a call is short it is recorded in a graph, once it
 * has run outside of one.
 */
typedef struct invar_gpu_compare_peer {
    const char *name; /* NULL: the end of the list */
    invar_op op;
    const char *type; /* of the rows: "bf16" */
    invar_gpu_compare_fn run;
} invar_gpu_compare_peer;

/* What a shared object exports as invar_race_peers: its list; NULL: none for this device. */
typedef const invar_gpu_compare_peer *(*invar_gpu_compare_peers_fn)(const invar_backend *own);

enum { INVAR_GPU_COMPARE_SETS = 8 };

typedef struct invar_gpu_compare_case {
    invar_op op;
    const char *type, *shape;
    /* of as many sets of operands, which are used in turn */
    const void *args[INVAR_GPU_COMPARE_SETS];
    int sets;
    double work;                 /* of a call: FLOP, or bytes that are read and written */
    void *copy_to, *copy_from;   /* half of these bytes each, to copy as a peer; NULL: FLOP */
    int64_t compared, different; /* elements, with the CPU */
} invar_gpu_compare_case;

typedef struct invar_gpu_compare invar_gpu_compare;

typedef struct invar_gpu_compare_options {
    const char *peer; /* the path of a shared object; "": none */
    int64_t burst;    /* milliseconds */
    bool json;
} invar_gpu_compare_options;

/* The device is open and outlives the race. */
invar_status invar_gpu_compare_new(invar_gpu_compare **out, const invar_device *dev,
                                   const invar_gpu_compare_options *options) INVAR_MUST_USE;
void invar_gpu_compare_free(invar_gpu_compare *race);

/* Times the op, whose scratch the device has, and its peers; prints the row. */
invar_status invar_gpu_compare_run(invar_gpu_compare *race,
                                   const invar_gpu_compare_case *row) INVAR_MUST_USE;

/* Ends what is printed, after rows that came out with `status`; yields their number. */
int invar_gpu_compare_end(invar_gpu_compare *race, invar_status status);

#endif
