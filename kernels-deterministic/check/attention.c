/*
 * attention.c - checks the arguments of attention (packed and paged) and of kv.write.
 *
 * Positions of a sequence that the new rows do not touch may have any page number, so pages are
 * checked only from the first visible position on. kv.write is rejected if two rows fill one slot:
 * the result would depend on the order of the threads.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "kernels-deterministic/check/check.h"

#include "base/invar_banned.h"

#define MAX_SCALE 0x1p64 // far beyond use; scale * log2(e) stays finite

/* Checks the head counts and the head dim; q is (T, HQ, D). */
static invar_status check_heads(invar_op op, const invar_tensor *q, int64_t kv_heads)
{
    int64_t heads = q->shape[1], dim = q->shape[2];

    if (dim < 1 || dim > INVAR_ATTENTION_MAX_DIM)
        return INVAR_REJECT(op, "q: head dim %" PRId64 "; expected 1 to %d", dim,
                            INVAR_ATTENTION_MAX_DIM);
    if (kv_heads < 1 || heads < 1 || heads % kv_heads != 0)
        return INVAR_REJECT(
            op, "q: %" PRId64 " query heads over %" PRId64 " kv heads; expected a multiple", heads,
            kv_heads);
    return INVAR_OK;
}

static invar_status check_span(invar_op op, const char *name, int64_t span, int64_t dim)
{
    int64_t block = invar_attention_block(dim);

    if (span < 0 || span % block != 0)
        return INVAR_REJECT(op,
                            "%s: %" PRId64 "; expected 0 or a multiple of the block, %" PRId64
                            " for head dim %" PRId64,
                            name, span, block, dim);
    return INVAR_OK;
}

static invar_status check_shape(invar_op op, const invar_attention_shape *shape, int64_t dim)
{
    INVAR_TRY(invar_check_range(op, "shape.scale", (double)shape->scale, 0.0, MAX_SCALE));
    if (shape->window < 0)
        return INVAR_REJECT(op, "shape.window: %" PRId64 "; expected 0 or more", shape->window);
    INVAR_TRY(check_span(op, "shape.kv_span", shape->kv_span, dim));
    return check_span(op, "shape.q_span", shape->q_span, dim);
}

/* ---- packed samples -------------------------------------------------------------------------- */

/* Rejects t unless it has rank 3 and the type and shape of `model`. */
static invar_status check_like(invar_op op, const char *arg, const invar_tensor *t,
                               const char *model_arg, const invar_tensor *model)
{
    INVAR_TRY(invar_check_tensor(op, arg, t, INVAR_TYPES_STORAGE, 3, model->shape));
    return invar_check_same_type(op, arg, t, model_arg, model);
}

static invar_status check_packed(const invar_device *dev, invar_op op, const invar_tensor *q,
                                 const invar_tensor *k, const invar_tensor *v,
                                 const invar_row_offsets *samples,
                                 const invar_attention_shape *shape)
{
    INVAR_TRY(invar_check_tensor(op, "q", q, INVAR_TYPES_STORAGE, 3,
                                 (const int64_t[]){INVAR_ANY, INVAR_ANY, INVAR_ANY}));
    INVAR_TRY(invar_check_tensor(op, "k", k, INVAR_TYPES_STORAGE, 3,
                                 (const int64_t[]){q->shape[0], INVAR_ANY, q->shape[2]}));
    INVAR_TRY(check_heads(op, q, k->shape[1]));
    INVAR_TRY(invar_check_same_type(op, "k", k, "q", q));
    INVAR_TRY(check_like(op, "v", v, "k", k));
    INVAR_TRY(check_shape(op, shape, q->shape[2]));
    return invar_check_segments(dev, op, "samples", samples, q->shape[0]);
}

invar_status invar_check_attention_fwd(const invar_device *dev, invar_op op,
                                       const invar_attention_fwd_args *a)
{
    INVAR_TRY(check_packed(dev, op, &a->q, &a->k, &a->v, &a->samples, &a->shape));
    INVAR_TRY(check_like(op, "o", &a->o, "q", &a->q));
    return invar_check_optional(op, "lse2", &a->lse2, INVAR_TYPE(F32), 2, a->q.shape);
}

