/*
 * process_tag.h - identifies a process by pid and start time, so that its leftovers can be removed.
 *
 * Every child (child.h) and all its descendants have INVAR_CHILD=TAG-NUMBER in their environment:
 * the tag of the process that started the child, and a counter. They are found even if they have
 * left the process group, as jobs of build tools do, and if their parent was killed with SIGKILL;
 * processes of others are never touched.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_WORKSPACE_PROCESS_TAG_H
#define INVAR_BISECT_WORKSPACE_PROCESS_TAG_H

#include <stdbool.h>

#define INVAR_PROCESS_TAG_SIZE 26 /* PPPPPPPP-SSSSSSSSSSSSSSSS in hexadecimal, and the NUL */
#define INVAR_PROCESS_TAG_CHILD "INVAR_CHILD"

/* Writes the tag of this process. */
void invar_process_tag_self(char out[INVAR_PROCESS_TAG_SIZE]);

/* Returns true if the process of a tag is alive; false for zombies and malformed tags. */
bool invar_process_tag_lives(const char *user);

/*
 * Kills every process whose INVAR_CHILD begins with `mark`, a tag or the mark of one child, until
 * no such process is left. Never kills the calling process. Does nothing without /proc.
 */
void invar_process_tag_sweep(const char *mark);

#endif
