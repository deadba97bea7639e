/*
 * recipe.c - fuzz target: the recipe reader on any bytes.
 *
 * The input is read as one file, as several files that include each other, and line by line as
 * values of flags. The reader must reject it with a proper message or accept it. An accepted recipe
 * must be read back unchanged from its canonical text and from its flattened text.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"
#include "base/recipe/flatten.h"
#include "base/recipe/recipe.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/base/recipe/canonical.h"

enum { KEY_COUNT = 8 };

static const char *const words[] = {"grpo", "gspo", "ppo"};
static const invar_choices estimators = {words, 3};

static const invar_recipe_key keys[KEY_COUNT] = {
    {.section = "model",
     .name = "model-name",
     .type = INVAR_RECIPE_TYPE_STRING,
     .doc = "a string without a default"},
    {.section = "model",
     .name = "num-layers",
     .type = INVAR_RECIPE_TYPE_INT,
     .default_text = "4",
     .int_min = 1,
     .int_max = 1024,
     .doc = "an integer with limits"},
    {.section = "grpo",
     .name = "advantage-estimator",
     .type = INVAR_RECIPE_TYPE_ENUM,
     .default_text = "grpo",
     .choices = &estimators,
     .doc = "a choice"},
    {.section = "grpo",
     .name = "use-kl-loss",
     .type = INVAR_RECIPE_TYPE_BOOL,
     .default_text = "false",
     .doc = "a switch"},
    {.section = "grpo",
     .name = "eps-clip",
     .type = INVAR_RECIPE_TYPE_FLOAT,
     .default_text = "0.2",
     .float_min = -10,
     .float_max = 10,
     .doc = "a float with limits"},
    {.section = "optimizer",
     .name = "lr",
     .type = INVAR_RECIPE_TYPE_FLOAT,
     .default_text = "1e-6",
     .doc = "a float"},
    {.section = "engine",
     .name = "seed",
     .type = INVAR_RECIPE_TYPE_INT,
     .default_text = "0",
     .doc = "an integer"},
    {.section = "engine",
     .name = "prompt-data",
     .type = INVAR_RECIPE_TYPE_STRING,
     .default_text = "",
     .doc = "a string"},
};

static const invar_recipe_schema schema = {.keys = keys, .count = KEY_COUNT};

static invar_recipe *new_recipe(void)
{
    invar_recipe *recipe;

    INVAR_CHECK(invar_recipe_new(&recipe, &schema) == INVAR_OK);
    return recipe;
}

/*
 * Checks a rejection: it has its code, begins with `place`, and is one line without control
 * characters.
 */
static void check_refusal(invar_status status, const char *place)
{
    const char *message = invar_error_last()->message;

    INVAR_CHECK(status == INVAR_E_INVALID);
    INVAR_CHECK(strncmp(message, place, strlen(place)) == 0);
    INVAR_CHECK(strlen(message) > strlen(place) + 4);
    for (; *message; message++)
        INVAR_CHECK((unsigned char)*message >= 0x20 && *message != 0x7F);
}

static void check_round_trip(const invar_recipe *recipe)
{
    invar_recipe *reread = new_recipe();
    invar_recipe_entry a, b;
    static char first[2 * INVAR_RECIPE_MAX_BYTES], second[sizeof first];
    size_t bytes = test_canonical_recipe(first, sizeof first, recipe, &schema);

    INVAR_CHECK(invar_recipe_parse(reread, "canonical", first, bytes) == INVAR_OK);
    INVAR_CHECK(test_canonical_recipe(second, sizeof second, reread, &schema) == bytes);
    INVAR_CHECK(memcmp(first, second, bytes) == 0);
    for (int i = 0; i < KEY_COUNT; i++) {
        invar_recipe_entry_get(&a, recipe, i);
        invar_recipe_entry_get(&b, reread, i);
        INVAR_CHECK(!a.text == !b.text && (!a.text || strcmp(a.text, b.text) == 0));
    }
    invar_recipe_free(reread);
}

static void fuzz_file(const uint8_t *data, size_t size)
{
    invar_recipe *recipe = new_recipe();
    invar_status status = invar_recipe_parse(recipe, "fuzz", (const char *)data, size);

    if (status == INVAR_OK)
        check_round_trip(recipe);
    else
        check_refusal(status, "fuzz:");
    invar_recipe_free(recipe);
}

