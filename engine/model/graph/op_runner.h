/*
 * op_runner.h - a device whose scratch grows to what its ops ask for.
 *
 * Ops take scratch from an arena of fixed size. A caller owns such an arena and makes a larger one
 * before an op that needs it, so that whoever calls ops need not plan them. Sizes settle after the
 * largest batch; nothing of this reaches a result. A caller stays where it was initialised.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_OP_RUNNER_H
#define INVAR_ENGINE_MODEL_GRAPH_OP_RUNNER_H

#include "kernels-deterministic/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_audit invar_audit;
typedef struct invar_cuda_graph_cache invar_cuda_graph_cache;

typedef struct invar_op_runner {
    invar_device dev;         /* its scratch is the caller's own */
    size_t bytes;             /* of scratch */
    size_t dry_scratch_bytes; /* of scratch by ops that did not run: the device is dry */
    int64_t grown;            /* how often the scratch was replaced */
    invar_audit *audit;       /* engine/model/graph/audit.h; borrowed, NULL: none */
    int64_t layer;            /* whose ops these are, for its findings; -1: of none */
    invar_cuda_graph_cache
        *tape; /* engine/model/graph/cuda_graph_cache.h: hears the calls; borrowed, NULL: none */
} invar_op_runner;

/* Takes everything but the scratch from `dev`. Nothing is allocated yet. */
void invar_op_runner_init(invar_op_runner *caller, const invar_device *dev);

/* Before other memory that its ops worked with: a device that is dry counts its scratch here. */
void invar_op_runner_release(invar_op_runner *caller);

/*
 * On a device that is dry (engine/run/memory_plan/phase_arena.h): takes the scratch that ops wanted
 * so far.
 */
invar_status invar_op_runner_settle(invar_op_runner *caller) INVAR_MUST_USE;

/* `args` is the struct of ops.h that belongs to `op`. A tape may hold the op back. */
invar_status invar_op_runner_run(invar_op_runner *caller, invar_op op,
                                 const void *args) INVAR_MUST_USE;

/* The same, past the tape. */
invar_status invar_op_runner_run_now(invar_op_runner *caller, invar_op op,
                                     const void *args) INVAR_MUST_USE;

/* invar_device_download, once the tape holds nothing back. */
invar_status invar_op_runner_get(invar_op_runner *caller, void *to, const void *from,
                                 size_t bytes) INVAR_MUST_USE;

/* INVAR_CALL(caller, ADD, add, .out = sum, .a = x, .b = y) */
#define INVAR_CALL(caller, ID, fn, ...)                                                            \
    invar_op_runner_run((caller), INVAR_OP_##ID, &(invar_##fn##_args){__VA_ARGS__})

#ifdef __cplusplus
}
#endif
#endif
