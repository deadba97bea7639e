/*
 * memory.c - reservation of the memory that requests take while they are parsed and encoded.
 *
 * The factors of invar_serve_memory_of_json are upper bounds of what parsing and templates need,
 * measured with margin.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/serve/memory.h"

#include <inttypes.h>

#include "base/json/json.h"

#include "base/invar_banned.h"

// simultaneous copies of a text while it is parsed: strings, messages, their JSON
#define COPIES 4
#define VALUE_BYTES 320 // bytes of memory that a JSON value of few characters takes

void invar_memory_budget_init(invar_memory_budget *budget, int64_t limit)
{
    *budget = (invar_memory_budget){.limit = limit > 0 ? limit : INT64_MAX};
    (void)pthread_mutex_init(&budget->queue, NULL);
    (void)pthread_mutex_init(&budget->lock, NULL);
    (void)pthread_cond_init(&budget->given_back, NULL);
}

void invar_memory_budget_destroy(invar_memory_budget *budget)
{
    (void)pthread_mutex_destroy(&budget->queue);
    (void)pthread_mutex_destroy(&budget->lock);
    (void)pthread_cond_destroy(&budget->given_back);
}

invar_status invar_serve_memory_reserve(const invar_serve_memory *memory, uint64_t bytes, bool keep)
{
    invar_memory_budget *b = memory ? memory->budget : NULL;
    bool alone, fits;

    if (!b)
        return INVAR_OK;
    (void)pthread_mutex_lock(&b->queue);
    (void)pthread_mutex_lock(&b->lock);
    do {
        alone = bytes > (uint64_t)(b->limit - *memory->kept);
        fits = bytes <= (uint64_t)(b->limit - b->kept);
    } while (fits && bytes > (uint64_t)(b->limit - b->kept - b->temporary) &&
             pthread_cond_wait(&b->given_back, &b->lock) == 0);
    if (fits) {
        b->kept += keep ? (int64_t)bytes : 0;
        *memory->kept += keep ? (int64_t)bytes : 0;
        b->temporary += keep ? 0 : (int64_t)bytes;
    }
    (void)pthread_mutex_unlock(&b->lock);
    (void)pthread_mutex_unlock(&b->queue);
    if (fits)
        return INVAR_OK;
    if (alone)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "the request needs more memory than the server has for all requests, "
                          "%" PRId64 " bytes (--max-memory-bytes): send less in one request",
                          b->limit);
    return INVAR_FAIL(INVAR_E_BUSY, 0,
                      "other requests have the memory that this one needs: try again later");
}

void invar_serve_memory_give_back(const invar_serve_memory *memory, uint64_t bytes)
{
    if (!memory)
        return;
    (void)pthread_mutex_lock(&memory->budget->lock);
    memory->budget->temporary -= (int64_t)bytes;
    (void)pthread_cond_signal(&memory->budget->given_back);
    (void)pthread_mutex_unlock(&memory->budget->lock);
}

void invar_serve_memory_release(const invar_serve_memory *memory)
{
    (void)pthread_mutex_lock(&memory->budget->lock);
    memory->budget->kept -= *memory->kept;
    *memory->kept = 0;
    (void)pthread_mutex_unlock(&memory->budget->lock);
}

uint64_t invar_serve_memory_of_json(const char *json, size_t bytes)
{
    return (uint64_t)COPIES * bytes + (uint64_t)VALUE_BYTES * invar_json_count(json, bytes);
}
