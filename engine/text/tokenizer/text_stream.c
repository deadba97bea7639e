/*
 * text_stream.c - incremental decoder: token ids to text, in complete characters.
 *
 * Bytes that are not UTF-8 become U+FFFD as in the tokenizers library. Byte-level tokens: one
 * U+FFFD for the longest incomplete character, else for one byte, as the Unicode standard
 * recommends. Byte tokens between strings (byte_fallback): if a run of them is not UTF-8, each byte
 * becomes one U+FFFD, so a run that was shown as characters may change when it ends.
 *
 * A ByteLevel decoder after Fuse decodes the joined text. The stream shows the bytes that this text
 * stands for until a character stands for no byte, and from then on the joined text itself. Such a
 * character stays, since a run that changes becomes U+FFFD.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "engine/text/tokenizer/tokenizer_internal.h"

#include "base/invar_banned.h"

static const char replacement[] = "\xEF\xBF\xBD";

static invar_status append_as_is(invar_text_buffer *buffer, const char *text, size_t bytes)
{
    return invar_alloc_append(&buffer->text, &buffer->used, &buffer->capacity, text, bytes, "text");
}

/* Appends complete characters with `to` for every `from`. */
static invar_status append_replaced(invar_text_buffer *buffer, const invar_literal *from,
                                    const invar_literal *to, const char *text, size_t bytes)
{
    for (size_t begin = 0, at; begin < bytes; begin = at + from->bytes) {
        at = invar_literal_find(from, text, bytes, begin);
        INVAR_TRY(append_as_is(buffer, text + begin, at - begin));
        if (at < bytes)
            INVAR_TRY(append_as_is(buffer, to->text, to->bytes));
    }
    return INVAR_OK;
}

static invar_status append_text(invar_text_buffer *buffer, const char *text, size_t bytes)
{
    const invar_text_decoder *decoder = buffer->joins ? &buffer->joins->pipeline.decoder : NULL;

    return decoder && decoder->from.bytes
               ? append_replaced(buffer, &decoder->from, &decoder->to, text, bytes)
               : append_as_is(buffer, text, bytes);
}

/* ---- bytes to characters --------------------------------------------------------------------- */

/* Returns the length of the character that begins with this byte; 0 if no character does. */
static size_t character_length(unsigned char first)
{
    return first < 0x80   ? 1
           : first < 0xC2 ? 0
           : first < 0xE0 ? 2
           : first < 0xF0 ? 3
           : first < 0xF5 ? 4
                          : 0;
}

/*
 * Returns whether the byte may follow the pending bytes. Overlong forms, surrogates and numbers
 * above U+10FFFF are not allowed.
 */
static bool can_continue(const invar_text_buffer *buffer, unsigned char byte)
{
    unsigned char first = (unsigned char)buffer->pending[0], low = 0x80, high = 0xBF;

    if (buffer->n_pending == 0)
        return character_length(byte) > 0;
    if (buffer->n_pending == 1) {
        low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
        high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    }
    return byte >= low && byte <= high;
}

/* Adds a byte that continues the pending character, and appends the character if it is complete. */
static invar_status continue_character(invar_text_buffer *buffer, char byte)
{
    buffer->pending[buffer->n_pending++] = byte;
    if (buffer->n_pending < character_length((unsigned char)buffer->pending[0]))
        return INVAR_OK;
    INVAR_TRY(append_text(buffer, buffer->pending, buffer->n_pending));
    buffer->n_pending = 0;
    return INVAR_OK;
}

static invar_status replace_pending(invar_text_buffer *buffer)
{
    if (buffer->n_pending == 0)
        return INVAR_OK;
    buffer->n_pending = 0;
    return append_text(buffer, replacement, sizeof replacement - 1);
}

static invar_status push_byte(invar_text_buffer *buffer, char byte)
{
    if (!can_continue(buffer, (unsigned char)byte))
        INVAR_TRY(replace_pending(buffer));
    if (!can_continue(buffer, (unsigned char)byte))
        return append_text(buffer, replacement, sizeof replacement - 1);
    return continue_character(buffer, byte);
}

