/*
 * model.h - a model's parameters: their names, their order, their memory.
 *
 * The order of `params` is canonical: gradients are normed, weights hashed and files written in it.
 * Every parameter has a master in f32. What the ops read is `weight`: the master itself (fp32), its
 * rounding (bf16), or its quantisation, made anew from the master after every change. The experts
 * of a layer are one parameter, stacked: expert e is the rows [e * rows, (e + 1) * rows). All
 * tensors are in the memory of the model's device: where that is far, the host goes through near.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_MODEL_H
#define INVAR_ENGINE_MODEL_MODEL_H

#include "base/hash.h"
#include "engine/model/spec.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the linear layers compute in. Storage of everything else is f32 for fp32, else bf16. */
typedef enum invar_format {
    INVAR_FORMAT_FP32,
    INVAR_FORMAT_BF16,
    INVAR_FORMAT_FP8,
    INVAR_FORMAT_MXFP8,
    INVAR_FORMAT_INT4,
    INVAR_FORMAT_COUNT
} invar_format;

/* "mxfp8", as recipes and --dtype have it; NULL out of range. */
const char *invar_format_name(invar_format format);

/* The index of the name; INVAR_E_INVALID lists the names. */
invar_status invar_format_parse(invar_format *out, const char *name) INVAR_MUST_USE;

/* The type of activations, norms, biases, embedding and head. */
invar_dtype invar_format_storage(invar_format format);

typedef enum invar_param_kind {
    INVAR_PARAM_EMBEDDING, /* (vocab, hidden) */
    INVAR_PARAM_NORM,      /* (n) */
    INVAR_PARAM_BIAS,      /* (n) */
    INVAR_PARAM_LINEAR,    /* (out, in), quantised by the low-precision formats */
    INVAR_PARAM_EXPERT,    /* (experts * out, in), quantised too */
    INVAR_PARAM_ROUTER,    /* (experts, hidden), never quantised */
    INVAR_PARAM_HEAD       /* (vocab, hidden), never quantised; (1, hidden) of a critic */
} invar_param_kind;

#define INVAR_PARAM_NAME_SIZE 96

typedef struct invar_param {
    /* Hugging Face's; of an expert stack without the number: "...mlp.experts.up_proj.weight" */
    char name[INVAR_PARAM_NAME_SIZE];
    invar_param_kind kind;
    int64_t layer;       /* -1: of none */
    int64_t stack;       /* experts; 1 for the others */
    int64_t rows;        /* of one expert; of a vector its length */
    int64_t cols;        /* 0: a vector */
    invar_tensor master; /* (stack * rows, cols) or (rows) f32 */
    invar_tensor weight; /* the same extents, in the type that ops read */
} invar_param;

/* The parameters of one layer; NULL where the layer has none. Borrowed from the model. */
typedef struct invar_layer {
    const invar_param *norm_in;
    const invar_param *wq, *bq, *wk, *bk, *wv, *bv;
    const invar_param *norm_q, *norm_k;
    const invar_param *wo;
    const invar_param *norm_post;
    const invar_param *router;
    const invar_param *gate, *up, *down; /* dense or expert stacks */
} invar_layer;

typedef struct invar_model {
    invar_model_spec spec;
    invar_format format;
    invar_dtype storage;
    invar_param *params; /* (n_params) in canonical order */
    int64_t n_params;
    int64_t *order;      /* (n_params) of their memory: matrices, then vectors */
    invar_layer *layers; /* (spec.layers) */
    const invar_param *embedding;
    const invar_param *norm;
    const invar_param *head; /* the embedding where tied */
    invar_tensor cosine;     /* (max_positions, head_dim / 2) f32 */
    invar_tensor sine;
    invar_device dev; /* whose memory the tensors are in; without scratch */
    void *memory;     /* one block of it behind all tensors */
} invar_model;

/*
 * Parameters with memory and undefined values. INVAR_E_UNSUPPORTED where the format needs extents
 * that the spec does not have (whole scale blocks).
 */
invar_status invar_model_new(invar_model **out, const invar_model_spec *spec, invar_format format,
                             const invar_device *dev) INVAR_MUST_USE;
void invar_model_free(invar_model *model);

/*
 * Masters from Philox: normal numbers with the spec's init_std, norms 1, biases 0; then refresh.
 * A parameter's values depend on the seed and on its place in the canonical order alone.
 */
invar_status invar_model_init(invar_model *model, uint32_t seed,
                              const invar_device *dev) INVAR_MUST_USE;

/* Makes every `weight` from its master, after loading. The optimizer writes both by itself. */
invar_status invar_model_refresh(invar_model *model, const invar_device *dev) INVAR_MUST_USE;

/* Copies all masters and weights between models of one spec, format and device. */
invar_status invar_model_copy(invar_model *to, const invar_model *from) INVAR_MUST_USE;

/* The digest of all masters in canonical order: hash of the hash.tree digests of each. */
invar_status invar_model_hash(invar_digest *out, const invar_model *model,
                              const invar_device *dev) INVAR_MUST_USE;

/* The parameter with this name; NULL when there is none. */
invar_param *invar_model_find(const invar_model *model, const char *name);

#ifdef __cplusplus
}
#endif
#endif
