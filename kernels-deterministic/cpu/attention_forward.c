/*
 * attention_forward.c - attention over packed samples and over a paged KV cache; filling the cache.
 *
 * Both attentions are the same code: a source of keys is either a tensor or pages, and a sequence's
 * query rows are its last positions, all of them for a packed sample. So prefill in any chunking
 * and decode in any batch give the bits of the training forward.
 *
 * Numerics contract (rev 3), docs/arithmetic.md section 8. Per query row, blocks of keys ascending,
 * only those with a visible key:
 *   s    chain over the head dim, from +0
 *   m'   an integer: m, or ceil(top) where top = max s * c exceeds m + 8; alpha = EXP2S(m - m')
 *   p    bf16 under sm90: the special function unit's 2^fma(s, c, -m'); else EXP2D(s, c, m'), by
 *        the polynomial of the storage type
 *   l    8 lanes (key mod 8): l * alpha, then + p with ascending key
 *   o    o * alpha, from which the chain continues over p, rounded to storage, and v
 * At a span's end the lanes fold 4, 2, 1; spans merge ascending. Result o / l.
 * A row depends on its own q and on the keys and values that it sees, on nothing else.
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
typedef struct running {
    float m; /* the reference: an integer, -inf before the first block */
    float l[LANES];
} running;

/* The softmax of one row over the spans that are closed. */
typedef struct merged {
    float m;
    float l;
    bool started;
} merged;

/* The scratch of one thread. "storage": holds the storage type. */
typedef struct scratch {
    _Alignas(64) char chain[INVAR_CHAIN_WORKSPACE];
    float q[INVAR_ATTENTION_HEADS_SIZE];     /* storage */
    float k[INVAR_ATTENTION_HEADS_SIZE];     /* storage; keys out of pages */
    float v[INVAR_ATTENTION_HEADS_SIZE];     /* storage */
    float spare[INVAR_ATTENTION_HEADS_SIZE]; /* storage */
    float s[INVAR_ATTENTION_SCORES_SIZE];
    float p[INVAR_ATTENTION_SCORES_SIZE]; /* storage */
    float o[INVAR_ATTENTION_HEADS_SIZE];
    float merged_o[INVAR_ATTENTION_HEADS_SIZE];
    running running[INVAR_ATTENTION_ROWS];
    merged merged[INVAR_ATTENTION_ROWS];
    invar_attention_range ranges[INVAR_ATTENTION_ROWS];
} scratch;

typedef struct forward_job {
    const invar_device *dev;
    invar_attention_params form;
    const invar_tensor *o;
    const invar_tensor *lse2; /* NULL: not wanted */
    const invar_tensor *q;
    const invar_tensor *k; /* (T, HKV, D), or pages */
    const invar_tensor *v;
    const invar_tensor *pages;        /* NULL: k and v are packed like q */
    const invar_row_offsets *samples; /* query rows of each sequence */
    const int64_t *lengths;           /* keys of each sequence; NULL: as many as query rows */
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
 * dst (count, D) = keys or values out of pages. What no row of the tile sees stays +0 unread: its
 * page may be gone.
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

/* The keys or values [key0, key0 + count) of the tile's sequence and kv head, as a view. */
static invar_tensor forward_tile_fetch(const forward_tile *t, const invar_tensor *source,
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
        t->w->running[r] = (running){.m = -INFINITY};
        t->w->merged[r].started = false;
    }
    memset(t->w->o, 0, (size_t)(t->rows.count * t->job->form.dim) * sizeof(float));
}

/* Scores that the row does not see, and those past the block's end, become -inf: their p is +0. */
static void mask(float *s, invar_attention_range range, int64_t padded)
{
    for (int64_t j = 0; j < range.begin; j++)
        s[j] = -INFINITY;
    for (int64_t j = range.end; j < padded; j++)
        s[j] = -INFINITY;
}

/*
 * The maximum of scores, as integers in the order of floats: that vectorises. Which NaN counts as
 * large depends on its sign, but a NaN score makes its row NaN through p, whatever the maximum.
 */
static float largest(const float *s, int64_t count)
{
    uint32_t top = 0;

    for (int64_t j = 0; j < count; j++) {
        uint32_t bits = invar_f32_bits(s[j]);
        uint32_t rank = bits & INVAR_SIGN_BIT ? ~bits : bits | INVAR_SIGN_BIT;
        top = rank > top ? rank : top;
    }
    return invar_bits_f32(top & INVAR_SIGN_BIT ? top ^ INVAR_SIGN_BIT : ~top);
}

