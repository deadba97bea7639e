/*
 * pass.h - the inside of a pass: activations, buffers of the backward, and the blocks' interface.
 *
 * Only engine/model includes this. A block is a file with a forward and a backward over one layer's
 * activations; pass.c calls the blocks in order. All buffers lie in one block of the device's
 * memory whose layout is made anew for every run and grows when it has to. The arrays that a pass
 * is given stay with the host, which plans by them; ops read them where `given` says.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_PASS_H
#define INVAR_ENGINE_MODEL_PASS_H

#include "engine/model/call.h"
#include "engine/model/forward.h"
#include "engine/model/near.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What one layer computes, from its input to its output; T rows, P = T * slots expert rows. */
typedef struct invar_acts {
    invar_tensor x;        /* (T, hidden) */
    invar_tensor norm_in;  /* (T, hidden) */
    invar_tensor q_raw;    /* (T, heads * dim) before QK-norm; the memory of q without one */
    invar_tensor k_raw;    /* (T, kv_heads * dim) */
    invar_tensor q;        /* (T, heads * dim) */
    invar_tensor k;        /* (T, kv_heads * dim) */
    invar_tensor v;        /* (T, kv_heads * dim) */
    invar_tensor o;        /* (T, heads * dim) */
    invar_tensor lse2;     /* (T, heads) f32 */
    invar_tensor mid;      /* (T, hidden): x + attention */
    invar_tensor norm_mid; /* (T, hidden) */
    invar_tensor gate;     /* (T or P, intermediate) */
    invar_tensor up;       /* (T or P, intermediate) */
    invar_tensor act;      /* (T or P, intermediate) */
    invar_tensor y;        /* (T, hidden): x + attention + mlp; the next layer's x */
    /* experts */
    invar_tensor logits;    /* (T, experts) f32 */
    invar_tensor scores;    /* (T, experts) f32 */
    invar_tensor weights;   /* (T, slots) f32 */
    invar_tensor chosen;    /* (T, slots) i32: by the router itself */
    invar_tensor used;      /* (T, slots) i32: chosen, or replayed */
    invar_tensor row_token; /* (P) i32 */
    invar_tensor slot_row;  /* (T, slots) i32 */
    invar_tensor gathered;  /* (P, hidden) */
    invar_tensor expert_y;  /* (P, hidden) */
    int64_t *expert_start;  /* (experts + 1) */
} invar_acts;

/* Buffers that no layer keeps. */
typedef struct invar_temps {
    invar_tensor branch;     /* (T, hidden): what a block adds to the residual, or its gradient */
    invar_tensor operand[3]; /* quantised operands: of inputs, and of up to three gradients */
    /* backward */
    invar_tensor d;        /* (T, hidden): gradient at a layer's output, then at its input */
    invar_tensor d_norm;   /* (T, hidden) */
    invar_tensor d_router; /* (T, hidden) */
    invar_tensor d_o, dq;  /* (T, heads * dim) */
    invar_tensor dq_raw;   /* dq without QK-norm; beside it lie dk_raw and dv, as columns */
    invar_tensor dk, dv;   /* (T, kv_heads * dim) */
    invar_tensor dk_raw;
    invar_tensor d_act;        /* (T or P, intermediate) */
    invar_tensor d_inner;      /* room for the next two, side by side in a dense layer */
    invar_tensor d_gate, d_up; /* (T or P, intermediate) */
    invar_tensor d_expert_y;   /* (P, hidden) */
    invar_tensor d_gathered;   /* (P, hidden) */
    invar_tensor d_weights;    /* (T, slots) f32 */
    invar_tensor d_logits;     /* (T, experts) */
} invar_temps;

/* The arrays of a run as ops see them; see invar_rows. */
typedef struct invar_given {
    const int32_t *ids;
    const int32_t *positions;
    invar_segments samples;
    invar_segments units;
    const int32_t *pages;
    const int64_t *lengths;
    const int32_t *routing_replay;
    int32_t *routing; /* the caller's own, or room among the activations */
} invar_given;

/* Those of the head, and of its backward. */
typedef struct invar_head_given {
    const int32_t *row;     /* (R) */
    const int32_t *targets; /* (R) */
    const int64_t *units;   /* (units + 1) over R */
    const int64_t *parts;   /* as invar_head_acts has them */
    const float *dlogp;     /* (R) */
    const float *dentropy;  /* (R) */
    const int32_t *back;    /* (T) */
} invar_head_given;