invar_status invar_check_attention_bwd(const invar_device *dev, invar_op op,
                                       const invar_attention_bwd_args *a)
{
    INVAR_TRY(check_packed(dev, op, &a->q, &a->k, &a->v, &a->samples, &a->shape));
    INVAR_TRY(invar_check_head_shards(op, a->head_shards, a->head_atom));
    INVAR_TRY(check_like(op, "o", &a->o, "q", &a->q));
    INVAR_TRY(check_like(op, "d_o", &a->d_o, "q", &a->q));
    INVAR_TRY(check_like(op, "dq", &a->dq, "q", &a->q));
    INVAR_TRY(check_like(op, "dk", &a->dk, "k", &a->k));
    INVAR_TRY(check_like(op, "dv", &a->dv, "k", &a->k));
    return invar_check_tensor(op, "lse2", &a->lse2, INVAR_TYPE(F32), 2, a->q.shape);
}

/* ---- the KV cache ---------------------------------------------------------------------------- */

/* Checks the cache for `rows` new rows of `sequences` sequences. */
static invar_status check_cache(invar_op op, const invar_kv_pages *cache, int64_t sequences,
                                int64_t rows)
{
    INVAR_TRY(invar_check_tensor(op, "cache.k", &cache->k, INVAR_TYPES_STORAGE, 4,
                                 (const int64_t[]){INVAR_ANY, INVAR_ANY, INVAR_ANY, INVAR_ANY}));
    INVAR_TRY(invar_check_tensor(op, "cache.v", &cache->v, INVAR_TYPES_STORAGE, 4, cache->k.shape));
    INVAR_TRY(invar_check_same_type(op, "cache.v", &cache->v, "cache.k", &cache->k));
    if (cache->k.shape[1] < 1)
        return INVAR_REJECT(op, "cache.k: pages of %" PRId64 " positions", cache->k.shape[1]);
    // a backend that checks page numbers while it runs would have no valid page
    if (cache->k.shape[0] < 1 && rows > 0)
        return INVAR_REJECT(op, "cache.k: no page for %" PRId64 " rows", rows);
    return invar_check_tensor(op, "cache.pages", &cache->pages, INVAR_TYPE(I32), 2,
                              (const int64_t[]){sequences, INVAR_ANY});
}

/*
 * Checks the pages of the positions [first, length) of a sequence; other entries may hold anything.
 */
static invar_status check_pages(invar_op op, const invar_kv_pages *cache, int64_t sequence,
                                int64_t first, int64_t length)
{
    const int32_t *pages;
    int64_t page_size = cache->k.shape[1], n_pages = cache->k.shape[0];

    if ((length - 1) / page_size >= cache->pages.shape[1])
        return INVAR_REJECT(op,
                            "cache.pages: sequence %" PRId64 " of length %" PRId64
                            " needs more than its %" PRId64 " pages of %" PRId64,
                            sequence, length, cache->pages.shape[1], page_size);
    pages = (const int32_t *)cache->pages.data + sequence * cache->pages.row_stride;
    for (int64_t i = first / page_size; i <= (length - 1) / page_size; i++)
        if (pages[i] < 0 || pages[i] >= n_pages)
            return INVAR_REJECT(op,
                                "cache.pages: page %" PRId32 " at index %" PRId64
                                " of sequence %" PRId64 "; expected 0 to %" PRId64,
                                pages[i], i, sequence, n_pages - 1);
    return INVAR_OK;
}

/*
 * `window` is the number of keys that the first new row of a sequence touches, its own included; 0
 * for all.
 */
