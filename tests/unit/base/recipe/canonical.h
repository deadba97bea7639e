/*
 * canonical.h - the values of a recipe that belong to the identity, as a recipe.
 *
 * Values come in schema order. Equal values must give equal bytes, whatever their notation and
 * source, because a recipe keeps numbers in their shortest exact form.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_BASE_RECIPE_CANONICAL_H
#define INVAR_TESTS_UNIT_BASE_RECIPE_CANONICAL_H

#include <stdio.h>
#include <string.h>

#include "base/recipe/recipe.h"

/* Writes the text and returns the number of its bytes; `size` must be larger. */
static inline size_t test_canonical_recipe(char *out, size_t size, const invar_recipe *recipe,
                                           const invar_recipe_schema *schema)
{
    const char *section = "";
    size_t used = 0;

    out[0] = '\0'; // if no value belongs to the identity
    for (int i = 0; i < schema->count; i++) {
        invar_recipe_entry e;

        invar_recipe_entry_get(&e, recipe, i);
        if (!invar_recipe_entry_identifies(&e) || !e.text)
            continue;
        if (strcmp(section, e.key->section) != 0)
            used += (size_t)snprintf(out + used, size - used, "[%s]\n", e.key->section);
        used += (size_t)snprintf(out + used, size - used, "%s = %s\n", e.key->name, e.text);
        INVAR_CHECK(used < size);
        section = e.key->section;
    }
    return used;
}

#endif
