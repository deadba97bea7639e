/*
 * attention_forward.c - attention over packed samples and a paged KV cache; kv.write.
 *
 * Both kinds of attention are the same code: keys come from a tensor or from pages, and the query
 * rows of a sequence are its last positions, which are all positions of a packed sample. So every
 * chunking of a prefill and every batch of a decode pass gives the bits of the training forward.
 *
 * Numerics contract (rev 3), docs/arithmetic.md section 8. Per query row, over the blocks with a
 * visible key, ascending:
 *   s    chain over the head dim, from +0
 *   m'   an integer: m, or ceil(top) if top = max s * c exceeds m + 8; alpha = EXP2S(m - m')
 *   p    bf16 under sm90: the special function unit's 2^fma(s, c, -m'); else EXP2D(s, c, m'), by
 *        the polynomial of the storage type
 *   l    8 lanes (key mod 8): l * alpha, then + p with ascending key
 *   o    o * alpha, from which the chain continues over p, rounded to storage, and v
 * At the end of a span the lanes are folded by 4, 2, 1; spans are merged in ascending order. The
 * result is o / l. A row depends only on its own q and on the keys and values that it sees.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "kernels-deterministic/cpu/attention.h"
#include "kernels-deterministic/cpu/cpu.h"
#include "kernels-deterministic/math/elementary.h"
#include "kernels-deterministic/math/sfu.h"
#include "kernels-deterministic/tensor_row.h"

#include "base/invar_banned.h"

#define LANES 8
#define LOG2E 0x1.715476p0f

/* The softmax of one row over the blocks of the current span. */
typedef struct span_softmax {
    float m; /* reference: an integer, -inf before the first block */
    float l[LANES];
} span_softmax;

/* The softmax of one row over the finished spans. */
typedef struct row_softmax {
    float m;
    float l;
    bool started;
} row_softmax;

/* The scratch of one thread. Arrays marked "storage" hold the storage type. */
typedef struct scratch {
    _Alignas(64) char chain[INVAR_CHAIN_WORKSPACE];
    float q[INVAR_ATTENTION_HEADS_SIZE];     /* storage */
    float k[INVAR_ATTENTION_HEADS_SIZE];     /* storage; keys gathered from pages */
    float v[INVAR_ATTENTION_HEADS_SIZE];     /* storage; values gathered from pages */
    float spare[INVAR_ATTENTION_HEADS_SIZE]; /* storage */
    float s[INVAR_ATTENTION_SCORES_SIZE];
    float p[INVAR_ATTENTION_SCORES_SIZE]; /* storage */
    float o[INVAR_ATTENTION_HEADS_SIZE];
    float merged_o[INVAR_ATTENTION_HEADS_SIZE];
    span_softmax span_softmax[INVAR_ATTENTION_ROWS];
    row_softmax row_softmax[INVAR_ATTENTION_ROWS];
    invar_attention_range ranges[INVAR_ATTENTION_ROWS];
} scratch;

typedef struct forward_job {
    const invar_device *dev;
    invar_attention_params form;
    const invar_tensor *o;
    const invar_tensor *lse2; /* NULL if it is not wanted */
    const invar_tensor *q;
    const invar_tensor *k; /* (T, HKV, D), or the pages of a cache */
    const invar_tensor *v;
    const invar_tensor *pages;        /* NULL if k and v are packed like q */
    const invar_row_offsets *samples; /* query rows of each sequence */
    const int64_t *lengths;           /* keys of each sequence; NULL if it has one key per query
                                         row */
    invar_attention_tiling tiling;
    scratch *scratch;
} forward_job;

/* One tile: rows of one sequence that share a kv head. */
typedef struct forward_tile {
    const forward_job *job;
    invar_attention_rows rows;
    int64_t sequence;
    int64_t kv_head;
    scratch *w;
} forward_tile;

/* ---- keys ------------------------------------------------------------------------------------ */

/*
 * Gathers keys or values from pages to dst (count, D). Positions that no row of the tile sees
 * become +0 and are not read: their pages may have been freed.
 */
static void gather_pages(void *dst, const forward_tile *t, const invar_tensor *cache, int64_t key0,
                         int64_t count)
{
    const invar_tensor *table = t->job->pages;
    const int32_t *pages = (const int32_t *)table->data + t->sequence * table->row_stride;
    int64_t page_size = cache->shape[1], heads = cache->shape[2], dim = cache->shape[3];
    int64_t seen = invar_attention_first_key(&t->job->form, invar_attention_position(&t->rows, 0));
    int64_t bytes = dim * invar_dtype_bits(cache->dtype) / 8;

    for (int64_t key = key0; key < key0 + count; key++) {
        char *to = (char *)dst + (key - key0) * bytes;
        if (key < seen) {
            memset(to, 0, (size_t)bytes);
        } else {
            int64_t in_page = key % page_size * heads + t->kv_head;
            int64_t at = pages[key / page_size] * cache->row_stride + in_page * dim;
            memcpy(to, (const char *)cache->data + at * invar_dtype_bits(cache->dtype) / 8,
                   (size_t)bytes);
        }
    }
}

