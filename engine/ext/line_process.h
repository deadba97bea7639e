/*
 * line_process.h - a child process that answers one line with one line.
 *
 * Started without a shell (engine/ext/subprocess.h), with pipes for its three streams. Every
 * failure ends and reaps it, and its descendants; so does close, and the end of the thread that
 * opened it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_EXT_LINE_PROCESS_H
#define INVAR_ENGINE_EXT_LINE_PROCESS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/text.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_LINE_PROCESS_REPLY_BYTES (64u << 20) /* the longest line that is accepted */

typedef struct invar_line_process invar_line_process;

/*
 * `command` is cut at blanks; '...' and "..." keep them. `name` is for messages and borrowed. The
 * program is found as a shell finds it. `timeout` is seconds, 0: none.
 */
invar_status invar_line_process_open(invar_line_process **out, const char *name,
                                     const char *command, double timeout,
                                     int log_fd) INVAR_MUST_USE;
void invar_line_process_close(invar_line_process *program);

/* Called at least every second while a reply is awaited; NULL: nothing is. */
void invar_line_process_watch(invar_line_process *program, void (*waits)(void *payload),
                              void *payload);

/* Asked as often; an error ends the program, and is that of the exchange. NULL: nothing is. */
void invar_line_process_guard(invar_line_process *program, invar_status (*check)(void *payload),
                              void *payload);

/* Sends a line, its newline included; gets one, without: borrowed until the next exchange. */
invar_status invar_line_process_exchange(const char **line_out, size_t *bytes_out,
                                         invar_line_process *program, const char *line,
                                         size_t bytes) INVAR_MUST_USE;

#define INVAR_LINE_PROCESS_HINT_SIZE (INVAR_TEXT_QUOTE_SIZE + 80)

/*
 * Writes the end of a message about output that is no reply: "; standard output is for replies:
 * print to standard error, not TEXT". `out` is empty if the first line of `text` begins like a
 * reply.
 */
void invar_line_process_hint(char out[INVAR_LINE_PROCESS_HINT_SIZE], const char *text,
                             size_t bytes);

/*
 * Whether the last exchange failed because the program ended or closed its output, and this thread
 * may start the program again: it ends with the thread that starts it.
 */
bool invar_line_process_may_restart(const invar_line_process *program);

/* The command that it was opened with. Borrowed. */
const char *invar_line_process_command(const invar_line_process *program);

/* Starts the same command again. Returns what _open returns for a command that does not start. */
invar_status invar_line_process_restart(invar_line_process *program) INVAR_MUST_USE;

/* Ends it after a line that made no sense. Later exchanges fail. */
void invar_line_process_kill(invar_line_process *program);

#ifdef __cplusplus
}
#endif
#endif
