/*
 * bisect_search.c - properties of the bisect search, on random histories.
 *
 * The chosen commit must be the one of the rule in docs/bisect.md, which this file follows
 * literally with bit sets: weights are numbers of relevant ancestors. Further properties: no other
 * commit is nearer to the middle, the number of trials stays within the logarithm, the
 * order of the commits in the arrays does not matter, and the culprit is found or among the
 * suspects. Controls: the rule is needed (array order or adding parents' weights would differ),
 * and a wrong answer leads to another commit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>

#include "tests/unit/bisect/search/graph.h"

static graph g, shuffled;
static graph_walk walk, shuffled_walk;
static uint64_t seed, n_draws;

static int32_t random_below(int32_t below)
{
    return (int32_t)(invar_test_random(seed, n_draws++) % (uint32_t)below);
}

/*
 * Makes a graph of up to GRAPH_TINY commits: lines, merges of two to four parents, further roots,
 * with ascending, equal, descending or random dates.
 */
static void make_graph(int32_t count, uint64_t number)
{
    int32_t merges = (int32_t)(number % 4) * 3, window = 1 + (int32_t)(number / 4 % 3) * 10;
    int32_t dates = (int32_t)(number / 12 % 4);
    bool merged[GRAPH_COMMITS] = {false};

    seed = number;
    n_draws = 0;
    graph_clear(&g);
    for (int32_t i = 0; i < count; i++) {
        int32_t parents[GRAPH_TINY + 1], n = 0;
        int64_t date[] = {i, 7, -i, i + random_below(20)};
        int32_t n_wanted = random_below(10) < merges ? 2 + random_below(3)
                           : random_below(15) == 0   ? 0
                                                     : 1;

        for (int32_t p = i - 1; i == count - 1 && p >= 0; p--) // the last commit reaches all others
            if (!merged[p])
                parents[n++] = p;
        for (; i < count - 1 && n_wanted > 0 && i > 0; n_wanted--) {
            int32_t p = i - 1 - random_below(i < window ? i : window);
            bool new = true;
            for (int32_t k = 0; k < n; k++)
                new = new &&parents[k] != p;
            if (new)
                parents[n++] = p;
        }
        for (int32_t k = 0; k < n; k++)
            merged[parents[k]] = true;
        parents[n] = -1;
        graph_add(&g, date[dates], parents);
    }
    if (number % 5 == 0)
        for (int32_t i = 0; i < count; i++)
            g.commits[i].relevant = random_below(3) > 0;
}

/* ---- the rule, to the letter ----------------------------------------------------------------- */

static int32_t count_bits(uint64_t word)
{
    int32_t count = 0;

    for (; word; word &= word - 1)
        count++;
    return count;
}

static uint64_t relevant_commits(void)
{
    uint64_t word = 0;

    for (int32_t i = 0; i < g.history.count; i++)
        word |= (uint64_t)g.commits[i].relevant << i;
    return word;
}

/*
 * Lists the candidates, oldest first: repeatedly takes the newest commit that was reached, and of
 * several equally new ones the one that was reached first.
 */
static int32_t list_candidates(int32_t list[GRAPH_TINY], uint64_t candidates, int32_t bad)
{
    int32_t pending[GRAPH_TINY] = {bad}, n_pending = 1, count = count_bits(candidates), at = count;
    uint64_t known_commits = UINT64_C(1) << bad;

    while (n_pending > 0) {
        int32_t newest = 0, commit;

        for (int32_t i = 1; i < n_pending; i++)
            if (g.commits[pending[i]].date > g.commits[pending[newest]].date)
                newest = i;
        commit = pending[newest];
        memmove(&pending[newest], &pending[newest + 1],
                (size_t)(--n_pending - newest) * sizeof *pending);
        list[--at] = commit;
        for (int32_t n = 0; n < g.commits[commit].n_parents; n++) {
            int32_t parent = g.parents[g.commits[commit].parent + n];
            if (candidates >> parent & ~known_commits >> parent & 1) {
                known_commits |= UINT64_C(1) << parent;
                pending[n_pending++] = parent;
            }
        }
    }
    assert_int_equal(at, 0);
    return count;
}

