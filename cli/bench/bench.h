/*
 * bench.h - what bench.c (timing, peers, the table) and the cases (cases.h) share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_BENCH_BENCH_H
#define INVAR_CLI_BENCH_BENCH_H

#include <stdbool.h>

#include "cli/bench/gpu_compare.h"
#include "kernels-deterministic/ops.h"

/* One run of invar bench; bench.c knows what is inside. */
typedef struct invar_bench invar_bench;

typedef enum invar_bench_unit {
    INVAR_BENCH_UNIT_MAC,  /* products of a sum */
    INVAR_BENCH_UNIT_BYTE, /* read or written; what accumulates counts twice */
    INVAR_BENCH_UNIT_TOKEN
} invar_bench_unit;

/* What a case is set beside. Where the dot-step decides, sm90 is set beside our own ieee. */
typedef enum invar_bench_peer {
    INVAR_BENCH_PEER_NONE,
    INVAR_BENCH_PEER_COPY,  /* memcpy that reads and writes as many bytes as the op */
    INVAR_BENCH_PEER_SGEMM, /* OpenBLAS, the same products */
    INVAR_BENCH_PEER_XXH3   /* XXH3-128 over `hashed` in one call */
} invar_bench_peer;

/* c = a b, or c += a b; a may be used transposed, b too. f32, contiguous. */
typedef struct invar_bench_gemm {
    invar_tensor c; /* (m, n) */
    invar_tensor a; /* (m, k), or (k, m) transposed */
    invar_tensor b; /* (k, n), or (n, k) transposed */
    bool transpose_a;
    bool transpose_b;
    bool accumulate;
} invar_bench_gemm;

enum { INVAR_BENCH_MAX_RANK = 5 };

typedef struct invar_bench_case {
    const void *args;                        /* struct of ops.h for the current op */
    int64_t shape[INVAR_BENCH_MAX_RANK + 1]; /* ends with 0 */
    invar_dtype type;
    invar_bench_unit unit;
    double work; /* in units, per call */
    invar_bench_peer peer;
    const invar_bench_gemm *products; /* (n_products) for INVAR_BENCH_PEER_SGEMM */
    int64_t n_products;
    const void *hashed; /* `work` bytes for INVAR_BENCH_PEER_XXH3 */
} invar_bench_case;

/* The benchmark of one op: makes its tensors, then hands over its cases. */
typedef invar_status (*invar_bench_fn)(invar_bench *bench);

extern const invar_bench_fn invar_bench_ops[INVAR_OP_COUNT];

/* Memory until the current op is done, aligned to INVAR_ALIGN, its content undefined. */
void *invar_bench_take(invar_bench *bench, size_t bytes);

/* Seconds of a clock that only goes forward. */
double invar_bench_now(void);

/* The next of numbers that are about normal, with a deviation of INVAR_BENCH_NOISE. */
float invar_bench_noise(uint64_t *state);
#define INVAR_BENCH_NOISE 0.577f

/* Runs an op once, outside the timing: to prepare the tensors of another. */
invar_status invar_bench_prepare(invar_bench *bench, invar_op op, const void *args) INVAR_MUST_USE;

/* The same on a GPU, for ops with `only` in their names; `pool` is for the comparison. */
invar_status invar_bench_gpu(const char *only, const invar_gpu_compare_options *options,
                             invar_pool *pool) INVAR_MUST_USE;

/* Times a case of the current op, and its peer, under every thread count; prints the rows. */
invar_status invar_bench_run(invar_bench *bench, const invar_bench_case *c) INVAR_MUST_USE;

#endif
