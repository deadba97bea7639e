/*
 * ops.h - the arguments of every op and its typed entry point.
 *
 * One struct per op of ops.def. Conventions:
 *   - "storage" is f32 or bf16; a value is rounded once, on the way into storage.
 *   - T tokens are rows of a micro-batch, in order of (sample, position); samples are packed.
 *   - An optional tensor is absent when its dtype is INVAR_DTYPE_NONE (a zeroed struct).
 *   - Gradients of weights are f32 and accumulate: the op adds to what is there. Where it has a
 *     `fresh`, 1 says that nothing is there: what the memory holds is not read and counts as +0.
 *   - An output shares no memory with an input or another output, except where this file says that
 *     one tensor may be another: same memory, type and row stride. Column slices of one buffer do
 *     not overlap. Everything else is refused before anything is written.
 *   - An extent of 0 is accepted where the comment of an op does not exclude it; a tensor without
 *     elements needs no memory. Nothing is written then, and sums over nothing are +0.
 *   - A unit is a run of whole consecutive samples; unit u has the rows [start[u], start[u+1]).
 * The arithmetic of each op is stated in docs/arithmetic.md; the expression, not the code, is the
 * contract.
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

/* Segment boundaries: segment i is the rows [start[i], start[i+1]); start[0] = 0, ascending. */
typedef struct invar_row_offsets {
    const int64_t *offsets; /* (count + 1) */
    int64_t count;
} invar_row_offsets;

/* ---- linear layers --------------------------------------------------------------------------- */

#define INVAR_LINEAR_MAX_PARTS 3

/*
 * k_shards and k_atom of the products below: logical tensor parallelism. The K values of a chain
 * are atoms of k_atom values, the last one perhaps shorter; atom a of n is in shard floor(a V / n).
 * Each shard is a chain of its own from +0, also an empty one. math/shards.h says where they begin.
 */
#define INVAR_LINEAR_MAX_SHARDS 8

/*
 * head_shards and head_atom of rmsnorm.bwd and attention.bwd: the same for sums over heads, whose
 * atoms are heads. 0 counts as 1: one shard.
 */

/*
 * How logical tensor parallelism cuts a matrix, or along its rows a vector: V pieces of whole
 * atoms, as above. Of a matrix that is a stack of experts each expert is cut alone, and its pieces
 * stand together.
 */
typedef struct invar_logical_split {
    int32_t shards;  /* V: 1, 2, 4 or 8 */
    int32_t columns; /* 1: along the columns; 0: the rows */
    int64_t atom;    /* of them: what stays together; not read where pieces is 1 */
    int64_t experts; /* experts; 1 for all others */
} invar_logical_split;

typedef struct invar_linear_output {
    invar_tensor y;    /* (T, N_p) */
    invar_tensor w;    /* (N_p, K) */
    invar_tensor bias; /* (N_p), optional */
} invar_linear_output;

/*
 * y = x w^T + bias. Pairs (x, w): f32/f32, bf16/bf16, fp8/fp8, mxfp8/mxfp8, bf16/int4.
 *
 * The rest, from `residual` on, saves a device launches and memory, and changes no bit: it is
 *   residual   linear.fwd without one, then add of the residual and y
 *   more       another linear.fwd of the same x for each of them; no residual then
 *   act        after y and the only one of `more`, of one N: swiglu.fwd of y, the gate, and of that
 *              one's y. These two may be absent, both: then the device keeps them to itself.
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
    int32_t k_shards; /* V: 1, 2, 4 or 8 shards of K, folded by the tree */
    int64_t k_atom;   /* of K: values that stay together; not read where k_shards is 1 */
} invar_linear_fwd_args;

typedef struct invar_linear_part {
    invar_tensor dy; /* (T, N_p) */
    invar_tensor w;  /* (N_p, K) */
} invar_linear_part;

/*
 * dx = one chain over the concatenated outputs of the parts. With k_shards = V the chain is cut
 * into V: shard v holds shard v of every part, in part order, each cut by its own atoms.
 * Pairs (dy, w): f32/f32, bf16/bf16, fp8/fp8, mxfp8/mxfp8, bf16/int4.
 */
