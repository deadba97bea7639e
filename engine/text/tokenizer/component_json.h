/*
 * component_json.h - reads members of the components of tokenizer.json.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TEXT_TOKENIZER_COMPONENT_JSON_H
#define INVAR_ENGINE_TEXT_TOKENIZER_COMPONENT_JSON_H

#include <stdbool.h>

#include "base/json/json.h"
#include "base/status.h"
#include "engine/text/replace.h"

/* A component: file name and kind ("normalizer"), used in error messages, and value. */
typedef struct invar_tokenizer_component {
    const char *where;
    const char *name;
    const json_t *json;
} invar_tokenizer_component;

/* Reads the member "type"; "" if the component is missing or null. */
invar_status invar_component_type(const char **out,
                                  const invar_tokenizer_component *part) INVAR_MUST_USE;

/* Returns INVAR_E_UNSUPPORTED with the message that `what` in the component is not known. */
invar_status invar_component_unknown(const invar_tokenizer_component *part,
                                     const char *what) INVAR_MUST_USE;

/* Reads an optional switch; `fallback` if it is absent. */
invar_status invar_component_flag(bool *out, const invar_tokenizer_component *part, const char *key,
                                  bool fallback) INVAR_MUST_USE;

/* Reads a string that fits into a literal. */
invar_status invar_component_literal(invar_literal *out, const invar_tokenizer_component *part,
                                     const char *key) INVAR_MUST_USE;

/* Reads a string of one character. */
invar_status invar_component_char(invar_literal *out, const invar_tokenizer_component *part,
                                  const char *key) INVAR_MUST_USE;

/*
 * Reads the member "pattern": {"String": ...}, not empty, into *out, or {"Regex": ...} into
 * *regex_out, which is NULL otherwise.
 */
invar_status invar_component_pattern(const char **regex_out, invar_literal *out,
                                     const invar_tokenizer_component *part) INVAR_MUST_USE;

/* Callback for one component. `last` is set if no component follows. */
typedef invar_status invar_component_reader_fn(void *out, const invar_tokenizer_component *part,
                                               const char *type, bool last);
/*
 * Calls `read` for the component or, if it is a Sequence, for each component in its member `list`.
 */
invar_status invar_component_each(void *out, const invar_tokenizer_component *part,
                                  const char *list, invar_component_reader_fn *read) INVAR_MUST_USE;

#endif
