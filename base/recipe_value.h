/*
 * recipe_value.h - the text of one recipe value, checked and converted. Private to the recipe.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_RECIPE_VALUE_H
#define INVAR_BASE_RECIPE_VALUE_H

#include <stddef.h>
#include <stdint.h>

#include "base/recipe.h"
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

/* Bytes of the character at `text`, 0 when it is a control character or not UTF-8. `left` > 0. */
size_t invar_recipe_char(const char *text, size_t left);

/* A harmless excerpt of any bytes, for messages: one line of UTF-8. `size` is the room, >= 4. */
void invar_recipe_quote(char *out, size_t size, const char *text, size_t length);

#define INVAR_RECIPE_QUOTE_SIZE 48 /* usual room */

#ifdef __cplusplus
}
#endif
#endif
