/*
 * builder.h - writes the program of a model: verbs for the forward, the backward derived from them.
 *
 * A verb appends the calls of a forward, fused where an op can do several things at once, and notes
 * what its backward needs. The backward is the list of verbs walked from its end: each takes the
 * gradients of its results and gives those of its inputs. A value that several verbs read has the
 * sum of what they give, in this order. A parameter is declared where it is used first; without
 * parameters a builder only collects these declarations (param.h).
 *
 *     w = invar_build_param(b, INVAR_PARAM_NORM, "input_layernorm.weight", 1, hidden, 0);
 *     x = invar_graph_norm(b, "norm_in", x, &w);
 *
 * Names are borrowed. Tensors are the program's, without memory (op_graph.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_BUILDER_H
#define INVAR_ENGINE_MODEL_GRAPH_BUILDER_H

#include "engine/model/graph/param.h"
#include "engine/model/graph/row_partition.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Numbers of given memory. */
typedef enum invar_graph_input {
    INVAR_GIVEN_MODEL, /* all parameters but those of a frozen base */
    INVAR_GIVEN_GRADS, /* all gradients */
    INVAR_GIVEN_CACHE, /* keys and values of all layers */
    INVAR_GIVEN_IDS,
    INVAR_GIVEN_POSITIONS,
    INVAR_GIVEN_SAMPLES,
    INVAR_GIVEN_UNITS,
    INVAR_GIVEN_OWN_UNITS, /* of this rank's rows, where ranks divide them */
    INVAR_GIVEN_PAGES,
    INVAR_GIVEN_SLOTS,
    INVAR_GIVEN_LENGTHS,
    INVAR_GIVEN_REPLAY,
    INVAR_GIVEN_ROUTING,
    /* of the head */
    INVAR_GIVEN_STREAM,   /* the last layer's output */
    INVAR_GIVEN_D_STREAM, /* its gradient */
    INVAR_GIVEN_ROWS,
    INVAR_GIVEN_TARGETS,
    INVAR_GIVEN_HEAD_UNITS,
    INVAR_GIVEN_PARTS,
    INVAR_GIVEN_DLOGP,
    INVAR_GIVEN_DENTROPY,
    INVAR_GIVEN_BACK,
    /* where context-parallel ranks divide rows */
    INVAR_GIVEN_CONTEXT_UNITS, /* of this rank's rows */
    INVAR_GIVEN_IN_ORDER,      /* 0, 1, ...: to copy rows by */
    /* where ranks divide the vocabulary */
    INVAR_GIVEN_OWN_IDS,     /* places of ids in this rank's part; any for those of other ranks */
    INVAR_GIVEN_OWN_D_IDS,   /* the same, but behind the part for those of other ranks */
    INVAR_GIVEN_PICKED,      /* rows of the gathered parts */
    INVAR_GIVEN_CHUNKS,      /* the logits' chunks in the gathered parts */
    INVAR_GIVEN_OWN_TARGETS, /* as the ids, behind the part for others */
    INVAR_GIVEN_BASE,        /* the parameters of a frozen base */
} invar_graph_input;

/* What a builder knows of a tensor of the forward, by its room. */
typedef struct invar_value_info {
    const char *name; /* NULL: none */
    int64_t layer;
    bool stream;
    int32_t readers;           /* verbs that give it a gradient of their own, */
    int32_t n_grads_received;  /* and how many of them have */
    invar_tensor codes;        /* quantized for a product; absent: not yet */
    invar_tensor by_slot;      /* rows of slots; see invar_graph_point */
    invar_row_offsets experts; /* whose rows ranks divide; see there, too */
    invar_tensor own;  /* this rank's rows, which all rows were gathered from; absent: none */
    bool stays;        /* all rows are still there in the backward */
    invar_tensor d;    /* its gradient so far; absent: none */
    int32_t n_sharers; /* values whose gradient this is */
    /* Gradients of results of one linear layer lie side by side, so that one product takes all. */
    int32_t group, column; /* 0: none */
} invar_value_info;

/* The adapter of a linear layer, docs/arithmetic.md, section 15. */
typedef struct invar_adapter {
    invar_tensor a, da; /* absent: there is none */
    invar_tensor b, db;
    float factor;
} invar_adapter;

