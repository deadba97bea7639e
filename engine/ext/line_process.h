/*
 * line_process.h - child process that answers each line on its input with one line of output.
 *
 * The process is started without a shell (engine/ext/subprocess.h), with pipes for its three
 * streams. Every failure kills and reaps it with its descendants; so do invar_line_process_close
 * and the end of the thread that opened it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_EXT_LINE_PROCESS_H
#define INVAR_ENGINE_EXT_LINE_PROCESS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/text.h"

#define INVAR_LINE_PROCESS_REPLY_BYTES (64u << 20) /* longest line that is accepted */

typedef struct invar_line_process invar_line_process;

/*
 * Starts a program. `command` is split at blanks; '...' and "..." keep them. The program is
 * searched in PATH as by a shell. `name` is used in error messages, and borrowed. `timeout` is the
 * time limit of each exchange in seconds, 0 for no limit. `log_fd`, borrowed, gets the standard
 * error, at most 1 MiB per exchange; -1 discards it.
 */
invar_status invar_line_process_open(invar_line_process **out, const char *name,
                                     const char *command, double timeout,
                                     int log_fd) INVAR_MUST_USE;
/* Closes the input of the program and kills it if it does not exit; NULL is ignored. */
void invar_line_process_close(invar_line_process *program);

/* Sets a callback that runs at least once per second while a reply is awaited; NULL removes it. */
void invar_line_process_set_wait_callback(invar_line_process *program, void (*waits)(void *payload),
                                          void *payload);

/*
 * Sets a check that runs as often as the wait callback; its error ends the program and is returned
 * by the exchange. NULL removes it.
 */
void invar_line_process_set_check(invar_line_process *program, invar_status (*check)(void *payload),
                                  void *payload);

/*
 * Sends a line, including its newline, and receives one, without; *line_out is borrowed until the
 * next exchange.
 */
invar_status invar_line_process_exchange(const char **line_out, size_t *bytes_out,
                                         invar_line_process *program, const char *line,
                                         size_t bytes) INVAR_MUST_USE;

#define INVAR_LINE_PROCESS_HINT_SIZE (INVAR_TEXT_QUOTE_SIZE + 80)

/*
 * Writes the end of a message about output that is not a reply: "; standard output is for replies:
 * print to standard error, not TEXT". `out` is empty if the first line of `text` begins like a
 * reply.
 */
void invar_line_process_hint(char out[INVAR_LINE_PROCESS_HINT_SIZE], const char *text,
                             size_t bytes);

/*
 * Returns true if the last exchange failed because the program ended or closed its output, and this
 * thread may restart it: the program dies with the thread that starts it, so only the thread that
 * opened it may.
 */
bool invar_line_process_may_restart(const invar_line_process *program);

/* Command that the process was opened with. Borrowed. */
const char *invar_line_process_command(const invar_line_process *program);

/*
 * Starts the same command again. Returns what invar_line_process_open returns if the command does
 * not start.
 */
invar_status invar_line_process_restart(invar_line_process *program) INVAR_MUST_USE;

/* Kills the program after an invalid line. Later exchanges fail. */
void invar_line_process_kill(invar_line_process *program);

#endif