/* The head's rows: R of them, chosen from the T. */
typedef struct invar_head_acts {
    invar_tensor x;        /* (R, hidden) */
    invar_tensor norm;     /* (R, hidden) */
    invar_tensor logits;   /* (C, vocab) f32: of one piece, or of all where that is one */
    invar_tensor logp;     /* (R) f32 */
    invar_tensor entropy;  /* (R) f32, right behind logp */
    invar_tensor max;      /* (R) f32 */
    invar_tensor logsum;   /* (R) f32 */
    invar_tensor d_logits; /* (C, vocab) storage; the memory of logits where storage is f32 */
    invar_tensor d_norm;   /* (R, hidden) */
    invar_tensor d_x;      /* (R + 1, hidden): a row of zeros at the end */
    bool whole;            /* logits are of all rows */
    /* on the host */
    int32_t *row;   /* (R) */
    int64_t *parts; /* the units of each piece, counted from its first row, one after another */
    float *fetched; /* (2, R) log-probabilities and entropies */
    int32_t *back;  /* (T) where a row is among the R, or R; with a backward only */
    void *values;   /* (R) room for gradients of values; with a backward only */
} invar_head_acts;

typedef enum invar_pass_state {
    INVAR_PASS_EMPTY,
    INVAR_PASS_RUN,      /* through the layers */
    INVAR_PASS_LOGPROBS, /* and the head */
    INVAR_PASS_LOGITS    /* and the head, up to the logits */
} invar_pass_state;

struct invar_pass {
    invar_caller caller;
    invar_pass_options options;
    invar_forward_probe probe;
    const invar_model *model;
    invar_rows rows; /* the host's */
    invar_given given;
    invar_staging staging;
    invar_head_rows head; /* the host's */
    invar_head_given head_given;
    invar_staging head_staging, back_staging;
    invar_acts *acts; /* (layers) when everything is kept, else one */
    int64_t n_acts;
    invar_tensor *x; /* (layers + 1) residual stream at each layer's input */
    int64_t n_x;
    invar_temps temps;
    invar_head_acts tail;
    void *memory; /* of layers */
    size_t bytes;
    void *head_memory;
    size_t head_bytes;
    void *head_arrays; /* on the host */
    size_t head_array_bytes;
    invar_pass_state state;
};

/* Shows a value to the probe, if there is one; samples NULL: those of the rows. */
invar_status invar_pass_show(invar_pass *pass, const invar_forward_value *value) INVAR_MUST_USE;

