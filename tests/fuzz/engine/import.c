/*
 * import.c - fuzz target: a launch script of any bytes becomes a recipe, or is refused.
 *
 * A recipe that comes out reads back to the same values, whatever its comments quote, and is
 * accepted exactly where the import says so.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/config/miles_import/miles_import.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"

static void check_same(const invar_recipe *a, const invar_recipe *b)
{
    for (int i = 0; i < INVAR_KEY_COUNT; i++) {
        invar_recipe_entry x, y;
        invar_recipe_entry_get(&x, a, i);
        invar_recipe_entry_get(&y, b, i);
        INVAR_CHECK(!x.text == !y.text && (!x.text || strcmp(x.text, y.text) == 0));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    invar_import import;
    invar_recipe *again;
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream;

    if (invar_import_parse(&import, "run.sh", (const char *)data, size) != INVAR_OK) {
        INVAR_CHECK(invar_error_last()->status == INVAR_E_INVALID);
        return 0;
    }
    stream = open_memstream(&text, &bytes);
    INVAR_CHECK(stream);
    invar_import_write(stream, &import);
    fclose(stream);
    INVAR_CHECK(invar_recipe_new(&again, invar_config_schema()) == INVAR_OK);
    INVAR_CHECK(invar_recipe_parse(again, "made.ini", text, bytes) == INVAR_OK);
    check_same(import.recipe, again);
    INVAR_CHECK((invar_config_check(again) == INVAR_OK) == (import.error[0] == '\0'));
    invar_recipe_free(again);
    free(text);
    invar_import_release(&import);
    return 0;
}
