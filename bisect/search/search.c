/*
 * search.c - state of the bisection search: marks, pending results and the next commits to test.
 *
 * Marks are applied at once; results of trials wait in `note` until the search would choose their
 * commit. That makes the outcome independent of the number of parallel trials and of the order in
 * which they end. For parallel trials the midpoints that would follow a good and a bad result are
 * computed on copies of the scope.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "bisect/search/history.h"
#include "bisect/search/midpoint.h"

#include "base/invar_banned.h"

struct invar_search {
    const invar_history *history;
    invar_midpoint *midpoint;
    invar_search_scope now;
    uint8_t *note;    // (count) results of commits that the search has not chosen yet
    uint8_t *related; // (count) scratch: 1 for ancestors or descendants of one commit
};

/* ---- histories ------------------------------------------------------------------------------- */

void invar_history_free(invar_history *history)
{
    if (history == NULL)
        return;
    invar_free(history->commits);
    invar_free(history->parents);
    invar_free(history);
}

int32_t invar_history_find(const invar_history *history, const char *id)
{
    for (int32_t i = 0; i < history->count; i++)
        if (strcmp(history->commits[i].id, id) == 0)
            return i;
    return -1;
}

/* ---- ancestors ------------------------------------------------------------------------------- */

/* Marks `commit` and its ancestors in search->related. */
static void find_ancestors(const invar_search *search, int32_t commit)
{
    const invar_history *h = search->history;

    memset(search->related, 0, (size_t)h->count);
    search->related[commit] = 1;
    for (int32_t i = commit; i >= 0; i--) {
        const invar_history_commit *c = &h->commits[i];
        for (int32_t n = c->parent; search->related[i] && n < c->parent + c->n_parents; n++)
            search->related[h->parents[n]] = 1;
    }
}

/* Marks `commit` and its descendants in search->related. */
static void find_descendants(const invar_search *search, int32_t commit)
{
    const invar_history *h = search->history;

    memset(search->related, 0, (size_t)h->count);
    search->related[commit] = 1;
    for (int32_t i = commit + 1; i < h->count; i++) {
        const invar_history_commit *c = &h->commits[i];
        for (int32_t n = c->parent; n < c->parent + c->n_parents; n++)
            search->related[i] |= search->related[h->parents[n]];
    }
}

/* ---- scopes ---------------------------------------------------------------------------------- */

static void scope_free(invar_search_scope *scope)
{
    invar_free(scope->candidate); // the marks are in the same block
    scope->candidate = NULL;
}

static invar_status scope_new(invar_search_scope *out, int32_t count)
{
    uint8_t *block;

    INVAR_TRY(INVAR_ALLOC(block, 2 * (size_t)count, "the marks of commits"));
    *out = (invar_search_scope){.candidate = block, .mark = block + count};
    return INVAR_OK;
}

static void apply_mark(const invar_search *search, invar_search_scope *scope, int32_t commit,
                       invar_commit_mark mark)
{
    bool tested = scope->mark[commit] == INVAR_COMMIT_MARK_GOOD ||
                  scope->mark[commit] == INVAR_COMMIT_MARK_BAD;

    if (tested)
        return;
    scope->mark[commit] = (uint8_t)mark;
    scope->skips = scope->skips || mark == INVAR_COMMIT_MARK_SKIP;
    if (mark == INVAR_COMMIT_MARK_SKIP ||
        (mark == INVAR_COMMIT_MARK_BAD && !scope->candidate[commit]))
        return;
    if (mark == INVAR_COMMIT_MARK_BAD)
        scope->bad = commit;
    find_ancestors(search, commit);
    for (int32_t i = 0; i < search->history->count; i++)
        scope->candidate[i] &= search->related[i] == (mark == INVAR_COMMIT_MARK_BAD);
}

/*
 * Applies pending results until the next choice has no result. The outputs are those of
 * invar_midpoint_choose.
 */
static invar_status apply_results(int32_t *out, int32_t *candidates_out, const invar_search *search,
                                  invar_search_scope *scope)
{
    for (;;) {
        INVAR_TRY(invar_midpoint_choose(out, candidates_out, search->midpoint, scope));
        if (*out < 0 || *out == scope->bad || search->note[*out] == INVAR_COMMIT_MARK_NONE)
            return INVAR_OK;
        apply_mark(search, scope, *out, (invar_commit_mark)search->note[*out]);
    }
}

