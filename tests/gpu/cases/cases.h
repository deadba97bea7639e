/*
 * cases.h - random calls of ops, made from a seed alone: the same on every machine.
 *
 * A family makes the arguments of its ops in host memory: shapes, strides, types, values, edge
 * shapes for the first seeds. Who runs them is not its business: the CPU alone (recorded
 * digests, tests/golden/gpu_cases.txt), or CPU and GPU side by side (tests/gpu/cpu_gpu_compare.c).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_GPU_CASES_CASES_H
#define INVAR_TESTS_GPU_CASES_CASES_H

#include "kernels-deterministic/fused_parts.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A piece of memory that arguments lead to; the bytes follow, aligned to INVAR_ALIGN. */
typedef struct invar_case_block {
    struct invar_case_block *next;
    size_t bytes;
    void *data;
} invar_case_block;

/* A call: the op, its arguments, and the memory behind them, freed with the case. */
typedef struct invar_case {
    invar_op op;
    invar_numerics numerics;
    invar_op_args args;
    invar_case_block *blocks; /* newest first */
    char text[160];           /* the shape in words, for messages */
} invar_case;

/* A stream of numbers of its own for every (seed, op): next value in [0, bound). */
typedef struct invar_dice {
    uint64_t state;
} invar_dice;

int64_t invar_roll(invar_dice *dice, int64_t bound);

/* One of the listed values: INVAR_PICK(dice, 1, 7, 64). */
#define INVAR_PICK(dice, ...)                                                                      \
    (((const int64_t[]){__VA_ARGS__})[invar_roll(                                                  \
        (dice), (int64_t)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))])

/* Memory that belongs to the case, aligned to INVAR_ALIGN, all bytes 0xFF. */
void *invar_case_take(invar_case *c, size_t bytes);

/*
 * `view` (made with NULL data) with memory of the case, `gap` elements more between rows than
 * needed; scales too. Bytes are 0xFF until filled.
 */
invar_tensor invar_case_tensor(invar_case *c, invar_tensor view, int64_t gap);

/* The same, filled: normal numbers (f32, bf16); indices in [0, bound) (i32). */
invar_tensor invar_case_normal(invar_case *c, invar_tensor view, int64_t gap, invar_dice *dice,
                               float scale);
invar_tensor invar_case_index(invar_case *c, invar_tensor view, int64_t gap, invar_dice *dice,
                              int64_t bound);

/* A contiguous quantized tensor from normal numbers, made by the CPU's quantize. */
invar_tensor invar_case_quantized(invar_case *c, invar_tensor view, invar_dice *dice, float scale);

/* `count` segments over `rows` rows, some of them empty where `empty` is set. */
invar_row_offsets invar_case_segments(invar_case *c, int64_t rows, int64_t count, bool empty,
                                      invar_dice *dice);

/* Which random numbers an op's cases draw: ops that come or go leave those of others alone. */
static inline uint64_t invar_case_stream(invar_op op)
{
    uint64_t number = (uint64_t)op - (op > INVAR_OP_SCALE); // the last one that came

    if (op == INVAR_OP_SCALE)
        return 128;
    if (op == INVAR_OP_TOKEN_FOLD || op == INVAR_OP_SHARDS_FOLD || op == INVAR_OP_LOGPROB_SUM ||
        op == INVAR_OP_LOGPROB_JOIN)
        return 64 + number;
    // two came, one had gone; two more came
    return number - (op > INVAR_OP_SHARDS_FOLD) - (op > INVAR_OP_LOGPROB_JOIN ? 2 : 0);
}

/* A family: fills in c->args and c->text for c->op, c->numerics; sizes so that a CPU takes at most
 * some milliseconds. Seeds 0 .. edges - 1 are its edge shapes. */
typedef struct invar_case_family {
    void (*make)(invar_case *c, uint64_t seed);
    int edges;
} invar_case_family;

extern const invar_case_family invar_cases_linear;    /* linear.*, moe.linear.* */
extern const invar_case_family invar_cases_rows;      /* token.sum ... swiglu, quantize */
extern const invar_case_family invar_cases_attention; /* attention.*, kv.write */
extern const invar_case_family invar_cases_moe;       /* moe.* but the linear ones */
extern const invar_case_family invar_cases_head; /* logprob, sample, grad.norm, adamw, hashes */

