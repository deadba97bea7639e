/*
 * repo.h - git repositories for tests, made by the real git.
 *
 * Commands run in /bin/sh without user settings and with a fixed author. Besides git, the shell
 * has:
 *     commit MESSAGE   adds the complete work tree and commits it, one minute after the last commit
 *     tick             moves the clock of GIT_AUTHOR_DATE and GIT_COMMITTER_DATE by a minute
 *     object ID        prints the file of a loose object
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_REPO_H
#define INVAR_TESTS_REPO_H

#include <stddef.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/status.h"
#include "bisect/git/repo.h"

/* ---- the home of a test program -------------------------------------------------------------- */

extern char invar_test_home[INVAR_PATH_SIZE];

/* Makes the home folder, in which git and libgit2 find no user settings. */
void invar_test_home_create(const char *name);

/* Removes the home folder at the end of a group of tests. */
int invar_test_home_remove(void **state);

/* Returns the path of `name` in the home folder; the last 16 returned paths are valid. */
const char *invar_test_home_path(const char *name);

/* Opens a repository; asserts that it opens. */
invar_repo *invar_test_repo_open(const char *path);

/* ---- folders and scripts --------------------------------------------------------------------- */

/*
 * Makes an empty folder of this test below INVAR_TEST_WORK; `name` is a part of its name for
 * readers.
 */
void invar_test_folder(char out[INVAR_PATH_SIZE], const char *name);

/* Runs a script in the folder; asserts that it ends with 0. */
void invar_test_shell(const char *folder, const char *script, ...) INVAR_PRINTF(2, 3);

/* Like invar_test_shell; writes its output to `out`, without newlines at the end. */
void invar_test_shell_output(char *out, size_t size, const char *folder, const char *script, ...)
    INVAR_PRINTF(4, 5);

/* Writes the id of a revision, from git itself. */
void invar_test_revision(char out[INVAR_OID_SIZE], const char *folder, const char *revision);

/* Hashes names, kinds, modes, times and contents of everything below a folder. */
void invar_test_fingerprint(char out[INVAR_DIGEST_HEX_SIZE], const char *folder);

/*
 * Makes in the folder: the repository `r`, with commits c1 to c5 on main, which change d/f, and s6
 * and s7 on side, which begins at c3 and changes g; the tags t3 (c3) and light (c4); its `clone`;
 * and the linked work tree `linked` of side.
 */
void invar_test_sample_repo(const char *folder);

#endif
