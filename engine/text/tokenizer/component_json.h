/*
 * component_json.h - members of the parts of tokenizer.json, for the files that read them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TEXT_TOKENIZER_COMPONENT_JSON_H
#define INVAR_ENGINE_TEXT_TOKENIZER_COMPONENT_JSON_H

#include <stdbool.h>

#include "base/json/json.h"
#include "base/status.h"
#include "engine/text/replace.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A part's kind ("normalizer"), the file it is in, and its value; for messages, too. */
typedef struct invar_tokenizer_component {
    const char *where;
    const char *name;
    const json_t *json;
} invar_tokenizer_component;

/* The member "type"; "" when the part is missing or null. */
invar_status invar_component_type(const char **out,
                                  const invar_tokenizer_component *part) INVAR_MUST_USE;

/* INVAR_E_UNSUPPORTED: the part is, or has, something that Invar does not know. */
invar_status invar_component_unknown(const invar_tokenizer_component *part,
                                     const char *what) INVAR_MUST_USE;

/* An optional switch. */
invar_status invar_component_flag(bool *out, const invar_tokenizer_component *part, const char *key,
                                  bool fallback) INVAR_MUST_USE;

/* A string that fits a literal. */
invar_status invar_component_literal(invar_literal *out, const invar_tokenizer_component *part,
                                     const char *key) INVAR_MUST_USE;

/* One character, as UTF-8. */
invar_status invar_component_char(invar_literal *out, const invar_tokenizer_component *part,
                                  const char *key) INVAR_MUST_USE;

/* The member "pattern" {"String": ...}, which is not empty; NULL when it is {"Regex": ...}. */
invar_status invar_component_pattern(const char **regex_out, invar_literal *out,
                                     const invar_tokenizer_component *part) INVAR_MUST_USE;

/*
 * Calls `read` for the part, or for each one in a Sequence, whose list is the member `list`; `last`
 * is said of the one that nothing follows.
 */
typedef invar_status invar_component_reader_fn(void *out, const invar_tokenizer_component *part,
                                               const char *type, bool last);
invar_status invar_component_each(void *out, const invar_tokenizer_component *part,
                                  const char *list, invar_component_reader_fn *read) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
