/*
 * fields.c - tests that every field of invar_config has the value of its key in the recipe.
 *
 * Fields are compared with the values in the recipe: in the defaults, with every key at another
 * value than its default, and in the recipes of this repository. Control: a wrong field is found,
 * for every key.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <glob.h>
#include <stdio.h>
#include <string.h>

#include "engine/config/config.h"
#include "tests/support.h"

/* A field of invar_config. */
typedef struct field_place {
    const char *name;
    size_t offset;
} field_place;

static const field_place fields[INVAR_KEY_COUNT] = {
#define INVAR_KEY(ID, FIELD, ...) {#FIELD, offsetof(invar_config, FIELD)},
#include "engine/config/keys.def"
#undef INVAR_KEY
};

/* Returns whether a field has the value of a key. */
static bool is_equal(const invar_config *config, int key)
{
    const void *field = (const char *)config + fields[key].offset;
    const invar_recipe_key *row = &invar_config_schema()->keys[key];
    const invar_recipe *recipe = config->recipe;
    invar_recipe_entry e;

    invar_recipe_entry_get(&e, recipe, key);
    if (e.source == INVAR_RECIPE_SOURCE_NONE)
        return memcmp(field, &(int){0}, sizeof(int)) == 0;
    switch (row->type) {
    case INVAR_RECIPE_TYPE_BOOL: return *(const bool *)field == invar_recipe_bool(recipe, key);
    case INVAR_RECIPE_TYPE_INT: return *(const int64_t *)field == invar_recipe_int(recipe, key);
    case INVAR_RECIPE_TYPE_FLOAT: return *(const double *)field == invar_recipe_float(recipe, key);
    case INVAR_RECIPE_TYPE_STRING:
        return *(const char *const *)field == invar_recipe_string(recipe, key);
    case INVAR_RECIPE_TYPE_ENUM:
        return memcmp(field, &(int){invar_recipe_enum(recipe, key, row->choices)}, sizeof(int)) ==
               0;
    }
    return false;
}

/* Returns the first key whose field is wrong; INVAR_KEY_COUNT if there is none. */
static int find_wrong(const invar_config *config)
{
    int key = 0;

    while (key < INVAR_KEY_COUNT && is_equal(config, key))
        key++;
    return key;
}

static invar_recipe *recipe_of_defaults(void)
{
    invar_recipe *recipe;

    assert_ok(invar_recipe_new(&recipe, invar_config_schema()));
    return recipe;
}

/* Sets a key to a value that it accepts and that is not its default. */
static void set_other_value(invar_recipe *recipe, const invar_recipe_key *key)
{
    const bool small = key->default_text && strcmp(key->default_text, "1") == 0;
    const char *text = key->type == INVAR_RECIPE_TYPE_STRING ? "x y" : small ? "2" : "1";

    if (key->type == INVAR_RECIPE_TYPE_BOOL)
        text = strcmp(key->default_text, "true") == 0 ? "false" : "true";
    for (int i = 0; key->type == INVAR_RECIPE_TYPE_ENUM && i < key->choices->count; i++)
        if (key->choices->words[i] &&
            (!key->default_text || strcmp(key->choices->words[i], key->default_text) != 0))
            text = key->choices->words[i];
    if (key->type == INVAR_RECIPE_TYPE_FLOAT && key->float_max > 0)
        text = small ? "0.5" : key->float_min > 0.125 ? "3.5" : "0.125";
    assert_ok(invar_recipe_set(recipe, key->name, text, "test"));
}

static void test_config_fields__names(void **state)
{
    (void)state;
    for (int i = 0; i < INVAR_KEY_COUNT; i++) {
        const char *name = invar_config_schema()->keys[i].name;

        assert_int_equal(strlen(fields[i].name), strlen(name));
        for (size_t j = 0; name[j]; j++)
            assert_int_equal(fields[i].name[j], name[j] == '-' ? '_' : name[j]);
    }
}

static void test_config_fields__defaults(void **state)
{
    invar_recipe *recipe = recipe_of_defaults();
    invar_config config;
    (void)state;

    assert_ptr_equal(invar_config_read(&config, recipe), &config);
    assert_int_equal(find_wrong(&config), INVAR_KEY_COUNT);
    invar_recipe_free(recipe);
}

/* Each key in turn differs from its default; the fields of a recipe of defaults are wrong then. */
static void test_config_fields__other_values(void **state)
{
    invar_recipe *recipe = recipe_of_defaults();
    invar_config config, defaults;
    (void)state;

    for (int i = 0; i < INVAR_KEY_COUNT; i++) {
        invar_config_read(&defaults, recipe);
        set_other_value(recipe, &invar_config_schema()->keys[i]);
        assert_int_equal(find_wrong(&defaults), i);
        invar_config_read(&config, recipe);
        assert_int_equal(find_wrong(&config), INVAR_KEY_COUNT);
    }
    invar_recipe_free(recipe);
}

static void check_recipes(const char *pattern, size_t expected)
{
    glob_t found;

    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_true(found.gl_pathc >= expected);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        invar_recipe *recipe = recipe_of_defaults();
        invar_config config;

        assert_ok(invar_recipe_read_with_includes(recipe, found.gl_pathv[i]));
        invar_config_read(&config, recipe);
        assert_int_equal(find_wrong(&config), INVAR_KEY_COUNT);
        invar_recipe_free(recipe);
    }
    globfree(&found);
}

static void test_config_fields__recipes(void **state)
{
    (void)state;
    check_recipes(INVAR_TEST_DATA "/../recipes/*.ini", 10);
    check_recipes(INVAR_TEST_DATA "/*/*/*.ini", 6);
}

static void test_config_fields__wrong_field_is_found(void **state)
{
    invar_recipe *recipe = recipe_of_defaults();
    (void)state;

    for (int i = 0; i < INVAR_KEY_COUNT; i++) {
        invar_config config;

        invar_config_read(&config, recipe);
        ((unsigned char *)&config)[fields[i].offset] ^= 1;
        assert_int_equal(find_wrong(&config), i);
    }
    invar_recipe_free(recipe);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_fields__names),
        cmocka_unit_test(test_config_fields__defaults),
        cmocka_unit_test(test_config_fields__other_values),
        cmocka_unit_test(test_config_fields__recipes),
        cmocka_unit_test(test_config_fields__wrong_field_is_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
