/*
 * json.h - strict JSON parser on top of jansson, typed getters, and values as text.
 *
 * For untrusted input: sizes are bounded, and duplicate keys are rejected. Messages begin with
 * `where`, a file or file:line, and name the key.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_JSON_JSON_H
#define INVAR_BASE_JSON_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/alloc.h"
#include "base/status.h"

#define INVAR_JSON_MAX_VALUES (1 << 22)
#define INVAR_JSON_MAX_DEPTH 512

/*
 * Parses a JSON value of any type; trailing bytes are rejected. An integer that does not fit into
 * 64 bits becomes the nearest real. The caller frees *out with json_decref. Returns
 * INVAR_E_INVALID, with line and column, if the text is not JSON, has a duplicate key, or exceeds
 * INVAR_JSON_MAX_VALUES or INVAR_JSON_MAX_DEPTH.
 */
invar_status invar_json_parse(json_t **out, const char *where, const char *text,
                              size_t bytes) INVAR_MUST_USE;

/*
 * Like invar_json_parse, but strings may contain NUL: use json_string_length. For text of a model.
 */
invar_status invar_json_parse_raw(json_t **out, const char *where, const char *text,
                                  size_t bytes) INVAR_MUST_USE;

/*
 * Returns an upper bound of the number of values that a parser of the text would build. The text
 * may be any bytes. Takes linear time and allocates nothing.
 */
size_t invar_json_count(const char *text, size_t bytes);

/* Like invar_json_parse, for a file of at most `max_bytes`. */
invar_status invar_json_read(json_t **out, const char *path, size_t max_bytes) INVAR_MUST_USE;

/*
 * Finds the text of a number: *out (*bytes_out) is the part of `text` from which `value` was
 * parsed, where `tree` is the complete value of `text`. Returns true if it is written as an
 * integer, so that *out has all of its digits.
 */
bool invar_json_digits(const char **out, size_t *bytes_out, json_t *tree, const json_t *value,
                       const char *text, size_t bytes);

/*
 * Read a required member of an object. Return INVAR_E_INVALID if it is missing, has another type,
 * or is out of the range [low, high]. Strings are borrowed from the object and contain no NUL.
 */
invar_status invar_json_int(int64_t *out, const json_t *object, const char *key, const char *where,
                            int64_t low, int64_t high) INVAR_MUST_USE;
invar_status invar_json_real(double *out, const json_t *object, const char *key, const char *where)
    INVAR_MUST_USE; /* accepts integers; always finite */
invar_status invar_json_bool(bool *out, const json_t *object, const char *key,
                             const char *where) INVAR_MUST_USE;
invar_status invar_json_string(const char **out, const json_t *object, const char *key,
                               const char *where) INVAR_MUST_USE;

/*
 * Writes a value as text with jansson's `flags` (JSON_COMPACT | JSON_SORT_KEYS is canonical). *out
 * is followed by a NUL that is not counted; the caller frees it with invar_free. `what` names the
 * value in messages. Returns INVAR_E_NOMEM for lack of memory, also if `value` is NULL.
 */
invar_status invar_json_dump(char **out, size_t *bytes_out, const json_t *value, size_t flags,
                             const char *what) INVAR_MUST_USE;

/*
 * Turns INVAR_E_INVALID into INVAR_E_CORRUPT, with its message; returns other statuses unchanged.
 * For text of a file or a reply, where the input is damaged and the caller is not wrong.
 */
invar_status invar_json_as_corrupt(invar_status status) INVAR_MUST_USE;

/* Releases a local variable at the end of its block (INVAR_AUTO); it may be NULL. */
#define INVAR_AUTO_JSON INVAR_AUTO(invar_json_release)
void invar_json_release(json_t **value);

/* True if the object has the member and it is not null. Call it before reading optional members. */
bool invar_json_has(const json_t *object, const char *key);

#endif
