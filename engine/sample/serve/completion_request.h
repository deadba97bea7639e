/*
 * completion_request.h - parses and validates the JSON body of a completion or chat request.
 *
 * The body is untrusted. Every size and range is checked, and a field that would change the result
 * but is not supported is an error, never ignored. Nothing here needs the model: texts are encoded
 * later, by prompt_encoder.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_COMPLETION_REQUEST_H
#define INVAR_ENGINE_SAMPLE_SERVE_COMPLETION_REQUEST_H

#include "base/json/json.h"
#include "engine/sample/rollout/rollout.h"
#include "engine/sample/serve/memory.h"

typedef enum invar_completion_kind {
    INVAR_COMPLETION_REQUEST_TEXT, /* /v1/completions */
    INVAR_COMPLETION_REQUEST_CHAT  /* /v1/chat/completions */
} invar_completion_kind;

#define INVAR_COMPLETION_REQUEST_MAX_CHOICES 1024 /* limit for prompts * n */
#define INVAR_COMPLETION_REQUEST_MAX_STOPS 16
/* Smallest temperature above 0. Far below it, logits divided by it overflow. */
#define INVAR_COMPLETION_REQUEST_MIN_TEMPERATURE 1e-3

/* One prompt, given as text or as token ids. */
typedef struct invar_completion_prompt {
    const char *text; /* (text_bytes) borrowed from the body; NULL if the prompt is given as ids */
    size_t text_bytes;
    int32_t *ids; /* (n_ids) token ids, owned */
    int64_t n_ids;
} invar_completion_prompt;

/*
 * Zero-initialize before use. Release with invar_completion_request_release, also after a failure.
 */
typedef struct invar_completion_request {
    invar_completion_kind kind;
    json_t *body;
    const char *param;                /* field that a failure is about; NULL if it is about none */
    const invar_serve_memory *memory; /* reserves memory for the request; NULL if memory is not
                                         limited */
    const char *model;                /* name of the model; NULL if the request does not give it */

    invar_completion_prompt *prompts; /* (n_prompts) owned; for a chat, prompt_encoder.h creates the
                                         only one */
    int64_t n_prompts;
    json_t *messages;    /* messages of a chat, converted for the chat template; owned */
    const json_t *tools; /* tools of a chat, borrowed from the body; NULL if it has no tools */

    int64_t n;                      /* choices for each prompt */
    invar_sampling_params sampling; /* max_response is 0 if nothing is generated, -1 if the request
                                       gives no length */
    const char *length_param;       /* field that sets max_response; NULL if the request has none */
    int32_t *stop_ids;              /* token ids that end a choice; owned */
    const char **stop;              /* strings that end a choice; the array is owned, the strings
                                       are borrowed */

    bool stream, include_usage, logprobs, echo, return_token_ids;
} invar_completion_request;

/*
 * Parses the body. `sampling` holds the values that apply unless the request sets them; the stops
 * of the request are added to its stops. `memory` (borrowed, may be NULL) has reserved what parsing
 * the body takes. Returns INVAR_E_INVALID with out->param set if a field is not valid.
 */
invar_status invar_completion_request_read(invar_completion_request *out,
                                           invar_completion_kind kind, const char *body,
                                           size_t bytes, const invar_sampling_params *sampling,
                                           const invar_serve_memory *memory) INVAR_MUST_USE;
void invar_completion_request_release(invar_completion_request *request);

#endif
