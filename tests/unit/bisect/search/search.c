/*
 * search.c - tests of the bisect search, on graphs made by hand and on all small graphs.
 *
 * The expected commits of graphs made by hand are those of `git rev-list --bisect`. On all graphs
 * of up to 6 commits, every planted culprit must be found, and with skipped commits the suspects
 * must equal the set that the trials leave possible, which is computed independently from ancestor
 * masks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/unit/bisect/search/graph.h"

static graph g;
static graph_walk run, parallel_run;

/*
 * Returns the first commit to test after some marks, or -1 if only suspects are left. The marks are
 * pairs of commit and mark, ended with -1.
 */
static int32_t first_trial_after(const int32_t *marks)
{
    invar_search *search;
    invar_search_next next;

    assert_ok(invar_search_new(&search, &g.history));
    for (; *marks >= 0; marks += 2)
        assert_ok(invar_search_mark(search, marks[0], (invar_commit_mark)marks[1]));
    assert_ok(invar_search_next_commits(&next, search, 1));
    invar_search_free(search);
    return next.state == INVAR_SEARCH_SUSPECTS ? -1 : next.commits[0];
}

#define first(...) first_trial_after((const int32_t[]){__VA_ARGS__, -1})
#define first_of_all() first_trial_after((const int32_t[]){-1})

/* ---- choice of the commit -------------------------------------------------------------------- */

static void test_search__a_single_commit_is_found_without_a_trial(void **state)
{
    (void)state;
    graph_line(&g, 1);
    graph_plant(&g, 0);
    graph_search(&run, &g, 1, 0);
    assert_int_equal(run.found, 0);
    assert_int_equal(run.n_trials, 0);
}

static void test_search__halves_a_line(void **state)
{
    static const int32_t expected[] = {0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4};

    (void)state;
    for (int32_t n = 1; n <= 10; n++) {
        graph_line(&g, n);
        assert_int_equal(first_of_all(), expected[n]);
    }
}

static void test_search__merged_roots_go_by_date_then_by_the_walk(void **state)
{
    (void)state;
    graph_clear(&g);
    graph_root(&g, 20);
    graph_root(&g, 10);
    graph_commit(&g, 30, 0, 1);
    assert_int_equal(first_of_all(), 1); // the older root

    g.commits[1].date = 20;
    assert_int_equal(first_of_all(), 1); // equal dates: the second parent
    g.parents[0] = 1;
    g.parents[1] = 0;
    assert_int_equal(first_of_all(), 0);
}

/* A merge at the midpoint is tested before an equally near, older commit with one parent. */
static void test_search__merges_go_first(void **state)
{
    (void)state;
    graph_clear(&g);
    graph_root(&g, 0);            // commit 0, weight 1
    graph_commit(&g, 1, 0);       // 1, 2
    graph_commit(&g, 2, 1);       // 2, 3
    graph_root(&g, 3);            // 3, 1
    graph_commit(&g, 4, 3);       // 4, 2
    graph_commit(&g, 5, 1, 3);    // 5, 4: commits 0 1 3 5
    graph_commit(&g, 6, 2, 4, 5); // 6, 7
    assert_int_equal(first_of_all(), 5);
    g.commits[5].relevant = false; // then commit 2, with weight 3 of 6
    assert_int_equal(first_of_all(), 2);
}

static void test_search__criss_cross_counts_shared_ancestors_once(void **state)
{
    (void)state;
    graph_clear(&g);
    graph_root(&g, 0);
    graph_commit(&g, 1, 0);
    graph_commit(&g, 2, 0);
    graph_commit(&g, 3, 1, 2);
    graph_commit(&g, 4, 2, 1);
    graph_commit(&g, 5, 3);
    graph_commit(&g, 6, 4);
    graph_commit(&g, 7, 5, 6);
    assert_int_equal(first_of_all(), 3);
}

static void test_search__octopus(void **state)
{
    (void)state;
    graph_clear(&g);
    for (int32_t i = 0; i < 5; i++)
        graph_root(&g, 10 - i);
    graph_commit(&g, 20, 0, 1, 2, 3, 4);
    for (int32_t culprit = 0; culprit < 6; culprit++) {
        graph_plant(&g, culprit);
        graph_search(&run, &g, 1, 0);
        assert_int_equal(run.found, culprit);
        assert_int_equal(run.n_trials, culprit == 5 ? 5 : 5 - culprit); // oldest first
    }
}