static invar_status check_sequences(const invar_device *dev, invar_op op,
                                    const invar_kv_pages *cache, const invar_row_offsets *rows,
                                    const int64_t *lengths, int64_t window)
{
    if (!lengths && rows->count > 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: lengths: missing", invar_op_name(op));
    for (int64_t s = 0; s < rows->count && !invar_device_unreadable(dev); s++) {
        int64_t n = rows->offsets[s + 1] - rows->offsets[s], before;

        if (lengths[s] < n)
            return INVAR_REJECT(
                op, "lengths: sequence %" PRId64 " has length %" PRId64 " but %" PRId64 " new rows",
                s, lengths[s], n);
        before = lengths[s] - n;
        if (n > 0)
            INVAR_TRY(check_pages(op, cache, s,
                                  window > 0 && before >= window ? before - window + 1 : 0,
                                  lengths[s]));
    }
    return INVAR_OK;
}

invar_status invar_check_attention_paged(const invar_device *dev, invar_op op,
                                         const invar_attention_paged_args *a)
{
    INVAR_CHECK_3D(op, a, q, INVAR_TYPES_STORAGE, INVAR_ANY, INVAR_ANY, INVAR_ANY);
    INVAR_TRY(check_like(op, "o", &a->o, "q", &a->q));
    INVAR_TRY(invar_check_segments(dev, op, "rows", &a->rows, a->q.shape[0]));
    INVAR_TRY(check_cache(op, &a->cache, a->rows.count, a->q.shape[0]));
    INVAR_TRY(invar_check_same_type(op, "cache.k", &a->cache.k, "q", &a->q));
    INVAR_CHECK_4D(op, a, cache.k, INVAR_TYPES_STORAGE, INVAR_ANY, INVAR_ANY, INVAR_ANY,
                   a->q.shape[2]);
    INVAR_TRY(check_heads(op, &a->q, a->cache.k.shape[2]));
    INVAR_TRY(check_shape(op, &a->shape, a->q.shape[2]));
    return check_sequences(dev, op, &a->cache, &a->rows, a->lengths, a->shape.window);
}

/* The slots [first, end) of a page that new rows of a sequence fill. */
typedef struct filled {
    int32_t page;
    int64_t first, end;
} filled;

/* Returns the n-th page that sequence s fills; false after the last one. */
static bool filled_page(filled *out, const invar_kv_write_args *a, int64_t s, int64_t n)
{
    int64_t size = a->cache.k.shape[1], length = a->lengths[s];
    int64_t before = length - (a->rows.offsets[s + 1] - a->rows.offsets[s]);
    int64_t index = before / size + n, left = length - index * size;

    if (before == length || left <= 0)
        return false;
    out->page = ((const int32_t *)a->cache.pages.data)[s * a->cache.pages.row_stride + index];
    out->first = n == 0 ? before % size : 0;
    out->end = left < size ? left : size;
    return true;
}

/* Rejects a later page that shares a slot with page n of sequence s. */
static invar_status check_filled_once(const invar_kv_write_args *a, int64_t s, int64_t n,
                                      const filled *page)
{
    filled other;

    for (int64_t later = s; later < a->rows.count; later++)
        for (int64_t i = later == s ? n + 1 : 0; filled_page(&other, a, later, i); i++)
            if (other.page == page->page && page->first < other.end && other.first < page->end)
                return INVAR_REJECT(INVAR_OP_KV_WRITE,
                                    "cache.pages: sequences %" PRId64 " and %" PRId64
                                    " both fill slots of page %" PRId32,
                                    s, later, page->page);
    return INVAR_OK;
}

static invar_status check_filled(const invar_kv_write_args *a)
{
    filled page;

    for (int64_t s = 0; s < a->rows.count; s++)
        for (int64_t n = 0; filled_page(&page, a, s, n); n++)
            INVAR_TRY(check_filled_once(a, s, n, &page));
    return INVAR_OK;
}

invar_status invar_check_kv_write(const invar_device *dev, invar_op op,
                                  const invar_kv_write_args *a)
{
    INVAR_CHECK_3D(op, a, k, INVAR_TYPES_STORAGE, INVAR_ANY, INVAR_ANY, INVAR_ANY);
    INVAR_TRY(check_like(op, "v", &a->v, "k", &a->k));
    INVAR_TRY(invar_check_segments(dev, op, "rows", &a->rows, a->k.shape[0]));
    INVAR_TRY(check_cache(op, &a->cache, a->rows.count, a->k.shape[0]));
    INVAR_TRY(invar_check_same_type(op, "cache.k", &a->cache.k, "k", &a->k));
    INVAR_CHECK_4D(op, a, cache.k, INVAR_TYPES_STORAGE, INVAR_ANY, INVAR_ANY, a->k.shape[1],
                   a->k.shape[2]);
    // a window of 1, because new rows touch only their own pages
    INVAR_TRY(check_sequences(dev, op, &a->cache, &a->rows, a->lengths, 1));
    if (!invar_device_unreadable(dev))
        INVAR_TRY(check_filled(a));
    return INVAR_OK;
}
