/*
 * live.h - what verbs share that run for long: lines for people, and an orderly end.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_LIVE_H
#define INVAR_CLI_LIVE_H

#include <signal.h>

#ifdef __cplusplus
extern "C" {
#endif

/* "invar: line" on stderr, made safe; `payload` is not looked at. */
void invar_live_say(void *payload, const char *line);

/*
 * From now on the first Ctrl-C (or SIGTERM) only makes *result nonzero; the second ends the program
 * at once. A reader that went away is an error of writing, no signal.
 */
const volatile sig_atomic_t *invar_live_catch(void);

#ifdef __cplusplus
}
#endif
#endif