/* A parameter in use: what this rank has of it. */
typedef struct invar_weight {
    invar_tensor w, dw; /* absent: there is none; dw alone: the parameter is frozen */
    invar_adapter adapter;
    invar_logical_split cut;
    int64_t whole;         /* extent along the cut, of all ranks */
    int32_t piece, pieces; /* of the cut's, this rank's */
} invar_weight;

/* Do ranks have other pieces of it? */
static inline bool invar_weight_divided(const invar_weight *w)
{
    return w->pieces < w->cut.shards;
}

/* The heads that a projection makes. */
typedef struct invar_heads {
    int64_t count;           /* of this rank */
    int64_t whole;           /* of all */
    invar_logical_split cut; /* atoms are heads */
    int32_t piece, pieces;   /* as those of the projection */
} invar_heads;

/* A part of a sum that ranks make parts of: one chain of some shards. */
typedef struct invar_sum_part {
    int64_t first, count; /* of this rank's values that the sum is over */
    int32_t shards;
} invar_sum_part;

/* Parts of a rank: one, or one for each shard where they do not lie as those of one rank would. */
typedef struct invar_sum_parts {
    int32_t count;
    invar_sum_part part[INVAR_LINEAR_MAX_SHARDS];
} invar_sum_parts;

typedef struct invar_builder invar_builder;

/* The backward of a verb, with the arguments that it noted. */
typedef void (*invar_backward_fn)(invar_builder *b, const void *noted);

typedef struct invar_backward_record {
    invar_backward_fn backward;
    int64_t layer;
    size_t args; /* where they are among the noted bytes */
} invar_backward_record;

/* Gradients side by side. */
typedef struct invar_grad_group {
    int64_t rows, cols;
    invar_tensor room; /* absent: nobody has asked for it */
} invar_grad_group;

struct invar_builder {
    invar_op_graph *program;
    /* of the model */
    const invar_param *params; /* NULL: declarations are collected */
    const void *param_base;    /* what addresses of parameters count from; of gradients NULL */
    const void *frozen_base;   /* the same of a frozen base's; NULL: there is none */
    invar_param *declared;     /* where they go; NULL: they are only counted */
    int64_t next_param;
    invar_dtype storage;
    float norm_eps;
    int64_t head_block;        /* what the width of an atom of heads is a multiple of */
    int32_t tensor, tensors;   /* this rank of those that divide layers; 0, 1: alone */
    int32_t expert, experts;   /* and of those that divide experts */
    invar_tensor cosine, sine; /* named by the program */
    /* of the pass */
    bool train;       /* a backward follows */
    bool hide_points; /* what is computed a second time: its points are not shown */
    int64_t layer;    /* -1: of none */
    int64_t rows;
    invar_tensor ids, positions;
    invar_row_offsets samples, units;
    /* Of all context-parallel ranks' rows, which samples and attention count; else as the above. */
    const invar_row_partition *context; /* NULL: rows are not divided */
    int64_t all_rows;
    invar_tensor all_ids;
    invar_row_offsets all_units;
    /* Rows of the residual stream that are this rank's; NULL: all. The units are those of them. */
    const invar_row_partition *stream;
    invar_row_offsets stream_units;
    const invar_kv_pages *cache; /* (layers), named by the program; NULL: none */
    const int64_t *lengths;
    int64_t kv_span, q_span;      /* of attention; 0: no sample is longer than one */
    invar_tensor replay, routing; /* (T, sparse layers * slots); absent: none */
    int64_t sparse_layers;        /* before this one */
    /* lists */
    invar_value_info *built; /* by room */
    size_t built_bytes;
    invar_value_info lost; /* where there is no memory */
    invar_backward_record *backward_records;
    size_t noted_bytes;
    int32_t n_noted;
    char *args;
    size_t args_room, n_args;
    invar_grad_group *groups;
    size_t group_bytes;
    int32_t n_groups;
};

void invar_builder_release(invar_builder *b); /* its lists */

/* ---- parameters and values ------------------------------------------------------------------- */

/* The next parameter; in a layer the name is what follows "model.layers.N.". */
invar_weight invar_build_param(invar_builder *b, invar_param_kind kind, const char *name,
                               int64_t stack, int64_t rows, int64_t cols);

/*
 * The same for one that logical tensor parallelism cuts: into V = `pieces` along its rows or, with
 * `columns`, along its columns. Products that sum over what is cut have V shards.
 */
