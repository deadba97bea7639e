/*
 * builder.h - builds the op graph of a model: layer functions for the forward, their backward
 * derived.
 *
 * A layer function (invar_graph_*) appends the nodes of a forward, fused if one op can do several
 * steps, and records what its backward needs. The backward runs these records from last to first:
 * each one consumes the gradients of its results and adds to those of its inputs. The gradient of a
 * value with several readers is the sum over the readers in this order. A parameter is declared at
 * its first use; a builder without parameters only collects these declarations (param.h).
 *
 *     w = invar_build_param(b, INVAR_PARAM_NORM, "input_layernorm.weight", 1, hidden, 0);
 *     x = invar_graph_norm(b, "norm_in", x, &w);
 *
 * Names are borrowed. Tensors are symbolic, without memory (op_graph.h). Errors are kept in the op
 * graph and returned by its plan.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_BUILDER_H
#define INVAR_ENGINE_MODEL_GRAPH_BUILDER_H

#include "engine/model/graph/param.h"
#include "engine/model/graph/row_partition.h"

/* Input buffers of a model's op graphs. invar_pass.inputs holds their addresses. */
typedef enum invar_graph_input {
    INVAR_INPUT_MODEL, /* all parameters except a frozen base */
    INVAR_INPUT_GRADS, /* all gradients */
    INVAR_INPUT_CACHE, /* keys and values of all layers */
    INVAR_INPUT_IDS,
    INVAR_INPUT_POSITIONS,
    INVAR_INPUT_SAMPLES,
    INVAR_INPUT_UNITS,
    INVAR_INPUT_OWN_UNITS, /* unit offsets of this rank's rows of the residual stream, if ranks
                              divide it */
    INVAR_INPUT_PAGES,
    INVAR_INPUT_SLOTS,
    INVAR_INPUT_LENGTHS,
    INVAR_INPUT_REPLAY,
    INVAR_INPUT_ROUTING,
    /* Head */
    INVAR_INPUT_STREAM,   /* last layer's output */
    INVAR_INPUT_D_STREAM, /* gradient of the last layer's output */
    INVAR_INPUT_ROWS,
    INVAR_INPUT_TARGETS,
    INVAR_INPUT_HEAD_UNITS,
    INVAR_INPUT_PARTS,
    INVAR_INPUT_DLOGP,
    INVAR_INPUT_DENTROPY,
    INVAR_INPUT_BACK,
    /* Context parallelism */
    INVAR_INPUT_CONTEXT_UNITS, /* unit offsets of this rank's rows */
    INVAR_INPUT_IN_ORDER,      /* 0, 1, ...: ids with which embedding.fwd copies rows */
    /* Vocabulary parallelism */
    INVAR_INPUT_OWN_IDS,     /* rows of the ids in the local shard of the embedding; 0 for ids of
                                other ranks */
    INVAR_INPUT_OWN_D_IDS,   /* rows of the ids in the gradient; a spare row after the shard for
                                ids of other ranks */
    INVAR_INPUT_PICKED,      /* rows of the gathered parts that hold the embeddings */
    INVAR_INPUT_CHUNKS,      /* index in the gathered parts of each chunk of the logits */
    INVAR_INPUT_OWN_TARGETS, /* columns of the targets in the local logits; the one after them
                                for targets of other ranks */
    INVAR_INPUT_BASE,        /* parameters of a frozen base */
} invar_graph_input;

/* Properties of a forward tensor, indexed by its buffer. */
typedef struct invar_value_info {
    const char *name; /* NULL if it has none */
    int64_t layer;
    bool stream;
    int32_t readers;           /* layer functions that add to its gradient */
    int32_t n_grads_received;  /* readers that have added to the gradient so far */
    invar_tensor codes;        /* the value quantized for a product; absent until it is needed */
    invar_tensor by_slot;      /* rows by slot; see invar_graph_point */
    invar_row_offsets experts; /* row offsets of experts that ranks divide; see invar_graph_point */
    invar_tensor local_rows; /* this rank's rows, from which all rows were gathered; absent if they
                                were not gathered */
    bool rows_kept;          /* the gathered rows are still valid in the backward */
    invar_tensor grad;       /* gradient so far; may be absent */
    int32_t n_sharers;       /* number of values whose gradient is this tensor */
    /*
     * Gradient group: the gradients of results of one linear group are adjacent columns, so that
     * one product reads all of them.
     */
    int32_t group, column; /* 0 if the value is in no group */
} invar_value_info;

