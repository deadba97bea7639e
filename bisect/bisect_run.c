/*
 * bisect_run.c - runs a bisect from its case to its result: endpoints, merge base, search, report.
 *
 * invar_bisect_run resolves the revisions, opens workspace and state file, and runs the stages of
 * bisect_context.h in order. The recipe and the golden are copied into the folder of the bisect
 * first, so later changes of the user's files cannot mix two questions in one state file.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bisect/bisect.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/process/process.h"
#include "bisect/bisect_context.h"

#include "base/invar_banned.h"

#define MAX_GOLDEN (64u << 20)

/* ---- stages ---------------------------------------------------------------------------------- */

static bool find_known(void *payload, invar_bisect_state_trial *out, const char *binary)
{
    invar_bisect_context *context = payload;
    bool found = false;

    pthread_mutex_lock(&context->mutex);
    for (size_t i = 0; i < context->state->count && !found; i++) {
        const invar_bisect_state_trial *t = &context->state->trials[i];
        found = t->attempt == 0 && t->trial.value[0] && strcmp(t->binary, binary) == 0;
        if (found)
            *out = *t;
    }
    pthread_mutex_unlock(&context->mutex);
    return found;
}

/*
 * Copies the golden into the folder of the bisect once, so that later changes of the file have no
 * effect.
 */
static invar_status pin_golden(invar_bisect_context *context)
{
    size_t bytes;
    char *text;
    invar_status status;

    if (!context->what->golden)
        return INVAR_OK;
    INVAR_TRY(
        invar_path_join(context->golden, sizeof context->golden, context->state->folder, "golden"));
    if (invar_path_exists(context->golden))
        return INVAR_OK;
    INVAR_TRY(invar_file_read(&text, &bytes, context->what->golden, MAX_GOLDEN));
    status = invar_file_write(context->golden, text, bytes);
    invar_free(text);
    return status;
}

/* Writes the recipe text of the state file to a file in the folder of the bisect. */
static invar_status pin_recipe(invar_bisect_context *context)
{
    const char *text = context->state->recipe;

    if (!text)
        return INVAR_OK;
    INVAR_TRY(invar_path_join(context->recipe, sizeof context->recipe, context->state->folder,
                              "recipe.ini"));
    return invar_file_write(context->recipe, text, strlen(text));
}

static invar_status run_stages(invar_bisect_context *context)
{
    context->what = &context->state->what;
    INVAR_TRY(pin_recipe(context));
    INVAR_TRY(pin_golden(context));
    context->trial_context =
        (invar_trial_context){.what = context->what,
                              .question = context->what->question,
                              .workspace = context->workspace,
                              .folder = context->state->folder,
                              .recipe = context->recipe[0] ? context->recipe : NULL,
                              .threads = context->options->threads,
                              .stop = context->options->stop,
                              .find_known_result = find_known,
                              .payload = context};
    INVAR_TRY(invar_bisect_test_endpoints(context));
    if (!context->stopped && context->result->verdict == INVAR_BISECT_FOUND)
        INVAR_TRY(invar_bisect_test_merge_bases(context));
    if (!context->stopped && context->result->verdict == INVAR_BISECT_FOUND)
        INVAR_TRY(context->what->all_changes ? invar_bisect_context_changes(context)
                                             : invar_bisect_search_first_bad(context));
    if (context->stopped)
        invar_bisect_set_verdict(context, INVAR_BISECT_STOPPED, "", "");
    else
        INVAR_TRY(invar_bisect_state_finish(context->state));
    return INVAR_OK;
}

static void add_cost(invar_bisect_cost *out, const invar_bisect_trial *t)
{
    bool skipped = !t->value[0];

    out->search_trials += strcmp(t->role, "search") == 0;
    out->built += t->build_s > 0;
    out->from_tree += strcmp(t->source, "tree") == 0;
    out->from_program += strcmp(t->source, "program") == 0;
    out->ran += strcmp(t->source, "ran") == 0 && !skipped;
    out->skipped += skipped;
    out->build_s += t->build_s;
    out->run_s += t->run_s;
}

