/*
 * bpe.h - byte pair encoding of one word: pairs are merged in the order of their rank.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TEXT_TOKENIZER_BPE_H
#define INVAR_ENGINE_TEXT_TOKENIZER_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct invar_bpe invar_bpe;

/* Allocates a table for `merges` pairs. The caller frees *out with invar_bpe_free. */
invar_status invar_bpe_new(invar_bpe **out, size_t merges) INVAR_MUST_USE;
void invar_bpe_free(invar_bpe *bpe);

/*
 * Adds the rule that the pair (left, right) becomes `joined`. The lowest rank is merged first.
 * Replaces an earlier rule for the pair.
 */
void invar_bpe_add(invar_bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t joined);

/*
 * Scratch memory for encoding words; grows. Zero-initialize before use. Release with
 * invar_bpe_scratch_release. One per thread.
 */
typedef struct invar_bpe_scratch {
    void *memory;
    size_t capacity; /* symbols of the longest word that fits */
} invar_bpe_scratch;

/*
 * Merges the symbols of a word in place: ids and *count become those of its tokens. Takes O(n log
 * n) time.
 */
invar_status invar_bpe_word(int32_t *ids, size_t *count, const invar_bpe *bpe,
                            invar_bpe_scratch *scratch) INVAR_MUST_USE;
void invar_bpe_scratch_release(invar_bpe_scratch *scratch);

#endif
