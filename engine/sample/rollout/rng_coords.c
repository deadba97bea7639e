/*
 * rng_coords.c - formats and parses the random coordinates of a sample.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/rollout/rng_coords.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "kernels-deterministic/math/philox.h"

#include "base/invar_banned.h"

invar_rng_coords invar_rng_coords_of(const invar_rl_sample *s, uint32_t seed, uint32_t purpose)
{
    return (invar_rng_coords){seed,          purpose,      s->rollout,
                              s->draw_index, s->data.line, s->weights.hash};
}

void invar_rng_coords_format(char out[INVAR_RNG_COORDS_SIZE], const invar_rng_coords *c)
{
    char hex[INVAR_DIGEST_HEX_SIZE];

    invar_digest_format(hex, &c->weights);
    (void)snprintf(out, INVAR_RNG_COORDS_SIZE,
                   "seed=%" PRIu32 ",purpose=%" PRIu32 ",rollout=%" PRIu32 ",draw=%" PRIu32
                   ",prompt=%" PRId64 ",weights=%s",
                   c->seed, c->purpose, c->rollout, c->draw, c->prompt, hex);
}

/* Parses "name=123,", without leading zeros and at most `most`, and moves *at past the comma. */
static bool parse_number(int64_t *out, const char **at, const char *name, int64_t most)
{
    size_t length = strlen(name);
    const char *c = *at + length;
    int64_t value = 0;

    if (strncmp(*at, name, length) != 0 || *c < '0' || *c > '9' || (*c == '0' && c[1] != ','))
        return false;
    for (; *c >= '0' && *c <= '9'; c++) {
        int digit = *c - '0';
        if (value > (most - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *out = value;
    *at = c + 1;
    return *c == ',';
}

invar_status invar_rng_coords_parse(invar_rng_coords *out, const char *text)
{
    char quote[INVAR_TEXT_QUOTE_SIZE * 2];
    int64_t seed, purpose, rollout, draw;
    const char *at = text;

    if (parse_number(&seed, &at, "seed=", UINT32_MAX) &&
        parse_number(&purpose, &at, "purpose=", INVAR_PHILOX_PURPOSES - 1) &&
        parse_number(&rollout, &at, "rollout=", UINT32_MAX) &&
        parse_number(&draw, &at, "draw=", UINT32_MAX) &&
        parse_number(&out->prompt, &at, "prompt=", INT64_MAX) && strncmp(at, "weights=", 8) == 0) {
        out->seed = (uint32_t)seed;
        out->purpose = (uint32_t)purpose;
        out->rollout = (uint32_t)rollout;
        out->draw = (uint32_t)draw;
        if (invar_digest_parse(&out->weights, at + 8) == INVAR_OK)
            return INVAR_OK;
        invar_error_clear();
    }
    invar_text_quote(quote, sizeof quote, text, strlen(text));
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "\"%s\" are no coordinates of a sample; they are a text like \"seed=42,"
                      "purpose=0,rollout=3,draw=17,prompt=25,weights=HEX\", column rng of the "
                      "ledger's table sample",
                      quote);
}