typedef struct invar_linear_dx_args {
    invar_tensor dx; /* (T, K) f32 or bf16 */
    invar_linear_part parts[INVAR_LINEAR_MAX_PARTS];
    int32_t n_parts;
    int32_t k_shards;
    int64_t k_atom[INVAR_LINEAR_MAX_PARTS]; /* of each part's N_p */
} invar_linear_dx_args;

/* dw += per unit one chain over its tokens. */
typedef struct invar_linear_dw_args {
    invar_tensor dw; /* (N, K) f32, accumulates */
    invar_tensor dy; /* (T, N) storage */
    invar_tensor x;  /* (T, K) storage, same type */
    invar_row_offsets units;
    int64_t fresh; /* 1: dw is written, all of it; 0: it is added to */
} invar_linear_dw_args;

/* out += per unit the sum of its rows, in blocks of 128 (bias gradients). */
typedef struct invar_token_sum_args {
    invar_tensor out; /* (N) f32, accumulates */
    invar_tensor x;   /* (T, N) storage */
    invar_row_offsets units;
} invar_token_sum_args;

/*
 * What a sum over tokens is made of, where ranks have other heads each: blocks of 128 tokens,
 * counted from the start of their unit, one row each, units ascending. How many there can be:
 */
#define INVAR_TOKEN_BLOCK 128
static inline int64_t invar_token_blocks_max(const invar_row_offsets *units, int64_t tokens)
{
    int64_t most = tokens / INVAR_TOKEN_BLOCK + units->count;

    return most < tokens ? most : tokens; // no block is empty
}

/* out += per unit the sum of its blocks, as token.sum has it once the blocks are summed. */
typedef struct invar_token_fold_args {
    invar_tensor out;  /* (N) f32, accumulates */
    invar_tensor sums; /* (invar_token_blocks_max, N) f32: of blocks; the rest is not read */
    invar_row_offsets units;
    int64_t tokens; /* of all units */
} invar_token_fold_args;

/*
 * y = the tree over the shards of a sum, each of which a rank may have made. Shard v is the rows [v
 * * T, (v + 1) * T). With a residual: then add of the residual and y.
 */
typedef struct invar_shards_fold_args {
    invar_tensor y;        /* (T, N) f32 or bf16 */
    invar_tensor x;        /* (shards * T, N) f32 */
    invar_tensor residual; /* (T, N) of y's type, optional */
    int32_t shards;        /* 1, 2, 4 or 8 */
} invar_shards_fold_args;

/* ---- low precision --------------------------------------------------------------------------- */

/* q = quantized x; the format is q's dtype (fp8, mxfp8, int4) and q.scale_rows. bf16: rounded x. */
typedef struct invar_quantize_args {
    invar_tensor q; /* (R, C) with scales; or bf16 */
    invar_tensor x; /* (R, C) storage; f32 where q is bf16 */
} invar_quantize_args;

/* x = the values that q stands for: exact in bf16 for mxfp8; rounded to bf16 for int4. */
typedef struct invar_dequantize_args {
    invar_tensor x; /* (R, C) storage */
    invar_tensor q; /* (R, C) with scales */
} invar_dequantize_args;

/* ---- embedding, residual, norm, rotary embedding, activation --------------------------------- */

typedef struct invar_embedding_fwd_args {
    invar_tensor out;   /* (T, D) storage */
    invar_tensor table; /* (V, D) storage, same type */
    invar_tensor ids;   /* (T) i32 */
} invar_embedding_fwd_args;

/* dtable[id] += per unit the sum of dout[t] over its tokens with that id, ascending. */
typedef struct invar_embedding_bwd_args {
    invar_tensor dtable; /* (V, D) f32, accumulates */
    invar_tensor dout;   /* (T, D) storage */
    invar_tensor ids;    /* (T) i32 */
    invar_row_offsets units;
} invar_embedding_bwd_args;

