/*
 * kv_cache.c - paged KV cache: memory, reference counts and copies of pages.
 *
 * One block of device memory holds, for each layer, the keys of all pages and then their values, so
 * a page is copied by one strided copy. Free pages are a stack: the pages that a call allocates
 * depend only on the order of calls, which keeps schedules reproducible.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/rollout/kv_cache.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

/* Returns the bytes of the keys, or of the values, of one page in one layer. */
static size_t layer_page_bytes(const invar_kv_cache_shape *s)
{
    return (size_t)(s->page_size * s->kv_heads * s->head_dim) *
           (size_t)(invar_dtype_bits(s->storage) / 8);
}

int64_t invar_kv_cache_page_bytes(const invar_kv_cache_shape *s)
{
    int64_t bytes = invar_dtype_bits(s->storage) / 8;
    const int64_t factors[] = {2, s->layers, s->page_size, s->kv_heads, s->head_dim};

    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++)
        if (__builtin_mul_overflow(bytes, factors[i], &bytes))
            return -1;
    return bytes;
}

static invar_status check_shape(const invar_kv_cache_shape *s)
{
    if (s->layers < 1 || s->kv_heads < 1 || s->head_dim < 1 || s->page_size < 1 || s->pages < 1 ||
        s->pages > INT32_MAX || invar_kv_cache_page_bytes(s) < 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "KV cache: %" PRId64 " pages of %" PRId64 " positions, %" PRId64
                          " layers, %" PRId64 " heads of %" PRId64 ": out of range",
                          s->pages, s->page_size, s->layers, s->kv_heads, s->head_dim);
    return INVAR_OK;
}

/* Sets the views of each layer's keys and values in the memory block. */
static void set_layer_views(invar_kv_cache *cache)
{
    const invar_kv_cache_shape *s = &cache->shape;
    size_t bytes = layer_page_bytes(s) * (size_t)s->pages;
    char *at = cache->memory;

    for (int64_t i = 0; i < s->layers; i++) {
        invar_tensor view =
            invar_tensor_4d(at, s->storage, s->pages, s->page_size, s->kv_heads, s->head_dim);
        cache->layers[i] = (invar_kv_pages){.k = view, .v = view};
        cache->layers[i].v.data = at + bytes;
        at += 2 * bytes;
    }
}

static invar_status alloc_memory(invar_kv_cache *cache)
{
    const invar_kv_cache_shape *s = &cache->shape;
    size_t pages = (size_t)s->pages, bytes;

    INVAR_TRY(INVAR_ALLOC(cache->layers, (size_t)s->layers, "the layers of the KV cache"));
    INVAR_TRY(INVAR_ALLOC(cache->ref_count, pages, "the holders of pages"));
    INVAR_TRY(INVAR_ALLOC(cache->free_pages, pages, "the free pages"));
    if (__builtin_mul_overflow(pages, (size_t)invar_kv_cache_page_bytes(s), &bytes))
        bytes = SIZE_MAX; // makes the allocation fail
    return invar_device_alloc(&cache->dev, &cache->memory, bytes, "the KV cache");
}

invar_status invar_kv_cache_new(invar_kv_cache **out, const invar_kv_cache_shape *shape,
                                const invar_device *dev)
{
    invar_kv_cache *cache = NULL;
    invar_status status;

    INVAR_TRY(check_shape(shape));
    INVAR_TRY(INVAR_ALLOC_ZEROED(cache, 1, "the KV cache"));
    cache->shape = *shape;
    cache->dev = *dev;
    cache->dev.scratch = NULL; // the caller's scratch is replaced when it grows
    status = alloc_memory(cache);
    if (status != INVAR_OK) {
        invar_kv_cache_free(cache);
        return status;
    }
    set_layer_views(cache);
    invar_kv_cache_reset(cache);
    *out = cache;
    return INVAR_OK;
}

void invar_kv_cache_free(invar_kv_cache *cache)
{
    if (!cache)
        return;
    invar_free(cache->layers);
    invar_free(cache->ref_count);
    invar_free(cache->free_pages);
    invar_device_free(&cache->dev, cache->memory);
    invar_free(cache);
}

void invar_kv_cache_reset(invar_kv_cache *cache)
{
    cache->n_free = cache->shape.pages;
    cache->max_used = 0;
    for (int64_t i = 0; i < cache->n_free; i++) {
        cache->ref_count[i] = 0;
        cache->free_pages[i] = (int32_t)(cache->n_free - 1 - i);
    }
}

int64_t invar_kv_cache_pages_for(const invar_kv_cache *cache, int64_t rows)
{
    return (rows + cache->shape.page_size - 1) / cache->shape.page_size;
}

bool invar_kv_cache_alloc_pages(int32_t *out, invar_kv_cache *cache, int64_t count)
{
    int64_t used;

    if (count > cache->n_free)
        return false;
    for (int64_t i = 0; i < count; i++) {
        out[i] = cache->free_pages[--cache->n_free];
        cache->ref_count[out[i]] = 1;
    }
    used = cache->shape.pages - cache->n_free;
    cache->max_used = used > cache->max_used ? used : cache->max_used;
    return true;
}

void invar_kv_cache_ref_pages(invar_kv_cache *cache, const int32_t *pages, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        INVAR_CHECK(cache->ref_count[pages[i]] > 0);
        cache->ref_count[pages[i]]++;
    }
}

void invar_kv_cache_free_pages(invar_kv_cache *cache, const int32_t *pages, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        INVAR_CHECK(cache->ref_count[pages[i]] > 0);
        if (--cache->ref_count[pages[i]] == 0)
            cache->free_pages[cache->n_free++] = pages[i];
    }
}

invar_status invar_kv_cache_copy(invar_kv_cache *cache, int32_t to, int32_t from, int64_t rows)
{
    size_t slab = layer_page_bytes(&cache->shape);
    size_t bytes = slab / (size_t)cache->shape.page_size * (size_t)rows;
    char *pages = cache->memory;

    if (cache->draft_cache)
        INVAR_TRY(invar_kv_cache_copy(cache->draft_cache, to, from, rows));
    // keys and values of all layers have the same stride
    return invar_device_copy_strided(
        &cache->dev, pages + slab * (size_t)to, pages + slab * (size_t)from, bytes,
        slab * (size_t)cache->shape.pages, 2 * (size_t)cache->shape.layers);
}
