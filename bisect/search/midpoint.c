/*
 * midpoint.c - chooses the midpoint of a bisection search, the same commit that git bisect tests.
 *
 * The weight of a commit is the number of relevant candidates reachable from it, itself included. A
 * commit with one parent among the candidates has the weight of the parent, plus one if it is
 * relevant. Merges reach the same commits on several paths, so their candidates are counted: 64
 * merges per pass, each one bit of a word that is propagated from children to parents. Memory is
 * linear in the number of commits, and the time is one pass per 64 merges.
 *
 * Ties between equally near commits follow the order of git's candidate list, oldest first: the
 * reverse of a walk from the bad commit that always continues with the newest known commit. Once a
 * commit was skipped, git orders by object id instead.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bisect/search/midpoint.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/block_carver.h"
#include "base/sort.h"

#include "base/invar_banned.h"

#define BATCH 64
#define PLANES 32 // bits of a count

typedef struct ranked_commit {
    const char *id;
    int32_t commit;
    int32_t nearness;
} ranked_commit;

struct invar_midpoint {
    const invar_history *history;
    int32_t *members; // candidates, parents before children
    int32_t *list;    // candidates in the order of git's list, oldest first
    // index of a candidate in `list`; during the walk, the order in which it was found
    int32_t *place;
    int32_t *heap;      // priority queue of the walk
    int32_t *n_parents; // number of a candidate's parents that are candidates
    int32_t *weight;    // weight of a candidate
    // pass over `list` in which git knows the weight of a commit with one parent
    int32_t *round;
    // bit mask of the merges of a batch that reach the commit; 0 between batches
    uint64_t *reach;
    ranked_commit *ranks; // relevant candidates with their nearness
    const void **ranked;  // pointers to `ranks`, nearest first
    int32_t n_members;
    int32_t relevant; // number of relevant candidates
};

static void carve_arrays(invar_midpoint *m, invar_carver *carver)
{
    size_t count = (size_t)m->history->count;

    m->members = invar_carve(carver, count * sizeof *m->members);
    m->list = invar_carve(carver, count * sizeof *m->list);
    m->place = invar_carve(carver, count * sizeof *m->place);
    m->heap = invar_carve(carver, count * sizeof *m->heap);
    m->n_parents = invar_carve(carver, count * sizeof *m->n_parents);
    m->weight = invar_carve(carver, count * sizeof *m->weight);
    m->round = invar_carve(carver, count * sizeof *m->round);
    m->reach = invar_carve(carver, count * sizeof *m->reach);
    m->ranks = invar_carve(carver, count * sizeof *m->ranks);
    m->ranked = invar_carve(carver, count * sizeof *m->ranked);
}

invar_status invar_midpoint_new(invar_midpoint **out, const invar_history *history)
{
    invar_midpoint measured = {.history = history};
    invar_carver carver = {NULL, 0};
    void *block;

    (void)invar_carve(&carver, sizeof measured);
    carve_arrays(&measured, &carver);
    INVAR_TRY(invar_alloc(&block, carver.used, 1, "a search among commits"));
    carver = (invar_carver){block, 0};
    *out = invar_carve(&carver, sizeof measured);
    **out = measured;
    carve_arrays(*out, &carver);
    memset((*out)->reach, 0, (size_t)history->count * sizeof *(*out)->reach);
    return INVAR_OK;
}

/* ---- git's list ------------------------------------------------------------------------------ */

/* Newest first; commits of the same second in the order in which they were found. */
static bool comes_before(const invar_midpoint *m, int32_t a, int32_t b)
{
    int64_t date_a = m->history->commits[a].date, date_b = m->history->commits[b].date;

    return date_a != date_b ? date_a > date_b : m->place[a] < m->place[b];
}

static void heap_push(invar_midpoint *m, int32_t count, int32_t commit)
{
    int32_t at = count;

    for (; at > 0 && comes_before(m, commit, m->heap[(at - 1) / 2]); at = (at - 1) / 2)
        m->heap[at] = m->heap[(at - 1) / 2];
    m->heap[at] = commit;
}

/* Removes and returns the first commit. `count` is the size of the heap before the removal. */
static int32_t heap_pop(invar_midpoint *m, int32_t count)
{
    int32_t first = m->heap[0], last = m->heap[count - 1], at = 0;

    for (int32_t child = 1; child < count - 1; child = 2 * at + 1) {
        if (child + 1 < count - 1 && comes_before(m, m->heap[child + 1], m->heap[child]))
            child++;
        if (!comes_before(m, m->heap[child], last))
            break;
        m->heap[at] = m->heap[child];
        at = child;
    }
    m->heap[at] = last;
    return first;
}

