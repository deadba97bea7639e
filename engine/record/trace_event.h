/*
 * trace_event.h - an event of the trace as text: a line, with its comma in front.
 *
 * What begin wrote goes on with further keys, until end.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_TRACE_EVENT_H
#define INVAR_ENGINE_RECORD_TRACE_EVENT_H

#include "base/json/text.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of the kind `ph`, on a track of a process of the picture. */
void invar_trace_event_begin(invar_json_text *out, const char *name, const char *ph, int process,
                             int track);
void invar_trace_event_end(invar_json_text *out);

/* A whole one: what a track (`thread_name`) or a process (`process_name`) is called. */
void invar_trace_event_name(invar_json_text *out, const char *what, int process, int track,
                            const char *name);

#ifdef __cplusplus
}
#endif
#endif
