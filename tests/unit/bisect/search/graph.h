/*
 * graph.h - commit graphs for tests of the bisect search, and a complete search through them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_BISECT_SEARCH_GRAPH_H
#define INVAR_TESTS_UNIT_BISECT_SEARCH_GRAPH_H

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "bisect/search/history.h"
#include "tests/support.h"

#define GRAPH_COMMITS 5120
#define GRAPH_LINKS (8 * GRAPH_COMMITS)
#define GRAPH_TINY 64 /* number of commits whose ancestors fit into one 64-bit mask */

typedef struct graph {
    invar_history history;
    invar_history_commit commits[GRAPH_COMMITS];
    int32_t parents[GRAPH_LINKS];
    invar_commit_mark verdict[GRAPH_COMMITS]; /* result of a trial of the commit */
    uint64_t ancestors[GRAPH_COMMITS];        /* masks of the first GRAPH_TINY commits; a commit
                                                 is its own ancestor */
} graph;

static inline void graph_clear(graph *g)
{
    g->history = (invar_history){.commits = g->commits, .parents = g->parents};
}

/* Adds a commit and returns its index. `parents` ends with -1. The id is random, not ordered. */
static inline int32_t graph_add(graph *g, int64_t date, const int32_t *parents)
{
    int32_t index = g->history.count++;
    invar_history_commit *c = &g->commits[index];

    assert_true(index < GRAPH_COMMITS);
    *c = (invar_history_commit){.relevant = true, .parent = g->history.n_links, .date = date};
    snprintf(c->id, sizeof c->id, "%08x%032x", (unsigned)invar_test_random(5, (uint64_t)index),
             (unsigned)index);
    g->ancestors[index] = index < GRAPH_TINY ? UINT64_C(1) << index : 0;
    for (; *parents >= 0; parents++, c->n_parents++) {
        assert_true(*parents < index && g->history.n_links < GRAPH_LINKS);
        g->parents[g->history.n_links++] = *parents;
        g->ancestors[index] |= g->ancestors[*parents];
    }
    return index;
}

#define graph_commit(g, date, ...) graph_add(g, date, (const int32_t[]){__VA_ARGS__, -1})
#define graph_root(g, date) graph_add(g, date, (const int32_t[]){-1})

static inline void graph_line(graph *g, int32_t count)
{
    graph_clear(g);
    graph_root(g, 0);
    for (int32_t i = 1; i < count; i++)
        graph_commit(g, i, i - 1);
}

/* Sets the verdicts: `culprit`, its descendants and the last commit are bad, all others good. */
static inline void graph_plant(graph *g, int32_t culprit)
{
    for (int32_t i = 0; i < g->history.count; i++) {
        const invar_history_commit *c = &g->commits[i];
        bool bad = i == culprit || i == g->history.count - 1;

        for (int32_t n = c->parent; n < c->parent + c->n_parents; n++)
            bad = bad || g->verdict[g->parents[n]] == INVAR_COMMIT_MARK_BAD;
        g->verdict[i] = bad ? INVAR_COMMIT_MARK_BAD : INVAR_COMMIT_MARK_GOOD;
    }
}

/* Trials and result of a search. */
typedef struct graph_walk {
    invar_search_state state;
    int32_t found;                 /* first bad commit; -1 if there are only suspects */
    int32_t trials[GRAPH_COMMITS]; /* (n_trials) commits in the order of their results */
    int32_t n_trials, rounds;
    int32_t suspects[GRAPH_COMMITS];
    int32_t n_suspects;
} graph_walk;

/*
 * Runs a search with the graph's verdicts and up to `jobs` trials per round. `seed` selects the
 * order in which the results of a round arrive.
 */
static inline void graph_search(graph_walk *out, const graph *g, int32_t jobs, uint64_t seed)
{
    invar_search *search;
    invar_search_next next;
    int32_t *suspects;

    *out = (graph_walk){.found = -1};
    assert_ok(invar_search_new(&search, &g->history));
    for (;;) {
        assert_ok(invar_search_next_commits(&next, search, jobs));
        if (next.state != INVAR_SEARCH_TEST)
            break;
        assert_in_range(next.count, 1, jobs);
        out->rounds++;
        for (int32_t left = next.count; left > 0; left--) {
            int32_t n =
                (int32_t)(invar_test_random(seed, (uint64_t)out->n_trials) % (uint32_t)left);
            int32_t commit = next.commits[n];

            next.commits[n] = next.commits[left - 1];
            out->trials[out->n_trials++] = commit;
            assert_ok(invar_search_add_result(search, commit, g->verdict[commit]));
        }
    }
    out->state = next.state;
    if (next.state == INVAR_SEARCH_FOUND)
        out->found = next.commits[0];
    assert_ok(invar_search_suspects(&suspects, &out->n_suspects, search));
    assert_int_equal(out->n_suspects, next.candidates);
    memcpy(out->suspects, suspects, (size_t)out->n_suspects * sizeof *suspects);
    invar_free(suspects);
    invar_search_free(search);
}

#endif
