/*
 * cuda_graph_cache.h - calls of ops that come again, run as one.
 *
 * Launching an op takes a host longer than many ops take a GPU, and the passes of decoding are the
 * same calls again and again: the same ops at the same addresses, only what lies there differs. A
 * tape listens to callers (op_runner.h). A call that it has not heard before runs at once and is
 * noted. Calls that come again as they were are held back, and when the last of them has come, they
 * run together as a graph of the backend. Where one differs, those held back run in their order,
 * and from there on the tape notes anew.
 *
 * A call is its op, its scratch and every byte of its arguments. So nobody has to know what may
 * change a graph: a graph runs when nothing has changed.
 *
 * While a tape listens, arrays may be put where no call before reads or writes, and whoever reads
 * the device's memory flushes the tape first (invar_op_runner_get, invar_transfer_runner_run): of
 * ranks that
 * divide layers, the calls between two moves are a graph. Only decoding uses one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_CUDA_GRAPH_CACHE_H
#define INVAR_ENGINE_MODEL_GRAPH_CUDA_GRAPH_CACHE_H

#include "engine/model/graph/op_runner.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a run of calls is found again by: any numbers that usually differ where the calls do. */
typedef struct invar_cuda_graph_key {
    int64_t rows, sequences, width;
} invar_cuda_graph_key;

/* *out = NULL where the backend has no graphs. The callers that it hears outlive it. */
invar_status invar_cuda_graph_cache_new(invar_cuda_graph_cache **out,
                                        const invar_device *dev) INVAR_MUST_USE;
void invar_cuda_graph_cache_free(invar_cuda_graph_cache *tape);

/* Listens. */
void invar_cuda_graph_cache_begin(invar_cuda_graph_cache *tape, const invar_cuda_graph_key *key);

/* Ends it; what is held back never runs. Nothing when it does not listen. */
void invar_cuda_graph_cache_end(invar_cuda_graph_cache *tape);

/* A call of a caller whose tape this is. */
invar_status invar_cuda_graph_cache_call(invar_cuda_graph_cache *tape, invar_op_runner *caller,
                                         invar_op op, const void *args) INVAR_MUST_USE;

/* What was held back is on its way to the device afterwards; goes on listening. */
invar_status invar_cuda_graph_cache_flush(invar_cuda_graph_cache *tape) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
