/*
 * attention_backward.c - gradients of attention over packed samples.
 *
 * Two passes, each with one writer per output: dq by tiles of query rows, dk and dv by blocks of
 * keys. Both compute the probabilities of their tiles again from lse2; nothing of size T x T is
 * stored.
 *
 * Numerics contract (rev 3), docs/arithmetic.md section 8:
 *   p   2^fma(s, c, -lse2), s as in the forward: bf16 under sm90 by the special function unit; else
 *       EXP2S, by the polynomial of the storage type
 *   ds  p * (dp - delta), where dp is the chain over the head dim of d_o and v, and
 *       delta = REDUCE(d_o * o); then p and ds are rounded to storage
 *   dv  one chain over (query heads ascending, queries ascending) of p and d_o
 *   dk  one chain in the same order of ds and q, then * scale
 *   dq  per block of keys one chain of ds and k from +0; blocks added descending; then * scale
 * With shards of query heads, dk and dv have one chain per shard, added by the tree. With spans, dk
 * and dv have one sum per span of queries, and dq one per span of keys, added ascending. Masked
 * products are skipped. Gradients of a sample depend on that sample only.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "kernels-deterministic/cpu/attention.h"
#include "kernels-deterministic/cpu/cpu.h"
#include "kernels-deterministic/math/elementary.h"
#include "kernels-deterministic/math/reduce.h"
#include "kernels-deterministic/math/sfu.h"
#include "kernels-deterministic/math/shards.h"
#include "kernels-deterministic/tensor_row.h"

#include "base/invar_banned.h"

/* The scratch of one thread. Arrays marked "storage" hold the storage type. */
typedef struct scratch {
    _Alignas(64) char chain[INVAR_CHAIN_WORKSPACE];
    float q[INVAR_ATTENTION_HEADS_SIZE];     /* storage */
    float d_o[INVAR_ATTENTION_HEADS_SIZE];   /* storage */
    float spare[INVAR_ATTENTION_HEADS_SIZE]; /* short-lived, of any type */
    float lse2[INVAR_ATTENTION_ROWS];
    float delta[INVAR_ATTENTION_ROWS];
    float s[INVAR_ATTENTION_SCORES_SIZE];       /* scores, then p */
    float dp[INVAR_ATTENTION_SCORES_SIZE];      /* dp, then ds */
    float p[INVAR_ATTENTION_SCORES_SIZE];       /* storage */
    float ds[INVAR_ATTENTION_SCORES_SIZE];      /* storage */
    float part[2][INVAR_ATTENTION_HEADS_SIZE];  /* accumulators of the current chains */
    float span[INVAR_ATTENTION_HEADS_SIZE];     /* sum of a span's blocks */
    float total[2][INVAR_ATTENTION_HEADS_SIZE]; /* sum of the spans */
    invar_attention_range ranges[INVAR_ATTENTION_ROWS];
} scratch;

/* The sums of dk and dv of a subtree of shards whose right neighbor is not computed yet. */
typedef float partial_sum[2][INVAR_ATTENTION_HEADS_SIZE];

#define LEVELS 3 // levels below the root of the tree over 2^3 shards, INVAR_LINEAR_MAX_SHARDS

typedef struct backward_job {
    const invar_device *dev;
    const invar_attention_bwd_args *args;
    invar_attention_params form;
    invar_attention_tiling tiling;
    scratch *scratch;
    int32_t shards;       /* logical shards of the query heads */
    partial_sum *partial; /* (threads, LEVELS); used if shards > 1 */
} backward_job;

/* A tile: query rows against a block of keys, of one sample and kv head. */
typedef struct backward_tile {
    const backward_job *job;
    invar_attention_rows rows;
    int64_t kv_head;
    invar_tensor k; /* (keys, D) */
    invar_tensor v; /* (keys, D) */
    int64_t key0;
    int64_t keys;
    scratch *w;
    partial_sum *partial; /* (LEVELS); NULL if there is one shard */
} backward_tile;

static void add_to(float *acc, const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        acc[i] += x[i];
}

static void clear_floats(float *x, int64_t count)
{
    memset(x, 0, (size_t)count * sizeof *x);
}

/* ---- the tile -------------------------------------------------------------------------------- */

