/*
 * bisect_context.c - provides trials to the stages of a bisect: recorded, equal, or run now.
 *
 * A commit is run only if the state file has no trial of it and no tested commit has the same tree.
 * Every result gets its verdict and first diverging step here, is appended to the state file, and
 * is reported to the event callback.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bisect/bisect_context.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

bool invar_bisect_context_skipped(const invar_bisect_context *context, const char *commit)
{
    const char *const *skip = context->what->skip;

    while (skip && *skip && strcmp(*skip, commit) != 0)
        skip++;
    return skip && *skip;
}

const char *invar_bisect_context_verdict(const invar_bisect_context *context, const char *value)
{
    if (!value[0])
        return "skip";
    if (strcmp(value, context->good_value) == 0)
        return "good";
    return strcmp(value, context->bad_value) == 0 ? "bad" : "third";
}

void invar_bisect_set_verdict(invar_bisect_context *context, invar_bisect_verdict verdict,
                              const char *commit, const char *reason)
{
    context->result->verdict = verdict;
    (void)snprintf(context->result->commit, sizeof context->result->commit, "%.40s", commit);
    (void)snprintf(context->result->reason, sizeof context->result->reason, "%s", reason);
}

/* ---- recording ------------------------------------------------------------------------------- */

static void send_event(const invar_bisect_context *context, bool ended,
                       const invar_bisect_trial *trial)
{
    if (context->options->event)
        context->options->event(context->options->payload, ended, trial, context->left,
                                context->trials_left);
}

void invar_bisect_context_begin(const invar_bisect_context *context, const char *commit,
                                const char *role)
{
    invar_bisect_trial begun = {.role = role, .verdict = "", .source = "", .diverged_at = -1};

    (void)snprintf(begun.commit, sizeof begun.commit, "%s", commit);
    send_event(context, false, &begun);
}

/*
 * Returns the first step at which the trial differs from the good end, or -1 without two ledgers.
 */
static int64_t find_diverging_step(const invar_bisect_context *context,
                                   const invar_bisect_trial *trial)
{
    const invar_bisect_state_trial *good =
        invar_bisect_state_find(context->state, context->what->good, 0);
    int64_t step = -1, last[2];

    if (!good || !good->trial.ledger[0] || !trial->ledger[0])
        return -1;
    if (invar_criterion_first_divergence(&step, last, good->trial.ledger, trial->ledger) !=
        INVAR_OK) {
        invar_error_clear(); // the step is shown in reports only
        return -1;
    }
    return step;
}

/*
 * The values of the ends define "good" and "bad" for all other commits. The cost of the runs that
 * found the diverging step is added to the trial of its end.
 */
static void record_endpoint_values(invar_bisect_context *context, invar_bisect_trial *trial)
{
    int end = strcmp(trial->role, "good end") == 0  ? 0
              : strcmp(trial->role, "bad end") == 0 ? 1
                                                    : 2;
    char *const values[] = {context->good_value, context->bad_value};

    if (end == 2)
        return;
    if (invar_criterion_has_bits(&context->what->question))
        memcpy(values[end], trial->value, INVAR_VALUE_SIZE);
    trial->build_s += context->spent[end].build_s;
    trial->run_s += context->spent[end].run_s;
    if (context->spent[end].run_s > 0)
        trial->source = "ran";
}

invar_status invar_bisect_context_record(invar_bisect_context *context,
                                         invar_bisect_state_trial *result, const char *role)
{
    invar_status status;

    result->trial.role = role;
    record_endpoint_values(context, &result->trial);
    result->trial.verdict = invar_bisect_context_verdict(context, result->trial.value);
    result->trial.diverged_at = find_diverging_step(context, &result->trial);
    pthread_mutex_lock(&context->mutex);
    status = invar_bisect_state_add(context->state, result);
    pthread_mutex_unlock(&context->mutex);
    if (status == INVAR_OK)
        send_event(context, true, &result->trial);
    return status;
}

/* ---- testing --------------------------------------------------------------------------------- */

/*
 * Records the result of a tested commit with the same tree for this commit. *out is false if there
 * is no such commit.
 */
static invar_status copy_equal(bool *out, invar_bisect_context *context, const char *commit,
                               const char *role)
{
    char tree[INVAR_OID_SIZE];

    *out = false;
    INVAR_TRY(invar_repo_tree(tree, context->repo, commit));
    for (size_t i = 0; i < context->state->count; i++) {
        invar_bisect_state_trial copy = context->state->trials[i];
        if (copy.attempt != 0 || strcmp(copy.tree, tree) != 0)
            continue;
        memcpy(copy.trial.commit, commit, sizeof copy.trial.commit);
        copy.trial.source = "tree";
        copy.trial.build_s = copy.trial.run_s = 0;
        *out = true;
        return invar_bisect_context_record(context, &copy, role);
    }
    return INVAR_OK;
}

static invar_status record_result(void *payload, invar_trial_job *job)
{
    invar_bisect_context *context = payload;

    return invar_bisect_context_record(context, &job->result, context->role);
}

static bool is_useful(void *payload, const invar_trial_job *job)
{
    invar_bisect_context *context = payload;

    return !context->useful || context->useful(context->search, job);
}

