/*
 * repo_alloc.c - allocations of the reader of git repositories fail one at a time.
 *
 * The repository has a merge, a submodule, a shallow boundary and an untracked file. Each failure
 * must return INVAR_E_NOMEM with a message and leave no block (faulty.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>

#include "bisect/git/repo.h"
#include "tests/fault/faulty.h"
#include "tests/repo.h"

static char work[INVAR_PATH_SIZE], source[INVAR_PATH_SIZE + 8], folder[INVAR_PATH_SIZE + 8];
static char tree_file[INVAR_PATH_SIZE + 16];

static int set_up(void **state)
{
    (void)state;
    invar_test_folder(work, "repo-alloc");
    snprintf(source, sizeof source, "%s/r", work);
    snprintf(folder, sizeof folder, "%s/out", work);
    snprintf(tree_file, sizeof tree_file, "%s.tree", folder);
    invar_test_shell(work, "git init -q sub; (cd sub; echo s >s; commit s); git init -q r; cd r\n"
                           "for i in 1 2 3; do mkdir -p d$i; echo $i >d$i/f; commit c$i; done\n"
                           "git checkout -q -b side HEAD~1; git rm -q d1/f; commit s1\n"
                           "git checkout -q main; tick; git merge -q -m m side\n"
                           "git submodule -q add ../sub; commit sub; git rev-parse HEAD~3 "
                           ">.git/shallow; echo new >new");
    return 0;
}

static int clean_up(void **state)
{
    (void)state;
    return invar_held_folder_remove(work) == INVAR_OK ? 0 : -1;
}

static invar_status use_repo(invar_repo *repo)
{
    char bad[INVAR_OID_SIZE], good[INVAR_OID_SIZE], bases[INVAR_REPO_BASES][INVAR_OID_SIZE];
    const char *goods[1] = {good}, *paths[2] = {"d1", "d3/f"};
    const invar_repo_range range = {
        .bad = bad, .good = goods, .n_good = 1, .paths = paths, .n_paths = 2};
    invar_history *history;
    invar_repo_commit commit;
    size_t count;

    INVAR_TRY(invar_repo_resolve(bad, repo, "HEAD"));
    INVAR_TRY(invar_repo_resolve(good, repo, "HEAD~2"));
    INVAR_TRY(invar_repo_merge_bases(bases, &count, repo, bad, good));
    INVAR_TRY(invar_repo_history(&history, repo, &range));
    invar_history_free(history);
    INVAR_TRY(invar_repo_describe(&commit, repo, bad));
    INVAR_TRY(invar_repo_checkout(repo, good, folder));
    INVAR_TRY(invar_repo_checkout(repo, bad, folder));
    return invar_repo_snapshot(bad, source, folder);
}

static invar_status exercise_repo(void)
{
    invar_repo *repo;
    invar_status status;

    INVAR_TRY(invar_held_folder_remove(folder));
    (void)remove(tree_file);
    INVAR_TRY(invar_repo_open(&repo, source));
    status = use_repo(repo);
    invar_repo_close(repo);
    return status;
}

static void test_repo_alloc__every_allocation_may_fail(void **state)
{
    (void)state;
    fail_each_allocation(exercise_repo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_repo_alloc__every_allocation_may_fail),
    };

    return cmocka_run_group_tests(tests, set_up, clean_up);
}
