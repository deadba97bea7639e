/*
 * process_tag.h - a process by number and start, so that what it left can be told from what is in
 * use.
 *
 * Every child (child.h) and all that it starts carry in their environment INVAR_CHILD=USER-NUMBER:
 * who started it, and the how manieth child it is. So they are found when they have left the
 * process group (a build tool that gives each compiler one of its own) and when the user was killed
 * (kill -9), and nobody else's are.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_WORKSPACE_PROCESS_TAG_H
#define INVAR_BISECT_WORKSPACE_PROCESS_TAG_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_USER_SIZE 26 /* PPPPPPPP-SSSSSSSSSSSSSSSS in hexadecimal, and the NUL */
#define INVAR_USER_CHILD "INVAR_CHILD"

/* This process. */
void invar_user_self(char out[INVAR_USER_SIZE]);

/* False when it has ended, also as a zombie, and for a text that names no process. */
bool invar_user_lives(const char *user);

/*
 * Kills (SIGKILL) every process whose INVAR_CHILD begins with `mark`, a user's name or that of one
 * child, until none is found. This process is spared. Without /proc it finds nothing.
 */
void invar_user_sweep(const char *mark);

#ifdef __cplusplus
}
#endif
#endif