/* ---- runs of bytes between strings ----------------------------------------------------------- */

/* Replaces each byte of the run so far by U+FFFD, because the run is not UTF-8. */
static invar_status spoil_run(invar_text_stream *stream)
{
    stream->is_invalid = true;
    stream->joined.n_pending = 0;
    stream->joined.used = stream->run_begin;
    stream->changed = stream->run_begin < stream->changed ? stream->run_begin : stream->changed;
    for (size_t i = 0; i < stream->n_run; i++)
        INVAR_TRY(append_text(&stream->joined, replacement, sizeof replacement - 1));
    return INVAR_OK;
}

static invar_status push_run_byte(invar_text_stream *stream, char byte)
{
    if (stream->n_run++ == 0) {
        stream->run_begin = stream->joined.used;
        stream->is_invalid = false;
    }
    if (stream->is_invalid)
        return append_text(&stream->joined, replacement, sizeof replacement - 1);
    return can_continue(&stream->joined, (unsigned char)byte)
               ? continue_character(&stream->joined, byte)
               : spoil_run(stream);
}

static invar_status end_run(invar_text_stream *stream)
{
    if (stream->n_run > 0 && stream->joined.n_pending > 0)
        INVAR_TRY(spoil_run(stream));
    stream->n_run = 0;
    return INVAR_OK;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* Appends a string in which metaspace becomes a space, or is dropped. */
static invar_status append_metaspace(invar_text_stream *stream, const invar_text_decoder *decoder,
                                     const char *text, size_t bytes)
{
    static const invar_literal space = {" ", 1}, none = {"", 0};
    bool dropped = decoder->drop_first && !stream->started;

    return append_replaced(&stream->joined, &decoder->metaspace, dropped ? &none : &space, text,
                           bytes);
}

static invar_status push_string(invar_text_stream *stream, const invar_text_decoder *decoder,
                                const char *text, size_t bytes)
{
    INVAR_TRY(end_run(stream));
    if (decoder->metaspace.bytes)
        return append_metaspace(stream, decoder, text, bytes);
    if (decoder->spaced && stream->started)
        INVAR_TRY(append_text(&stream->joined, " ", 1));
    return append_text(&stream->joined, text, bytes);
}

static invar_status push_token(invar_text_stream *stream, const invar_tokenizer *t, int32_t id)
{
    const invar_text_decoder *decoder = &t->pipeline.decoder;
    size_t bytes;
    const char *text = invar_tokenizer_bytes(&bytes, t, id);

    if (t->flags[id] & INVAR_TOKEN_IS_BYTE)
        INVAR_TRY(push_run_byte(stream, text[0]));
    else if (!decoder->byte_level)
        INVAR_TRY(push_string(stream, decoder, text, bytes));
    else
        for (size_t i = 0; i < bytes; i++)
            INVAR_TRY(push_byte(&stream->joined, text[i]));
    stream->started = true;
    return INVAR_OK;
}

/* ---- shown text ------------------------------------------------------------------------------ */

/*
 * Appends the bytes that new characters of `joined` stand for to `decoded`, up to a character that
 * stands for no byte.
 */
static invar_status respell(invar_text_stream *stream, const invar_tokenizer *t)
{
    const invar_text_buffer *joined = &stream->joined;
    size_t length, n;
    uint32_t point;
    char byte;

    // text that was read has changed: a run has become U+FFFD, which stands for no byte
    stream->plain = stream->plain || stream->changed < stream->read;
    while (!stream->plain && stream->read < joined->used) {
        const char *at = joined->text + stream->read;
        length = invar_text_utf8(&point, at, joined->used - stream->read);
        INVAR_CHECK(length > 0);
        if (invar_byte_chars_read(&byte, &n, &t->symbols.spelt, at, length)) {
            INVAR_TRY(push_byte(&stream->decoded, byte));
            stream->read += length;
        } else {
            stream->plain = true;
        }
    }
    return INVAR_OK;
}

/* Shows the buffer without the beginning that the decoder strips. */
static void show_buffer(invar_text_stream *stream, const invar_text_buffer *buffer, size_t settled,
                        size_t changed)
{
    const invar_text_decoder *decoder = &stream->joined.joins->pipeline.decoder;
    size_t hidden = invar_text_decoder_stripped(decoder, buffer->text, buffer->used);

    stream->text = buffer->text + hidden;
    stream->bytes = buffer->used - hidden;
    stream->stable_bytes = settled > hidden ? settled - hidden : 0;
    stream->unchanged_bytes = changed > hidden ? changed - hidden : 0;
}

static void show_joined(invar_text_stream *stream, bool was_plain)
{
    size_t settled =
        stream->n_run > 0 && !stream->is_invalid ? stream->run_begin : stream->joined.used;

    show_buffer(stream, &stream->joined, settled, was_plain ? stream->changed : 0);
}

/*
 * Shows the respelt text. `ends`: no token follows. `may_end`: a token that stands for no bytes may
 * follow.
 */
static invar_status show_respelt(invar_text_stream *stream, const invar_tokenizer *t, bool ends,
                                 bool may_end)
{
    size_t before = stream->decoded.used;
    bool was_plain = stream->plain;

    INVAR_TRY(respell(stream, t));
    if (ends)
        INVAR_TRY(replace_pending(&stream->decoded));
    if (stream->plain) {
        show_joined(stream, was_plain);
        return INVAR_OK;
    }
    INVAR_TRY(append_as_is(&stream->decoded, "", 0));
    show_buffer(stream, &stream->decoded, may_end && !ends ? 0 : stream->decoded.used, before);
    return INVAR_OK;
}

static invar_status show_text(invar_text_stream *stream, const invar_tokenizer *t, bool ends,
                              bool may_end)
{
    if (t->pipeline.decoder.respell)
        return show_respelt(stream, t, ends, may_end);
    show_joined(stream, true);
    return INVAR_OK;
}

static invar_status begin_push(invar_text_stream *stream, const invar_tokenizer *tokenizer)
{
    stream->joined.joins = tokenizer;
    stream->changed = stream->joined.used;
    return append_as_is(&stream->joined, "", 0);
}

invar_status invar_text_stream_push(invar_text_stream *stream, const invar_tokenizer *tokenizer,
                                    int32_t id, bool skip_special)
{
    INVAR_TRY(begin_push(stream, tokenizer));
    if (id >= 0 && id < tokenizer->size && tokenizer->flags[id] & INVAR_TOKEN_IS_THERE &&
        !(skip_special && invar_tokenizer_special(tokenizer, id)))
        INVAR_TRY(push_token(stream, tokenizer, id));
    return show_text(stream, tokenizer, false, tokenizer->plain[skip_special]);
}

invar_status invar_text_stream_flush(invar_text_stream *stream, const invar_tokenizer *tokenizer)
{
    INVAR_TRY(begin_push(stream, tokenizer));
    INVAR_TRY(end_run(stream));
    INVAR_TRY(replace_pending(&stream->joined));
    return show_text(stream, tokenizer, true, false);
}

bool invar_text_stream_is_complete(const invar_text_stream *stream)
{
    return stream->stable_bytes == stream->bytes && stream->joined.n_pending == 0 &&
           stream->decoded.n_pending == 0;
}

void invar_text_stream_release(invar_text_stream *stream)
{
    invar_free(stream->joined.text);
    invar_free(stream->decoded.text);
    *stream = (invar_text_stream){0};
}

invar_status invar_tokenizer_decode(char **out, size_t *bytes_out, const invar_tokenizer *tokenizer,
                                    const int32_t *ids, int64_t count, bool skip_special)
{
    INVAR_AUTO(invar_text_stream_release) invar_text_stream stream = {0};

    *out = NULL;
    *bytes_out = 0;
    for (int64_t i = 0; i < count; i++)
        INVAR_TRY(invar_text_stream_push(&stream, tokenizer, ids[i], skip_special));
    INVAR_TRY(invar_text_stream_flush(&stream, tokenizer));
    *bytes_out = stream.bytes;
    INVAR_TRY(INVAR_ALLOC(*out, stream.bytes + 1, "text"));
    memcpy(*out, stream.text, stream.bytes + 1);
    return INVAR_OK;
}
