/*
 * gzip.c - compresses and expands gzip data. The only user of zlib.
 *
 * Expansion is bounded by max_bytes before memory is allocated, because a small input may expand a
 * thousandfold. zlib allocates with invar_alloc.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/zip/gzip.h"

#include <limits.h>
#include <string.h>

#include <zlib.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

#define GZIP_ONLY (15 + 16) /* windowBits of zlib: largest window, gzip format only */
#define MEMORY_LEVEL 8      /* default of gzip */

typedef struct expansion {
    z_stream z;
    const char *where;
    const char *next; /* (left) input that z did not get yet */
    size_t left;
    char *out;
    size_t used, room, max;
} expansion;

bool invar_gzip_is(const char *data, size_t bytes)
{
    return bytes >= 2 && memcmp(data, "\x1f\x8b", 2) == 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void *gzip_alloc(void *unused, unsigned count, unsigned size)
{
    void *block;

    (void)unused;
    if (invar_alloc(&block, count, size, "gzip") == INVAR_OK)
        return block;
    invar_error_clear(); // zlib returns a code for lack of memory
    return NULL;
}

static void gzip_free(void *unused, void *block)
{
    (void)unused;
    invar_free(block);
}

static invar_status expansion_grow(expansion *e)
{
    return invar_alloc_grow(&e->out, &e->room, e->used, e->max, "expanded gzip");
}

/* ---- expanding ------------------------------------------------------------------------------- */

static invar_status expansion_damaged(const expansion *e, const char *why)
{
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the gzip data is damaged: %s", e->where, why);
}

/* Gives zlib more input and more output space if one is used up; zlib counts both in unsigned. */
static invar_status expansion_feed(expansion *e)
{
    if (e->z.avail_in == 0) {
        e->z.avail_in = e->left < UINT_MAX ? (unsigned)e->left : UINT_MAX;
        e->z.next_in = (z_const Bytef *)e->next;
        e->next += e->z.avail_in;
        e->left -= e->z.avail_in;
    }
    if (e->used == e->room)
        INVAR_TRY(expansion_grow(e));
    e->z.next_out = (Bytef *)e->out + e->used;
    e->z.avail_out = e->room - e->used < UINT_MAX ? (unsigned)(e->room - e->used) : UINT_MAX;
    return INVAR_OK;
}

/* Calls zlib once. *ended_out = whether a member is complete. */
static invar_status expansion_step(expansion *e, bool *ended_out)
{
    unsigned before;
    int code;

    INVAR_TRY(expansion_feed(e));
    before = e->z.avail_out;
    code = inflate(&e->z, Z_NO_FLUSH);
    e->used += before - e->z.avail_out;
    *ended_out = code == Z_STREAM_END;
    if (e->used > e->max)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: it expands to more than the %zu bytes allowed",
                          e->where, e->max);
    if (code == Z_MEM_ERROR)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for expanding %s", e->where);
    if (code == Z_BUF_ERROR)
        return expansion_damaged(e, "it ends too early");
    if (code != Z_OK && code != Z_STREAM_END)
        return expansion_damaged(e, e->z.msg ? e->z.msg : "it is not what gzip writes");
    return INVAR_OK;
}

/* True if only zeros follow, with which tapes and block devices pad the last member. */
static bool only_zeros(const char *data, size_t bytes)
{
    size_t zeros = 0;

    while (zeros < bytes && data[zeros] == 0)
        zeros++;
    return zeros == bytes;
}

static invar_status expansion_expand(expansion *e)
{
    bool ended = false;

    while (!ended || !only_zeros(e->next - e->z.avail_in, e->z.avail_in + e->left)) {
        if (ended && inflateReset(&e->z) != Z_OK)
            return expansion_damaged(e, "its parts do not follow each other");
        INVAR_TRY(expansion_step(e, &ended));
    }
    return INVAR_OK;
}

invar_status invar_gzip_expand(char **out, size_t *bytes_out, const char *where, const char *data,
                               size_t bytes, size_t max_bytes)
{
    expansion e = {.where = where, .next = data, .left = bytes, .max = max_bytes};
    invar_status status;

    *out = NULL;
    *bytes_out = 0;
    e.z.zalloc = gzip_alloc;
    e.z.zfree = gzip_free;
    if (inflateInit2(&e.z, GZIP_ONLY) != Z_OK)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for expanding %s", where);
    status = expansion_expand(&e);
    if (status == INVAR_OK && e.used == 0)
        status = expansion_grow(&e); // allocates the byte for the NUL
    inflateEnd(&e.z);
    if (status != INVAR_OK) {
        invar_free(e.out);
        return status;
    }
    e.out[e.used] = '\0';
    *out = e.out;
    *bytes_out = e.used;
    return INVAR_OK;
}

/* ---- making ---------------------------------------------------------------------------------- */

invar_status invar_gzip_pack(char **out, size_t *bytes_out, const char *data, size_t bytes)
{
    const size_t most = (size_t)1 << 30; // far below the largest unsigned
    z_stream z = {.zalloc = gzip_alloc, .zfree = gzip_free};
    invar_status status;

    *out = NULL;
    *bytes_out = 0;
    if (bytes > most)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%zu bytes are too many for gzip here: %zu are not",
                          bytes, most);
    if (deflateInit2(&z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, GZIP_ONLY, MEMORY_LEVEL,
                     Z_DEFAULT_STRATEGY) != Z_OK)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for gzip");
    size_t room = deflateBound(&z, bytes);
    status = INVAR_ALLOC(*out, room, "gzip data");
    if (status == INVAR_OK) {
        z.next_in = (z_const Bytef *)data;
        z.avail_in = (unsigned)bytes;
        z.next_out = (Bytef *)*out;
        z.avail_out = (unsigned)room;
        INVAR_CHECK(deflate(&z, Z_FINISH) == Z_STREAM_END); // the output has the size of the bound
        *bytes_out = room - z.avail_out;
    }
    deflateEnd(&z);
    return status;
}
