/*
 * alloc.h - memory allocation; all of Invar allocates here.
 *
 * Tests can replace the allocator, for example to fail the n-th call. Blocks are aligned to
 * INVAR_ALIGN bytes; their content is undefined.
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

/* Returns `bytes` rounded up to a multiple of INVAR_ALIGN. */
static inline size_t invar_aligned(size_t bytes)
{
    return (bytes + INVAR_ALIGN - 1) / INVAR_ALIGN * INVAR_ALIGN;
}

typedef struct invar_allocator {
    void *(*alloc)(size_t bytes, void *payload); /* returns NULL on failure */
    void (*free)(void *block, void *payload);
    void *payload;
} invar_allocator;

/*
 * Replaces the allocator; NULL restores the standard one. No block may be allocated at this time.
 */
void invar_allocator_set(const invar_allocator *allocator);

/*
 * Allocates count * size bytes, also if that is 0. `what` is used in error messages only. The
 * caller frees *out with invar_free. Returns INVAR_E_NOMEM, with *out = NULL, if the product
 * overflows or memory is exhausted.
 */
INVAR_EXPORT invar_status invar_alloc(void **out, size_t count, size_t size,
                                      const char *what) INVAR_MUST_USE;

/*
 * Like invar_alloc, but return the block, or NULL after a failure. invar_alloc_zeros sets its bytes
 * to 0. Private to the macros below.
 */
INVAR_EXPORT void *invar_alloc_block(size_t count, size_t size, const char *what);
INVAR_EXPORT void *invar_alloc_zeros(size_t count, size_t size, const char *what);

#ifdef __cplusplus
#define INVAR_ALLOC_ASSIGN(pointer, block) ((pointer) = (__typeof__(pointer))(block))
#else
#define INVAR_ALLOC_ASSIGN(pointer, block) ((pointer) = (block))
#endif

/*
 * Allocate `count` items of the type that `pointer` points to, which is not void, and assign the
 * block to `pointer`. The value is an invar_status: INVAR_E_NOMEM, with `pointer` NULL, if memory
 * is exhausted. The caller frees `pointer` with invar_free. INVAR_ALLOC leaves the content
 * undefined, INVAR_ALLOC_ZEROED sets it to 0, and INVAR_ALLOC_SIZED takes the bytes of an item.
 */
#define INVAR_ALLOC(pointer, count, what) INVAR_ALLOC_SIZED(pointer, count, sizeof *(pointer), what)
#define INVAR_ALLOC_SIZED(pointer, count, size, what)                                              \
    (INVAR_ALLOC_ASSIGN(pointer, invar_alloc_block(count, size, what)) ? INVAR_OK : INVAR_E_NOMEM)
#define INVAR_ALLOC_ZEROED(pointer, count, what)                                                   \
    (INVAR_ALLOC_ASSIGN(pointer, invar_alloc_zeros(count, sizeof *(pointer), what))                \
         ? INVAR_OK                                                                                \
         : INVAR_E_NOMEM)

/*
 * Returns `block`, an array of *capacity items whose first `used` ones are kept, with capacity for
 * at least `needed` items: a larger block replaces it if it is too small. A failure returns the
 * same block and changes nothing. Private to the macro below.
 */
INVAR_EXPORT void *invar_grow_block(void *block, int64_t *capacity, int64_t used, int64_t needed,
                                    size_t size, const char *what) INVAR_MUST_USE;

/*
 * Gives a growing array capacity for at least `needed` items: `pointer` is NULL and `capacity`, an
 * int64_t, is 0 at first. The first `used` items are kept and the content of all others is
 * undefined. The value is an invar_status; INVAR_E_NOMEM changes nothing. The caller frees
 * `pointer` with invar_free.
 */
#define INVAR_GROW(pointer, capacity, used, needed, what)                                          \
    (INVAR_ALLOC_ASSIGN(                                                                           \
         pointer, invar_grow_block(pointer, &(capacity), used, needed, sizeof *(pointer), what)),  \
     (capacity) >= (needed) ? INVAR_OK : INVAR_E_NOMEM)

/*
 * Doubles the capacity *capacity of a buffer for a text of unknown length, and keeps its first
 * `used` bytes. The capacity begins with 64 KiB and is at most max_bytes + 1, so that a text that
 * is too long can be noticed; one more byte is allocated for a NUL. *text is NULL and *capacity 0
 * at first. The caller frees *text with invar_free.
 */
invar_status invar_alloc_grow(char **text, size_t *capacity, size_t used, size_t max_bytes,
                              const char *what) INVAR_MUST_USE;

/*
 * Appends bytes to a text that grows as needed and ends with a NUL, which *used does not count.
 * *text is NULL, *used and *capacity are 0 at first; a failure changes none of them. Free *text
 * with invar_free.
 */
invar_status invar_alloc_append(char **text, size_t *used, size_t *capacity, const char *more,
                                size_t bytes, const char *what) INVAR_MUST_USE;

/* Frees a block; `block` may be NULL. */
INVAR_EXPORT void invar_free(void *block);

/*
 * Stands before the declaration of a local variable, which must have a value, and calls `release`
 * with its address at the end of its block, however that is left. INVAR_AUTO_FREE frees the block
 * that the variable, a pointer, points to; the pointer may be NULL.
 */
#define INVAR_AUTO(release) __attribute__((cleanup(release)))
#define INVAR_AUTO_FREE INVAR_AUTO(invar_free_at)
void invar_free_at(void *pointer);

#ifdef __cplusplus
}
#endif
#endif