/* Loads q, d_o, lse2 and delta of the tile's rows. */
static void load_rows(const backward_tile *t)
{
    const invar_attention_bwd_args *a = t->job->args;
    int64_t dim = t->job->form.dim;
    float d_o[INVAR_ATTENTION_MAX_DIM], o[INVAR_ATTENTION_MAX_DIM], *products = t->w->spare;

    invar_attention_gather(t->w->q, &t->rows, &a->q);
    invar_attention_gather(t->w->d_o, &t->rows, &a->d_o);
    for (int64_t r = 0; r < t->rows.count; r++) {
        int64_t row = t->rows.row0 + invar_attention_position(&t->rows, r);
        int64_t head = invar_attention_head(&t->rows, r);

        invar_tensor_row_load(&t->w->lse2[r], &a->lse2, row, head, 1);
        invar_tensor_row_load(d_o, &a->d_o, row, head * dim, dim);
        invar_tensor_row_load(o, &a->o, row, head * dim, dim);
        for (int64_t d = 0; d < dim; d++)
            products[d] = d_o[d] * o[d];
        t->w->delta[r] = invar_reduce_f32(products, dim);
    }
}

static void load_keys(backward_tile *t, int64_t key0, int64_t keys)
{
    const invar_attention_bwd_args *a = t->job->args;

    t->k = invar_attention_head_view(&a->k, t->kv_head, t->rows.row0 + key0, keys);
    t->v = invar_attention_head_view(&a->v, t->kv_head, t->rows.row0 + key0, keys);
    t->key0 = key0;
    t->keys = keys;
}

/* Replaces scores by probabilities. */
static void scores_to_probs(float *s, int64_t count, const invar_attention_params *form,
                            invar_numerics numerics, float lse2)
{
    if (form->dtype == INVAR_DTYPE_BF16 && numerics == INVAR_NUMERICS_SM90) {
        for (int64_t j = 0; j < count; j++)
            s[j] = invar_sfu_ex2(fmaf(s[j], form->c, -lse2));
    } else if (form->dtype == INVAR_DTYPE_BF16) {
        for (int64_t j = 0; j < count; j++)
            s[j] = invar_exp2s_bf16(fmaf(s[j], form->c, -lse2));
    } else {
        for (int64_t j = 0; j < count; j++)
            s[j] = invar_exp2s(fmaf(s[j], form->c, -lse2));
    }
}

/*
 * Computes p and ds of the tile, rounded to storage; +0 if a row does not see a key. Sets ranges.
 */
static void tile_p_and_ds(const backward_tile *t)
{
    const invar_attention_params *form = &t->job->form;
    scratch *w = t->w;
    int64_t rows = t->rows.count, keys = t->keys;
    invar_tensor q = invar_tensor_2d(w->q, form->dtype, rows, form->dim);
    invar_tensor d_o = invar_tensor_2d(w->d_o, form->dtype, rows, form->dim);
    invar_tensor p = invar_tensor_2d(w->p, form->dtype, rows, INVAR_ATTENTION_BLOCK);
    invar_tensor ds = invar_tensor_2d(w->ds, form->dtype, rows, INVAR_ATTENTION_BLOCK);

    invar_attention_dots(w->s, t->job->dev, &q, &t->k, w->chain);
    invar_attention_dots(w->dp, t->job->dev, &d_o, &t->v, w->chain);
    for (int64_t r = 0; r < rows; r++) {
        float *x = w->s + r * INVAR_ATTENTION_BLOCK, *y = w->dp + r * INVAR_ATTENTION_BLOCK;
        float delta = w->delta[r];
        invar_attention_range seen =
            invar_attention_keys(form, invar_attention_position(&t->rows, r), t->key0, keys);

        w->ranges[r] = seen;
        clear_floats(x, seen.begin);
        clear_floats(y, seen.begin);
        scores_to_probs(x + seen.begin, seen.end - seen.begin, form, t->job->dev->numerics,
                        w->lse2[r]);
        for (int64_t j = seen.begin; j < seen.end; j++)
            y[j] = x[j] * (y[j] - delta);
        clear_floats(x + seen.end, keys - seen.end);
        clear_floats(y + seen.end, keys - seen.end);
        invar_tensor_row_store(&p, r, 0, keys, x);
        invar_tensor_row_store(&ds, r, 0, keys, y);
    }
}

/* ---- dq -------------------------------------------------------------------------------------- */

/* Computes the chains of one block of keys into part[0]. */
static void query_block(backward_tile *t, int64_t key0, int64_t keys)
{
    const invar_attention_params *form = &t->job->form;
    scratch *w = t->w;
    int64_t rows = t->rows.count, count = rows * form->dim;
    invar_tensor ds = invar_tensor_2d(w->ds, form->dtype, rows, INVAR_ATTENTION_BLOCK);
    invar_attention_sum sum = {{&ds, INVAR_CHAIN_ROWS, 0, 0}, &t->k, w->ranges, rows, keys};

    load_keys(t, key0, keys);
    tile_p_and_ds(t);
    clear_floats(w->part[0], count);
    invar_attention_sum_run(w->part[0], t->job->dev, &sum, w->spare, w->chain);
    invar_chain_finish(w->part[0], count);
}

