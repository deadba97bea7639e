/*
 * hash.c - hashes tensors of other programs, with any strides, for libinvar.
 *
 * The canonical bytes of a tensor are its elements row by row. A tensor that is dense, or whose
 * rows are, is hashed in place; otherwise a dense copy is hashed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/hash.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "api/invar.h"
#include "base/alloc.h"
#include "base/pool.h"

#include "base/invar_banned.h"

/* ---- the layout of a tensor ------------------------------------------------------------------ */

static invar_status fail_tensor(int64_t number, const char *why)
{
    return INVAR_FAIL(INVAR_E_INVALID, 0, "tensor %" PRId64 " cannot be hashed: %s", number, why);
}

/* Checks a tensor. *bytes_out = the bytes of its elements without gaps. */
static invar_status check_tensor(size_t *bytes_out, const invar_api_tensor *t, int64_t number)
{
    size_t bytes;

    if (t->bits < 8 || t->bits > 128 || t->bits % 8 != 0)
        return fail_tensor(number, "an element has not 1 to 16 whole bytes");
    if (t->place != INVAR_API_HOST)
        return fail_tensor(number, "it does not lie in the host's memory");
    if (t->dims < 0 || t->dims > INVAR_API_MAX_DIMS || (t->dims > 0 && !t->shape))
        return fail_tensor(number, "it has not 0 to 64 dimensions");
    bytes = (size_t)t->bits / 8;
    for (int32_t i = 0; i < t->dims; i++) {
        if (t->shape[i] < 0)
            return fail_tensor(number, "an extent is negative");
        if (t->shape[i] == 0) {
            *bytes_out = 0;
            return INVAR_OK;
        }
    }
    for (int32_t i = 0; i < t->dims; i++)
        if (__builtin_mul_overflow(bytes, (size_t)t->shape[i], &bytes) || bytes > PTRDIFF_MAX)
            return fail_tensor(number, "it has more bytes than memory can have");
    if (!t->data)
        return fail_tensor(number, "it has elements and no memory");
    *bytes_out = bytes;
    return INVAR_OK;
}

/* Returns the first dimension from which on the elements have no gaps; 0 for a dense tensor. */
static int32_t dense_from(const invar_api_tensor *t)
{
    int64_t expected = 1;
    int32_t i = t->dims;

    if (!t->strides)
        return 0;
    while (i > 0 && (t->shape[i - 1] == 1 || t->strides[i - 1] == expected))
        expected *= t->shape[--i];
    return i;
}

/* Copies the elements of the dimensions from `dim` on, and returns the end of the copy. */
static char *gather_elements(char *to, const char *from, const invar_api_tensor *t, int32_t dim,
                             int32_t dense, size_t piece)
{
    if (dim == dense) {
        memcpy(to, from, piece);
        return to + piece;
    }
    for (int64_t i = 0; i < t->shape[dim]; i++)
        to = gather_elements(to, from + i * t->strides[dim] * (t->bits / 8), t, dim + 1, dense,
                             piece);
    return to;
}

/* ---- digests --------------------------------------------------------------------------------- */

static invar_status hash_shard(invar_digest *out, invar_pool *pool, const void *data, int64_t rows,
                               size_t row_bytes, size_t stride)
{
    const invar_tree_shard shard = {data, rows, row_bytes, stride};

    return invar_tree_hash(out, pool, &(invar_tree_input){&shard, 1});
}

static invar_status hash_copy(invar_digest *out, invar_pool *pool, const invar_api_tensor *t,
                              int32_t dense, size_t bytes)
{
    INVAR_AUTO_FREE void *copy = NULL;
    size_t piece = (size_t)t->bits / 8;

    for (int32_t i = dense; i < t->dims; i++)
        piece *= (size_t)t->shape[i];
    INVAR_TRY(invar_alloc(&copy, bytes, 1, "a dense copy of a tensor"));
    gather_elements(copy, t->data, t, 0, dense, piece);
    return hash_shard(out, pool, copy, 1, bytes, bytes);
}

static invar_status hash_tensor(invar_digest *out, invar_pool *pool, const invar_api_tensor *t,
                                int64_t number)
{
    int32_t dense;
    size_t bytes;

    INVAR_TRY(check_tensor(&bytes, t, number));
    if (bytes == 0)
        return hash_shard(out, pool, NULL, 0, 0, 0);
    dense = dense_from(t);
    if (dense == 0)
        return hash_shard(out, pool, t->data, 1, bytes, bytes);
    if (dense == 1 && t->strides[0] > 0) {
        size_t row = bytes / (size_t)t->shape[0];
        size_t stride = (size_t)t->strides[0] * (size_t)(t->bits / 8);
        if (stride >= row)
            return hash_shard(out, pool, t->data, t->shape[0], row, stride);
    }
    return hash_copy(out, pool, t, dense, bytes);
}

int32_t invar_api_hash_bytes(uint8_t *out, const void *data, uint64_t bytes)
{
    invar_digest digest;

    if (bytes > SIZE_MAX || (bytes > 0 && !data))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%" PRIu64 " bytes and no memory cannot be hashed",
                          bytes);
    invar_hash_bytes(&digest, data, (size_t)bytes);
    memcpy(out, digest.bytes, sizeof digest.bytes);
    return INVAR_OK;
}

int32_t invar_api_hash_tensors(uint8_t *out, const invar_api_tensor *tensors, int64_t count,
                               int32_t threads)
{
    invar_pool *pool = NULL;
    invar_status status = INVAR_OK;
    invar_digest digest;

    if (threads != 1)
        INVAR_TRY(invar_pool_new(&pool, threads));
    for (int64_t i = 0; i < count && status == INVAR_OK; i++) {
        status = hash_tensor(&digest, pool, &tensors[i], i);
        memcpy(out + i * INVAR_API_DIGEST_BYTES, digest.bytes, sizeof digest.bytes);
    }
    invar_pool_free(pool);
    return status;
}
