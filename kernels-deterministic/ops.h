/*
 * ops.h - the argument structs and entry points of all ops: the interface of the kernels.
 *
 * Each op of ops.def has one struct here; invar_<op>(dev, &args) checks the arguments and runs the
 * op on the device's backend. docs/arithmetic.md defines what an op computes; that expression, not
 * the code of a backend, is the contract. Conventions:
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

/*
 * linear.fwd: y = x w^T + bias. Types (x, w): f32/f32, bf16/bf16, fp8/fp8, mxfp8/mxfp8, bf16/int4.
 *
 * The fields residual, more and act fuse further ops into the call. That saves launches and memory
 * and changes no bit; the call then equals
 *   residual   linear.fwd without a residual, then add of the residual and y
 *   more       a further linear.fwd of the same x for each entry; not together with residual
 *   act        swiglu.fwd after that, with y as the gate and more[0].y as up: n_more is 1 and both
 *              have the same N. y and more[0].y may both be absent; then they are not stored.
 */
typedef struct invar_linear_fwd_args {
    invar_tensor y;        /* (T, N) f32 or bf16 */
    invar_tensor x;        /* (T, K) */
    invar_tensor w;        /* (N, K) */
    invar_tensor bias;     /* (N) f32 or bf16, optional */
    invar_tensor residual; /* (T, N) of y's type, optional */
    invar_tensor act;      /* (T, N) of y's type, optional */
    invar_linear_output more[INVAR_LINEAR_MAX_PARTS - 1];
    int32_t n_more;
    int32_t k_shards; /* V: 1, 2, 4 or 8 shards of K, added by the tree */
    int64_t k_atom;   /* values of K per atom; not read if k_shards is 1 */
} invar_linear_fwd_args;

/* One part of the outputs of linear layers with a common input, for linear.dx. */
typedef struct invar_linear_part {
    invar_tensor dy; /* (T, N_p) */
    invar_tensor w;  /* (N_p, K) */
} invar_linear_part;

/*
 * linear.dx: dx = one chain over the outputs of all parts, one part after the other (q, k, v; or
 * gate, up). If k_shards is V, there are V chains: chain v runs over shard v of every part, in part
 * order; each part is split by its own atoms. Types (dy, w): f32/f32, bf16/bf16, fp8/fp8,
 * mxfp8/mxfp8, bf16/int4.
 */
typedef struct invar_linear_dx_args {
    invar_tensor dx; /* (T, K) f32 or bf16 */
    invar_linear_part parts[INVAR_LINEAR_MAX_PARTS];
    int32_t n_parts;
    int32_t k_shards;
    int64_t k_atom[INVAR_LINEAR_MAX_PARTS]; /* outputs N_p of each part per atom */
} invar_linear_dx_args;

/* linear.dw: dw += for each unit, one chain over the tokens of the unit. */
typedef struct invar_linear_dw_args {
    invar_tensor dw; /* (N, K) f32, accumulates */
    invar_tensor dy; /* (T, N) storage */
    invar_tensor x;  /* (T, K) storage, same type */
    invar_row_offsets units;
    int64_t fresh; /* 1 to overwrite dw; 0 to add to it */
} invar_linear_dw_args;

/*
 * token.sum: out += for each unit, the sum of its rows in blocks of 128; used for bias gradients.
 */
typedef struct invar_token_sum_args {
    invar_tensor out; /* (N) f32, accumulates */
    invar_tensor x;   /* (T, N) storage */
    invar_row_offsets units;
} invar_token_sum_args;

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

/* token.fold: out += for each unit, the sum of its block sums; the second half of token.sum. */
typedef struct invar_token_fold_args {
    invar_tensor out; /* (N) f32, accumulates */
    /* (invar_token_blocks_max, N) f32: sums of blocks; rows after the last block are not read */
    invar_tensor sums;
    invar_row_offsets units;
    int64_t tokens; /* number of tokens of all units */
} invar_token_fold_args;

