/*
 * workspace_alloc.c - allocations of a build and a run in a bisect workspace fail one at a time.
 *
 * After each failure, every build and run in the cache is complete and no temporary file is left.
 * The second sweep repeats this with a full cache.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE 1 // setenv

#include <stdio.h>
#include <unistd.h>

#include "base/file.h"
#include "bisect/workspace/workspace.h"
#include "tests/fault/faulty.h"
#include "tests/ledger.h"

static char work[] = INVAR_TEST_WORK "/workshop-alloc-XXXXXX";
static char paths[4][sizeof work + 16]; /* paths of the repository, workspace, recipe and ledger */
static bool from_cache;                 /* the build and the run must come from the cache */

/* ---- complete cache entries ------------------------------------------------------------------ */

/* Shell check: every cached program and run is complete, and no .tmp entry is left. */
static const char check_cache_command[] =
    "cd \"$SHOP\" 2>/dev/null || exit 0\n"
    "for i in programs/* runs/*; do\n"
    "    case $i in\n"
    "    *'*') ;;\n"
    "    *.tmp) echo \"left: $i\"; exit 1 ;;\n"
    "    programs/*) [ -s $i/verdict ] && cmp -s $i/prog $REPO/prog && [ -s $i/prog.build ] ||\n"
    "        { echo \"half made: $i\"; exit 1; } ;;\n"
    "    runs/*) [ ! -e $i/outcome ] || [ -s $i/ledger.db ] || { echo \"half run: $i\"; exit 1; } "
    ";;\n"
    "    esac\n"
    "done\n";

/* ---- scenarios ------------------------------------------------------------------------------- */

static invar_status use_workspace(invar_workspace *workspace, invar_worktree *worktree,
                                  invar_repo *repo)
{
    static const char *const flags[] = {"--lr", "1", NULL};
    invar_build_plan plan = {.command = "cp prog \"$INVAR_BUILD\"; echo done",
                             .program = "@prog",
                             .timeout = 60,
                             .threads = 1};
    invar_run_request request = {.recipe = paths[2], .flags = flags, .until = -1, .timeout = 60};
    char commit[INVAR_OID_SIZE];
    invar_revision_build built, copy;
    invar_run_result result;

    INVAR_TRY(invar_repo_resolve(commit, repo, "HEAD"));
    INVAR_TRY(invar_workspace_program(&built, workspace, worktree, repo, commit, &plan, NULL));
    assert_int_equal(built.state, INVAR_REVISION_BUILD_READY);
    assert_int_equal(built.cached, from_cache);
    INVAR_TRY(invar_workspace_program_of_file(&copy, workspace, built.path));
    request.program = built.path;
    request.binary = built.binary;
    INVAR_TRY(invar_workspace_run(&result, workspace, worktree->lock, &request));
    assert_int_equal(result.state, INVAR_RUN_DONE);
    assert_int_equal(result.cached, from_cache);
    return INVAR_OK;
}

static invar_status live(void)
{
    invar_workspace *workspace = NULL;
    invar_repo *repo = NULL;
    invar_worktree worktree = {.lock = -1};
    invar_status status;

    if (!from_cache)
        assert_int_equal(system("rm -rf \"$SHOP\""), 0);
    status =
        invar_workspace_open(&workspace, paths[1], paths[0], (const char *const[]){paths[0], NULL});
    if (status == INVAR_OK)
        status = invar_repo_open(&repo, paths[0]);
    if (status == INVAR_OK)
        status = invar_worktree_acquire(&worktree, workspace);
    if (status == INVAR_OK)
        status = use_workspace(workspace, &worktree, repo);
    invar_worktree_release(&worktree);
    invar_repo_close(repo);
    invar_workspace_close(workspace);
    assert_int_equal(system(check_cache_command), 0);
    return status;
}

static void test_workspace_alloc__incomplete_files_are_ignored(void **state)
{
    (void)state;
    from_cache = false;
    fail_each_allocation(live);
    from_cache = true;
    fail_each_allocation(live);
}

/* ---- while it runs --------------------------------------------------------------------------- */

static bool count_check(void *payload, const char *ledger)
{
    ++*(int *)payload;
    return ledger == NULL;
}

/*
 * The number of ledger checks during a run depends on the clock, so only the allocations of the
 * first check, 7 to 11, fail. Such a failure must end the run before should_stop is called.
 */
static void test_workspace_alloc__a_failed_check_ends_the_run(void **state)
{
    static const char *const environment[] = {"NAP=0.25", NULL};
    faulty f;
    invar_allocator allocator = {faulty_alloc, faulty_free, &f};
    invar_workspace *workspace;
    invar_revision_build built;
    invar_run_result result;
    int n_checks = 0;
    char program[sizeof work + 32];

    (void)state;
    snprintf(program, sizeof program, "%s/prog", paths[0]);
    assert_ok(invar_workspace_open(&workspace, paths[1], paths[0],
                                   (const char *const[]){paths[0], NULL}));
    assert_ok(invar_workspace_program_of_file(&built, workspace, program));
    invar_allocator_set(&allocator);
    // Control: with n = 12 no allocation fails, and should_stop is called.
    for (int n = 7; n <= 12; n++) {
        invar_run_request request = {.program = built.path,
                                     .binary = built.binary,
                                     .recipe = paths[2],
                                     .environment = environment,
                                     .until = -1,
                                     .timeout = 60,
                                     .should_stop = count_check,
                                     .payload = &n_checks,
                                     .no_cache = true};
        invar_status status;

        f.calls = f.live = 0;
        f.fail_at = n < 12 ? n : 0;
        status = invar_workspace_run(&result, workspace, -1, &request);
        assert_int_equal(f.live, 0);
        assert_int_equal(status, n < 12 ? INVAR_E_NOMEM : INVAR_OK);
        assert_int_equal(system(check_cache_command), 0);
        assert_int_equal(n_checks > 0, n == 12);
    }
    invar_allocator_set(NULL);
    invar_workspace_close(workspace);
}

static int prepare(void **state)
{
    static const char *const names[] = {"repo", "shop", "recipe.ini", "ledger.db"};
    static const char *const variables[] = {"REPO", "SHOP", "RECIPE", "LEDGER"};

    (void)state;
    for (int i = 0; i < 4; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/%s", work, names[i]);
        setenv(variables[i], paths[i], 1);
    }
    setenv("GIT_CONFIG_GLOBAL", "/dev/null", 1);
    setenv("GIT_CONFIG_NOSYSTEM", "1", 1);
    assert_ok(invar_file_write(paths[2], "[x]\n", 4));
    assert_ok(invar_test_ledger_write(paths[3], &(invar_test_ledger){.steps = 2}));
    return system("git init -q -b main \"$REPO\" && cd \"$REPO\" && "
                  "printf '#!/bin/sh\\ncp \"$LEDGER\" \"$4\"; sleep ${NAP:-0}\\n' >prog && "
                  "chmod +x prog && git add prog && "
                  "git -c user.name=A -c user.email=a@example.org commit -q -m first");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_workspace_alloc__incomplete_files_are_ignored),
        cmocka_unit_test(test_workspace_alloc__a_failed_check_ends_the_run),
    };
    int rc;

    if (!mkdtemp(work))
        return 1;
    rc = cmocka_run_group_tests(tests, prepare, NULL);
    return invar_held_folder_remove(work) == INVAR_OK ? rc : 1;
}
