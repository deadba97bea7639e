/*
 * logprobs.h - log-probabilities as JSON: as numbers and as bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_RUN_LOGPROBS_H
#define INVAR_CLI_RUN_LOGPROBS_H

#include <stdint.h>
#include <stdio.h>

#include "base/json/text.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The members "logprobs":[-0.5,...] and "bits":["bf000000",...] of an open object. The numbers read
 * as double are the floats exactly; one that is not finite is a string, "nan" or "-inf".
 */
void invar_logprobs_put(invar_json_text *line, const float *logp, int64_t count);

/* Writes the line with its end, or yields its failure; it is empty then. */
invar_status invar_logprobs_end(FILE *out, invar_json_text *line) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