/*
 * Seeds from here on make other calls, edge shapes again for the first of them: of linear.fwd with
 * a residual, with more outputs than one, or with an activation; of linear.dw and moe.linear.dw
 * with a fresh dw, whose memory holds NaNs; of rmsnorm.bwd with sums of blocks, half of them of
 * shards of heads. Other ops have none.
 */
#define INVAR_CASE_MORE (UINT64_C(1) << 32)

/* Seeds from here on, of linear.fwd, linear.dx and moe's: up to 8 shards of any number of atoms. */
#define INVAR_CASE_ATOMS (UINT64_C(2) << 32)

/*
 * Seeds from here on make calls of linear.fwd, linear.dx, moe.linear.fwd, moe.linear.dx, quantize,
 * dequantize, swiglu.* and the hashes on fp8 and mxfp8 tensors whose last scale blocks are short.
 */
#define INVAR_CASE_SHORT (UINT64_C(3) << 32)

/* Seeds from here on are calls of logical tensor parallelism: shards of heads, pieces. */
#define INVAR_CASE_CUT (UINT64_C(4) << 32)

/*
 * Seeds from here on, of linear.fwd and moe.linear.fwd: products with few rows, as in decoding, in
 * the layouts that their kernels take, half of the first op's with more outputs than one or fused.
 * Now and then a weight of mxfp8 is NaN.
 */
#define INVAR_CASE_FEW (UINT64_C(5) << 32)

/*
 * Seeds from here on make what the fast kernels for shards take: of linear.fwd, linear.dx and
 * moe's long chains of bf16 in 2, 4 or 8 shards, aligned; of rmsnorm.bwd many short heads. Now and
 * then a dense product has more tiles than a GPU has multiprocessors. Those of grad.norm yield the
 * sums of squares, too.
 */
#define INVAR_CASE_SHARDS (UINT64_C(6) << 32)

/* The family of an op, and the making of a case; free puts its memory away. */
void invar_case_make(invar_case *c, invar_op op, invar_numerics numerics, uint64_t seed);
void invar_case_free(invar_case *c);

/* ---- running --------------------------------------------------------------------------------- */

/* Runs the case on the device that its memory belongs to: scratch is grown as needed. */
invar_status invar_case_run(const invar_device *dev, const invar_case *c) INVAR_MUST_USE;

/* The parts of a case's call, and their side memory; a call that is not fused has none. */
typedef struct invar_case_parts {
    invar_fused_parts list;
    void *side, *host_side;
} invar_case_parts;

/* Takes the side memory, filled with 0xFF, and runs the parts: before the case itself runs. */
invar_status invar_case_parts_run(invar_case_parts *out, const invar_device *dev,
                                  const invar_case *c) INVAR_MUST_USE;

/* After the case has run: an output of it that is not what its parts made, or NULL. */
invar_status invar_case_parts_compare(const invar_fused_part_output **differs_out,
                                      const invar_case_parts *parts,
                                      const invar_device *dev) INVAR_MUST_USE;
void invar_case_parts_free(invar_case_parts *parts, const invar_device *dev);

/* The digest of every byte of the case's memory: results, and what must not have changed. */
invar_digest invar_case_digest(const invar_case *c);

/* The list of tensors that an argument points to; NULL where the op has none. */
const invar_tensor *invar_case_list(int64_t *count_out, const invar_case *c);

/* True for the block of that list: its bytes are addresses, neither hashed nor copied. */
bool invar_case_is_list(const invar_case *c, const invar_case_block *block);

/*
 * Makes and runs `count` cases of every op (of one, where `only` is not NULL) under each numerics
 * that its bits depend on, and prints one line for each: op, numerics, count, digest of the
 * digests. The fused calls of linear.fwd are `linear.fwd.fused` there, those with a fresh dw are
 * `linear.dw.fresh` and `moe.linear.dw.fresh`, those with short blocks OP.short.
 * `run` leaves the results in the case; where it fails, the other ops still run.
 */
invar_status invar_case_lines(int count, const char *only,
                              invar_status (*run)(void *payload, invar_case *c, uint64_t seed),
                              void *payload) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
