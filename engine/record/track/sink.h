/*
 * sink.h - a program of the user that is told about a run, a line at a time, and never waited for.
 *
 *     invar_sink_open(&sink, "python3 sink.py", "runs/a/sink.log");
 *     invar_sink_put(sink, line, bytes);                            queues, writes what it can
 *     invar_sink_finish(sink, 30000);                               drains, for so long at most
 *     invar_sink_close(&result, sink);
 *
 * Lines go to its standard input. What it prints goes to the log (sink_log.h). It may be slow, end
 * or never read: lines wait in a queue of INVAR_SINK_QUEUE bytes, and those that find no room are
 * dropped and counted. One thread calls.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_TRACK_SINK_H
#define INVAR_ENGINE_RECORD_TRACK_SINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_SINK_QUEUE (1 << 20) /* bytes of lines that wait */

typedef struct invar_sink invar_sink;

/* How it went with a sink. */
typedef struct invar_sink_result {
    int64_t lines, dropped; /* that were put; of them, those that it did not get whole */
    bool killed;            /* it had not ended in time */
    int log_ended;          /* as invar_sink_log_over says */
    int code;               /* its exit code; a signal's number negative; 0 where it was killed */
} invar_sink_result;

/* Before all that: INVAR_E_INVALID or INVAR_E_IO for what _open would refuse. */
invar_status invar_sink_check(const char *command, const char *log) INVAR_MUST_USE;

/* INVAR_E_IO: the program cannot be started, or the log not be written. */
invar_status invar_sink_open(invar_sink **out, const char *command, const char *log) INVAR_MUST_USE;

/* A whole line with its end. */
void invar_sink_put(invar_sink *sink, const char *line, size_t bytes);

/* It reads no more: it has ended, or closed its input. */
bool invar_sink_gone(const invar_sink *sink);

/* Whether what it prints is kept: as invar_sink_log_over. */
int invar_sink_log_ended(const invar_sink *sink);

/* The end of its input, once what waits is read, for which it has `ms` milliseconds at most; true
   when it has ended, too. May be called again. */
bool invar_sink_finish(invar_sink *sink, int64_t ms);

/* Whoever has not ended is killed. */
void invar_sink_close(invar_sink_result *out, invar_sink *sink);

#ifdef __cplusplus
}
#endif
#endif