/* Returns the keys or values [key0, key0 + count) of the tile's sequence and kv head as a view. */
static invar_tensor keys_or_values_view(const forward_tile *t, const invar_tensor *source,
                                        void *buffer, int64_t key0, int64_t count)
{
    if (!t->job->pages)
        return invar_attention_head_view(source, t->kv_head, t->rows.row0 + key0, count);
    gather_pages(buffer, t, source, key0, count);
    return invar_tensor_2d(buffer, source->dtype, count, t->job->form.dim);
}

/* ---- softmax --------------------------------------------------------------------------------- */

static void open_spans(const forward_tile *t)
{
    for (int64_t r = 0; r < t->rows.count; r++) {
        t->w->span_softmax[r] = (span_softmax){.m = -INFINITY};
        t->w->row_softmax[r].started = false;
    }
    memset(t->w->o, 0, (size_t)(t->rows.count * t->job->form.dim) * sizeof(float));
}

/* Sets scores outside of the range to -inf, up to the padded end, so that their p is +0. */
static void mask_scores(float *s, invar_attention_range range, int64_t padded)
{
    for (int64_t j = 0; j < range.begin; j++)
        s[j] = -INFINITY;
    for (int64_t j = range.end; j < padded; j++)
        s[j] = -INFINITY;
}

/*
 * Returns the maximum of scores by comparing them as integers, which vectorizes. Whether a NaN
 * counts as the largest depends on its sign, but a NaN score makes its row NaN anyway, through p.
 */
static float largest_score(const float *s, int64_t count)
{
    uint32_t top = 0;

    for (int64_t j = 0; j < count; j++) {
        uint32_t bits = invar_f32_bits(s[j]);
        uint32_t rank = bits & INVAR_SIGN_BIT ? ~bits : bits | INVAR_SIGN_BIT;
        top = rank > top ? rank : top;
    }
    return invar_bits_f32(top & INVAR_SIGN_BIT ? top ^ INVAR_SIGN_BIT : ~top);
}

/* Replaces scores by probabilities. */
static void scores_to_probs(float *s, int64_t count, const invar_attention_params *form,
                            invar_numerics numerics, float m)
{
    if (form->dtype == INVAR_DTYPE_BF16 && numerics == INVAR_NUMERICS_SM90) {
        for (int64_t j = 0; j < count; j++)
            s[j] = invar_sfu_ex2(fmaf(s[j], form->c, -m));
    } else if (form->dtype == INVAR_DTYPE_BF16) {
        for (int64_t j = 0; j < count; j++)
            s[j] = invar_exp2d_bf16(s[j], form->c, m);
    } else {
        for (int64_t j = 0; j < count; j++)
            s[j] = invar_exp2d(s[j], form->c, m);
    }
}

/* Adds `count` scores, a multiple of LANES, to the softmax of a row: s becomes p, o is rescaled. */
static void add_scores(span_softmax *state, float *s, float *o, int64_t count,
                       const invar_attention_params *form, invar_numerics numerics)
{
    float m = invar_softmax_reference(state->m, largest_score(s, count) * form->c);
    float alpha = invar_exp2s(state->m - m);

    state->m = m;
    scores_to_probs(s, count, form, numerics, m);
    for (int lane = 0; lane < LANES; lane++)
        state->l[lane] *= alpha;
    for (int64_t j = 0; j < count; j += LANES)
        for (int lane = 0; lane < LANES; lane++)
            state->l[lane] += s[j + lane];
    for (int64_t d = 0; d < form->dim; d++)
        o[d] *= alpha;
}

