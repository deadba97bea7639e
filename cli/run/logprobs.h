/*
 * logprobs.h - writes log-probs as JSON, as numbers and as bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_RUN_LOGPROBS_H
#define INVAR_CLI_RUN_LOGPROBS_H

#include <stdint.h>
#include <stdio.h>

#include "base/json/text.h"

/*
 * Adds the members "logprobs":[-0.5,...] and "bits":["bf000000",...] to an open object. The
 * numbers, read as double, are exactly the floats; values that are not finite are strings, "nan" or
 * "-inf".
 */
void invar_logprobs_put(invar_json_text *line, const float *logp, int64_t count);

/*
 * Writes the line with a newline to `out` and clears it. Returns the error of the line if it has
 * one.
 */
invar_status invar_logprobs_end(FILE *out, invar_json_text *line) INVAR_MUST_USE;

#endif