/* out = round(a + b), all of one type; out may be a or b. */
typedef struct invar_add_args {
    invar_tensor out; /* (T, D) storage */
    invar_tensor a;   /* (T, D) storage */
    invar_tensor b;   /* (T, D) storage */
} invar_add_args;

/* y = round(factor * x), the factor finite; y may be x where both are f32. */
typedef struct invar_scale_args {
    invar_tensor y; /* (T, D) storage */
    invar_tensor x; /* (T, D) f32 */
    float factor;
} invar_scale_args;

/* The rotation that follows a norm: what rope.fwd takes beside the rows. Optional as a whole. */
typedef struct invar_rope_args {
    invar_tensor positions; /* (T) i32, below P */
    invar_tensor cosine;    /* (P, D/2) f32 */
    invar_tensor sine;      /* (P, D/2) f32 */
} invar_rope_args;

/*
 * Norm over the last index, D >= 1; H > 1 gives each head the one weight (QK-norm). y may be x.
 * With a rotation, y is what rope.fwd makes of the norm's result, which is rounded in between.
 */
typedef struct invar_rmsnorm_fwd_args {
    invar_tensor y;      /* (T, H, D) storage */
    invar_tensor x;      /* (T, H, D) storage */
    invar_tensor weight; /* (D) storage or f32 */
    float eps;
    invar_rope_args rotation;
} invar_rmsnorm_fwd_args;

/*
 * block_sums is what dweight is made of: a sum for each block of tokens, over the shards of heads,
 * +0 behind the last; token.fold adds them.
 * With a rotation, dy is what rope.bwd makes of the dy given, rounded. With a residual, dx is what
 * add makes of the residual and dx, rounded; dx may be the residual.
 */
typedef struct invar_rmsnorm_bwd_args {
    invar_tensor dx;      /* (T, H, D) storage */
    invar_tensor dweight; /* (D) f32, accumulates; optional */
    invar_tensor dy;      /* (T, H, D) storage */
    invar_tensor x;       /* (T, H, D) storage */
    invar_tensor weight;  /* (D) storage or f32 */
    invar_row_offsets units;
    float eps;
    invar_rope_args rotation;
    invar_tensor residual; /* (T, H, D) storage, optional */
    int32_t head_shards;   /* of H: dweight */
    int64_t head_atom;
    invar_tensor block_sums; /* (invar_token_blocks_max, D) f32: in place of dweight; optional */
} invar_rmsnorm_bwd_args;

typedef enum invar_rope_scaling { INVAR_ROPE_DEFAULT, INVAR_ROPE_LLAMA3 } invar_rope_scaling;

/* cos and sin of position * frequency, made in double, rounded to f32. */
typedef struct invar_rope_table_args {
    invar_tensor cosine; /* (P, D/2) f32 */
    invar_tensor sine;   /* (P, D/2) f32 */
    double theta;
    invar_rope_scaling scaling;
    double factor; /* the rest for INVAR_ROPE_LLAMA3 only */
    double low_freq_factor;
    double high_freq_factor;
    double original_context;
} invar_rope_table_args;

/* Rotates pairs (i, i + D/2); y may be x. */
typedef struct invar_rope_fwd_args {
    invar_tensor y;         /* (T, H, D) storage */
    invar_tensor x;         /* (T, H, D) storage */
    invar_tensor positions; /* (T) i32, below P */
    invar_tensor cosine;    /* (P, D/2) f32 */
    invar_tensor sine;      /* (P, D/2) f32 */
} invar_rope_fwd_args;

/* The same struct: y = dx, x = dy, rotated the other way. */
typedef invar_rope_fwd_args invar_rope_bwd_args;

/* y may be gate or up. */
typedef struct invar_swiglu_fwd_args {
    invar_tensor y;    /* (T, D) storage */
    invar_tensor gate; /* (T, D) storage */
    invar_tensor up;   /* (T, D) storage */
    invar_tensor y_q;  /* (T, D) with scales, optional: what quantize makes of y */
} invar_swiglu_fwd_args;

