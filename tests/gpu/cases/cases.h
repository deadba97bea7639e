/*
 * cases.h - random calls of ops, a pure function of a seed: the same on every machine.
 *
 * A family makes the arguments of its ops in host memory: shapes, strides, types, values; the first
 * seeds are edge shapes. The calls run on the CPU alone (recorded digests,
 * tests/golden/gpu_cases.txt), or on CPU and GPU (tests/gpu/cpu_gpu_compare.c).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_GPU_CASES_CASES_H
#define INVAR_TESTS_GPU_CASES_CASES_H

#include "kernels-deterministic/fused_parts.h"

/* Header of a block of memory of the arguments; the bytes follow, aligned to INVAR_ALIGN. */
typedef struct invar_case_block {
    struct invar_case_block *next;
    size_t bytes;
    void *data;
} invar_case_block;

/* A call: the op, its arguments and their memory. Free it with invar_case_free. */
typedef struct invar_case {
    invar_op op;
    invar_numerics numerics;
    invar_op_args args;
    invar_case_block *blocks; /* newest first */
    char text[160];           /* the shape as text, for messages */
} invar_case;

/* A random stream; every (seed, op) has its own. */
typedef struct invar_case_rng {
    uint64_t state;
} invar_case_rng;

/* Returns the next value of the stream, in [0, bound). */
int64_t invar_case_random(invar_case_rng *rng, int64_t bound);

/* Returns one of the listed values: INVAR_CASE_PICK(rng, 1, 7, 64). */
#define INVAR_CASE_PICK(rng, ...)                                                                  \
    (((const int64_t[]){__VA_ARGS__})[invar_case_random(                                           \
        (rng), (int64_t)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))])

/* Allocates memory that belongs to the case, aligned to INVAR_ALIGN, all bytes 0xFF. */
void *invar_case_alloc(invar_case *c, size_t bytes);

/*
 * Allocates data and scales for `view` (made with NULL data), with `gap` elements between rows.
 * Bytes are 0xFF.
 */
invar_tensor invar_case_tensor(invar_case *c, invar_tensor view, int64_t gap);

/*
 * Like invar_case_tensor, filled with normal numbers (f32, bf16) or with indices in [0, bound)
 * (i32).
 */
invar_tensor invar_case_normal(invar_case *c, invar_tensor view, int64_t gap, invar_case_rng *rng,
                               float scale);
invar_tensor invar_case_index(invar_case *c, invar_tensor view, int64_t gap, invar_case_rng *rng,
                              int64_t bound);

/* Makes a contiguous quantized tensor from normal numbers with the CPU's op quantise. */
invar_tensor invar_case_quantized(invar_case *c, invar_tensor view, invar_case_rng *rng,
                                  float scale);

/* Makes `count` segments over `rows` rows; some are empty if `empty` is set. */
invar_row_offsets invar_case_segments(invar_case *c, int64_t rows, int64_t count, bool empty,
                                      invar_case_rng *rng);

/*
 * Returns the random stream of an op. It stays the same if ops are added or removed, so that
 * recorded digests of other ops stay valid.
 */
static inline uint64_t invar_case_stream(invar_op op)
{
    uint64_t number = (uint64_t)op - (op > INVAR_OP_SCALE); // `scale` was added last

    if (op == INVAR_OP_SCALE)
        return 128;
    if (op == INVAR_OP_TOKEN_FOLD || op == INVAR_OP_SHARDS_FOLD || op == INVAR_OP_LOGPROB_SUM ||
        op == INVAR_OP_LOGPROB_JOIN)
        return 64 + number;
    // two ops were added, one was removed, two more were added
    return number - (op > INVAR_OP_SHARDS_FOLD) - (op > INVAR_OP_LOGPROB_JOIN ? 2 : 0);
}

/*
 * A family fills in c->args and c->text for c->op and c->numerics, with sizes for some milliseconds
 * on a CPU. Seeds 0 to edges - 1 are its edge shapes.
 */
typedef struct invar_case_family {
    void (*make)(invar_case *c, uint64_t seed);
    int edges;
} invar_case_family;

extern const invar_case_family invar_cases_linear;    /* linear.*, moe.linear.* */
extern const invar_case_family invar_cases_rows;      /* token.sum ... swiglu, quantize */
extern const invar_case_family invar_cases_attention; /* attention.*, kv.write */
extern const invar_case_family invar_cases_moe;       /* moe.* except moe.linear.* */
extern const invar_case_family invar_cases_head; /* logprob, sample, grad.norm, adamw, hashes */

