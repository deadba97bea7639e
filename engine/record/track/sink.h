/*
 * sink.h - runs a program of the user that gets a line per event of a run, without waiting for it.
 *
 *     invar_sink_open(&sink, "python3 sink.py", "runs/a/sink.log");
 *     invar_sink_put(sink, line, bytes);                            queues, writes what it can
 *     invar_sink_finish(sink, 30000);                               drains and waits, at most 30 s
 *     invar_sink_close(&result, sink);
 *
 * Lines go to the standard input of the program; its output goes to the log (sink_log.h). The
 * program may be slow, exit or never read: lines wait in a queue of INVAR_SINK_QUEUE bytes, and
 * lines that do not fit are dropped and counted. Not thread-safe.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_TRACK_SINK_H
#define INVAR_ENGINE_RECORD_TRACK_SINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define INVAR_SINK_QUEUE (1 << 20) /* capacity of the queue, in bytes */

typedef struct invar_sink invar_sink;

/* Statistics and exit status of a sink. */
typedef struct invar_sink_result {
    /* lines that were put, and those that the program did not get completely */
    int64_t lines, dropped;
    bool killed;   /* it did not exit in time */
    int log_ended; /* state of the log, as returned by invar_sink_log_status */
    int code;      /* exit code, or the negative number of a signal; 0 if it was killed */
} invar_sink_result;

/* Returns INVAR_E_INVALID or INVAR_E_IO for what invar_sink_open would reject. Changes nothing. */
invar_status invar_sink_check(const char *command, const char *log) INVAR_MUST_USE;

/*
 * Starts the program and the log. Returns INVAR_E_IO if the program cannot be started or the log
 * cannot be written. Close with invar_sink_close.
 */
invar_status invar_sink_open(invar_sink **out, const char *command, const char *log) INVAR_MUST_USE;

/* Queues a complete line with its newline, or drops it. Never waits. */
void invar_sink_put(invar_sink *sink, const char *line, size_t bytes);

/*
 * Returns true if the program's input is closed: by invar_sink_finish, or because a write failed,
 * as it does after the program has exited or closed its input.
 */
bool invar_sink_is_closed(const invar_sink *sink);

/* Returns the state of the log, like invar_sink_log_status. */
int invar_sink_log_ended(const invar_sink *sink);

/*
 * Drains the queue, closes the program's input when the queue is empty, and waits for the program
 * to exit, for at most `ms` milliseconds in all. Returns true if it has exited. May be repeated.
 */
bool invar_sink_finish(invar_sink *sink, int64_t ms);

/* Kills the program if it has not exited, and frees the sink. */
void invar_sink_close(invar_sink_result *out, invar_sink *sink);

#endif
