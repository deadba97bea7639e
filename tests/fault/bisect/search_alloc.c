/*
 * search_alloc.c - allocations of the search among commits fail one at a time (faulty.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/fault/faulty.h"
#include "tests/unit/bisect/search/graph.h"

static graph g;

/* Uses a skipped commit, a result that arrives early, several commits at a time, and suspects. */
static invar_status use_search(invar_search *search)
{
    invar_search_next next;
    int32_t *suspects, count;

    INVAR_TRY(invar_search_mark(search, 15, INVAR_COMMIT_MARK_SKIP));
    INVAR_TRY(invar_search_add_result(search, 2, INVAR_COMMIT_MARK_GOOD));
    INVAR_TRY(invar_search_next_commits(&next, search, 8));
    INVAR_TRY(invar_search_add_result(search, next.commits[0], INVAR_COMMIT_MARK_BAD));
    INVAR_TRY(invar_search_suspects(&suspects, &count, search));
    invar_free(suspects);
    return INVAR_OK;
}

static invar_status exercise_search(void)
{
    invar_search *search;
    invar_status status;

    INVAR_TRY(invar_search_new(&search, &g.history));
    status = use_search(search);
    invar_search_free(search);
    return status;
}

static void test_search_alloc__every_allocation_may_fail(void **state)
{
    (void)state;
    graph_line(&g, 31);
    fail_each_allocation(exercise_search);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_search_alloc__every_allocation_may_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
