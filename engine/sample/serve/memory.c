/*
 * memory.c - reservation of the memory that a request takes while it is parsed and encoded.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/serve/memory.h"

#include "base/json/json.h"

#include "base/invar_banned.h"

// simultaneous copies of a text while it is parsed: strings, messages, their JSON
#define COPIES 4
#define VALUE_BYTES 320 // bytes of memory that a JSON value of few characters takes

invar_status invar_serve_memory_reserve(const invar_serve_memory *memory, uint64_t bytes, bool keep)
{
    return memory ? memory->reserve(memory->payload, bytes, keep) : INVAR_OK;
}

void invar_serve_memory_give_back(const invar_serve_memory *memory, uint64_t bytes)
{
    if (memory)
        memory->give_back(memory->payload, bytes);
}

uint64_t invar_serve_memory_of_json(const char *json, size_t bytes)
{
    return (uint64_t)COPIES * bytes + (uint64_t)VALUE_BYTES * invar_json_count(json, bytes);
}
