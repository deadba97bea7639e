/*
 * chat_template.h - renders messages as one text with the chat template of a model, by Jinja2
 * itself.
 *
 * A child process (python3 with jinja2) renders with the environment of transformers'
 * apply_chat_template. Data sets need it while they are loaded, and the HTTP server for each chat
 * request. A template that reads the clock (strftime_now) or prints the address of an object is
 * rejected, because its text would differ from run to run.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TEXT_CHAT_CHAT_TEMPLATE_H
#define INVAR_ENGINE_TEXT_CHAT_CHAT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/hash.h"
#include "base/status.h"

typedef struct invar_chat_template invar_chat_template;

/*
 * Opens the template of the file `path`. If `path` is empty, it uses DIR/chat_template.jinja and
 * the files of DIR/additional_chat_templates, or else chat_template in DIR/tokenizer_config.json;
 * if there are several templates, "default", and "tool_use" for requests with tools. Variables such
 * as bos_token and eos_token come from tokenizer_config.json, if it exists; an empty `hf_dir` has
 * no files. `kwargs` is a JSON object with more variables, or empty. Returns INVAR_E_NOTFOUND if
 * there is no template. The caller closes *out.
 */
invar_status invar_chat_template_open(invar_chat_template **out, const char *hf_dir,
                                      const char *path, const char *kwargs) INVAR_MUST_USE;

#define INVAR_CHAT_TEMPLATE_SECONDS 60.0

/*
 * Like invar_chat_template_open, with `seconds` instead of INVAR_CHAT_TEMPLATE_SECONDS as the time
 * limit for the start and for each text.
 */
invar_status invar_chat_template_open_within(invar_chat_template **out, const char *hf_dir,
                                             const char *path, const char *kwargs,
                                             double seconds) INVAR_MUST_USE;
void invar_chat_template_close(invar_chat_template *chat);

/*
 * Renders `messages`, a JSON list, with `tools`, a JSON list or empty. The text is UTF-8,
 * terminated by a NUL that *bytes_out does not count; the caller frees it with invar_free. After an
 * error of the template itself (INVAR_E_INVALID with Jinja2's message) the next call may succeed;
 * after the child has died or hung (INVAR_E_IO) it cannot. Not thread-safe.
 */
invar_status invar_chat_template_render(char **out, size_t *bytes_out, invar_chat_template *chat,
                                        const char *messages, const char *tools,
                                        bool add_generation_prompt) INVAR_MUST_USE;

#endif
