/*
 * arena.h - a stack of scratch memory: its size is planned, then it is reserved in one allocation.
 *
 * While planning, whoever will use the arena says the most that it needs at one time. `reserve`
 * then allocates once. After that nothing is allocated: push, use, rewind to a mark. Memory that
 * lasts is no scratch: block_carver.h.
 *
 * The debug twin has the same limits and errors, but gives every push its own block, so that a
 * sanitizer sees an access out of bounds or after a rewind. It fills blocks with 0xFF, which is NaN
 * in every float format: a value read before it was written changes bits.
 *
 * An arena belongs to one thread. Calls in the wrong order fail with INVAR_E_STATE.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_ARENA_H
#define INVAR_BASE_ARENA_H

#include <stddef.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_arena invar_arena;

/* `name` and, below, `what` appear in messages; the name is copied, up to 47 bytes. */
invar_status invar_arena_new(invar_arena **out, const char *name) INVAR_MUST_USE;
invar_status invar_arena_new_debug(invar_arena **out, const char *name) INVAR_MUST_USE;

/* Memory that the host may not be able to read; `payload` comes back in every call. */
typedef struct invar_arena_allocator {
    invar_status (*alloc)(void **out, void *payload, size_t bytes, const char *what);
    void (*free)(void *payload, void *block);
    void *payload;
} invar_arena_allocator;

/* An arena whose one block comes from `source`, which is copied and outlives the arena. */
invar_status invar_arena_new_from(invar_arena **out, const char *name,
                                  const invar_arena_allocator *source) INVAR_MUST_USE;

/* Frees everything the arena handed out. NULL is allowed. */
void invar_arena_free(invar_arena *arena);

/*
 * Raises the ceiling of the scratch to at least `bytes`: the most that will be pushed at one time,
 * each push rounded up to a multiple of INVAR_ALIGN. Only before `reserve`.
 */
invar_status invar_arena_plan_scratch(invar_arena *arena, size_t bytes) INVAR_MUST_USE;

/* Allocates what was planned and ends the planning. After a failure it may be called again. */
invar_status invar_arena_reserve(invar_arena *arena) INVAR_MUST_USE;

/* *out = scratch, aligned to INVAR_ALIGN, borrowed until a rewind below it. After `reserve`. */
invar_status invar_arena_push(void **out, invar_arena *arena, size_t bytes,
                              const char *what) INVAR_MUST_USE;

/* The height of the scratch stack now, for a later rewind. */
size_t invar_arena_mark(const invar_arena *arena);

/* Gives back all that was pushed since `mark` was taken. */
invar_status invar_arena_rewind(invar_arena *arena, size_t mark) INVAR_MUST_USE;

/* What `reserve` allocates for the plan so far. */
size_t invar_arena_bytes(const invar_arena *arena);

#ifdef __cplusplus
}
#endif
#endif
