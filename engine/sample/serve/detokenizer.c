/*
 * detokenizer.c - texts that grow.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/serve/detokenizer.h"

#include <string.h>

#include "engine/sample/serve/tool_calls.h"

#include "base/invar_banned.h"

void invar_detokenizer_release(invar_detokenizer *v)
{
    invar_text_stream_release(&v->stream);
    memset(v, 0, sizeof *v);
}

const char *invar_detokenizer_text(const invar_detokenizer *v)
{
    return v->stream.text ? v->stream.text : "";
}

/* Where the word first begins in the text from `from` on; the text's end: nowhere. */
static size_t find(const char *text, size_t bytes, size_t from, const char *word)
{
    size_t length = strlen(word);

    for (; from + length <= bytes; from++)
        if (memcmp(text + from, word, length) == 0)
            return from;
    return bytes;
}

/* The same rule as that of the rollout: what ends behind `fresh` counts. */
static void look_for_stop(invar_detokenizer *v, const invar_sampling_params *p)
{
    const invar_text_stream *s = &v->stream;

    for (int64_t i = 0; i < p->n_stop; i++) {
        size_t length = strlen(p->stop[i]);
        size_t from = s->fresh + 1 > length ? s->fresh + 1 - length : 0;
        size_t at = find(s->text, s->bytes, from, p->stop[i]);

        if (at < s->bytes && (!v->ended || at < v->end)) {
            v->end = at;
            v->ended = true;
        }
    }
}

invar_status invar_detokenizer_take(invar_detokenizer *v, const invar_tokenizer *tokenizer,
                                    const invar_sampling_params *sampling, int32_t token)
{
    INVAR_TRY(invar_text_stream_push(&v->stream, tokenizer, token, sampling->skip_special));
    if (++v->tokens > sampling->min_response)
        look_for_stop(v, sampling);
    return INVAR_OK;
}

invar_status invar_detokenizer_finish(invar_detokenizer *v, const invar_tokenizer *tokenizer)
{
    if (v->ended)
        return INVAR_OK;
    if (v->tokens > 0)
        INVAR_TRY(invar_text_stream_flush(&v->stream, tokenizer));
    v->end = v->stream.bytes;
    v->ended = true;
    return INVAR_OK;
}

/* The first byte of the longest beginning of `word` that the text ends with. */
static size_t held(const char *text, size_t bytes, const char *word)
{
    size_t length = strlen(word), most = length - 1 < bytes ? length - 1 : bytes;

    for (size_t n = most; n > 0; n--)
        if (memcmp(text + bytes - n, word, n) == 0)
            return bytes - n;
    return bytes;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

size_t invar_detokenizer_ready(const invar_detokenizer *v, const invar_sampling_params *p,
                               bool calls)
{
    const char *text = invar_detokenizer_text(v);
    size_t bytes = v->stream.bytes, ready = least(v->stream.settled, bytes);

    if (v->ended)
        ready = v->end;
    for (int64_t i = 0; i < p->n_stop && !v->ended; i++)
        ready = least(ready, held(text, bytes, p->stop[i]));
    if (calls && !v->ended) {
        ready = least(ready, held(text, bytes, INVAR_TOOL_CALLS_BEGIN));
        ready = least(ready, find(text, bytes, 0, INVAR_TOOL_CALLS_BEGIN));
    }
    return ready < v->sent_bytes ? v->sent_bytes : ready;
}
