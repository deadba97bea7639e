/*
 * include.c - tests of recipes that include other recipes.
 *
 * Later lines override earlier ones, errors name file and line, and depth, number and size are
 * limited. The flattened text of a recipe parses to the values that its files have.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/recipe/flatten.h"
#include "base/recipe/recipe.h"
#include "tests/support.h"

enum { LAYERS, NAME, LR, SEED, KEY_COUNT };

static const invar_recipe_key keys[KEY_COUNT] = {
    [LAYERS] = {.section = "model",
                .name = "num-layers",
                .type = INVAR_RECIPE_TYPE_INT,
                .default_text = "4",
                .doc = "layers"},
    [NAME] = {.section = "model",
              .name = "model-name",
              .type = INVAR_RECIPE_TYPE_STRING,
              .default_text = "",
              .doc = "name"},
    [LR] = {.section = "optimizer",
            .name = "lr",
            .type = INVAR_RECIPE_TYPE_FLOAT,
            .default_text = "0.5",
            .doc = "learning rate"},
    [SEED] = {.section = "engine",
              .name = "seed",
              .type = INVAR_RECIPE_TYPE_INT,
              .default_text = "1234",
              .doc = "seed"},
};

static const invar_recipe_schema schema = {.keys = keys, .count = KEY_COUNT};

#define WORK INVAR_TEST_WORK "/include"

static void write_text(const char *name, const char *text)
{
    char path[INVAR_PATH_SIZE], folder[INVAR_PATH_SIZE];

    assert_ok(invar_path_join(path, sizeof path, WORK, name));
    assert_ok(invar_path_folder(folder, path));
    assert_ok(invar_held_folder_make(folder));
    assert_ok(invar_file_write(path, text, strlen(text)));
}

static invar_status read_recipe(invar_recipe **out, const char *name)
{
    char path[INVAR_PATH_SIZE];

    assert_ok(invar_path_join(path, sizeof path, WORK, name));
    assert_ok(invar_recipe_new(out, &schema));
    return invar_recipe_read_with_includes(*out, path);
}

static void assert_read_fails(const char *name, invar_status status, const char *message)
{
    char path[INVAR_PATH_SIZE], *text;
    invar_recipe *recipe;
    size_t bytes;

    assert_fails(read_recipe(&recipe, name), status, message);
    invar_recipe_free(recipe);
    assert_ok(invar_path_join(path, sizeof path, WORK, name));
    assert_fails(invar_recipe_flatten(&text, &bytes, path), status, message);
    assert_null(text);
}

static void assert_rejected(const char *name, const char *message)
{
    assert_read_fails(name, INVAR_E_INVALID, message);
}

/* Returns the flattened text, after checking that it parses to the values of the file. */
static char *flatten_checked(const char *name)
{
    invar_recipe *recipe, *flattened;
    invar_recipe_entry a, b;
    char path[INVAR_PATH_SIZE], *text;
    size_t bytes;

    assert_ok(read_recipe(&recipe, name));
    assert_ok(invar_path_join(path, sizeof path, WORK, name));
    assert_ok(invar_recipe_flatten(&text, &bytes, path));
    assert_int_equal(strlen(text), bytes);
    assert_ok(invar_recipe_new(&flattened, &schema));
    assert_ok(invar_recipe_parse(flattened, "flat", text, bytes));
    for (int i = 0; i < KEY_COUNT; i++) {
        invar_recipe_entry_get(&a, recipe, i);
        invar_recipe_entry_get(&b, flattened, i);
        assert_string_equal(a.text, b.text);
        assert_int_equal(a.source, b.source);
    }
    invar_recipe_free(recipe);
    invar_recipe_free(flattened);
    return text;
}

static int remove_work(void **state)
{
    (void)state;
    assert_ok(invar_held_folder_remove(WORK));
    return 0;
}

/* ---- accepted recipes ------------------------------------------------------------------------ */

static void test_base_include__later_lines_override(void **state)
{
    invar_recipe *recipe;
    invar_recipe_entry e;
    char *text;

    (void)state;
    write_text("base/one.ini", "[optimizer]\nlr = 1\n[model]\nnum-layers = 1\n");
    write_text("base/two.ini", "include = one.ini\n[model]\nnum-layers = 2\n[engine]\nseed = 2\n");
    write_text("own.ini",
               "# mine\ninclude = base/one.ini\ninclude=base/two.ini\n\n[engine]\nseed = 3\n"
               "[model]\nmodel-name = own\n");
    assert_ok(read_recipe(&recipe, "own.ini"));
    assert_int_equal(invar_recipe_int(recipe, LAYERS), 2);
    assert_int_equal(invar_recipe_int(recipe, SEED), 3);
    assert_true(invar_recipe_float(recipe, LR) == 1);
    invar_recipe_entry_get(&e, recipe, LAYERS);
    assert_true(strstr(e.origin, "include/base/two.ini:3"));
    invar_recipe_entry_get(&e, recipe, SEED);
    assert_true(strstr(e.origin, "include/own.ini:6"));
    invar_recipe_free(recipe);
    text = flatten_checked("own.ini");
    assert_string_equal(text, "[optimizer]\nlr = 1\n[model]\nnum-layers = 2\nmodel-name = own\n"
                              "[engine]\nseed = 3\n");
    invar_free(text);
}

