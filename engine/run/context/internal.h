/*
 * internal.h - a session from the inside: what its files ask of each other.
 *
 * Only engine/run/context includes this.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_CONTEXT_INTERNAL_H
#define INVAR_ENGINE_RUN_CONTEXT_INTERNAL_H

#include "engine/run/context/run_context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- spec.c ---------------------------------------------------------------------------------- */

/* Of the actor and the draft model; of the models beside them where `wants` may need these. */
invar_status invar_run_context_read_specs(invar_run_context *session,
                                          unsigned wants) INVAR_MUST_USE;

/* Tokens of a prompt with its response, at most. */
int64_t invar_run_context_context(const invar_run_context *session);

/* ---- weights.c ------------------------------------------------------------------------------- */

/* How weights are loaded. */
enum {
    INVAR_LOAD_COMPARED = 1, /* a config.json beside them must agree with the model */
    INVAR_LOAD_BODY = 2      /* a critic gets the actor's, of checkpoints that have both */
};

/* One folder with weights, a checkpoint, which is verified, or Hugging Face's, into a model. */
invar_status invar_run_context_load_folder(invar_weights_origin *out, invar_model *model,
                                           const char *path, unsigned how,
                                           const invar_device *dev) INVAR_MUST_USE;

/* The newest weights of what the key names, which must be of this model. */
invar_status invar_run_context_load_named(invar_weights_origin *out,
                                          const invar_run_context *session, invar_model *model,
                                          int key) INVAR_MUST_USE;

/* INVAR_E_INVALID: the weights are adapters of another base than the actor's. */
invar_status invar_run_context_check_base(const invar_run_context *session,
                                          const invar_weights_origin *from) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