/*
 * dgate and dup may each be dy, gate or up, not both the same one. The quantized ones are both
 * there, of one format, or neither.
 */
typedef struct invar_swiglu_bwd_args {
    invar_tensor dgate;   /* (T, D) storage */
    invar_tensor dup;     /* (T, D) storage */
    invar_tensor dy;      /* (T, D) storage */
    invar_tensor gate;    /* (T, D) storage */
    invar_tensor up;      /* (T, D) storage */
    invar_tensor dgate_q; /* (T, D) with scales, optional: what quantize makes of dgate */
    invar_tensor dup_q;   /* (T, D) with scales, optional: what quantize makes of dup */
} invar_swiglu_bwd_args;

/* ---- attention ------------------------------------------------------------------------------- */

#define INVAR_ATTENTION_BLOCK 128 /* keys per block; 64 where the head dim exceeds 128 */
#define INVAR_ATTENTION_MAX_DIM 256

/* Keys per block for heads of this dim. */
static inline int64_t invar_attention_block(int64_t head_dim)
{
    return head_dim > 128 ? INVAR_ATTENTION_BLOCK / 2 : INVAR_ATTENTION_BLOCK;
}

typedef struct invar_attention_shape {
    float scale;    /* of the scores; 0: 1/sqrt(D) */
    int64_t window; /* keys that a query sees, itself included; 0: all before it */
    /* Multiples of the block; 0: one span. Where no sample is longer, the same as one. */
    int64_t kv_span; /* keys per span: o, lse2, dq */
    int64_t q_span;  /* queries per span: dk, dv */
} invar_attention_shape;

/* Causal attention over packed samples; HQ is a multiple of HKV, D is 1 to 256. */
typedef struct invar_attention_fwd_args {
    invar_tensor o;    /* (T, HQ, D) storage */
    invar_tensor lse2; /* (T, HQ) f32: log2 of the sum of exponentials; optional */
    invar_tensor q;    /* (T, HQ, D) storage */
    invar_tensor k;    /* (T, HKV, D) */
    invar_tensor v;    /* (T, HKV, D) */
    invar_row_offsets samples;
    invar_attention_shape shape;
} invar_attention_fwd_args;

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
    int32_t head_shards; /* of HQ: dk, dv */
    int64_t head_atom;
} invar_attention_bwd_args;

/* Pages of a KV cache. Sequence s keeps its position p in page pages[s, p / page_size]. */
typedef struct invar_kv_pages {
    invar_tensor k;     /* (n_pages, page_size, HKV, D) storage */
    invar_tensor v;     /* (n_pages, page_size, HKV, D) */
    invar_tensor pages; /* (S, max_pages) i32 */
} invar_kv_pages;

/*
 * The forward of attention.fwd, to the bit, for the last rows of each sequence: sequence s has the
 * query rows [rows.start[s], rows.start[s+1]), which are its positions
 * length[s] - n_rows .. length[s] - 1. Prefill in any chunking, decode in any batch.
 */
typedef struct invar_attention_paged_args {
    invar_tensor o; /* (R, HQ, D) storage */
    invar_tensor q; /* (R, HQ, D) */
    invar_kv_pages cache;
    invar_row_offsets rows; /* S sequences */
    const int64_t *lengths; /* (S) keys of each sequence, the new ones included */
    invar_attention_shape shape;
} invar_attention_paged_args;

/*
 * Puts the keys and values of new rows into their pages; arguments as in attention.paged. No two
 * rows fill one slot.
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
    int32_t groups;          /* experts are cut into this many groups; 1: no group limit */
    int32_t groups_kept;     /* groups a token may use */
    int32_t group_score_top; /* a group scores the sum of its best 1 or 2 */
    int32_t normalise;       /* weights divided by their sum */
    float normalise_eps;     /* added to that sum */
    float scale;             /* of the weights, last */
} invar_moe_router;