static void test_base_include__a_path_may_be_absolute_or_go_up(void **state)
{
    char *text;

    (void)state;
    write_text("one.ini", "[engine]\nseed = 7\n");
    write_text("deep/a.ini", "include = ../one.ini\n");
    text = flatten_checked("deep/a.ini");
    assert_string_equal(text, "[engine]\nseed = 7\n");
    invar_free(text);
    write_text("deep/b.ini", "include = " WORK "/one.ini\r\n");
    text = flatten_checked("deep/b.ini");
    assert_string_equal(text, "[engine]\nseed = 7\n");
    invar_free(text);
}

static void test_base_include__text_without_include_stays(void **state)
{
    static const char *const texts[] = {"",
                                        "# include = x\n",
                                        "no recipe at all",
                                        "[a]\ninclude = b.ini\n",
                                        "includes = x\n",
                                        "[unknown]\n\tkey\t=\tvalue\n"};
    char *text;
    size_t bytes;

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_text("plain.ini", texts[i]);
        assert_ok(invar_recipe_flatten(&text, &bytes, WORK "/plain.ini"));
        assert_string_equal(text, texts[i]);
        invar_free(text);
    }
}

/* A program of another version may know keys that are unknown here. */
static void test_base_include__flat_text_keeps_unknown_keys(void **state)
{
    size_t bytes;
    char *text;

    (void)state;
    write_text("base.ini", "[new]\nkey = a = b # c\nother =\n");
    write_text("own.ini", "include = base.ini\n[new]\nother = x\n");
    assert_ok(invar_recipe_flatten(&text, &bytes, WORK "/own.ini"));
    assert_string_equal(text, "[new]\nkey = a = b # c\nother = x\n");
    invar_free(text);
}

/* ---- rejected recipes ------------------------------------------------------------------------ */

static void test_base_include__rejects_cycles_with_the_line(void **state)
{
    (void)state;
    write_text("self.ini", "\ninclude = self.ini\n");
    assert_rejected("self.ini", "self.ini:2: include: a file cannot include itself");
    write_text("a.ini", "include = ./b.ini\n");
    write_text("b.ini", "# b\ninclude = ../include/a.ini\n");
    assert_rejected("a.ini",
                    "b.ini:2: include: a file cannot include itself, also by way of others");
}

static void test_base_include__rejects_what_is_not_a_file(void **state)
{
    (void)state;
    write_text("a.ini", "include = missing.ini\n");
    assert_read_fails("a.ini", INVAR_E_NOTFOUND, "a.ini:1: include: ");
    assert_true(strstr(invar_error_last()->message, "missing.ini"));
    write_text("a.ini", "include =\n");
    assert_rejected("a.ini", "a.ini:1: include: expected the path of a recipe");
    write_text("a.ini", "include = ../include\n");
    assert_rejected("a.ini", "it is a folder, not a file");
    write_text("a.ini", "include = /dev/zero\n");
    assert_rejected("a.ini", "it is a device or a pipe, not a file");
    assert_int_equal(mkfifo(WORK "/pipe", 0600), 0);
    write_text("a.ini", "include = pipe\n");
    assert_rejected("a.ini", "it is a device or a pipe, not a file");
}

static void test_base_include__precedes_sections_and_opens_none(void **state)
{
    invar_recipe *recipe;

    (void)state;
    write_text("base.ini", "[engine]\nseed = 1\n");
    write_text("a.ini", "[engine]\ninclude = base.ini\n");
    assert_fails(read_recipe(&recipe, "a.ini"), INVAR_E_INVALID,
                 "a.ini:2: include stands before the first [section]: 'base.ini'");
    invar_recipe_free(recipe);
    write_text("a.ini", "include = base.ini\nseed = 2\n");
    assert_rejected("a.ini", "a.ini:2: a key needs a [section] before it");
}

static void test_base_include__errors_name_the_included_file(void **state)
{
    invar_recipe *recipe;

    (void)state;
    write_text("base.ini", "[engine]\nseed = x\n");
    write_text("a.ini", "include = base.ini\n[engine]\nseed = 1\n");
    assert_fails(read_recipe(&recipe, "a.ini"), INVAR_E_INVALID, "base.ini:2: seed: ");
    invar_recipe_free(recipe);
    write_text("base.ini", "[engine]\nseed = 1\nseed = 2\n");
    assert_rejected("a.ini", "base.ini:3: key 'seed' is already in line 2");
    write_text("base.ini", "[engine]\n seed = 1\n");
    assert_rejected("a.ini", "base.ini:2: the line is indented");
}

