/*
 * chat_template.h - messages to one text: a model's chat template, by the real Jinja2.
 *
 * A child process (python3 with jinja2) renders with the environment of transformers'
 * apply_chat_template. It is needed while a data set is loaded, never during a run. A template that
 * asks for the clock (strftime_now) or prints what is no data, such as a generator's address, is
 * refused: its text would differ from day to day, or from run to run.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TEXT_CHAT_CHAT_TEMPLATE_H
#define INVAR_ENGINE_TEXT_CHAT_CHAT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/hash.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_chat_template invar_chat_template;

/*
 * The template of `path`; where that is "", DIR/chat_template.jinja and the files of
 * DIR/additional_chat_templates, or else chat_template in DIR/tokenizer_config.json (of several,
 * "default", and "tool_use" with tools). The variables bos_token, eos_token and their kin come from
 * the latter file where it is there; an empty `hf_dir` has no files. `kwargs` is a JSON object of
 * more variables, "" for none. INVAR_E_NOTFOUND: there is no template.
 */
invar_status invar_chat_template_open(invar_chat_template **out, const char *hf_dir,
                                      const char *path, const char *kwargs) INVAR_MUST_USE;

#define INVAR_CHAT_TEMPLATE_SECONDS 60.0

/* The same with another limit than INVAR_CHAT_TEMPLATE_SECONDS for the start and for every text. */
invar_status invar_chat_template_open_within(invar_chat_template **out, const char *hf_dir,
                                             const char *path, const char *kwargs,
                                             double seconds) INVAR_MUST_USE;
void invar_chat_template_close(invar_chat_template *chat);

/*
 * `messages` is a JSON list; `tools` a JSON list, or "" for none. The text is UTF-8 with a NUL at
 * its end that is not counted; the caller owns *out (invar_free). After an error of the template
 * itself (INVAR_E_INVALID: the message is Jinja2's) the next render may succeed; after a child that
 * died or hung (INVAR_E_IO) it cannot. Not for two threads at once.
 */
invar_status invar_chat_template_render(char **out, size_t *bytes_out, invar_chat_template *chat,
                                        const char *messages, const char *tools,
                                        bool add_generation_prompt) INVAR_MUST_USE;

/* The digest of the template's text, its variables and kwargs: part of a data set's identity. */
void invar_chat_template_hash(invar_digest *out, const invar_chat_template *chat);

#ifdef __cplusplus
}
#endif
#endif
