/*
 * arena.c - memory that is planned, then reserved in one allocation, then sealed.
 *
 * Layout of the one block: items in the order of their plan, each padded to INVAR_ALIGN, then the
 * scratch. The debug twin keeps the same offsets as numbers and allocates each piece on its own.
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

typedef enum arena_state { PLANNING, RESERVED, SEALED } arena_state;

/* An item, or a push of the debug twin. */
typedef struct piece {
    size_t offset;
    size_t bytes; /* as asked for, without padding */
    char *block;  /* the memory; NULL before `reserve` */
    char what[LABEL_SIZE];
} piece;

typedef struct piece_list {
    piece *at;
    int count;
    int capacity;
} piece_list;

struct invar_arena {
    char name[LABEL_SIZE + 6]; /* "arena NAME", as messages begin */
    bool debug;
    arena_state state;
    piece_list items;
    size_t item_bytes;    /* with padding: the scratch starts here */
    size_t scratch_bytes; /* the ceiling */
    size_t scratch_top;
    char *block;               /* release: the one allocation */
    invar_arena_source source; /* of that block; take is NULL for the heap */
    piece_list pushes;         /* debug: what lies on the scratch stack */
};

/* ---- pieces ---------------------------------------------------------------------------------- */

static size_t padded(size_t bytes)
{
    return (bytes + INVAR_ALIGN - 1) / INVAR_ALIGN * INVAR_ALIGN;
}

/* Room for one more piece, so that the append which follows cannot fail. */
static invar_status grow(piece_list *list, const char *name)
{
    piece *larger;
    int capacity;

    if (list->count < list->capacity)
        return INVAR_OK;
    if (list->capacity > INT_MAX / 2)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "%s: more than %d pieces", name, list->count);
    capacity = list->capacity ? 2 * list->capacity : 16;
    INVAR_TRY(invar_alloc((void **)&larger, (size_t)capacity, sizeof *larger, name));
    if (list->count > 0)
        memcpy(larger, list->at, (size_t)list->count * sizeof *larger);
    invar_free(list->at);
    list->at = larger;
    list->capacity = capacity;
    return INVAR_OK;
}

static void append(piece_list *list, size_t offset, size_t bytes, char *block, const char *what)
{
    piece *p = &list->at[list->count++];

    p->offset = offset;
    p->bytes = bytes;
    p->block = block;
    snprintf(p->what, sizeof p->what, "%s", what);
}

static invar_status debug_block(char **out, size_t bytes, const char *what)
{
    INVAR_TRY(invar_alloc((void **)out, bytes, 1, what));
    memset(*out, 0xFF, bytes);
    return INVAR_OK;
}

static void free_blocks(piece_list *list, int first)
{
    for (int i = first; i < list->count; i++) {
        invar_free(list->at[i].block);
        list->at[i].block = NULL;
    }
}

/* ---- life cycle ------------------------------------------------------------------------------ */

static invar_status create(invar_arena **out, const char *name, bool debug)
{
    invar_arena *arena;

    *out = NULL;
    INVAR_TRY(invar_alloc((void **)&arena, 1, sizeof *arena, "arena"));
    memset(arena, 0, sizeof *arena);
    snprintf(arena->name, sizeof arena->name, "arena %s", name);
    arena->debug = debug;
    *out = arena;
    return INVAR_OK;
}

invar_status invar_arena_new(invar_arena **out, const char *name)
{
    return create(out, name, false);
}

invar_status invar_arena_new_debug(invar_arena **out, const char *name)
{
    return create(out, name, true);
}

invar_status invar_arena_new_from(invar_arena **out, const char *name,
                                  const invar_arena_source *source)
{
    INVAR_TRY(create(out, name, false));
    (*out)->source = *source;
    return INVAR_OK;
}

static invar_status take_block(invar_arena *arena)
{
    size_t bytes = invar_arena_bytes(arena);

    if (arena->source.take)
        return arena->source.take((void **)&arena->block, arena->source.payload, bytes,
                                  arena->name);
    return invar_alloc((void **)&arena->block, bytes, 1, arena->name);
}

static void give_block(invar_arena *arena)
{
    if (arena->source.take && arena->block)
        arena->source.give(arena->source.payload, arena->block);
    else
        invar_free(arena->block);
}

void invar_arena_free(invar_arena *arena)
{
    if (!arena)
        return;
    if (arena->debug) {
        free_blocks(&arena->items, 0);
        free_blocks(&arena->pushes, 0);
    }
    give_block(arena);
    invar_free(arena->items.at);
    invar_free(arena->pushes.at);
    invar_free(arena);
}

/* Fails unless `bytes` fit beside `planned`, so that no later sum can overflow. */
static invar_status check_plan(const invar_arena *arena, size_t planned, size_t bytes,
                               const char *what)
{
    if (arena->state != PLANNING)
        return INVAR_FAIL(INVAR_E_STATE, 0, "%s: %s planned after %s", arena->name, what,
                          arena->state == SEALED ? "seal" : "reserve");
    if (bytes > PLAN_MAX - planned)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "%s: %s: %zu bytes beside %zu do not fit", arena->name,
                          what, bytes, planned);
    return INVAR_OK;
}

invar_status invar_arena_plan(int *item_out, invar_arena *arena, size_t bytes, const char *what)
{
    INVAR_TRY(check_plan(arena, invar_arena_bytes(arena), bytes, what));
    INVAR_TRY(grow(&arena->items, arena->name));
    *item_out = arena->items.count;
    append(&arena->items, arena->item_bytes, bytes, NULL, what);
    arena->item_bytes += padded(bytes);
    return INVAR_OK;
}

