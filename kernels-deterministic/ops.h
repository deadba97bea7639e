/*
 * ops.h - the argument structs and entry points of all ops: the interface of the kernels.
 *
 * Each op of ops.def has one struct, invar_<op>_args, whose fields op_fields.def lists;
 * invar_<op>(dev, &args) checks the arguments and runs the op on the device's backend.
 * docs/arithmetic.md defines what an op computes; that expression, not the code of a backend, is
 * the contract. Conventions:
 *   - "Storage" is f32 or bf16. A value is rounded once, when it is stored.
 *   - A chain is a sum of products in one accumulator, in one order; the tree adds the sums of
 *     logical shards pairwise, neighbors first.
 *   - T tokens are the rows of a micro-batch, ordered by (sample, position); samples are packed.
 *   - An optional tensor is absent if its dtype is INVAR_DTYPE_NONE, as in a zeroed struct.
 *   - Gradients of weights are f32 and accumulate: the op adds to the values in memory. If the
 *     struct has a field `fresh`, 1 means overwrite: the memory is not read and counts as +0.
 *   - An output shares no memory with an input or another output. "y may be x" permits work in
 *     place: the same memory, type and row stride. Column slices of one buffer do not overlap. Any
 *     other overlap is rejected before anything is written.
 *   - An extent may be 0 unless the comment of an op excludes it. A tensor without elements needs
 *     no memory and is not written; a sum over nothing is +0.
 *   - A unit is a run of consecutive complete samples.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_OPS_H
#define INVAR_KERNELS_OPS_H

#include "base/hash.h"
#include "kernels-deterministic/device.h"
#include "kernels-deterministic/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Boundaries of consecutive segments of rows: packed samples, units, experts or sequences. Segment
 * i has the rows [offsets[i], offsets[i+1]). The offsets are ascending, start at 0 and end at the
 * number of rows, unless an op says otherwise.
 */
typedef struct invar_row_offsets {
    const int64_t *offsets; /* (count + 1); may be NULL if count is 0 */
    int64_t count;
} invar_row_offsets;

/* ---- linear layers --------------------------------------------------------------------------- */

#define INVAR_LINEAR_MAX_PARTS 3

/*
 * Logical shards of a product (k_shards and k_atom), for logical tensor parallelism. The K products
 * of a chain form atoms of k_atom products, the last of which may be shorter. Atom a of n belongs
 * to shard floor(a V / n). Each shard is a chain of its own from +0, even if it has no atom.
 * invar_shard_start of math/shards.h computes where a shard begins.
 */
#define INVAR_LINEAR_MAX_SHARDS 8

/*
 * Logical shards of a sum over heads (head_shards and head_atom of rmsnorm.bwd and attention.bwd):
 * like k_shards, with atoms of head_atom heads. head_shards may be 0, which means 1.
 */

/*
 * How logical tensor parallelism splits a matrix along its rows or columns, or a vector: into V
 * shards of complete atoms, as defined above. In a stack of experts each expert is split alone;
 * shards are numbered expert by expert.
 */
typedef struct invar_logical_split {
    int32_t shards;  /* V: 1, 2, 4 or 8 */
    int32_t columns; /* 1 to split along the columns, 0 along the rows */
    int64_t atom;    /* rows or columns that stay together; not read if shards is 1 */
    int64_t experts; /* number of stacked experts; 1 if the matrix is not a stack */
} invar_logical_split;

/* A further output of linear.fwd for the same input x. */
typedef struct invar_linear_output {
    invar_tensor y;    /* (T, N_p) */
    invar_tensor w;    /* (N_p, K) */
    invar_tensor bias; /* (N_p), optional */
} invar_linear_output;

/* One part of the outputs of linear layers with a common input, for linear.dx. */
typedef struct invar_linear_part {
    invar_tensor dy; /* (T, N_p) */
    invar_tensor w;  /* (N_p, K) */
} invar_linear_part;

/*
 * Tokens per block of a sum over tokens. Blocks are counted from the start of each unit, whose last
 * block may be shorter. If ranks have different heads, they exchange sums of blocks: one row per
 * block, units ascending (block_sums of rmsnorm.bwd, token.fold).
 */
#define INVAR_TOKEN_BLOCK 128
/*
 * Returns an upper bound of the number of blocks of the units, from the number of units alone: the
 * offsets may be in device memory.
 */
static inline int64_t invar_token_blocks_max(const invar_row_offsets *units, int64_t tokens)
{
    int64_t most = tokens / INVAR_TOKEN_BLOCK + units->count;

    return most < tokens ? most : tokens; // no block is empty
}

/* ---- rotary embedding ------------------------------------------------------------------------ */

/*
 * Rotary embedding after a norm: the arguments of rope.fwd other than the rows. Either all three
 * tensors are present or none.
 */
typedef struct invar_rope_args {
    invar_tensor positions; /* (T) i32, below P */
    invar_tensor cosine;    /* (P, D/2) f32 */
    invar_tensor sine;      /* (P, D/2) f32 */
} invar_rope_args;

typedef enum invar_rope_scaling { INVAR_ROPE_DEFAULT, INVAR_ROPE_LLAMA3 } invar_rope_scaling;

/* ---- attention ------------------------------------------------------------------------------- */

#define INVAR_ATTENTION_BLOCK 128 /* keys per block; 64 if the head dim exceeds 128 */
#define INVAR_ATTENTION_MAX_DIM 256