static void query_tile(backward_tile *t)
{
    const invar_attention_params *form = &t->job->form;
    scratch *w = t->w;
    int64_t count = t->rows.count * form->dim;
    int64_t end = invar_attention_position(&t->rows, t->rows.count - 1) + 1;
    int64_t first = invar_attention_first_key(form, invar_attention_position(&t->rows, 0));

    load_rows(t);
    clear_floats(w->total[0], count);
    for (int64_t span0 = first / form->kv_span * form->kv_span; span0 < end;
         span0 += form->kv_span) {
        int64_t low = first > span0 ? first / form->block * form->block : span0;
        int64_t stop = invar_attention_min(end, span0 + form->kv_span);

        clear_floats(w->span, count);
        for (int64_t key0 = (stop - 1) / form->block * form->block; key0 >= low;
             key0 -= form->block) {
            query_block(t, key0, invar_attention_min(stop - key0, form->block));
            add_to(w->span, w->part[0], count);
        }
        add_to(w->total[0], w->span, count);
    }
    for (int64_t r = 0; r < t->rows.count; r++) {
        float *dq = w->total[0] + r * form->dim;
        for (int64_t d = 0; d < form->dim; d++)
            dq[d] *= form->scale;
        invar_tensor_row_store(&t->job->args->dq,
                               t->rows.row0 + invar_attention_position(&t->rows, r),
                               invar_attention_head(&t->rows, r) * form->dim, form->dim, dq);
    }
}

static invar_status query_task(void *payload, int64_t task, int worker)
{
    const backward_job *job = payload;
    // the last tiles of a sample see the most keys, so they start first
    int64_t slot = invar_attention_slots(&job->tiling) - 1 - task / job->form.kv_heads;
    backward_tile t = {
        .job = job, .kv_head = task % job->form.kv_heads, .w = job->scratch + worker};
    int64_t sample, first, count;

    if (!invar_attention_slot(&sample, &first, &count, &job->tiling, slot))
        return INVAR_OK;
    t.rows = (invar_attention_rows){.row0 = job->args->samples.offsets[sample],
                                    .head0 = t.kv_head * job->form.group,
                                    .heads = job->form.group,
                                    .first = first,
                                    .count = count};
    query_tile(&t);
    return INVAR_OK;
}

/* ---- dk and dv ------------------------------------------------------------------------------- */

/* Continues the chains of the tile's keys over one tile of queries of one head. */
static void key_queries(const backward_tile *t)
{
    const invar_attention_params *form = &t->job->form;
    scratch *w = t->w;
    int64_t rows = t->rows.count;
    invar_tensor q = invar_tensor_2d(w->q, form->dtype, rows, form->dim);
    invar_tensor d_o = invar_tensor_2d(w->d_o, form->dtype, rows, form->dim);
    invar_tensor p = invar_tensor_2d(w->p, form->dtype, rows, INVAR_ATTENTION_BLOCK);
    invar_tensor ds = invar_tensor_2d(w->ds, form->dtype, rows, INVAR_ATTENTION_BLOCK);
    invar_attention_sum dk = {{&ds, INVAR_CHAIN_COLUMNS, 0, 0}, &q, w->ranges, t->keys, rows};
    invar_attention_sum dv = {{&p, INVAR_CHAIN_COLUMNS, 0, 0}, &d_o, w->ranges, t->keys, rows};

    load_rows(t);
    tile_p_and_ds(t);
    for (int64_t j = 0; j < t->keys; j++) // the rows of these sums are keys
        w->ranges[j] = invar_attention_queries(form, t->key0 + j, t->rows.first, rows);
    invar_attention_sum_run(w->part[0], t->job->dev, &dk, w->spare, w->chain);
    invar_attention_sum_run(w->part[1], t->job->dev, &dv, w->spare, w->chain);
}

/*
 * Computes the chains of the tile's keys over the queries [begin, end) of these heads into `part`.
 */
static void key_heads(backward_tile *t, int64_t begin, int64_t end, int64_t head, int64_t head_end)
{
    const invar_attention_params *form = &t->job->form;
    int64_t count = t->keys * form->dim;

    clear_floats(t->w->part[0], count);
    clear_floats(t->w->part[1], count);
    for (; head < head_end; head++) {
        t->rows.head0 = head;
        // begin is the start of a block, so the first row of every tile starts a group
        for (int64_t first = begin; first < end; first += form->block) {
            t->rows.first = first;
            t->rows.count = invar_attention_min(end - first, form->block);
            key_queries(t);
        }
    }
    for (int i = 0; i < 2; i++)
        invar_chain_finish(t->w->part[i], count);
}

/*
 * Adds the terms of the queries [begin, end) of all heads of the group to the totals of the tile's
 * keys.
 */
