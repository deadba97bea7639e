/*
 * block_carver.h - many pieces of one block, laid out by a function that runs twice.
 *
 * The first run has no block and only adds up; then the block is allocated, and the second run
 * hands out its pieces. So where everything lies is a pure function of the extents.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_BLOCK_CARVER_H
#define INVAR_BASE_BLOCK_CARVER_H

#include <stddef.h>

#include "base/alloc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A zeroed one measures; one with a block of `used` bytes places. */
typedef struct invar_carver {
    char *block;
    size_t used;
} invar_carver;

/* The next piece, aligned as a block is; NULL while measuring. */
static inline void *invar_carve(invar_carver *carver, size_t bytes)
{
    void *piece = carver->block ? carver->block + carver->used : NULL;

    carver->used += invar_aligned(bytes);
    return piece;
}

#ifdef __cplusplus
}
#endif
#endif
