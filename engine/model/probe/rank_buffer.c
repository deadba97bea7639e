/*
 * rank_buffer.c - serialization buffer for another rank, and bounds-checked reading of it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/probe/rank_buffer.h"

#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

enum { STRIDE = 8 };

static size_t pad_bytes(size_t bytes)
{
    return (bytes + STRIDE - 1) / STRIDE * STRIDE;
}

invar_status invar_rank_buffer_add(void **out, invar_rank_buffer *buffer, size_t count, size_t size)
{
    size_t needed = buffer->bytes + pad_bytes(count * size);

    INVAR_TRY(INVAR_GROW(buffer->data, buffer->capacity, (int64_t)buffer->bytes, (int64_t)needed,
                         "what is shown to another rank"));
    *out = buffer->data + buffer->bytes;
    memset(*out, 0, needed - buffer->bytes);
    buffer->bytes = needed;
    return INVAR_OK;
}

invar_status invar_rank_buffer_put(invar_rank_buffer *buffer, const void *items, size_t count,
                                   size_t size)
{
    void *to;

    INVAR_TRY(invar_rank_buffer_add(&to, buffer, count, size));
    if (count * size > 0)
        memcpy(to, items, count * size);
    return INVAR_OK;
}

void invar_rank_buffer_release(invar_rank_buffer *buffer)
{
    invar_free(buffer->data);
    *buffer = (invar_rank_buffer){0};
}

invar_status invar_rank_buffer_damaged(void)
{
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "points of another rank are damaged: check its host and the network");
}

invar_status invar_rank_buffer_take(const void **out, invar_rank_buffer_reader *rest, int64_t count,
                                    size_t size)
{
    size_t bytes;

    if (count < 0 || (size > 0 && (uint64_t)count > rest->bytes / size))
        return invar_rank_buffer_damaged();
    bytes = pad_bytes((size_t)count * size);
    if (bytes > rest->bytes)
        return invar_rank_buffer_damaged();
    *out = rest->cursor;
    rest->cursor += bytes;
    rest->bytes -= bytes;
    return INVAR_OK;
}
