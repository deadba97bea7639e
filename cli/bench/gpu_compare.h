/*
 * gpu_compare.h - times a GPU op and its peers in turn, and prints a table.
 *
 * Peers come from a shared object (invar bench --peer), which may be written in C++.
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
 * A peer of an op. `run` gets the arguments of the op's call and no workspace, and queues its work
 * on the stream of the device. Short calls are captured in a graph after they have run once outside
 * of it.
 */
typedef struct invar_gpu_compare_peer {
    const char *name; /* NULL at the end of the list */
    invar_op op;
    const char *type; /* type of the rows, such as "bf16" */
    invar_gpu_compare_fn run;
} invar_gpu_compare_peer;

/*
 * Function that a shared object exports as invar_race_peers. Returns its list of peers, or NULL if
 * it has none for this device.
 */
typedef const invar_gpu_compare_peer *(*invar_gpu_compare_peers_fn)(const invar_backend *own);

enum { INVAR_GPU_COMPARE_SETS = 8 };

typedef struct invar_gpu_compare_case {
    invar_op op;
    const char *type, *shape;
    /* arguments for `sets` sets of operands, used in turn */
    const void *args[INVAR_GPU_COMPARE_SETS];
    int sets;
    double work;                 /* FLOP per call, or bytes read and written */
    void *copy_to, *copy_from;   /* buffers of half these bytes for a copy as peer; NULL if `work`
                                    is FLOP */
    int64_t compared, different; /* elements compared with the CPU */
} invar_gpu_compare_case;

typedef struct invar_gpu_compare invar_gpu_compare;

typedef struct invar_gpu_compare_options {
    const char *peer; /* path of a shared object; empty if there is no peer */
    int64_t burst;    /* length of a burst in milliseconds */
    bool json;
} invar_gpu_compare_options;

/* Starts a table. The device must be open and outlive *out. */
invar_status invar_gpu_compare_new(invar_gpu_compare **out, const invar_device *dev,
                                   const invar_gpu_compare_options *options) INVAR_MUST_USE;
void invar_gpu_compare_free(invar_gpu_compare *compare);

/* Times the op, for which the device has scratch memory, and its peers, and prints the row. */
invar_status invar_gpu_compare_run(invar_gpu_compare *compare,
                                   const invar_gpu_compare_case *row) INVAR_MUST_USE;

/* Ends the table; `status` is the result of its rows. Returns the number of rows. */
int invar_gpu_compare_end(invar_gpu_compare *compare, invar_status status);

#endif
