/*
 * text_stream.c - ids to text, token by token: whole characters, U+FFFD for what is no UTF-8.
 *
 * Of byte-level tokens one U+FFFD stands for the longest beginning of a character that nothing
 * continues, else for one byte: the recommendation of the Unicode standard. Of a run of byte tokens
 * between strings (byte_fallback) that is not UTF-8 every byte becomes one: a run that was shown as
 * characters changes then. The tokenizers library does both.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "engine/tokenizer/parts.h"

#include "base/invar_banned.h"

static const char replacement[] = "\xEF\xBF\xBD";

static invar_status append(invar_text_stream *stream, const char *text, size_t bytes)
{
    size_t capacity = stream->capacity ? stream->capacity : 64;
    char *grown;

    while (capacity - 1 < stream->used + bytes)
        capacity *= 2;
    if (capacity > stream->capacity) {
        INVAR_TRY(invar_alloc((void **)&grown, capacity, 1, "text"));
        if (stream->whole)
            memcpy(grown, stream->whole, stream->used);
        invar_free(stream->whole);
        stream->whole = grown;
        stream->capacity = capacity;
    }
    memcpy(stream->whole + stream->used, text, bytes);
    stream->used += bytes;
    stream->whole[stream->used] = '\0';
    return INVAR_OK;
}

/* ---- bytes to characters --------------------------------------------------------------------- */

/* Bytes of the character that begins so; 0 when none does. */
static size_t length_of(unsigned char first)
{
    return first < 0x80   ? 1
           : first < 0xC2 ? 0
           : first < 0xE0 ? 2
           : first < 0xF0 ? 3
           : first < 0xF5 ? 4
                          : 0;
}

/* True when the byte may follow what is pending: no overlong form, surrogate or number too high. */
static bool continues(const invar_text_stream *stream, unsigned char byte)
{
    unsigned char first = (unsigned char)stream->pending[0], low = 0x80, high = 0xBF;

    if (stream->n_pending == 0)
        return length_of(byte) > 0;
    if (stream->n_pending == 1) {
        low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
        high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    }
    return byte >= low && byte <= high;
}

/* A byte that continues: with it a character may be whole. */
static invar_status take_byte(invar_text_stream *stream, char byte)
{
    stream->pending[stream->n_pending++] = byte;
    if (stream->n_pending < length_of((unsigned char)stream->pending[0]))
        return INVAR_OK;
    INVAR_TRY(append(stream, stream->pending, stream->n_pending));
    stream->n_pending = 0;
    return INVAR_OK;
}

static invar_status replace_pending(invar_text_stream *stream)
{
    if (stream->n_pending == 0)
        return INVAR_OK;
    stream->n_pending = 0;
    return append(stream, replacement, sizeof replacement - 1);
}

static invar_status push_byte(invar_text_stream *stream, char byte)
{
    if (!continues(stream, (unsigned char)byte))
        INVAR_TRY(replace_pending(stream));
    if (!continues(stream, (unsigned char)byte))
        return append(stream, replacement, sizeof replacement - 1);
    return take_byte(stream, byte);
}

/* ---- runs of bytes between strings ----------------------------------------------------------- */

/* The run is no UTF-8: each of its bytes so far is replaced. */
static invar_status spoil_run(invar_text_stream *stream)
{
    stream->spoilt = true;
    stream->n_pending = 0;
    stream->used = stream->run_begin;
    stream->changed = stream->run_begin < stream->changed ? stream->run_begin : stream->changed;
    for (size_t i = 0; i < stream->n_run; i++)
        INVAR_TRY(append(stream, replacement, sizeof replacement - 1));
    return INVAR_OK;
}

static invar_status push_run_byte(invar_text_stream *stream, char byte)
{
    if (stream->n_run++ == 0) {
        stream->run_begin = stream->used;
        stream->spoilt = false;
    }
    if (stream->spoilt)
        return append(stream, replacement, sizeof replacement - 1);
    return continues(stream, (unsigned char)byte) ? take_byte(stream, byte) : spoil_run(stream);
}

