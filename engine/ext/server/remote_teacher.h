/*
 * remote_teacher.h - log-probs of a teacher model behind an OpenAI-compatible HTTP server.
 *
 * Each sample is a POST to URL/completions, as served by `invar serve` and others: its tokens are
 * the prompt, which is returned (`echo`) with log-probs, and nothing is generated. Responses are
 * checked as far as possible: one number per token, finite and at most 0 (plus 0.001 for rounding);
 * texts of tokens that are words, equal to the student's without leading blanks; the same model in
 * all responses; and a temperature other than 1 only from `invar serve`.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_EXT_SERVER_REMOTE_TEACHER_H
#define INVAR_ENGINE_EXT_SERVER_REMOTE_TEACHER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_remote_teacher invar_remote_teacher;

/* Texts of the student's tokens; `payload` is borrowed. */
typedef struct invar_token_text_fn {
    /* Returns the text of a token, which need not be UTF-8. */
    const char *(*text)(size_t *bytes_out, const void *payload, int32_t token);
    const void *payload;
    int64_t count; /* number of token ids */
} invar_token_text_fn;

typedef struct invar_remote_teacher_options {
    const char *name;  /* key of the recipe, used in error messages; at most 64 bytes */
    const char *url;   /* URL with the version of the API: http://HOST:PORT/v1 */
    const char *model; /* model to request; empty for the server's default */
    const char *key;   /* API key; NULL if absent */
    double timeout;    /* time limit of a request in seconds; 0 for no limit */
    double temperature;
    invar_token_text_fn words;
} invar_remote_teacher_options;

/*
 * Opens a client and requests the log-probs of a few tokens, so that an unsuitable server is found
 * before anything is sampled. Close with invar_remote_teacher_close.
 */
invar_status invar_remote_teacher_open(invar_remote_teacher **out,
                                       const invar_remote_teacher_options *options) INVAR_MUST_USE;
void invar_remote_teacher_close(invar_remote_teacher *teacher);

/* Sets a callback that runs at least once per second while responses are awaited. */
void invar_remote_teacher_set_wait_callback(invar_remote_teacher *teacher,
                                            void (*waits)(void *payload), void *payload);

/*
 * Name that the server gives its model (`system_fingerprint`), printable; empty if it gives no
 * name.
 */
#define INVAR_REMOTE_TEACHER_FINGERPRINT_SIZE 65
const char *invar_remote_teacher_fingerprint(const invar_remote_teacher *teacher);

/* One sequence; the log-probs of the tokens from `first` on are requested. */
typedef struct invar_logprob_request {
    const int32_t *tokens; /* (count) */
    int64_t count;         /* at least 2 */
    int64_t first;         /* at least 1 */
    int64_t index; /* index of the sample, used in error messages; -1 for the first request */
} invar_logprob_request;

/* Requests log-probs. logp_out gets (count - first) values per request, concatenated. */
invar_status invar_remote_teacher_ask(float *logp_out, invar_remote_teacher *teacher,
                                      const invar_logprob_request *requests,
                                      size_t count) INVAR_MUST_USE;

/* ---- responses ------------------------------------------------------------------------------- */

/* Properties that a response is compared with. */
typedef struct invar_logprob_expectation {
    const char *name;
    double temperature;
    const invar_token_text_fn *words;
    const char *fingerprint; /* fingerprint of earlier responses; NULL if this is the first one */
} invar_logprob_expectation;

/*
 * Parses a response, which may be any bytes; print_out gets its fingerprint. Returns
 * INVAR_E_CORRUPT if it is invalid, INVAR_E_STATE if another model has answered.
 */
invar_status invar_remote_teacher_read(float *logp_out,
                                       char print_out[INVAR_REMOTE_TEACHER_FINGERPRINT_SIZE],
                                       const invar_logprob_expectation *expected,
                                       const invar_logprob_request *request, const char *response,
                                       size_t bytes) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