/* Low-rank adapter of a linear layer (docs/arithmetic.md, section 15). */
typedef struct invar_adapter {
    invar_tensor a, da; /* absent if there is no adapter */
    invar_tensor b, db;
    float factor;
} invar_adapter;

/* A parameter in use: this rank's local shard and the logical split. */
typedef struct invar_weight {
    invar_tensor w, dw; /* absent without bias or norm; dw alone is absent if the parameter is
                           frozen */
    invar_adapter adapter;
    invar_logical_split split;
    int64_t n_total; /* extent along the split, of all ranks */
    int32_t first_shard,
        n_shards; /* first logical shard and number of logical shards of this rank */
} invar_weight;

/* Returns true if other ranks have other logical shards of the parameter. */
static inline bool invar_weight_is_divided(const invar_weight *w)
{
    return w->n_shards < w->split.shards;
}

/* Attention heads that a projection computes. */
typedef struct invar_heads {
    int64_t count;                 /* heads of this rank */
    int64_t n_total;               /* heads of all ranks */
    invar_logical_split split;     /* atoms are heads */
    int32_t first_shard, n_shards; /* first shard and number of shards, equal to the projection's */
} invar_heads;

/* One chain of a sum that tensor-parallel ranks divide; it covers consecutive logical shards. */
typedef struct invar_sum_part {
    int64_t first, count; /* range of this rank's values that the chain sums over */
    int32_t shards;
} invar_sum_part;

/*
 * Chains of one rank: a single one, or one per logical shard if the shards of the rank do not start
 * where they would on a single rank.
 */
typedef struct invar_sum_parts {
    int32_t count;
    invar_sum_part part[INVAR_LINEAR_MAX_SHARDS];
} invar_sum_parts;

typedef struct invar_builder invar_builder;

/* Backward of a layer function; `noted` is its copy of the recorded arguments. */
typedef void (*invar_backward_fn)(invar_builder *b, const void *noted);

typedef struct invar_backward_record {
    invar_backward_fn backward;
    int64_t layer;
    size_t args; /* offset in invar_builder.args */
} invar_backward_record;

/* Gradients that are adjacent columns of one tensor. */
typedef struct invar_grad_group {
    int64_t rows, cols;
    invar_tensor buffer; /* absent until a gradient of the group is needed */
} invar_grad_group;

/* The model of a builder: its parameters, and how ranks divide it. */
typedef struct invar_builder_model {
    const invar_param *params; /* NULL if declarations are collected */
    const void *param_base;    /* address that parameter addresses are relative to; gradients are
                                  relative to NULL */
    const void *frozen_base;   /* address that those of a frozen base are relative to; NULL if
                                  there is no frozen base */
    invar_param *declared;     /* receives the declarations; NULL if they are only counted */
    int64_t next_param;
    invar_dtype storage;
    float norm_eps;
    int64_t head_block;        /* the width of an atom of heads is a multiple of it */
    int32_t tensor, tensors;   /* rank and number of tensor-parallel ranks; 0 and 1 without
                                  tensor parallelism */
    int32_t expert, experts;   /* rank and number of expert-parallel ranks */
    invar_tensor cosine, sine; /* symbolic */
} invar_builder_model;

