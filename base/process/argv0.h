/*
 * argv0.h - the word by which the user called this program, for commands in messages.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_PROCESS_ARGV0_H
#define INVAR_BASE_PROCESS_ARGV0_H

/* Stores the first word of the command line. Call once, at the start of main. */
void invar_argv0_set(const char *word);

/* Returns the stored word, quoted for a shell; "invar" if it was not set or cannot be quoted. */
const char *invar_argv0(void);

#endif
