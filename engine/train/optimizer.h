/*
 * optimizer.h - AdamW over all parameters of a model, with ZeRO-1 across data-parallel ranks.
 *
 * The gradient norm is taken over gradients in canonical order, and clipping is one multiplication.
 * Norms and biases have no weight decay, as in Megatron-LM. The powers of beta are running
 * products. The moments are in device memory, or in host memory and streamed through the device
 * (offload.h).
 *
 * Each data-parallel rank owns some rows of every parameter (engine/model/shard/zero_partition.h).
 * It holds moments and masters of these rows only, updates them, and gathers the compute weights of
 * the other rows. A step is then collective: all data-parallel ranks must call it. This division
 * changes no bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_OPTIMIZER_H
#define INVAR_ENGINE_TRAIN_OPTIMIZER_H

#include "engine/model/forward.h"
#include "engine/train/offload.h"

typedef struct invar_optimizer {
    /*
     * (n_params) f32 moments in the shape of the local weights. `data` is NULL if ranks divide them
     * and they are not collected.
     */
    invar_tensor *m;
    invar_tensor *v;
    float beta1_power; /* beta1 ^ steps */
    /* beta2 ^ steps */
    float beta2_power;
    int64_t steps;
    invar_device dev;       /* device of the model */
    invar_offload *offload; /* NULL if the moments are in device memory */
    /* n_params of the model */
    int64_t params;
    bool divided;         /* other ranks hold the moments of other rows */
    size_t *offsets;      /* (n_params) offset of this rank's rows of each parameter, in bytes */
    size_t local_bytes;   /* bytes of one moment, for the rows that this rank owns */
    size_t *full_offsets; /* (n_params) offset of all local rows of each parameter, in bytes */
    size_t full_bytes;    /* bytes of one moment, for all local rows */
    /* (2, local_bytes) m, then v; in device memory, or in host memory if there is an offload */
    char *memory;
    char *collected; /* (2, full_bytes) m, then v, in host memory; NULL if they are not collected */
    /*
     * (n_params) digests of the masters, in the order of memory. NULL if there is an offload, if
     * ranks divide the moments, or if parameters are divided into logical shards.
     */
    invar_digest *digests; /* in device memory */
    /*
     * (n_params) scratch of a step, in the order of memory: end of each parameter within the
     * elements that one op updates
     */
    int64_t *ends;
} invar_optimizer;

typedef struct invar_adamw_options {
    float beta1, beta2, eps, weight_decay;
    float clip_grad; /* largest norm; 0 for no clipping */
} invar_adamw_options;

/* Value of `chunk_bytes` for a run that offloads its moments. */
#define INVAR_OPTIMIZER_CHUNK_BYTES ((size_t)64 << 20)

/*
 * Allocates the moments and resets them. `chunk_bytes` is the number of bytes of each moment that
 * are uploaded to the device at a time, in two buffers; a multiple of INVAR_ALIGN, or 0 if all
 * moments stay on the device. It changes no bit.
 */
invar_status invar_optimizer_new(invar_optimizer **out, const invar_model *model,
                                 size_t chunk_bytes) INVAR_MUST_USE;
void invar_optimizer_free(invar_optimizer *optimizer);
/* Zeroes the moments and sets the powers of beta to one. */
invar_status invar_optimizer_reset(invar_optimizer *optimizer) INVAR_MUST_USE;

/*
 * Returns the device whose memory `m` and `v` are in, NULL for host memory. If ranks divide the
 * moments, this is where invar_optimizer_collect puts them.
 */
const invar_device *invar_optimizer_device(const invar_optimizer *optimizer);

/*
 * Collects the complete m and v on data-parallel rank 0, for a checkpoint; they are valid until the
 * next step, load or reset. On other ranks their data is NULL. Collective: all data-parallel ranks
 * must call it. Does nothing if no ranks divide the moments.
 */
invar_status invar_optimizer_collect(invar_optimizer *optimizer,
                                     const invar_model *model) INVAR_MUST_USE;

/*
 * Loads the moment m of a parameter, or v if `second` is set, from `values`: all local rows, in
 * host memory.
 */
invar_status invar_optimizer_load(invar_optimizer *optimizer, const invar_model *model,
                                  int64_t param, bool second, const float *values) INVAR_MUST_USE;

/*
 * Computes the global norm of the gradients and the clip factor. If `digests` is set, the gradients
 * are hashed in the same read, into grads->digests. Returns INVAR_E_STATE and names the parameter
 * if a gradient is not finite or its square overflows; nothing has changed then. Collective: all
 * ranks that hold the model together and all owners of its rows must call it, and get the same
 * result.
 */
invar_status invar_optimizer_norm(float *norm_out, float *clip_out, const invar_model *model,
                                  invar_grads *grads, bool digests, float clip_grad,
                                  const invar_device *dev) INVAR_MUST_USE;

/*
 * Makes one step with the clip factor of invar_optimizer_norm, and updates the compute weights. If
 * `digests` is set and invar_optimizer_can_hash is true, the new masters are hashed as they are
 * written.
 */
invar_status invar_optimizer_step(invar_optimizer *optimizer, invar_model *model,
                                  const invar_grads *grads, float clip, float lr, bool digests,
                                  const invar_adamw_options *options,
                                  const invar_device *dev) INVAR_MUST_USE;

/*
 * Returns true if a step can hash the masters. It cannot if moments are offloaded or divided among
 * ranks, or if parameters are divided into logical shards, since then no op sees a complete master.
 */
bool invar_optimizer_can_hash(const invar_optimizer *optimizer);

/* Writes the digests (n_params) of the masters, from the last step with `digests`. */
invar_status invar_optimizer_digests(invar_digest *out, const invar_optimizer *optimizer,
                                     const invar_model *model) INVAR_MUST_USE;

#endif