static invar_status check_history(const invar_history *history)
{
    if (history->count < 1)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "there is no commit to search among");
    for (int32_t i = 0; i < history->count; i++) {
        const invar_history_commit *c = &history->commits[i];
        for (int32_t n = c->parent; n < c->parent + c->n_parents; n++)
            if (n < 0 || n >= history->n_links || history->parents[n] < 0 ||
                history->parents[n] >= i)
                return INVAR_FAIL(INVAR_E_INVALID, 0,
                                  "commit %s does not come after its parents in the history",
                                  c->id);
    }
    return INVAR_OK;
}

static invar_status init_search(invar_search *search)
{
    size_t count = (size_t)search->history->count;
    int32_t last = search->history->count - 1;

    INVAR_TRY(INVAR_ALLOC(search->note, 2 * count, "a search among commits"));
    search->related = search->note + count;
    memset(search->note, INVAR_COMMIT_MARK_NONE, count);
    INVAR_TRY(invar_midpoint_new(&search->midpoint, search->history));
    INVAR_TRY(scope_new(&search->now, search->history->count));
    memset(search->now.candidate, 1, count);
    memset(search->now.mark, INVAR_COMMIT_MARK_NONE, count);
    apply_mark(search, &search->now, last, INVAR_COMMIT_MARK_BAD);
    return INVAR_OK;
}

invar_status invar_search_new(invar_search **out, const invar_history *history)
{
    invar_status status;

    INVAR_TRY(check_history(history));
    INVAR_TRY(INVAR_ALLOC(*out, 1, "a search among commits"));
    **out = (invar_search){.history = history};
    status = init_search(*out);
    if (status != INVAR_OK) {
        invar_search_free(*out);
        *out = NULL;
    }
    return status;
}

void invar_search_free(invar_search *search)
{
    if (search == NULL)
        return;
    scope_free(&search->now);
    invar_free(search->midpoint);
    invar_free(search->note);
    invar_free(search);
}

/* ---- marks ----------------------------------------------------------------------------------- */

static const char *mark_text(invar_commit_mark mark)
{
    return mark == INVAR_COMMIT_MARK_GOOD  ? "good"
           : mark == INVAR_COMMIT_MARK_BAD ? "bad"
                                           : "skipped";
}

static invar_status check_arguments(const invar_search *search, int32_t commit,
                                    invar_commit_mark mark)
{
    if (commit < 0 || commit >= search->history->count)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "there is no commit number %d in the history",
                          (int)commit);
    if (mark != INVAR_COMMIT_MARK_GOOD && mark != INVAR_COMMIT_MARK_BAD &&
        mark != INVAR_COMMIT_MARK_SKIP)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "commit %s: a mark is good, bad or skipped",
                          search->history->commits[commit].id);
    return INVAR_OK;
}

/* Fails if the mark would give a good commit a bad ancestor. Only tested commits are compared. */
static invar_status check_marks(const invar_search *search, int32_t commit, invar_commit_mark mark)
{
    const invar_history *h = search->history;
    invar_commit_mark other =
        mark == INVAR_COMMIT_MARK_GOOD ? INVAR_COMMIT_MARK_BAD : INVAR_COMMIT_MARK_GOOD;

    if (mark == INVAR_COMMIT_MARK_SKIP)
        return INVAR_OK;
    if (mark == INVAR_COMMIT_MARK_GOOD)
        find_ancestors(search, commit);
    else
        find_descendants(search, commit);
    for (int32_t i = 0; i < h->count; i++)
        if (search->related[i] && search->now.mark[i] == other)
            return INVAR_FAIL(INVAR_E_MISMATCH, 0, "commit %s is %s, but its %s %s is %s",
                              h->commits[commit].id, mark_text(mark),
                              mark == INVAR_COMMIT_MARK_GOOD ? "ancestor" : "descendant",
                              h->commits[i].id, mark_text(other));
    return INVAR_OK;
}

invar_status invar_search_mark(invar_search *search, int32_t commit, invar_commit_mark mark)
{
    int32_t choice, candidates;

    INVAR_TRY(check_arguments(search, commit, mark));
    INVAR_TRY(check_marks(search, commit, mark));
    apply_mark(search, &search->now, commit, mark);
    return apply_results(&choice, &candidates, search, &search->now);
}