/* E >= S >= 1 */
typedef struct invar_moe_route_fwd_args {
    invar_tensor ids;     /* (T, S) i32: chosen experts, best first */
    invar_tensor weights; /* (T, S) f32 */
    invar_tensor scores;  /* (T, E) f32, kept for the backward */
    invar_tensor logits;  /* (T, E) f32 */
    invar_tensor bias;    /* (E) f32, moves the choice only; optional */
    invar_tensor replay;  /* (T, S) i32: choice recorded earlier; weights follow it; optional */
    invar_moe_router router;
} invar_moe_route_fwd_args;

typedef struct invar_moe_route_bwd_args {
    invar_tensor dlogits;  /* (T, E) storage */
    invar_tensor dweights; /* (T, S) f32 */
    invar_tensor ids;      /* (T, S) i32: the experts that the weights belong to */
    invar_tensor scores;   /* (T, E) f32 */
    invar_moe_router router;
} invar_moe_route_bwd_args;

/* Rows sorted by expert, tokens ascending inside one (stable). P = T * S, S >= 1. */
typedef struct invar_moe_plan_args {
    invar_tensor row_token; /* (P) i32: token of each permuted row */
    invar_tensor slot_row;  /* (T, S) i32: permuted row of each slot */
    int64_t *expert_start;  /* (E + 1) permuted rows of each expert */
    invar_tensor ids;       /* (T, S) i32, distinct within a token */
    int64_t experts;
} invar_moe_plan_args;

typedef struct invar_moe_gather_fwd_args {
    invar_tensor out;       /* (P, D) storage */
    invar_tensor x;         /* (T, D) storage */
    invar_tensor row_token; /* (P) i32 */
} invar_moe_gather_fwd_args;

/* dx[t] = sum over slots ascending. Here and below slot_row names each of the P rows once. */
typedef struct invar_moe_gather_bwd_args {
    invar_tensor dx;       /* (T, D) storage */
    invar_tensor dout;     /* (P, D) storage */
    invar_tensor slot_row; /* (T, S) i32 */
} invar_moe_gather_bwd_args;

/*
 * Expert e's weights are the rows [e*N, (e+1)*N) of w. Pairs of types as linear.fwd. Here and below
 * `experts` may be some that stand together of more: what rows before and behind theirs become in
 * y and dx is not defined.
 */
typedef struct invar_moe_linear_fwd_args {
    invar_tensor y; /* (P, N) f32 or bf16 */
    invar_tensor x; /* (P, K) */
    invar_tensor w; /* (E*N, K) */
    invar_row_offsets experts;
    int32_t k_shards;
    int64_t k_atom;
} invar_moe_linear_fwd_args;

/* Parts as linear.dx; each part's w is (E*N_p, K). */
typedef struct invar_moe_linear_dx_args {
    invar_tensor dx; /* (P, K) f32 or bf16 */
    invar_linear_part parts[INVAR_LINEAR_MAX_PARTS];
    int32_t n_parts;
    invar_row_offsets experts;
    int32_t k_shards;
    int64_t k_atom[INVAR_LINEAR_MAX_PARTS];
} invar_moe_linear_dx_args;

/* Per expert and unit one chain over the expert's tokens of that unit, ascending. */
typedef struct invar_moe_linear_dw_args {
    invar_tensor dw;        /* (E*N, K) f32, accumulates */
    invar_tensor dy;        /* (P, N) storage */
    invar_tensor x;         /* (P, K) storage */
    invar_tensor row_token; /* (P) i32 */
    invar_row_offsets experts;
    invar_row_offsets units; /* over tokens */
    int64_t fresh;           /* 1: dw is written, zeros where an expert has no rows; 0: added to */
} invar_moe_linear_dw_args;

/* out = sum of weight * expert output over slots ascending, the shared expert's output last. */
typedef struct invar_moe_combine_fwd_args {
    invar_tensor out;      /* (T, D) storage */
    invar_tensor y;        /* (P, D) storage */
    invar_tensor weights;  /* (T, S) f32 */
    invar_tensor slot_row; /* (T, S) i32 */
    invar_tensor shared;   /* (T, D) storage, optional */
} invar_moe_combine_fwd_args;

