/*
 * value.h - checks and converts the text of a recipe value. Private to base/recipe/.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_RECIPE_VALUE_H
#define INVAR_BASE_RECIPE_VALUE_H

#include <stddef.h>
#include <stdint.h>

#include "base/recipe/recipe.h"
#include "base/status.h"

typedef struct invar_recipe_value {
    char *text;      /* value in canonical form, with a NUL; owned; NULL without a value */
    int64_t integer; /* value of INT; 0 or 1 for BOOL; index of the word for ENUM */
    double real;     /* value of FLOAT */
} invar_recipe_value;

/*
 * Checks and converts a text of `length` bytes to the type of the key. Messages begin with `where`.
 * The caller frees out->text with invar_free.
 */
invar_status invar_recipe_value_parse(invar_recipe_value *out, const invar_recipe_key *key,
                                      const char *text, size_t length,
                                      const char *where) INVAR_MUST_USE;

#endif
