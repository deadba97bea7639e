/*
 * tokenizer.c - encodes text as token ids.
 *
 * Steps of a text: added tokens are cut out; the rest is normalized; added tokens of normalized
 * text are cut out; the rest is split into pieces by the pre-tokenizer; each piece is a word that
 * BPE encodes. The ids must be those of Hugging Face's tokenizers library.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/text/tokenizer/tokenizer.h"

#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "engine/text/tokenizer/tokenizer_internal.h"
#include "engine/text/unicode.h"

#include "base/invar_banned.h"

/* ---- creation -------------------------------------------------------------------------------- */

invar_status invar_tokenizer_new(invar_tokenizer **out, int64_t size)
{
    invar_tokenizer *t;
    invar_status status;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC_ZEROED(t, 1, "a tokenizer"));
    t->size = size;
    t->eos = -1;
    status = INVAR_ALLOC(t->begins, (size_t)size + 1, "tokens");
    if (status == INVAR_OK)
        status = INVAR_ALLOC(t->flags, (size_t)size, "tokens");
    if (status != INVAR_OK) {
        invar_tokenizer_free(t);
        return status;
    }
    memset(t->begins, 0, ((size_t)size + 1) * sizeof *t->begins);
    memset(t->flags, 0, (size_t)size);
    *out = t;
    return INVAR_OK;
}

void invar_tokenizer_free(invar_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    invar_added_tokens_free(tokenizer->raw);
    invar_added_tokens_free(tokenizer->normalized);
    invar_bpe_free(tokenizer->bpe);
    invar_token_map_free(tokenizer->words);
    invar_token_map_free(tokenizer->symbols.chars);
    invar_free(tokenizer->text);
    invar_free(tokenizer->begins);
    invar_free(tokenizer->flags);
    invar_free(tokenizer);
}

static invar_status fill_alphabet(invar_tokenizer *t, const char *alphabet)
{
    size_t length = (size_t)t->size - 1;

    INVAR_TRY(INVAR_ALLOC(t->text, length, "tokens"));
    memset(t->flags, INVAR_TOKEN_IS_THERE, (size_t)t->size);
    memset(t->letters, -1, sizeof t->letters);
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)alphabet[i];
        if (c < 0x20 || c > 0x7E)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "byte %zu of an alphabet is 0x%02X, not printable "
                              "ASCII",
                              i, c);
        if (t->letters[c] >= 0)
            return INVAR_FAIL(INVAR_E_INVALID, 0, "'%c' is in an alphabet twice", c);
        t->letters[c] = (int16_t)i;
        t->text[i] = (char)c;
        t->begins[i + 1] = i + 1;
    }
    t->begins[length + 1] = length;
    t->flags[length] |= INVAR_TOKEN_IS_SPECIAL;
    t->eos = (int32_t)length;
    t->longest = 1;
    return INVAR_OK;
}

invar_status invar_tokenizer_alphabet(invar_tokenizer **out, const char *alphabet)
{
    size_t length = strlen(alphabet);
    invar_hasher hasher;
    invar_status status;

    *out = NULL;
    if (length == 0 || length > 128)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "an alphabet has %zu characters, not 1 to 128",
                          length);
    INVAR_TRY(invar_tokenizer_new(out, (int64_t)length + 1));
    status = fill_alphabet(*out, alphabet);
    if (status != INVAR_OK) {
        invar_tokenizer_free(*out);
        *out = NULL;
        return status;
    }
    invar_hasher_init(&hasher);
    invar_hasher_update(&hasher, "alphabet", sizeof "alphabet");
    invar_hasher_update(&hasher, alphabet, length);
    invar_hasher_final(&(*out)->hash, &hasher);
    return INVAR_OK;
}

/* ---- properties ------------------------------------------------------------------------------ */

int64_t invar_tokenizer_size(const invar_tokenizer *tokenizer)
{
    return tokenizer->size;
}

int32_t invar_tokenizer_eos(const invar_tokenizer *tokenizer)
{
    return tokenizer->eos;
}

void invar_tokenizer_hash(invar_digest *out, const invar_tokenizer *tokenizer)
{
    *out = tokenizer->hash;
}

