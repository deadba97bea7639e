/*
 * json.h - JSON values shared by the results of bisect, ab and ci.
 *
 * All functions return NULL without memory; json_pack passes this on for the format "o".
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_VIEW_JSON_H
#define INVAR_BISECT_VIEW_JSON_H

#include <jansson.h>
#include <stddef.h>
#include <stdio.h>

#include "base/status.h"
#include "bisect/divergence.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Convert a text to one printable line; the second function returns null for an empty text. */
json_t *invar_view_text(const char *text);
json_t *invar_view_text_or_null(const char *text);

/* Converts a number; null if it is not finite. */
json_t *invar_view_real(double value);

/* Converts `count` items of `size` bytes to an array with `element`. */
json_t *invar_view_list(const void *items, size_t count, size_t size,
                        json_t *(*element)(const void *item));

/* Converts a divergence; null if it is unknown. */
json_t *invar_view_divergence(const invar_divergence *divergence);

/*
 * Writes the object and a newline and releases the object. Returns INVAR_E_NOMEM if `object` is
 * NULL.
 */
invar_status invar_view_write(FILE *out, json_t *object) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
