/*
 * rank_buffer.h - bytes for another rank: put one after the other, and taken there in the same
 * order.
 *
 * Ranks run the same program: a struct is the same bytes on all of them. Whatever is put begins at
 * a multiple of 8 bytes, so that it can be read where it lies.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_PROBE_RANK_BUFFER_H
#define INVAR_ENGINE_MODEL_PROBE_RANK_BUFFER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed, it is empty; release. */
typedef struct invar_rank_buffer {
    char *data;
    size_t bytes, room;
} invar_rank_buffer;

/* Room for `count` items at its end, which the caller fills before the next call. */
invar_status invar_rank_buffer_add(void **out, invar_rank_buffer *parcel, size_t count,
                                   size_t size) INVAR_MUST_USE;
invar_status invar_rank_buffer_put(invar_rank_buffer *parcel, const void *items, size_t count,
                                   size_t size) INVAR_MUST_USE;
void invar_rank_buffer_release(invar_rank_buffer *parcel);

/* What is left of one that has arrived. */
typedef struct invar_rank_buffer_reader {
    const char *cursor;
    size_t bytes;
} invar_rank_buffer_reader;

/* *out = the next items, where they lie. INVAR_E_CORRUPT: there are fewer. */
invar_status invar_rank_buffer_take(const void **out, invar_rank_buffer_reader *rest, int64_t count,
                                    size_t size) INVAR_MUST_USE;

/* For those who find something in it that no rank puts there. */
invar_status invar_rank_buffer_damaged(void) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