const char *invar_tokenizer_bytes(size_t *bytes_out, const invar_tokenizer *tokenizer, int32_t id)
{
    *bytes_out = 0;
    if (id < 0 || id >= tokenizer->size)
        return "";
    *bytes_out = tokenizer->begins[id + 1] - tokenizer->begins[id];
    return tokenizer->text + tokenizer->begins[id];
}

bool invar_tokenizer_special(const invar_tokenizer *tokenizer, int32_t id)
{
    return id >= 0 && id < tokenizer->size && tokenizer->flags[id] & INVAR_TOKEN_IS_SPECIAL;
}

/* ---- encoding -------------------------------------------------------------------------------- */

typedef struct encoder {
    const invar_tokenizer *t;
    const char *origin; /* beginning of the text */
    int32_t *ids;
    int64_t count, capacity;
    invar_bpe_scratch work;
} encoder;

static void release_encoder(encoder *e)
{
    invar_bpe_scratch_release(&e->work);
    invar_free(e->ids);
}

static invar_status encode_word(encoder *e, const char *word, size_t bytes)
{
    int32_t id = invar_token_map_find(e->t->words, word, bytes);
    size_t count;

    INVAR_TRY(INVAR_GROW(e->ids, e->capacity, e->count,
                         e->count + INVAR_SYMBOLS_PER_BYTE * (int64_t)bytes, "token ids"));
    if (id >= 0) {
        e->ids[e->count++] = id;
        return INVAR_OK;
    }
    INVAR_TRY(invar_symbols_word(e->ids + e->count, &count, &e->t->symbols, word, bytes));
    INVAR_TRY(invar_bpe_word(e->ids + e->count, &count, e->t->bpe, &e->work));
    e->count += (int64_t)count;
    return INVAR_OK;
}

/* Encodes a non-empty piece that the first `step` pre-tokenizer steps have processed. */
static invar_status encode_piece(encoder *e, size_t step, const char *text, size_t bytes);

/* Encodes the piece with the literal before it. */
static invar_status encode_prefixed(encoder *e, size_t step, const invar_literal *prefix,
                                    const char *text, size_t bytes)
{
    INVAR_AUTO_FREE char *prefixed = NULL;

    INVAR_TRY(INVAR_ALLOC(prefixed, prefix->bytes + bytes, "text"));
    memcpy(prefixed, prefix->text, prefix->bytes);
    memcpy(prefixed + prefix->bytes, text, bytes);
    return encode_piece(e, step, prefixed, prefix->bytes + bytes);
}

static bool starts_with(const char *text, size_t bytes, const invar_literal *literal)
{
    return bytes >= literal->bytes && memcmp(text, literal->text, literal->bytes) == 0;
}

/* Replaces spaces by the literal and puts it before the piece if the scheme asks for it. */
static invar_status encode_metaspace(encoder *e, size_t step, const char *text, size_t bytes)
{
    INVAR_AUTO_FREE char *replaced = NULL;
    const invar_pre_step *s = &e->t->pipeline.steps[step];
    static const invar_literal space = {" ", 1};
    bool wanted = s->prepend == INVAR_PREPEND_ALWAYS ||
                  (s->prepend == INVAR_PREPEND_FIRST && text == e->origin);
    size_t length = 0;

    INVAR_TRY(invar_replace(&replaced, &length, &space, &s->literal, text, bytes));
    if (replaced) {
        text = replaced;
        bytes = length;
    }
    return wanted && !starts_with(text, bytes, &s->literal)
               ? encode_prefixed(e, step + 1, &s->literal, text, bytes)
               : encode_piece(e, step + 1, text, bytes);
}

static invar_status encode_split(encoder *e, size_t step, const char *text, size_t bytes)
{
    const invar_splitter *splitter = &e->t->pipeline.steps[step].splitter;
    size_t begin, end, at = 0;

    while (invar_split_next(&begin, &end, &at, splitter, text, bytes))
        INVAR_TRY(encode_piece(e, step + 1, text + begin, end - begin));
    return INVAR_OK;
}

