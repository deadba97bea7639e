/*
 * changes.c - finds every change of the value between two commits, not only the first.
 *
 * The first parents from bad to good form a line. Two tested commits of the line with different
 * values have a change between them, so the commit in the middle is tested, until every change lies
 * between a commit and its parent: about k log n trials for k changes. Nothing is tested between
 * commits with equal values, so a change that was reverted exactly is not found. If a change is a
 * merge, the lines of its other parents, down to their merge base, are searched the same way.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "bisect/bisect_context.h"

#include "base/invar_banned.h"

#define MAX_DEPTH 8 /* nesting depth of merges that are searched */

/* A line of commits, oldest first. Index 0 is the parent of the oldest commit in the range. */
typedef struct commit_line {
    char (*commits)[INVAR_OID_SIZE];
    int32_t count;
} commit_line;

/*
 * Returns the value of a tested commit, or NULL if it was not tested yet. The text is valid until
 * the next trial is recorded.
 */
static const char *value_of(const invar_bisect_context *context, const char *commit)
{
    const invar_bisect_state_trial *t = invar_bisect_state_find(context->state, commit, 0);

    return t ? t->trial.value : NULL;
}

static invar_status read_line(commit_line *out, invar_bisect_context *context, const char *good,
                              const char *bad)
{
    invar_repo_range range = {.bad = bad, .good = &good, .n_good = 1, .first_parent = true};
    invar_history *history;
    invar_status status;

    *out = (commit_line){.count = 0};
    INVAR_TRY(invar_repo_history(&history, context->repo, &range));
    status = INVAR_ALLOC_SIZED(out->commits, (size_t)history->count + 1, INVAR_OID_SIZE,
                               "a line of commits");
    if (status == INVAR_OK) {
        memcpy(out->commits[out->count++], good, INVAR_OID_SIZE);
        for (int32_t i = 0; i < history->count; i++)
            memcpy(out->commits[out->count++], history->commits[i].id, INVAR_OID_SIZE);
    }
    invar_history_free(history);
    return status;
}

/* ---- the trials ------------------------------------------------------------------------------ */

/*
 * Returns the untested commit nearest to the middle between `low` and `high`, or -1 if all are
 * tested.
 */
static int32_t pick_middle_commit(const invar_bisect_context *context, const commit_line *l,
                                  int32_t low, int32_t high)
{
    int32_t best = -1, middle = low + (high - low) / 2;

    for (int32_t i = low + 1; i < high; i++) {
        int32_t now = i > middle ? i - middle : middle - i;
        int32_t then = best > middle ? best - middle : middle - best;
        if (!value_of(context, l->commits[i]) && (best < 0 || now < then))
            best = i;
    }
    return best;
}

/* Returns the next commit after `from` that has a value, or -1 if there is no such commit. */
static int32_t next_known(const invar_bisect_context *context, const commit_line *l, int32_t from)
{
    for (int32_t i = from + 1; i < l->count; i++) {
        const char *value = value_of(context, l->commits[i]);
        if (value && value[0])
            return i;
    }
    return -1;
}

/* Chooses one commit to test in each interval whose ends have different values. */
static size_t plan_trials(char (*out)[INVAR_OID_SIZE], size_t room,
                          const invar_bisect_context *context, const commit_line *l)
{
    size_t count = 0;
    int32_t high;

    for (int32_t low = 0; (high = next_known(context, l, low)) >= 0 && count < room; low = high) {
        int32_t middle;
        if (strcmp(value_of(context, l->commits[low]), value_of(context, l->commits[high])) == 0)
            continue;
        middle = pick_middle_commit(context, l, low, high);
        if (middle >= 0)
            memcpy(out[count++], l->commits[middle], INVAR_OID_SIZE);
    }
    return count;
}

static invar_status test_line(invar_bisect_context *context, const commit_line *l)
{
    char commits[INVAR_SEARCH_JOBS][INVAR_OID_SIZE];

    memcpy(commits[0], l->commits[0], INVAR_OID_SIZE);
    memcpy(commits[1], l->commits[l->count - 1], INVAR_OID_SIZE);
    INVAR_TRY(
        invar_bisect_context_test(context, (const char(*)[INVAR_OID_SIZE])commits, 2, 0, "change"));
    while (!context->stopped) {
        size_t count = plan_trials(commits, (size_t)context->options->jobs, context, l);
        if (count == 0)
            return INVAR_OK;
        context->left = (int64_t)count;
        INVAR_TRY(invar_bisect_context_test(context, (const char(*)[INVAR_OID_SIZE])commits, count,
                                            0, "change"));
    }
    return INVAR_OK;
}

