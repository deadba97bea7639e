/*
 * cuda_graph_cache.h - captures the ops of decode passes as CUDA graphs and replays them.
 *
 * For small ops the launch takes longer than the kernel, and decode passes repeat the same ops at
 * the same addresses. The cache observes op runners (op_runner.h). A call that it sees for the
 * first time runs at once and is recorded. Calls that repeat the record are held back; if all of
 * them have come when the cache is flushed, they are launched together as one graph. If a call
 * differs, the calls held back so far run one by one, and recording starts again from there.
 *
 * A call is its op, its scratch and every byte of its arguments. No caller has to know what
 * invalidates a graph: it is launched only if nothing has changed.
 *
 * While the cache is active, arrays may be uploaded only to memory that no earlier call reads or
 * writes, and device memory may be read only after a flush (invar_op_runner_download and
 * invar_transfer_runner_run flush). With parallel ranks, the calls between two transfers form one
 * graph. Only decoding uses the cache.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_CUDA_GRAPH_CACHE_H
#define INVAR_ENGINE_MODEL_GRAPH_CUDA_GRAPH_CACHE_H

#include "engine/model/graph/op_runner.h"

/*
 * Shape key under which a sequence of calls is stored. It selects the record to compare with, so it
 * affects speed only.
 */
typedef struct invar_cuda_graph_key {
    int64_t rows, sequences, width; /* `width`: columns of the page table */
} invar_cuda_graph_key;

/* *out = NULL if the backend has no graphs. The op runners that use the cache must outlive it. */
invar_status invar_cuda_graph_cache_new(invar_cuda_graph_cache **out,
                                        const invar_device *dev) INVAR_MUST_USE;
void invar_cuda_graph_cache_free(invar_cuda_graph_cache *graph_cache);

/* Starts observing the calls of a pass. */
void invar_cuda_graph_cache_begin(invar_cuda_graph_cache *graph_cache,
                                  const invar_cuda_graph_key *key);

/*
 * Ends the pass. Ops that are still held back never run: flush before. Does nothing if no pass is
 * active.
 */
void invar_cuda_graph_cache_end(invar_cuda_graph_cache *graph_cache);

/* Receives a call of an op runner that uses this cache: runs it or holds it back. */
invar_status invar_cuda_graph_cache_call(invar_cuda_graph_cache *graph_cache,
                                         invar_op_runner *runner, invar_op op,
                                         const void *args) INVAR_MUST_USE;

/* Launches the ops that are held back. The pass continues. */
invar_status invar_cuda_graph_cache_flush(invar_cuda_graph_cache *graph_cache) INVAR_MUST_USE;

#endif