static invar_status encode_piece(encoder *e, size_t step, const char *text, size_t bytes)
{
    const invar_pre_step *s = &e->t->pipeline.steps[step];

    if (step == e->t->pipeline.n_steps)
        return encode_word(e, text, bytes);
    switch (s->kind) {
    case INVAR_PRE_STEP_SPLIT: return encode_split(e, step, text, bytes);
    case INVAR_PRE_STEP_METASPACE: return encode_metaspace(e, step, text, bytes);
    case INVAR_PRE_STEP_PREFIX: break;
    }
    return starts_with(text, bytes, &s->literal)
               ? encode_piece(e, step + 1, text, bytes)
               : encode_prefixed(e, step + 1, &s->literal, text, bytes);
}

static invar_status encode_normal(encoder *e, const char *text, size_t bytes)
{
    return encode_piece(e, 0, text, bytes);
}

/* Encodes added tokens and calls `rest` for the non-empty texts between them. */
static invar_status
encode_around_added(encoder *e, const invar_added_tokens *added, const char *text, size_t bytes,
                    invar_status (*rest)(encoder *e, const char *text, size_t bytes))
{
    size_t from = 0, floor = 0;
    invar_added_match match;

    while (invar_added_tokens_find(&match, added, text, bytes, from, floor)) {
        if (floor < match.begin)
            INVAR_TRY(rest(e, text + floor, match.begin - floor));
        INVAR_TRY(INVAR_GROW(e->ids, e->capacity, e->count, e->count + 1, "token ids"));
        e->ids[e->count++] = match.id;
        floor = match.end;
        from = match.search_from;
    }
    return floor < bytes ? rest(e, text + floor, bytes - floor) : INVAR_OK;
}

static invar_status encode_raw(encoder *e, const char *text, size_t bytes)
{
    INVAR_AUTO_FREE char *normal = NULL;
    size_t length;

    INVAR_TRY(invar_normalize(&normal, &length, &e->t->pipeline.normalizer, text, bytes));
    return encode_around_added(e, e->t->normalized, normal ? normal : text, length, encode_normal);
}

static invar_status encode_letters(encoder *e, const char *text, size_t bytes)
{
    INVAR_TRY(INVAR_GROW(e->ids, e->capacity, e->count, e->count + (int64_t)bytes, "token ids"));
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 128 || e->t->letters[c] < 0) {
            char quote[8];
            invar_text_quote(quote, sizeof quote, text + i, bytes - i < 4 ? bytes - i : 4);
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "byte %zu of the text, at \"%s\", is not in the built-in alphabet", i,
                              quote);
        }
        e->ids[e->count++] = e->t->letters[c];
    }
    return INVAR_OK;
}

static invar_status check_text(const char *text, size_t bytes)
{
    uint32_t point;
    size_t length;

    if (bytes > INVAR_TEXT_MAX)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "a text of %zu bytes, more than %zu", bytes,
                          INVAR_TEXT_MAX);
    for (size_t at = 0; at < bytes; at += length) {
        length = invar_text_utf8(&point, text + at, bytes - at);
        if (length == 0)
            return INVAR_FAIL(INVAR_E_INVALID, 0, "byte %zu of the text is not UTF-8", at);
    }
    return INVAR_OK;
}

invar_status invar_tokenizer_encode(int32_t **out, int64_t *count_out,
                                    const invar_tokenizer *tokenizer, const char *text,
                                    size_t bytes)
{
    INVAR_AUTO(release_encoder) encoder e = {.t = tokenizer, .origin = text};

    *out = NULL;
    *count_out = 0;
    INVAR_TRY(check_text(text, bytes));
    INVAR_TRY(INVAR_GROW(e.ids, e.capacity, 0, 1, "token ids"));
    INVAR_TRY(tokenizer->bpe ? encode_around_added(&e, tokenizer->raw, text, bytes, encode_raw)
                             : encode_letters(&e, text, bytes));
    // the scratch array may be many times larger than needed
    INVAR_TRY(INVAR_ALLOC(*out, (size_t)e.count, "token ids"));
    memcpy(*out, e.ids, (size_t)e.count * sizeof *e.ids);
    *count_out = e.count;
    return INVAR_OK;
}
