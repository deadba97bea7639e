/*
 * folders.c - where a run keeps its files.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/home/folders.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "engine/config/config.h"

#include "base/invar_banned.h"

/* The last part of a path; false if it is no name that a ledger takes. */
static bool name_folder(char out[INVAR_LEDGER_NAME_BYTES + 1], const char *path)
{
    size_t end = strlen(path), first;

    while (end > 0 && path[end - 1] == '/')
        end--;
    for (first = end; first > 0 && path[first - 1] != '/';)
        first--;
    if (end == first || end - first > INVAR_LEDGER_NAME_BYTES)
        return false;
    for (size_t i = first, bytes; i < end; i += bytes) {
        bytes = invar_text_char(path + i, end - i);
        if (bytes == 0)
            return false;
    }
    (void)snprintf(out, INVAR_LEDGER_NAME_BYTES + 1, "%.*s", (int)(end - first), path + first);
    return strcmp(out, ".") != 0 && strcmp(out, "..") != 0;
}

/* The key `name`; without it, the file name of the recipe, or "run". */
static void name_recipe(char out[INVAR_LEDGER_NAME_BYTES + 1], const char *name, const char *path)
{
    const char *slash, *dot;

    if (name[0] || !path) {
        (void)snprintf(out, INVAR_LEDGER_NAME_BYTES + 1, "%s", name[0] ? name : "run");
        return;
    }
    slash = strrchr(path, '/');
    path = slash ? slash + 1 : path;
    dot = strrchr(path, '.');
    (void)snprintf(out, INVAR_LEDGER_NAME_BYTES + 1, "%.*s",
                   dot && dot > path ? (int)(dot - path) : (int)strlen(path), path);
}

/* The name of the run's folder, if the recipe has no name or only --run is on the command line. */
static void name_run(invar_folders *out, const invar_recipe *recipe)
{
    const char *folder = invar_recipe_string(recipe, INVAR_KEY_RUN);
    invar_recipe_entry name, run;
    bool moved;

    invar_recipe_entry_get(&name, recipe, INVAR_KEY_NAME);
    invar_recipe_entry_get(&run, recipe, INVAR_KEY_RUN);
    moved = run.source == INVAR_RECIPE_SOURCE_FLAG && name.source != INVAR_RECIPE_SOURCE_FLAG;
    if (folder[0] && (moved || !invar_recipe_string(recipe, INVAR_KEY_NAME)[0]) &&
        name_folder(out->name, folder))
        return;
    memcpy(out->name, out->recipe_name, sizeof out->name);
}

/* It is the name of a folder below runs/. */
static invar_status check_name(const char *name)
{
    char quoted[INVAR_TEXT_QUOTE_SIZE];

    if (!strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
        return INVAR_OK;
    invar_text_quote(quoted, sizeof quoted, name, strlen(name));
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "name: \"%s\" is no name of a folder; a path is given with --run", quoted);
}

/* What is given, or NAME in FOLDER. */
static invar_status place(char out[INVAR_PATH_SIZE], const char *given, const char *folder,
                          const char *name)
{
    if (!given[0])
        return invar_path_join(out, INVAR_PATH_SIZE, folder, name);
    if (snprintf(out, INVAR_PATH_SIZE, "%s", given) >= INVAR_PATH_SIZE)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "the path \"%.1000s...\" is too long", given);
    return INVAR_OK;
}

invar_status invar_folders_find(invar_folders *out, const invar_recipe *recipe, const char *path)
{
    const char *save = invar_recipe_string(recipe, INVAR_KEY_SAVE);
    const char *usual = getenv("INVAR_SAVE");

    if (!save[0] && usual)
        save = usual;
    out->usual = !save[0];
    if (!invar_recipe_string(recipe, INVAR_KEY_RUN)[0]) // otherwise the name is only a name
        INVAR_TRY(check_name(invar_recipe_string(recipe, INVAR_KEY_NAME)));
    name_recipe(out->recipe_name, invar_recipe_string(recipe, INVAR_KEY_NAME), path);
    name_run(out, recipe);
    INVAR_TRY(place(out->run, invar_recipe_string(recipe, INVAR_KEY_RUN), "runs", out->name));
    INVAR_TRY(
        place(out->ledger, invar_recipe_string(recipe, INVAR_KEY_LEDGER), out->run, "ledger.db"));
    out->save[0] = '\0';
    if (strcmp(save, "none") == 0)
        return INVAR_OK;
    return place(out->save, save, out->run, INVAR_FOLDERS_CHECKPOINTS);
}

static invar_status take_folder(void *payload, const char *const *columns,
                                const invar_ledger_value *values, int count)
{
    char path[INVAR_PATH_SIZE], *out = payload;

    (void)columns;
    (void)count;
    if (!values || values[0].type != INVAR_LEDGER_TYPE_TEXT || values[0].bytes >= sizeof path)
        return INVAR_OK;
    memcpy(path, values[0].data, values[0].bytes);
    path[values[0].bytes] = '\0';
    return invar_path_folder(out, path);
}

/* The folder of the newest checkpoint, as the ledger of the run says; "" if it does not. */
static invar_status ask_ledger(char out[INVAR_PATH_SIZE], const char *path)
{
    invar_ledger_argument run = {"run", {.type = INVAR_LEDGER_TYPE_INT}};
    const invar_ledger_request request = {
        .sql = "SELECT path FROM checkpoint WHERE run = :run AND state = 'complete'"
               " ORDER BY entry DESC LIMIT 1",
        .arguments = &run,
        .n_arguments = 1,
        .row = take_folder,
        .payload = out};
    invar_ledger_summary summary;
    invar_ledger *ledger;
    invar_status status;

    out[0] = '\0';
    INVAR_TRY(invar_ledger_open(&ledger, path, &(invar_ledger_options){0}));
    status = invar_ledger_find(&summary, ledger, NULL);
    run.value.integer = summary.run;
    if (status == INVAR_OK)
        status = invar_ledger_select(ledger, &request);
    invar_ledger_close(ledger);
    return status;
}

invar_status invar_folders_checkpoints(char out[INVAR_PATH_SIZE], const char *folder)
{
    char ledger[INVAR_PATH_SIZE];

    INVAR_TRY(invar_path_join(out, INVAR_PATH_SIZE, folder, INVAR_FOLDERS_CHECKPOINTS));
    if (invar_path_exists(out))
        return INVAR_OK;
    INVAR_TRY(invar_path_join(ledger, sizeof ledger, folder, "ledger.db"));
    if (invar_path_exists(ledger) && ask_ledger(out, ledger) == INVAR_OK && out[0] &&
        invar_path_exists(out))
        return INVAR_OK;
    invar_error_clear(); // whoever looks for checkpoints in `folder` says that it has none
    (void)snprintf(out, INVAR_PATH_SIZE, "%s", folder);
    return INVAR_OK;
}
