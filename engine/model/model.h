/*
 * model.h - model parameters: names, canonical order, device memory, masters and weights.
 *
 * The order of `params` is canonical: gradient norms, hashes and files follow it. Every parameter
 * has an f32 master. Ops read `weight`: the master itself (fp32), its rounding (bf16) or its
 * quantization, which is computed again from the master after every change. With ZeRO
 * (shard/zero_partition.h) each data-parallel rank has all weights and the masters of its own rows
 * only. Values therefore enter a model through shard/param_loader.h and leave it through
 * shard/master_weights.h. The experts of a layer are one stacked parameter: expert e has rows [e *
 * rows, (e + 1) * rows). All tensors are in memory of the model's device; the host accesses them
 * through host_staging.h.
 *
 * With adapters (lora/adapters.h), `params` are the adapters' parameters. Those of the base follow
 * them in `base` and are frozen: they have a weight, but no master and no gradient.
 *
 * Four files implement these functions: model.c the queries, model_new.c creation, model_weights.c
 * weights from masters and copies, shard/model_digests.c digests.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_MODEL_H
#define INVAR_ENGINE_MODEL_MODEL_H

#include "base/block_carver.h"
#include "base/hash.h"
#include "engine/model/format.h"
#include "engine/model/partition.h"

/* Rotation of each position, (max_positions, head_dim / 2) f32. */
typedef struct invar_rope_tensors {
    invar_tensor cosine;
    invar_tensor sine;
} invar_rope_tensors;

/* Blocks of device memory that hold the parameters. */
typedef struct invar_model_memory {
    void *trained;      /* all trained tensors */
    void *masters;      /* start of the masters at the end of `trained`; none are there if
                           weights are f32 */
    void *base;         /* the frozen base; NULL without adapters */
    bool base_borrowed; /* another model owns `base` */
} invar_model_memory;

typedef struct invar_model {
    invar_model_spec spec;
    invar_format format;
    invar_dtype storage;
    bool no_masters; /* no separate masters; if weights are f32 they are the masters */
    /* layout of the ranks that hold the model together; borrowed, NULL for a single rank */
    const invar_layout *layout;
    invar_model_partition part; /* part of the model that this rank holds */
    invar_param *params;        /* (n_params) trained parameters in canonical order */
    int64_t n_params;
    invar_param *base; /* (n_base) equal to params without adapters; else the frozen parameters,
                          which follow params */
    int64_t n_base;
    /*
     * (n_params, data ranks + 1) row boundaries of the ZeRO ranks (shard/zero_partition.h); NULL if
     * this rank owns all rows.
     */
    int64_t *zero_rows;
    int64_t *order; /* (n_params) parameters in the order of their memory: matrices, then vectors */
    int64_t *first; /* (spec.layers + 1) index in `base` of the first parameter of each layer,
                       then of the last norm */
    const invar_param *embedding;
    const invar_param *norm;
    const invar_param *head; /* equal to `embedding` if tied */
    invar_rope_tensors rope;
    invar_device dev; /* device of all tensors; without scratch */
    invar_model_memory memory;
    /*
     * Gradient of a tied head, after those of the parameters; `data` is an offset in the block of
     * gradients. Absent if the head is not tied or is frozen, or if this rank does not hold it.
     */
    invar_tensor tied_grad;
    size_t grad_bytes; /* size of a block of gradients, including tied_grad */
    /* order-independent sum of hashes of all loaded values, to compare ranks that own rows */
    uint64_t load_checksum[2];
} invar_model;

/*
 * Creates a model with undefined values: with a layout, this rank's part of it. `layout` is
 * borrowed. Returns INVAR_E_UNSUPPORTED if the format needs extents that the spec does not have
 * (complete scale blocks), and INVAR_E_INVALID if the layout does not fit the model.
 */
invar_status invar_model_new(invar_model **out, const invar_model_spec *spec, invar_format format,
                             const invar_layout *layout, const invar_device *dev) INVAR_MUST_USE;

/*
 * Checks everything about a spec that invar_model_new checks, without allocating parameters. Reads
 * only the sizes of `layout`, which is NULL for a single rank.
 */
invar_status invar_model_check(const invar_model_spec *spec, invar_format format,
                               const invar_layout *layout) INVAR_MUST_USE;

/*
 * Like invar_model_new, for sampling: without masters, except with format fp32, whose weights are
 * the masters.
 */
