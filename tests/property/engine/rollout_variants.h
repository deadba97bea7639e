/*
 * rollout_variants.h - ways to execute a rollout, none of which may matter.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_PROPERTY_ENGINE_ROLLOUT_VARIANTS_H
#define INVAR_TESTS_PROPERTY_ENGINE_ROLLOUT_VARIANTS_H

#include <stdio.h>

#include "engine/sample/rollout/rollout.h"

/* `tight`: not one page more than the longest sequence needs, or (2) one. */
typedef struct way {
    int threads;
    int64_t concurrency, chunk, page_size;
    int tight;
    bool alone; /* no prefix sharing */
} way;

static const way ways[] = {
    {1, 1, 512, 16, 0, false}, {2, 2, 1, 1, 0, false},   {1, 5, 3, 2, 2, false},
    {3, 64, 7, 64, 0, true},   {1, 64, 1, 16, 1, false}, {2, 5, 512, 1, 2, false},
    {1, 2, 7, 2, 1, true},     {3, 64, 3, 16, 2, false},
};

#define WAYS ((int64_t)(sizeof ways / sizeof *ways))

/* For sequences of at most `longest` tokens, the last of which has no row in the cache. */
static inline invar_rollout_exec_options way_limits(const way *w, int64_t longest)
{
    return (invar_rollout_exec_options){
        .concurrency = w->concurrency,
        .prefill_chunk = w->chunk,
        .page_size = w->page_size,
        .pages = w->tight ? (longest - 1 + w->page_size - 1) / w->page_size + w->tight - 1 : 0,
        .no_prefix_sharing = w->alone};
}

static inline void way_describe(char *out, size_t size, const way *w)
{
    snprintf(out, size, "%d threads, %d at a time, chunk %d, page %d, %d, %d", w->threads,
             (int)w->concurrency, (int)w->chunk, (int)w->page_size, w->tight, w->alone);
}

#endif
