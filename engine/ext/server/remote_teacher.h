/*
 * remote_teacher.h - a teacher that is asked over HTTP: log-probs of tokens that a student has
 * drawn.
 *
 * The server speaks OpenAI's API, as `invar serve` and others do. Each sample is a POST to
 * URL/completions: its tokens are the prompt, which comes back (`echo`) with log-probs, and nothing
 * is generated. Of an answer everything is checked that can be: as many numbers as tokens, finite
 * and none above 0; tokens that are the same words there; the same model from the first answer to
 * the last; and a temperature other than 1 only from a server that says it has scored with it.
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

/* What tokens are, as the student knows them; borrowed. */
typedef struct invar_token_text_fn {
    /* The text of a token, bytes that need not be UTF-8. */
    const char *(*text)(size_t *bytes_out, const void *payload, int32_t token);
    const void *payload;
    int64_t count; /* ids are below this */
} invar_token_text_fn;

typedef struct invar_remote_teacher_options {
    const char *name;  /* of the recipe's key, for messages; at most 64 bytes */
    const char *url;   /* with the version of the API: http://HOST:PORT/v1 */
    const char *model; /* that is asked for; "": the server's own */
    const char *key;   /* shown to the server; NULL: none */
    double timeout;    /* seconds that a call may take; 0: no limit */
    double temperature;
    invar_token_text_fn words;
} invar_remote_teacher_options;

/* Asks for a few tokens at once: a server that cannot teach is found before anything is drawn. */
invar_status invar_remote_teacher_open(invar_remote_teacher **out,
                                       const invar_remote_teacher_options *options) INVAR_MUST_USE;
void invar_remote_teacher_close(invar_remote_teacher *teacher);

/* Called at least every second while answers are awaited. */
void invar_remote_teacher_watch(invar_remote_teacher *teacher, void (*waits)(void *payload),
                                void *payload);

/* What the server calls its model (`system_fingerprint`), printable; "": it gives no name. */
#define INVAR_REMOTE_TEACHER_PRINT_SIZE 65
const char *invar_remote_teacher_fingerprint(const invar_remote_teacher *teacher);

/* Tokens, of which those from `first` on are asked for. */
typedef struct invar_logprob_request {
    const int32_t *tokens; /* (count) */
    int64_t count;         /* at least 2 */
    int64_t first;         /* at least 1 */
    int64_t index;         /* of the sample, for messages; -1: of none, a first question */
} invar_logprob_request;

/* logp_out: (count - first) of each question, one behind the other. */
invar_status invar_remote_teacher_ask(float *logp_out, invar_remote_teacher *teacher,
                                      const invar_logprob_request *questions,
                                      size_t count) INVAR_MUST_USE;

/* ---- an answer ------------------------------------------------------------------------------- */

/* What an answer is compared with. */
typedef struct invar_logprob_expectation {
    const char *name;
    double temperature;
    const invar_token_text_fn *words;
    const char *print; /* what an earlier answer called the model; NULL: there was none */
} invar_logprob_expectation;

/* Bytes that may be anything; print_out is what this one calls the model. INVAR_E_CORRUPT,
   INVAR_E_STATE: another model has answered. */
invar_status invar_remote_teacher_read(float *logp_out,
                                       char print_out[INVAR_REMOTE_TEACHER_PRINT_SIZE],
                                       const invar_logprob_expectation *expected,
                                       const invar_logprob_request *question, const char *answer,
                                       size_t bytes) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
