/*
 * trace_event.h - writes one event of the trace as a line of JSON with a leading comma.
 *
 * The caller appends further keys between begin and end.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_TRACE_EVENT_H
#define INVAR_ENGINE_RECORD_TRACE_EVENT_H

#include "base/json/text.h"

/* Begins an event of kind `ph` on a track of a process of the trace viewer. */
void invar_trace_event_begin(invar_json_text *out, const char *name, const char *ph, int process,
                             int track);
/* Writes a time in microseconds. */
void invar_trace_event_time(invar_json_text *out, const char *key, int64_t ns);

/* Ends the event and the line. */
void invar_trace_event_end(invar_json_text *out);

/* Writes a complete event that names a track (`thread_name`) or a process (`process_name`). */
void invar_trace_event_name(invar_json_text *out, const char *what, int process, int track,
                            const char *name);

#endif