/* ---- several files --------------------------------------------------------------------------- */

/* The input, cut at its NUL bytes: the first part is the recipe, the others are files 1, 2, ... */
typedef struct files {
    const char *at, *end;
} files;

static void file_part(files *out, const files *all, int number)
{
    const char *nul = NULL;

    *out = *all;
    for (int i = 0; i <= number; i++) {
        out->at = nul ? nul + 1 : out->at;
        nul = memchr(out->at, 0, (size_t)(all->end - out->at));
        if (!nul && i < number)
            out->at = all->end;
    }
    out->end = nul ? nul : all->end;
}

static invar_status open_part(char **out, size_t *bytes_out, void *payload, const char *path)
{
    files part;

    if (path[0] < '1' || path[0] > '9' || path[1])
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0, "%s: there is none", path);
    file_part(&part, payload, path[0] - '0');
    *bytes_out = (size_t)(part.end - part.at);
    INVAR_TRY(INVAR_ALLOC(*out, *bytes_out + 1, "a file"));
    memcpy(*out, part.at, *bytes_out);
    (*out)[*bytes_out] = '\0';
    return INVAR_OK;
}

/* Like check_refusal, but an included file may also be missing. */
static void check_failure(invar_status status)
{
    check_refusal(status == INVAR_E_NOTFOUND ? INVAR_E_INVALID : status, "");
}

/* Checks that a recipe of several files has the values of its flattened text. */
static void fuzz_files(const uint8_t *data, size_t size)
{
    files all = {(const char *)data, (const char *)data + size}, first;
    invar_recipe *whole = new_recipe(), *flat = new_recipe();
    invar_status status;
    char *text;
    size_t bytes;
    bool read;

    file_part(&first, &all, 0);
    bytes = (size_t)(first.end - first.at);
    status = invar_recipe_parse_with_includes(whole, "fuzz", first.at, bytes, open_part, &all);
    read = status == INVAR_OK;
    if (!read)
        check_failure(status);
    status = invar_recipe_flatten_text(&text, &bytes, "fuzz", first.at, bytes, open_part, &all);
    if (status != INVAR_OK) {
        check_failure(status);
        INVAR_CHECK(!read && !text);
    } else if (read) {
        INVAR_CHECK(invar_recipe_parse(flat, "flat", text, bytes) == INVAR_OK);
        for (int i = 0; i < KEY_COUNT; i++) {
            invar_recipe_entry a, b;
            invar_recipe_entry_get(&a, whole, i);
            invar_recipe_entry_get(&b, flat, i);
            INVAR_CHECK(a.source == b.source && !a.text == !b.text);
            INVAR_CHECK(!a.text || strcmp(a.text, b.text) == 0);
        }
    }
    invar_free(text);
    invar_recipe_free(whole);
    invar_recipe_free(flat);
}

/*
 * Sets the keys from the lines of the input: alternately to the complete line and to the text after
 * "= ". Each line is also used as the name of a key.
 */
static void fuzz_flags(const uint8_t *data, size_t size)
{
    const char *at = (const char *)data, *end = at + size;
    invar_recipe *recipe = new_recipe();
    char value[256];

    for (int i = 0; i < KEY_COUNT && at < end; i++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((newline ? newline : end) - at);
        const char *sign;
        invar_status status;

        length = length < sizeof value ? length : sizeof value - 1;
        memcpy(value, at, length);
        value[length] = '\0';
        sign = i % 2 ? strstr(value, "= ") : NULL;
        status = invar_recipe_set(recipe, keys[i].name, sign ? sign + 2 : value, "--flag");
        if (status != INVAR_OK)
            check_refusal(status, "--flag: ");
        status = invar_recipe_set(recipe, value, "1", value);
        if (status != INVAR_OK)
            check_refusal(status, "");
        at = newline ? newline + 1 : end;
    }
    check_round_trip(recipe);
    invar_recipe_free(recipe);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_file(data, size);
    fuzz_files(data, size);
    fuzz_flags(data, size);
    return 0;
}
