/*
 * json.h - JSON of others, read strictly: sizes bounded, duplicate keys refused, errors with names;
 * and values as text.
 *
 * The values are jansson's. A getter's error names `where` (file, or file:line) and the key.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_JSON_JSON_H
#define INVAR_BASE_JSON_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_JSON_MAX_VALUES (1 << 22)
#define INVAR_JSON_MAX_DEPTH 512

/*
 * The caller owns *out (json_decref). Any JSON value is accepted; trailing bytes are not. An
 * integer that does not fit into 64 bits is the nearest real. INVAR_E_INVALID, with line and
 * column, for what is not JSON, has a key twice or is too large.
 */
invar_status invar_json_parse(json_t **out, const char *where, const char *text,
                              size_t bytes) INVAR_MUST_USE;

/* The same for text of a model: strings may hold NUL, so that json_string_length is to be asked. */
invar_status invar_json_parse_raw(json_t **out, const char *where, const char *text,
                                  size_t bytes) INVAR_MUST_USE;

/*
 * Upper bound of the number of values that a parser of the text would build. Any bytes are allowed;
 * the time is linear, and no memory is allocated.
 */
size_t invar_json_count(const char *text, size_t bytes);

invar_status invar_json_read(json_t **out, const char *path, size_t max_bytes) INVAR_MUST_USE;

/*
 * How a number of the tree was written in the text that the tree was parsed from: *out (bytes) is
 * borrowed from the text. True: as an integer, so these are all of its digits.
 */
bool invar_json_digits(const char **out, size_t *bytes_out, json_t *tree, const json_t *value,
                       const char *text, size_t bytes);

/* Required members. Strings are borrowed from the object and hold no NUL inside. */
invar_status invar_json_int(int64_t *out, const json_t *object, const char *key, const char *where,
                            int64_t low, int64_t high) INVAR_MUST_USE;
invar_status invar_json_real(double *out, const json_t *object, const char *key,
                             const char *where) INVAR_MUST_USE; /* an integer will do; finite */
invar_status invar_json_bool(bool *out, const json_t *object, const char *key,
                             const char *where) INVAR_MUST_USE;
invar_status invar_json_string(const char **out, const json_t *object, const char *key,
                               const char *where) INVAR_MUST_USE;

/*
 * A value as text, by jansson's `flags` (JSON_COMPACT | JSON_SORT_KEYS is canonical), with a NUL
 * after it that is not counted. `what` it is, is said when there is no memory, which a NULL value
 * counts as. The caller owns *out (invar_free).
 */
invar_status invar_json_dump(char **out, size_t *bytes_out, const json_t *value, size_t flags,
                             const char *what) INVAR_MUST_USE;

/* INVAR_E_CORRUPT for INVAR_E_INVALID: where a file or a reply is damaged, not a caller wrong. */
invar_status invar_json_as_corrupt(invar_status status) INVAR_MUST_USE;

/* True when the member is there and not null: the optional ones ask first. */
bool invar_json_has(const json_t *object, const char *key);

#ifdef __cplusplus
}
#endif
#endif