/* The rows of a pass, and how ranks divide them. */
typedef struct invar_builder_rows {
    int64_t count; /* rows of this context-parallel rank, of all its tensor-parallel ranks */
    invar_tensor ids, positions;
    invar_row_offsets samples, units;
    /*
     * Rows of all context-parallel ranks, which `samples` and attention refer to; equal to the
     * fields above if rows are not divided.
     */
    const invar_row_partition *context; /* NULL if rows are not divided */
    int64_t all_count;
    invar_tensor all_ids;
    invar_row_offsets all_units;
    /*
     * This rank's rows of the residual stream under sequence parallelism, and the unit offsets of
     * these rows; NULL if it has all rows.
     */
    const invar_row_partition *stream;
    invar_row_offsets stream_units;
} invar_builder_rows;

/* Arrays that a builder grows; a later pass reuses their memory. */
typedef struct invar_builder_lists {
    invar_value_info *values; /* indexed by buffer */
    size_t value_bytes;
    invar_value_info lost; /* returned if memory is short */
    invar_backward_record *backward_records;
    size_t record_bytes;
    int32_t n_records;
    char *args;
    size_t args_capacity, n_args;
    invar_grad_group *groups;
    size_t group_bytes;
    int32_t n_groups;
} invar_builder_lists;

struct invar_builder {
    invar_op_graph *graph;
    invar_builder_model model;
    invar_builder_rows rows;
    bool train;                  /* a backward follows */
    bool hide_points;            /* the layer is recomputed: its points are not shown */
    int64_t layer;               /* -1 if it is no layer */
    const invar_kv_pages *cache; /* (layers), symbolic; NULL if there is no KV cache */
    const int64_t *lengths;
    int64_t kv_span, q_span;      /* keys and queries per span of attention; 0 if no sample is
                                     longer */
    invar_tensor replay, routing; /* (T, sparse layers * slots); absent if not used */
    int64_t sparse_layers;        /* number of sparse layers before this one */
    invar_builder_lists lists;
};

void invar_builder_release(invar_builder *b); /* frees the lists */

/* ---- parameters and values ------------------------------------------------------------------- */

/*
 * Declares the next parameter, without a logical split, or returns it if the builder has
 * parameters. In a layer, `name` is the part after "model.layers.N.".
 */
invar_weight invar_build_param(invar_builder *b, invar_param_kind kind, const char *name,
                               int64_t stack, int64_t rows, int64_t cols);

/*
 * Like invar_build_param, for a parameter that logical tensor parallelism splits: into
 * split->shards shards along its rows or, if split->columns is set, along its columns. Products
 * that sum over the split dimension have this number of shards.
 */
invar_weight invar_build_cut_param(invar_builder *b, invar_param_kind kind, const char *name,
                                   int64_t rows, int64_t cols, const invar_logical_split *split);

/* Returns the symbolic tensors of a parameter. */
invar_weight invar_build_weight(invar_builder *b, const invar_param *p);

/* Returns the first `count` elements of an input buffer as a vector. */
invar_tensor invar_build_array(invar_builder *b, invar_graph_input which, invar_dtype dtype,
                               int64_t count);

/* Renames a value: a layer's input gets the name that the layer knows it by. */
void invar_build_rename(invar_builder *b, const invar_tensor *value, const char *name);

/*
 * Appends a point of the last node and names the value after it. Returns the value.
 * invar_build_stream also marks it as the residual stream.
 */
invar_tensor invar_build_result(invar_builder *b, const char *name, invar_tensor value);
invar_tensor invar_build_stream(invar_builder *b, const char *name, invar_tensor value);

/*
 * Appends a point of the last node: the quantized form of the value with this name, or of its
 * gradient.
 */
void invar_build_codes(invar_builder *b, const char *name, bool gradient,
                       const invar_tensor *codes);

/*
 * Appends a point of the last node: the low-rank intermediate u of the adapter of the layer with
 * this name, or its gradient.
 */
void invar_build_adapted(invar_builder *b, const char *name, bool gradient, const invar_tensor *u);

/* Returns the heads of width `dim` that the projection computes. */
invar_heads invar_build_heads_of(const invar_weight *projection, int64_t dim);

/*
 * Returns the chains in which this rank computes its part of a sum over `n_total` values that is
 * split as in `split`. All ranks have the same number of chains.
 */
