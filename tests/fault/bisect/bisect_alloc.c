/*
 * bisect_alloc.c - allocations of a complete bisect fail once, and the bisect is repeated.
 *
 * Each disturbed bisect must return INVAR_E_NOMEM with a message or the right result, and must
 * leave no block. The same call in the same work folder must then find the commit that an
 * undisturbed bisect finds. All allocations fail under full, else a selection.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <unistd.h>

#include "base/file.h"
#include "bisect/bisect.h"
#include "tests/fault/faulty.h"

static char folder[256], repository[300], work[300];

/* A root and six commits, bad from the fourth on. Commit 2 cannot be tested (exit code 125). */
static const char make_history[] =
    "set -e; rm -rf '%s'; mkdir -p '%s'; cd '%s'; "
    "export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 "
    "GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@b GIT_AUTHOR_DATE='1700000000 +0000' "
    "GIT_COMMITTER_NAME=A GIT_COMMITTER_EMAIL=a@b GIT_COMMITTER_DATE='1700000000 +0000'; "
    "git init -q -b main; for i in 0 1 2 3 4 5 6; do echo $i >value; git add value; "
    "git commit -q -m \"value $i\"; done";

static invar_bisect_result *run_bisect(invar_status *status_out)
{
    const invar_bisect_case request = {
        .repo = repository,
        .good = "main~6",
        .bad = "main",
        .question = {.kind = INVAR_CRITERION_EXIT, .until = -1, .layer = -1},
        .run = "test $(cat value) -ne 2 || exit 125; test $(cat value) -lt 4",
        .build = "true",
        .timeout = 60};
    const invar_bisect_options options = {.work = work, .jobs = 2, .threads = 1};
    invar_bisect_result *result;

    *status_out = invar_bisect_run(&result, &request, &options);
    return result;
}

static void check_result(const invar_bisect_result *result, int n)
{
    if (result->verdict != INVAR_BISECT_FOUND || result->n_changes != 1 || !result->confirmed ||
        strcmp(result->changes->commit.subject, "value 4") != 0)
        fail_msg("allocation %d: verdict %d, %zu changes: %s", n, (int)result->verdict,
                 result->n_changes, result->reason);
}

/*
 * Lets allocation n fail (0 for none), then repeats the bisect. Returns the number of allocations.
 */
static int fail_and_repeat(int n)
{
    faulty f = {.fail_at = n};
    invar_allocator allocator = {faulty_alloc, faulty_free, &f};
    invar_bisect_result *result;
    invar_status status;

    assert_ok(invar_held_folder_remove(work));
    invar_error_clear();
    invar_allocator_set(&allocator);
    result = run_bisect(&status);
    if (status == INVAR_OK)
        check_result(result, n);
    invar_bisect_result_free(result);
    invar_allocator_set(NULL);
    if (f.live != 0 || (status != INVAR_OK && status != INVAR_E_NOMEM))
        fail_msg("allocation %d: status %d, %d blocks left: %s", n, (int)status, (int)f.live,
                 invar_error_last()->message);
    if (status != INVAR_OK)
        invar_assert_message("no memory for", __FILE__, __LINE__);
    result = run_bisect(&status);
    assert_ok(status);
    check_result(result, n);
    invar_bisect_result_free(result);
    return f.calls;
}

static void test_bisect_alloc__continues_after_each_failure(void **state)
{
    int calls = fail_and_repeat(0), stride = calls / (int)invar_test_count(12, calls) + 1;

    (void)state;
    assert_true(calls > 20);
    for (int n = 1; n <= calls; n += invar_test_full() ? 1 : stride)
        (void)fail_and_repeat(n);
}

static int setup(void **state)
{
    char command[2048];

    (void)state;
    (void)snprintf(folder, sizeof folder, "%s/bisect_alloc.%ld", INVAR_TEST_WORK, (long)getpid());
    (void)snprintf(repository, sizeof repository, "%s/repository", folder);
    (void)snprintf(work, sizeof work, "%s/work", folder);
    (void)snprintf(command, sizeof command, make_history, repository, repository, repository);
    return system(command);
}

static int teardown(void **state)
{
    (void)state;
    return invar_held_folder_remove(folder) == INVAR_OK ? 0 : 1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bisect_alloc__continues_after_each_failure),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