/* s becomes p. */
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

/* Takes `count` scores, whole LANES, into the softmax of a row: s becomes p, o is rescaled. */
static void take_scores(running *state, float *s, float *o, int64_t count,
                        const invar_attention_params *form, invar_numerics numerics)
{
    float m = invar_softmax_reference(state->m, largest(s, count) * form->c);
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

/* One block of keys for all rows of the tile. */
static void take_block(const forward_tile *t, int64_t key0, int64_t count)
{
    const invar_attention_params *form = &t->job->form;
    const invar_device *dev = t->job->dev;
    scratch *w = t->w;
    int64_t rows = t->rows.count, padded = (count + LANES - 1) / LANES * LANES;
    invar_tensor k = forward_tile_fetch(t, t->job->k, w->k, key0, count);
    invar_tensor v = forward_tile_fetch(t, t->job->v, w->v, key0, count);
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
            memset(s, 0, (size_t)count * sizeof *s); // not a block of this row
        } else {
            mask(s, range, padded);
            take_scores(&w->running[r], s, w->o + r * form->dim, padded, form, dev->numerics);
        }
        invar_tensor_row_store(&p, r, 0, count, s);
    }
    invar_attention_sum_run(w->o, dev, &sum, w->spare, w->chain);
}

/* ---- spans ----------------------------------------------------------------------------------- */

static float fold(float *l)
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++)
            l[lane] += l[lane + half];
    return l[0];
}

static void merge_row(merged *total, float *total_o, running *state, const float *o, int64_t dim)
{
    float l = fold(state->l), m, alpha, beta;

    if (!total->started) {
        *total = (merged){state->m, l, true};
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

/* Ends the span that starts at key0: rows that see one of its keys merge it, all begin anew. */
static void close_span(const forward_tile *t, int64_t key0)
{
    const invar_attention_params *form = &t->job->form;
    scratch *w = t->w;

    for (int64_t r = 0; r < t->rows.count; r++) {
        int64_t position = invar_attention_position(&t->rows, r), at = r * form->dim;
        invar_attention_range seen = invar_attention_keys(form, position, key0, form->kv_span);

        if (seen.begin == seen.end)
            continue;
        merge_row(&w->merged[r], w->merged_o + at, &w->running[r], w->o + at, form->dim);
        w->running[r] = (running){.m = -INFINITY};
        memset(w->o + at, 0, (size_t)form->dim * sizeof *w->o);
    }
}

static void forward_tile_store(const forward_tile *t)
{
    const forward_job *job = t->job;
    int64_t dim = job->form.dim;

    for (int64_t r = 0; r < t->rows.count; r++) {
        int64_t row = t->rows.row0 + invar_attention_position(&t->rows, r);
        int64_t head = invar_attention_head(&t->rows, r);
        const merged *total = &t->w->merged[r];
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
            take_block(t, key0, invar_attention_min(stop - key0, form->block));
        close_span(t, span0);
    }
    forward_tile_store(t);
}

/* ---- tasks ----------------------------------------------------------------------------------- */

static invar_status forward_task(void *payload, int64_t task, int worker)
{
    const forward_job *job = payload;
    const int64_t *start = job->samples->offsets;
    // the last tiles of a sample see the most keys: they go first
    int64_t slot = invar_attention_slots(&job->tiling) - 1 - task / job->form.kv_heads;
    forward_tile t = {.job = job, .kv_head = task % job->form.kv_heads, .w = job->scratch + worker};
    int64_t first, count, before;

    if (!invar_attention_slot(&t.sequence, &first, &count, &job->tiling, slot))
        return INVAR_OK;
    before = job->lengths ? job->lengths[t.sequence] - (start[t.sequence + 1] - start[t.sequence])
                          : 0; // positions whose queries came earlier
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

/* t (R, HKV, D) row -> its slot in the cache; a slot is contiguous, as a row is. */
static void write_slot(const invar_tensor *cache, int32_t page, int64_t slot, const invar_tensor *t,
                       int64_t row)
{
    int64_t element = invar_dtype_bits(t->dtype) / 8, count = invar_tensor_row_elements(t);

    memcpy((char *)cache->data + (page * cache->row_stride + slot * count) * element,
           (const char *)t->data + row * t->row_stride * element, (size_t)(count * element));
}

size_t invar_cpu_kv_write_workspace(const invar_device *dev, const invar_kv_write_args *a)
{
    (void)dev;
    (void)a;
    return 0;
}

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
