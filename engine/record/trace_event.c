/*
 * trace_event.c - writes one event of the trace as a line of JSON with a leading comma.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/trace_event.h"

#include <string.h>

#include "base/invar_banned.h"

void invar_trace_event_begin(invar_json_text *out, const char *name, const char *ph, int process,
                             int track)
{
    invar_json_text_append(out, ",{", 2);
    invar_json_text_put_string(out, "name", name);
    invar_json_text_put_string(out, "ph", ph);
    invar_json_text_put_int(out, "pid", process);
    invar_json_text_put_int(out, "tid", track);
}

void invar_trace_event_time(invar_json_text *out, const char *key, int64_t ns)
{
    invar_json_text_key(out, key);
    invar_json_text_thousandths(out, ns);
}

void invar_trace_event_end(invar_json_text *out)
{
    invar_json_text_append(out, "}\n", 2);
}

void invar_trace_event_name(invar_json_text *out, const char *what, int process, int track,
                            const char *name)
{
    invar_trace_event_begin(out, what, "M", process, track);
    invar_json_text_put_open(out, "args", '{');
    invar_json_text_put_string(out, "name", name);
    invar_json_text_close(out, '}');
    invar_trace_event_end(out);
}
