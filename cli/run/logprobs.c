/*
 * logprobs.c - writes log-probs as JSON, as numbers and as bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/run/logprobs.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/number.h"

#include "base/invar_banned.h"

static void put_number(invar_json_text *line, float value)
{
    char text[INVAR_NUMBER_SIZE];

    if (isfinite(value)) {
        invar_json_text_f64(line, (double)value);
        return;
    }
    line->status = line->status ? line->status : invar_number_format(text, (double)value);
    if (line->status == INVAR_OK)
        invar_json_text_string(line, text, strlen(text));
}

void invar_logprobs_put(invar_json_text *line, const float *logp, int64_t count)
{
    invar_json_text_key(line, "logprobs");
    invar_json_text_open(line, '[');
    for (int64_t i = 0; i < count; i++)
        put_number(line, logp[i]);
    invar_json_text_close(line, ']');
    invar_json_text_key(line, "bits");
    invar_json_text_open(line, '[');
    for (int64_t i = 0; i < count; i++) {
        char hex[9];
        uint32_t word;
        memcpy(&word, &logp[i], sizeof word);
        (void)snprintf(hex, sizeof hex, "%08" PRIx32, word);
        invar_json_text_string(line, hex, 8);
    }
    invar_json_text_close(line, ']');
}

invar_status invar_logprobs_end(FILE *out, invar_json_text *line)
{
    invar_json_text_newline(line);
    INVAR_TRY(line->status);
    (void)fwrite(line->data, 1, line->bytes, out); // main checks the stream for errors
    invar_json_text_reset(line);
    return INVAR_OK;
}
