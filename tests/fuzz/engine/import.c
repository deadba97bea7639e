/*
 * import.c - fuzz target: a launch script of any bytes becomes a recipe, or is rejected.
 *
 * The written recipe is read back to the same values, whatever its comments quote, and it passes
 * the check of recipes if and only if the import reported no error.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/config/miles_import/miles_import.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tests/unit/engine/config/config_of.h"

static void check_same(invar_recipe *a, invar_recipe *b)
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
    invar_recipe *reread;
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
    INVAR_CHECK(invar_recipe_new(&reread, invar_config_schema()) == INVAR_OK);
    INVAR_CHECK(invar_recipe_parse(reread, "made.ini", text, bytes) == INVAR_OK);
    check_same(import.recipe, reread);
    INVAR_CHECK((invar_config_check(config_of(reread)) == INVAR_OK) == (import.error[0] == '\0'));
    invar_recipe_free(reread);
    free(text);
    invar_import_release(&import);
    return 0;
}
