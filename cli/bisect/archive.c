/*
 * archive.c - stores results of bisect and ci in a ledger, as runs without steps.
 *
 * Each case, trial or change is an event whose data is its JSON object. Recipes of CI cases are
 * named relative to the work tree, so that the history of a case does not depend on where the
 * repository is.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _XOPEN_SOURCE 700 // realpath

#include "cli/bisect/archive.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json/json.h"
#include "base/json/result.h"
#include "bisect/git/repo.h"
#include "bisect/view/bisect_report.h"
#include "bisect/view/ci.h"
#include "ledger/ledger.h"

#include "base/invar_banned.h"

static invar_status open_ledger(invar_ledger **out, const char *path)
{
    return invar_ledger_open(out, path, &(invar_ledger_options){.create = true, .writer = "invar"});
}

/* Logs an object as an event. `message` is the member that becomes the text of the event. */
static invar_status log_object(invar_ledger *ledger, const char *kind, const char *message,
                               const json_t *item)
{
    const char *said = json_string_value(json_object_get(item, message));
    invar_status status;
    size_t bytes;
    char *data;

    INVAR_TRY(invar_json_dump(&data, &bytes, item, JSON_COMPACT | JSON_REAL_PRECISION(17), kind));
    status = invar_ledger_log_event(
        ledger,
        &(invar_ledger_event){
            .step = -1, .level = "info", .kind = kind, .message = said ? said : "", .data = data});
    invar_free(data);
    return status;
}

/* Objects that become events of a run: `message` is the member with their text. */
typedef struct event_list {
    const char *kind, *message;
    const json_t *objects;
} event_list;

/* Appends a run without steps to the ledger, which is created if it does not exist. */
static invar_status write_run(const char *path, const invar_ledger_run *run,
                              const event_list *lists, size_t count, int code)
{
    invar_ledger *ledger = NULL;
    invar_status status = open_ledger(&ledger, path);

    if (status == INVAR_OK)
        status = invar_ledger_begin(ledger, run);
    for (size_t k = 0; k < count; k++)
        for (size_t i = 0; i < json_array_size(lists[k].objects) && status == INVAR_OK; i++)
            status = log_object(ledger, lists[k].kind, lists[k].message,
                                json_array_get(lists[k].objects, i));
    if (status == INVAR_OK)
        status = invar_ledger_finish(ledger, code, "done");
    invar_ledger_close(ledger);
    return status;
}

/* ---- ci -------------------------------------------------------------------------------------- */

invar_status invar_archive_check(const char *path)
{
    invar_ledger *ledger;

    INVAR_TRY(open_ledger(&ledger, path));
    invar_ledger_close(ledger);
    return INVAR_OK;
}

/*
 * Finds the path of the recipe relative to its work tree. Without a work tree it is the path as
 * given.
 */
static void find_recipe(char out[INVAR_PATH_SIZE], const invar_ci_case *item)
{
    char folder[INVAR_PATH_SIZE], whole[PATH_MAX];
    invar_repo *repo = NULL;
    const char *tree;
    size_t bytes;

    (void)snprintf(out, INVAR_PATH_SIZE, "%s", item->recipe);
    if (invar_path_folder(folder, item->recipe) != INVAR_OK || !realpath(item->recipe, whole) ||
        invar_repo_open(&repo, folder) != INVAR_OK) {
        invar_error_clear();
        return;
    }
    tree = invar_repo_work_tree(repo);
    bytes = tree ? invar_path_length(tree) : 0;
    if (tree && strncmp(whole, tree, bytes) == 0 && whole[bytes] == '/')
        (void)snprintf(out, INVAR_PATH_SIZE, "%s", whole + bytes + 1);
    invar_repo_close(repo);
}

/*
 * Adds the recipe and the hash of the golden, which tells whether the golden changed since the last
 * check. The recipe is needed because recipes in two folders may have the same name.
 */
static invar_status add_golden(json_t *item, const invar_ci_case *of)
{
    char hex[INVAR_DIGEST_HEX_SIZE], recipe[INVAR_PATH_SIZE];
    invar_digest digest;
    int64_t bytes;

    find_recipe(recipe, of);
    if (json_object_set_new(item, "recipe", invar_result_line(recipe)) != 0)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for what is archived");
    if (!invar_path_exists(of->golden))
        return INVAR_OK;
    INVAR_TRY(invar_file_hash(&digest, &bytes, of->golden));
    invar_digest_format(hex, &digest);
    return json_object_set_new(item, "golden_hash", json_string(hex)) == 0
               ? INVAR_OK
               : INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for what is archived");
}

invar_status invar_archive_ci(const char *path, const invar_ci_result *results, size_t count,
                              int code)
{
    json_t *cases = invar_ci_json(results, count);
    const event_list list = {"ci-case", "verdict", cases};
    invar_status status =
        cases ? INVAR_OK : INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for what is archived");

    for (size_t i = 0; i < count && status == INVAR_OK; i++)
        status = add_golden(json_array_get(cases, i), results[i].item);
    if (status == INVAR_OK)
        status = write_run(path, &(invar_ledger_run){.name = "ci", .kind = "ci"}, &list, 1, code);
    json_decref(cases);
    return status;
}

/* ---- bisect ---------------------------------------------------------------------------------- */

static invar_status write_answer(const char *path, const invar_bisect_result *a,
                                 const json_t *answer, int code)
{
    const invar_ledger_pair identity[] = {
        {"question", a->question}, {"good", a->good}, {"bad", a->bad}};
    const event_list lists[] = {{"bisect-trial", "verdict", json_object_get(answer, "trials")},
                                {"bisect-change", "subject", json_object_get(answer, "changes")}};

    return write_run(
        path,
        &(invar_ledger_run){.name = a->id, .kind = "bisect", .identity = identity, .n_identity = 3},
        lists, 2, code);
}

/*
 * Writes answer.db. It is built under a temporary name, so that an existing answer.db is complete.
 */
invar_status invar_archive_answer(const invar_bisect_result *a, int code)
{
    char folder[INVAR_PATH_SIZE], fresh[INVAR_PATH_SIZE], path[INVAR_PATH_SIZE];
    json_t *answer = NULL;
    invar_status status;

    INVAR_TRY(invar_path_join(folder, sizeof folder, a->folder, "new"));
    INVAR_TRY(invar_path_join(fresh, sizeof fresh, folder, "answer.db"));
    INVAR_TRY(invar_path_join(path, sizeof path, a->folder, "answer.db"));
    INVAR_TRY(invar_held_folder_remove(folder));
    INVAR_TRY(invar_held_folder_make(folder));
    answer = invar_bisect_report_object(a);
    status = answer ? write_answer(fresh, a, answer, code)
                    : INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for the answer as a ledger");
    json_decref(answer);
    INVAR_TRY(status);
    if (rename(fresh, path) != 0)
        return INVAR_FAIL(INVAR_E_IO, errno, "%.1000s cannot get its name: %s", fresh,
                          strerror(errno));
    return invar_held_folder_remove(folder);
}
