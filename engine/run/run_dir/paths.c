/*
 * paths.c - finds the paths of a run, and the checkpoints of a recorded run.
 *
 * The recipe and the environment name the folders of a new run. The checkpoints of a recorded run
 * are found by the paths and hashes in its ledger, since the folder may have been moved and a
 * relative path may lead to checkpoints of another run.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/run_dir/paths.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "engine/config/config.h"
#include "engine/files/checkpoint/checkpoint.h"

#include "base/invar_banned.h"

/* Copies the last part of a path. Returns false if it is not a valid name in a ledger. */
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

/* Copies the key `name`; without it, the file name of the recipe, or "run". */
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

/*
 * Sets the name of the run: that of its folder, if the recipe has no name or only --run is on the
 * command line; else the recipe's name.
 */
static void name_run(invar_run_paths *out, const invar_config *config)
{
    invar_recipe_entry name, run;
    bool moved;

    invar_recipe_entry_get(&name, config->recipe, INVAR_KEY_NAME);
    invar_recipe_entry_get(&run, config->recipe, INVAR_KEY_RUN);
    moved = run.source == INVAR_RECIPE_SOURCE_FLAG && name.source != INVAR_RECIPE_SOURCE_FLAG;
    if (config->run[0] && (moved || !config->name[0]) && name_folder(out->name, config->run))
        return;
    memcpy(out->name, out->recipe_name, sizeof out->name);
}

/* Fails if the name cannot be that of a folder below runs/. */
static invar_status check_name(const char *name)
{
    char quoted[INVAR_TEXT_QUOTE_SIZE];

    if (!strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
        return INVAR_OK;
    invar_text_quote(quoted, sizeof quoted, name, strlen(name));
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "name: \"%s\" is no name of a folder; a path is given with --run", quoted);
}

/* Copies the path `given`; if it is empty, makes FOLDER/NAME. */
static invar_status choose_path(char out[INVAR_PATH_SIZE], const char *given, const char *folder,
                                const char *name)
{
    if (!given[0])
        return invar_path_join(out, INVAR_PATH_SIZE, folder, name);
    if (snprintf(out, INVAR_PATH_SIZE, "%s", given) >= INVAR_PATH_SIZE)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "the path \"%.1000s...\" is too long", given);
    return INVAR_OK;
}

invar_status invar_run_paths_find(invar_run_paths *out, const invar_config *config,
                                  const char *path)
{
    const char *save = config->save;
    const char *usual = getenv("INVAR_SAVE");

    if (!save[0] && usual)
        save = usual;
    out->default_save_dir = !save[0];
    if (!config->run[0]) // otherwise the name is only a name
        INVAR_TRY(check_name(config->name));
    name_recipe(out->recipe_name, config->name, path);
    name_run(out, config);
    INVAR_TRY(choose_path(out->run, config->run, "runs", out->name));
    INVAR_TRY(choose_path(out->ledger, config->ledger, out->run, "ledger.db"));
    out->save[0] = '\0';
    if (strcmp(save, "none") == 0)
        return INVAR_OK;
    return choose_path(out->save, save, out->run, INVAR_RUN_PATHS_CHECKPOINTS);
}

/* ---- whether a run can write there ----------------------------------------------------------- */

static invar_status check_folder(const char *path, const char *key)
{
    return path[0] ? invar_error_of_key(invar_path_check_folder(path), key) : INVAR_OK;
}

static invar_status check_file(const invar_run_paths *at, invar_config_text file)
{
    if (!file.text[0] ||
        invar_path_exists(file.text)) // an existing file is checked when it is replaced
        return INVAR_OK;
    return invar_error_of_key(invar_path_check_writable_in(file.text, at->run),
                              invar_config_schema()->keys[file.key].name);
}

