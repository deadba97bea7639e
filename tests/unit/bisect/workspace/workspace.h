/*
 * workspace.h - a bisect workspace and a small repository, for tests of builds and runs.
 *
 * Builds are shell scripts. The program that they make is a script that calls the test program.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_BISECT_WORKSPACE_WORKSPACE_H
#define INVAR_TESTS_UNIT_BISECT_WORKSPACE_WORKSPACE_H

#include "bisect/workspace/workspace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "tests/support.h"

#ifndef INVAR_TEST_WORK
#define INVAR_TEST_WORK "." /* the build defines it, except if this header is compiled alone */
#endif

#define LONG_TIMEOUT 60.0 /* seconds; longer than any child of these tests needs */

static char work_folder[] = INVAR_TEST_WORK "/workshop-XXXXXX";
static char repo_path[sizeof work_folder + 16], workspace_path[sizeof work_folder + 16];
static char recipe_path[sizeof work_folder + 16];
static char first[INVAR_OID_SIZE], second[INVAR_OID_SIZE], same_tree[INVAR_OID_SIZE];

/* Runs a script in `folder`; it must succeed. Its last output goes to `out` if that is not NULL. */
static inline void run_script(char out[INVAR_OID_SIZE], const char *folder, const char *script)
{
    static const char *const environment[] = {"GIT_CONFIG_GLOBAL=/dev/null",
                                              "GIT_CONFIG_NOSYSTEM=1",
                                              "GIT_AUTHOR_NAME=A Thor",
                                              "GIT_AUTHOR_EMAIL=a@example.org",
                                              "GIT_COMMITTER_NAME=A Thor",
                                              "GIT_COMMITTER_EMAIL=a@example.org",
                                              "GIT_AUTHOR_DATE=1700000000 +0000",
                                              "GIT_COMMITTER_DATE=1700000000 +0000",
                                              NULL};
    const char *words[] = {"sh", "-ec", script, NULL};
    invar_child_result r;

    assert_ok(invar_child_run(&r, &(invar_child_request){.words = words,
                                                         .folder = folder,
                                                         .environment = environment,
                                                         .lock = -1,
                                                         .timeout = LONG_TIMEOUT}));
    if (r.end != INVAR_CHILD_EXITED || r.code != 0)
        fail_msg("%s: %s", script, r.last_words);
    if (out)
        snprintf(out, INVAR_OID_SIZE, "%.40s", r.last_words);
}

static inline char *read_text(const char *path)
{
    size_t bytes;
    char *text;

    assert_ok(invar_file_read(&text, &bytes, path, 16u << 20));
    return text;
}

static inline void assert_contains(const char *path, const char *what)
{
    char *text = read_text(path);

    if (!strstr(text, what))
        fail_msg("%s has no \"%s\":\n%s", path, what, text);
    invar_free(text);
}

static inline char *path_in(const char *folder, const char *name)
{
    static char path[4][INVAR_PATH_SIZE];
    static int at;

    at = (at + 1) % 4;
    assert_ok(invar_path_join(path[at], INVAR_PATH_SIZE, folder, name));
    return path[at];
}

typedef struct fixture {
    invar_workspace *workspace;
    invar_repo *repo;
    invar_worktree worktree;
} fixture;

static inline int begin(void **state)
{
    static fixture s;

    s = (fixture){.worktree.lock = -1};
    if (invar_held_folder_remove(workspace_path) != INVAR_OK)
        return 1;
    unlink(path_in(work_folder, "builds"));
    assert_ok(invar_workspace_open(&s.workspace, workspace_path, repo_path,
                                   (const char *const[]){repo_path, NULL}));
    assert_ok(invar_repo_open(&s.repo, repo_path));
    assert_ok(invar_worktree_acquire(&s.worktree, s.workspace));
    *state = &s;
    return 0;
}

static inline int end(void **state)
{
    fixture *s = *state;

    invar_worktree_release(&s->worktree);
    invar_repo_close(s->repo);
    invar_workspace_close(s->workspace);
    return 0;
}

#define COUNT "echo x >>\"$BUILDS\"; "
#define BUILD                                                                                      \
    COUNT "echo building; cp program \"$INVAR_BUILD/prog\"; chmod +x \"$INVAR_BUILD/prog\""

static inline invar_build_plan plain_build(const char *command)
{
    return (invar_build_plan){
        .command = command, .program = "@prog", .timeout = LONG_TIMEOUT, .threads = 2};
}

static inline invar_revision_build build(fixture *s, const char *commit, const char *command)
{
    invar_build_plan plan = plain_build(command);
    invar_revision_build built;

    assert_ok(
        invar_workspace_program(&built, s->workspace, &s->worktree, s->repo, commit, &plan, NULL));
    return built;
}

static inline void make_repository(const char *self)
{
    char script[INVAR_PATH_SIZE * 2];

    assert_ok(invar_held_folder_make(repo_path));
    snprintf(script, sizeof script,
             "git init -q -b main .\n"
             "printf '#!/bin/sh\\n# 1\\nexec \"%s\" \"$@\"\\n' >program; echo 1 >answer\n"
             "git add . && git commit -q -m first && git rev-parse HEAD",
             self);
    run_script(first, repo_path, script);
    run_script(second, repo_path,
               "sed -i 's/# 1/# 2/' program; echo 2 >answer\n"
               "git add . && git commit -q -m second && git rev-parse HEAD");
    run_script(same_tree, repo_path,
               "git revert --no-edit -n HEAD >/dev/null; "
               "git commit -q -m revert && git rev-parse HEAD");
}

/* Setup of a test group: the folder, the repository with three commits, and a recipe. */
static inline int setup_repository(void **state)
{
    char self[INVAR_PATH_SIZE] = "";

    (void)state;
    if (!mkdtemp(work_folder) || readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        return 1;
    snprintf(repo_path, sizeof repo_path, "%s/repo", work_folder);
    snprintf(workspace_path, sizeof workspace_path, "%s/shop", work_folder);
    snprintf(recipe_path, sizeof recipe_path, "%s/recipe.ini", work_folder);
    make_repository(self);
    setenv("BUILDS", path_in(work_folder, "builds"), 1);
    return invar_file_write(recipe_path, "[ckpt]\n", 7) != INVAR_OK;
}

static inline int clean_up(void **state)
{
    (void)state;
    return invar_held_folder_remove(work_folder) != INVAR_OK;
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_workshop__##name, begin, end)

#endif
