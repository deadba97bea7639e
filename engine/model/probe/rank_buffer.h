/*
 * rank_buffer.h - serialization buffer: items appended by one rank and read by another in order.
 *
 * All ranks run the same executable, so a struct has the same bytes on all of them. Every item
 * starts at a multiple of 8 bytes and can be read in place.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_PROBE_RANK_BUFFER_H
#define INVAR_ENGINE_MODEL_PROBE_RANK_BUFFER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Zero-initialize before use. Release with invar_rank_buffer_release. */
typedef struct invar_rank_buffer {
    char *data;
    size_t bytes;
    int64_t capacity;
} invar_rank_buffer;

/*
 * *out = zeroed memory for `count` items at the end; fill it before the next call.
 * invar_rank_buffer_put appends a copy of `items`.
 */
invar_status invar_rank_buffer_add(void **out, invar_rank_buffer *buffer, size_t count,
                                   size_t size) INVAR_MUST_USE;
invar_status invar_rank_buffer_put(invar_rank_buffer *buffer, const void *items, size_t count,
                                   size_t size) INVAR_MUST_USE;
void invar_rank_buffer_release(invar_rank_buffer *buffer);

/* Unread rest of a received buffer. */
typedef struct invar_rank_buffer_reader {
    const char *cursor;
    size_t bytes;
} invar_rank_buffer_reader;

/* *out = the next `count` items, in place. Returns INVAR_E_CORRUPT if fewer are left. */
invar_status invar_rank_buffer_take(const void **out, invar_rank_buffer_reader *rest, int64_t count,
                                    size_t size) INVAR_MUST_USE;

/* Fails with INVAR_E_CORRUPT: for callers that find invalid contents in a received buffer. */
invar_status invar_rank_buffer_damaged(void) INVAR_MUST_USE;

#endif
