/*
 * json.h - values of JSON that the answers of bisect and ab consist of.
 *
 * All yield NULL without memory, which json_pack passes on where it stands for "o".
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

/* One printable line; of the second, null for "". */
json_t *invar_view_text(const char *text);
json_t *invar_view_text_or_null(const char *text);

/* null: not finite. */
json_t *invar_view_real(double value);

json_t *invar_view_list(const void *items, size_t count, size_t size,
                        json_t *(*element)(const void *item));

/* null: not known. */
json_t *invar_view_place(const invar_divergence *place);

/* The object, which is released, and a line end; NULL is INVAR_E_NOMEM. */
invar_status invar_view_write(FILE *out, json_t *object) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
