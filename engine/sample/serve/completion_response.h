/*
 * completion_response.h - writes completions as the JSON of OpenAI's API, complete or as a stream.
 *
 * The same request to the same server gives the same bytes, except in agent sessions: the id is a
 * hash of the weights and the request, and "created" is the start time of the server.
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

/* Copy of a choice, and how much of it was written to the response. */
typedef struct invar_response_choice {
    invar_detokenizer detokenizer;
    int32_t *tokens; /* (count) copies of the tokens of the generation request */
    float *logp;     /* (count) log-probs */
    size_t *ends;    /* (count) length of the text at the end of each token, in bytes; OPEN, defined
                        in completion_response.c, if the token ends inside of a character */
    int64_t count;
    int64_t tokens_capacity, logp_capacity,
        ends_capacity; /* items that the three arrays have space for */
    int64_t written;   /* tokens that were written */
    int64_t offset; /* text_offset of the next token: characters of the texts of all tokens written
                        so far */
    invar_finish finish;
    bool first_written, last_written; /* the first and the last event of the choice were written */
} invar_response_choice;

/*
 * Zero-initialize before use. Release with invar_completion_response_release, also after a failure.
 * The borrowed objects must outlive the response.
 */
typedef struct invar_completion_response {
    const invar_completion_request *request;
    const invar_generation_request
        *generation; /* borrowed; its prompts are read without the lock */
    const invar_server_info *server_info;
    const invar_tokenizer *tokenizer;
    char id[64];
    invar_response_choice *choices; /* (n_choices) */
    int64_t n_choices;
    int64_t n_tokens; /* tokens of all choices together */
    bool finished;    /* the last event was written */
} invar_completion_response;

/* Initializes a response to `request`. All arguments are borrowed. */
invar_status invar_completion_response_init(invar_completion_response *response,
                                            const invar_completion_request *request,
                                            const invar_generation_request *generation,
                                            const invar_server_info *server_info,
                                            const invar_tokenizer *tokenizer) INVAR_MUST_USE;
void invar_completion_response_release(invar_completion_response *response);

/*
 * Copies the new tokens of the generation request. Caller holds the lock of the inference engine.
 */
invar_status invar_completion_response_copy(invar_completion_response *response) INVAR_MUST_USE;

/* Writes the complete response. The generation request must be done. */
invar_status invar_completion_response_write(invar_json_text *out,
                                             invar_completion_response *response) INVAR_MUST_USE;

/*
 * Writes events for everything that is new since the last call. `done` reports that the generation
 * request is done: the last events follow.
 */
invar_status invar_completion_response_events(invar_json_text *out,
                                              invar_completion_response *response,
                                              bool done) INVAR_MUST_USE;

/* Error object of OpenAI's API. A NULL field is written as null. */
typedef struct invar_response_error {
    const char *message, *type, *param, *code;
} invar_response_error;

/* Writes an object with the member "error". */
void invar_completion_response_put_error(invar_json_text *out, const invar_response_error *error);

/* Writes the last event of a stream, with the object of a failure. */
void invar_completion_response_error_event(invar_json_text *out, const invar_response_error *error);

/* Writes the object of the served model, or a list that contains only that object. */
void invar_completion_response_put_model(invar_json_text *out,
                                         const invar_server_info *server_info);
void invar_completion_response_put_models(invar_json_text *out,
                                          const invar_server_info *server_info);

#endif
