/*
 * chat_messages.h - the messages of a chat, from OpenAI's form to the one that chat templates read.
 *
 * Text that comes in parts becomes one string, with a line end between parts. Arguments of earlier
 * tool calls, which are JSON within a string, become JSON. The role "developer" is "system".
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_CHAT_MESSAGES_H
#define INVAR_ENGINE_SAMPLE_SERVE_CHAT_MESSAGES_H

#include "base/json/json.h"
#include "engine/sample/serve/memory.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The caller owns *out (json_decref). `messages` may be NULL, which is refused. `memory` reserves
 * what the arguments of tool calls become; a copy of the messages is reserved before.
 */
invar_status invar_chat_messages_read(json_t **out, const json_t *messages,
                                      const invar_serve_memory *memory) INVAR_MUST_USE;

/* A list of functions; NULL is none. */
invar_status invar_chat_messages_check_tools(const json_t *tools) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