static invar_status end_run(invar_text_stream *stream)
{
    if (stream->n_run > 0 && stream->n_pending > 0)
        INVAR_TRY(spoil_run(stream));
    stream->n_run = 0;
    return INVAR_OK;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* A string whose metaspace becomes a space, or is dropped. */
static invar_status append_metaspace(invar_text_stream *stream, const invar_text_decoder *decoder,
                                     const char *text, size_t bytes)
{
    bool dropped = decoder->drop_first && !stream->begun;

    for (size_t begin = 0; begin < bytes;) {
        size_t at = invar_literal_find(&decoder->metaspace, text, bytes, begin);
        INVAR_TRY(append(stream, text + begin, at - begin));
        if (at < bytes && !dropped)
            INVAR_TRY(append(stream, " ", 1));
        begin = at + decoder->metaspace.bytes;
    }
    return INVAR_OK;
}

static invar_status push_string(invar_text_stream *stream, const invar_text_decoder *decoder,
                                const char *text, size_t bytes)
{
    INVAR_TRY(end_run(stream));
    if (decoder->metaspace.bytes)
        return append_metaspace(stream, decoder, text, bytes);
    if (decoder->spaced && stream->begun)
        INVAR_TRY(append(stream, " ", 1));
    return append(stream, text, bytes);
}

static invar_status push_bytes(invar_text_stream *stream, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        INVAR_TRY(push_byte(stream, text[i]));
    return INVAR_OK;
}

static invar_status push_token(invar_text_stream *stream, const invar_tokenizer *t, int32_t id)
{
    const invar_text_decoder *decoder = &t->pipeline.decoder;
    size_t bytes;
    const char *text = invar_tokenizer_bytes(&bytes, t, id);

    if (t->flags[id] & INVAR_TOKEN_IS_BYTE)
        INVAR_TRY(push_run_byte(stream, text[0]));
    else if (decoder->byte_level)
        INVAR_TRY(push_bytes(stream, text, bytes));
    else
        INVAR_TRY(push_string(stream, decoder, text, bytes));
    stream->begun = true;
    return INVAR_OK;
}

/* What is shown: the text without what the decoder takes from its beginning. */
static void show(invar_text_stream *stream, const invar_tokenizer *tokenizer)
{
    const invar_text_decoder *decoder = &tokenizer->pipeline.decoder;
    size_t hidden = invar_text_decoder_stripped(decoder, stream->whole, stream->used);
    size_t settled = stream->n_run > 0 && !stream->spoilt ? stream->run_begin : stream->used;

    stream->text = stream->whole + hidden;
    stream->bytes = stream->used - hidden;
    stream->settled = settled > hidden ? settled - hidden : 0;
    stream->fresh = stream->changed > hidden ? stream->changed - hidden : 0;
}

static invar_status begin(invar_text_stream *stream)
{
    stream->changed = stream->used;
    return stream->whole ? INVAR_OK : append(stream, "", 0);
}

invar_status invar_text_stream_push(invar_text_stream *stream, const invar_tokenizer *tokenizer,
                                    int32_t id, bool skip_special)
{
    INVAR_TRY(begin(stream));
    if (id >= 0 && id < tokenizer->size && tokenizer->flags[id] & INVAR_TOKEN_IS_THERE &&
        !(skip_special && invar_tokenizer_special(tokenizer, id)))
        INVAR_TRY(push_token(stream, tokenizer, id));
    show(stream, tokenizer);
    return INVAR_OK;
}

invar_status invar_text_stream_flush(invar_text_stream *stream, const invar_tokenizer *tokenizer)
{
    INVAR_TRY(begin(stream));
    INVAR_TRY(end_run(stream));
    INVAR_TRY(replace_pending(stream));
    show(stream, tokenizer);
    return INVAR_OK;
}

void invar_text_stream_release(invar_text_stream *stream)
{
    invar_free(stream->whole);
    *stream = (invar_text_stream){0};
}

invar_status invar_tokenizer_decode(char **out, size_t *bytes_out, const invar_tokenizer *tokenizer,
                                    const int32_t *ids, int64_t count, bool skip_special)
{
    invar_text_stream stream = {0};
    invar_status status = INVAR_OK;

    *out = NULL;
    *bytes_out = 0;
    for (int64_t i = 0; i < count && status == INVAR_OK; i++)
        status = invar_text_stream_push(&stream, tokenizer, ids[i], skip_special);
    if (status == INVAR_OK)
        status = invar_text_stream_flush(&stream, tokenizer);
    if (status != INVAR_OK) {
        invar_text_stream_release(&stream);
        return status;
    }
    memmove(stream.whole, stream.text, stream.bytes + 1);
    *out = stream.whole;
    *bytes_out = stream.bytes;
    return INVAR_OK;
}
