/*
 * word_table.h - strings to token ids.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TEXT_WORD_TABLE_H
#define INVAR_ENGINE_TEXT_WORD_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_word_table invar_word_table;

/* Room for `count` words that have `bytes` bytes together. The caller owns *out. */
invar_status invar_word_table_new(invar_word_table **out, size_t count,
                                  size_t bytes) INVAR_MUST_USE;
void invar_word_table_free(invar_word_table *table);

/* The same word again: the last id counts. */
void invar_word_table_add(invar_word_table *table, const char *word, size_t bytes, int32_t id);

/* The id of a word; -1 when it is not there, or when `table` is NULL. */
int32_t invar_word_table_find(const invar_word_table *table, const char *word, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
