/*
 * gpu.h - invar bench --device cuda: what its files share.
 *
 * gpu.c has the run, products and attention of training; gpu_rows.c what moves data;
 * gpu_experts.c the ops of a mixture of experts.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_BENCH_GPU_H
#define INVAR_CLI_BENCH_GPU_H

#include "cli/bench/gpu_compare.h"

typedef struct invar_gpu_bench {
    invar_device gpu;
    invar_device cpu;
    const char *only; /* part of an op's name */
    invar_gpu_compare *race;
    int64_t compared, different; /* elements */
    uint16_t *noise;             /* bf16 */
    void *row_blocks[64];        /* memory of the current row */
    int n_taken;
} invar_gpu_bench;

/* ---- memory of the GPU, until the row ends --------------------------------------------------- */

size_t invar_gpu_bench_bytes(invar_dtype dtype, int64_t rows, int64_t cols);
invar_status invar_gpu_bench_take(void **out, invar_gpu_bench *b, size_t bytes) INVAR_MUST_USE;

/* Noise as bf16, as f32 (bf16 in the high halves), or as bytes. */
invar_status invar_gpu_bench_fill(invar_gpu_bench *b, void *to, size_t bytes) INVAR_MUST_USE;

/* A tensor of noise, and one for results. */
invar_status invar_gpu_bench_make(invar_tensor *out, invar_gpu_bench *b, invar_dtype dtype,
                                  int64_t rows, int64_t cols) INVAR_MUST_USE;
invar_status invar_gpu_bench_room(invar_tensor *out, invar_gpu_bench *b, invar_dtype dtype,
                                  int64_t rows, int64_t cols) INVAR_MUST_USE;
/* Noise quantized, a scale for `scale_rows` rows (tensor.h). */
invar_status invar_gpu_bench_quantized(invar_tensor *out, invar_gpu_bench *b, invar_dtype dtype,
                                       int32_t scale_rows, int64_t rows,
                                       int64_t cols) INVAR_MUST_USE;
invar_status invar_gpu_bench_array(void **out, invar_gpu_bench *b, const void *from,
                                   size_t bytes) INVAR_MUST_USE;

/* So many i32 of [0, bound), `step` apart. */
invar_status invar_gpu_bench_indices(invar_tensor *out, invar_gpu_bench *b, int64_t count,
                                     int64_t bound, int64_t step) INVAR_MUST_USE;

/* ---- bits ------------------------------------------------------------------------------------ */

enum { INVAR_GPU_ROW_CHECK_TENSORS = 6 };

/*
 * Rows of an op, each of which depends on itself alone: a copy of its arguments, and the tensors in
 * it, results first. A tensor with fewer or more rows than the first is there as a whole.
 */
typedef struct invar_gpu_row_check {
    void *args;
    int64_t rows; /* that are compared, in the middle */
    int count, results;
    invar_tensor *tensors[INVAR_GPU_ROW_CHECK_TENSORS];
} invar_gpu_row_check;

/* The first of them. */
static inline int64_t invar_gpu_row_check_first(int64_t all, int64_t rows)
{
    return (all - rows) / 2;
}

/* Runs the row's op once, and the rows of the sample on the CPU; the sample is used up. */
invar_status invar_gpu_bench_compare(invar_gpu_compare_case *row, invar_gpu_bench *b,
                                     const invar_gpu_row_check *s) INVAR_MUST_USE;

/* The same for elements of a product and rows of attention; not in a build without the engine. */
invar_status invar_gpu_bench_audit(invar_gpu_compare_case *row,
                                   const invar_gpu_bench *b) INVAR_MUST_USE;

/* An op once, with scratch of its own. */
invar_status invar_gpu_bench_run(invar_device *dev, invar_op op, const void *args) INVAR_MUST_USE;

/* ---- time ------------------------------------------------------------------------------------ */

invar_status invar_gpu_bench_race(invar_gpu_bench *b,
                                  const invar_gpu_compare_case *row) INVAR_MUST_USE;

/* A row of an op that moves data, beside a copy of so many bytes, half of them read. */
invar_status invar_gpu_bench_moves(invar_gpu_bench *b, const invar_gpu_row_check *s, invar_op op,
                                   const void *args, const char *shape,
                                   double bytes) INVAR_MUST_USE;

/* A row ends: its memory and its scratch go back, whatever came of it. */
invar_status invar_gpu_bench_end_row(invar_gpu_bench *b, invar_status status) INVAR_MUST_USE;

/* The rows of an op; the last one is ended by the caller. */
typedef struct invar_gpu_memory_bench {
    invar_op op;
    invar_status (*run)(invar_gpu_bench *b);
} invar_gpu_memory_bench;

/* They end with run == NULL. */
extern const invar_gpu_memory_bench invar_gpu_movers[];  /* of gpu_rows.c */
extern const invar_gpu_memory_bench invar_gpu_experts[]; /* of gpu_experts.c */

#endif
