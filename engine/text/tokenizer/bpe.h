/*
 * bpe.h - byte pair encoding of one word: the pairs of lowest rank are joined first.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TEXT_TOKENIZER_BPE_H
#define INVAR_ENGINE_TEXT_TOKENIZER_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_bpe invar_bpe;

/* Room for `merges` pairs. */
invar_status invar_bpe_new(invar_bpe **out, size_t merges) INVAR_MUST_USE;
void invar_bpe_free(invar_bpe *bpe);

/* The pair (left, right) becomes `joined`; the lowest rank goes first. Again: replaced. */
void invar_bpe_add(invar_bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t joined);

/* What the encoding of words needs besides; zeroed at first, grows; one per thread. */
typedef struct invar_bpe_scratch {
    void *memory;
    size_t capacity; /* in symbols of a word */
} invar_bpe_scratch;

/* The ids of a word's symbols become those of its tokens. Time: count * log(count). */
invar_status invar_bpe_word(int32_t *ids, size_t *count, const invar_bpe *bpe,
                            invar_bpe_scratch *work) INVAR_MUST_USE;
void invar_bpe_scratch_release(invar_bpe_scratch *work);

#ifdef __cplusplus
}
#endif
#endif
