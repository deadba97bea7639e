/*
 * cases.h - helpers for the cases of invar bench: tensors, and how their work is counted.
 *
 * Each op has one function, named after it, so that an op without a benchmark does not link.
 * Tensors live until the op is done. bf16 is the storage of a run; f32 is measured for ops with a
 * peer that needs it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_BENCH_CASES_H
#define INVAR_CLI_BENCH_CASES_H

#include "cli/bench/bench.h"

enum { INVAR_CASE_TOKENS = 1024, INVAR_CASE_WIDTH = 1024, INVAR_CASE_TYPES = 2 };

#define INVAR_OP(ID, fn, name, revision, numerics)                                                 \
    invar_status invar_bench_op_##fn(invar_bench *b) INVAR_MUST_USE;
#include "kernels-deterministic/ops.def"
#undef INVAR_OP

/* Storage types of parameters and activations. */
extern const invar_dtype invar_case_types[INVAR_CASE_TYPES];

/* INVAR_CASE_TOKENS rows as one sample and one unit. */
extern const invar_row_offsets invar_case_whole;

/* ---- tensors --------------------------------------------------------------------------------- */

/* Fills a tensor with pseudo-random values in (-range, range), without zeros and repeated rows. */
void invar_case_fill(const invar_tensor *t, float range);

/* Return a (rows, cols) tensor of zeros, and one filled by invar_case_fill with range 1. */
invar_tensor invar_case_zero(invar_bench *b, invar_dtype dtype, int64_t rows, int64_t cols);
invar_tensor invar_case_make(invar_bench *b, invar_dtype dtype, int64_t rows, int64_t cols);
/* Returns the same elements as a tensor of one dimension. */
invar_tensor invar_case_1d(const invar_tensor *t);

/* Returns the size of a tensor including its scales. */
double invar_case_bytes(const invar_tensor *t);

/* ---- work ------------------------------------------------------------------------------------ */

/* Returns a case of an op that mostly moves data. */
invar_bench_case invar_case_moves(const void *args, invar_dtype type, double bytes);

/* Returns a case of an op whose work is counted in tokens and that has no peer. */
invar_bench_case invar_case_decides(const void *args, invar_dtype type, int64_t tokens);

/* Returns a case of an op whose work is counted in multiply-adds, without a peer. */
invar_bench_case invar_case_multiplies(const void *args, invar_dtype type, double macs);

/* Runs a case with up to three extents; 0 after the last one. */
invar_status invar_case_run(invar_bench *b, invar_bench_case c, int64_t n0, int64_t n1,
                            int64_t n2) INVAR_MUST_USE;

/*
 * Runs a case of matrix products. `products` (experts) are the same products for sgemm, used for
 * f32 only.
 */
invar_status invar_case_products(invar_bench *b, const void *args, invar_dtype type,
                                 const int64_t shape[3], int64_t experts,
                                 const invar_bench_gemm *products) INVAR_MUST_USE;

#endif
