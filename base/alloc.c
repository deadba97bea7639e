/*
 * alloc.c - memory allocation; all of Invar allocates here.
 *
 * Every block comes from the current allocator, which tests replace to fail chosen calls. Each
 * function that returns a block goes through invar_alloc, so that one place checks for overflow and
 * writes the error.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"

#include "base/invar_banned.h"

/*
 * posix_memalign, because aligned_alloc needs a rounded size, which hides overruns from sanitizers.
 */
static void *standard_alloc(size_t bytes, void *payload)
{
    void *block;

    (void)payload;
    return posix_memalign(&block, INVAR_ALIGN, bytes) == 0 ? block : NULL;
}

static void standard_free(void *block, void *payload)
{
    (void)payload;
    free(block);
}

static const invar_allocator standard = {standard_alloc, standard_free, NULL};
static invar_allocator current = {standard_alloc, standard_free, NULL};

void invar_allocator_set(const invar_allocator *allocator)
{
    current = allocator ? *allocator : standard;
}

invar_status invar_alloc(void **out, size_t count, size_t size, const char *what)
{
    *out = NULL;
    if (size != 0 && count > PTRDIFF_MAX / size)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "%s: %zu items of %zu bytes do not fit in memory", what,
                          count, size);
    // at least one byte, because the C library may return NULL for 0
    *out = current.alloc(count * size > 0 ? count * size : 1, current.payload);
    if (!*out)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "%s: no memory for %zu bytes", what, count * size);
    return INVAR_OK;
}

void *invar_alloc_block(size_t count, size_t size, const char *what)
{
    void *block;

    return invar_alloc(&block, count, size, what) == INVAR_OK ? block : NULL;
}

void *invar_alloc_zeros(size_t count, size_t size, const char *what)
{
    void *block = invar_alloc_block(count, size, what);

    return block ? memset(block, 0, count * size) : NULL;
}

void *invar_grow_block(void *block, int64_t *capacity, int64_t used, int64_t needed, size_t size,
                       const char *what)
{
    int64_t larger = *capacity > INT64_MAX / 2 ? INT64_MAX : 2 * *capacity;
    void *grown;

    if (needed <= *capacity)
        return block;
    larger = invar_max_i64(larger, invar_max_i64(needed, 16));
    grown = invar_alloc_block((size_t)larger, size, what);
    if (!grown)
        return block;
    if (used > 0)
        memcpy(grown, block, (size_t)used * size);
    invar_free(block);
    *capacity = larger;
    return grown;
}

invar_status invar_alloc_grow(char **text, size_t *capacity, size_t used, size_t max_bytes,
                              const char *what)
{
    size_t more = *capacity ? 2 * *capacity : (size_t)1 << 16;
    char *grown;

    more = more <= max_bytes ? more : max_bytes + 1;
    INVAR_TRY(INVAR_ALLOC(grown, more + 1, what));
    if (used)
        memcpy(grown, *text, used);
    invar_free(*text);
    *text = grown;
    *capacity = more;
    return INVAR_OK;
}

invar_status invar_alloc_append(char **text, size_t *used, size_t *capacity, const char *more,
                                size_t bytes, const char *what)
{
    size_t half = *used + bytes + 32;
    char *grown;

    if (*capacity - *used <= bytes) {
        INVAR_TRY(INVAR_ALLOC_SIZED(grown, half, 2, what));
        if (*used)
            memcpy(grown, *text, *used);
        invar_free(*text);
        *text = grown;
        *capacity = 2 * half;
    }
    memcpy(*text + *used, more, bytes);
    *used += bytes;
    (*text)[*used] = '\0';
    return INVAR_OK;
}

void invar_free(void *block)
{
    if (block)
        current.free(block, current.payload);
}

void invar_free_at(void *pointer)
{
    void *block;

    memcpy(&block, pointer, sizeof block); // the pointer may be of any type
    invar_free(block);
}
