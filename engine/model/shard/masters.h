/*
 * masters.h - masters of which each data-parallel rank has the rows that it owns.
 *
 * After a step a rank has new masters of its own rows alone (engine/model/shard/owners.h), and of
 * all others what ops read. Files and those who look at values want masters whole: these calls
 * bring them together. All are calls of all ranks of the model's data axis; where no ranks own
 * rows, or where ops read the masters themselves, there is nothing to do.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_SHARD_MASTERS_H
#define INVAR_ENGINE_MODEL_SHARD_MASTERS_H

#include "engine/model/shard/slices.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Slices of blocks in which masters lie, or whole moments; `dev` NULL: of the host. Release. */
invar_status invar_masters_slices(invar_slices *out, const invar_model *model,
                                  const invar_device *dev) INVAR_MUST_USE;

/* The block of the model's masters. */
char *invar_masters_block(const invar_model *model);

/* The masters of all rows, in their places on every rank. */
invar_status invar_masters_gather(const invar_model *model) INVAR_MUST_USE;

/* Whole masters in the host's memory of data-parallel rank 0. Zeroed, none; release. */
typedef struct invar_masters {
    invar_tensor *of; /* (n_params), without values on other ranks; NULL: the model's are whole */
    char *memory;
} invar_masters;

invar_status invar_masters_collect(invar_masters *out, const invar_model *model) INVAR_MUST_USE;
void invar_masters_release(invar_masters *masters);

#ifdef __cplusplus
}
#endif
#endif