static void build_git_list(invar_midpoint *m, const invar_search_scope *scope)
{
    const invar_history *h = m->history;
    int32_t front = 1, met = 1;

    for (int32_t i = 0; i < m->n_members; i++)
        m->place[m->members[i]] = -1;
    m->heap[0] = scope->bad;
    m->place[scope->bad] = 0;
    for (int32_t i = m->n_members - 1; i >= 0; i--) {
        const invar_history_commit *c;

        m->list[i] = heap_pop(m, front--);
        c = &h->commits[m->list[i]];
        for (int32_t n = c->parent; n < c->parent + c->n_parents; n++) {
            int32_t parent = h->parents[n];
            if (scope->candidate[parent] && m->place[parent] < 0) {
                m->place[parent] = met++;
                heap_push(m, front++, parent);
            }
        }
    }
    for (int32_t i = 0; i < m->n_members; i++)
        m->place[m->list[i]] = i;
}

/* ---- weights --------------------------------------------------------------------------------- */

static void find_members(invar_midpoint *m, const invar_search_scope *scope)
{
    const invar_history *h = m->history;

    m->n_members = m->relevant = 0;
    for (int32_t i = 0; i <= scope->bad; i++) {
        const invar_history_commit *c = &h->commits[i];

        if (!scope->candidate[i])
            continue;
        m->members[m->n_members++] = i;
        m->relevant += c->relevant;
        m->n_parents[i] = 0;
        for (int32_t n = c->parent; n < c->parent + c->n_parents; n++)
            m->n_parents[i] += scope->candidate[h->parents[n]];
        m->weight[i] = c->relevant; // final for commits without parents among the candidates
    }
}

/*
 * Counts reachable candidates for up to 64 merges at once. The counters are binary and stored as
 * bit planes: bit n of plane d is digit d of the counter of merge n.
 */
static void weigh_batch(invar_midpoint *m, const invar_search_scope *scope, const int32_t *batch,
                        int size)
{
    const invar_history *h = m->history;
    uint64_t planes[PLANES] = {0};

    for (int n = 0; n < size; n++)
        m->reach[batch[n]] |= UINT64_C(1) << n;
    for (int32_t i = m->n_members - 1; i >= 0; i--) {
        const invar_history_commit *c = &h->commits[m->members[i]];
        uint64_t mask = m->reach[m->members[i]];

        m->reach[m->members[i]] = 0;
        if (mask == 0)
            continue;
        for (int32_t n = c->parent; n < c->parent + c->n_parents; n++)
            if (scope->candidate[h->parents[n]])
                m->reach[h->parents[n]] |= mask;
        for (int digit = 0; c->relevant && mask != 0; digit++) {
            uint64_t carry = planes[digit] & mask;
            planes[digit] ^= mask;
            mask = carry;
        }
    }
    for (int n = 0; n < size; n++) {
        m->weight[batch[n]] = 0;
        for (int digit = 0; digit < PLANES - 1; digit++)
            m->weight[batch[n]] |= (int32_t)(planes[digit] >> n & 1) << digit;
    }
}

/*
 * Returns true if git considers the commit halfway: half of the candidates, or within a thousandth
 * of them.
 */
static bool is_halfway(const invar_midpoint *m, int32_t commit)
{
    int32_t off = abs(2 * m->weight[commit] - m->relevant);

    return m->history->commits[commit].relevant && (off <= 1 || off < m->relevant / 1024);
}

/*
 * Computes the weights of merges. Returns the first merge that is halfway, without computing the
 * rest, unless `all` is set; -1 if no merge is halfway.
 */
static int32_t weigh_merges(invar_midpoint *m, const invar_search_scope *scope, bool all)
{
    int32_t batch[BATCH];
    int size = 0;

    for (int32_t i = 0; i < m->n_members; i++) {
        if (m->n_parents[m->list[i]] > 1)
            batch[size++] = m->list[i];
        if (size < BATCH && i < m->n_members - 1)
            continue;
        weigh_batch(m, scope, batch, size);
        for (int n = 0; n < size && !all; n++)
            if (is_halfway(m, batch[n]))
                return batch[n];
        size = 0;
    }
    return -1;
}

/*
 * Computes the weights of commits with one parent and returns the halfway commit that git would
 * take, or -1. git scans its list repeatedly until all weights are known and takes the first
 * halfway commit. If dates are out of order, a parent follows its child in the list, and the weight
 * of the child is known one pass later.
 */