/*
 * shards.fold: y = the shards of a sum, added by the tree, each of which may come from another
 * rank. Shard v is the rows [v * T, (v + 1) * T) of x. With a residual, add of the residual and y
 * follows; y may be the residual.
 */
typedef struct invar_shards_fold_args {
    invar_tensor y;        /* (T, N) f32 or bf16 */
    invar_tensor x;        /* (shards * T, N) f32 */
    invar_tensor residual; /* (T, N) of y's type, optional */
    int32_t shards;        /* 1, 2, 4 or 8 */
} invar_shards_fold_args;

/* ---- low precision --------------------------------------------------------------------------- */

/*
 * quantise: q = x in the format given by the dtype (fp8, mxfp8, int4) and scale_rows of q. If q is
 * bf16, it is x rounded.
 */
typedef struct invar_quantize_args {
    invar_tensor q; /* (R, C) with scales; or bf16 */
    invar_tensor x; /* (R, C) storage; f32 if q is bf16 */
} invar_quantize_args;

/*
 * dequantise: x = the values that q represents: exact in bf16 for mxfp8, rounded to bf16 for int4.
 */
typedef struct invar_dequantize_args {
    invar_tensor x; /* (R, C) storage */
    invar_tensor q; /* (R, C) with scales */
} invar_dequantize_args;

/* ---- embedding, residual, norm, rotary embedding, activation --------------------------------- */

/* embedding.fwd: out[t] = table[ids[t]], a copy of the bits. */
typedef struct invar_embedding_fwd_args {
    invar_tensor out;   /* (T, D) storage */
    invar_tensor table; /* (V, D) storage, same type */
    invar_tensor ids;   /* (T) i32, below V */
} invar_embedding_fwd_args;

/*
 * embedding.bwd: dtable[id] += for each unit, the sum of dout[t] over its tokens with that id,
 * ascending.
 */
typedef struct invar_embedding_bwd_args {
    invar_tensor dtable; /* (V, D) f32, accumulates */
    invar_tensor dout;   /* (T, D) storage */
    invar_tensor ids;    /* (T) i32 */
    invar_row_offsets units;
} invar_embedding_bwd_args;

/* add: out = round(a + b), all of one type; out may be a or b. */
typedef struct invar_add_args {
    invar_tensor out; /* (T, D) storage */
    invar_tensor a;   /* (T, D) storage */
    invar_tensor b;   /* (T, D) storage */
} invar_add_args;

/* scale: y = round(factor * x); the factor is finite; y may be x if both are f32. */
typedef struct invar_scale_args {
    invar_tensor y; /* (T, D) storage */
    invar_tensor x; /* (T, D) f32 */
    float factor;
} invar_scale_args;

/*
 * Rotary embedding after a norm: the arguments of rope.fwd other than the rows. Either all three
 * tensors are present or none.
 */
typedef struct invar_rope_args {
    invar_tensor positions; /* (T) i32, below P */
    invar_tensor cosine;    /* (P, D/2) f32 */
    invar_tensor sine;      /* (P, D/2) f32 */
} invar_rope_args;

/*
 * rmsnorm.fwd: root mean square norm over the last index, D >= 1. All H heads share the weight
 * (QK-norm if H > 1). y may be x. With a rotation, y is rope.fwd of the result of the norm, which
 * is rounded before the rotation.
 */
typedef struct invar_rmsnorm_fwd_args {
    invar_tensor y;      /* (T, H, D) storage */
    invar_tensor x;      /* (T, H, D) storage */
    invar_tensor weight; /* (D) f32 or the type of x */
    float eps;
    invar_rope_args rotation;
} invar_rmsnorm_fwd_args;

/*
 * rmsnorm.bwd: gradients of rmsnorm.fwd. dweight is a sum over tokens and over the shards of heads.
 * If block_sums is present instead, it gets the sum of each block of tokens, and +0 in the rows
 * after the last block; token.fold adds the blocks to dweight. With a rotation, dy is first
 * replaced by rope.bwd of dy, rounded. With a residual, dx is add of the residual and the rounded
 * dx; dx may be the residual.
 */
