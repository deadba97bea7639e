/*
 * midpoint.c - which of the candidates to test next, the same one that git tests.
 *
 * The weight of a commit is the number of relevant candidates that it reaches, itself included.
 * With one parent among the candidates it is that of the parent and one more; for a merge, which
 * reaches the same commits by several ways, it is counted: 64 merges at a time, each a bit of a
 * word that travels from children to parents. So memory is linear in the commits, and the time is
 * that of one pass for 64 merges.
 *
 * Equally near commits are told apart by git's list of candidates, oldest first, which is how a
 * walk from the bad commit meets them that always goes on with the newest commit it knows of. As
 * soon as a commit was skipped, git goes by object ids instead.
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

typedef struct rank {
    const char *id;
    int32_t commit;
    int32_t nearness;
} rank;

struct invar_midpoint {
    const invar_history *history;
    int32_t *members;    // candidates, parents before children
    int32_t *list;       // candidates as git lists them, oldest first
    int32_t *place;      // of a candidate in `list`; before that, its turn in the walk
    int32_t *heap;       // the walk's front
    int32_t *n_parents;  // of a candidate, among the candidates
    int32_t *weight;     // of a candidate
    int32_t *round;      // of `list`, in which the weight of a commit with one parent is known
    uint64_t *reach;     // merges of a batch that reach the commit; 0 between batches
    rank *ranks;         // of relevant candidates
    const void **ranked; // the same, nearest first
    int32_t n_members;
    int32_t relevant; // candidates
};

static void place_arrays(invar_midpoint *m, invar_carver *carver)
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
    place_arrays(&measured, &carver);
    INVAR_TRY(invar_alloc(&block, carver.used, 1, "a search among commits"));
    carver = (invar_carver){block, 0};
    *out = invar_carve(&carver, sizeof measured);
    **out = measured;
    place_arrays(*out, &carver);
    memset((*out)->reach, 0, (size_t)history->count * sizeof *(*out)->reach);
    return INVAR_OK;
}

void invar_midpoint_free(invar_midpoint *midpoint)
{
    invar_free(midpoint);
}

/* ---- git's list ------------------------------------------------------------------------------ */

/* Newest first; of the same second, the one that was met first. */
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

/* `count` is that before. */
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

static void make_list(invar_midpoint *m, const invar_search_scope *scope)
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
        m->weight[i] = c->relevant; // right for those without parents
    }
}

/* Counts in binary, one plane a digit: the n-th bit of all planes is what the n-th merge reaches.
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

/* Near enough for git: half, or within a thousandth of the candidates. */
static bool midpoint_halfway(const invar_midpoint *m, int32_t commit)
{
    int32_t off = abs(2 * m->weight[commit] - m->relevant);

    return m->history->commits[commit].relevant && (off <= 1 || off < m->relevant / 1024);
}

/* The first merge that is halfway, which ends it unless `all` are wanted; -1: none. */
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
            if (midpoint_halfway(m, batch[n]))
                return batch[n];
        size = 0;
    }
    return -1;
}

/*
 * git goes along its list until all weights are known, and takes the first that is halfway. Where
 * dates are not in order a parent comes after its child, whose weight is known a round later.
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
        if (midpoint_halfway(m, commit) &&
            (best < 0 || m->round[commit] < m->round[best] ||
             (m->round[commit] == m->round[best] && m->place[commit] < m->place[best])))
            best = commit;
    }
    return best;
}

static int32_t midpoint_nearness(const invar_midpoint *m, int32_t commit)
{
    int32_t rest = m->relevant - m->weight[commit];

    return m->weight[commit] < rest ? m->weight[commit] : rest;
}

/* The first of the nearest; -1: there is no relevant one. */
static int32_t midpoint_nearest(const invar_midpoint *m)
{
    int32_t best = -1;

    for (int32_t i = 0; i < m->n_members; i++) {
        int32_t commit = m->list[i];
        if (m->history->commits[commit].relevant &&
            (best < 0 || midpoint_nearness(m, commit) > midpoint_nearness(m, best)))
            best = commit;
    }
    return best;
}

/* ---- around skipped commits ------------------------------------------------------------------ */

static int by_nearness(const void *a, const void *b)
{
    const rank *x = a, *y = b;

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

/* Which of `count` to take: more often one of the first, always the same for the same count. */
static int32_t skewed_index(int32_t count)
{
    uint32_t share = ((uint32_t)count * 1103515245u + 12345u) / 65536u % 32768u;

    return (int32_t)((int64_t)count * share / 32768 * square_root(share) / square_root(32768));
}

/* As the choice; the bad commit is the farthest of all, so it is taken only when alone. */
static int32_t around_skips(invar_midpoint *m, const invar_search_scope *scope)
{
    const rank *first = m->ranked[0];
    int32_t open = 0, at;

    if (scope->mark[first->commit] != INVAR_COMMIT_MARK_SKIP)
        return first->commit;
    for (int32_t i = 0; i < m->relevant; i++) {
        const rank *r = m->ranked[i];
        if (scope->mark[r->commit] != INVAR_COMMIT_MARK_SKIP)
            m->ranked[open++] = r;
    }
    if (open == 0)
        return -1;
    at = skewed_index(open);
    if (((const rank *)m->ranked[at])->commit == scope->bad)
        at--;
    return at < 0 ? -1 : ((const rank *)m->ranked[at])->commit;
}

static invar_status rank_all(invar_midpoint *m)
{
    int32_t n = 0;

    for (int32_t i = 0; i < m->n_members; i++) {
        int32_t commit = m->members[i];
        if (m->history->commits[commit].relevant) {
            m->ranks[n] =
                (rank){m->history->commits[commit].id, commit, midpoint_nearness(m, commit)};
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
    make_list(midpoint, scope);
    *candidates_out = midpoint->relevant;
    *out = weigh_merges(midpoint, scope, scope->skips);
    if (*out >= 0 || midpoint->relevant == 0)
        return INVAR_OK;
    *out = weigh_lines(midpoint, scope);
    if (scope->skips) {
        INVAR_TRY(rank_all(midpoint));
        *out = around_skips(midpoint, scope);
    } else if (*out < 0) {
        *out = midpoint_nearest(midpoint);
    }
    return INVAR_OK;
}
