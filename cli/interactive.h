/*
 * interactive.h - what verbs share that run for long: lines for people, and an orderly end.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_INTERACTIVE_H
#define INVAR_CLI_INTERACTIVE_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* "invar: line" on stderr, made safe; `payload` is not looked at. */
void invar_interactive_say(void *payload, const char *line);

/*
 * Shows a question on `shown` and reads the answer, a line without its end, from standard input;
 * false: there is no line any more.
 */
bool invar_interactive_ask(char *out, size_t size, FILE *shown, const char *question);

/*
 * From now on the first SIGINT (Ctrl-C), SIGTERM, SIGHUP or SIGXFSZ only says "invar: WHAT; a
 * second Ctrl-C ends at once" and makes *result its number; where WHAT is NULL nothing is said. A
 * later one, but SIGXFSZ, ends the program by its default action. SIGHUP and SIGXFSZ that are
 * ignored stay so. A reader that went away is an error of writing, no signal.
 */
const volatile sig_atomic_t *invar_interactive_catch_signals(const char *what);

/* They end the program again: there is nothing left to bring to an end in order. */
void invar_interactive_release(void);

/* The signal that came; 0: none. */
int invar_interactive_caught(void);

#ifdef __cplusplus
}
#endif
#endif
