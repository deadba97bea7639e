/*
 * arena.c - stack of scratch memory with a planned size, allocated at once.
 *
 * The debug arena counts the same heights, so both kinds fail alike, and allocates each push on its
 * own. All heights are multiples of INVAR_ALIGN.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/arena.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

#define LABEL_SIZE 48

/* The largest plan. A multiple of the alignment, so that padding never leads beyond it. */
#define PLAN_MAX (SIZE_MAX / INVAR_ALIGN * INVAR_ALIGN)

/* A push of the debug arena. */
typedef struct piece {
    size_t offset;
    size_t bytes; /* requested bytes, without padding */
    char *block;
} piece;

struct invar_arena {
    char name[LABEL_SIZE + 6]; /* "arena NAME", the beginning of messages */
    bool debug;
    bool reserved;
    size_t bytes;                 /* planned size */
    size_t top;                   /* current height */
    char *block;                  /* (bytes) memory of the arena; NULL in a debug arena */
    invar_arena_allocator source; /* source of the block; its alloc is NULL for the heap */
    piece *pushes;                /* (n_pushes) blocks of a debug arena, lowest first */
    int n_pushes;
    int capacity;
};

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Reserves an element of `pushes`, so that the append which follows cannot fail. */
static invar_status arena_grow(invar_arena *arena)
{
    piece *larger;
    int capacity;

    if (arena->n_pushes < arena->capacity)
        return INVAR_OK;
    if (arena->capacity > INT_MAX / 2)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "%s: more than %d pieces", arena->name,
                          arena->n_pushes);
    capacity = arena->capacity ? 2 * arena->capacity : 16;
    INVAR_TRY(INVAR_ALLOC(larger, (size_t)capacity, arena->name));
    if (arena->n_pushes > 0)
        memcpy(larger, arena->pushes, (size_t)arena->n_pushes * sizeof *larger);
    invar_free(arena->pushes);
    arena->pushes = larger;
    arena->capacity = capacity;
    return INVAR_OK;
}

/* Allocates a block for a push of the debug arena. */
static invar_status push_debug(char **out, invar_arena *arena, size_t bytes, const char *what)
{
    INVAR_TRY(arena_grow(arena));
    INVAR_TRY(INVAR_ALLOC(*out, bytes, what));
    memset(*out, 0xFF, bytes);
    arena->pushes[arena->n_pushes++] = (piece){arena->top, bytes, *out};
    return INVAR_OK;
}

/* Frees pushes above `mark`. Filled first, so that a stale pointer most likely reads NaN. */
static void rewind_debug(invar_arena *arena, size_t mark)
{
    while (arena->n_pushes > 0 && arena->pushes[arena->n_pushes - 1].offset >= mark) {
        piece *last = &arena->pushes[--arena->n_pushes];
        memset(last->block, 0xFF, last->bytes);
        invar_free(last->block);
    }
}

/* ---- life cycle ------------------------------------------------------------------------------ */

static invar_status arena_new(invar_arena **out, const char *name, bool debug)
{
    invar_arena *arena;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC_ZEROED(arena, 1, "arena"));
    snprintf(arena->name, sizeof arena->name, "arena %s", name);
    arena->debug = debug;
    *out = arena;
    return INVAR_OK;
}

invar_status invar_arena_new(invar_arena **out, const char *name)
{
    return arena_new(out, name, false);
}

invar_status invar_arena_new_debug(invar_arena **out, const char *name)
{
    return arena_new(out, name, true);
}

invar_status invar_arena_new_from(invar_arena **out, const char *name,
                                  const invar_arena_allocator *source)
{
    INVAR_TRY(arena_new(out, name, false));
    (*out)->source = *source;
    return INVAR_OK;
}

static invar_status alloc_block(invar_arena *arena)
{
    if (arena->source.alloc)
        return arena->source.alloc((void **)&arena->block, arena->source.payload, arena->bytes,
                                   arena->name);
    return INVAR_ALLOC(arena->block, arena->bytes, arena->name);
}

static void free_block(invar_arena *arena)
{
    if (arena->source.alloc && arena->block)
        arena->source.free(arena->source.payload, arena->block);
    else
        invar_free(arena->block);
}

void invar_arena_free(invar_arena *arena)
{
    if (!arena)
        return;
    rewind_debug(arena, 0);
    free_block(arena);
    invar_free(arena->pushes);
    invar_free(arena);
}

invar_status invar_arena_plan_scratch(invar_arena *arena, size_t bytes)
{
    if (arena->reserved)
        return INVAR_FAIL(INVAR_E_STATE, 0, "%s: scratch planned after reserve", arena->name);
    if (bytes > PLAN_MAX)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "%s: scratch: %zu bytes do not fit", arena->name,
                          bytes);
    if (invar_aligned(bytes) > arena->bytes)
        arena->bytes = invar_aligned(bytes);
    return INVAR_OK;
}

invar_status invar_arena_reserve(invar_arena *arena)
{
    if (arena->reserved)
        return INVAR_FAIL(INVAR_E_STATE, 0, "%s: reserved twice", arena->name);
    if (!arena->debug)
        INVAR_TRY(alloc_block(arena));
    arena->reserved = true;
    return INVAR_OK;
}

/* ---- use ------------------------------------------------------------------------------------- */

invar_status invar_arena_push(void **out, invar_arena *arena, size_t bytes, const char *what)
{
    char *block;

    *out = NULL;
    if (!arena->reserved)
        return INVAR_FAIL(INVAR_E_STATE, 0, "%s: %s pushed before reserve", arena->name, what);
    // top and bytes are multiples of the alignment, so a push that fits unpadded fits padded, too
    if (bytes > arena->bytes - arena->top)
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "%s: %s: %zu bytes of scratch beside %zu in use exceed the planned "
                          "%zu",
                          arena->name, what, bytes, arena->top, arena->bytes);
    if (arena->debug)
        INVAR_TRY(push_debug(&block, arena, bytes, what));
    else
        block = arena->block + arena->top;
    arena->top += invar_aligned(bytes);
    *out = block;
    return INVAR_OK;
}

size_t invar_arena_mark(const invar_arena *arena)
{
    return arena->top;
}

invar_status invar_arena_rewind(invar_arena *arena, size_t mark)
{
    if (mark > arena->top || mark % INVAR_ALIGN != 0)
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "%s: scratch rewound from %zu to %zu, where no mark can be", arena->name,
                          arena->top, mark);
    rewind_debug(arena, mark);
    arena->top = mark;
    return INVAR_OK;
}

size_t invar_arena_bytes(const invar_arena *arena)
{
    return arena->bytes;
}
