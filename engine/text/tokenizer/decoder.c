/*
 * decoder.c - reads the decoder of tokenizer.json and applies it to single tokens.
 *
 * The decoders of the library are a chain of functions on lists of strings. Accepted are chains
 * whose text can be shown token by token: steps on single tokens, then runs of bytes, then all
 * tokens joined (one character may be replaced, and the characters may stand for bytes), then
 * characters stripped from the beginning of the text. Any other order is rejected.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/text/tokenizer/decoder.h"

#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "engine/text/tokenizer/component_json.h"

#include "base/invar_banned.h"

/* ---- reading --------------------------------------------------------------------------------- */

/* Position in the chain: a kind of decoder is accepted at some stages only. */
typedef enum stage {
    STAGE_BEGIN,
    STAGE_TOKENS,  /* steps on single tokens were read */
    STAGE_STRINGS, /* runs of bytes were joined */
    STAGE_FUSED,
    STAGE_RESPELT, /* ByteLevel of the joined text was read */
    STAGE_END
} stage;

typedef struct decoder_chain {
    invar_text_decoder *out;
    stage at;
} decoder_chain;

/*
 * Accepts one character only, because a character is never divided between tokens, and not U+FFFD,
 * because a run that is not UTF-8 produces it.
 */
static invar_status read_joined_replace(decoder_chain *c, const invar_tokenizer_component *part,
                                        const invar_token_step *step)
{
    uint32_t point;

    if (c->at > STAGE_FUSED || c->out->from.bytes)
        return invar_component_unknown(part, "Replace at this place of the Sequence");
    if (invar_text_utf8(&point, step->from.text, step->from.bytes) != step->from.bytes ||
        point == 0xFFFD)
        return invar_component_unknown(part,
                                       "Replace of other than one character of joined tokens");
    c->out->from = step->from;
    c->out->to = step->to;
    return INVAR_OK;
}

static invar_status read_replace(decoder_chain *c, const invar_tokenizer_component *part)
{
    invar_token_step step = {.kind = INVAR_TOKEN_REPLACE};
    const char *regex;

    INVAR_TRY(invar_component_pattern(&regex, &step.from, part));
    if (regex)
        return invar_component_unknown(part, regex);
    INVAR_TRY(invar_component_literal(&step.to, part, "content"));
    if (c->at > STAGE_TOKENS)
        return read_joined_replace(c, part, &step);
    if (c->out->n_steps == INVAR_TOKEN_STEPS_MAX)
        return invar_component_unknown(part, "Replace at this place of the Sequence");
    c->out->steps[c->out->n_steps++] = step;
    c->at = STAGE_TOKENS;
    return INVAR_OK;
}

static invar_status read_strip(decoder_chain *c, const invar_tokenizer_component *part)
{
    invar_token_step step = {.kind = INVAR_TOKEN_STRIP};
    int64_t start, stop;

    INVAR_TRY(invar_component_char(&step.from, part, "content"));
    INVAR_TRY(invar_json_int(&start, part->json, "start", part->where, 0, INVAR_STRIP_MAX));
    INVAR_TRY(invar_json_int(&stop, part->json, "stop", part->where, 0, 0));
    step.count = (size_t)start;
    if (c->at == STAGE_FUSED || c->at == STAGE_RESPELT) {
        c->out->strip = step.from;
        c->out->n_strip = step.count;
        c->at = STAGE_END;
        return INVAR_OK;
    }
    if (c->at > STAGE_TOKENS || c->out->n_steps == INVAR_TOKEN_STEPS_MAX)
        return invar_component_unknown(part, "Strip at this place of the Sequence");
    c->out->steps[c->out->n_steps++] = step;
    c->at = STAGE_TOKENS;
    return INVAR_OK;
}

static invar_status read_metaspace(decoder_chain *c, const invar_tokenizer_component *part)
{
    const char *scheme = "always";
    bool prefix;

    INVAR_TRY(invar_component_char(&c->out->metaspace, part, "replacement"));
    if (invar_json_has(part->json, "prepend_scheme"))
        INVAR_TRY(invar_json_string(&scheme, part->json, "prepend_scheme", part->where));
    INVAR_TRY(invar_component_flag(&prefix, part, "add_prefix_space", true));
    c->out->drop_first = prefix && strcmp(scheme, "never") != 0;
    c->at = STAGE_STRINGS;
    return INVAR_OK;
}

/*
 * Reads ByteLevel. Each token is bytes or text by itself; after Fuse, the joined text is one token.
 */
static invar_status read_byte_level(decoder_chain *c, const invar_tokenizer_component *part)
{
    if (c->at > STAGE_TOKENS && (c->at != STAGE_FUSED || c->out->byte_level))
        return invar_component_unknown(part, "ByteLevel at this place of the Sequence");
    if (c->at == STAGE_FUSED) {
        c->out->respell = true;
        c->at = STAGE_RESPELT;
    } else {
        c->out->byte_level = true;
        c->at = STAGE_FUSED;
    }
    return INVAR_OK;
}