typedef struct invar_rmsnorm_bwd_args {
    invar_tensor dx;      /* (T, H, D) storage */
    invar_tensor dweight; /* (D) f32, accumulates; optional */
    invar_tensor dy;      /* (T, H, D) storage */
    invar_tensor x;       /* (T, H, D) storage */
    invar_tensor weight;  /* (D) f32 or the type of x */
    invar_row_offsets units;
    float eps;
    invar_rope_args rotation;
    invar_tensor residual; /* (T, H, D) storage, optional */
    int32_t head_shards;   /* logical shards of H in the sums of dweight and block_sums */
    int64_t head_atom;
    /* (invar_token_blocks_max, D) f32, optional; not together with dweight */
    invar_tensor block_sums;
} invar_rmsnorm_bwd_args;

typedef enum invar_rope_scaling { INVAR_ROPE_DEFAULT, INVAR_ROPE_LLAMA3 } invar_rope_scaling;

/* rope.table: cosine and sine of position * frequency, computed in double, rounded to f32. */
typedef struct invar_rope_table_args {
    invar_tensor cosine; /* (P, D/2) f32 */
    invar_tensor sine;   /* (P, D/2) f32 */
    double theta;
    invar_rope_scaling scaling;
    /* The fields below are read only with INVAR_ROPE_LLAMA3. */
    double factor;
    double low_freq_factor;
    double high_freq_factor;
    double original_context;
} invar_rope_table_args;

/*
 * rope.fwd: rotates the pairs (i, i + D/2) of each head, D even, by the angle of the position; y
 * may be x.
 */
typedef struct invar_rope_fwd_args {
    invar_tensor y;         /* (T, H, D) storage */
    invar_tensor x;         /* (T, H, D) storage */
    invar_tensor positions; /* (T) i32, below P */
    invar_tensor cosine;    /* (P, D/2) f32 */
    invar_tensor sine;      /* (P, D/2) f32 */
} invar_rope_fwd_args;

/* rope.bwd: y is dx, x is dy, and the rotation is by the negative angle. */
typedef invar_rope_fwd_args invar_rope_bwd_args;

/* swiglu.fwd: y = silu(gate) * up; y may be gate or up. */
typedef struct invar_swiglu_fwd_args {
    invar_tensor y;    /* (T, D) storage */
    invar_tensor gate; /* (T, D) storage */
    invar_tensor up;   /* (T, D) storage */
    invar_tensor y_q;  /* (T, D) with scales, optional: y quantized */
} invar_swiglu_fwd_args;

/*
 * swiglu.bwd: gradients of swiglu.fwd. dgate and dup may each be dy, gate or up, but not both the
 * same one. dgate_q and dup_q are both present, with the same format, or both absent.
 */
typedef struct invar_swiglu_bwd_args {
    invar_tensor dgate;   /* (T, D) storage */
    invar_tensor dup;     /* (T, D) storage */
    invar_tensor dy;      /* (T, D) storage */
    invar_tensor gate;    /* (T, D) storage */
    invar_tensor up;      /* (T, D) storage */
    invar_tensor dgate_q; /* (T, D) with scales, optional: dgate quantized */
    invar_tensor dup_q;   /* (T, D) with scales, optional: dup quantized */
} invar_swiglu_bwd_args;

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

/* attention.fwd: causal attention over packed samples; HQ is a multiple of HKV, D is 1 to 256. */
typedef struct invar_attention_fwd_args {
    invar_tensor o; /* (T, HQ, D) storage */
    /* (T, HQ) f32, optional: log2 of the sum of exponentials, for the backward */
    invar_tensor lse2;
    invar_tensor q; /* (T, HQ, D) storage */
    invar_tensor k; /* (T, HKV, D) */
    invar_tensor v; /* (T, HKV, D) */
    invar_row_offsets samples;
    invar_attention_shape shape;
} invar_attention_fwd_args;

