/*
 * archive.c - answers of bisect and ci as runs of a ledger.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/bisect/archive.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json/json.h"
#include "bisect/view/answer.h"
#include "bisect/view/ci.h"
#include "ledger/ledger.h"

#include "base/invar_banned.h"

static invar_status open_ledger(invar_ledger **out, const char *path)
{
    return invar_ledger_open(out, path, &(invar_ledger_options){.create = true, .writer = "invar"});
}

/* An element as an event; `message` is the member that says it in a word. */
static invar_status note(invar_ledger *ledger, const char *kind, const char *message,
                         const json_t *item)
{
    const char *said = json_string_value(json_object_get(item, message));
    invar_status status;
    size_t bytes;
    char *data;

    INVAR_TRY(invar_json_dump(&data, &bytes, item, JSON_COMPACT | JSON_REAL_PRECISION(17), kind));
    status = invar_ledger_note(
        ledger,
        &(invar_ledger_event){
            .step = -1, .level = "info", .kind = kind, .message = said ? said : "", .data = data});
    invar_free(data);
    return status;
}

static invar_status note_all(invar_ledger *ledger, const char *kind, const char *message,
                             const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        INVAR_TRY(note(ledger, kind, message, json_array_get(list, i)));
    return INVAR_OK;
}

/* ---- ci -------------------------------------------------------------------------------------- */

invar_status invar_archive_check(const char *path)
{
    invar_ledger *ledger;

    INVAR_TRY(open_ledger(&ledger, path));
    invar_ledger_close(ledger);
    return INVAR_OK;
}

/* With the hash of each golden: whether it is another than last time is what people ask. */
static invar_status add_goldens(json_t *cases, const invar_ci_result *results, size_t count)
{
    char hex[INVAR_DIGEST_HEX_SIZE];
    invar_digest digest;
    int64_t bytes;

    for (size_t i = 0; i < count; i++) {
        if (!invar_path_exists(results[i].item->golden))
            continue;
        INVAR_TRY(invar_file_hash(&digest, &bytes, results[i].item->golden));
        invar_digest_format(hex, &digest);
        if (json_object_set_new(json_array_get(cases, i), "golden_hash", json_string(hex)) != 0)
            return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for what is archived");
    }
    return INVAR_OK;
}

invar_status invar_archive_ci(const char *path, const invar_ci_result *results, size_t count,
                              int code)
{
    json_t *cases = invar_ci_json(results, count);
    invar_ledger *ledger = NULL;
    invar_status status = cases ? open_ledger(&ledger, path)
                                : INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for what is archived");

    if (status == INVAR_OK)
        status = add_goldens(cases, results, count);
    if (status == INVAR_OK)
        status = invar_ledger_begin(ledger, &(invar_ledger_run){.name = "ci", .kind = "ci"});
    if (status == INVAR_OK)
        status = note_all(ledger, "ci-case", "verdict", cases);
    if (status == INVAR_OK)
        status = invar_ledger_finish(ledger, code, "done");
    invar_ledger_close(ledger);
    json_decref(cases);
    return status;
}

/* ---- bisect ---------------------------------------------------------------------------------- */

static invar_status write_answer(const char *path, const invar_bisect_answer *a,
                                 const json_t *answer, int code)
{
    const invar_ledger_pair identity[] = {
        {"question", a->question}, {"good", a->good}, {"bad", a->bad}};
    invar_ledger *ledger = NULL;
    invar_status status = open_ledger(&ledger, path);

    if (status == INVAR_OK)
        status = invar_ledger_begin(
            ledger, &(invar_ledger_run){
                        .name = a->id, .kind = "bisect", .identity = identity, .n_identity = 3});
    if (status == INVAR_OK)
        status = note_all(ledger, "bisect-trial", "verdict", json_object_get(answer, "trials"));
    if (status == INVAR_OK)
        status = note_all(ledger, "bisect-change", "subject", json_object_get(answer, "changes"));
    if (status == INVAR_OK)
        status = invar_ledger_finish(ledger, code, "done");
    invar_ledger_close(ledger);
    return status;
}

/* Made beside its place, so that a ledger with the name is a whole one. */
invar_status invar_archive_answer(const invar_bisect_answer *a, int code)
{
    char folder[INVAR_PATH_SIZE], fresh[INVAR_PATH_SIZE], path[INVAR_PATH_SIZE];
    json_t *answer = NULL;
    invar_status status;

    INVAR_TRY(invar_path_join(folder, sizeof folder, a->folder, "new"));
    INVAR_TRY(invar_path_join(fresh, sizeof fresh, folder, "answer.db"));
    INVAR_TRY(invar_path_join(path, sizeof path, a->folder, "answer.db"));
    INVAR_TRY(invar_folder_remove(folder));
    INVAR_TRY(invar_folder_make(folder));
    answer = invar_answer_object(a);
    status = answer ? write_answer(fresh, a, answer, code)
                    : INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for the answer as a ledger");
    json_decref(answer);
    INVAR_TRY(status);
    if (rename(fresh, path) != 0)
        return INVAR_FAIL(INVAR_E_IO, errno, "%.1000s cannot get its name: %s", fresh,
                          strerror(errno));
    return invar_folder_remove(folder);
}
