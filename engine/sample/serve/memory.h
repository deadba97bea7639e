/*
 * memory.h - reservation of the memory that a request takes while it is parsed and encoded.
 *
 * The HTTP server implements the interface with one limit for all requests in flight. Parsers call
 * it before they allocate, so a request that does not fit fails instead of exhausting the machine.
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
     * Reserves `bytes` before they are allocated: until the request ends if `keep` is set,
     * otherwise until give_back. May wait until other requests give memory back, so a caller must
     * not hold memory that it reserved without `keep`. Returns INVAR_E_BUSY if other requests keep
     * too much memory, and INVAR_E_INVALID if this request alone needs more than the limit.
     */
    invar_status (*reserve)(void *payload, uint64_t bytes, bool keep);
    /* Gives back `bytes` that were reserved without `keep`. */
    void (*give_back)(void *payload, uint64_t bytes);
} invar_serve_memory;

/* Calls memory->reserve. Without `memory` (NULL) memory is not limited and the result INVAR_OK. */
invar_status invar_serve_memory_reserve(const invar_serve_memory *memory, uint64_t bytes,
                                        bool keep) INVAR_MUST_USE;
/* Calls memory->give_back. Does nothing if `memory` is NULL. */
void invar_serve_memory_give_back(const invar_serve_memory *memory, uint64_t bytes);

/* Returns an upper bound of the bytes that parsing `json` and converting its strings take. */
uint64_t invar_serve_memory_of_json(const char *json, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