/* attention.bwd: gradients of attention.fwd with the same samples and shape. */
typedef struct invar_attention_bwd_args {
    invar_tensor dq;   /* (T, HQ, D) storage */
    invar_tensor dk;   /* (T, HKV, D) */
    invar_tensor dv;   /* (T, HKV, D) */
    invar_tensor d_o;  /* (T, HQ, D) */
    invar_tensor o;    /* (T, HQ, D) as stored by the forward */
    invar_tensor lse2; /* (T, HQ) f32 */
    invar_tensor q;    /* (T, HQ, D) */
    invar_tensor k;    /* (T, HKV, D) */
    invar_tensor v;    /* (T, HKV, D) */
    invar_row_offsets samples;
    invar_attention_shape shape;
    int32_t head_shards; /* logical shards of HQ in the sums of dk and dv */
    int64_t head_atom;
} invar_attention_bwd_args;

/*
 * Pages of a KV cache. Position p of sequence s is slot p % page_size of page
 * pages[s, p / page_size].
 */
typedef struct invar_kv_pages {
    invar_tensor k;     /* (n_pages, page_size, HKV, D) storage */
    invar_tensor v;     /* (n_pages, page_size, HKV, D) */
    invar_tensor pages; /* (S, max_pages) i32 */
} invar_kv_pages;

/*
 * attention.paged: attention.fwd, bit-equal, for the last rows of each sequence, with keys and
 * values from a KV cache. Sequence s has the n query rows [rows.offsets[s], rows.offsets[s+1]),
 * which are its positions lengths[s] - n .. lengths[s] - 1. Neither the chunking of a prefill nor
 * the batch of a decode pass changes a bit.
 */
typedef struct invar_attention_paged_args {
    invar_tensor o; /* (R, HQ, D) storage */
    invar_tensor q; /* (R, HQ, D) */
    invar_kv_pages cache;
    invar_row_offsets rows; /* new rows of the S sequences */
    const int64_t *lengths; /* (S) keys of each sequence, those of its new rows included */
    invar_attention_shape shape;
} invar_attention_paged_args;

/*
 * kv.write: copies the keys and values of new rows into their pages; rows and lengths as in
 * attention.paged. Two rows that fill the same slot are rejected.
 */
typedef struct invar_kv_write_args {
    invar_kv_pages cache;
    invar_tensor k; /* (R, HKV, D) storage */
    invar_tensor v; /* (R, HKV, D) */
    invar_row_offsets rows;
    const int64_t *lengths;
} invar_kv_write_args;

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

/* moe.route.fwd: chooses S of E experts for each token and computes their weights; E >= S >= 1. */
typedef struct invar_moe_route_fwd_args {
    invar_tensor ids;     /* (T, S) i32: experts that the router chooses, best first */
    invar_tensor weights; /* (T, S) f32: weights of these experts, or of the replayed ones */
    invar_tensor scores;  /* (T, E) f32, for the backward */
    invar_tensor logits;  /* (T, E) f32 */
    invar_tensor bias;    /* (E) f32, optional: changes the choice only, not the weights */
    /* (T, S) i32, optional: experts of an earlier choice, which get the weights */
    invar_tensor replay;
    invar_moe_router router;
} invar_moe_route_fwd_args;

/* moe.route.bwd: gradient of the weights of moe.route.fwd; the choice has none. */
typedef struct invar_moe_route_bwd_args {
    invar_tensor dlogits;  /* (T, E) storage */
    invar_tensor dweights; /* (T, S) f32 */
    invar_tensor ids;      /* (T, S) i32: experts that the weights belong to */
    invar_tensor scores;   /* (T, E) f32 */
    invar_moe_router router;
} invar_moe_route_bwd_args;

/*
 * moe.plan: sorts the P = T * S pairs (token, slot) by expert, tokens ascending within an expert.
 * S >= 1.
 */