invar_sum_parts invar_build_sum_parts(const invar_builder *b, int64_t n_total,
                                      const invar_logical_split *split);

/* Like invar_build_sum_parts, but always with one chain per logical shard. */
invar_sum_parts invar_build_single_shards(const invar_builder *b, int64_t n_total,
                                          const invar_logical_split *split);

/* View of (T, n) as (T, heads, n / heads). */
invar_tensor invar_build_heads(const invar_tensor *t, int64_t heads);

/*
 * Declares a tensor for this rank's rows of the residual stream, or for `parts` parts of this
 * number of rows. Its memory depends on the number of all rows only, so it suffices for every split
 * of them.
 */
invar_tensor invar_build_residual_buffer(invar_builder *b, invar_dtype dtype, int32_t parts,
                                         int64_t cols);

/*
 * Returns this rank's rows of the residual stream from a tensor of b->rows rows; the tensor itself
 * if tensor-parallel ranks do not divide the stream.
 */
invar_tensor invar_build_own_rows(const invar_builder *b, const invar_tensor *all);

/*
 * Gathers the rows of all tensor-parallel ranks after the last node: b->rows rows. Returns the
 * tensor itself if these ranks do not divide the stream.
 */
invar_tensor invar_build_all_rows(invar_builder *b, const invar_tensor *own);

/*
 * Like invar_build_all_rows, for a value that the forward gathered: returns the gathered rows if
 * they are still valid, else gathers them again.
 */
invar_tensor invar_build_value_rows(invar_builder *b, const invar_tensor *value);

/* ---- layer functions ------------------------------------------------------------------------- */

invar_tensor invar_graph_embed(invar_builder *b, const char *name, const invar_weight *table);

invar_tensor invar_graph_norm(invar_builder *b, const char *name, invar_tensor x,
                              const invar_weight *weight);

/*
 * Routing of one mixture-of-experts layer: chosen experts, and the order of rows by expert. T are
 * this rank's tokens, P all slots of all tokens.
 */
typedef struct invar_moe_routing {
    invar_tensor ids;                       /* (T, slots) i32 experts that are used */
    invar_tensor weights;                   /* (T, slots) f32 */
    invar_tensor scores;                    /* (T, experts) f32 */
    invar_tensor all_weights;               /* (all T, slots) f32 */
    invar_tensor row_token;                 /* (P) i32 */
    invar_tensor slot_row;                  /* (all T, slots) i32 */
    invar_row_offsets experts;              /* row offsets of all experts in P */
    invar_row_offsets local_expert_offsets; /* row offsets of the experts that this rank computes */
    int64_t local_first, n_held;            /* index of the first computed expert among the held
                                               ones; number of experts that this rank holds */
    int64_t held_first;                     /* index of the first held expert among all */
    invar_tensor logits;
    invar_moe_router router;
} invar_moe_routing;

/* Marks the rows of a value as ordered by expert instead of by token. */
void invar_build_slots(invar_builder *b, const invar_tensor *value,
                       const invar_moe_routing *routes);

/* One of the linear layers that share an input. */
typedef struct invar_projection {
    const char *name;
    invar_weight w, bias; /* bias may be absent */
    bool f32;             /* y is f32 instead of the storage type */
    invar_tensor y;       /* output */
    invar_tensor u;       /* output: low-rank intermediate of the adapter; absent without adapter */
} invar_projection;

#define INVAR_MAX_OUTPUTS INVAR_LINEAR_MAX_PARTS

/*
 * y = x w^T + bias for each output. If `routes` is not NULL, x has rows of experts, each w is a
 * stack of experts, and there is no bias.
 */
void invar_graph_linears(invar_builder *b, invar_tensor x, invar_projection *outputs, int32_t count,
                         const invar_moe_routing *routes);

/* Appends only dx = dy w of one layer, for the backward of the head. */
void invar_build_input_gradient(invar_builder *b, const invar_tensor *dx, const invar_tensor *dy,
                                const invar_weight *w);

/* Returns residual + x w^T, as the residual stream. */
invar_tensor invar_graph_add_linear(invar_builder *b, const char *name, invar_tensor residual,
                                    invar_tensor x, const invar_weight *w);

