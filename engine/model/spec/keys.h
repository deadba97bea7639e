/*
 * keys.h - checks the keys of a config.json, and reads its plain numbers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_SPEC_KEYS_H
#define INVAR_ENGINE_MODEL_SPEC_KEYS_H

#include "base/json/json.h"
#include "engine/model/spec/spec.h"

/*
 * Rejects keys that models of the family do not have and values whose computation is not supported,
 * and names them. `ignored` is as in invar_model_spec_read; NULL ignores every unknown key. `where`
 * names the file in errors.
 */
invar_status invar_spec_keys_check(invar_family family, const json_t *config, const char *ignored,
                                   const char *where) INVAR_MUST_USE;

/* Rejects an ignored key that the file does not have or that is known. */
invar_status invar_spec_keys_ignored(invar_family family, const json_t *config, const char *ignored,
                                     const char *where) INVAR_MUST_USE;

/* Reads the sizes that the file contains as plain numbers into a spec whose family is set. */
invar_status invar_spec_keys_read(invar_model_spec *spec, const json_t *config,
                                  const char *where) INVAR_MUST_USE;

#endif