invar_status invar_model_new_weights(invar_model **out, const invar_model_spec *spec,
                                     invar_format format, const invar_layout *layout,
                                     const invar_device *dev) INVAR_MUST_USE;

/*
 * Creates a model with its own adapters, undefined, that shares the frozen base of `other`, which
 * must outlive it.
 */
invar_status invar_model_new_sharing_base(invar_model **out, const invar_model *other,
                                          const invar_device *dev) INVAR_MUST_USE;
void invar_model_free(invar_model *model);

/*
 * Initializes all values from Philox: normal numbers with the spec's init_std, norms 1, biases 0. A
 * parameter's values depend only on the seed and on its index in `base`; an adapter's values depend
 * on the index of its layer.
 */
invar_status invar_model_init(invar_model *model, uint32_t seed,
                              const invar_device *dev) INVAR_MUST_USE;

/* Like invar_model_init, but leaves adapters unchanged. */
invar_status invar_model_init_base(invar_model *model, uint32_t seed,
                                   const invar_device *dev) INVAR_MUST_USE;

/*
 * Initializes only the adapters, if there are any: A random, B zero, so that the model equals its
 * base.
 */
invar_status invar_model_init_adapters(invar_model *model, uint32_t seed,
                                       const invar_device *dev) INVAR_MUST_USE;

/*
 * Computes every `weight` from its master after masters have changed. With ZeRO each rank computes
 * its own rows, and the ranks gather the others (collective). The param loader and the optimizer
 * write both themselves.
 */
invar_status invar_model_update_weights(invar_model *model, const invar_device *dev) INVAR_MUST_USE;

/*
 * Like invar_model_update_weights, from the masters of another model with the same spec, layout,
 * device and ZeRO partition, of any format; for a model without masters.
 */
invar_status invar_model_refresh_from(invar_model *model, const invar_model *from,
                                      const invar_device *dev) INVAR_MUST_USE;

/*
 * Copies all weights, and masters if `to` has any, between models of the same spec, format, layout
 * and device.
 */
invar_status invar_model_copy(invar_model *to, const invar_model *from) INVAR_MUST_USE;

/* Carves the weight of the parameter's local shard, followed by its scales. */
invar_tensor invar_model_carve_weight(invar_carver *carver, const invar_model *model,
                                      const invar_param *param);

/* Bytes of the weights: values, or codes and scales. */
size_t invar_model_weight_bytes(const invar_model *model);

/* Returns true if the model has adapters and a frozen base. */
static inline bool invar_model_is_adapted(const invar_model *model)
{
    return model->base != model->params;
}

/* Returns true if other ranks hold other parts of the model. */
bool invar_model_is_divided(const invar_model *model);

/*
 * Returns true if digests combine several logical shards: a parameter has several, or ranks divide
 * the model.
 */
bool invar_model_is_cut(const invar_model *model);

/*
 * Computes the hash.tree digests of all masters (`of` is NULL) or of f32 tensors in device memory
 * with the extents of the weights, in canonical order; each logical shard is hashed as a shard. The
 * digests are those of the full parameters. Collective: all ranks that hold the model together, and
 * with ZeRO all owners of its rows, must call it; each rank hashes the rows that it owns.
 */
invar_status invar_model_digests(invar_digest *out /* (n_params) */, const invar_model *model,
                                 const invar_tensor *of, const invar_device *dev) INVAR_MUST_USE;

/*
 * Digest of all masters: hash of their hash.tree digests in canonical order. Collective as
 * invar_model_digests.
 */
invar_status invar_model_hash(invar_digest *out, const invar_model *model,
                              const invar_device *dev) INVAR_MUST_USE;

/* Number of kv heads of this rank. */
int64_t invar_model_kv_heads(const invar_model *model);

/*
 * Number of sparse layers, the middle extent of routing arrays; number of sparse layers before a
 * layer.
 */
int64_t invar_model_sparse_layers(const invar_model *model);
int64_t invar_model_sparse_before(const invar_model *model, int64_t layer);

/*
 * Number of experts that a model of this spec chooses per token in all layers; 0 for a dense model.
 */
int64_t invar_model_spec_route(const invar_model_spec *spec);

/* Returns the parameter with this name, of the adapters or the base; NULL if not found. */
invar_param *invar_model_find(const invar_model *model, const char *name);

#endif
