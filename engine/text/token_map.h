/*
 * token_map.h - strings to token ids.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TEXT_TOKEN_MAP_H
#define INVAR_ENGINE_TEXT_TOKEN_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_token_map invar_token_map;

/* Room for `count` words that have `bytes` bytes together. The caller owns *out. */
invar_status invar_token_map_new(invar_token_map **out, size_t count, size_t bytes) INVAR_MUST_USE;
void invar_token_map_free(invar_token_map *table);

/* The same word again: the last id counts. */
void invar_token_map_add(invar_token_map *table, const char *word, size_t bytes, int32_t id);

/* The id of a word; -1 when it is not there, or when `table` is NULL. */
int32_t invar_token_map_find(const invar_token_map *table, const char *word, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