invar_weight invar_build_cut_param(invar_builder *b, invar_param_kind kind, const char *name,
                                   int64_t rows, int64_t cols, const invar_logical_split *cut);

/* A parameter as the program names it. */
invar_weight invar_build_weight(invar_builder *b, const invar_param *p);

/* An array of the given memory. */
invar_tensor invar_build_array(invar_builder *b, invar_graph_input which, invar_dtype dtype,
                               int64_t count);

/* Another name for a value: that of a layer's input. */
void invar_build_rename(invar_builder *b, const invar_tensor *value, const char *name);

/* A point of the last call, and from now on what is known of the value; yields it. */
invar_tensor invar_build_result(invar_builder *b, const char *name, invar_tensor value);
invar_tensor invar_build_stream(invar_builder *b, const char *name, invar_tensor value);

/* A point of the last call: what products take for the value with this name, or its gradient. */
void invar_build_codes(invar_builder *b, const char *name, bool gradient,
                       const invar_tensor *codes);

/* A point of the last call: what an adapter of the layer with this name has, or its gradient. */
void invar_build_adapted(invar_builder *b, const char *name, bool gradient, const invar_tensor *u);

/* The heads of width `dim` that the projection makes. */
invar_heads invar_build_heads_of(const invar_weight *projection, int64_t dim);

/*
 * How this rank's part of a sum over `whole` values, cut as the others' are, is computed. The same
 * number of parts on every rank.
 */
invar_sum_parts invar_build_sum_parts(const invar_builder *b, int64_t whole,
                                      const invar_logical_split *cut);

/* The same as one part for each shard, in any case. */
invar_sum_parts invar_build_single_shards(const invar_builder *b, int64_t whole,
                                          const invar_logical_split *cut);

/* (T, n) as (T, heads, n / heads). */
invar_tensor invar_build_heads(const invar_tensor *t, int64_t heads);

/*
 * Room for this rank's rows of the residual stream, or for some parts with as many rows each. What
 * it takes is a function of the number of all rows: however these are divided, there is room.
 */
invar_tensor invar_build_stream_room(invar_builder *b, invar_dtype dtype, int32_t parts,
                                     int64_t cols);

/* Of a tensor with all rows those that are this rank's, where ranks divide the stream. */
invar_tensor invar_build_own_rows(const invar_builder *b, const invar_tensor *all);

/* All rows of a tensor of which each rank has its own, behind the last call; else the tensor. */
invar_tensor invar_build_all_rows(invar_builder *b, const invar_tensor *own);

/* The same for a value that was gathered in the forward: its rows are there, or gathered again. */
invar_tensor invar_build_value_rows(invar_builder *b, const invar_tensor *value);

/* ---- verbs ----------------------------------------------------------------------------------- */

invar_tensor invar_graph_embed(invar_builder *b, const char *name, const invar_weight *table);

invar_tensor invar_graph_norm(invar_builder *b, const char *name, invar_tensor x,
                              const invar_weight *weight);

/* Experts' rows of tokens: who has which, and where they lie. */
typedef struct invar_moe_routing {
    invar_tensor ids;                       /* (T, slots) i32: used */
    invar_tensor weights;                   /* (T, slots) f32 */
    invar_tensor scores;                    /* (T, experts) f32 */
    invar_tensor all_weights;               /* (all T, slots) f32 */
    invar_tensor row_token;                 /* (P) i32 */
    invar_tensor slot_row;                  /* (all T, slots) i32 */
    invar_row_offsets experts;              /* over P */
    invar_row_offsets local_expert_offsets; /* of them, those whose rows this rank multiplies, */
    int64_t local_first, n_held;            /* of so many that it has, they begin with this one; */
    int64_t held_first;                     /* of all, what it has with this one */
    invar_tensor logits;
    invar_moe_router router;
} invar_moe_routing;

/* The rows of a value are those of slots, by experts. */
void invar_build_slots(invar_builder *b, const invar_tensor *value,
                       const invar_moe_routing *routes);

/* One of the layers that share an input. */
typedef struct invar_projection {
    const char *name;
    invar_weight w, bias; /* bias absent: none */
    bool f32;             /* not in storage */
    invar_tensor y;       /* the result */
    invar_tensor u;       /* what its adapter makes of the input; absent: it has none */
} invar_projection;

#define INVAR_MAX_OUTPUTS INVAR_LINEAR_MAX_PARTS