/* The shared expert's gradient is dout itself. D >= 1. */
typedef struct invar_moe_combine_bwd_args {
    invar_tensor dy;       /* (P, D) storage */
    invar_tensor dweights; /* (T, S) f32 */
    invar_tensor dout;     /* (T, D) storage */
    invar_tensor y;        /* (P, D) storage */
    invar_tensor weights;  /* (T, S) f32 */
    invar_tensor slot_row; /* (T, S) i32 */
} invar_moe_combine_bwd_args;

/* ---- log-probabilities and sampling ---------------------------------------------------------- */

/* V >= 1 */
typedef struct invar_logprob_fwd_args {
    invar_tensor logp;    /* (T) f32 */
    invar_tensor entropy; /* (T) f32, optional */
    invar_tensor max;     /* (T) f32: M, kept for the backward */
    invar_tensor logsum;  /* (T) f32: log L, kept for the backward */
    invar_tensor logits;  /* (T, V) f32, finite */
    invar_tensor targets; /* (T) i32 */
    float temperature;    /* > 0 */
} invar_logprob_fwd_args;

/* dlogits may be logits, if it is f32. */
typedef struct invar_logprob_bwd_args {
    invar_tensor dlogits;  /* (T, V) storage */
    invar_tensor dlogp;    /* (T) f32 */
    invar_tensor dentropy; /* (T) f32, optional; then entropy is needed */
    invar_tensor entropy;  /* (T) f32, optional */
    invar_tensor max;      /* (T) f32 */
    invar_tensor logsum;   /* (T) f32 */
    invar_tensor logits;   /* (T, V) f32 */
    invar_tensor targets;  /* (T) i32 */
    float temperature;
} invar_logprob_bwd_args;

/*
 * Ranks may divide a vocabulary by chunks of 256 ids: of n chunks, part p of P begins with chunk
 * ceil(p n / P). A row of sums has three numbers of each chunk of a part, room for those of the
 * largest, and at the end the target's logit. How many:
 */
#define INVAR_LOGPROB_CHUNK 256
static inline int64_t invar_logprob_sum_columns(int64_t vocabulary, int32_t parts)
{
    int64_t chunks = vocabulary / INVAR_LOGPROB_CHUNK + (vocabulary % INVAR_LOGPROB_CHUNK != 0);

    return 3 * ((chunks + parts - 1) / parts) + 1;
}

/* What logprob.fwd knows of its chunks before it joins them, of one part. */
typedef struct invar_logprob_sum_args {
    invar_tensor sums;   /* (T, invar_logprob_sum_columns) f32; +0 behind the last chunk */
    invar_tensor logits; /* (T, V) f32, finite: those of the part, maybe none */
    invar_tensor
        targets;       /* (T) i32, counted from the part's first id; V: another part's, gives +0 */
    float temperature; /* > 0 */
} invar_logprob_sum_args;

/* logprob.fwd, from the sums of all parts. Part p is the rows [p * T, (p + 1) * T). */
typedef struct invar_logprob_join_args {
    invar_tensor logp;    /* (T) f32 */
    invar_tensor entropy; /* (T) f32, optional */
    invar_tensor max;     /* (T) f32 */
    invar_tensor logsum;  /* (T) f32 */
    invar_tensor sums;    /* (parts * T, invar_logprob_sum_columns) f32 */
    invar_tensor targets; /* (T) i32, of the whole vocabulary */
    int64_t vocabulary;   /* >= 1 */
    int32_t parts;        /* >= 1 */
    float temperature;    /* of the sums */
} invar_logprob_join_args;

/* Where the randomness of one row comes from; stored with each sample, so it regenerates alone. */
typedef struct invar_sample_coords {
    uint32_t position;
    uint32_t sample;  /* prompt * n_samples_per_prompt + sample */
    uint32_t rollout; /* of the rollout that started the sample */
} invar_sample_coords;

