/*
 * optimizer.h - AdamW over all parameters of a model.
 *
 * The global norm is taken over gradients in canonical order, the clip is one multiplication.
 * Norms and biases have no weight decay, as in Megatron. The powers of beta are running products.
 * The moments are where the model is, or in the host's memory, from which they visit the device.
 *
 * Data-parallel ranks own rows of every parameter (engine/model/shard/zero_partition.h). Each has
 * moments and masters of these alone, moves them, and gathers what ops read of the others' rows
 * (ZeRO-1): a step, and whatever is said to be so below, is a call of all of them. It changes no
 * bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_OPTIMIZER_H
#define INVAR_ENGINE_TRAIN_OPTIMIZER_H

#include "engine/model/forward.h"
#include "engine/train/offload.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_optimizer {
    /* (n_params) f32, shaped as the weights; whole where no ranks divide them, or collected. */
    invar_tensor *m;
    invar_tensor *v;
    float beta1_power; /* beta1 ^ steps */
    float beta2_power;
    int64_t steps;
    invar_device dev;       /* the model's */
    invar_offload *offload; /* NULL: the moments are in the device's memory */
    int64_t params;
    bool divided;         /* other ranks have the moments of other rows */
    size_t *offsets;      /* (n_params) where those of a parameter's own rows begin, */
    size_t local_bytes;   /* which have so many bytes; */
    size_t *full_offsets; /* (n_params) where those of all rows would, */
    size_t full_bytes;    /* which would have so many */
    char *memory;         /* `bytes` of m, then of v */
    char *collected;      /* the blocks of m and v in the host's memory; NULL: they are not */
    /* Parameters in the order of memory: digests of their masters, NULL with an offload, where
     * ranks divide the moments, or where parameters are cut; ends. */
    invar_digest *digests; /* in the device's memory */
    int64_t *ends;         /* among the elements that are moved together */
} invar_optimizer;

typedef struct invar_adamw_options {
    float beta1, beta2, eps, weight_decay;
    float clip_grad; /* largest norm; 0: no clipping */
} invar_adamw_options;

#define INVAR_OPTIMIZER_PIECE ((size_t)64 << 20)

/*
 * Moments at zero, powers at one. `piece` bytes of each moment at a time visit the device, twice
 * over: a multiple of INVAR_ALIGN; 0: all are there for good. It changes no bit.
 */
invar_status invar_optimizer_new(invar_optimizer **out, const invar_model *model,
                                 size_t piece) INVAR_MUST_USE;
void invar_optimizer_free(invar_optimizer *optimizer);
invar_status invar_optimizer_reset(invar_optimizer *optimizer) INVAR_MUST_USE;

/* The device whose memory the moments are in; NULL: the host's. Where ranks divide them: where
 * they are collected. */
const invar_device *invar_optimizer_place(const invar_optimizer *optimizer);

/*
 * m and v whole on rank 0, for a checkpoint: until the next step or reset. Elsewhere there are none
 * afterwards. A call of all ranks; nothing where no ranks divide them.
 */
invar_status invar_optimizer_collect(invar_optimizer *optimizer,
                                     const invar_model *model) INVAR_MUST_USE;

/* Moments of a parameter, whole and the host's, as from a checkpoint: m or, `second`, v. */
invar_status invar_optimizer_load(invar_optimizer *optimizer, const invar_model *model,
                                  int64_t param, bool second, const float *values) INVAR_MUST_USE;

/*
 * `digests`: the gradients are hashed in the same read, into grads->digests. INVAR_E_STATE names a
 * parameter whose gradient is not finite; nothing has changed then. A call of all ranks that hold
 * the model together, and of the owners of its rows, with the same result.
 */
invar_status invar_optimizer_norm(float *norm_out, float *clip_out, const invar_model *model,
                                  invar_grads *grads, bool digests, float clip_grad,
                                  const invar_device *dev) INVAR_MUST_USE;

/*
 * One step with the clip of `norm`; the model's compute weights follow. `digests`: the new masters
 * are hashed as they are written, where invar_optimizer_hashes.
 */
invar_status invar_optimizer_step(invar_optimizer *optimizer, invar_model *model,
                                  const invar_grads *grads, float clip, float lr, bool digests,
                                  const invar_adamw_options *options,
                                  const invar_device *dev) INVAR_MUST_USE;

/* Moments that visit the device by pieces, or that ranks divide, leave no master whole: then a step
 * hashes none. */
bool invar_optimizer_hashes(const invar_optimizer *optimizer);

/* What the last step with digests made of each parameter's master: (n_params). */
invar_status invar_optimizer_digests(invar_digest *out, const invar_optimizer *optimizer,
                                     const invar_model *model) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
