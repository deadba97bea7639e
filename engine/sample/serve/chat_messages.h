/*
 * chat_messages.h - converts the messages of a chat request from OpenAI's form for the chat
 * template.
 *
 * Content that is a list of text parts becomes one string, with a line feed between parts.
 * Arguments of earlier tool calls, which are JSON inside a string, become JSON values. The role
 * "developer" becomes "system".
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_CHAT_MESSAGES_H
#define INVAR_ENGINE_SAMPLE_SERVE_CHAT_MESSAGES_H

#include "base/json/json.h"
#include "engine/sample/serve/memory.h"

/*
 * Converts `messages` into *out, which the caller initializes to NULL and frees with json_decref,
 * also after a failure. Returns INVAR_E_INVALID if `messages` is NULL or not valid. Reserves in
 * `memory` what the arguments of tool calls become; the caller has reserved a copy of the messages.
 */
invar_status invar_chat_messages_read(json_t **out, const json_t *messages,
                                      const invar_serve_memory *memory) INVAR_MUST_USE;

/* Returns INVAR_E_INVALID if `tools` is not a list of functions. `tools` may be NULL. */
invar_status invar_chat_messages_check_tools(const json_t *tools) INVAR_MUST_USE;

#endif
