/*
 * op_runner.h - runs ops on a device and grows the scratch arena to what they need.
 *
 * Ops take scratch memory from an arena of fixed size. The runner owns the arena and replaces it by
 * a larger one before an op that needs more, so callers need not plan scratch. The size settles
 * after the largest batch and does not affect results. A runner must not be moved after it was
 * initialized: recorded calls refer to it by address.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_OP_RUNNER_H
#define INVAR_ENGINE_MODEL_GRAPH_OP_RUNNER_H

#include "kernels-deterministic/ops.h"

typedef struct invar_audit invar_audit;
typedef struct invar_cuda_graph_cache invar_cuda_graph_cache;

typedef struct invar_op_runner {
    invar_device dev;           /* the device, with the runner's own scratch */
    size_t bytes;               /* size of the scratch */
    size_t dry_scratch_bytes;   /* largest scratch that an op on a dry-run device asked for */
    int64_t scratch_generation; /* number of times that the scratch was replaced */
    invar_audit *audit;         /* engine/model/audit/audit.h; borrowed, may be NULL */
    int64_t layer;              /* layer of the ops, for audit findings; -1 if it is no layer */
    /* engine/model/graph/cuda_graph_cache.h: receives the calls; borrowed, may be NULL */
    invar_cuda_graph_cache *graph_cache;
} invar_op_runner;

/* Copies everything except the scratch from `dev`. Allocates nothing. */
void invar_op_runner_init(invar_op_runner *runner, const invar_device *dev);

/*
 * Frees the scratch. Call it before the memory that the ops worked with is freed: on a dry-run
 * device the scratch is counted here.
 */
void invar_op_runner_release(invar_op_runner *runner);

/*
 * On a dry-run device (engine/run/memory_plan/phase_arena.h): allocates the largest scratch that
 * its ops asked for so far.
 */
invar_status invar_op_runner_alloc_scratch(invar_op_runner *runner) INVAR_MUST_USE;

/* Runs an op. `args` is the op's struct of ops.h. A CUDA graph cache may hold the op back. */
invar_status invar_op_runner_run(invar_op_runner *runner, invar_op op,
                                 const void *args) INVAR_MUST_USE;

/* Like invar_op_runner_run, but never passes the call to the CUDA graph cache. */
invar_status invar_op_runner_run_now(invar_op_runner *runner, invar_op op,
                                     const void *args) INVAR_MUST_USE;

/* Grows the scratch to what the op needs; on a dry-run device, only records its size. */
invar_status invar_op_runner_reserve(invar_op_runner *runner, invar_op op,
                                     const void *args) INVAR_MUST_USE;

/* Downloads from the device, after launching the ops that a CUDA graph cache holds back. */
invar_status invar_op_runner_download(invar_op_runner *runner, void *to, const void *from,
                                      size_t bytes) INVAR_MUST_USE;

/* Example: INVAR_CALL(caller, ADD, add, .out = sum, .a = x, .b = y) */
#define INVAR_CALL(caller, ID, fn, ...)                                                            \
    invar_op_runner_run((caller), INVAR_OP_##ID, &(invar_##fn##_args){__VA_ARGS__})

#endif