/*
 * Computes the position of each trial in the range, which reports draw as a picture of the search.
 */
static invar_status find_positions(invar_bisect_context *context)
{
    invar_bisect_result *a = context->result;
    const char *good[] = {a->good};
    invar_repo_range range = {.bad = a->bad,
                              .good = good,
                              .n_good = 1,
                              .first_parent =
                                  context->what->first_parent || context->what->all_changes};
    invar_history *history;

    if (a->range == 0) // the search did not begin
        return INVAR_OK;
    INVAR_TRY(invar_repo_history(&history, context->repo, &range));
    for (size_t i = 0; i < a->n_trials; i++)
        a->trials[i].position = invar_history_find(history, a->trials[i].commit) + 1;
    invar_history_free(history);
    return INVAR_OK;
}

/*
 * Ignores errors of the repository except INVAR_E_NOMEM. A shallow clone, for example, lacks
 * commits, and the report then omits their details.
 */
static invar_status ignore_repo_error(invar_status status)
{
    if (status == INVAR_OK || status == INVAR_E_NOMEM)
        return status;
    invar_error_clear();
    return INVAR_OK;
}

/* Adds what only reports need: the subjects of the tested commits and the patch of the culprit. */
static invar_status add_subjects_and_patch(invar_bisect_context *context)
{
    invar_bisect_result *a = context->result;

    for (size_t i = 0; i < a->n_trials; i++)
        INVAR_TRY(ignore_repo_error(
            invar_repo_subject(a->trials[i].subject, context->repo, a->trials[i].commit)));
    if (a->verdict != INVAR_BISECT_FOUND || a->n_changes == 0)
        return INVAR_OK;
    return ignore_repo_error(
        invar_repo_patch(&a->patch, &a->patch_cut, context->repo, a->changes->commit.id));
}

static invar_status fill_result(invar_bisect_context *context)
{
    invar_bisect_result *a = context->result;
    const invar_bisect_state *state = context->state;

    (void)snprintf(a->id, sizeof a->id, "%s", context->state->id);
    (void)snprintf(a->folder, sizeof a->folder, "%s", context->state->folder);
    (void)snprintf(a->repo, sizeof a->repo, "%s", context->what->repo);
    memcpy(a->good, context->what->good, INVAR_OID_SIZE);
    memcpy(a->bad, context->what->bad, INVAR_OID_SIZE);
    invar_criterion_describe(a->question, &context->trial_context.question);
    INVAR_TRY(INVAR_ALLOC(a->trials, state->count, "the trials"));
    while (a->n_trials < state->count) {
        const invar_bisect_trial *trial = &state->trials[a->n_trials].trial;
        a->trials[a->n_trials++] = *trial;
        a->has_third_value = a->has_third_value || strcmp(trial->verdict, "third") == 0;
        add_cost(&a->cost, trial);
    }
    INVAR_TRY(add_subjects_and_patch(context));
    return find_positions(context);
}

/* Resolves a revision. An unknown one is an error of the caller: INVAR_E_INVALID. */
static invar_status resolve_revision(char out[INVAR_OID_SIZE], invar_repo *repo,
                                     const char *revision)
{
    invar_status status = invar_repo_resolve(out, repo, revision);
    char message[INVAR_ERROR_MESSAGE_SIZE];

    if (status != INVAR_E_NOTFOUND)
        return status;
    memcpy(message, invar_error_last()->message, sizeof message);
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s", message);
}

static invar_status import_log(invar_bisect_context *context)
{
    invar_bisect_state *log;
    invar_status status;

    if (!context->options->log)
        return INVAR_OK;
    INVAR_TRY(invar_bisect_state_read(&log, context->options->log));
    status = invar_bisect_state_import(context->state, log);
    invar_bisect_state_close(log);
    return status;
}