typedef struct invar_sample_args {
    invar_tensor tokens;               /* (T) i32 */
    invar_tensor logits;               /* (T, V) f32, finite */
    const invar_sample_coords *coords; /* (T) */
    uint32_t seed;
    uint32_t purpose;  /* invar_philox_purpose */
    float temperature; /* 0: the highest logit, no randomness */
    int32_t top_k;     /* 0: off */
    float top_p;       /* 1: off */
    float min_p;       /* 0: off */
    /* Both or neither: in rows whose flag is not 0, the logits of these tokens count as -2^100. */
    invar_tensor hidden; /* (H) i32, optional */
    invar_tensor hides;  /* (T) i32, optional */
} invar_sample_args;

#define INVAR_SAMPLE_HIDDEN (-0x1p100f)

/* ---- optimizer ------------------------------------------------------------------------------- */

/*
 * norm = sqrt of the sum of squares; clip = min(1, max_norm / (norm + 1e-6)), 1 for max_norm 0.
 * A sum that is not finite is a fault: INVAR_E_STATE, naming the first such tensor. The gradients
 * are read for their digests, too, where these are wanted: those of hash.tree with one shard. Sums
 * of squares that are wanted are written in spite of a fault: ranks may have some tensors each. All
 * results are in the host's memory.
 */
typedef struct invar_grad_norm_args {
    float *norm;
    float *clip;
    const invar_tensor *grads; /* (count) f32 of any rank, in canonical order */
    int64_t count;
    float max_norm;
    invar_digest *digest; /* (count), optional */
    float *squares;       /* (count), optional: the sum of squares of each */
} invar_grad_norm_args;

/*
 * One step on n elements. beta1_power = beta1^t and beta2_power = beta2^t by repeated products. The
 * elements may be those of several tensors, one behind the other, whose new masters are hashed as
 * they are written: digest[i] is that of hash.tree with one shard.
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
    const int64_t *end;   /* (tensors) where each ends, none is empty, the last at n; the host's */
    int64_t tensors;      /* 0: without digests */
} invar_adamw_args;

/* ---- hashing --------------------------------------------------------------------------------- */

/*
 * The tree hash of the canonical bytes of each tensor of a list; shards are consecutive V-ths of
 * the rows of index 0. A quantized tensor gives two shards of the tree for each of them: data, then
 * scales. The list is the host's, as that of grad.norm is.
 */
typedef struct invar_hash_tree_args {
    invar_digest *digest;  /* (count) */
    const invar_tensor *x; /* (count) */
    int64_t count;
    int32_t shards; /* of each of them; 1 with cuts */
    /* (count), optional: how each is cut, and each piece is a shard */
    const invar_logical_split *cuts;
} invar_hash_tree_args;

/*
 * The leaf digests of such a tree whose shards are segments of the rows: what is missing for the
 * root is for whoever has all segments. No rows share a scale.
 */
typedef struct invar_hash_leaves_args {
    invar_digest *digest; /* (leaves) */
    invar_tensor x;
    invar_row_offsets samples;
    int64_t leaves; /* invar_hash_leaf_count, which only the host can say */
} invar_hash_leaves_args;

/* How many leaves rows have in segments that are in the host's memory. */
int64_t invar_hash_leaf_count(const invar_tensor *x, const invar_row_offsets *samples);

/* The arguments of any op. */
typedef union invar_op_args {
#define INVAR_OP(ID, fn, name, revision, numerics) invar_##fn##_args fn;
#include "kernels-deterministic/ops.def"
#undef INVAR_OP
} invar_op_args;

/* invar_linear_fwd(dev, &args) and so on. */
#define INVAR_OP(ID, fn, name, revision, numerics)                                                 \
    invar_status invar_##fn(const invar_device *dev, const invar_##fn##_args *args) INVAR_MUST_USE;
#include "kernels-deterministic/ops.def"
#undef INVAR_OP

#ifdef __cplusplus
}
#endif
#endif
