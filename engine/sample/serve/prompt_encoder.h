/*
 * prompt_encoder.h - encodes the prompts of a request as token ids; chats are rendered first.
 *
 * Threads may encode at the same time. The chat template renders one chat at a time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_PROMPT_ENCODER_H
#define INVAR_ENGINE_SAMPLE_SERVE_PROMPT_ENCODER_H

#include "engine/sample/serve/completion_request.h"

typedef struct invar_prompt_encoder invar_prompt_encoder;

typedef struct invar_prompt_encoder_options {
    const invar_tokenizer *tokenizer; /* this and the other pointers are borrowed */
    const char *hf_dir;               /* this and the next two are the arguments of
                                         invar_chat_template_open */
    const char *template_path;
    const char *template_kwargs;
    int64_t vocab;
    int64_t context;    /* tokens of the longest sequence, prompt and response together */
    bool cut_responses; /* a response ends at the context limit even if the request asks for more
                           tokens */
} invar_prompt_encoder_options;

/*
 * Creates an encoder. A chat template that cannot be opened is not an error: only chats fail then.
 * The caller frees *out with invar_prompt_encoder_free.
 */
invar_status invar_prompt_encoder_new(invar_prompt_encoder **out,
                                      const invar_prompt_encoder_options *options) INVAR_MUST_USE;
void invar_prompt_encoder_free(invar_prompt_encoder *encoder);

/* Returns the reason why chats are not supported; NULL if they are. Borrowed. */
const char *invar_prompt_encoder_no_chat(const invar_prompt_encoder *encoder);

/*
 * Encodes all prompts of the request and sets the length of a response if the request has none.
 * Returns INVAR_E_INVALID if a prompt is empty, too long or has an unknown token, if a stop id is
 * unknown, if a prompt and the length that the request asks for exceed the context, or if the
 * request has tools that the chat template does not use.
 */
invar_status invar_prompt_encoder_make(invar_prompt_encoder *encoder,
                                       invar_completion_request *request) INVAR_MUST_USE;

#endif