/* ---- the list -------------------------------------------------------------------------------- */

static invar_status list_line(invar_bisect_context *context, const char *good, const char *bad,
                              int depth);

/*
 * Lists the changes that the other parents of a merge contribute. *own_out is true if all parents
 * were tested and none of them has the value of the merge.
 */
static invar_status list_merge_changes(bool *own_out, invar_bisect_context *context,
                                       const invar_repo_commit *merge, int depth)
{
    *own_out = merge->n_parents > 1 && merge->n_parents <= INVAR_REPO_PARENTS;
    for (size_t i = 1; i < merge->n_parents && i < INVAR_REPO_PARENTS && !context->stopped; i++) {
        char bases[INVAR_REPO_BASES][INVAR_OID_SIZE];
        const char *other;
        size_t count;
        INVAR_TRY(invar_repo_merge_bases(bases, &count, context->repo, merge->parents[0],
                                         merge->parents[i]));
        if (count > 0 && strcmp(bases[0], merge->parents[i]) != 0)
            INVAR_TRY(list_line(context, bases[0], merge->parents[i], depth + 1));
        other = value_of(context, merge->parents[i]);
        if (!other || !other[0] || strcmp(other, value_of(context, merge->id)) == 0)
            *own_out = false;
    }
    return INVAR_OK;
}

/*
 * Lists the change between two neighboring tested commits of a line, preceded by the changes inside
 * it if it is a merge.
 */
static invar_status list_change(invar_bisect_context *context, const commit_line *l, int32_t low,
                                int32_t high, int depth)
{
    invar_bisect_change change = {.depth = depth, .n_untested_before = high - low - 1};

    INVAR_TRY(invar_repo_describe(&change.commit, context->repo, l->commits[high]));
    memcpy(change.parent, l->commits[low], INVAR_OID_SIZE);
    memcpy(change.before, value_of(context, l->commits[low]), INVAR_VALUE_SIZE);
    memcpy(change.after, value_of(context, l->commits[high]), INVAR_VALUE_SIZE);
    if (depth < MAX_DEPTH && change.n_untested_before == 0)
        INVAR_TRY(list_merge_changes(&change.merge, context, &change.commit, depth));
    if (context->stopped)
        return INVAR_OK;
    INVAR_TRY(invar_bisect_context_find_divergence(&change.divergence, context, change.parent,
                                                   change.commit.id));
    return invar_bisect_context_add_change(context, &change);
}

static invar_status list_changes(invar_bisect_context *context, const commit_line *l, int depth)
{
    int32_t high;

    // an untestable end hides the changes between it and the first testable commit
    for (int32_t low = 0; (high = next_known(context, l, low)) >= 0 && !context->stopped;
         low = high) {
        const char *before = value_of(context, l->commits[low]);
        if (before[0] && strcmp(before, value_of(context, l->commits[high])) != 0)
            INVAR_TRY(list_change(context, l, low, high, depth));
    }
    return INVAR_OK;
}

static invar_status list_line(invar_bisect_context *context, const char *good, const char *bad,
                              int depth)
{
    commit_line l;
    invar_status status = read_line(&l, context, good, bad);

    if (status == INVAR_OK)
        status = test_line(context, &l);
    if (status == INVAR_OK && !context->stopped)
        status = list_changes(context, &l, depth);
    if (depth == 0)
        context->result->range = l.count - 1;
    invar_free(l.commits);
    return status;
}

invar_status invar_bisect_context_changes(invar_bisect_context *context)
{
    // the merge base was tested and has the value of the good end
    const char *from = context->result->base[0] ? context->result->base : context->what->good;
    char who[INVAR_OID_SIZE] = "";

    INVAR_TRY(list_line(context, from, context->what->bad, 0));
    for (size_t i = 0; i < context->result->n_changes && !context->stopped && !who[0]; i++) {
        char pair[2][INVAR_OID_SIZE];
        memcpy(pair[0], context->result->changes[i].parent, INVAR_OID_SIZE);
        memcpy(pair[1], context->result->changes[i].commit.id, INVAR_OID_SIZE);
        INVAR_TRY(
            invar_bisect_context_repeat(who, context, (const char(*)[INVAR_OID_SIZE])pair, 2));
    }
    context->result->confirmed = !who[0];
    context->result->verdict = who[0] ? INVAR_BISECT_NONDETERMINISTIC : INVAR_BISECT_CHANGES;
    memcpy(context->result->commit, who, sizeof who);
    return INVAR_OK;
}
