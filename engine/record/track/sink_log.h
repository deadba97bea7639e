/*
 * sink_log.h - what a sink prints, in a file that does not grow without end.
 *
 *     invar_sink_log_open(&log, &end, "runs/a/sink.log");   `end` becomes the sink's output
 *     invar_sink_log_close(log);                            once the sink has ended
 *
 * A thread carries it there. Behind INVAR_SINK_LOG_BYTES of one start all is read and dropped, no
 * faster than the pipe is looked at: a sink that prints all the time waits for itself.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_TRACK_SINK_LOG_H
#define INVAR_ENGINE_RECORD_TRACK_SINK_LOG_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_SINK_LOG_BYTES (16 << 20)

enum { INVAR_SINK_LOG_FULL = -1 };

typedef struct invar_sink_log invar_sink_log;

/* INVAR_E_IO where something lies there that is no file; nothing is a place for one. */
invar_status invar_sink_log_check(const char *path) INVAR_MUST_USE;

/* Appends to the file. The caller closes *end_out, once the sink has it. */
invar_status invar_sink_log_open(invar_sink_log **out, int *end_out,
                                 const char *path) INVAR_MUST_USE;

/* 0: all was kept so far; INVAR_SINK_LOG_FULL; or the errno of a write that failed. */
int invar_sink_log_over(const invar_sink_log *log);

/* What was printed until now is kept; who still has the other end is not waited for. Returns what
   _over would. NULL is allowed. */
int invar_sink_log_close(invar_sink_log *log);

#ifdef __cplusplus
}
#endif
#endif
