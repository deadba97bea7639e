/*
 * flatten.h - a recipe as one text without includes, whatever keys it has.
 *
 * For programs of other versions, which may know other keys and no includes, and for whoever looks
 * for keys in a recipe's text.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_RECIPE_FLATTEN_H
#define INVAR_BASE_RECIPE_FLATTEN_H

#include <stddef.h>

#include "base/recipe/recipe.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_RECIPE_MAX_KEYS 4096 /* of a recipe that includes others */

/*
 * A file that includes nothing: its bytes as they are, unread. Else every section and every key
 * once, with its last value, in the order in which they were first said: what a reader makes of it
 * is what it makes of the files. The caller owns *out (invar_free), which ends with a NUL that is
 * not counted.
 */
invar_status invar_recipe_flatten(char **out, size_t *bytes_out, const char *path) INVAR_MUST_USE;

/* The same of a text at hand; `open` reads the files that it includes, with `files`. */
invar_status invar_recipe_flatten_text(char **out, size_t *bytes_out, const char *path,
                                       const char *text, size_t bytes, invar_recipe_open_fn open,
                                       void *files) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