static void key_span(backward_tile *t, int64_t begin, int64_t end)
{
    const backward_job *job = t->job;
    int64_t group = job->form.group, heads = job->form.kv_heads * group;
    int64_t first = t->kv_head * group, count = t->keys * job->form.dim;

    for (int32_t v = 0; v < job->shards; v++) {
        int64_t from = invar_shard_start(heads, job->args->head_atom, job->shards, v);
        int64_t to = invar_shard_start(heads, job->args->head_atom, job->shards, v + 1);
        int level = 0;

        key_heads(t, begin, end, from > first ? from : first,
                  invar_attention_min(to, first + group));
        // a binary counter adds neighbors first
        for (; v >> level & 1; level++)
            for (int i = 0; i < 2; i++)
                add_to(t->w->part[i], t->partial[level][i], count);
        for (int i = 0; i < 2 && v + 1 < job->shards; i++)
            memcpy(t->partial[level][i], t->w->part[i], (size_t)count * sizeof(float));
    }
    for (int i = 0; i < 2; i++)
        add_to(t->w->total[i], t->w->part[i], count);
}

static void key_block(backward_tile *t, int64_t length)
{
    const invar_attention_params *form = &t->job->form;
    int64_t dim = form->dim, count = t->keys * dim;
    // queries past `end` see none of these keys
    int64_t end = invar_attention_min(length, t->key0 + t->keys - 1 + form->window);

    clear_floats(t->w->total[0], count);
    clear_floats(t->w->total[1], count);
    for (int64_t span0 = t->key0 / form->q_span * form->q_span; span0 < end; span0 += form->q_span)
        key_span(t, span0 > t->key0 ? span0 : t->key0,
                 invar_attention_min(end, span0 + form->q_span));
    for (int64_t j = 0; j < t->keys; j++) {
        int64_t row = t->rows.row0 + t->key0 + j, first = t->kv_head * dim;
        float *dk = t->w->total[0] + j * dim, *dv = t->w->total[1] + j * dim;

        for (int64_t d = 0; d < dim; d++)
            dk[d] *= form->scale;
        invar_tensor_row_store(&t->job->args->dk, row, first, dim, dk);
        invar_tensor_row_store(&t->job->args->dv, row, first, dim, dv);
    }
}

static invar_status key_task(void *payload, int64_t task, int worker)
{
    const backward_job *job = payload;
    const int64_t *start = job->args->samples.offsets;
    backward_tile t = {
        .job = job, .kv_head = task % job->form.kv_heads, .w = job->scratch + worker};
    int64_t sample, key0, keys;

    if (job->shards > 1)
        t.partial = job->partial + (ptrdiff_t)worker * LEVELS;
    if (!invar_attention_slot(&sample, &key0, &keys, &job->tiling, task / job->form.kv_heads))
        return INVAR_OK;
    t.rows = (invar_attention_rows){.row0 = start[sample], .heads = 1};
    load_keys(&t, key0, keys);
    key_block(&t, start[sample + 1] - start[sample]);
    return INVAR_OK;
}

/* ---- the op ---------------------------------------------------------------------------------- */

/* Returns the number of shards that matter: 1 if no kv head has query heads in several shards. */
static int32_t shards_of(const invar_attention_bwd_args *a)
{
    int64_t heads = a->q.shape[1], group = heads / a->k.shape[1];

    return invar_shard_whole_groups(heads, group, a->head_atom, a->head_shards) ? 1
                                                                                : a->head_shards;
}

size_t invar_cpu_attention_bwd_workspace(const invar_device *dev, const invar_attention_bwd_args *a)
{
    size_t thread = sizeof(scratch) + (shards_of(a) > 1 ? LEVELS * sizeof(partial_sum) : 0);

    return thread * (size_t)invar_pool_threads(dev->pool);
}

invar_status invar_cpu_attention_bwd(const invar_device *dev, const invar_attention_bwd_args *a,
                                     void *workspace)
{
    backward_job job = {.dev = dev, .args = a, .scratch = workspace, .shards = shards_of(a)};

    job.partial = (partial_sum *)(job.scratch + invar_pool_threads(dev->pool));
    invar_attention_params_init(&job.form, &a->q, a->k.shape[1], &a->shape);
    job.tiling = (invar_attention_tiling){&a->samples, job.form.group, INVAR_ATTENTION_ROWS};
    INVAR_TRY(invar_pool_run(dev->pool, invar_attention_slots(&job.tiling) * job.form.kv_heads,
                             query_task, &job));
    job.tiling = (invar_attention_tiling){&a->samples, 1, job.form.block};
    return invar_pool_run(dev->pool, invar_attention_slots(&job.tiling) * job.form.kv_heads,
                          key_task, &job);
}
