/*
 * kv_cache.h - the pages that keep keys and values of sequences, for all layers.
 *
 * A page holds some consecutive positions of one sequence in every layer. It is counted how many
 * hold a page: the full pages of a prompt are shared by its samples, the last one, partly filled,
 * is copied. Which page a sequence gets changes no bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_ROLLOUT_KV_CACHE_H
#define INVAR_ENGINE_SAMPLE_ROLLOUT_KV_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels-deterministic/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_kv_cache_shape {
    int64_t layers;
    int64_t kv_heads;
    int64_t head_dim;
    invar_dtype storage;
    int64_t page_size; /* positions */
    int64_t pages;
} invar_kv_cache_shape;

typedef struct invar_kv_cache {
    invar_kv_cache_shape shape;
    invar_kv_pages *layers; /* (layers) k and v; who runs a pass sets the table */
    int32_t *ref_count;     /* (pages) 0: free */
    int32_t *free_pages;    /* (n_free) the last one is taken next */
    int64_t n_free;
    int64_t most_used; /* since the last reset */
    struct invar_kv_cache
        *draft_cache; /* another model's, in whose pages the same positions are; borrowed; */
                      /* NULL: none */
    invar_device dev; /* whose memory keys and values are in; without scratch */
    void *memory;     /* of keys and values */
} invar_kv_cache;

/* Bytes of keys and values of one page; -1 when that is no size_t. */
int64_t invar_kv_cache_page_bytes(const invar_kv_cache_shape *shape);

/* All pages free. Content is undefined: nothing reads a position before it was written. */
invar_status invar_kv_cache_new(invar_kv_cache **out, const invar_kv_cache_shape *shape,
                                const invar_device *dev) INVAR_MUST_USE;
void invar_kv_cache_free(invar_kv_cache *cache);

/* All pages are free again, whoever held them. */
void invar_kv_cache_reset(invar_kv_cache *cache);

/* Pages that `rows` positions need. */
int64_t invar_kv_cache_pages_for(const invar_kv_cache *cache, int64_t rows);

/* Takes `count` free pages into `out`. False, and none taken, when fewer are free. */
bool invar_kv_cache_alloc_pages(int32_t *out, invar_kv_cache *cache, int64_t count);

/* Another holder for each of the pages. */
void invar_kv_cache_ref_pages(invar_kv_cache *cache, const int32_t *pages, int64_t count);

/* One holder less for each; without holders a page is free. */
void invar_kv_cache_free_pages(invar_kv_cache *cache, const int32_t *pages, int64_t count);

/* The first `rows` positions of a page, in all layers, to another page; in the twin, too. */
invar_status invar_kv_cache_copy(invar_kv_cache *cache, int32_t to, int32_t from,
                                 int64_t rows) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
