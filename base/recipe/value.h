/*
 * value.h - the text of one recipe value, checked and converted. Private to the recipe.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_RECIPE_VALUE_H
#define INVAR_BASE_RECIPE_VALUE_H

#include <stddef.h>
#include <stdint.h>

#include "base/recipe/recipe.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_recipe_value {
    char *text;      /* canonical, NUL-terminated, owned; NULL: no value */
    int64_t integer; /* INT; BOOL: 0 or 1; ENUM: the index */
    double real;     /* FLOAT */
} invar_recipe_value;

/* Converts `length` bytes of text. Errors begin with `where`. The caller frees out->text. */
invar_status invar_recipe_value_parse(invar_recipe_value *out, const invar_recipe_key *key,
                                      const char *text, size_t length,
                                      const char *where) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