static invar_status run_round(invar_bisect_context *context, invar_trial_job *jobs, size_t count)
{
    for (size_t i = 0; i < count; i++)
        invar_bisect_context_begin(context, jobs[i].commit, context->role);
    INVAR_TRY(
        invar_trial_batch(jobs, count, &context->trial_context, record_result, is_useful, context));
    context->stopped = context->options->stop && *context->options->stop;
    return INVAR_OK;
}

/* Creates jobs for the commits that have neither a trial nor a tested commit with an equal tree. */
static invar_status plan_round(invar_trial_job *jobs, size_t *used_out,
                               invar_bisect_context *context, const char (*commits)[INVAR_OID_SIZE],
                               size_t count, int64_t attempt, const char *role)
{
    *used_out = 0;
    for (size_t i = 0; i < count; i++) {
        bool copied = false;
        if (invar_bisect_state_find(context->state, commits[i], attempt))
            continue;
        if (attempt == 0)
            INVAR_TRY(copy_equal(&copied, context, commits[i], role));
        if (copied)
            continue;
        memcpy(jobs[*used_out].commit, commits[i], INVAR_OID_SIZE);
        jobs[(*used_out)++].attempt = attempt;
    }
    return INVAR_OK;
}

invar_status invar_bisect_context_test(invar_bisect_context *context,
                                       const char (*commits)[INVAR_OID_SIZE], size_t count,
                                       int64_t attempt, const char *role)
{
    size_t at_a_time = (size_t)context->options->jobs, planned;
    invar_trial_job *jobs;
    invar_status status;

    context->role = role;
    INVAR_TRY(INVAR_ALLOC(jobs, count, "trials"));
    status = plan_round(jobs, &planned, context, commits, count, attempt, role);
    for (size_t i = 0; status == INVAR_OK && i < planned && !context->stopped; i += at_a_time)
        status = run_round(context, jobs + i, planned - i < at_a_time ? planned - i : at_a_time);
    invar_free(jobs);
    return status;
}

invar_status invar_bisect_context_repeat(char who_out[INVAR_OID_SIZE],
                                         invar_bisect_context *context,
                                         const char (*commits)[INVAR_OID_SIZE], size_t count)
{
    who_out[0] = '\0';
    INVAR_TRY(invar_bisect_context_test(context, commits, count, 1, "again"));
    for (size_t i = 0; i < count && !context->stopped; i++) {
        const invar_bisect_state_trial *once =
            invar_bisect_state_find(context->state, commits[i], 0);
        const invar_bisect_state_trial *again =
            invar_bisect_state_find(context->state, commits[i], 1);
        if (strcmp(once->trial.value, again->trial.value) != 0) {
            memcpy(who_out, commits[i], INVAR_OID_SIZE);
            return INVAR_OK;
        }
    }
    return INVAR_OK;
}

/* ---- divergence ------------------------------------------------------------------------------ */

/* Loads the program of a commit that was run, normally from the cache. */
static invar_status load_built_program(invar_revision_build *out, invar_bisect_context *context,
                                       invar_worktree *slot, const char *commit)
{
    invar_build_plan how = invar_trial_build(&context->trial_context);

    return invar_workspace_program(out, context->workspace, slot, context->repo, commit, &how,
                                   context->options->stop);
}

static invar_status refine_divergence(invar_divergence *place, invar_bisect_context *context,
                                      const char *before, const char *after)
{
    invar_revision_build a, b;
    invar_worktree slot;
    invar_status status;

    INVAR_TRY(invar_worktree_acquire(&slot, context->workspace));
    status = load_built_program(&a, context, &slot, before);
    if (status == INVAR_OK)
        status = load_built_program(&b, context, &slot, after);
    if (status == INVAR_OK && a.state == INVAR_REVISION_BUILD_READY &&
        b.state == INVAR_REVISION_BUILD_READY) {
        invar_run_request x = invar_trial_request(&context->trial_context, &a, 0);
        invar_run_request y = invar_trial_request(&context->trial_context, &b, 0);
        x.stop = y.stop = context->options->stop;
        status = invar_divergence_refine(place, context->workspace, slot.lock, &x, &y);
    }
    invar_worktree_release(&slot);
    return status;
}

invar_status invar_bisect_context_find_divergence(invar_divergence *out,
                                                  invar_bisect_context *context, const char *before,
                                                  const char *after)
{
    const invar_bisect_state_trial *a = invar_bisect_state_find(context->state, before, 0);
    const invar_bisect_state_trial *b = invar_bisect_state_find(context->state, after, 0);

    *out = (invar_divergence){.step = -1, .layer = -1};
    // the cache may have been emptied since; the result is complete without a divergence
    if (!a || !b || !invar_path_exists(a->trial.ledger) || !invar_path_exists(b->trial.ledger))
        return INVAR_OK;
    INVAR_TRY(invar_divergence_compare(out, a->trial.ledger, b->trial.ledger, -1));
    if (!out->known || !context->what->recipe)
        return INVAR_OK;
    return refine_divergence(out, context, before, after);
}

invar_status invar_bisect_context_add_change(invar_bisect_context *context,
                                             const invar_bisect_change *change)
{
    invar_bisect_result *answer = context->result;
    int64_t count = (int64_t)answer->n_changes, capacity = count;

    INVAR_TRY(INVAR_GROW(answer->changes, capacity, count, count + 1, "a change"));
    answer->changes[answer->n_changes++] = *change;
    return INVAR_OK;
}