static void test_search__dates_out_of_order_are_no_trouble(void **state)
{
    (void)state;
    graph_line(&g, 100);
    for (int32_t i = 0; i < 100; i++)
        g.commits[i].date = -i;
    assert_int_equal(first_of_all(), 49);
    for (int32_t culprit = 0; culprit < 100; culprit++) {
        graph_plant(&g, culprit);
        graph_search(&run, &g, 1, 0);
        assert_int_equal(run.found, culprit);
        assert_in_range(run.n_trials, 6, 7);
    }
}

/* ---- paths ----------------------------------------------------------------------------------- */

static void test_search__irrelevant_commits_are_not_tested(void **state)
{
    (void)state;
    graph_line(&g, 40);
    for (int32_t i = 0; i < 40; i++)
        g.commits[i].relevant = i % 10 == 3; // 3, 13, 23 and 33, but not the last one
    assert_int_equal(first_of_all(), 13);
    for (int32_t culprit = 3; culprit < 40; culprit += 10) {
        graph_plant(&g, culprit);
        graph_search(&run, &g, 1, 0);
        assert_int_equal(run.found, culprit);
        assert_in_range(run.n_trials, 1, 3);
        for (int32_t n = 0; n < run.n_trials; n++)
            assert_true(g.commits[run.trials[n]].relevant);
    }
}

static void test_search__paths_that_no_commit_touches(void **state)
{
    invar_search *search;
    invar_search_next next;

    (void)state;
    graph_line(&g, 3);
    g.commits[1].relevant = g.commits[2].relevant = false;
    assert_ok(invar_search_new(&search, &g.history));
    assert_ok(invar_search_next_commits(&next, search, 4));
    assert_int_equal(next.state, INVAR_SEARCH_TEST); // commit 0 is not known to be bad
    assert_int_equal(next.commits[0], 0);
    assert_ok(invar_search_add_result(search, 0, INVAR_COMMIT_MARK_GOOD));
    assert_fails(invar_search_next_commits(&next, search, 4), INVAR_E_NOTFOUND,
                 "touches the paths");
    invar_search_free(search);
}

/* ---- skipped commits ------------------------------------------------------------------------- */

static void test_search__skips_lead_to_suspects(void **state)
{
    (void)state;
    graph_line(&g, 8);
    graph_plant(&g, 4);
    g.verdict[3] = g.verdict[4] = INVAR_COMMIT_MARK_SKIP;
    graph_search(&run, &g, 1, 0);
    assert_int_equal(run.state, INVAR_SEARCH_SUSPECTS);
    assert_int_equal(run.n_suspects, 3);
    for (int32_t n = 0; n < 3; n++)
        assert_int_equal(run.suspects[n], 3 + n);

    g.verdict[4] = INVAR_COMMIT_MARK_BAD; // the skipped parent may be the culprit as well
    graph_search(&run, &g, 1, 0);
    assert_int_equal(run.state, INVAR_SEARCH_SUSPECTS);
    assert_int_equal(run.n_suspects, 2);

    g.verdict[3] = INVAR_COMMIT_MARK_GOOD; // skips elsewhere do not matter
    g.verdict[1] = g.verdict[6] = INVAR_COMMIT_MARK_SKIP;
    graph_search(&run, &g, 1, 0);
    assert_int_equal(run.found, 4);
}

static void test_search__all_skipped(void **state)
{
    (void)state;
    graph_line(&g, 30);
    for (int32_t i = 0; i < 29; i++)
        g.verdict[i] = INVAR_COMMIT_MARK_SKIP;
    graph_search(&run, &g, 1, 0);
    assert_int_equal(run.state, INVAR_SEARCH_SUSPECTS);
    assert_int_equal(run.n_trials, 29); // every commit once
    assert_int_equal(run.n_suspects, 30);
}