/* Returns swiglu of two linear layers of x; gate_up[0] is the gate. */
invar_tensor invar_graph_swiglu(invar_builder *b, const char *name, invar_tensor x,
                                invar_projection gate_up[2], const invar_moe_routing *routes);

/* Projection whose heads get rotary position embedding. */
typedef struct invar_rope_input {
    const char *name;
    invar_tensor x;
    invar_weight norm; /* norm of each head before the rotation; may be absent */
    invar_heads heads;
    invar_tensor y; /* output; shares the memory of x if there is no norm */
} invar_rope_input;

#define INVAR_ROPE_MAX_INPUTS 2

void invar_graph_rope(invar_builder *b, invar_rope_input *of, int32_t count);

typedef struct invar_attention_inputs {
    invar_tensor q, k, v;
    invar_heads heads, kv_heads;
    int64_t window; /* sliding window; 0 for none */
} invar_attention_inputs;

/*
 * Attention over the rows of the pass, or over the KV cache, to which the new keys and values are
 * written first.
 */
invar_tensor invar_graph_attention(invar_builder *b, const char *name,
                                   const invar_attention_inputs *a);

invar_moe_routing invar_graph_moe_route(invar_builder *b, invar_tensor logits, int64_t slots,
                                        const invar_moe_router *router);
invar_tensor invar_graph_moe_dispatch(invar_builder *b, const char *name, invar_tensor x,
                                      const invar_moe_routing *routes);
invar_tensor invar_graph_moe_combine(invar_builder *b, const char *name, invar_tensor y,
                                     const invar_moe_routing *routes);

/* Returns residual + x, as the residual stream. */
invar_tensor invar_graph_add(invar_builder *b, const char *name, invar_tensor residual,
                             invar_tensor x);

/* ---- for layer functions --------------------------------------------------------------------- */

invar_value_info *invar_build_value_info(invar_builder *b, const invar_tensor *value);

/*
 * Records the backward of a layer function with a copy of `args`. Does nothing if b->train is
 * false.
 */
void invar_build_record_backward(invar_builder *b, invar_backward_fn backward, const void *args,
                                 size_t bytes);

/* Drops the backward records from number `mark` on. */
void invar_build_discard_backward(invar_builder *b, int32_t mark);

/* Registers a layer function that will add a separate gradient to the value. */
void invar_build_reads(invar_builder *b, const invar_tensor *value);

/* Takes the gradient of a result; it must be present. Each result's gradient can be taken once. */
invar_tensor invar_build_grad_in(invar_builder *b, const invar_tensor *value);

/*
 * Creates a group of values with `rows` rows each whose gradients are stored as adjacent columns,
 * in the order of invar_build_grad_group_add. 0 is no group.
 */
int32_t invar_build_grad_group(invar_builder *b, int64_t rows);
void invar_build_grad_group_add(invar_builder *b, int32_t group, const invar_tensor *value);

/* Declares a tensor for the gradient of a value, in its group if it has one. */
invar_tensor invar_build_grad_buffer(invar_builder *b, const invar_tensor *value);

/*
 * Appends the point of the gradient `d` that `reader` has computed in the last node: its own
 * contribution, or with `sum` the total including earlier readers. The total of all readers is the
 * point "dVALUE", every other one "dVALUE.READER". Call it once per reader.
 */
void invar_build_grad_point(invar_builder *b, const invar_tensor *value, const invar_tensor *d,
                            const char *reader, bool sum);

/* Sets the value's gradient to `d`, or adds `d` to it. */
void invar_build_grad_add(invar_builder *b, const invar_tensor *value, const invar_tensor *d);

/* Replaces the value's gradient by `d`, which already includes it. */
void invar_build_grad_set(invar_builder *b, const invar_tensor *value, const invar_tensor *d);

/* Runs the backward of the records from the last down to number `mark`, and drops them. */
void invar_build_backward(invar_builder *b, int32_t mark);

#endif
