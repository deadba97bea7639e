/*
 * model.h - a model's parameters: their names, their order, their memory.
 *
 * The order of `params` is canonical: gradients are normed, weights hashed and files written in it.
 * Every parameter has a master in f32. What the ops read is `weight`: the master itself (fp32), its
 * rounding (bf16), or its quantization, made anew from the master after every change. Where ranks
 * own rows each (shard/zero_partition.h), all of them have the weight, and each the master of its
 * own rows. So values enter a model through shard/param_loader.h, and leave it through
 * shard/master_weights.h. The experts of a layer are one parameter, stacked: expert e is the rows
 * [e * rows, (e + 1) * rows). All tensors are in the memory of the model's device: where that is
 * far, the host goes through host_staging.h.
 *
 * With adapters (lora/adapters.h) these are the model's parameters. Those of its base stand behind
 * them and are frozen: they have a weight, but neither master nor gradient.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_MODEL_H
#define INVAR_ENGINE_MODEL_MODEL_H

#include "base/block_carver.h"
#include "base/hash.h"
#include "base/recipe/choices.h"
#include "engine/model/partition.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the linear layers compute in. Storage of everything else is f32 for fp32, else bf16. */
typedef enum invar_format {
#define INVAR_FORMAT(ID, ...) INVAR_FORMAT_##ID,
#include "engine/model/formats.def"
#undef INVAR_FORMAT
    INVAR_FORMAT_COUNT
} invar_format;

extern const invar_choices invar_format_choices; /* as recipes and --dtype have them */

/* "mxfp8", as recipes and --dtype have it; NULL out of range. */
const char *invar_format_name(invar_format format);

/* The type of activations, norms, biases, embedding and head. */
invar_dtype invar_format_storage(invar_format format);

/* What heads that stay together are wide: a multiple of this, so that no scale block is cut. */
int64_t invar_format_head_block(invar_format format);

typedef struct invar_model {
    invar_model_spec spec;
    invar_format format;
    invar_dtype storage;
    bool no_masters; /* it has no masters, unless weights are f32 */
    /* of the ranks that hold the model together; NULL: this one alone */
    const invar_layout *layout;
    invar_model_partition part; /* what of it is here */
    invar_param *params;        /* (n_params) in canonical order, all that is trained */
    int64_t n_params;
    invar_param *base; /* (n_base) without adapters: params; else frozen ones behind them */
    int64_t n_base;
    /*
     * (n_params, data ranks + 1) who owns which rows, shard/zero_partition.h; NULL: this rank owns
     * all
     */
    int64_t *zero_rows;
    int64_t *order; /* (n_params) of their memory: matrices, then vectors */
    int64_t *first; /* (spec.layers + 1) parameter of each layer; behind them the norm's */
    const invar_param *embedding;
    const invar_param *norm;
    const invar_param *head; /* the embedding where tied */
    invar_tensor cosine;     /* (max_positions, head_dim / 2) f32 */
    invar_tensor sine;
    invar_device dev;       /* whose memory the tensors are in; without scratch */
    void *memory;           /* one block of it behind all tensors, */
    void *masters;          /* which ends with masters, but where ops read them; */
    void *base_memory;      /* another one behind a frozen base; NULL: there is none */
    bool base_borrowed;     /* it is another model's */
    invar_tensor tied_grad; /* of a tied head, behind those of parameters; absent: it is not tied */
    size_t grad_bytes;      /* of a block of gradients, this one included */
    /* sum of hashes of all values that came in, where ranks own rows each */
    uint64_t load_checksum[2];
} invar_model;

/*
 * Parameters with memory and undefined values: this rank's part of them, with a layout, which is
 * borrowed. INVAR_E_UNSUPPORTED where the format needs extents that the spec does not have (whole
 * scale blocks), INVAR_E_INVALID where the layout does not fit the model.
 */
invar_status invar_model_new(invar_model **out, const invar_model_spec *spec, invar_format format,
                             const invar_layout *layout, const invar_device *dev) INVAR_MUST_USE;

/*
 * Returns what invar_model_new would refuse about a spec, without any memory for parameters. Of
 * `layout` only the sizes are read; NULL if one rank holds the model.
 */
