/*
 * completion_request.h - a request to complete texts or chats, read from the JSON that somebody has
 * sent.
 *
 * The body is hostile: sizes and ranges are checked here, and all that would be ignored and change
 * the answer is refused. Nothing of it needs a model: texts become tokens in prompt_encoder.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_COMPLETION_REQUEST_H
#define INVAR_ENGINE_SAMPLE_SERVE_COMPLETION_REQUEST_H

#include "base/json/json.h"
#include "engine/sample/rollout/rollout.h"
#include "engine/sample/serve/memory.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum invar_completion_kind {
    INVAR_COMPLETION_REQUEST_TEXT, /* /v1/completions */
    INVAR_COMPLETION_REQUEST_CHAT  /* /v1/chat/completions */
} invar_completion_kind;

#define INVAR_COMPLETION_REQUEST_MAX_CHOICES 1024 /* prompts * n */
#define INVAR_COMPLETION_REQUEST_MAX_STOPS 16
#define INVAR_COMPLETION_REQUEST_LEAST_TEMPERATURE                                                 \
    1e-3 /* above 0: far below, logits leave the numbers */

/* One of the prompts: text, or tokens at once. */
typedef struct invar_completion_prompt {
    const char *text; /* (text_bytes) borrowed from the body; NULL: ids */
    size_t text_bytes;
    int32_t *ids; /* (n_ids) owned */
    int64_t n_ids;
} invar_completion_prompt;

/* Zeroed at first; release, also after a failure. */
typedef struct invar_completion_request {
    invar_completion_kind kind;
    json_t *body;
    const char *param;                /* the field that a failure is about; NULL: none of them */
    const invar_serve_memory *memory; /* of the request; NULL: nobody counts it */
    const char *model;                /* NULL: not said */

    invar_completion_prompt
        *prompts; /* (n_prompts) of a text; of a chat prompt_encoder.h makes one */
    int64_t n_prompts;
    json_t *messages;    /* of a chat, as its template wants them; owned */
    const json_t *tools; /* borrowed from the body; NULL: none */

    int64_t n;                      /* choices for each prompt */
    invar_sampling_params sampling; /* max_response 0: nothing is generated; -1: nobody has said */
    const char *length;             /* field that sets max_response; NULL if the request has none */
    int32_t *stop_ids;              /* its arrays, owned */
    const char **stop;              /* the strings are borrowed */

    bool stream, usage, logprobs, echo, ids;
} invar_completion_request;

/*
 * `sampling` is what holds where the request says nothing; its stops hold in any case. `memory`
 * (borrowed, may be NULL) has reserved what parsing the body takes.
 */
invar_status invar_completion_request_read(invar_completion_request *out,
                                           invar_completion_kind kind, const char *body,
                                           size_t bytes, const invar_sampling_params *sampling,
                                           const invar_serve_memory *memory) INVAR_MUST_USE;
void invar_completion_request_release(invar_completion_request *ask);

#ifdef __cplusplus
}
#endif
#endif
