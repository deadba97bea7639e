/*
 * flatten.h - converts a recipe and the files that it includes to one text, for any keys.
 *
 * For programs of other versions, which may have other keys and no includes, and for searching keys
 * in the text of a recipe.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_RECIPE_FLATTEN_H
#define INVAR_BASE_RECIPE_FLATTEN_H

#include <stddef.h>

#include "base/recipe/recipe.h"
#include "base/status.h"

#define INVAR_RECIPE_MAX_KEYS 4096 /* maximum number of keys of a recipe with includes */

/*
 * Flattens a file. A file without includes is copied unchanged and unchecked. Otherwise the text
 * has every section and every key once, with its last value, in the order of their first
 * occurrence; it reads back to the same values as the files. *out is followed by a NUL that is not
 * counted; the caller frees it with invar_free.
 */
invar_status invar_recipe_flatten(char **out, size_t *bytes_out, const char *path) INVAR_MUST_USE;

/*
 * Like invar_recipe_flatten, for a text; `path` is its name. `open` reads included files, with
 * `files` as its payload.
 */
invar_status invar_recipe_flatten_text(char **out, size_t *bytes_out, const char *path,
                                       const char *text, size_t bytes, invar_recipe_open_fn open,
                                       void *files) INVAR_MUST_USE;

#endif
