/*
 * phase_arena.c - first-fit allocation in one block, and a device that does nothing.
 *
 * An allocation gets the first gap that it fits in, so addresses are a pure function of the order
 * of allocations and frees: the same code gets the same addresses in every dry run. Memory that
 * does not fit into a bound block comes from the base device.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/memory_plan/phase_arena.h"

#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

/* Addresses of arenas without memory; no process has memory there. */
#define NOWHERE ((uintptr_t)1 << 60)
#define NOWHERE_BYTES ((size_t)1 << 45)
#define MOST_BYTES ((size_t)1 << 40) // largest allocation, in bytes

/*
 * Returns the arena of a device. Devices are copied, but all copies point to the backend in the
 * arena.
 */
static invar_phase_arena *arena_of(const invar_device *dev)
{
    return (invar_phase_arena *)(uintptr_t)dev->backend;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static invar_status alloc_outside(invar_phase_arena *s, void **out, size_t bytes, const char *what)
{
    if ((uintptr_t)s->base >= NOWHERE)
        return INVAR_FAIL(INVAR_E_NOMEM, INVAR_DEVICE_NOMEM, "%s: %zu MiB fit on no device", what,
                          bytes >> 20);
    return s->base_dev.backend->memory.alloc(&s->base_dev, out, bytes, what);
}

static invar_status alloc_block(const invar_device *dev, void **out, size_t bytes, const char *what)
{
    invar_phase_arena *s = arena_of(dev);
    size_t need = invar_aligned(bytes + !bytes), at = 0;
    int place = 0;

    while (place < s->count && s->blocks[place].offset - at < need) {
        at = s->blocks[place].offset + s->blocks[place].bytes;
        place++;
    }
    if (bytes > MOST_BYTES || at > s->bytes || need > s->bytes - at ||
        s->count == INVAR_PHASE_ARENA_MAX_BLOCKS)
        return alloc_outside(s, out, bytes, what);
    memmove(&s->blocks[place + 1], &s->blocks[place],
            (size_t)(s->count - place) * sizeof *s->blocks);
    s->blocks[place] = (invar_phase_arena_block){at, need};
    s->count++;
    s->allocated_bytes += need;
    s->peak_bytes = s->allocated_bytes > s->peak_bytes ? s->allocated_bytes : s->peak_bytes;
    s->high_water = at + need > s->high_water ? at + need : s->high_water;
    *out = s->base + at;
    return INVAR_OK;
}

static void free_block(const invar_device *dev, void *block)
{
    invar_phase_arena *s = arena_of(dev);
    int place = 0;

    if (!block)
        return;
    if ((uintptr_t)block < (uintptr_t)s->base ||
        (uintptr_t)block - (uintptr_t)s->base >= s->bytes) {
        s->base_dev.backend->memory.free(&s->base_dev, block);
        return;
    }
    while (place < s->count && s->base + s->blocks[place].offset != (char *)block)
        place++;
    INVAR_CHECK(place < s->count);
    s->allocated_bytes -= s->blocks[place].bytes;
    s->count--;
    memmove(&s->blocks[place], &s->blocks[place + 1],
            (size_t)(s->count - place) * sizeof *s->blocks);
}

/* ---- counting device ------------------------------------------------------------------------- */

static invar_status count_host(const invar_device *dev, void **out, size_t bytes, const char *what)
{
    (void)what;
    arena_of(dev)->host += bytes;
    *out = (void *)(NOWHERE + (INVAR_PHASE_ARENA_MAX_APART + 1) * NOWHERE_BYTES);
    return INVAR_OK;
}

static void ignore_free(const invar_device *dev, void *block)
{
    (void)dev;
    (void)block;
}

static invar_status skip_copy(const invar_device *dev, void *to, const void *from, size_t bytes)
{
    (void)dev;
    (void)to;
    (void)from;
    (void)bytes;
    return INVAR_OK;
}

/* Fills the host's memory with zeros, unless it is an address of the arena. */
static invar_status download_zeros(const invar_device *dev, void *to, const void *from,
                                   size_t bytes)
{
    (void)dev;
    (void)from;
    if (bytes > 0 && (uintptr_t)to < NOWHERE)
        memset(to, 0, bytes);
    return INVAR_OK;
}

static invar_status copy_each(const invar_device *dev, void *to, const void *from, size_t bytes,
                              size_t stride, size_t count)
{
    (void)stride;
    (void)count;
    return skip_copy(dev, to, from, bytes);
}

static invar_status zero(const invar_device *dev, void *at, size_t bytes)
{
    return skip_copy(dev, at, NULL, bytes);
}

static invar_status skip_wait(const invar_device *dev)
{
    return skip_copy(dev, NULL, NULL, 0);
}

/* ---- states of an arena ---------------------------------------------------------------------- */

void invar_phase_arena_init(invar_phase_arena *s, const invar_device *under, int number)
{
    invar_device_memory *m = &s->backend.memory;

    memset(s, 0, sizeof *s);
    s->base_dev = *under;
    s->base_dev.scratch = NULL;
    s->backend = *under->backend;
    s->dev = s->base_dev;
    s->dev.backend = &s->backend;
    INVAR_CHECK(number >= 0 && number <= INVAR_PHASE_ARENA_MAX_APART);
    s->base = (char *)(NOWHERE + (uintptr_t)number * NOWHERE_BYTES);
    s->bytes = NOWHERE_BYTES;
    s->backend.open = NULL;
    s->backend.close = NULL;
    m->alloc = alloc_block;
    m->free = free_block;
    m->alloc_host = count_host;
    m->free_host = ignore_free;
    m->free_bytes = NULL;
    m->upload = skip_copy;
    m->download = download_zeros;
    m->copy = skip_copy;
    m->copy_strided = copy_each;
    m->zero = zero;
    m->synchronize = skip_wait;
    m->dry_run = true;
    m->exact_size = true;
}

void invar_phase_arena_bind(invar_phase_arena *s, void *base, size_t bytes)
{
    INVAR_CHECK(s->count == 0);
    s->base = base;
    s->bytes = bytes;
    s->allocated_bytes = s->peak_bytes = s->high_water = 0;
}

void invar_phase_arena_activate(invar_phase_arena *s)
{
    invar_backend real = *s->base_dev.backend;

    real.open = NULL; // it is open already
    real.close = NULL;
    real.memory.alloc = alloc_block;
    real.memory.free = free_block;
    real.memory.exact_size = true;
    s->backend = real;
}

void invar_phase_arena_mark(invar_phase_arena *s)
{
    s->peak_bytes = s->allocated_bytes;
}
