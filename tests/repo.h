/*
 * repo.h - repositories for tests, made by the real git.
 *
 * Commands run in /bin/sh with nobody's settings and a fixed author. The shell knows, beside git:
 *     commit MESSAGE   adds all of the work tree and commits it, one minute after the one before
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

/* Makes it; git and libgit2 find nobody's settings there. */
void invar_test_enter(const char *name);

/* Removes it, for the end of a group of tests. */
int invar_test_leave(void **state);

/* The path of something in it; the last 16 are there. */
const char *invar_test_in(const char *name);

/* A repository; it has to open. */
invar_repo *invar_test_opened(const char *path);

/* ---- folders and scripts --------------------------------------------------------------------- */

/* An empty folder of this test's own below INVAR_TEST_WORK; `name` is for people. */
void invar_test_folder(char out[INVAR_PATH_SIZE], const char *name);

/* Runs a script in the folder; it has to end with 0. */
void invar_test_shell(const char *folder, const char *script, ...) INVAR_PRINTF(2, 3);

/* The same; out = what it prints, without newlines at the end. */
void invar_test_shell_says(char *out, size_t size, const char *folder, const char *script, ...)
    INVAR_PRINTF(4, 5);

/* The id of a revision, by git itself. */
void invar_test_revision(char out[INVAR_OID_SIZE], const char *folder, const char *revision);

/* Hash of names, kinds, modes, times and contents of all that is below a folder. */
void invar_test_fingerprint(char out[INVAR_DIGEST_HEX_SIZE], const char *folder);

/*
 * Makes in the folder: `r`, with five commits c1 to c5 on main that change d/f, two more, s6, s7,
 * on side, from the third, that change g, and the tags t3 and light; its `clone`; and a linked work
 * tree `linked` of side.
 */
void invar_test_sample(const char *folder);

#endif
