/*
 * fixture.h - a folder for ledgers and a heap whose n-th allocation fails, for tests of views.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_LEDGER_VIEW_FIXTURE_H
#define INVAR_TESTS_UNIT_LEDGER_VIEW_FIXTURE_H

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "ledger/ledger.h"
#include "tests/support.h"

#ifndef INVAR_TEST_WORK
#define INVAR_TEST_WORK "." /* the build defines it, except if this header is compiled alone */
#endif

static char work_folder[400] = INVAR_TEST_WORK "/view-XXXXXX";

static inline const char *path_of(const char *name)
{
    static char path[4][512];
    static int next;
    char *out = path[next++ % 4];

    (void)snprintf(out, sizeof path[0], "%s/%s", work_folder, name);
    return out;
}

static inline invar_ledger *open_ledger(const char *name)
{
    invar_ledger *ledger;

    assert_ok(invar_ledger_open(&ledger, path_of(name), NULL));
    return ledger;
}

static inline uint64_t bits_of(double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* ---- the start of a run ---------------------------------------------------------------------- */

static const invar_ledger_provenance no_provenance = {.no_auto_facts = true};

static inline void define(invar_ledger *ledger, const char *name)
{
    const int64_t shape[] = {2, 3};
    const invar_ledger_point point = {.name = name,
                                      .phase = "forward",
                                      .layer = -1,
                                      .op = "linear",
                                      .kind = "act",
                                      .dtype = "f32",
                                      .shape = shape,
                                      .dims = 2,
                                      .shards = 1};

    assert_ok(invar_ledger_define(ledger, &point, 1));
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Counts the allocations of invar_alloc and of jansson between heap_watch and heap_unwatch. */
static struct {
    int64_t fail_at;     /* number of the call that fails, from 1; 0 for none */
    int64_t calls, live; /* allocations so far; blocks that are not freed */
} heap;

static inline void *heap_alloc(size_t bytes)
{
    void *block = NULL;

    if (++heap.calls == heap.fail_at || posix_memalign(&block, INVAR_ALIGN, bytes) != 0)
        return NULL;
    memset(block, 0xA5, bytes);
    heap.live++;
    return block;
}

static inline void heap_free(void *block)
{
    heap.live -= block != NULL;
    free(block);
}

static inline void *watched_alloc(size_t bytes, void *payload)
{
    (void)payload;
    return heap_alloc(bytes);
}

static inline void watched_free(void *block, void *payload)
{
    (void)payload;
    heap_free(block);
}

static inline void heap_watch(void)
{
    static const invar_allocator ours = {watched_alloc, watched_free, NULL};

    invar_allocator_set(&ours);
    json_set_alloc_funcs(heap_alloc, heap_free);
}

static inline void heap_unwatch(void)
{
    invar_allocator_set(NULL);
    json_set_alloc_funcs(malloc, free);
}

#endif
