/*
 * tool_calls.h - parser of tool calls in a response: <tool_call>{"name": ..., "arguments":
 * ...}</tool_call>.
 *
 * Qwen and many other models write tool calls in this form. If a block does not have this form, all
 * blocks stay text.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_TOOL_CALLS_H
#define INVAR_ENGINE_SAMPLE_SERVE_TOOL_CALLS_H

#include "base/json/json.h"

#define INVAR_TOOL_CALLS_BEGIN "<tool_call>"
#define INVAR_TOOL_CALLS_END "</tool_call>"

/* Zero-initialize before use. Release with invar_tool_calls_release, also after a failure. */
typedef struct invar_tool_calls {
    json_t *list;      /* objects {"name": string, "arguments": string}, owned; NULL if there are no
                          tool calls */
    size_t text_bytes; /* bytes of the text before the first call, without the white space at its
                          end */
} invar_tool_calls;

/*
 * Reads all tool calls of the text. out->list is NULL, and text_bytes is `bytes`, if the text has
 * no block, if a block is not a tool call, or if other text stands between or after the blocks.
 */
invar_status invar_tool_calls_read(invar_tool_calls *out, const char *text,
                                   size_t bytes) INVAR_MUST_USE;
void invar_tool_calls_release(invar_tool_calls *calls);

#endif
