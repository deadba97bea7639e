/*
 * detokenizer.c - finds stop strings in a growing text and the bytes that may be sent already.
 *
 * A stop string counts only if it ends in the bytes that the last token has added, and only after
 * min_response tokens. The rollout applies the same rule when it ends a sample; the two must agree,
 * or a response would contain text after its stop string.
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

/* Returns the offset of the first occurrence of `word` at or after `from`, or `bytes`. */
static size_t find_word(const char *text, size_t bytes, size_t from, const char *word)
{
    size_t length = strlen(word);

    for (; from + length <= bytes; from++)
        if (memcmp(text + from, word, length) == 0)
            return from;
    return bytes;
}

/* Ends the text before the first stop string that ends in the bytes added by the last token. */
static void find_stop_string(invar_detokenizer *v, const invar_sampling_params *p)
{
    const invar_text_stream *s = &v->stream;

    for (int64_t i = 0; i < p->n_stop; i++) {
        size_t length = strlen(p->stop[i]);
        size_t from = s->unchanged_bytes + 1 > length ? s->unchanged_bytes + 1 - length : 0;
        size_t at = find_word(s->text, s->bytes, from, p->stop[i]);

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
        find_stop_string(v, sampling);
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

/*
 * Returns the offset at which the longest proper prefix of `word` begins that the text ends with;
 * `bytes` if the text ends with none.
 */
static size_t partial_word_offset(const char *text, size_t bytes, const char *word)
{
    size_t length = strlen(word), most = length - 1 < bytes ? length - 1 : bytes;

    for (size_t n = most; n > 0; n--)
        if (memcmp(text + bytes - n, word, n) == 0)
            return bytes - n;
    return bytes;
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

size_t invar_detokenizer_ready(const invar_detokenizer *v, const invar_sampling_params *p,
                               bool calls)
{
    const char *text = invar_detokenizer_text(v);
    size_t bytes = v->stream.bytes, ready = min_size(v->stream.stable_bytes, bytes);

    if (v->ended)
        ready = v->end;
    for (int64_t i = 0; i < p->n_stop && !v->ended; i++)
        ready = min_size(ready, partial_word_offset(text, bytes, p->stop[i]));
    if (calls && !v->ended) {
        ready = min_size(ready, partial_word_offset(text, bytes, INVAR_TOOL_CALLS_BEGIN));
        ready = min_size(ready, find_word(text, bytes, 0, INVAR_TOOL_CALLS_BEGIN));
    }
    return ready < v->sent_bytes ? v->sent_bytes : ready;
}
