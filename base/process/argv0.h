/*
 * argv0.h - how the user calls this program, for commands that are printed for use.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_PROCESS_ARGV0_H
#define INVAR_BASE_PROCESS_ARGV0_H

#ifdef __cplusplus
extern "C" {
#endif

/* Once, at the start of main: the first word of the command line. */
void invar_argv0_set(const char *word);

/* That word as a shell reads it; "invar" where none was set or nothing can be made of it. */
const char *invar_op_graph(void);

#ifdef __cplusplus
}
#endif
#endif