invar_status invar_run_paths_check(const invar_run_paths *paths, const invar_config *config,
                                   bool fresh)
{
    // in a path with {rollout_id}, only the folders above that part can exist
    const invar_config_text folders[] = {
        {INVAR_KEY_TENSORBOARD_DIR, config->tensorboard_dir},
        {INVAR_KEY_SAVE_HF, config->save_hf},
        {INVAR_KEY_SAVE_DEBUG_ROLLOUT_DATA, config->save_debug_rollout_data},
        {INVAR_KEY_DEBUG_DUMP_DIR, config->debug_dump_dir}};

    INVAR_TRY(check_folder(paths->run, "run"));
    if (!fresh)
        INVAR_TRY(invar_ledger_check_output(paths->ledger, paths->run));
    INVAR_TRY(check_folder(paths->save, "save"));
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        INVAR_TRY(check_folder(folders[i].text, invar_config_schema()->keys[folders[i].key].name));
    INVAR_TRY(check_file(paths, (invar_config_text){INVAR_KEY_TRACE, config->trace}));
    return check_file(paths,
                      (invar_config_text){INVAR_KEY_PROMETHEUS_FILE, config->prometheus_file});
}

/* ---- the checkpoints of a run ---------------------------------------------------------------- */

/* State of a search for the newest checkpoint that the ledger names and that exists. */
typedef struct checkpoint_search {
    const char *inside;           /* RUN/checkpoints */
    char newest[INVAR_PATH_SIZE]; /* newest path in the ledger; empty without one */
    char found[INVAR_PATH_SIZE];  /* folder of checkpoints; empty if not found */
    bool older;                   /* `found` lacks the newest */
} checkpoint_search;

/* Searches for one checkpoint in the run folder, then at its path in the ledger. */
static invar_status search_checkpoint(checkpoint_search *s, const char *path,
                                      const invar_digest *hash)
{
    char folder[INVAR_PATH_SIZE], moved[INVAR_PATH_SIZE];
    const char *name = strrchr(path, '/');

    if (!s->newest[0])
        memcpy(s->newest, path, strlen(path) + 1);
    INVAR_TRY(invar_path_folder(folder, path));
    INVAR_TRY(invar_path_join(moved, sizeof moved, s->inside, name ? name + 1 : path));
    if (invar_checkpoint_has_hash(moved, hash))
        memcpy(s->found, s->inside, strlen(s->inside) + 1);
    else if (invar_checkpoint_has_hash(path, hash))
        memcpy(s->found, folder, strlen(folder) + 1);
    s->older = strcmp(path, s->newest) != 0;
    return INVAR_OK;
}

/* Row callback; columns are path and hash, newest first. */
static invar_status read_checkpoint_row(void *payload, const char *const *columns,
                                        const invar_ledger_value *values, int count)
{
    char path[INVAR_PATH_SIZE];
    checkpoint_search *s = payload;
    invar_digest hash;

    (void)columns;
    if (!values || count != 2 || s->found[0] || values[0].type != INVAR_LEDGER_TYPE_TEXT ||
        values[0].bytes == 0 || values[0].bytes >= sizeof path ||
        values[1].type != INVAR_LEDGER_TYPE_BLOB || values[1].bytes != sizeof hash.bytes)
        return INVAR_OK;
    memcpy(path, values[0].data, values[0].bytes);
    path[values[0].bytes] = '\0';
    memcpy(hash.bytes, values[1].data, sizeof hash.bytes);
    return search_checkpoint(s, path, &hash);
}

/*
 * Searches all checkpoints of the ledger at `path`; of one step if `step` is not -1. *uuid_out is
 * the id of its run.
 */
static invar_status search_ledger(char uuid_out[INVAR_LEDGER_UUID_SIZE], checkpoint_search *s,
                                  const char *path, int64_t step)
{
    invar_ledger_argument arguments[] = {
        {"run", {.type = INVAR_LEDGER_TYPE_INT}},
        {"step", {.type = INVAR_LEDGER_TYPE_INT, .integer = step}}};
    const invar_ledger_select_request request = {
        .sql = "SELECT path, hash FROM checkpoint WHERE run = :run AND state = 'complete'"
               " AND (:step < 0 OR step = :step) ORDER BY entry DESC",
        .arguments = arguments,
        .n_arguments = 2,
        .row = read_checkpoint_row,
        .payload = s};
    invar_ledger_summary summary;
    invar_ledger *ledger;
    invar_status status;

    INVAR_TRY(invar_ledger_open(&ledger, path, &(invar_ledger_options){0}));
    status = invar_ledger_find(&summary, ledger, NULL);
    if (status == INVAR_OK) {
        arguments[0].value.integer = summary.run;
        memcpy(uuid_out, summary.uuid, sizeof summary.uuid);
        status = invar_ledger_select(ledger, &request);
    }
    invar_ledger_close(ledger);
    return status;
}

