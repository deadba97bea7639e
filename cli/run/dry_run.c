/*
 * dry_run.c - invar train --dry-run.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/run/dry_run.h"

#include <stdio.h>
#include <string.h>

#include "cli/live.h"
#include "cli/memory_kinds.h"
#include "cli/plain.h"
#include "engine/config/config.h"
#include "engine/run/home/folders.h"
#include "engine/run/memory.h"
#include "engine/run/train.h"

#include "base/invar_banned.h"

static bool is_changed(const invar_recipe_entry *e)
{
    return !e->key->fallback || strcmp(e->text, e->key->fallback) != 0;
}

/* The keys with a value of their own, or the others; as a recipe has them. */
static void print_keys(const invar_recipe *recipe, bool changed)
{
    const char *section = "";
    invar_recipe_entry e;

    printf("# %s\n", changed ? "keys that differ from their defaults" : "all other keys");
    for (int i = 0; i < INVAR_KEY_COUNT; i++) {
        invar_recipe_entry_get(&e, recipe, i);
        if (is_changed(&e) != changed)
            continue;
        if (strcmp(section, e.key->section) != 0)
            printf("[%s]\n", e.key->section);
        section = e.key->section;
        printf("%s =%s", e.key->name, e.text[0] ? " " : "");
        invar_plain_print(stdout, e.text);
        putchar('\n');
    }
    putchar('\n');
}

static invar_status print_memory(const invar_recipe *recipe)
{
    invar_memory_view view;
    invar_status status;

    INVAR_TRY(invar_memory_plan(&view, recipe, 0));
    status = invar_memory_show(&view.budget);
    putchar('\n');
    if (status == INVAR_OK && fflush(stdout) == 0)
        status = invar_budget_verdict(&view.budget, &view.ask);
    invar_memory_release(&view);
    return status;
}

static void print_digest(const char *what, const invar_digest *digest)
{
    static const invar_digest none;
    char hex[INVAR_DIGEST_HEX_SIZE];

    if (invar_digest_equal(digest, &none))
        return;
    invar_digest_format(hex, digest);
    printf("%-9s %s\n", what, hex);
}

invar_status invar_dry_run(const invar_recipe *recipe, const char *path)
{
    const invar_train_options options = {.recipe_path = path, .until = -1, .say = invar_live_say};
    invar_train_given given;
    invar_folders at;

    INVAR_TRY(invar_folders_find(&at, recipe, path));
    print_keys(recipe, true);
    print_keys(recipe, false);
    INVAR_TRY(print_memory(recipe));
    INVAR_TRY(invar_train_check(&given, recipe, &options));
    printf("run       ");
    invar_plain_print(stdout, at.run);
    puts(" (nothing is written)");
    print_digest("data", &given.data);
    print_digest("weights", &given.weights);
    print_digest("identity", &given.identity);
    return INVAR_OK;
}
