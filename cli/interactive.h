/*
 * interactive.h - messages, questions and a clean stop on signals for long-running commands.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_INTERACTIVE_H
#define INVAR_CLI_INTERACTIVE_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Prints "invar: LINE" to stderr, escaped. `payload` is ignored. */
void invar_interactive_print(void *payload, const char *line);

/*
 * Prints a question to `shown` and reads a line of standard input without its newline. Returns
 * false at the end of the input.
 */
bool invar_interactive_ask(char *out, size_t size, FILE *shown, const char *question);

/*
 * Installs handlers. The first SIGINT (Ctrl-C), SIGTERM, SIGHUP or SIGXFSZ prints "invar: WHAT; a
 * second Ctrl-C ends at once", or nothing if `what` is NULL, and sets *result to its number. A
 * later signal other than SIGXFSZ ends the process by its default action, except within 0.2 s of
 * the first, because `timeout` and a closing terminal send two. SIGHUP and SIGXFSZ stay ignored if
 * they were. SIGPIPE is ignored, so a closed pipe is a write error.
 */
const volatile sig_atomic_t *invar_interactive_catch_signals(const char *what);

/* Restores the default actions, when nothing is left to finish cleanly. */
void invar_interactive_release(void);

/* Returns the number of the first signal, or 0. */
int invar_interactive_caught(void);

#endif
