/*
 * memory.h - who counts the memory of a request while it is read and its prompts become tokens.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_MEMORY_H
#define INVAR_ENGINE_SAMPLE_SERVE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_serve_memory {
    void *payload;
    /*
     * Before memory is allocated, it is reserved: until the request ends (`keep`), or until it is
     * given back. May wait for what others give back, so nobody who holds such memory calls it.
     * INVAR_E_BUSY: other requests keep too much. INVAR_E_INVALID: this one alone needs too much.
     */
    invar_status (*reserve)(void *payload, uint64_t bytes, bool keep);
    void (*give_back)(void *payload, uint64_t bytes);
} invar_serve_memory;

/* The same; without anybody who counts (NULL) all memory is there. */
invar_status invar_serve_memory_reserve(const invar_serve_memory *memory, uint64_t bytes,
                                        bool keep) INVAR_MUST_USE;
void invar_serve_memory_give_back(const invar_serve_memory *memory, uint64_t bytes);

/* Bytes of memory that reading JSON takes at most, and what is made of its strings afterwards. */
uint64_t invar_serve_memory_of_json(const char *json, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
