/*
 * peers.h - shared objects with the ops of a peer, for the program bench.peers; also for C++.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_BENCH_PEERS_H
#define INVAR_TESTS_BENCH_PEERS_H

#include "kernels-deterministic/ops.h"

/*
 * A peer of an op. `run` gets the arguments of the op's call and no workspace, and queues its work
 * on the stream of the device. Short calls are captured in a graph after they have run once outside
 * of it.
 */
typedef struct invar_gpu_compare_peer {
    const char *name; /* NULL at the end of the list */
    invar_op op;
    const char *type; /* type of the rows, such as "bf16" */
    invar_status (*run)(const invar_device *dev, const void *args, void *workspace);
} invar_gpu_compare_peer;

/*
 * Function that a shared object exports as invar_race_peers. Returns its list of peers, or NULL if
 * it has none for this device.
 */
typedef const invar_gpu_compare_peer *(*invar_gpu_compare_peers_fn)(const invar_backend *own);

/*
 * Function that a peer of complete models exports as invar_bench_peer. Returns a backend with other
 * ops and the same memory functions, or NULL. It must accept devices of `own`.
 */
typedef const invar_backend *(*invar_bench_peer_fn)(const invar_backend *own);

#endif
