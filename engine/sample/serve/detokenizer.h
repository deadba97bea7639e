/*
 * detokenizer.h - incremental detokenizer of one choice: the text so far and how much may be sent.
 *
 * The text ends before the first stop string. While a response is streamed, bytes at the end of the
 * text are held back if they may be the beginning of a stop string, of a tool call or of a
 * character whose remaining bytes come with the next token.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_DETOKENIZER_H
#define INVAR_ENGINE_SAMPLE_SERVE_DETOKENIZER_H

#include "engine/sample/rollout/rollout.h"

/* Zero-initialize before use. Release with invar_detokenizer_release. */
typedef struct invar_detokenizer {
    invar_text_stream stream;
    int64_t tokens; /* tokens that the detokenizer has taken */
    size_t end;     /* bytes of the final text, without the stop string; valid if `ended` is set */
    bool ended;
    size_t sent_bytes; /* bytes that the caller has sent; set by the caller */
} invar_detokenizer;

void invar_detokenizer_release(invar_detokenizer *detokenizer);

/* Appends the text of the next token of the response and searches the new text for stop strings. */
invar_status invar_detokenizer_take(invar_detokenizer *detokenizer,
                                    const invar_tokenizer *tokenizer,
                                    const invar_sampling_params *sampling,
                                    int32_t token) INVAR_MUST_USE;

/* Ends the text after the last token. Does nothing if a stop string has ended it already. */
invar_status invar_detokenizer_finish(invar_detokenizer *detokenizer,
                                      const invar_tokenizer *tokenizer) INVAR_MUST_USE;

/*
 * Returns how many leading bytes of the text no later token can change, never fewer than
 * sent_bytes. If `calls` is set, a tool call and all text after its beginning are held back until
 * the text ends.
 */
size_t invar_detokenizer_ready(const invar_detokenizer *detokenizer,
                               const invar_sampling_params *sampling, bool calls);

/*
 * Returns the text so far, NUL-terminated; "" before the first token. Valid until the next token.
 */
const char *invar_detokenizer_text(const invar_detokenizer *detokenizer);

#endif