typedef struct invar_moe_plan_args {
    invar_tensor row_token; /* (P) i32: token of each sorted row */
    invar_tensor slot_row;  /* (T, S) i32: sorted row of each slot */
    int64_t *expert_start;  /* (E + 1) first sorted row of each expert, then P */
    invar_tensor ids;       /* (T, S) i32, distinct within a token */
    int64_t experts;
} invar_moe_plan_args;

/* moe.gather.fwd: out[row] = x[row_token[row]], a copy of the bits. */
typedef struct invar_moe_gather_fwd_args {
    invar_tensor out;       /* (P, D) storage */
    invar_tensor x;         /* (T, D) storage */
    invar_tensor row_token; /* (P) i32 */
} invar_moe_gather_fwd_args;

/*
 * moe.gather.bwd: dx[t] = the sum of the rows of its slots, ascending. slot_row names each of the P
 * rows once.
 */
typedef struct invar_moe_gather_bwd_args {
    invar_tensor dx;       /* (T, D) storage */
    invar_tensor dout;     /* (P, D) storage */
    invar_tensor slot_row; /* (T, S) i32 */
} invar_moe_gather_bwd_args;

/*
 * moe.linear.fwd: linear.fwd on the rows of each expert; expert e has the weights [e*N, (e+1)*N) of
 * w. Types as in linear.fwd. Here and in moe.linear.dx and moe.linear.dw, `experts` may be
 * consecutive experts out of more: its first offset may exceed 0 and its last may be less than P. y
 * and dx are undefined in the rows outside of it.
 */
typedef struct invar_moe_linear_fwd_args {
    invar_tensor y; /* (P, N) f32 or bf16 */
    invar_tensor x; /* (P, K) */
    invar_tensor w; /* (E*N, K) */
    invar_row_offsets experts;
    int32_t k_shards;
    int64_t k_atom;
} invar_moe_linear_fwd_args;

/* moe.linear.dx: linear.dx on the rows of each expert; the w of a part is (E*N_p, K). */
typedef struct invar_moe_linear_dx_args {
    invar_tensor dx; /* (P, K) f32 or bf16 */
    invar_linear_part parts[INVAR_LINEAR_MAX_PARTS];
    int32_t n_parts;
    invar_row_offsets experts;
    int32_t k_shards;
    int64_t k_atom[INVAR_LINEAR_MAX_PARTS];
} invar_moe_linear_dx_args;

/*
 * moe.linear.dw: dw += for each expert and unit, one chain over the expert's tokens of that unit,
 * ascending.
 */
typedef struct invar_moe_linear_dw_args {
    invar_tensor dw;        /* (E*N, K) f32, accumulates */
    invar_tensor dy;        /* (P, N) storage */
    invar_tensor x;         /* (P, K) storage */
    invar_tensor row_token; /* (P) i32, ascending within an expert */
    invar_row_offsets experts;
    invar_row_offsets units; /* row offsets over tokens, not over sorted rows */
    int64_t fresh; /* 1 to overwrite dw, with zeros if an expert has no rows; 0 to add to it */
} invar_moe_linear_dw_args;

/*
 * moe.combine.fwd: out = the sum of weight * expert output over slots ascending, then the shared
 * expert's output. slot_row names each of the P rows once.
 */
typedef struct invar_moe_combine_fwd_args {
    invar_tensor out;      /* (T, D) storage */
    invar_tensor y;        /* (P, D) storage */
    invar_tensor weights;  /* (T, S) f32 */
    invar_tensor slot_row; /* (T, S) i32 */
    invar_tensor shared;   /* (T, D) storage, optional */
} invar_moe_combine_fwd_args;

/*
 * moe.combine.bwd: gradients of moe.combine.fwd, D >= 1; the gradient of the shared expert's output
 * is dout. slot_row names each of the P rows once.
 */
