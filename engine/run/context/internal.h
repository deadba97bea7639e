/*
 * internal.h - functions that the files of engine/run/context share.
 *
 * Private to engine/run/context.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_CONTEXT_INTERNAL_H
#define INVAR_ENGINE_RUN_CONTEXT_INTERNAL_H

#include "engine/run/context/run_context.h"

/* ---- spec.c ---------------------------------------------------------------------------------- */

/* Reads the specs of actor and draft model, and of the other models if `wants` may need them. */
invar_status invar_run_context_read_specs(invar_run_context *session,
                                          unsigned wants) INVAR_MUST_USE;

/* Returns the largest number of tokens of a prompt with its response. */
int64_t invar_run_context_context(const invar_run_context *session);

/* ---- weights.c ------------------------------------------------------------------------------- */

/* Flags for loading weights. */
enum {
    INVAR_LOAD_COMPARED = 1, /* a config.json in the folder must agree with the model */
    INVAR_LOAD_BODY = 2      /* a critic gets the actor's weights from checkpoints that have both */
};

/*
 * Loads weights of one folder into a model: a checkpoint, which is verified, or a Hugging Face
 * folder.
 */
invar_status invar_run_context_load_folder(invar_weights_origin *out, invar_model *model,
                                           const char *path, unsigned how,
                                           const invar_device *dev) INVAR_MUST_USE;

/* Loads the newest weights of a key, at its path. Fails if they are not of this model. */
invar_status invar_run_context_load_named(invar_weights_origin *out,
                                          const invar_run_context *session, invar_model *model,
                                          invar_config_text weights) INVAR_MUST_USE;

/* Returns INVAR_E_INVALID if the weights are adapters of another base than the actor's. */
invar_status invar_run_context_check_base(const invar_run_context *session,
                                          const invar_weights_origin *from) INVAR_MUST_USE;

#endif