/*
 * Seeds from here on make other calls, beginning with edge shapes: linear.fwd with a residual,
 * several outputs or an activation; linear.dw and moe.linear.dw with fresh = 1 and NaNs in memory;
 * rmsnorm.bwd with block_sums, half of them with shards of heads. Other ops have none.
 */
#define INVAR_CASE_FUSED (UINT64_C(1) << 32)

/*
 * Seeds from here on: linear.fwd, linear.dx and moe.linear.* with up to 8 shards of any number of
 * atoms.
 */
#define INVAR_CASE_ATOMS (UINT64_C(2) << 32)

/*
 * Seeds from here on: linear.fwd, linear.dx, moe.linear.fwd, moe.linear.dx, quantise, dequantise,
 * swiglu.* and the hashes, on fp8 and mxfp8 tensors whose last scale blocks are short.
 */
#define INVAR_CASE_SHORT (UINT64_C(3) << 32)

/*
 * Seeds from here on: calls of logical tensor parallelism, with shards of heads and split tensors.
 */
#define INVAR_CASE_SPLIT (UINT64_C(4) << 32)

/*
 * Seeds from here on: linear.fwd and moe.linear.fwd with few rows, as in decoding, in the layouts
 * that their kernels accept; half of linear.fwd with several outputs or fused. Some mxfp8 weights
 * are NaN.
 */
#define INVAR_CASE_FEW (UINT64_C(5) << 32)

/*
 * Seeds from here on: shapes of the fast kernels for shards. linear.fwd, linear.dx and moe.linear.*
 * with long aligned chains of bf16 in 2, 4 or 8 shards; rmsnorm.bwd with many short heads. Some
 * dense products have more tiles than a GPU has multiprocessors. grad.norm also writes the sums of
 * squares.
 */
#define INVAR_CASE_SHARDS (UINT64_C(6) << 32)

/* Makes a case of the op's family. Free it with invar_case_free, which frees its memory, too. */
void invar_case_make(invar_case *c, invar_op op, invar_numerics numerics, uint64_t seed);
void invar_case_free(invar_case *c);

/* ---- running --------------------------------------------------------------------------------- */

/* Runs the case on the device to which its memory belongs; scratch is grown as needed. */
invar_status invar_case_run(const invar_device *dev, const invar_case *c) INVAR_MUST_USE;

/* The parts of a case's call and their side memory; a call that is not fused has none. */
typedef struct invar_case_parts {
    invar_fused_parts list;
    void *side, *host_side;
} invar_case_parts;

/* Allocates the side memory, filled with 0xFF, and runs the parts. Call it before the case runs. */
invar_status invar_case_parts_run(invar_case_parts *out, const invar_device *dev,
                                  const invar_case *c) INVAR_MUST_USE;

/*
 * Compares the outputs with those of the parts; the case must have run. *differs_out is an output
 * that differs, or NULL.
 */
invar_status invar_case_parts_compare(const invar_fused_part_output **differs_out,
                                      const invar_case_parts *parts,
                                      const invar_device *dev) INVAR_MUST_USE;
void invar_case_parts_free(invar_case_parts *parts, const invar_device *dev);

/* Hashes every byte of the case's memory: results, and memory that must not have changed. */
invar_digest invar_case_digest(const invar_case *c);

/* Returns the list of tensors of an argument; NULL if the op has none. */
const invar_tensor *invar_case_list(int64_t *count_out, const invar_case *c);

/* Returns true for the block of that list: its bytes are addresses, neither hashed nor copied. */
bool invar_case_is_list(const invar_case *c, const invar_case_block *block);

/*
 * Makes and runs `count` cases of every op (of one op, if `only` is not NULL) under each numerics
 * that its bits depend on, and prints one line for each: op, numerics, count, digest of the
 * digests. Fused calls of linear.fwd are printed as `linear.fwd.fused`, those with fresh = 1 as
 * `linear.dw.fresh` and `moe.linear.dw.fresh`, those with short blocks as OP.short. `run` leaves
 * the results in the case; if it fails, the other ops still run.
 */
invar_status invar_case_lines(int count, const char *only,
                              invar_status (*run)(void *payload, invar_case *c, uint64_t seed),
                              void *payload) INVAR_MUST_USE;

#endif
