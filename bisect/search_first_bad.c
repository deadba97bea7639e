/*
 * search_first_bad.c - searches for the first bad commit and confirms it.
 *
 * The order of trials comes from search/history.h, which tests the commits that git bisect would
 * test. A culprit is confirmed by testing all its parents and by running culprit and parents twice.
 * If a parent turns out to be bad, the search starts again with that parent as the bad end.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "bisect/bisect_context.h"

#include "base/invar_banned.h"

#define SHOWN_SUSPECTS 64

/* ---- the search ------------------------------------------------------------------------------ */

typedef struct first_bad_search {
    invar_bisect_context *driver;
    const invar_history *history;
    invar_search *search;
} first_bad_search;

static invar_status add_result(first_bad_search *h, const invar_bisect_trial *trial)
{
    int32_t commit = invar_history_find(h->history, trial->commit);
    const char *verdict = invar_bisect_context_verdict(h->driver, trial->value);
    invar_commit_mark as = verdict[0] == 'g'   ? INVAR_COMMIT_MARK_GOOD
                           : verdict[0] == 's' ? INVAR_COMMIT_MARK_SKIP
                                               : INVAR_COMMIT_MARK_BAD;

    if (commit < 0 || !invar_search_useful(h->search, commit))
        return INVAR_OK; // the search knows the status of this commit already
    return invar_search_add_result(h->search, commit, as);
}

/* Returns true if the running trial can still change the search. Called after each ended trial. */
static bool still_useful(void *payload, const invar_trial_job *job)
{
    first_bad_search *h = payload;
    const invar_bisect_state *state = h->driver->state;
    int32_t commit = invar_history_find(h->history, job->commit);

    if (state->count && add_result(h, &state->trials[state->count - 1].trial) != INVAR_OK)
        invar_error_clear(); // add_known_results adds all results again after the round
    return commit < 0 || invar_search_useful(h->search, commit);
}

static invar_status add_known_results(first_bad_search *h)
{
    const invar_bisect_state *state = h->driver->state;

    for (size_t i = 0; i < state->count; i++)
        if (state->trials[i].attempt == 0)
            INVAR_TRY(add_result(h, &state->trials[i].trial));
    return INVAR_OK;
}

static invar_status mark_skips(first_bad_search *h)
{
    const char *const *skip = h->driver->what->skip;

    for (; skip && *skip; skip++) {
        int32_t commit = invar_history_find(h->history, *skip);
        if (commit >= 0 && commit != h->history->count - 1)
            INVAR_TRY(invar_search_mark(h->search, commit, INVAR_COMMIT_MARK_SKIP));
    }
    return INVAR_OK;
}

static invar_status test_until_decided(invar_search_next *next, first_bad_search *h)
{
    invar_bisect_context *context = h->driver;

    INVAR_TRY(mark_skips(h));
    for (;;) {
        char commits[INVAR_SEARCH_JOBS][INVAR_OID_SIZE];
        INVAR_TRY(add_known_results(h));
        INVAR_TRY(invar_search_next_commits(next, h->search, (int32_t)context->options->jobs));
        context->left = next->candidates;
        context->trials_left = next->trials;
        if (next->state != INVAR_SEARCH_TEST || context->stopped)
            return INVAR_OK;
        for (int32_t i = 0; i < next->count; i++)
            memcpy(commits[i], h->history->commits[next->commits[i]].id, INVAR_OID_SIZE);
        context->useful = still_useful;
        context->search = h;
        INVAR_TRY(invar_bisect_context_test(context, (const char(*)[INVAR_OID_SIZE])commits,
                                            (size_t)next->count, 0, "search"));
        context->useful = NULL;
    }
}

static invar_status list_suspects(first_bad_search *h)
{
    invar_bisect_result *a = h->driver->result;
    int32_t *suspects, count;
    invar_status status;

    INVAR_TRY(invar_search_suspects(&suspects, &count, h->search));
    a->all_suspects = count;
    status = INVAR_ALLOC(a->suspects, SHOWN_SUSPECTS, "suspects");
    // the newest ones are shown, because the last of them is the first known bad commit
    for (int32_t i = count > SHOWN_SUSPECTS ? count - SHOWN_SUSPECTS : 0;
         i < count && status == INVAR_OK; i++)
        status = invar_repo_describe(&a->suspects[a->n_suspects++], h->driver->repo,
                                     h->history->commits[suspects[i]].id);
    invar_free(suspects);
    invar_bisect_set_verdict(h->driver, INVAR_BISECT_SUSPECTS, "",
                             "only commits that cannot be tested are left");
    return status;
}

/* ---- the result ------------------------------------------------------------------------------ */

/*
 * Tests the parents of the culprit, which the search may have skipped or only assumed to be good.
 * *again_out is a parent that is bad: good and bad alternate in the history, and an earlier culprit
 * exists.
 */
