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

#include "engine/ext/plugin.h"

/* Capacity for the name that a server gives its model (`system_fingerprint`), printable. */
#define INVAR_REMOTE_TEACHER_FINGERPRINT_SIZE 65

/* Properties that a response is compared with. */
typedef struct invar_logprob_expectation {
    const char *name;
    double temperature;
    const invar_token_text_fn *words;
    const char *fingerprint; /* fingerprint of earlier responses; NULL if this is the first one */
} invar_logprob_expectation;

/*
 * Parses a response, which may be any bytes, to the request for the log-probs of the response of
 * `asked`; its index is used in messages, and -1 for the first request. print_out gets the
 * fingerprint. Returns INVAR_E_CORRUPT if the response is invalid, INVAR_E_STATE if another model
 * has answered.
 */
invar_status invar_remote_teacher_read(float *logp_out,
                                       char print_out[INVAR_REMOTE_TEACHER_FINGERPRINT_SIZE],
                                       const invar_logprob_expectation *expected,
                                       const invar_plugin_sample *asked, const char *response,
                                       size_t bytes) INVAR_MUST_USE;

#endif