/* y = x w^T + bias, for each. With routes: of experts, one w for each; no bias. */
void invar_graph_linears(invar_builder *b, invar_tensor x, invar_projection *outputs, int32_t count,
                         const invar_moe_routing *routes);

/* dx = dy w of one layer, and nothing else: what the backward of a head needs. */
void invar_build_input_gradient(invar_builder *b, const invar_tensor *dx, const invar_tensor *dy,
                                const invar_weight *w);

/* The residual stream + x w^T. */
invar_tensor invar_graph_add_linear(invar_builder *b, const char *name, invar_tensor residual,
                                    invar_tensor x, const invar_weight *w);

/* swiglu of two linear layers of x: the gate, then what it lets through. */
invar_tensor invar_graph_swiglu(invar_builder *b, const char *name, invar_tensor x,
                                invar_projection gate_up[2], const invar_moe_routing *routes);

/* Rows of heads that are turned by their position. */
typedef struct invar_rope_input {
    const char *name;
    invar_tensor x;
    invar_weight norm; /* of each head, before it is turned; absent: none */
    invar_heads heads;
    invar_tensor y; /* the result; the memory of x without a norm */
} invar_rope_input;

#define INVAR_ROPE_MAX_INPUTS 2

void invar_graph_rope(invar_builder *b, invar_rope_input *of, int32_t count);

typedef struct invar_attention_inputs {
    invar_tensor q, k, v;
    invar_heads heads, kv_heads;
    int64_t window; /* 0: none */
} invar_attention_inputs;

/* Over the rows themselves, or over the cache that the new keys and values go into. */
invar_tensor invar_graph_attention(invar_builder *b, const char *name,
                                   const invar_attention_inputs *a);

invar_moe_routing invar_graph_moe_route(invar_builder *b, invar_tensor logits, int64_t slots,
                                        const invar_moe_router *router);
invar_tensor invar_graph_moe_dispatch(invar_builder *b, const char *name, invar_tensor x,
                                      const invar_moe_routing *routes);
invar_tensor invar_graph_moe_combine(invar_builder *b, const char *name, invar_tensor y,
                                     const invar_moe_routing *routes);

/* The residual stream + x. */
invar_tensor invar_graph_add(invar_builder *b, const char *name, invar_tensor residual,
                             invar_tensor x);

/* ---- for verbs ------------------------------------------------------------------------------- */

invar_value_info *invar_build_value_info(invar_builder *b, const invar_tensor *value);

/* Notes a verb for the backward, if there will be one. */
void invar_build_record_backward(invar_builder *b, invar_backward_fn backward, const void *args,
                                 size_t bytes);

/* Forgets the verbs noted since there were `mark` of them. */
void invar_build_discard_backward(invar_builder *b, int32_t mark);

/* The verb reads the value and will give it a gradient of its own. */
void invar_build_reads(invar_builder *b, const invar_tensor *value);

/* The gradient of a result, which the verb takes. */
invar_tensor invar_build_grad_in(invar_builder *b, const invar_tensor *value);

/* Values of one number of rows whose gradients are to lie side by side, in this order. */
int32_t invar_gradient_group(invar_builder *b, int64_t rows);
void invar_build_grad_group_add(invar_builder *b, int32_t group, const invar_tensor *value);

/* Room for the gradient of a value, where it lies best. */
invar_tensor invar_build_grad_buffer(invar_builder *b, const invar_tensor *value);

/*
 * What the verb with this name has computed for the value's gradient, in the last call: alone, or
 * with what others gave before it added (`sum`). The sum of all readers is the point "dVALUE",
 * anything else "dVALUE.READER". Once for each reader.
 */
void invar_build_grad_point(invar_builder *b, const invar_tensor *value, const invar_tensor *d,
                            const char *reader, bool sum);

/* `d` becomes the value's gradient, or is added to it. */
void invar_build_grad_add(invar_builder *b, const invar_tensor *value, const invar_tensor *d);

/* `d`, which has the value's gradient in it, takes its place. */
void invar_gradient_set(invar_builder *b, const invar_tensor *value, const invar_tensor *d);

/* Verbs noted since there were `mark` of them, from the last on; they are forgotten. */
void invar_build_backward(invar_builder *b, int32_t mark);

#ifdef __cplusplus
}
#endif
#endif