static int32_t weight_of(uint64_t candidates, int32_t commit)
{
    return count_bits(candidates & g.ancestors[commit] & relevant_commits());
}

static int32_t parents_among(uint64_t candidates, int32_t commit)
{
    int32_t count = 0;

    for (int32_t n = 0; n < g.commits[commit].n_parents; n++)
        count += (int32_t)(candidates >> g.parents[g.commits[commit].parent + n] & 1);
    return count;
}

static int32_t nearness(uint64_t candidates, int32_t commit)
{
    int32_t weight = weight_of(candidates, commit),
            all = count_bits(candidates & relevant_commits());

    return weight < all - weight ? weight : all - weight;
}

static bool is_half(uint64_t candidates, int32_t commit)
{
    return g.commits[commit].relevant && abs(2 * weight_of(candidates, commit) -
                                             count_bits(candidates & relevant_commits())) <= 1;
}

/*
 * Propagates "known" from commits without a single parent to their children, until all are known,
 * and returns the first half that becomes known this way; -1 if there is none.
 */
static int32_t first_half_of_lines(const int32_t *list, int32_t count, uint64_t candidates)
{
    uint64_t known = 0, before;

    for (int32_t i = 0; i < count; i++)
        if (parents_among(candidates, list[i]) != 1)
            known |= UINT64_C(1) << list[i];
    do {
        before = known;
        for (int32_t i = 0; i < count; i++) {
            const invar_history_commit *c = &g.commits[list[i]];
            if (known >> list[i] & 1)
                continue;
            for (int32_t n = c->parent; n < c->parent + c->n_parents; n++)
                if (candidates & known & UINT64_C(1) << g.parents[n])
                    known |= UINT64_C(1) << list[i];
            if (known >> list[i] & 1 && is_half(candidates, list[i]))
                return list[i];
        }
    } while (known != before);
    return -1;
}

static int32_t choice_without_skips(uint64_t candidates, int32_t bad)
{
    int32_t list[GRAPH_TINY], count = list_candidates(list, candidates, bad), best = -1;

    for (int32_t i = 0; i < count; i++)
        if (parents_among(candidates, list[i]) > 1 && is_half(candidates, list[i]))
            return list[i];
    best = first_half_of_lines(list, count, candidates);
    for (int32_t i = 0, found = best; i < count && found < 0; i++)
        if (g.commits[list[i]].relevant &&
            (best < 0 || nearness(candidates, list[i]) > nearness(candidates, best)))
            best = list[i];
    return best;
}

/*
 * Returns the commit after `last` in the order of nearness, then ids. `last` is -1 for the first
 * one. Returns -1 if there is none.
 */
static int32_t next_rank(uint64_t candidates, int32_t last)
{
    int32_t best = -1;

    for (int32_t i = 0; i < g.history.count; i++) {
        if (!(candidates & relevant_commits() & UINT64_C(1) << i))
            continue;
        for (int32_t n = 0; n < 2; n++) { // after `last`, before the best so far
            int32_t a = n == 0 ? last : i, b = n == 0 ? i : best, near_a, near_b;
            if (a < 0 || b < 0)
                continue;
            near_a = nearness(candidates, a);
            near_b = nearness(candidates, b);
            if (near_a < near_b ||
                (near_a == near_b && strcmp(g.commits[a].id, g.commits[b].id) >= 0))
                goto next;
        }
        best = i;
    next:;
    }
    return best;
}

static int32_t choice_with_skips(uint64_t candidates, uint64_t skipped, int32_t bad)
{
    int32_t first = next_rank(candidates, -1), at = -1, last = -1, pending;
    uint32_t number;

    if (!(skipped >> first & 1))
        return first;
    pending = count_bits(candidates & relevant_commits() & ~skipped);
    number = ((uint32_t)pending * 1103515245u + 12345u) >> 16 & 32767u;
    for (int32_t left = pending * (int32_t)number / 32768, root = 0;; root++)
        if ((root + 1) * (root + 1) > (int32_t)number) {
            left = left * root / 181;
            do {
                last = at;
                do
                    at = next_rank(candidates, at);
                while (at >= 0 && skipped >> at & 1);
            } while (at >= 0 && left-- > 0);
            return at == bad ? last : at;
        }
}

