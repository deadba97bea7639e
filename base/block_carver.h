/*
 * block_carver.h - lays out several arrays in one block of memory.
 *
 * A layout function runs twice. In the first run there is no block, and the carver only adds up
 * sizes. Then the caller allocates the block, and the second run returns the arrays. So the layout
 * is a pure function of the sizes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_BLOCK_CARVER_H
#define INVAR_BASE_BLOCK_CARVER_H

#include <stddef.h>

#include "base/alloc.h"

/*
 * State of a layout. Zero-initialize for the first run; set `block`, and `used` to 0, for the
 * second.
 */
typedef struct invar_carver {
    char *block; /* memory; NULL in the first run; borrowed */
    size_t used; /* bytes laid out so far */
} invar_carver;

/* Returns the next `bytes` bytes, aligned to INVAR_ALIGN; NULL in the first run. */
static inline void *invar_carve(invar_carver *carver, size_t bytes)
{
    void *piece = carver->block ? carver->block + carver->used : NULL;

    carver->used += invar_aligned(bytes);
    return piece;
}

#endif