invar_status invar_search_add_result(invar_search *search, int32_t commit, invar_commit_mark mark)
{
    int32_t choice, candidates;
    uint8_t *known;

    INVAR_TRY(check_arguments(search, commit, mark));
    if (!search->now.candidate[commit])
        return INVAR_OK;
    known = search->now.mark[commit] != INVAR_COMMIT_MARK_NONE ? &search->now.mark[commit]
                                                               : &search->note[commit];
    if (*known != INVAR_COMMIT_MARK_NONE && *known != mark)
        return INVAR_FAIL(INVAR_E_MISMATCH, 0, "commit %s is %s, but it was %s before",
                          search->history->commits[commit].id, mark_text(mark),
                          mark_text((invar_commit_mark)*known));
    search->note[commit] = (uint8_t)mark;
    return apply_results(&choice, &candidates, search, &search->now);
}

/* ---- the next commits ------------------------------------------------------------------------ */

/* Scopes that may follow the current one, in the order of their choices. */
typedef struct speculative_scopes {
    invar_search_scope scopes[2 * INVAR_SEARCH_JOBS];
    int32_t count;
} speculative_scopes;

/* Adds the scopes that follow if `choice` turns out bad, and if it turns out good. */
static invar_status add_speculative_midpoints(speculative_scopes *f, const invar_search *search,
                                              const invar_search_scope *scope, int32_t choice)
{
    static const invar_commit_mark marks[] = {INVAR_COMMIT_MARK_BAD, INVAR_COMMIT_MARK_GOOD};
    size_t count = (size_t)search->history->count;

    for (int n = 0; n < 2; n++) {
        invar_search_scope *next = &f->scopes[f->count];

        INVAR_TRY(scope_new(next, search->history->count));
        f->count++;
        memcpy(next->candidate, scope->candidate, count);
        memcpy(next->mark, scope->mark, count);
        next->bad = scope->bad;
        next->skips = scope->skips;
        apply_mark(search, next, choice, marks[n]);
    }
    return INVAR_OK;
}

/* Adds the choices of speculative scopes until `jobs` commits are chosen. */
static invar_status add_speculative_commits(invar_search_next *out, speculative_scopes *f,
                                            const invar_search *search, int32_t jobs)
{
    INVAR_TRY(add_speculative_midpoints(f, search, &search->now, out->commits[0]));
    for (int32_t n = 0; n < f->count && out->count < jobs; n++) {
        invar_search_scope *scope = &f->scopes[n];
        int32_t choice, candidates;

        INVAR_TRY(apply_results(&choice, &candidates, search, scope));
        if (choice >= 0 && choice != scope->bad) {
            out->commits[out->count++] = choice;
            if (out->count < jobs)
                INVAR_TRY(add_speculative_midpoints(f, search, scope, choice));
        }
        scope_free(scope);
    }
    return INVAR_OK;
}

invar_status invar_search_next_commits(invar_search_next *out, const invar_search *search,
                                       int32_t jobs)
{
    int32_t choice;
    speculative_scopes f = {.count = 0};
    invar_status status = INVAR_OK;

    if (jobs < 1 || jobs > INVAR_SEARCH_JOBS)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%d trials at a time; 1 to %d are possible",
                          (int)jobs, INVAR_SEARCH_JOBS);
    *out = (invar_search_next){.state = INVAR_SEARCH_TEST, .count = 1};
    INVAR_TRY(invar_midpoint_choose(&choice, &out->candidates, search->midpoint, &search->now));
    if (out->candidates == 0)
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                          "no commit that touches the paths is the cause: name other paths, or "
                          "none");
    out->commits[0] = choice;
    while (out->trials < 31 && INT64_C(1) << out->trials < out->candidates)
        out->trials++;
    if (choice < 0) {
        out->state = INVAR_SEARCH_SUSPECTS;
        out->count = 0;
    } else if (choice == search->now.bad) {
        out->state = INVAR_SEARCH_FOUND;
    } else if (jobs > 1) {
        status = add_speculative_commits(out, &f, search, jobs);
        for (int32_t n = 0; n < f.count; n++)
            scope_free(&f.scopes[n]);
    }
    return status;
}

bool invar_search_useful(const invar_search *search, int32_t commit)
{
    return search->now.candidate[commit] && search->now.mark[commit] == INVAR_COMMIT_MARK_NONE &&
           search->note[commit] == INVAR_COMMIT_MARK_NONE;
}

invar_status invar_search_suspects(int32_t **out, int32_t *count_out, const invar_search *search)
{
    const invar_history *h = search->history;

    INVAR_TRY(INVAR_ALLOC(*out, (size_t)h->count, "the suspects"));
    *count_out = 0;
    for (int32_t i = 0; i < h->count; i++)
        if (search->now.candidate[i] && h->commits[i].relevant)
            (*out)[(*count_out)++] = i;
    return INVAR_OK;
}