invar_status invar_model_check(const invar_model_spec *spec, invar_format format,
                               const invar_layout *layout) INVAR_MUST_USE;

/* Like invar_model_new, for sampling alone: weights without masters, unless both are the same. */
invar_status invar_model_new_weights(invar_model **out, const invar_model_spec *spec,
                                     invar_format format, const invar_layout *layout,
                                     const invar_device *dev) INVAR_MUST_USE;

/*
 * A model with adapters of its own, undefined, and the frozen base of another one, which lives
 * longer.
 */
invar_status invar_model_new_sharing_base(invar_model **out, const invar_model *other,
                                          const invar_device *dev) INVAR_MUST_USE;
void invar_model_free(invar_model *model);

/*
 * Values from Philox: normal numbers with the spec's init_std, norms 1, biases 0.
 * A parameter's values depend on the seed and on its place in the canonical order alone.
 */
invar_status invar_model_init(invar_model *model, uint32_t seed,
                              const invar_device *dev) INVAR_MUST_USE;

/* The same but for adapters, which stay what they are. */
invar_status invar_model_init_base(invar_model *model, uint32_t seed,
                                   const invar_device *dev) INVAR_MUST_USE;

/* The first values of adapters alone, if any: A random, B zero, so that the model is its base. */
invar_status invar_model_init_adapters(invar_model *model, uint32_t seed,
                                       const invar_device *dev) INVAR_MUST_USE;

/*
 * Makes every `weight` from its master, after a change of masters: each rank its own rows, and the
 * owners of rows gather them. Fillings and the optimizer write both by themselves.
 */
invar_status invar_model_update_weights(invar_model *model, const invar_device *dev) INVAR_MUST_USE;

/*
 * The same from the masters of another model, of any format, with the same spec, layout and device:
 * for one that has weights alone. Both have the same owners.
 */
invar_status invar_model_refresh_from(invar_model *model, const invar_model *from,
                                      const invar_device *dev) INVAR_MUST_USE;

/*
 * Copies all weights, and masters where `to` has any, between models of one spec, format, layout
 * and device.
 */
invar_status invar_model_copy(invar_model *to, const invar_model *from) INVAR_MUST_USE;

/* What ops read of the box of a parameter, with its scales behind it. */
invar_tensor invar_model_carve_weight(invar_carver *carver, const invar_model *model,
                                      const invar_param *param);

/* Bytes of what ops read of the parameters: values, or codes and scales. */
size_t invar_model_weight_bytes(const invar_model *model);

/* Whether it has adapters, and a frozen base. */
static inline bool invar_model_is_adapted(const invar_model *model)
{
    return model->base != model->params;
}

/* Whether other ranks hold other parts of it. */
bool invar_model_is_divided(const invar_model *model);

/* Whether a digest is of several pieces: logical tensor parallelism or ranks cut a parameter. */
bool invar_model_is_cut(const invar_model *model);

/*
 * The hash.tree digests of all masters, or of f32 tensors in the device's memory `of` the weights'
 * extents, in canonical order; each piece of a parameter that is cut is a shard. They are of whole
 * parameters, of which each rank hashes the rows that it owns: a call of all ranks that hold the
 * model together, and of the owners of its rows.
 */
invar_status invar_model_digests(invar_digest *out /* (n_params) */, const invar_model *model,
                                 const invar_tensor *of, const invar_device *dev) INVAR_MUST_USE;

/*
 * The digest of all masters in canonical order: hash of the hash.tree digests of each; a call of
 * the same ranks.
 */
invar_status invar_model_hash(invar_digest *out, const invar_model *model,
                              const invar_device *dev) INVAR_MUST_USE;

/* Key and value heads of this rank. */
int64_t invar_model_kv_heads(const invar_model *model);

/* Number of sparse layers: the middle extent of routing; those before a layer. */
int64_t invar_model_sparse_layers(const invar_model *model);
int64_t invar_model_sparse_before(const invar_model *model, int64_t layer);

/* Experts that a model of this spec chooses for a token in all layers; 0 for a dense model. */
int64_t invar_model_spec_route(const invar_model_spec *spec);

/* The parameter with this name, of adapters or of the base; NULL when there is none. */
invar_param *invar_model_find(const invar_model *model, const char *name);

#ifdef __cplusplus
}
#endif
#endif