/* True if the newest readable checkpoint in `save` is of the run. */
static bool is_folder_of_run(const char *save, const char *uuid)
{
    invar_checkpoint_owner owner = {.uuid = ""};
    bool owned = false;

    if (invar_path_exists(save) && invar_checkpoint_owner_find(&owned, &owner, save) != INVAR_OK)
        invar_error_clear();
    return owned && strcmp(owner.uuid, uuid) == 0;
}

/*
 * Falls back to the run's own checkpoints if none has a hash that the ledger names: the ledger may
 * be an older copy.
 */
static invar_status use_own_checkpoints(checkpoint_search *s, const char *uuid)
{
    char folder[INVAR_PATH_SIZE], shown[INVAR_PATH_SHOWN_SIZE];

    INVAR_TRY(invar_path_folder(folder, s->newest));
    s->older = false;
    if (is_folder_of_run(s->inside, uuid) || is_folder_of_run(folder, uuid)) {
        const char *own = is_folder_of_run(s->inside, uuid) ? s->inside : folder;

        memcpy(s->found, own, strlen(own) + 1);
        return INVAR_OK;
    }
    invar_path_show(shown, folder);
    return INVAR_FAIL(INVAR_E_STATE, 0,
                      "the checkpoints of run %.8s were saved in %s, and here that folder %s; work "
                      "in the folder that the run was started in, or name the folder of its "
                      "checkpoints",
                      uuid, shown,
                      invar_path_exists(folder) ? "has no checkpoint of this run"
                                                : "does not exist");
}

static void warn_of_older(char warning[INVAR_RUN_PATHS_WARNING_SIZE], const checkpoint_search *s)
{
    char newest[INVAR_PATH_SHOWN_SIZE], shown[INVAR_PATH_SHOWN_SIZE];

    invar_path_show(newest, s->newest);
    invar_path_show(shown, s->found);
    (void)snprintf(warning, INVAR_RUN_PATHS_WARNING_SIZE,
                   "warning: the newest checkpoint of the run was saved as %s, and is not there; "
                   "an older one is taken, of %s",
                   newest, shown);
}

invar_status invar_run_paths_checkpoints(char out[INVAR_PATH_SIZE],
                                         char warning[INVAR_RUN_PATHS_WARNING_SIZE],
                                         const char *folder, int64_t step)
{
    char ledger[INVAR_PATH_SIZE], inside[INVAR_PATH_SIZE], uuid[INVAR_LEDGER_UUID_SIZE] = "";
    checkpoint_search s = {.inside = inside};

    warning[0] = '\0';
    INVAR_TRY(invar_path_join(inside, sizeof inside, folder, INVAR_RUN_PATHS_CHECKPOINTS));
    INVAR_TRY(invar_path_join(ledger, sizeof ledger, folder, "ledger.db"));
    if (invar_path_exists(ledger) && search_ledger(uuid, &s, ledger, step) != INVAR_OK)
        invar_error_clear(); // without a readable ledger, only the folder decides
    if (s.newest[0] && !s.found[0])
        INVAR_TRY(use_own_checkpoints(&s, uuid));
    if (s.found[0] && s.older)
        warn_of_older(warning, &s);
    if (!s.found[0])
        (void)snprintf(s.found, sizeof s.found, "%s", invar_path_exists(inside) ? inside : folder);
    memcpy(out, s.found, sizeof s.found);
    return INVAR_OK;
}
