/*
 * params.h - the canonical list of a spec's parameters.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_PARAMS_H
#define INVAR_ENGINE_MODEL_PARAMS_H

#include "engine/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How many there are; unless `out` is NULL, also their names, kinds and extents, in order. */
int64_t invar_params_list(invar_param *out, const invar_model_spec *spec);

/* The layer's parameters, `next` being its first; yields the first one after them. */
const invar_param *invar_params_layer(invar_layer *out, const invar_model_spec *spec, int64_t layer,
                                      const invar_param *next);

#ifdef __cplusplus
}
#endif
#endif