/* ---- properties ------------------------------------------------------------------------------ */

#define GRAPHS invar_test_count(600, 20000)

/*
 * Checks the candidates and the choice in every state of a search with random answers. Some of
 * these are skips if `skips`.
 */
static void check_choices(uint64_t number, bool skips)
{
    uint64_t candidates, skipped = 0;
    int32_t bad = g.history.count - 1, expected;
    invar_search *search;
    invar_search_next next;

    candidates = g.ancestors[bad];
    assert_ok(invar_search_new(&search, &g.history));
    for (;;) {
        invar_status status = invar_search_next_commits(&next, search, 1);
        int32_t answer =
            1 + (int32_t)(invar_test_random(number, 7000 + n_draws++) % (skips ? 4 : 2));

        if (status == INVAR_E_NOTFOUND && (candidates & relevant_commits()) == 0)
            break;
        assert_int_equal(status, INVAR_OK);
        assert_int_equal(next.candidates, count_bits(candidates & relevant_commits()));
        expected = skipped ? choice_with_skips(candidates, skipped, bad)
                           : choice_without_skips(candidates, bad);
        if (next.state == INVAR_SEARCH_SUSPECTS) {
            assert_int_equal(expected, -1);
            break;
        }
        assert_int_equal(next.commits[0], expected);
        for (int32_t i = 0; i < g.history.count && skipped == 0; i++)
            assert_true(!(candidates & relevant_commits() & UINT64_C(1) << i) ||
                        nearness(candidates, i) <= nearness(candidates, expected));
        if (next.state == INVAR_SEARCH_FOUND) {
            assert_int_equal(expected, bad);
            break;
        }
        assert_int_not_equal(expected, bad);
        if (answer == INVAR_COMMIT_MARK_GOOD) {
            candidates &= ~g.ancestors[expected];
        } else if (answer == INVAR_COMMIT_MARK_BAD) {
            candidates &= g.ancestors[expected];
            bad = expected;
        } else {
            answer = INVAR_COMMIT_MARK_SKIP;
            skipped |= UINT64_C(1) << expected;
        }
        assert_ok(invar_search_mark(search, expected, (invar_commit_mark)answer));
    }
    invar_search_free(search);
}

static void test_bisect_search__chooses_by_the_rule(void **state)
{
    (void)state;
    for (int64_t n = 0; n < GRAPHS; n++) {
        make_graph(1 + (int32_t)(n % GRAPH_TINY), (uint64_t)n);
        check_choices((uint64_t)n, n % 2);
    }
}

/*
 * Control: neither the first commit of the best weight nor adding up the parents' weights gives the
 * rule's result.
 */
static void test_bisect_search__the_rule_is_needed(void **state)
{
    int64_t ties = 0, sums = 0;

    (void)state;
    for (int64_t n = 0; n < 200; n++) {
        int32_t sum[GRAPH_TINY], first = -1, bad = 40;
        uint64_t all;

        make_graph(41, (uint64_t)n);
        all = g.ancestors[bad];
        for (int32_t i = 0; i <= bad; i++) {
            sum[i] = g.commits[i].relevant;
            for (int32_t k = 0; k < g.commits[i].n_parents; k++)
                sum[i] += sum[g.parents[g.commits[i].parent + k]];
            if (g.commits[i].relevant && (first < 0 || nearness(all, i) > nearness(all, first)))
                first = i;
        }
        ties += first != choice_without_skips(all, bad);
        sums += sum[bad] != weight_of(all, bad);
    }
    assert_true(ties > 10);
    assert_true(sums > 50);
}

/*
 * Fills `shuffled` with the graph's commits in another order, still parents first. to[i] is the new
 * index of commit i.
 */