static void test_base_include__depth_and_number_are_limited(void **state)
{
    char name[32], text[64];

    (void)state;
    write_text("0.ini", "[engine]\nseed = 9\n");
    for (int i = 1; i <= INVAR_RECIPE_MAX_DEPTH + 1; i++) {
        (void)snprintf(name, sizeof name, "%d.ini", i);
        (void)snprintf(text, sizeof text, "include = %d.ini\n", i - 1);
        write_text(name, text);
    }
    invar_free(flatten_checked("8.ini"));
    assert_rejected("9.ini", "1.ini:1: include: files include each other more than 8 deep");
    for (int i = 1; i <= INVAR_RECIPE_MAX_DEPTH; i++) {
        (void)snprintf(name, sizeof name, "%d.ini", i);
        (void)snprintf(text, sizeof text, "include = %d.ini\ninclude = %d.ini\n", i - 1, i - 1);
        write_text(name, text);
    }
    invar_free(flatten_checked("5.ini"));
    assert_rejected("8.ini", "include: more than 64 files in all");
}

static void test_base_include__sizes_are_limited(void **state)
{
    char name[INVAR_PATH_SIZE], *text;
    size_t bytes;
    FILE *file;

    (void)state;
    write_text("large.ini", "");
    assert_int_equal(truncate(WORK "/large.ini", INVAR_RECIPE_MAX_BYTES + 1), 0);
    write_text("a.ini", "include = large.ini\n");
    assert_rejected("a.ini", "large.ini: the file has 1048577 bytes");
    file = fopen(WORK "/a.ini", "w");
    assert_non_null(file);
    fprintf(file, "include = large.ini\n[x]\n");
    for (int i = 0; i <= INVAR_RECIPE_MAX_KEYS; i++)
        fprintf(file, "k%d = 1\n", i);
    fclose(file);
    write_text("large.ini", "");
    assert_fails(invar_recipe_flatten(&text, &bytes, WORK "/a.ini"), INVAR_E_INVALID,
                 "a.ini:4099: the recipe has more than 4096 keys");
    for (int i = 0; i < 20; i++) { // 20 values of 65000 bytes
        (void)snprintf(name, sizeof name, WORK "/%d.ini", i);
        file = fopen(name, "w");
        assert_non_null(file);
        if (i > 0)
            fprintf(file, "include = %d.ini\n", (i - 1) / 4);
        fprintf(file, "[x]\nk%d = %065000d\n", i, 1);
        fclose(file);
    }
    file = fopen(WORK "/a.ini", "w");
    assert_non_null(file);
    for (int i = 0; i < 20; i++)
        fprintf(file, "include = %d.ini\n", i);
    fclose(file);
    assert_fails(invar_recipe_flatten(&text, &bytes, WORK "/a.ini"), INVAR_E_INVALID,
                 "with what it includes the recipe is larger than 1048576 bytes");
}

/* Recorded recipes are complete: their readers reject `include`. */
static void test_base_include__other_readers_reject_it(void **state)
{
    invar_recipe *recipe;

    (void)state;
    write_text("base.ini", "[engine]\nseed = 1\n");
    write_text("a.ini", "include = base.ini\n");
    assert_ok(invar_recipe_new(&recipe, &schema));
    assert_fails(invar_recipe_read(recipe, WORK "/a.ini"), INVAR_E_INVALID,
                 "a.ini:1: this file has to stand alone");
    invar_recipe_free(recipe);
    assert_ok(invar_recipe_new(&recipe, &schema));
    assert_fails(invar_recipe_parse(recipe, "r.ini", "include = base.ini\n", 19), INVAR_E_INVALID,
                 "r.ini:1: this file has to stand alone, include is for recipes: 'base.ini'");
    invar_recipe_free(recipe);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_base_include__later_lines_override, remove_work),
        cmocka_unit_test_teardown(test_base_include__a_path_may_be_absolute_or_go_up, remove_work),
        cmocka_unit_test_teardown(test_base_include__text_without_include_stays, remove_work),
        cmocka_unit_test_teardown(test_base_include__flat_text_keeps_unknown_keys, remove_work),
        cmocka_unit_test_teardown(test_base_include__rejects_cycles_with_the_line, remove_work),
        cmocka_unit_test_teardown(test_base_include__rejects_what_is_not_a_file, remove_work),
        cmocka_unit_test_teardown(test_base_include__precedes_sections_and_opens_none, remove_work),
        cmocka_unit_test_teardown(test_base_include__errors_name_the_included_file, remove_work),
        cmocka_unit_test_teardown(test_base_include__depth_and_number_are_limited, remove_work),
        cmocka_unit_test_teardown(test_base_include__sizes_are_limited, remove_work),
        cmocka_unit_test_teardown(test_base_include__other_readers_reject_it, remove_work),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