/* Opens workspace and state of the case. `ids` receives the object ids of both ends. */
static invar_status open_all(invar_bisect_context *context, invar_bisect_case *what,
                             char (*ids)[INVAR_OID_SIZE])
{
    const char *outside[3] = {NULL}; // a bare repository has no work tree, and its entry stays NULL
    char bisects[INVAR_PATH_SIZE];

    INVAR_TRY(resolve_revision(ids[0], context->repo, what->good));
    INVAR_TRY(resolve_revision(ids[1], context->repo, what->bad));
    what->good = ids[0];
    what->bad = ids[1];
    what->repo = invar_repo_folder(context->repo);
    if (strcmp(ids[0], ids[1]) == 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "good and bad are the same commit, %.12s", ids[0]);
    outside[0] = what->repo;
    outside[1] = invar_repo_work_tree(context->repo);
    INVAR_TRY(
        invar_workspace_open(&context->workspace, context->options->work, what->repo, outside));
    INVAR_TRY(invar_path_join(bisects, sizeof bisects, invar_workspace_folder(context->workspace),
                              "bisects"));
    INVAR_TRY(invar_bisect_state_open(&context->state, bisects, what));
    return import_log(context);
}

/* Resolves the skipped revisions to object ids. The caller frees *list_out and *ids_out. */
static invar_status resolve_skips(const char ***list_out, char (**ids_out)[INVAR_OID_SIZE],
                                  invar_repo *repo, const char *const *skip)
{
    size_t count = 0;

    while (skip && skip[count])
        count++;
    INVAR_TRY(INVAR_ALLOC(*list_out, count + 1, "skipped revisions"));
    (*list_out)[count] = NULL;
    INVAR_TRY(INVAR_ALLOC_SIZED(*ids_out, count, INVAR_OID_SIZE, "skipped revisions"));
    for (size_t i = 0; i < count; i++) {
        INVAR_TRY(resolve_revision((*ids_out)[i], repo, skip[i]));
        (*list_out)[i] = (*ids_out)[i];
    }
    return INVAR_OK;
}

static invar_status run_case(invar_bisect_context *context, const invar_bisect_case *asked)
{
    invar_bisect_case what = *asked;
    char ids[2][INVAR_OID_SIZE], (*skipped)[INVAR_OID_SIZE] = NULL;
    const char **skip = NULL;
    invar_status status = invar_repo_open(&context->repo, asked->repo);

    if (status == INVAR_OK)
        status = resolve_skips(&skip, &skipped, context->repo, asked->skip);
    what.skip = skip;
    if (status == INVAR_OK)
        status = open_all(context, &what, ids);
    if (status == INVAR_OK)
        status = run_stages(context);
    if (status == INVAR_OK)
        status = fill_result(context);
    invar_free((void *)skip);
    invar_free(skipped);
    return status;
}

invar_status invar_bisect_run(invar_bisect_result **out, const invar_bisect_case *what,
                              const invar_bisect_options *options)
{
    invar_bisect_context context = {.options = options};
    const int64_t begin = invar_process_clock_ms();
    invar_status status;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC_ZEROED(context.result, 1, "an answer"));
    context.result->verdict = INVAR_BISECT_FOUND;
    context.result->first_diverging_step = -1;
    context.result->divergence = (invar_divergence){.step = -1, .layer = -1};
    pthread_mutex_init(&context.mutex, NULL);
    status = run_case(&context, what);
    context.result->cost.wall_s = (double)(invar_process_clock_ms() - begin) / 1000;
    invar_bisect_state_close(context.state);
    invar_workspace_close(context.workspace);
    invar_repo_close(context.repo);
    pthread_mutex_destroy(&context.mutex);
    if (status != INVAR_OK) {
        invar_bisect_result_free(context.result);
        return status;
    }
    *out = context.result;
    return INVAR_OK;
}

void invar_bisect_result_free(invar_bisect_result *result)
{
    if (!result)
        return;
    invar_free(result->changes);
    invar_free(result->suspects);
    invar_free(result->trials);
    invar_free(result->patch);
    invar_free(result);
}
