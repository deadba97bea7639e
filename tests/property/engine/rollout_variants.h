/*
 * rollout_variants.h - execution options of a rollout that must not change a bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_PROPERTY_ENGINE_ROLLOUT_VARIANTS_H
#define INVAR_TESTS_PROPERTY_ENGINE_ROLLOUT_VARIANTS_H

#include <stdio.h>

#include "engine/sample/rollout/rollout.h"

/* An execution of a rollout. */
typedef struct rollout_variant {
    int threads;
    int64_t concurrency, chunk, page_size;
    int few_pages; /* 0 for enough pages; 1 for the pages of the longest sequence, 2 for one more */
    bool no_sharing; /* disables the sharing of prefixes */
} rollout_variant;

static const rollout_variant variants[] = {
    {1, 1, 512, 16, 0, false}, {2, 2, 1, 1, 0, false},   {1, 5, 3, 2, 2, false},
    {3, 64, 7, 64, 0, true},   {1, 64, 1, 16, 1, false}, {2, 5, 512, 1, 2, false},
    {1, 2, 7, 2, 1, true},     {3, 64, 3, 16, 2, false},
};

#define VARIANTS ((int64_t)(sizeof variants / sizeof *variants))

/*
 * Returns the options for sequences of at most `longest` tokens. The last token has no row in the
 * cache.
 */
static inline invar_rollout_exec_options variant_limits(const rollout_variant *w, int64_t longest)
{
    return (invar_rollout_exec_options){
        .concurrency = w->concurrency,
        .prefill_chunk = w->chunk,
        .page_size = w->page_size,
        .pages =
            w->few_pages ? (longest - 1 + w->page_size - 1) / w->page_size + w->few_pages - 1 : 0,
        .no_prefix_sharing = w->no_sharing};
}

static inline void variant_describe(char *out, size_t size, const rollout_variant *w)
{
    snprintf(out, size, "%d threads, %d at a time, chunk %d, page %d, %d, %d", w->threads,
             (int)w->concurrency, (int)w->chunk, (int)w->page_size, w->few_pages, w->no_sharing);
}

#endif
