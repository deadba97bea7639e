/*
 * gpu.h - interface between the files of invar bench --device cuda.
 *
 * gpu.c has the run, and products and attention of training; gpu_rows.c the ops that move data;
 * gpu_experts.c the ops of a mixture of experts. Memory of a row lives until
 * invar_gpu_bench_end_row.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_BENCH_GPU_H
#define INVAR_CLI_BENCH_GPU_H

#include "cli/bench/gpu_compare.h"

typedef struct invar_gpu_bench {
    invar_device gpu;
    invar_device cpu;
    const char *only; /* substring of the op names to measure */
    invar_gpu_compare *compare;
    int64_t compared, different; /* number of elements */
    uint16_t *noise;             /* bf16 values */
    void *row_blocks[64];        /* device memory of the current row */
    int n_row_blocks;
} invar_gpu_bench;

/*
 * Runs the GPU benchmarks of ops whose name contains `only`. `pool` is used for the comparison with
 * the CPU.
 */
invar_status invar_bench_gpu(const char *only, const invar_gpu_compare_options *options,
                             invar_pool *pool) INVAR_MUST_USE;

/* ---- device memory, valid until the row ends ------------------------------------------------- */

size_t invar_gpu_bench_bytes(invar_dtype dtype, int64_t rows, int64_t cols);
invar_status invar_gpu_bench_device_alloc(void **out, invar_gpu_bench *b,
                                          size_t bytes) INVAR_MUST_USE;

/* Fills memory with noise: as bf16, as f32 (bf16 in the high halves), or as bytes. */
invar_status invar_gpu_bench_fill(invar_gpu_bench *b, void *to, size_t bytes) INVAR_MUST_USE;

/* Allocate a tensor of noise, and an uninitialized one for results. */
invar_status invar_gpu_bench_make(invar_tensor *out, invar_gpu_bench *b, invar_dtype dtype,
                                  int64_t rows, int64_t cols) INVAR_MUST_USE;
invar_status invar_gpu_bench_alloc(invar_tensor *out, invar_gpu_bench *b, invar_dtype dtype,
                                   int64_t rows, int64_t cols) INVAR_MUST_USE;
/* Allocates noise in a quantized format with one scale per `scale_rows` rows (tensor.h). */
invar_status invar_gpu_bench_quantized(invar_tensor *out, invar_gpu_bench *b, invar_dtype dtype,
                                       int32_t scale_rows, int64_t rows,
                                       int64_t cols) INVAR_MUST_USE;
/* Allocates a copy of `from` (bytes), which is host memory. */
invar_status invar_gpu_bench_array(void **out, invar_gpu_bench *b, const void *from,
                                   size_t bytes) INVAR_MUST_USE;

/* Allocates `count` i32 values i * step % bound. */
invar_status invar_gpu_bench_indices(invar_tensor *out, invar_gpu_bench *b, int64_t count,
                                     int64_t bound, int64_t step) INVAR_MUST_USE;

/* ---- comparison with the CPU ----------------------------------------------------------------- */

enum { INVAR_GPU_ROW_CHECK_TENSORS = 6 };

/*
 * Rows of an op that are computed on the CPU too. Each row must depend on itself alone. `tensors`
 * are the tensors in `args`, results first. A tensor whose number of rows differs from the first
 * one is used completely.
 */
typedef struct invar_gpu_row_check {
    void *args;
    int64_t rows; /* number of compared rows, taken from the middle */
    int count, results;
    invar_tensor *tensors[INVAR_GPU_ROW_CHECK_TENSORS];
} invar_gpu_row_check;

/* Returns the first compared row. */
static inline int64_t invar_gpu_row_check_first(int64_t all, int64_t rows)
{
    return (all - rows) / 2;
}

/*
 * Runs the op of `row` once on the GPU and its checked rows on the CPU, and compares them. Changes
 * s->args and its tensors.
 */
invar_status invar_gpu_bench_compare(invar_gpu_compare_case *row, invar_gpu_bench *b,
                                     const invar_gpu_row_check *s) INVAR_MUST_USE;

/*
 * Like invar_gpu_bench_compare, for elements of a product and rows of attention. Does nothing in a
 * build without the engine.
 */
invar_status invar_gpu_bench_audit(invar_gpu_compare_case *row,
                                   const invar_gpu_bench *b) INVAR_MUST_USE;

/* Runs an op once with scratch memory of its own. */
invar_status invar_gpu_bench_run(invar_device *dev, invar_op op, const void *args) INVAR_MUST_USE;

/* ---- timing ---------------------------------------------------------------------------------- */

/* Times an op, whose row has its arguments, and its peers, and prints the row. */
invar_status invar_gpu_bench_time(invar_gpu_bench *b,
                                  const invar_gpu_compare_case *row) INVAR_MUST_USE;

/*
 * Compares and times an op that moves data, next to a copy that reads and writes `bytes` in total.
 */
invar_status invar_gpu_bench_moves(invar_gpu_bench *b, const invar_gpu_row_check *s, invar_op op,
                                   const void *args, const char *shape,
                                   double bytes) INVAR_MUST_USE;

/* Ends a row: frees its memory and scratch, and returns `status`. */
invar_status invar_gpu_bench_end_row(invar_gpu_bench *b, invar_status status) INVAR_MUST_USE;

/* Benchmarks of an op. The caller ends the last row. */
typedef struct invar_gpu_memory_bench {
    invar_op op;
    invar_status (*run)(invar_gpu_bench *b);
} invar_gpu_memory_bench;

/* Lists, terminated by run == NULL. */
extern const invar_gpu_memory_bench invar_gpu_movers[];  /* defined in gpu_rows.c */
extern const invar_gpu_memory_bench invar_gpu_experts[]; /* defined in gpu_experts.c */

#endif
