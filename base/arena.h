/*
 * arena.h - stack of scratch memory with a planned size, allocated at once.
 *
 * In the planning phase every user states the largest size that it needs at one time.
 * invar_arena_reserve then allocates once. After that nothing is allocated: push, use, rewind to a
 * mark. Memory that lasts belongs into a carved block instead (block_carver.h).
 *
 * The debug arena has the same limits and errors, but gives every push a block of its own, so that
 * a sanitizer finds accesses out of bounds or after a rewind. It fills blocks with 0xFF, which is
 * NaN in every float format, so that a value which is read before it was written changes bits.
 *
 * An arena is used by one thread. Calls in the wrong order fail with INVAR_E_STATE.
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

/*
 * Create an arena, or a debug arena. `name` is used in messages; up to 47 bytes are copied. The
 * caller frees *out with invar_arena_free.
 */
invar_status invar_arena_new(invar_arena **out, const char *name) INVAR_MUST_USE;
invar_status invar_arena_new_debug(invar_arena **out, const char *name) INVAR_MUST_USE;

/* Source of an arena's block, such as device memory, which the host may not be able to read. */
typedef struct invar_arena_allocator {
    invar_status (*alloc)(void **out, void *payload, size_t bytes, const char *what);
    void (*free)(void *payload, void *block);
    void *payload;
} invar_arena_allocator;

/*
 * Creates an arena whose block comes from `source`. The struct is copied; its payload is borrowed.
 */
invar_status invar_arena_new_from(invar_arena **out, const char *name,
                                  const invar_arena_allocator *source) INVAR_MUST_USE;

/* Frees the arena and all its memory; `arena` may be NULL. */
void invar_arena_free(invar_arena *arena);

/*
 * Raises the planned size to at least `bytes`: the largest sum of pushes at one time, each rounded
 * up to a multiple of INVAR_ALIGN. Call before invar_arena_reserve.
 */
invar_status invar_arena_plan_scratch(invar_arena *arena, size_t bytes) INVAR_MUST_USE;

/* Allocates the planned size and ends the planning phase. May be called again after a failure. */
invar_status invar_arena_reserve(invar_arena *arena) INVAR_MUST_USE;

/*
 * *out = `bytes` bytes of scratch, aligned to INVAR_ALIGN, valid until a rewind to an earlier mark.
 * Call after invar_arena_reserve. Returns INVAR_E_STATE if the planned size is exceeded.
 */
invar_status invar_arena_push(void **out, invar_arena *arena, size_t bytes,
                              const char *what) INVAR_MUST_USE;

/* Returns the current height of the stack, for a later rewind. */
size_t invar_arena_mark(const invar_arena *arena);

/* Releases everything that was pushed after `mark` was taken. */
invar_status invar_arena_rewind(invar_arena *arena, size_t mark) INVAR_MUST_USE;

/* Returns the planned size in bytes. */
size_t invar_arena_bytes(const invar_arena *arena);

#ifdef __cplusplus
}
#endif
#endif
