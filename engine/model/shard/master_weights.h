/*
 * master_weights.h - masters of which each data-parallel rank has the rows that it owns.
 *
 * A rank has masters of its own rows alone (engine/model/shard/zero_partition.h), and what ops read
 * of all rows. Files and those who look at values want masters whole: these calls bring them
 * together. All are calls of all ranks of the model's data axis; where no ranks own rows, or where
 * ops read the masters themselves, nothing moves.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_SHARD_MASTER_WEIGHTS_H
#define INVAR_ENGINE_MODEL_SHARD_MASTER_WEIGHTS_H

#include "engine/model/shard/zero_comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Are masters of some rows on other ranks alone? Then no rank has invar_param_f32 of all. */
bool invar_full_masters_scattered(const invar_model *model);

/*
 * Slices of a block in which masters or moments of all rows lie, one parameter behind the other in
 * the order of memory; `dev` NULL: of the host. What a rank has is its slice. Release.
 */
invar_status invar_full_masters_slices(invar_zero_comm *out, const invar_model *model,
                                       const invar_device *dev) INVAR_MUST_USE;

/* Whole masters in the host's memory of data-parallel rank 0. Zeroed, none; release. */
typedef struct invar_full_masters {
    /* (n_params), without values on other ranks; NULL: all have them whole */
    invar_tensor *tensors;
    char *memory;
} invar_full_masters;

invar_status invar_full_masters_collect(invar_full_masters *out,
                                        const invar_model *model) INVAR_MUST_USE;
void invar_full_masters_release(invar_full_masters *masters);

/* The masters of all rows that are here of a parameter, in the host's memory of every rank. */
invar_status invar_full_masters_read(float *out, const invar_model *model,
                                     int64_t param) INVAR_MUST_USE;

/* What ops read, of which each rank has made the rows that it owns, becomes whole on all. */
invar_status invar_weights_gather(const invar_model *model) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