static invar_status test_parents(char again_out[INVAR_OID_SIZE], invar_bisect_context *context,
                                 const invar_repo_commit *culprit)
{
    size_t parents = context->what->first_parent && culprit->n_parents ? 1 : culprit->n_parents;
    char wanted[INVAR_REPO_PARENTS][INVAR_OID_SIZE];
    size_t count = 0;

    again_out[0] = '\0';
    context->result->confirmed = true;
    if (parents > INVAR_REPO_PARENTS)
        parents = INVAR_REPO_PARENTS;
    for (size_t i = 0; i < parents; i++)
        if (!invar_bisect_context_skipped(context, culprit->parents[i]))
            memcpy(wanted[count++], culprit->parents[i], INVAR_OID_SIZE);
    INVAR_TRY(invar_bisect_context_test(context, (const char(*)[INVAR_OID_SIZE])wanted, count, 0,
                                        "again"));
    for (size_t i = 0; i < parents && !context->stopped; i++) {
        const invar_bisect_state_trial *t =
            invar_bisect_state_find(context->state, culprit->parents[i], 0);
        const char *verdict = t ? invar_bisect_context_verdict(context, t->trial.value) : "skip";
        if (strcmp(verdict, "good") == 0)
            continue;
        context->result->confirmed = false;
        if (strcmp(verdict, "skip") == 0)
            (void)snprintf(context->result->reason, sizeof context->result->reason,
                           "its parent %.12s cannot be tested", culprit->parents[i]);
        else if (context->what->paths)
            (void)snprintf(context->result->reason, sizeof context->result->reason,
                           "its parent %.12s is bad as well: the cause touches none of the paths",
                           culprit->parents[i]);
        else
            memcpy(again_out, culprit->parents[i], INVAR_OID_SIZE);
    }
    return INVAR_OK;
}

static invar_status confirm_culprit(char again_out[INVAR_OID_SIZE], invar_bisect_context *context,
                                    const invar_repo_commit *culprit)
{
    char commits[1 + INVAR_REPO_PARENTS][INVAR_OID_SIZE], who[INVAR_OID_SIZE];
    size_t count = 1;

    INVAR_TRY(test_parents(again_out, context, culprit));
    if (context->stopped || again_out[0])
        return INVAR_OK;
    memcpy(commits[0], culprit->id, INVAR_OID_SIZE);
    for (size_t i = 0; i < culprit->n_parents && i < INVAR_REPO_PARENTS; i++)
        if (invar_bisect_state_find(context->state, culprit->parents[i], 0))
            memcpy(commits[count++], culprit->parents[i], INVAR_OID_SIZE);
    INVAR_TRY(
        invar_bisect_context_repeat(who, context, (const char(*)[INVAR_OID_SIZE])commits, count));
    if (who[0])
        invar_bisect_set_verdict(context, INVAR_BISECT_NONDETERMINISTIC, who,
                                 "run twice, it gave two answers");
    return INVAR_OK;
}

static invar_status report_culprit(char again_out[INVAR_OID_SIZE], first_bad_search *h,
                                   int32_t index)
{
    invar_bisect_context *context = h->driver;
    const invar_bisect_state_trial *t;
    invar_bisect_change change = {.depth = 0};
    const char *culprit = h->history->commits[index].id;

    INVAR_TRY(invar_repo_describe(&change.commit, context->repo, culprit));
    INVAR_TRY(confirm_culprit(again_out, context, &change.commit));
    if (context->stopped || again_out[0] || context->result->verdict != INVAR_BISECT_FOUND)
        return INVAR_OK;
    if (change.commit.n_parents) {
        memcpy(change.parent, change.commit.parents[0], INVAR_OID_SIZE);
        INVAR_TRY(invar_bisect_context_find_divergence(&context->result->divergence, context,
                                                       change.parent, culprit));
    }
    t = invar_bisect_state_find(context->state, culprit, 0);
    (void)snprintf(change.before, sizeof change.before, "%s", context->good_value);
    (void)snprintf(change.after, sizeof change.after, "%s", t->trial.value);
    change.merge =
        change.commit.n_parents > 1 && !context->what->first_parent && context->result->confirmed;
    change.divergence = context->result->divergence;
    return invar_bisect_context_add_change(context, &change);
}

static invar_status search_range(char again_out[INVAR_OID_SIZE], invar_bisect_context *context,
                                 const char *bad)
{
    const char *good[] = {context->what->good};
    invar_repo_range range = {.bad = bad,
                              .good = good,
                              .n_good = 1,
                              .first_parent = context->what->first_parent,
                              .paths = context->what->paths};
    invar_history *history = NULL;
    invar_search_next next = {.count = 0};
    first_bad_search h = {.driver = context};
    invar_status status;

    again_out[0] = '\0';
    while (range.paths && range.paths[range.n_paths])
        range.n_paths++;
    INVAR_TRY(invar_repo_history(&history, context->repo, &range));
    h.history = history;
    if (!context->result->range)
        context->result->range = history->count;
    status = invar_search_new(&h.search, history);
    if (status == INVAR_OK)
        status = test_until_decided(&next, &h);
    if (status == INVAR_OK && !context->stopped)
        status = next.state == INVAR_SEARCH_FOUND ? report_culprit(again_out, &h, next.commits[0])
                                                  : list_suspects(&h);
    invar_search_free(h.search);
    invar_history_free(history);
    return status;
}

invar_status invar_bisect_search_first_bad(invar_bisect_context *context)
{
    char bad[INVAR_OID_SIZE], again[INVAR_OID_SIZE];

    memcpy(bad, context->what->bad, sizeof bad);
    for (;;) {
        bool inside;
        INVAR_TRY(search_range(again, context, bad));
        if (!again[0])
            return INVAR_OK;
        INVAR_TRY(invar_repo_is_ancestor(&inside, context->repo, again, context->what->good));
        if (inside) {
            invar_bisect_set_verdict(
                context, INVAR_BISECT_FIXED, again,
                "this ancestor of the good end is bad: the good end has a fix that is lost again");
            return INVAR_OK;
        }
        memcpy(bad, again, sizeof bad);
    }
}
