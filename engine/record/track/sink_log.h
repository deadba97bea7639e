/*
 * sink_log.h - writes the output of a sink to a log file of limited size.
 *
 *     invar_sink_log_open(&log, &end, "runs/a/sink.log");   `end` becomes the sink's output
 *     invar_sink_log_close(log);                            after the sink has exited
 *
 * A thread copies the output. After INVAR_SINK_LOG_BYTES of one start, output is read slowly and
 * dropped, so that a sink that prints without end blocks itself.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_TRACK_SINK_LOG_H
#define INVAR_ENGINE_RECORD_TRACK_SINK_LOG_H

#include "base/status.h"

#define INVAR_SINK_LOG_BYTES (16 << 20)

enum { INVAR_SINK_LOG_FULL = -1 };

typedef struct invar_sink_log invar_sink_log;

/* Returns INVAR_E_IO if `path` exists and is not a regular file. */
invar_status invar_sink_log_check(const char *path) INVAR_MUST_USE;

/*
 * Opens the file for appending and starts the thread. The caller closes *end_out after the sink has
 * inherited it. Close with invar_sink_log_close.
 */
invar_status invar_sink_log_open(invar_sink_log **out, int *end_out,
                                 const char *path) INVAR_MUST_USE;

/*
 * Returns 0 if all output was kept so far, INVAR_SINK_LOG_FULL, or the errno of a failed write.
 * Thread-safe.
 */
int invar_sink_log_status(const invar_sink_log *log);

/*
 * Keeps the output up to now and stops the thread, without waiting for other processes that hold
 * the write end. Returns the result of invar_sink_log_status. `log` may be NULL.
 */
int invar_sink_log_close(invar_sink_log *log);

#endif