/* A skip orders equally near commits by object id and moves the search away from the midpoint. */
static void test_search__skips_go_by_id_and_away(void **state)
{
    (void)state;
    graph_clear(&g);
    for (int32_t i = 0; i < 4; i++)
        graph_root(&g, i);
    graph_commit(&g, 9, 0, 1, 2, 3);
    graph_commit(&g, 10, 4);
    for (int32_t i = 0; i < 4; i++)
        snprintf(g.commits[i].id, sizeof g.commits[i].id, "%040d", 50 - i);
    assert_int_equal(first_of_all(), 0);                   // the oldest commit
    assert_int_equal(first(4, INVAR_COMMIT_MARK_SKIP), 3); // the smallest id
    assert_int_equal(first(0, INVAR_COMMIT_MARK_SKIP), 3); // smallest id again
    assert_int_not_equal(first(3, INVAR_COMMIT_MARK_SKIP), 3);

    graph_line(&g, 300); // git tests commits 150, 73, ...
    assert_int_equal(first_of_all() + 1, 150);
}

/* If none of 300 commits can be built, successive trials are far from each other, as in git. */
static void test_search__skips_jump(void **state)
{
    invar_search *search;
    invar_search_next next;
    int32_t last = 0, near = 0;

    (void)state;
    graph_line(&g, 300);
    assert_ok(invar_search_new(&search, &g.history));
    for (int n = 0; n < 40; n++) {
        assert_ok(invar_search_next_commits(&next, search, 1));
        near += n > 0 && next.commits[0] - last < 4 && last - next.commits[0] < 4;
        last = next.commits[0];
        assert_ok(invar_search_add_result(search, last, INVAR_COMMIT_MARK_SKIP));
    }
    invar_search_free(search);
    assert_true(near < 4);
}

static void test_search__a_test_says_more_than_a_skip(void **state)
{
    (void)state;
    graph_line(&g, 3);
    assert_int_equal(first(0, INVAR_COMMIT_MARK_SKIP, 1, INVAR_COMMIT_MARK_SKIP), -1);
    assert_int_equal(
        first(0, INVAR_COMMIT_MARK_SKIP, 1, INVAR_COMMIT_MARK_SKIP, 1, INVAR_COMMIT_MARK_GOOD), 2);
    assert_int_equal(first(1, INVAR_COMMIT_MARK_GOOD, 1, INVAR_COMMIT_MARK_SKIP), 2);
    // The bad end stays bad.
    assert_int_equal(first(2, INVAR_COMMIT_MARK_SKIP, 1, INVAR_COMMIT_MARK_GOOD), 2);
}

/* ---- marks that contradict ------------------------------------------------------------------- */

static void test_search__contradictions_are_refused(void **state)
{
    invar_search *search;

    (void)state;
    graph_line(&g, 9);
    assert_ok(invar_search_new(&search, &g.history));
    assert_fails(invar_search_mark(search, 8, INVAR_COMMIT_MARK_GOOD), INVAR_E_MISMATCH,
                 "is good, but");
    assert_ok(invar_search_mark(search, 4, INVAR_COMMIT_MARK_BAD));
    assert_fails(invar_search_mark(search, 4, INVAR_COMMIT_MARK_GOOD), INVAR_E_MISMATCH,
                 "ancestor");
    assert_fails(invar_search_mark(search, 6, INVAR_COMMIT_MARK_GOOD), INVAR_E_MISMATCH,
                 "ancestor");
    // Not a candidate, so nothing changes.
    assert_ok(invar_search_mark(search, 6, INVAR_COMMIT_MARK_BAD));
    assert_ok(invar_search_mark(search, 2, INVAR_COMMIT_MARK_GOOD));
    assert_fails(invar_search_mark(search, 1, INVAR_COMMIT_MARK_BAD), INVAR_E_MISMATCH,
                 "descendant");
    assert_ok(invar_search_mark(search, 1, INVAR_COMMIT_MARK_GOOD));
    assert_ok(invar_search_mark(search, 2, INVAR_COMMIT_MARK_GOOD));
    assert_ok(invar_search_mark(search, 2, INVAR_COMMIT_MARK_SKIP)); // commit 2 stays good
    assert_fails(invar_search_mark(search, 0, INVAR_COMMIT_MARK_BAD), INVAR_E_MISMATCH,
                 "descendant");

    // Rejected marks have no effect: only 3 and 4 are candidates.
    for (int32_t i = 0; i < 9; i++)
        assert_int_equal(invar_search_useful(search, i), i == 3);
    assert_ok(invar_search_add_result(search, 3, INVAR_COMMIT_MARK_GOOD));
    assert_false(invar_search_useful(search, 3));
    invar_search_free(search);
}

