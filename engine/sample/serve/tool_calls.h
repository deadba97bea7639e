/*
 * tool_calls.h - tool calls in a text: <tool_call>{"name": ..., "arguments": ...}</tool_call>.
 *
 * That is how Qwen and many others write them. A block that is no such JSON stays text.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_TOOL_CALLS_H
#define INVAR_ENGINE_SAMPLE_SERVE_TOOL_CALLS_H

#include "base/json/json.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_TOOL_CALLS_BEGIN "<tool_call>"
#define INVAR_TOOL_CALLS_END "</tool_call>"

/* Zeroed at first; release, also after a failure. */
typedef struct invar_tool_calls {
    json_t *list;      /* {"name": string, "arguments": string}; NULL: there are none */
    size_t text_bytes; /* of the text before them, without the white space at its end */
} invar_tool_calls;

/* All calls, if every block is one and only white space stands between and behind them. */
invar_status invar_tool_calls_read(invar_tool_calls *out, const char *text,
                                   size_t bytes) INVAR_MUST_USE;
void invar_tool_calls_release(invar_tool_calls *calls);

#ifdef __cplusplus
}
#endif
#endif
