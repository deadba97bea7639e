/*
 * token_map.h - hash map from strings to token ids.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TEXT_TOKEN_MAP_H
#define INVAR_ENGINE_TEXT_TOKEN_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct invar_token_map invar_token_map;

/*
 * Allocates a map for at most `count` different words of `bytes` bytes together; it does not grow.
 * The caller frees *out with invar_token_map_free.
 */
invar_status invar_token_map_new(invar_token_map **out, size_t count, size_t bytes) INVAR_MUST_USE;
void invar_token_map_free(invar_token_map *table);

/* Adds a word; `id` is at least 0. If the map has the word already, its id is replaced. */
void invar_token_map_add(invar_token_map *table, const char *word, size_t bytes, int32_t id);

/* Returns the id of a word, -1 if the map does not have it or is NULL. */
int32_t invar_token_map_find(const invar_token_map *table, const char *word, size_t bytes);

#endif