/* Returns the keys per block for heads of this dim. */
static inline int64_t invar_attention_block(int64_t head_dim)
{
    return head_dim > 128 ? INVAR_ATTENTION_BLOCK / 2 : INVAR_ATTENTION_BLOCK;
}

/*
 * Mask of attention and the spans that its sums are split into. A span is a multiple of
 * invar_attention_block; a span that no sample exceeds gives the bits of one span.
 */
typedef struct invar_attention_shape {
    float scale;     /* factor of the scores; 0 for 1/sqrt(D) */
    int64_t window;  /* number of latest keys that a query sees, its own included; 0 for no limit */
    int64_t kv_span; /* keys per span in the sums of o, lse2 and dq; 0 for one span */
    int64_t q_span;  /* queries per span in the sums of dk and dv; 0 for one span */
} invar_attention_shape;

/*
 * Pages of a KV cache. Position p of sequence s is slot p % page_size of page
 * pages[s, p / page_size].
 */
typedef struct invar_kv_pages {
    invar_tensor k;     /* (n_pages, page_size, HKV, D) storage */
    invar_tensor v;     /* (n_pages, page_size, HKV, D) */
    invar_tensor pages; /* (S, max_pages) i32 */
} invar_kv_pages;

/* ---- mixture of experts ---------------------------------------------------------------------- */

typedef enum invar_moe_scoring { INVAR_MOE_SOFTMAX, INVAR_MOE_SIGMOID } invar_moe_scoring;

typedef struct invar_moe_router {
    invar_moe_scoring scoring;
    int32_t groups; /* number of groups that the experts are split into; 1 for no group limit */
    int32_t groups_kept; /* number of groups that a token may use */
    /* 1 or 2: the score of a group is the sum of its best 1 or 2 experts */
    int32_t group_score_top;
    int32_t normalise;   /* 1 if the weights are divided by their sum */
    float normalise_eps; /* added to the sum that divides the weights */
    float scale;         /* factor of the weights, applied last */
} invar_moe_router;

/* ---- log-probabilities and sampling ---------------------------------------------------------- */

/*
 * Ids per vocabulary chunk. Ranks may divide a vocabulary between chunks: part p of P begins with
 * chunk ceil(p n / P) of n.
 */
#define INVAR_LOGPROB_CHUNK 256
/*
 * Returns the columns of the sums of one token and part: for each chunk of the largest part its
 * maximum, the sum of exponentials and their weighted sum, then the target's logit, not divided by
 * the temperature; +0 if the target is in another part.
 */
static inline int64_t invar_logprob_sum_columns(int64_t vocabulary, int32_t parts)
{
    int64_t chunks = vocabulary / INVAR_LOGPROB_CHUNK + (vocabulary % INVAR_LOGPROB_CHUNK != 0);

    return 3 * ((chunks + parts - 1) / parts) + 1;
}

/*
 * Random coordinates of one row: with the key, all input of its random numbers. They are stored
 * with each sample, so that it can be sampled again alone.
 */
typedef struct invar_sample_coords {
    uint32_t position; /* position of the drawn token in its sequence */
    uint32_t sample;   /* prompt * n_samples_per_prompt + index in the group */
    uint32_t rollout;  /* rollout in which the sample was started */
} invar_sample_coords;

#define INVAR_SAMPLE_HIDDEN (-0x1p100f) /* logit of a hidden token */

/*
 * Returns the number of leaf digests of the rows of these samples, whose offsets are in host
 * memory.
 */
int64_t invar_hash_leaf_count(const invar_tensor *x, const invar_row_offsets *samples);

/* ---- all ops --------------------------------------------------------------------------------- */

/* struct invar_<op>_args of each op, with the fields of op_fields.def */
#define BEGIN(fn)                                                                                  \
    typedef struct invar_##fn##_args invar_##fn##_args;                                            \
    struct invar_##fn##_args {
#define END                                                                                        \
    }                                                                                              \
    ;
#define LIKE(fn, other, fields) typedef invar_##other##_args invar_##fn##_args;
#define GROUP(member, ...) member;
#define REST(...)
#define TENSOR(field, ...) invar_tensor field;
#define SEGMENTS(field) invar_row_offsets field;
#define ARRAY(field, type, ...) type *field;
#define TENSORS(field, ...) const invar_tensor *field;
#define NUMBER(field, type) type field;
#define NUMBER_AMONG(field, type, ...) type field;
#include "kernels-deterministic/op_fields.def"

/* The arguments of any op. */
typedef union invar_op_args {
#define INVAR_OP(ID, fn, name, revision, numerics) invar_##fn##_args fn;
#include "kernels-deterministic/ops.def"
#undef INVAR_OP
} invar_op_args;

/* invar_linear_fwd(dev, &args) and so on: invar_op_run with the struct of the op. */
#define INVAR_OP(ID, fn, name, revision, numerics)                                                 \
    invar_status invar_##fn(const invar_device *dev, const invar_##fn##_args *args) INVAR_MUST_USE;
#include "kernels-deterministic/ops.def"
#undef INVAR_OP

/* Defines the function with the bytes of scratch of an op that needs none on a backend. */
#define INVAR_NO_WORKSPACE(backend, fn)                                                            \
    size_t invar_##backend##_##fn##_workspace(const invar_device *dev,                             \
                                              const invar_##fn##_args *args)                       \
    {                                                                                              \
        (void)dev, (void)args;                                                                     \
        return 0;                                                                                  \
    }

#ifdef __cplusplus
}
#endif
#endif