/* Processes one block of keys for all rows of the tile. */
static void add_block(const forward_tile *t, int64_t key0, int64_t count)
{
    const invar_attention_params *form = &t->job->form;
    const invar_device *dev = t->job->dev;
    scratch *w = t->w;
    int64_t rows = t->rows.count, padded = (count + LANES - 1) / LANES * LANES;
    invar_tensor k = keys_or_values_view(t, t->job->k, w->k, key0, count);
    invar_tensor v = keys_or_values_view(t, t->job->v, w->v, key0, count);
    invar_tensor q = invar_tensor_2d(w->q, form->dtype, rows, form->dim);
    invar_tensor p = invar_tensor_2d(w->p, form->dtype, rows, INVAR_ATTENTION_BLOCK);
    invar_attention_sum sum = {{&p, INVAR_CHAIN_ROWS, 0, 0}, &v, w->ranges, rows, count};

    invar_attention_dots(w->s, dev, &q, &k, w->chain);
    for (int64_t r = 0; r < rows; r++) {
        float *s = w->s + r * INVAR_ATTENTION_BLOCK;
        invar_attention_range range =
            invar_attention_keys(form, invar_attention_position(&t->rows, r), key0, count);

        w->ranges[r] = range;
        if (range.begin == range.end) {
            memset(s, 0, (size_t)count * sizeof *s); // the row sees no key of this block
        } else {
            mask_scores(s, range, padded);
            add_scores(&w->span_softmax[r], s, w->o + r * form->dim, padded, form, dev->numerics);
        }
        invar_tensor_row_store(&p, r, 0, count, s);
    }
    invar_attention_sum_run(w->o, dev, &sum, w->spare, w->chain);
}

/* ---- spans ----------------------------------------------------------------------------------- */

static float fold_lanes(float *l)
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++)
            l[lane] += l[lane + half];
    return l[0];
}

static void merge_row(row_softmax *total, float *total_o, span_softmax *state, const float *o,
                      int64_t dim)
{
    float l = fold_lanes(state->l), m, alpha, beta;

    if (!total->started) {
        *total = (row_softmax){state->m, l, true};
        memcpy(total_o, o, (size_t)dim * sizeof *o);
        return;
    }
    m = invar_max_f32(total->m, state->m);
    alpha = invar_exp2s(total->m - m);
    beta = invar_exp2s(state->m - m);
    for (int64_t d = 0; d < dim; d++)
        total_o[d] = fmaf(o[d], beta, total_o[d] * alpha);
    total->l = fmaf(l, beta, total->l * alpha);
    total->m = m;
}

/*
 * Ends the span that starts at key0: rows that see one of its keys merge it and start the next
 * span.
 */
static void close_span(const forward_tile *t, int64_t key0)
{
    const invar_attention_params *form = &t->job->form;
    scratch *w = t->w;

    for (int64_t r = 0; r < t->rows.count; r++) {
        int64_t position = invar_attention_position(&t->rows, r), at = r * form->dim;
        invar_attention_range seen = invar_attention_keys(form, position, key0, form->kv_span);

        if (seen.begin == seen.end)
            continue;
        merge_row(&w->row_softmax[r], w->merged_o + at, &w->span_softmax[r], w->o + at, form->dim);
        w->span_softmax[r] = (span_softmax){.m = -INFINITY};
        memset(w->o + at, 0, (size_t)form->dim * sizeof *w->o);
    }
}

static void store_tile(const forward_tile *t)
{
    const forward_job *job = t->job;
    int64_t dim = job->form.dim;

    for (int64_t r = 0; r < t->rows.count; r++) {
        int64_t row = t->rows.row0 + invar_attention_position(&t->rows, r);
        int64_t head = invar_attention_head(&t->rows, r);
        const row_softmax *total = &t->w->row_softmax[r];
        float *o = t->w->merged_o + r * dim;

        for (int64_t d = 0; d < dim; d++)
            o[d] = o[d] / total->l + 0.0f; // -0 becomes +0
        invar_tensor_row_store(job->o, row, head * dim, dim, o);
        if (job->lse2) {
            float lse2 = fmaf(invar_log(total->l), LOG2E, total->m);
            invar_tensor_row_store(job->lse2, row, head, 1, &lse2);
        }
    }
}

static void run_tile(const forward_tile *t)
{
    const invar_attention_params *form = &t->job->form;
    int64_t end = invar_attention_position(&t->rows, t->rows.count - 1) + 1;
    int64_t first = invar_attention_first_key(form, invar_attention_position(&t->rows, 0));

    invar_attention_gather(t->w->q, &t->rows, t->job->q);
    open_spans(t);
    for (int64_t span0 = first / form->kv_span * form->kv_span; span0 < end;
         span0 += form->kv_span) {
        int64_t key0 = first > span0 ? first / form->block * form->block : span0;
        int64_t stop = invar_attention_min(end, span0 + form->kv_span);

        for (; key0 < stop; key0 += form->block)
            add_block(t, key0, invar_attention_min(stop - key0, form->block));
        close_span(t, span0);
    }
    store_tile(t);
}

/* ---- tasks ----------------------------------------------------------------------------------- */