static void test_search__a_bad_commit_elsewhere_changes_nothing(void **state)
{
    invar_search *search;
    invar_search_next next;

    (void)state;
    graph_clear(&g);
    graph_root(&g, 0);
    graph_commit(&g, 1, 0);
    graph_commit(&g, 2, 0);
    graph_commit(&g, 3, 1, 2);
    assert_ok(invar_search_new(&search, &g.history));
    assert_ok(invar_search_mark(search, 1, INVAR_COMMIT_MARK_BAD));
    assert_ok(invar_search_mark(search, 2, INVAR_COMMIT_MARK_BAD));
    assert_ok(invar_search_mark(search, 0, INVAR_COMMIT_MARK_GOOD));
    assert_ok(invar_search_next_commits(&next, search, 1));
    assert_int_equal(next.state, INVAR_SEARCH_FOUND);
    assert_int_equal(next.commits[0], 1);
    invar_search_free(search);
}

static void test_search__notes_that_differ_are_refused(void **state)
{
    invar_search *search;
    invar_search_next next;

    (void)state;
    graph_line(&g, 9);
    assert_ok(invar_search_new(&search, &g.history));
    // Earlier than the search needs it.
    assert_ok(invar_search_add_result(search, 1, INVAR_COMMIT_MARK_BAD));
    assert_false(invar_search_useful(search, 1));
    assert_true(invar_search_useful(search, 7));
    assert_fails(invar_search_add_result(search, 1, INVAR_COMMIT_MARK_GOOD), INVAR_E_MISMATCH,
                 "it was bad");
    assert_ok(invar_search_add_result(search, 1, INVAR_COMMIT_MARK_BAD));
    // Commit 1 is not a candidate any more.
    assert_ok(invar_search_add_result(search, 3, INVAR_COMMIT_MARK_GOOD));
    assert_ok(invar_search_add_result(search, 1, INVAR_COMMIT_MARK_GOOD));
    assert_ok(invar_search_next_commits(&next, search, 1));
    assert_int_equal(next.candidates, 5);
    invar_search_free(search);
}

static void test_search__wrong_arguments(void **state)
{
    invar_search *search;
    invar_search_next next;

    (void)state;
    graph_line(&g, 3);
    assert_ok(invar_search_new(&search, &g.history));
    assert_fails(invar_search_mark(search, 3, INVAR_COMMIT_MARK_GOOD), INVAR_E_INVALID, "number 3");
    assert_fails(invar_search_mark(search, -1, INVAR_COMMIT_MARK_GOOD), INVAR_E_INVALID,
                 "number -1");
    assert_fails(invar_search_add_result(search, 0, INVAR_COMMIT_MARK_NONE), INVAR_E_INVALID,
                 "a mark is");
    assert_fails(invar_search_next_commits(&next, search, 0), INVAR_E_INVALID, "1 to 64");
    assert_fails(invar_search_next_commits(&next, search, 65), INVAR_E_INVALID, "1 to 64");
    invar_search_free(search);
    invar_search_free(NULL);
    invar_history_free(NULL);

    assert_int_equal(invar_history_find(&g.history, g.commits[2].id), 2);
    assert_int_equal(invar_history_find(&g.history, "none"), -1);
    g.parents[0] = 1;
    assert_fails(invar_search_new(&search, &g.history), INVAR_E_INVALID, "after its parents");
    g.history.count = 0;
    assert_fails(invar_search_new(&search, &g.history), INVAR_E_INVALID, "no commit");
}

/* ---- several at a time ----------------------------------------------------------------------- */