static void shuffle(int32_t to[GRAPH_COMMITS])
{
    int32_t count = g.history.count, placed = 0;
    int32_t from[GRAPH_COMMITS];

    for (int32_t i = 0; i < count; i++)
        to[i] = -1;
    while (placed < count) {
        int32_t i = random_below(count),
                ready = to[i] < 0 && (i < count - 1 || placed == count - 1);
        for (int32_t k = 0; k < g.commits[i].n_parents; k++)
            ready = ready && to[g.parents[g.commits[i].parent + k]] >= 0;
        if (ready) {
            from[placed] = i;
            to[i] = placed++;
        }
    }
    graph_clear(&shuffled);
    for (int32_t i = 0; i < count; i++) {
        const invar_history_commit *c = &g.commits[from[i]];
        int32_t parents[GRAPH_TINY + 1], n = 0;

        for (int32_t k = 0; k < c->n_parents; k++)
            parents[n++] = to[g.parents[c->parent + k]];
        parents[n] = -1;
        graph_add(&shuffled, c->date, parents);
        memcpy(shuffled.commits[i].id, c->id, sizeof c->id);
        shuffled.commits[i].relevant = c->relevant;
        shuffled.verdict[i] = g.verdict[from[i]];
    }
}

static void test_bisect_search__array_order_does_not_matter(void **state)
{
    int32_t to[GRAPH_COMMITS];
    int64_t n_moved = 0;

    (void)state;
    for (int64_t n = 1; n < GRAPHS; n += 2) {
        make_graph(1 + (int32_t)(n % GRAPH_TINY), (uint64_t)n);
        for (int32_t i = 0; i < g.history.count; i++)
            g.commits[i].relevant = true;
        graph_plant(&g, random_below(g.history.count));
        for (int32_t i = 0; i < g.history.count - 1; i++)
            if (random_below(4) == 0)
                g.verdict[i] = INVAR_COMMIT_MARK_SKIP;
        shuffle(to);
        graph_search(&walk, &g, 1, 0);
        graph_search(&shuffled_walk, &shuffled, 1, 0);
        assert_int_equal(walk.n_trials, shuffled_walk.n_trials);
        for (int32_t k = 0; k < walk.n_trials; k++) {
            assert_int_equal(to[walk.trials[k]], shuffled_walk.trials[k]);
            n_moved += walk.trials[k] != shuffled_walk.trials[k];
        }
        assert_int_equal(walk.state, shuffled_walk.state);
        assert_int_equal(walk.found < 0 ? -1 : to[walk.found], shuffled_walk.found);
    }
    assert_true(n_moved > 0);
}

static void test_bisect_search__finds_the_culprit_or_suspects_it(void **state)
{
    int64_t found = 0, n_suspected = 0;

    (void)state;
    for (int64_t n = 0; n < GRAPHS; n++) {
        int32_t culprit, skips, jobs;
        uint64_t left, suspects = 0;

        make_graph(1 + (int32_t)(n % GRAPH_TINY), (uint64_t)n);
        for (int32_t i = 0; i < g.history.count; i++)
            g.commits[i].relevant = true;
        culprit = random_below(g.history.count);
        skips = random_below(3); // none, scattered, a range
        jobs = 1 + random_below(3) * random_below(4);
        graph_plant(&g, culprit);
        for (int32_t i = 0, from = random_below(g.history.count); i < g.history.count - 1 && skips;
             i++)
            if (skips == 1 ? random_below(4) == 0 : i >= from && i < from + 20)
                g.verdict[i] = INVAR_COMMIT_MARK_SKIP;
        graph_search(&walk, &g, jobs, (uint64_t)n);

        left = g.ancestors[g.history.count - 1];
        for (int32_t k = 0; k < walk.n_trials; k++) {
            uint64_t a = g.ancestors[walk.trials[k]];
            if (g.verdict[walk.trials[k]] != INVAR_COMMIT_MARK_SKIP)
                left &= g.verdict[walk.trials[k]] == INVAR_COMMIT_MARK_BAD ? a : ~a;
        }
        for (int32_t k = 0; k < walk.n_suspects; k++)
            suspects |= UINT64_C(1) << walk.suspects[k];
        assert_true((left & ~suspects) == 0); // all commits that the trials leave open
        assert_true(jobs > 1 || suspects == left);
        assert_true(suspects >> culprit & 1);
        if (walk.state == INVAR_SEARCH_FOUND)
            assert_int_equal(walk.found, culprit);
        found += walk.state == INVAR_SEARCH_FOUND;
        n_suspected += walk.state == INVAR_SEARCH_SUSPECTS;
        assert_true(skips || walk.state == INVAR_SEARCH_FOUND);
    }
    assert_true(found > 0 && n_suspected > 0);
}