static int32_t weigh_lines(invar_midpoint *m, const invar_search_scope *scope)
{
    const invar_history *h = m->history;
    int32_t best = -1;

    for (int32_t i = 0; i < m->n_members; i++) {
        int32_t commit = m->members[i], n = h->commits[commit].parent, parent;

        m->round[commit] = 0;
        if (m->n_parents[commit] != 1)
            continue;
        while (!scope->candidate[h->parents[n]])
            n++;
        parent = h->parents[n];
        m->weight[commit] = m->weight[parent] + h->commits[commit].relevant;
        if (m->n_parents[parent] == 1)
            m->round[commit] = m->round[parent] + (m->place[parent] > m->place[commit]);
        if (is_halfway(m, commit) &&
            (best < 0 || m->round[commit] < m->round[best] ||
             (m->round[commit] == m->round[best] && m->place[commit] < m->place[best])))
            best = commit;
    }
    return best;
}

static int32_t nearness_of(const invar_midpoint *m, int32_t commit)
{
    int32_t rest = m->relevant - m->weight[commit];

    return m->weight[commit] < rest ? m->weight[commit] : rest;
}

/* Returns the first of the nearest commits in list order, or -1 if no candidate is relevant. */
static int32_t find_nearest(const invar_midpoint *m)
{
    int32_t best = -1;

    for (int32_t i = 0; i < m->n_members; i++) {
        int32_t commit = m->list[i];
        if (m->history->commits[commit].relevant &&
            (best < 0 || nearness_of(m, commit) > nearness_of(m, best)))
            best = commit;
    }
    return best;
}

/* ---- skipped commits ------------------------------------------------------------------------- */

static int by_nearness(const void *a, const void *b)
{
    const ranked_commit *x = a, *y = b;

    return x->nearness != y->nearness ? (x->nearness < y->nearness) - (x->nearness > y->nearness)
                                      : strcmp(x->id, y->id);
}

static int64_t square_root(int64_t value)
{
    int64_t root = 0;

    while ((root + 1) * (root + 1) <= value)
        root++;
    return root;
}

/*
 * Returns an index below `count` that prefers the front, as git does around skipped commits. It is
 * the same for equal counts.
 */
static int32_t skewed_index(int32_t count)
{
    uint32_t share = ((uint32_t)count * 1103515245u + 12345u) / 65536u % 32768u;

    return (int32_t)((int64_t)count * share / 32768 * square_root(share) / square_root(32768));
}

/*
 * Returns the commit to test around skipped ones, or -1 if all are skipped. The bad commit is the
 * farthest of all, so it is returned only if no other is left.
 */
static int32_t choose_around_skips(invar_midpoint *m, const invar_search_scope *scope)
{
    const ranked_commit *first = m->ranked[0];
    int32_t open = 0, at;

    if (scope->mark[first->commit] != INVAR_COMMIT_MARK_SKIP)
        return first->commit;
    for (int32_t i = 0; i < m->relevant; i++) {
        const ranked_commit *r = m->ranked[i];
        if (scope->mark[r->commit] != INVAR_COMMIT_MARK_SKIP)
            m->ranked[open++] = r;
    }
    if (open == 0)
        return -1;
    at = skewed_index(open);
    if (((const ranked_commit *)m->ranked[at])->commit == scope->bad)
        at--;
    return at < 0 ? -1 : ((const ranked_commit *)m->ranked[at])->commit;
}

static invar_status rank_candidates(invar_midpoint *m)
{
    int32_t n = 0;

    for (int32_t i = 0; i < m->n_members; i++) {
        int32_t commit = m->members[i];
        if (m->history->commits[commit].relevant) {
            m->ranks[n] =
                (ranked_commit){m->history->commits[commit].id, commit, nearness_of(m, commit)};
            m->ranked[n] = &m->ranks[n];
            n++;
        }
    }
    return invar_sort(m->ranked, (size_t)n, by_nearness);
}

invar_status invar_midpoint_choose(int32_t *out, int32_t *candidates_out, invar_midpoint *midpoint,
                                   const invar_search_scope *scope)
{
    find_members(midpoint, scope);
    build_git_list(midpoint, scope);
    *candidates_out = midpoint->relevant;
    *out = weigh_merges(midpoint, scope, scope->skips);
    if (*out >= 0 || midpoint->relevant == 0)
        return INVAR_OK;
    *out = weigh_lines(midpoint, scope);
    if (scope->skips) {
        INVAR_TRY(rank_candidates(midpoint));
        *out = choose_around_skips(midpoint, scope);
    } else if (*out < 0) {
        *out = find_nearest(midpoint);
    }
    return INVAR_OK;
}
