/*
 * workspace.h - a workshop and a small repository, for tests of what is built and run there.
 *
 * Builds are shell scripts. The program that they make is a script, too: it calls the test program.
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
#define INVAR_TEST_WORK "." /* the build says it; a header that is compiled alone need not know */
#endif

#define SLOW 60.0 /* seconds: far beyond what anything here needs */

static char work[] = INVAR_TEST_WORK "/workshop-XXXXXX";
static char repo_path[sizeof work + 16], shop_path[sizeof work + 16];
static char recipe_path[sizeof work + 16];
static char first[INVAR_OID_SIZE], second[INVAR_OID_SIZE], same_tree[INVAR_OID_SIZE];

/* Runs a script in `folder`, which must go well; its last word to `out` where there is one. */
static inline void shell(char out[INVAR_OID_SIZE], const char *folder, const char *script)
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
                                                         .timeout = SLOW}));
    if (r.end != INVAR_CHILD_EXITED || r.code != 0)
        fail_msg("%s: %s", script, r.last_words);
    if (out)
        snprintf(out, INVAR_OID_SIZE, "%.40s", r.last_words);
}

static inline char *text_of(const char *path)
{
    size_t bytes;
    char *text;

    assert_ok(invar_file_read(&text, &bytes, path, 16u << 20));
    return text;
}

static inline void assert_contains(const char *path, const char *what)
{
    char *text = text_of(path);

    if (!strstr(text, what))
        fail_msg("%s has no \"%s\":\n%s", path, what, text);
    invar_free(text);
}

static inline char *below(const char *folder, const char *name)
{
    static char path[4][INVAR_PATH_SIZE];
    static int at;

    at = (at + 1) % 4;
    assert_ok(invar_path_join(path[at], INVAR_PATH_SIZE, folder, name));
    return path[at];
}

typedef struct scene {
    invar_workspace *shop;
    invar_repo *repo;
    invar_worktree slot;
} scene;

static inline int begin(void **state)
{
    static scene s;

    s = (scene){.slot.lock = -1};
    if (invar_held_folder_remove(shop_path) != INVAR_OK)
        return 1;
    unlink(below(work, "builds"));
    assert_ok(invar_workspace_open(&s.shop, shop_path, repo_path,
                                   (const char *const[]){repo_path, NULL}));
    assert_ok(invar_repo_open(&s.repo, repo_path));
    assert_ok(invar_worktree_acquire(&s.slot, s.shop));
    *state = &s;
    return 0;
}

static inline int end(void **state)
{
    scene *s = *state;

    invar_worktree_release(&s->slot);
    invar_repo_close(s->repo);
    invar_workspace_close(s->shop);
    return 0;
}

#define COUNT "echo x >>\"$BUILDS\"; "
#define BUILD                                                                                      \
    COUNT "echo building; cp program \"$INVAR_BUILD/prog\"; chmod +x \"$INVAR_BUILD/prog\""

static inline invar_build_plan plain_build(const char *command)
{
    return (invar_build_plan){
        .command = command, .program = "@prog", .timeout = SLOW, .threads = 2};
}

static inline invar_revision_build build(scene *s, const char *commit, const char *command)
{
    invar_build_plan how = plain_build(command);
    invar_revision_build built;

    assert_ok(invar_workspace_program(&built, s->shop, &s->slot, s->repo, commit, &how, NULL));
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
    shell(first, repo_path, script);
    shell(second, repo_path,
          "sed -i 's/# 1/# 2/' program; echo 2 >answer\n"
          "git add . && git commit -q -m second && git rev-parse HEAD");
    shell(same_tree, repo_path,
          "git revert --no-edit -n HEAD >/dev/null; "
          "git commit -q -m revert && git rev-parse HEAD");
}

/* Setup of a group: the folder, the repository, a recipe. */
static inline int prepare(void **state)
{
    char self[INVAR_PATH_SIZE] = "";

    (void)state;
    if (!mkdtemp(work) || readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        return 1;
    snprintf(repo_path, sizeof repo_path, "%s/repo", work);
    snprintf(shop_path, sizeof shop_path, "%s/shop", work);
    snprintf(recipe_path, sizeof recipe_path, "%s/recipe.ini", work);
    make_repository(self);
    setenv("BUILDS", below(work, "builds"), 1);
    return invar_file_write(recipe_path, "[ckpt]\n", 7) != INVAR_OK;
}

static inline int clean_up(void **state)
{
    (void)state;
    return invar_held_folder_remove(work) != INVAR_OK;
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_workshop__##name, begin, end)

#endif