/* Control: after one wrong answer, another commit is found. */
static void test_bisect_search__a_wrong_answer_finds_another(void **state)
{
    int64_t n_wrong = 0;

    (void)state;
    for (int64_t n = 0; n < 100; n++) {
        int32_t culprit, wrong_commit;

        make_graph(50, (uint64_t)n);
        for (int32_t i = 0; i < 50; i++)
            g.commits[i].relevant = true;
        culprit = random_below(50);
        graph_plant(&g, culprit);
        graph_search(&walk, &g, 1, 0);
        wrong_commit = walk.trials[random_below(walk.n_trials)];
        g.verdict[wrong_commit] =
            INVAR_COMMIT_MARK_GOOD + INVAR_COMMIT_MARK_BAD - g.verdict[wrong_commit];
        graph_search(&walk, &g, 1, 0);
        n_wrong += walk.found != culprit;
    }
    assert_int_equal(n_wrong, 100);
}

static int32_t log2_above(int32_t count)
{
    int32_t log = 0;

    while (1 << log < count)
        log++;
    return log;
}

/* A round of 2^k - 1 trials does the work of k halvings. */
static void check_line(int32_t count, int32_t culprit)
{
    graph_plant(&g, culprit);
    for (int32_t k = 1; k <= 4; k++) {
        graph_search(&walk, &g, (1 << k) - 1, (uint64_t)count);
        assert_int_equal(walk.found, culprit);
        assert_true(walk.rounds <= (log2_above(count) + k - 1) / k);
        if (k == 1)
            assert_int_equal(walk.n_trials, walk.rounds);
    }
}

static void test_bisect_search__lines_take_the_logarithm(void **state)
{
    (void)state;
    for (int32_t count = 1; count <= invar_test_count(40, 300); count++) {
        graph_line(&g, count);
        for (int32_t culprit = 0; culprit < count; culprit++)
            check_line(count, culprit);
    }
    graph_line(&g, 2047); // above 3071 commits, git and invar accept a commit that is near enough
    for (int32_t culprit = 0; culprit < 2047; culprit += invar_test_full() ? 1 : 97)
        check_line(2047, culprit);
}

/* Accepting a commit that is near enough costs at most one trial. */
static void test_bisect_search__long_lines(void **state)
{
    invar_search *search;
    invar_search_next next;

    (void)state;
    graph_line(&g, 5000);
    assert_ok(invar_search_new(&search, &g.history));
    assert_ok(invar_search_next_commits(&next, search, 1));
    assert_int_equal(next.commits[0] + 1, 2499); // 2 * 2499 is within 5000 / 1024 of 5000
    invar_search_free(search);
    for (int32_t culprit = 0; culprit < 5000; culprit += invar_test_full() ? 7 : 499) {
        graph_plant(&g, culprit);
        graph_search(&walk, &g, 1, 0);
        assert_int_equal(walk.found, culprit);
        assert_in_range(walk.n_trials, 11, 13);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bisect_search__chooses_by_the_rule),
        cmocka_unit_test(test_bisect_search__the_rule_is_needed),
        cmocka_unit_test(test_bisect_search__array_order_does_not_matter),
        cmocka_unit_test(test_bisect_search__finds_the_culprit_or_suspects_it),
        cmocka_unit_test(test_bisect_search__a_wrong_answer_finds_another),
        cmocka_unit_test(test_bisect_search__lines_take_the_logarithm),
        cmocka_unit_test(test_bisect_search__long_lines),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