static void test_search__asks_for_what_would_follow(void **state)
{
    static const int32_t expected[] = {7, 3, 11, 1, 5, 9, 13, 0, 2, 4, 6, 8, 10, 12, 14};
    invar_search *search;
    invar_search_next next;

    (void)state;
    graph_line(&g, 16);
    assert_ok(invar_search_new(&search, &g.history));
    for (int32_t jobs = 1; jobs <= 15; jobs++) {
        assert_ok(invar_search_next_commits(&next, search, jobs));
        assert_int_equal(next.count, jobs);
        assert_int_equal(next.trials, 4);
        assert_memory_equal(next.commits, expected, (size_t)jobs * sizeof *expected);
    }
    assert_ok(invar_search_next_commits(&next, search, 64));
    assert_int_equal(next.count, 15); // all commits except the bad end

    // An early result is used later; no commit is requested twice.
    assert_ok(invar_search_add_result(search, 3, INVAR_COMMIT_MARK_GOOD));
    assert_ok(invar_search_next_commits(&next, search, 4));
    assert_int_equal(next.commits[0], 7);
    assert_int_equal(next.commits[1], 5);
    assert_int_equal(next.commits[2], 11);
    assert_ok(invar_search_add_result(search, 7, INVAR_COMMIT_MARK_BAD)); // now both results count
    assert_ok(invar_search_next_commits(&next, search, 1));
    assert_int_equal(next.candidates, 4);
    assert_int_equal(next.commits[0], 5);
    for (int32_t i = 0; i < 16; i++)
        assert_int_equal(invar_search_useful(search, i), i >= 4 && i < 7);
    invar_search_free(search);
}

static void test_search__skipped_commits_are_not_asked_for(void **state)
{
    invar_search *search;
    invar_search_next next;

    (void)state;
    graph_line(&g, 40);
    assert_ok(invar_search_new(&search, &g.history));
    for (int32_t i = 0; i < 40; i += 2)
        assert_ok(invar_search_mark(search, i, INVAR_COMMIT_MARK_SKIP));
    assert_ok(invar_search_next_commits(&next, search, 64));
    assert_int_equal(next.count, 19); // 1, 3, ..., 37, each once
    for (int32_t n = 0; n < next.count; n++) {
        assert_int_equal(next.commits[n] % 2, 1);
        for (int32_t k = 0; k < n; k++)
            assert_int_not_equal(next.commits[n], next.commits[k]);
    }
    invar_search_free(search);
}

/* If good and bad alternate, there are several first bad commits; all job counts find the same. */
static void test_search__jobs_and_their_order_change_nothing(void **state)
{
    static const int32_t jobs[] = {2, 3, 4, 7, 16, 64};

    (void)state;
    for (uint64_t seed = 0; seed < (uint64_t)invar_test_count(100, 5000); seed++) {
        graph_line(&g, 60);
        for (int32_t i = 0; i < 59; i++)
            g.verdict[i] = (invar_commit_mark)(INVAR_COMMIT_MARK_GOOD +
                                               invar_test_random(seed, 900 + (uint64_t)i) %
                                                   (seed % 3 == 0 ? 3 : 2));
        graph_search(&run, &g, 1, seed);
        for (size_t n = 0; n < sizeof jobs / sizeof *jobs; n++) {
            graph_search(&parallel_run, &g, jobs[n], seed);
            assert_int_equal(parallel_run.state, run.state);
            assert_int_equal(parallel_run.found, run.found);
            assert_int_equal(parallel_run.n_suspects, run.n_suspects);
            assert_true(parallel_run.rounds <= run.rounds);
        }
    }
}

/* ---- all small graphs ------------------------------------------------------------------------ */

/*
 * Makes the graph whose links are the bits of `links`. Returns false if the last commit does not
 * reach all commits.
 */
static bool graph_number(int32_t count, uint32_t links)
{
    graph_clear(&g);
    for (int32_t i = 0; i < count; i++) {
        int32_t parents[8], n = 0;

        for (int32_t p = i - 1; p >= 0; p--, links >>= 1)
            if (links & 1)
                parents[n++] = p;
        parents[n] = -1;
        graph_add(&g, i / 2, parents);
    }
    return g.ancestors[count - 1] == (UINT64_C(1) << count) - 1;
}

/* Returns the mask of the commits that may be the culprit after the trials of a search. */
static uint64_t possible_culprits(const graph_walk *w)
{
    uint64_t left = g.ancestors[g.history.count - 1];

    for (int32_t n = 0; n < w->n_trials; n++) {
        int32_t commit = w->trials[n];
        if (g.verdict[commit] == INVAR_COMMIT_MARK_BAD)
            left &= g.ancestors[commit];
        if (g.verdict[commit] == INVAR_COMMIT_MARK_GOOD)
            left &= ~g.ancestors[commit];
    }
    return left;
}

