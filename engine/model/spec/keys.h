/*
 * keys.h - which keys a config.json may have, and the plain numbers among them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_SPEC_KEYS_H
#define INVAR_ENGINE_MODEL_SPEC_KEYS_H

#include "base/json/json.h"
#include "engine/model/spec.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Refuses keys that a model of the family does not have, and values whose mathematics we do not
 * have, by name. `ignored` is that of invar_model_spec_read, NULL: every unknown key; `where` names
 * the file.
 */
invar_status invar_spec_keys_check(invar_family family, const json_t *config, const char *ignored,
                                   const char *where) INVAR_MUST_USE;

/* Refuses an ignored key that the file does not have, or that is not unknown. */
invar_status invar_spec_keys_ignored(invar_family family, const json_t *config, const char *ignored,
                                     const char *where) INVAR_MUST_USE;

/* The extents that stand in the file as they are, into the fields of a spec whose family is set. */
invar_status invar_spec_keys_read(invar_model_spec *spec, const json_t *config,
                                  const char *where) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
