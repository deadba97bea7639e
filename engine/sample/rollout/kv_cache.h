/*
 * kv_cache.h - paged KV cache: reference-counted pages of keys and values for all layers.
 *
 * A page holds page_size consecutive positions of one sequence in every layer. Sequences that share
 * a prompt reference its full pages; the last page, if partly filled, is copied for each of them.
 * The page number that a sequence gets changes no bit. Not thread-safe.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_ROLLOUT_KV_CACHE_H
#define INVAR_ENGINE_SAMPLE_ROLLOUT_KV_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels-deterministic/ops.h"

typedef struct invar_kv_cache_shape {
    int64_t layers;   /* layers that this rank holds */
    int64_t kv_heads; /* heads of keys and values that this rank holds */
    int64_t head_dim;
    invar_dtype storage; /* type of keys and values */
    int64_t page_size;   /* positions per page */
    int64_t pages;
} invar_kv_cache_shape;

typedef struct invar_kv_cache {
    invar_kv_cache_shape shape;
    invar_kv_pages *layers; /* (layers) keys and values; the model runner sets the page table */
    int32_t *ref_count;     /* (pages) sequences that use the page; 0 if it is free */
    int32_t *free_pages;    /* (n_free) stack of free pages; the last one is allocated next */
    int64_t n_free;
    int64_t max_used; /* largest number of pages in use since the last reset */
    /* cache of the draft model, whose pages hold the same positions; borrowed; NULL without one */
    struct invar_kv_cache *draft_cache;
    invar_device dev; /* device of `memory`; its scratch is NULL */
    void *memory;     /* device memory of all keys and values */
} invar_kv_cache;

/* Returns the bytes of the keys and values of one page in all layers; -1 if int64_t overflows. */
int64_t invar_kv_cache_page_bytes(const invar_kv_cache_shape *shape);

/*
 * Creates a cache with all pages free. Their content is undefined, because no position is read
 * before it was written. The caller frees *out with invar_kv_cache_free.
 */
invar_status invar_kv_cache_new(invar_kv_cache **out, const invar_kv_cache_shape *shape,
                                const invar_device *dev) INVAR_MUST_USE;
void invar_kv_cache_free(invar_kv_cache *cache);

/* Frees all pages, whatever their reference counts, and sets max_used to 0. */
void invar_kv_cache_reset(invar_kv_cache *cache);

/* Returns the number of pages that `rows` positions need. */
int64_t invar_kv_cache_pages_for(const invar_kv_cache *cache, int64_t rows);

/* Allocates `count` pages into out[]. Returns false and allocates nothing if fewer are free. */
bool invar_kv_cache_alloc_pages(int32_t *out, invar_kv_cache *cache, int64_t count);

/* Adds a reference to each of the pages, which must be allocated. */
void invar_kv_cache_ref_pages(invar_kv_cache *cache, const int32_t *pages, int64_t count);

/* Drops a reference to each of the pages; a page without references becomes free. */
void invar_kv_cache_free_pages(invar_kv_cache *cache, const int32_t *pages, int64_t count);

/*
 * Copies the first `rows` positions of page `from` to page `to`, in all layers and in draft_cache.
 */
invar_status invar_kv_cache_copy(invar_kv_cache *cache, int32_t to, int32_t from,
                                 int64_t rows) INVAR_MUST_USE;

#endif