static void check_run(const graph_walk *w, int32_t culprit)
{
    uint64_t suspects = 0, skipped = 0;

    for (int32_t n = 0; n < w->n_suspects; n++)
        suspects |= UINT64_C(1) << w->suspects[n];
    for (int32_t i = 0; i < g.history.count; i++)
        skipped |= (uint64_t)(g.verdict[i] == INVAR_COMMIT_MARK_SKIP) << i;
    assert_true(suspects == possible_culprits(w));
    assert_true(suspects >> culprit & 1);
    assert_true(w->n_trials < g.history.count);
    if (w->state == INVAR_SEARCH_FOUND)
        assert_int_equal(w->found, culprit);
    else // all suspects except the last, which is bad, are skipped
        assert_true(w->n_suspects > 1 &&
                    (suspects & ~skipped) == UINT64_C(1) << w->suspects[w->n_suspects - 1]);
}

static void test_search__all_graphs_and_culprits(void **state)
{
    int64_t graphs = 0;

    (void)state;
    for (int32_t count = 1; count <= invar_test_count(5, 6); count++)
        for (uint32_t links = 0; links < 1u << (count * (count - 1) / 2); links++) {
            if (!graph_number(count, links))
                continue;
            graphs++;
            for (int32_t culprit = 0; culprit < count; culprit++) {
                graph_plant(&g, culprit);
                for (int32_t jobs = 1; jobs <= 3; jobs++) {
                    graph_search(&run, &g, jobs, links);
                    assert_int_equal(run.state, INVAR_SEARCH_FOUND);
                    check_run(&run, culprit);
                }
            }
        }
    assert_int_equal(graphs,
                     invar_test_full() ? 1 + 1 + 3 + 21 + 315 + 9765 : 1 + 1 + 3 + 21 + 315);
}

static void test_search__all_graphs_culprits_and_skips(void **state)
{
    int64_t found = 0, unsure = 0;

    (void)state;
    for (int32_t count = 2; count <= invar_test_count(4, 5); count++)
        for (uint32_t links = 0; links < 1u << (count * (count - 1) / 2); links++) {
            if (!graph_number(count, links))
                continue;
            for (int32_t culprit = 0; culprit < count; culprit++)
                for (uint32_t skips = 1; skips < 1u << (count - 1); skips++) {
                    graph_plant(&g, culprit);
                    for (int32_t i = 0; i < count - 1; i++)
                        if (skips >> i & 1)
                            g.verdict[i] = INVAR_COMMIT_MARK_SKIP;
                    graph_search(&run, &g, 1, 0);
                    check_run(&run, culprit);
                    found += run.state == INVAR_SEARCH_FOUND;
                    unsure += run.state == INVAR_SEARCH_SUSPECTS;
                }
        }
    assert_true(found > 0 && unsure > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_search__a_single_commit_is_found_without_a_trial),
        cmocka_unit_test(test_search__halves_a_line),
        cmocka_unit_test(test_search__merged_roots_go_by_date_then_by_the_walk),
        cmocka_unit_test(test_search__merges_go_first),
        cmocka_unit_test(test_search__criss_cross_counts_shared_ancestors_once),
        cmocka_unit_test(test_search__octopus),
        cmocka_unit_test(test_search__dates_out_of_order_are_no_trouble),
        cmocka_unit_test(test_search__irrelevant_commits_are_not_tested),
        cmocka_unit_test(test_search__paths_that_no_commit_touches),
        cmocka_unit_test(test_search__skips_lead_to_suspects),
        cmocka_unit_test(test_search__all_skipped),
        cmocka_unit_test(test_search__skips_go_by_id_and_away),
        cmocka_unit_test(test_search__skips_jump),
        cmocka_unit_test(test_search__a_test_says_more_than_a_skip),
        cmocka_unit_test(test_search__contradictions_are_refused),
        cmocka_unit_test(test_search__a_bad_commit_elsewhere_changes_nothing),
        cmocka_unit_test(test_search__notes_that_differ_are_refused),
        cmocka_unit_test(test_search__wrong_arguments),
        cmocka_unit_test(test_search__asks_for_what_would_follow),
        cmocka_unit_test(test_search__skipped_commits_are_not_asked_for),
        cmocka_unit_test(test_search__jobs_and_their_order_change_nothing),
        cmocka_unit_test(test_search__all_graphs_and_culprits),
        cmocka_unit_test(test_search__all_graphs_culprits_and_skips),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