static invar_status read_decoder(void *out, const invar_tokenizer_component *part, const char *type,
                                 bool last)
{
    decoder_chain *c = out;

    (void)last;
    if (strcmp(type, "ByteLevel") == 0)
        return read_byte_level(c, part);
    if (strcmp(type, "Metaspace") == 0 && c->at == STAGE_BEGIN)
        return read_metaspace(c, part);
    if (strcmp(type, "ByteFallback") == 0 && c->at <= STAGE_TOKENS) {
        c->out->byte_fallback = true;
        c->at = STAGE_STRINGS;
        return INVAR_OK;
    }
    if (strcmp(type, "Fuse") == 0) {
        c->at = c->at < STAGE_FUSED ? STAGE_FUSED : c->at;
        return INVAR_OK;
    }
    if (strcmp(type, "Replace") == 0)
        return read_replace(c, part);
    if (strcmp(type, "Strip") == 0)
        return read_strip(c, part);
    return invar_component_unknown(part, type);
}

invar_status invar_text_decoder_read(invar_text_decoder *out, const json_t *json, const char *where)
{
    const invar_tokenizer_component part = {where, "decoder", json};
    decoder_chain c = {out, STAGE_BEGIN};

    *out = (invar_text_decoder){0};
    out->spaced = !json || json_is_null(json);
    return out->spaced ? INVAR_OK : invar_component_each(&c, &part, "decoders", read_decoder);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static size_t count_stripped(const invar_literal *character, size_t count, const char *text,
                             size_t bytes)
{
    size_t at = 0;

    for (size_t i = 0; i < count && bytes - at >= character->bytes &&
                       memcmp(text + at, character->text, character->bytes) == 0;
         i++)
        at += character->bytes;
    return at;
}

size_t invar_text_decoder_stripped(const invar_text_decoder *decoder, const char *text,
                                   size_t bytes)
{
    return count_stripped(&decoder->strip, decoder->n_strip, text, bytes);
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* Returns the byte of "<0x0A>", or -1. The first digit may be a plus sign, as in the library. */
static int parse_byte_token(const char *text, size_t bytes)
{
    int high, low;

    if (bytes != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    high = text[3] == '+' ? 0 : hex_digit(text[3]);
    low = hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* Applies a step in place. *text may be replaced by another block. */
static invar_status apply_token_step(char **text, size_t *bytes, const invar_token_step *step)
{
    size_t cut, length;
    char *next;

    if (step->kind == INVAR_TOKEN_REPLACE) {
        INVAR_TRY(invar_replace(&next, &length, &step->from, &step->to, *text, *bytes));
        if (next) {
            invar_free(*text);
            *text = next;
            *bytes = length;
        }
        return INVAR_OK;
    }
    cut = count_stripped(&step->from, step->count, *text, *bytes);
    memmove(*text, *text + cut, *bytes - cut);
    *bytes -= cut;
    return INVAR_OK;
}

/* Replaces *text by the bytes that it stands for. Keeps it if a character stands for no byte. */
static invar_status decode_byte_chars(char **text, size_t *bytes, const invar_byte_chars *map)
{
    size_t length;
    char *spelt;

    INVAR_TRY(INVAR_ALLOC(spelt, *bytes, "a token"));
    if (!invar_byte_chars_read(spelt, &length, map, *text, *bytes)) {
        invar_free(spelt);
        return INVAR_OK;
    }
    invar_free(*text);
    *text = spelt;
    *bytes = length;
    return INVAR_OK;
}

invar_status invar_text_decoder_token(char **out, size_t *bytes_out, bool *byte_out,
                                      const invar_text_decoder *decoder,
                                      const invar_byte_chars *map, const char *name)
{
    invar_status status = INVAR_OK;
    int byte;

    *byte_out = false;
    *bytes_out = strlen(name);
    INVAR_TRY(INVAR_ALLOC(*out, *bytes_out, "a token"));
    memcpy(*out, name, *bytes_out);
    for (size_t i = 0; i < decoder->n_steps && status == INVAR_OK; i++)
        status = apply_token_step(out, bytes_out, &decoder->steps[i]);
    if (status == INVAR_OK && decoder->byte_level)
        status = decode_byte_chars(out, bytes_out, map);
    if (status != INVAR_OK) {
        invar_free(*out);
        *out = NULL;
        return status;
    }
    byte = decoder->byte_fallback && !decoder->byte_level ? parse_byte_token(*out, *bytes_out) : -1;
    if (byte >= 0) {
        (*out)[0] = (char)byte;
        *bytes_out = 1;
        *byte_out = true;
    }
    return INVAR_OK;
}