static invar_status forward_task(void *payload, int64_t task, int worker)
{
    const forward_job *job = payload;
    const int64_t *start = job->samples->offsets;
    // the last tiles of a sample see the most keys, so they start first
    int64_t slot = invar_attention_slots(&job->tiling) - 1 - task / job->form.kv_heads;
    forward_tile t = {.job = job, .kv_head = task % job->form.kv_heads, .w = job->scratch + worker};
    int64_t first, count, before;

    if (!invar_attention_slot(&t.sequence, &first, &count, &job->tiling, slot))
        return INVAR_OK;
    before = job->lengths ? job->lengths[t.sequence] - (start[t.sequence + 1] - start[t.sequence])
                          : 0; // positions of earlier calls
    t.rows = (invar_attention_rows){.row0 = start[t.sequence] - before,
                                    .head0 = t.kv_head * job->form.group,
                                    .heads = job->form.group,
                                    .first = before * job->form.group + first,
                                    .count = count};
    run_tile(&t);
    return INVAR_OK;
}

static invar_status run_forward(forward_job *job, void *workspace)
{
    job->tiling = (invar_attention_tiling){job->samples, job->form.group, INVAR_ATTENTION_ROWS};
    job->scratch = workspace;
    return invar_pool_run(job->dev->pool, invar_attention_slots(&job->tiling) * job->form.kv_heads,
                          forward_task, job);
}

static size_t forward_workspace(const invar_device *dev)
{
    return sizeof(scratch) * (size_t)invar_pool_threads(dev->pool);
}

size_t invar_cpu_attention_fwd_workspace(const invar_device *dev, const invar_attention_fwd_args *a)
{
    (void)a;
    return forward_workspace(dev);
}

invar_status invar_cpu_attention_fwd(const invar_device *dev, const invar_attention_fwd_args *a,
                                     void *workspace)
{
    forward_job job = {.dev = dev,
                       .o = &a->o,
                       .lse2 = invar_tensor_present(&a->lse2) ? &a->lse2 : NULL,
                       .q = &a->q,
                       .k = &a->k,
                       .v = &a->v,
                       .samples = &a->samples};

    invar_attention_params_init(&job.form, &a->q, a->k.shape[1], &a->shape);
    return run_forward(&job, workspace);
}

size_t invar_cpu_attention_paged_workspace(const invar_device *dev,
                                           const invar_attention_paged_args *a)
{
    (void)a;
    return forward_workspace(dev);
}

invar_status invar_cpu_attention_paged(const invar_device *dev, const invar_attention_paged_args *a,
                                       void *workspace)
{
    forward_job job = {.dev = dev,
                       .o = &a->o,
                       .q = &a->q,
                       .k = &a->cache.k,
                       .v = &a->cache.v,
                       .pages = &a->cache.pages,
                       .samples = &a->rows,
                       .lengths = a->lengths};

    invar_attention_params_init(&job.form, &a->q, a->cache.k.shape[2], &a->shape);
    return run_forward(&job, workspace);
}

/* ---- filling the cache ----------------------------------------------------------------------- */

/* Copies row `row` of t (R, HKV, D) to its slot of a page. A slot is contiguous, as a row is. */
static void write_slot(const invar_tensor *cache, int32_t page, int64_t slot, const invar_tensor *t,
                       int64_t row)
{
    int64_t element = invar_dtype_bits(t->dtype) / 8, count = invar_tensor_row_elements(t);

    memcpy((char *)cache->data + (page * cache->row_stride + slot * count) * element,
           (const char *)t->data + row * t->row_stride * element, (size_t)(count * element));
}

INVAR_NO_WORKSPACE(cpu, kv_write)

invar_status invar_cpu_kv_write(const invar_device *dev, const invar_kv_write_args *a,
                                void *workspace)
{
    int64_t page_size = a->cache.k.shape[1];

    (void)dev;
    (void)workspace;
    if (invar_tensor_row_elements(&a->k) == 0)
        return INVAR_OK;
    for (int64_t s = 0; s < a->rows.count; s++) {
        int64_t end = a->rows.offsets[s + 1], row0 = end - a->lengths[s];

        for (int64_t row = a->rows.offsets[s]; row < end; row++) {
            int64_t position = row - row0, at = s * a->cache.pages.row_stride;
            int32_t page = ((const int32_t *)a->cache.pages.data)[at + position / page_size];
            write_slot(&a->cache.k, page, position % page_size, &a->k, row);
            write_slot(&a->cache.v, page, position % page_size, &a->v, row);
        }
    }
    return INVAR_OK;
}