typedef struct invar_moe_combine_bwd_args {
    invar_tensor dy;       /* (P, D) storage */
    invar_tensor dweights; /* (T, S) f32 */
    invar_tensor dout;     /* (T, D) storage */
    invar_tensor y;        /* (P, D) storage */
    invar_tensor weights;  /* (T, S) f32 */
    invar_tensor slot_row; /* (T, S) i32 */
} invar_moe_combine_bwd_args;

/* ---- log-probabilities and sampling ---------------------------------------------------------- */

/* logprob.fwd: log-probabilities of the targets and entropies over a vocabulary, V >= 1. */
typedef struct invar_logprob_fwd_args {
    invar_tensor logp;    /* (T) f32 */
    invar_tensor entropy; /* (T) f32, optional */
    invar_tensor max;     /* (T) f32: M, the maximum of logits / temperature, for the backward */
    /* (T) f32: log L, where L is the sum of exp(logits / temperature - M), for the backward */
    invar_tensor logsum;
    invar_tensor logits;  /* (T, V) f32, finite */
    invar_tensor targets; /* (T) i32, below V */
    float temperature;    /* > 0 */
} invar_logprob_fwd_args;

/*
 * logprob.bwd: gradient of logp and entropy with respect to the logits; dlogits may be logits if it
 * is f32.
 */
typedef struct invar_logprob_bwd_args {
    invar_tensor dlogits;  /* (T, V) storage */
    invar_tensor dlogp;    /* (T) f32 */
    invar_tensor dentropy; /* (T) f32, optional; requires entropy */
    invar_tensor entropy;  /* (T) f32, optional */
    invar_tensor max;      /* (T) f32 */
    invar_tensor logsum;   /* (T) f32 */
    invar_tensor logits;   /* (T, V) f32 */
    invar_tensor targets;  /* (T) i32 */
    float temperature;
} invar_logprob_bwd_args;

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

/* logprob.sum: the sums of one part of a vocabulary, which logprob.join combines. */
typedef struct invar_logprob_sum_args {
    invar_tensor sums; /* (T, invar_logprob_sum_columns) f32; +0 in the columns of missing chunks */
    invar_tensor logits; /* (T, V) f32, finite: the logits of the part; V may be 0 */
    /* (T) i32, counted from the part's first id; V if the target is in another part */
    invar_tensor targets;
    float temperature; /* > 0 */
} invar_logprob_sum_args;

/*
 * logprob.join: logprob.fwd from the sums of all parts, bit-equal. Part p is the rows
 * [p * T, (p + 1) * T) of sums.
 */
typedef struct invar_logprob_join_args {
    invar_tensor logp;    /* (T) f32 */
    invar_tensor entropy; /* (T) f32, optional */
    invar_tensor max;     /* (T) f32 */
    invar_tensor logsum;  /* (T) f32 */
    invar_tensor sums;    /* (parts * T, invar_logprob_sum_columns) f32 */
    invar_tensor targets; /* (T) i32, ids of the complete vocabulary */
    int64_t vocabulary;   /* >= 1 */
    int32_t parts;        /* >= 1 */
    float temperature;    /* temperature of logprob.sum */
} invar_logprob_join_args;

/*
 * Random coordinates of one row: with the key, all input of its random numbers. They are stored
 * with each sample, so that it can be sampled again alone.
 */
typedef struct invar_sample_coords {
    uint32_t position; /* position of the drawn token in its sequence */
    uint32_t sample;   /* prompt * n_samples_per_prompt + index in the group */
    uint32_t rollout;  /* rollout in which the sample was started */
} invar_sample_coords;

/*
 * sample: draws one token per row from the softmax of logits / temperature, after top-k, then
 * top-p, then min-p.
 */