invar_status invar_arena_plan_scratch(invar_arena *arena, size_t bytes)
{
    INVAR_TRY(check_plan(arena, arena->item_bytes, bytes, "scratch"));
    if (padded(bytes) > arena->scratch_bytes)
        arena->scratch_bytes = padded(bytes);
    return INVAR_OK;
}

static invar_status reserve_debug(invar_arena *arena)
{
    for (int i = 0; i < arena->items.count; i++) {
        piece *item = &arena->items.at[i];
        invar_status status = debug_block(&item->block, item->bytes, item->what);
        if (status != INVAR_OK) {
            free_blocks(&arena->items, 0);
            return status;
        }
    }
    return INVAR_OK;
}

invar_status invar_arena_reserve(invar_arena *arena)
{
    if (arena->state != PLANNING)
        return INVAR_FAIL(INVAR_E_STATE, 0, "%s: reserved twice", arena->name);
    if (arena->debug) {
        INVAR_TRY(reserve_debug(arena));
    } else {
        INVAR_TRY(take_block(arena));
        for (int i = 0; i < arena->items.count; i++)
            arena->items.at[i].block = arena->block + arena->items.at[i].offset;
    }
    arena->state = RESERVED;
    return INVAR_OK;
}

invar_status invar_arena_seal(invar_arena *arena)
{
    if (arena->state != RESERVED)
        return INVAR_FAIL(INVAR_E_STATE, 0, "%s: sealed %s", arena->name,
                          arena->state == SEALED ? "twice" : "before reserve");
    if (arena->scratch_top > 0)
        return INVAR_FAIL(INVAR_E_STATE, 0, "%s: sealed with %zu bytes of scratch in use",
                          arena->name, arena->scratch_top);
    arena->state = SEALED;
    return INVAR_OK;
}

/* ---- use ------------------------------------------------------------------------------------- */

void *invar_arena_item(const invar_arena *arena, int item)
{
    if (item < 0 || item >= arena->items.count) {
        (void)INVAR_FAIL(INVAR_E_INVALID, 0, "%s: no item %d; %d are planned", arena->name, item,
                         arena->items.count);
        return NULL;
    }
    if (arena->state == PLANNING) {
        (void)INVAR_FAIL(INVAR_E_STATE, 0, "%s: %s used before reserve", arena->name,
                         arena->items.at[item].what);
        return NULL;
    }
    return arena->items.at[item].block;
}

invar_status invar_arena_push(void **out, invar_arena *arena, size_t bytes, const char *what)
{
    char *block;

    *out = NULL;
    if (arena->state == PLANNING)
        return INVAR_FAIL(INVAR_E_STATE, 0, "%s: %s pushed before reserve", arena->name, what);
    // top and ceiling are multiples of the alignment: what fits unpadded fits padded
    if (bytes > arena->scratch_bytes - arena->scratch_top)
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "%s: %s: %zu bytes of scratch beside %zu in use exceed the planned "
                          "%zu",
                          arena->name, what, bytes, arena->scratch_top, arena->scratch_bytes);
    if (arena->debug) {
        INVAR_TRY(grow(&arena->pushes, arena->name));
        INVAR_TRY(debug_block(&block, bytes, what));
        append(&arena->pushes, arena->scratch_top, bytes, block, what);
    } else {
        block = arena->block + arena->item_bytes + arena->scratch_top;
    }
    arena->scratch_top += padded(bytes);
    *out = block;
    return INVAR_OK;
}

size_t invar_arena_mark(const invar_arena *arena)
{
    return arena->scratch_top;
}

/* Fills before freeing: without a sanitizer, a stale pointer then most likely reads NaN. */
static void drop_pushes(piece_list *pushes, int first)
{
    for (int i = first; i < pushes->count; i++)
        memset(pushes->at[i].block, 0xFF, pushes->at[i].bytes);
    free_blocks(pushes, first);
    pushes->count = first;
}

invar_status invar_arena_rewind(invar_arena *arena, size_t mark)
{
    if (mark > arena->scratch_top || mark % INVAR_ALIGN != 0)
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "%s: scratch rewound from %zu to %zu, where no mark can be", arena->name,
                          arena->scratch_top, mark);
    if (arena->debug) {
        int first = arena->pushes.count;
        while (first > 0 && arena->pushes.at[first - 1].offset >= mark)
            first--;
        drop_pushes(&arena->pushes, first);
    }
    arena->scratch_top = mark;
    return INVAR_OK;
}

size_t invar_arena_bytes(const invar_arena *arena)
{
    return arena->item_bytes + arena->scratch_bytes;
}

void invar_arena_plan_hash(invar_digest *out, const invar_arena *arena)
{
    invar_hasher hasher;

    invar_hasher_init(&hasher);
    for (int i = 0; i < arena->items.count; i++) {
        const piece *item = &arena->items.at[i];
        uint64_t numbers[2] = {item->bytes, item->offset};
        invar_hasher_update(&hasher, numbers, sizeof numbers);
        invar_hasher_update(&hasher, item->what, strlen(item->what) + 1);
    }
    invar_hasher_update(&hasher, &(uint64_t){arena->scratch_bytes}, sizeof(uint64_t));
    invar_hasher_final(out, &hasher);
}
