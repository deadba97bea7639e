/*
 * bench.h - interface between bench.c (timing, peers, table) and the cases of single ops (cases.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_BENCH_BENCH_H
#define INVAR_CLI_BENCH_BENCH_H

#include <stdbool.h>

#include "kernels-deterministic/ops.h"

/* One run of invar bench. The struct is private to bench.c. */
typedef struct invar_bench invar_bench;

typedef enum invar_bench_unit {
    INVAR_BENCH_UNIT_MAC,  /* multiply-adds */
    INVAR_BENCH_UNIT_BYTE, /* bytes read or written; accumulators count twice */
    INVAR_BENCH_UNIT_TOKEN
} invar_bench_unit;

/* Peer of a case. For ops that depend on the dot-step, the peer of sm90 is our own ieee chain. */
typedef enum invar_bench_peer {
    INVAR_BENCH_PEER_NONE,
    INVAR_BENCH_PEER_COPY,  /* memcpy that reads and writes the same number of bytes as the op */
    INVAR_BENCH_PEER_SGEMM, /* OpenBLAS on the same matrices */
    INVAR_BENCH_PEER_XXH3   /* XXH3-128 over `hashed` in one call */
} invar_bench_peer;

/* Matrix product c = a b, or c += a b, with optional transposition of a and b; f32, contiguous. */
typedef struct invar_bench_gemm {
    invar_tensor c; /* (m, n) */
    invar_tensor a; /* (m, k), or (k, m) if transposed */
    invar_tensor b; /* (k, n), or (n, k) if transposed */
    bool transpose_a;
    bool transpose_b;
    bool accumulate;
} invar_bench_gemm;

enum { INVAR_BENCH_MAX_RANK = 5 };

typedef struct invar_bench_case {
    const void *args;                        /* struct of ops.h for the current op */
    int64_t shape[INVAR_BENCH_MAX_RANK + 1]; /* extents, terminated by 0 */
    invar_dtype type;
    invar_bench_unit unit;
    double work; /* units of work per call */
    invar_bench_peer peer;
    const invar_bench_gemm *products; /* (n_products) for INVAR_BENCH_PEER_SGEMM */
    int64_t n_products;
    const void *hashed; /* (work) bytes for INVAR_BENCH_PEER_XXH3 */
} invar_bench_case;

/* Benchmark of one op: creates its tensors and passes its cases to invar_bench_run. */
typedef invar_status (*invar_bench_fn)(invar_bench *bench);

extern const invar_bench_fn invar_bench_ops[INVAR_OP_COUNT];

/*
 * Returns memory that is valid until the current op is done, aligned to INVAR_ALIGN and
 * uninitialized.
 */
void *invar_bench_alloc(invar_bench *bench, size_t bytes);

/* Returns the seconds of a monotonic clock. */
double invar_bench_now(void);

/*
 * Returns the next of pseudo-random, approximately normal numbers with the deviation
 * INVAR_BENCH_NOISE.
 */
float invar_bench_noise(uint64_t *state);
#define INVAR_BENCH_NOISE 0.577f

/* Runs an op once without timing, to prepare the tensors of another op. */
invar_status invar_bench_prepare(invar_bench *bench, invar_op op, const void *args) INVAR_MUST_USE;

/* Returns INVAR_E_INVALID if no op has `only` in its name. */
invar_status invar_bench_check_selection(const char *only) INVAR_MUST_USE;

/*
 * Runs the benchmarks of ops whose name contains `only` on the CPU, with 1 thread and with
 * `threads`, and prints their rows.
 */
invar_status invar_bench_cpu(const char *only, int threads, bool json) INVAR_MUST_USE;

/* Times a case of the current op and its peer with every number of threads, and prints the rows. */
invar_status invar_bench_run(invar_bench *bench, const invar_bench_case *c) INVAR_MUST_USE;

#endif
