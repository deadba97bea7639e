/*
 * alloc.h - the one door to the heap.
 *
 * All of Invar allocates here, so that tests can replace the allocator and fail the n-th call.
 * Blocks are aligned to INVAR_ALIGN bytes; their content is undefined.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_ALLOC_H
#define INVAR_BASE_ALLOC_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_ALIGN 256

/* So many bytes, filled up to a multiple of it. */
static inline size_t invar_aligned(size_t bytes)
{
    return (bytes + INVAR_ALIGN - 1) / INVAR_ALIGN * INVAR_ALIGN;
}

typedef struct invar_allocator {
    void *(*alloc)(size_t bytes, void *payload); /* NULL on failure */
    void (*free)(void *block, void *payload);
    void *payload;
} invar_allocator;

/* Replaces the allocator; NULL restores the standard one. Not while blocks are alive elsewhere. */
void invar_allocator_set(const invar_allocator *allocator);

/* *out = count * size bytes. Refuses overflow. A request for 0 bytes yields a valid block. */
INVAR_EXPORT invar_status invar_alloc(void **out, size_t count, size_t size,
                                      const char *what) INVAR_MUST_USE;

/*
 * Twice the room for a text that is read to its end, of which `used` bytes are kept: at least
 * 64 KiB, at most `max_bytes` and one more, which shows that there is too much. A byte for a NUL is
 * not counted. *text is NULL and *room 0 at first.
 */
invar_status invar_alloc_grow(char **text, size_t *room, size_t used, size_t max_bytes,
                              const char *what) INVAR_MUST_USE;

/*
 * Appends bytes to a text that grows as needed and ends with a NUL, which is not counted. *text is
 * NULL, *used and *room are 0 at first; a failure changes none of them.
 */
invar_status invar_alloc_append(char **text, size_t *used, size_t *room, const char *more,
                                size_t bytes, const char *what) INVAR_MUST_USE;

/* NULL is allowed. */
INVAR_EXPORT void invar_free(void *block);

#ifdef __cplusplus
}
#endif
#endif
