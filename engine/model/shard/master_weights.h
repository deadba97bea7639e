/*
 * master_weights.h - gathers f32 master weights that data-parallel ranks hold in ranges of rows.
 *
 * A rank has masters only of the rows that it owns (engine/model/shard/zero_partition.h), and
 * weights of all rows. Files and inspection need complete masters. Collecting, reading and
 * gathering are collective over the model's data axis. Nothing moves if every rank owns all of its
 * rows. If ops read the masters themselves (fp32), only invar_weights_gather moves anything.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_SHARD_MASTER_WEIGHTS_H
#define INVAR_ENGINE_MODEL_SHARD_MASTER_WEIGHTS_H

#include "engine/model/shard/zero_comm.h"

/*
 * Returns true if masters of some rows are on other ranks only; then no rank has invar_param_f32 of
 * all parameters.
 */
bool invar_full_masters_scattered(const invar_model *model);

/*
 * Prepares transfers of a block with the masters or moments of all rows in memory order; `dev` is
 * NULL for host memory. A rank contributes its own rows. Release with invar_zero_comm_release.
 */
invar_status invar_full_masters_comm_init(invar_zero_comm *out, const invar_model *model,
                                          const invar_device *dev) INVAR_MUST_USE;

/*
 * Full masters in host memory of data-parallel rank 0. Zero-initialize before use. Release with
 * invar_full_masters_release.
 */
typedef struct invar_full_masters {
    /* (n_params) tensors, without data on other ranks; NULL if every rank has all masters. */
    invar_tensor *tensors;
    char *memory;
} invar_full_masters;

invar_status invar_full_masters_collect(invar_full_masters *out,
                                        const invar_model *model) INVAR_MUST_USE;
void invar_full_masters_release(invar_full_masters *masters);

/*
 * Copies the masters of all rows of a parameter's local shard to `out`, host memory, on every rank.
 * The model must have masters.
 */
invar_status invar_full_masters_read(float *out, const invar_model *model,
                                     int64_t param) INVAR_MUST_USE;

/* Gathers the weights, of which each rank has computed the rows that it owns, on all ranks. */
invar_status invar_weights_gather(const invar_model *model) INVAR_MUST_USE;

#endif
