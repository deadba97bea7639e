/*
 * token_map.c - hash map from strings to token ids: open addressing over one block of text.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/text/token_map.h"

#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"

#include "base/invar_banned.h"

typedef struct entry {
    size_t begin, bytes; /* position in the text of the map */
    int32_t id;          /* -1 if the entry is empty */
} entry;

struct invar_token_map {
    char *text;
    size_t used;
    size_t mask;
    entry *entries; /* (mask + 1), at most half of them in use */
};

invar_status invar_token_map_new(invar_token_map **out, size_t count, size_t bytes)
{
    size_t slots = 16;
    invar_token_map *table;
    invar_status status;

    *out = NULL;
    while (slots < count * 2)
        slots *= 2;
    INVAR_TRY(INVAR_ALLOC(table, 1, "words"));
    *table = (invar_token_map){.mask = slots - 1};
    status = INVAR_ALLOC(table->text, bytes, "words");
    if (status == INVAR_OK)
        status = INVAR_ALLOC(table->entries, slots, "words");
    if (status != INVAR_OK) {
        invar_token_map_free(table);
        return status;
    }
    for (size_t i = 0; i < slots; i++)
        table->entries[i].id = -1;
    *out = table;
    return INVAR_OK;
}

void invar_token_map_free(invar_token_map *table)
{
    if (!table)
        return;
    invar_free(table->text);
    invar_free(table->entries);
    invar_free(table);
}

/* Returns the entry of a word, or the empty entry at which it would be inserted. */
static entry *find_entry(const invar_token_map *table, const char *word, size_t bytes)
{
    invar_digest digest;
    size_t slot;
    entry *e;

    invar_hash_bytes(&digest, word, bytes);
    memcpy(&slot, digest.bytes, sizeof slot);
    for (slot &= table->mask;; slot = (slot + 1) & table->mask) {
        e = &table->entries[slot];
        if (e->id < 0 || (e->bytes == bytes && memcmp(table->text + e->begin, word, bytes) == 0))
            return e;
    }
}

void invar_token_map_add(invar_token_map *table, const char *word, size_t bytes, int32_t id)
{
    entry *e = find_entry(table, word, bytes);

    if (e->id < 0) {
        *e = (entry){.begin = table->used, .bytes = bytes};
        memcpy(table->text + table->used, word, bytes);
        table->used += bytes;
    }
    e->id = id;
}

int32_t invar_token_map_find(const invar_token_map *table, const char *word, size_t bytes)
{
    return table ? find_entry(table, word, bytes)->id : -1;
}
