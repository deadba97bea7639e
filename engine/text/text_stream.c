/*
 * text_stream.c - bytes to whole characters: what is no UTF-8 becomes U+FFFD.
 *
 * One U+FFFD stands for the longest beginning of a character that nothing continues, else for one
 * byte: the recommendation of the Unicode standard, which the tokenizers library follows.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "engine/text/tokenizer.h"

#include "base/invar_banned.h"

static const char replacement[] = "\xEF\xBF\xBD";

static invar_status append(invar_text_stream *stream, const char *text, size_t bytes)
{
    size_t capacity = stream->capacity ? stream->capacity : 64;
    char *grown;

    while (capacity - 1 < stream->bytes + bytes)
        capacity *= 2;
    if (capacity > stream->capacity) {
        INVAR_TRY(invar_alloc((void **)&grown, capacity, 1, "text"));
        if (stream->text)
            memcpy(grown, stream->text, stream->bytes);
        invar_free(stream->text);
        stream->text = grown;
        stream->capacity = capacity;
    }
    memcpy(stream->text + stream->bytes, text, bytes);
    stream->bytes += bytes;
    stream->text[stream->bytes] = '\0';
    return INVAR_OK;
}

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

    if (stream->n_pending == 1) {
        low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
        high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    }
    return byte >= low && byte <= high;
}

static invar_status push_byte(invar_text_stream *stream, char byte)
{
    if (stream->n_pending > 0 && !continues(stream, (unsigned char)byte))
        INVAR_TRY(invar_text_stream_flush(stream));
    if (stream->n_pending == 0 && length_of((unsigned char)byte) == 0)
        return append(stream, replacement, sizeof replacement - 1);
    stream->pending[stream->n_pending++] = byte;
    if (stream->n_pending < length_of((unsigned char)stream->pending[0]))
        return INVAR_OK;
    INVAR_TRY(append(stream, stream->pending, stream->n_pending));
    stream->n_pending = 0;
    return INVAR_OK;
}

invar_status invar_text_stream_push(invar_text_stream *stream, const invar_tokenizer *tokenizer,
                                    int32_t id, bool skip_special)
{
    size_t bytes;
    const char *text = invar_tokenizer_bytes(&bytes, tokenizer, id);

    if (!stream->text)
        INVAR_TRY(append(stream, "", 0));
    if (skip_special && invar_tokenizer_special(tokenizer, id))
        return INVAR_OK;
    for (size_t i = 0; i < bytes; i++)
        INVAR_TRY(push_byte(stream, text[i]));
    return INVAR_OK;
}

invar_status invar_text_stream_flush(invar_text_stream *stream)
{
    if (stream->n_pending == 0)
        return stream->text ? INVAR_OK : append(stream, "", 0);
    INVAR_TRY(append(stream, replacement, sizeof replacement - 1));
    stream->n_pending = 0;
    return INVAR_OK;
}

void invar_text_stream_release(invar_text_stream *stream)
{
    invar_free(stream->text);
    *stream = (invar_text_stream){0};
}
