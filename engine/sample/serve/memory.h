/*
 * memory.h - reservation of the memory that requests take while they are parsed and encoded.
 *
 * All requests in flight share one limit. Parsers reserve before they allocate, so a request that
 * does not fit fails instead of exhausting the machine.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_MEMORY_H
#define INVAR_ENGINE_SAMPLE_SERVE_MEMORY_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Memory of all requests. Initialize with invar_memory_budget_init, then destroy. */
typedef struct invar_memory_budget {
    int64_t limit;         /* bytes for all requests; INT64_MAX for no limit */
    pthread_mutex_t queue; /* held while waiting for temporary memory, so that only one thread waits
                              at a time; taken before `lock` */
    pthread_mutex_t lock;  /* guards the fields below and the bytes that each request keeps */
    pthread_cond_t given_back; /* signaled when temporary memory was given back */
    int64_t kept;              /* bytes that requests have reserved until they end */
    int64_t temporary; /* bytes reserved for a part of a request, given back before it ends */
} invar_memory_budget;

/* `limit` is 0 for no limit. */
void invar_memory_budget_init(invar_memory_budget *budget, int64_t limit);
void invar_memory_budget_destroy(invar_memory_budget *budget);

/* Memory of one request. */
typedef struct invar_serve_memory {
    invar_memory_budget *budget;
    int64_t *kept; /* bytes that the request has reserved until it ends */
} invar_serve_memory;

/*
 * Reserves `bytes` before they are allocated: until invar_serve_memory_release if `keep` is set,
 * otherwise until invar_serve_memory_give_back. May wait until other requests give memory back, so
 * a caller must not hold memory that it reserved without `keep`. Returns INVAR_E_BUSY if other
 * requests keep too much memory, and INVAR_E_INVALID if this request alone needs more than the
 * limit. Without `memory` (NULL) memory is not limited and the result INVAR_OK.
 */
invar_status invar_serve_memory_reserve(const invar_serve_memory *memory, uint64_t bytes,
                                        bool keep) INVAR_MUST_USE;

/* Gives back `bytes` that were reserved without `keep`. Does nothing if `memory` is NULL. */
void invar_serve_memory_give_back(const invar_serve_memory *memory, uint64_t bytes);

/* Gives back all bytes that the request has kept. */
void invar_serve_memory_release(const invar_serve_memory *memory);

/* Returns an upper bound of the bytes that parsing `json` and converting its strings take. */
uint64_t invar_serve_memory_of_json(const char *json, size_t bytes);

#endif
