/*
 * detokenizer.h - the text of a choice, as its tokens come: what may be said already, where it
 * ends.
 *
 * A stop string is no part of the text, and neither is what a tool call may begin with while it is
 * not known whether one does. So some bytes at the end wait for those behind them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_DETOKENIZER_H
#define INVAR_ENGINE_SAMPLE_SERVE_DETOKENIZER_H

#include "engine/sample/rollout/rollout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed at first; release. */
typedef struct invar_detokenizer {
    invar_text_stream stream;
    int64_t tokens; /* so many were taken */
    size_t end;     /* bytes of the text, without the stop string, once that is known */
    bool ended;
    size_t sent_bytes; /* bytes that were given out */
} invar_detokenizer;

void invar_detokenizer_release(invar_detokenizer *voice);

/* The next token of the response. */
invar_status invar_detokenizer_take(invar_detokenizer *voice, const invar_tokenizer *tokenizer,
                                    const invar_sampling_params *sampling,
                                    int32_t token) INVAR_MUST_USE;

/* There are no more. */
invar_status invar_detokenizer_finish(invar_detokenizer *voice,
                                      const invar_tokenizer *tokenizer) INVAR_MUST_USE;

/* Bytes of the text that stay, whatever follows. `calls`: it may have tool calls, which wait. */
size_t invar_detokenizer_ready(const invar_detokenizer *voice,
                               const invar_sampling_params *sampling, bool calls);

/* The text; "" at first. */
const char *invar_detokenizer_text(const invar_detokenizer *voice);

#ifdef __cplusplus
}
#endif
#endif