typedef struct invar_sample_args {
    invar_tensor tokens;               /* (T) i32 */
    invar_tensor logits;               /* (T, V) f32, finite */
    const invar_sample_coords *coords; /* (T); may be NULL if temperature is 0 */
    uint32_t seed;
    uint32_t purpose;    /* result of invar_philox_purpose */
    float temperature;   /* 0 for the highest logit, without randomness */
    int32_t top_k;       /* 0 for no limit */
    float top_p;         /* 1 for no limit */
    float min_p;         /* 0 for no limit */
    invar_tensor hidden; /* (H) i32, optional: token ids; present if and only if hides is */
    invar_tensor hides;  /* (T) i32, optional: if not 0, the logits of the hidden ids count as
                            INVAR_SAMPLE_HIDDEN */
} invar_sample_args;

#define INVAR_SAMPLE_HIDDEN (-0x1p100f) /* logit of a hidden token */

/* ---- optimizer ------------------------------------------------------------------------------- */

/*
 * grad.norm: norm = sqrt of the sum of squares of all gradients;
 * clip = min(1, max_norm / (norm + 1e-6)), or 1 if max_norm is 0. All results are in host memory.
 * Fails with INVAR_E_STATE, and names the first such tensor, if a sum of squares is not finite.
 * squares is written even then, because the ranks of a sharded model have different tensors and
 * combine their sums. digest[i] equals hash.tree of gradient i with one shard.
 */
typedef struct invar_grad_norm_args {
    float *norm;
    float *clip;
    /* (count) list in host memory: f32 of any number of indices, in canonical order */
    const invar_tensor *grads;
    int64_t count;
    float max_norm;
    invar_digest *digest; /* (count), optional */
    float *squares;       /* (count), optional: sum of squares of each gradient */
} invar_grad_norm_args;

/*
 * adamw: one step on n elements. beta1_power = beta1^t and beta2_power = beta2^t are repeated
 * products. The elements may belong to several consecutive tensors, whose new masters are hashed in
 * the same pass: digest[i] equals hash.tree of tensor i with one shard.
 */
typedef struct invar_adamw_args {
    invar_tensor weight; /* (n) storage: the rounded master, optional */
    invar_tensor master; /* (n) f32 */
    invar_tensor m;      /* (n) f32 */
    invar_tensor v;      /* (n) f32 */
    invar_tensor grad;   /* (n) f32 */
    float clip;
    float lr;
    float beta1;
    float beta2;
    float eps;
    float weight_decay;
    float beta1_power;
    float beta2_power;
    invar_digest *digest; /* (tensors), optional */
    /*
     * (tensors) end of each tensor, in elements; ascending, no tensor is empty, the last end is n;
     * in host memory
     */
    const int64_t *end;
    int64_t tensors; /* number of hashed tensors; 0 for no digests */
} invar_adamw_args;

/* ---- hashing --------------------------------------------------------------------------------- */

/*
 * hash.tree: tree hash of the canonical bytes of each tensor of a list. Row i of n is in shard
 * floor(i V / n). A quantized tensor has two shards of the tree for each logical one: data, then
 * scales.
 */
typedef struct invar_hash_tree_args {
    invar_digest *digest;  /* (count) in device memory */
    const invar_tensor *x; /* (count) list in host memory */
    int64_t count;
    int32_t shards; /* V of every tensor; 1 if cuts is present */
    /* (count), optional, in host memory: how each tensor is split into logical shards */
    const invar_logical_split *cuts;
} invar_hash_tree_args;

/*
 * hash.leaves: leaf digests of a tree hash whose shards are the samples. The host computes the root
 * from the leaves of all micro-batches. Tensors whose rows share a scale are rejected.
 */
typedef struct invar_hash_leaves_args {
    invar_digest *digest; /* (leaves) in device memory */
    invar_tensor x;
    invar_row_offsets samples;
    int64_t leaves; /* result of invar_hash_leaf_count, which needs offsets in host memory */
} invar_hash_leaves_args;

/*
 * Returns the number of leaf digests of the rows of these samples, whose offsets are in host
 * memory.
 */
int64_t invar_hash_leaf_count(const invar_tensor *x, const invar_row_offsets *samples);

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
