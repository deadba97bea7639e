/*
 * completion_response.h - replies: choices as the JSON of OpenAI's API, whole or as the events of a
 * stream.
 *
 * The same request has the same bytes as its reply from the same server: the id is a hash of what
 * was asked, and "created" is when the server started.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_COMPLETION_RESPONSE_H
#define INVAR_ENGINE_SAMPLE_SERVE_COMPLETION_RESPONSE_H

#include "base/json/text.h"
#include "engine/sample/serve/completion_request.h"
#include "engine/sample/serve/detokenizer.h"
#include "engine/sample/serve/inference_engine.h"
#include "engine/sample/serve/server_info.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What is known of a choice, and how much of it was written. */
typedef struct invar_response_choice {
    invar_detokenizer voice;
    int32_t *tokens; /* (count) copies of the ticket's */
    float *logp;     /* (count) */
    size_t *
        ends; /* (count) bytes of the text up to each token's end; completion_response.c has OPEN */
    int64_t count;
    int64_t room;
    int64_t written; /* tokens that were */
    int64_t offset;  /* characters of their texts */
    invar_finish finish;
    bool begun, ended; /* its first and its last event were written */
} invar_response_choice;

/* Zeroed at first; release, also after a failure. All that is borrowed lives longer. */
typedef struct invar_completion_response {
    const invar_completion_request *ask;
    const invar_generation_request *ticket; /* its prompts are read */
    const invar_server_info *facts;
    const invar_tokenizer *tokenizer;
    char id[64];
    invar_response_choice *choices; /* (n_choices) */
    int64_t n_choices;
    int64_t known; /* tokens of all choices */
    bool finished; /* the last event was written */
} invar_completion_response;

invar_status invar_completion_response_init(invar_completion_response *reply,
                                            const invar_completion_request *ask,
                                            const invar_generation_request *ticket,
                                            const invar_server_info *facts,
                                            const invar_tokenizer *tokenizer) INVAR_MUST_USE;
void invar_completion_response_release(invar_completion_response *reply);

/* Copies what is new of the ticket; with the lock that it is under. */
invar_status invar_completion_response_copy(invar_completion_response *reply) INVAR_MUST_USE;

/* All of it, when the ticket is done. */
invar_status invar_completion_response_whole(invar_json_text *out,
                                             invar_completion_response *reply) INVAR_MUST_USE;

/* Events for what is new since the last call; of a ticket that is `done` the last ones. */
invar_status invar_completion_response_events(invar_json_text *out,
                                              invar_completion_response *reply,
                                              bool done) INVAR_MUST_USE;

/* What went wrong, in OpenAI's form. NULL is null. */
typedef struct invar_response_error {
    const char *message, *type, *param, *code;
} invar_response_error;

void invar_completion_response_put_error(invar_json_text *out, const invar_response_error *error);

/* The model, or the list of the only one. */
void invar_completion_response_put_model(invar_json_text *out, const invar_server_info *facts);
void invar_completion_response_put_models(invar_json_text *out, const invar_server_info *facts);

#ifdef __cplusplus
}
#endif
#endif