/* INVAR_SHOW(pass, layer, "attn", ADD, &mid, .inputs = {"in", "o.proj"}, .stream = true) */
#define INVAR_SHOW(pass, number, name, OP, tensor, ...)                                            \
    invar_pass_show((pass), &(invar_forward_value){.point = (name),                                \
                                                   .layer = (number),                              \
                                                   .op = invar_op_name(INVAR_OP_##OP),             \
                                                   .rows = (tensor),                               \
                                                   __VA_ARGS__})
#define INVAR_SHOW_BACK(pass, number, name, OP, tensor, ...)                                       \
    INVAR_SHOW(pass, number, name, OP, tensor, .backward = true, __VA_ARGS__)

/* The parameter's place in the canonical order, so its gradient. */
invar_tensor *invar_pass_grad(const invar_pass *pass, invar_grads *grads, const invar_param *p);

/* (T, n) as (T, heads, n / heads). */
invar_tensor invar_pass_heads(const invar_tensor *t, int64_t heads);

/* ---- linear.c: linear layers in the model's format ------------------------------------------- */

/*
 * What a product takes for activations `x`: themselves, or quantised into a buffer. `of` is the
 * name of their point, NULL for rows of experts; what it is quantised to is the point "OF.q".
 */
invar_status invar_block_operand(invar_tensor *out, invar_pass *pass, int64_t layer, const char *of,
                                 const invar_tensor *x) INVAR_MUST_USE;

/*
 * Where an op that makes `x` puts what a product takes for it, in the buffer of that number: absent
 * where products take x itself, and where a probe is to be shown the two apart.
 */
invar_tensor invar_block_codes(const invar_pass *pass, const invar_tensor *x, int slot);

/* y = operand w^T + bias (bias may be NULL). Experts: grouped by `experts`, else NULL. */
invar_status invar_block_linear(invar_pass *pass, const invar_tensor *y, const invar_tensor *x,
                                const invar_param *w, const invar_param *bias,
                                const invar_segments *experts) INVAR_MUST_USE;

/* A layer of several that share an operand. */
typedef struct invar_block_output {
    const invar_tensor *y;
    const invar_param *w;
    const invar_param *bias; /* NULL: none */
} invar_block_output;

invar_status invar_block_linears(invar_pass *pass, const invar_tensor *x,
                                 const invar_block_output *outputs,
                                 int32_t n_outputs) INVAR_MUST_USE;

/* act = the gated activation of two dense layers, which a pass without a backward does not keep. */
invar_status invar_block_gated(invar_pass *pass, const invar_tensor *act, const invar_tensor *x,
                               const invar_block_output gate_up[2]) INVAR_MUST_USE;

/* y = residual + operand w^T; a probe is shown the second part, as `branch` says. */
invar_status invar_block_add_linear(invar_pass *pass, const invar_tensor *y,
                                    const invar_tensor *residual, const invar_tensor *x,
                                    const invar_param *w,
                                    const invar_forward_value *branch) INVAR_MUST_USE;

typedef struct invar_block_part {
    const invar_tensor *dy; /* as stored; quantised inside where the format says so */
    const char *of;         /* as for invar_block_operand */
    const invar_param *w;
    const invar_param *bias; /* NULL: none */
    bool coded;              /* quantised already, into the buffer of its number */
} invar_block_part;

/* dx = one chain over the parts; dw and bias gradients of each part. x as stored. */
invar_status invar_block_linear_backward(invar_pass *pass, int64_t layer, const invar_tensor *dx,
                                         const invar_tensor *x, const invar_block_part *parts,
                                         int32_t n_parts, const invar_acts *experts,
                                         invar_grads *grads) INVAR_MUST_USE;

/* ---- blocks: forward reads acts->x or acts->mid, backward turns temps.d in place ------------- */

invar_status invar_block_attention(invar_pass *pass, int64_t layer,
                                   invar_acts *acts) INVAR_MUST_USE;
invar_status invar_block_attention_backward(invar_pass *pass, int64_t layer, invar_acts *acts,
                                            invar_grads *grads) INVAR_MUST_USE;

/* Dense or experts, by the layer. */
invar_status invar_block_mlp(invar_pass *pass, int64_t layer, invar_acts *acts) INVAR_MUST_USE;
invar_status invar_block_mlp_backward(invar_pass *pass, int64_t layer, invar_acts *acts,
                                      invar_grads *grads) INVAR_MUST_USE;

/* acts->norm_mid -> temps.branch; gradient of the branch in temps.d -> temps.d_norm. */
invar_status invar_block_experts(invar_pass *pass, int64_t layer, invar_acts *acts) INVAR_MUST_USE;
invar_status invar_block_experts_backward(invar_pass *pass, int64_t layer, invar_acts *acts,
                                          invar_grads *grads) INVAR_MUST_USE;

/* Norm over the last index, with one weight for all heads. */
invar_status invar_block_norm(invar_pass *pass, const invar_tensor *y, const invar_tensor *x,
                              const invar_param *weight, int64_t heads) INVAR_MUST_USE;
invar_status invar_block_norm_backward(invar_pass *pass, const invar_tensor *dx,
                                       const invar_tensor *dy, const invar_tensor *x,
                                       const invar_param *weight, int64_t heads,
                                       const invar_segments *units,
                                       invar_grads *grads) INVAR_MUST_USE;

/* The gradient of the stream, temps.d, after a branch's norm; names of the points of its parts. */
typedef struct invar_block_join {
    const invar_tensor *x; /* what the norm took */
    const invar_param *weight;
    const char *point, *norm, *dy, *of; /* of the sum, of the norm's dx, of its dy and of x */
} invar_block_join;

/* temps.d = temps.d + the norm's backward of temps.branch: one op, or two for a probe. */
invar_status invar_block_join_backward(invar_pass *pass, int64_t layer,
                                       const invar_block_join *join,
                                       invar_grads *grads) INVAR_MUST_USE;

/* ---- head.c: the first part of a backward, down to temps.d ----------------------------------- */

invar_status invar_head_backward(invar_pass *pass, const float *dlogp, const float *dentropy,
                                 invar_grads *grads) INVAR_MUST_USE;
invar_status invar_head_backward_values(invar_pass *pass, const float *dvalue,
                                        const invar_segments *units,
                                        invar_grads *grads) INVAR_MUST_USE;

/* ---- memory.c: where everything lies --------------------------------------------------------- */

/* Buffers for the pass's rows and model. */
invar_status invar_pass_lay_out(invar_pass *pass) INVAR_MUST_USE;

/* Buffers of the head for `rows` rows of which `piece` have logits at a time. */
invar_status invar_pass_lay_out_head(invar_pass *pass, int64_t rows, int64_t piece) INVAR_MUST_USE;

/* Gives all of it back. */
void invar_pass_release_memory(invar_pass *pass);

#ifdef __cplusplus
}
#endif
#endif
