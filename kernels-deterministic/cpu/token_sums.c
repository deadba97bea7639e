/*
 * token_sums.c - sums over tokens, embedding, add, scale, and sums of logical shards.
 *
 * Numerics contract (rev 2), docs/arithmetic.md section 7; all in f32, round to nearest even:
 *   token.sum       per unit a sum from +0 of its blocks of 128 tokens, ascending; a block's sum is
 *                   from +0, tokens ascending; then units are added to out, ascending
 *   embedding.fwd   a copy
 *   embedding.bwd   per unit and id a sum from +0 of its dout[t], tokens ascending; units are added
 *                   to dtable[id], ascending
 *   add             round(a + b)
 *   scale           round(factor * x)
 *   token.fold      the unit sums of token.sum, computed from sums of blocks
 *   shards.fold     round(the tree over shards + 0); with a residual, add of the residual and that
 * Columns are independent of each other, and so are rows unless the op sums over them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cpu/token_sums.h"

#include <string.h>

#include "kernels-deterministic/cpu/cpu.h"
#include "kernels-deterministic/cpu/elementwise.h"
#include "kernels-deterministic/cpu/row_parallel.h"
#include "kernels-deterministic/tensor_row.h"

#include "base/invar_banned.h"

/* ---- sums over tokens ------------------------------------------------------------------------ */

typedef struct token_job {
    const invar_tensor *out;
    const invar_row_offsets *units;
    int32_t shards;
    invar_token_term_fn term;
    const void *payload;
} token_job;

/*
 * Returns the number of columns in a group of INVAR_TOKEN_COLUMNS; `cols` is the number of all
 * columns.
 */
static int64_t group_columns(int64_t group, int64_t cols)
{
    int64_t left = cols - group * INVAR_TOKEN_COLUMNS;

    return left < INVAR_TOKEN_COLUMNS ? left : INVAR_TOKEN_COLUMNS;
}

static invar_status run_groups(const invar_device *dev, int64_t cols,
                               void (*run)(const void *payload, int64_t group, void *scratch),
                               const void *payload)
{
    int64_t groups = (cols + INVAR_TOKEN_COLUMNS - 1) / INVAR_TOKEN_COLUMNS;
    invar_row_parallel_job job = {groups, 1, 0, run, payload};

    return invar_row_parallel_run(dev, &job, NULL);
}

#define SHARD_LEVELS 4 // levels of the tree over 2^3 shards, INVAR_LINEAR_MAX_SHARDS

/* Computes the sum of one block. Stores it to partial[level][0..count) and returns the level. */
static int sum_block(float partial[SHARD_LEVELS][INVAR_TOKEN_COLUMNS], const token_job *job,
                     int64_t token, int64_t end, int64_t first, int64_t count)
{
    int level = 0;

    for (int32_t shard = 0; shard < job->shards; shard++) {
        float sum[INVAR_TOKEN_COLUMNS] = {0};
        for (int64_t t = token; t < end; t++)
            job->term(sum, job->payload, shard, t, first, count);
        // a binary counter: partial[l] is a subtree of 2^l shards whose right neighbor is not
        // computed yet
        for (level = 0; shard >> level & 1; level++)
            for (int64_t i = 0; i < count; i++)
                sum[i] = partial[level][i] + sum[i];
        memcpy(partial[level], sum, (size_t)count * sizeof *sum);
    }
    return level;
}

/* Iterates over blocks of 128 tokens, unit by unit. Starts with `units` set and the rest zeroed. */
typedef struct block_walk {
    const invar_row_offsets *units;
    int64_t unit, token, end; /* current unit; tokens [token, end) of the current block */
    int64_t number;           /* index of the block among all blocks */
    bool last;                /* the block is the last of its unit */
} block_walk;

/* Advances to the next block, the first time to the first one. Returns false after the last one. */
static bool next_block(block_walk *w)
{
    const int64_t *start = w->units->offsets;
    bool begun = w->end > 0;

    w->token = w->end;
    while (w->unit < w->units->count && w->token == start[w->unit + 1])
        w->unit++;
    if (w->unit == w->units->count)
        return false;
    w->end = start[w->unit + 1] - w->token < INVAR_TOKEN_BLOCK ? start[w->unit + 1]
                                                               : w->token + INVAR_TOKEN_BLOCK;
    w->last = w->end == start[w->unit + 1];
    w->number += begun;
    return true;
}

/* Adds sums of units to running[0..count), from the sums of their blocks in order. */
typedef struct unit_sums {
    float unit[INVAR_TOKEN_COLUMNS];
    float *running;
    int64_t count;
} unit_sums;

static void add_block(unit_sums *to, const float *sum, bool last)
{
    for (int64_t i = 0; i < to->count; i++)
        to->unit[i] += sum[i];
    if (!last)
        return;
    for (int64_t i = 0; i < to->count; i++)
        to->running[i] += to->unit[i];
    memset(to->unit, 0, sizeof to->unit);
}

static void accumulate_group(const void *payload, int64_t group, void *scratch)
{
    const token_job *job = payload;
    int64_t first = group * INVAR_TOKEN_COLUMNS;
    unit_sums sums = {.running = (float *)job->out->data + first,
                      .count = group_columns(group, job->out->shape[0])};
    float partial[SHARD_LEVELS][INVAR_TOKEN_COLUMNS];

    (void)scratch;
    for (block_walk w = {.units = job->units}; next_block(&w);) {
        int level = sum_block(partial, job, w.token, w.end, first, sums.count);
        add_block(&sums, partial[level], w.last);
    }
}

static void sum_blocks_of_group(const void *payload, int64_t group, void *scratch)
{
    const token_job *job = payload;
    int64_t first = group * INVAR_TOKEN_COLUMNS, row = 0;
    int64_t count = group_columns(group, job->out->shape[1]);
    float partial[SHARD_LEVELS][INVAR_TOKEN_COLUMNS];
    float none[INVAR_TOKEN_COLUMNS] = {0};

    (void)scratch;
    for (block_walk w = {.units = job->units}; next_block(&w); row = w.number + 1) {
        int level = sum_block(partial, job, w.token, w.end, first, count);
        invar_tensor_row_store(job->out, w.number, first, count, partial[level]);
    }
    for (; row < job->out->shape[0]; row++)
        invar_tensor_row_store(job->out, row, first, count, none);
}

invar_status invar_token_accumulate(const invar_device *dev, const invar_tensor *out,
                                    const invar_row_offsets *units, int32_t shards,
                                    invar_token_term_fn term, const void *payload)
{
    token_job job = {out, units, shards, term, payload};

    return run_groups(dev, out->shape[0], accumulate_group, &job);
}

invar_status invar_token_block_sums(const invar_device *dev, const invar_tensor *out,
                                    const invar_row_offsets *units, int32_t shards,
                                    invar_token_term_fn term, const void *payload)
{
    token_job job = {out, units, shards, term, payload};

    return run_groups(dev, out->shape[1], sum_blocks_of_group, &job);
}

static void fold_group(const void *payload, int64_t group, void *scratch)
{
    const invar_token_fold_args *a = payload;
    int64_t first = group * INVAR_TOKEN_COLUMNS;
    unit_sums sums = {.running = (float *)a->out.data + first,
                      .count = group_columns(group, a->out.shape[0])};
    float sum[INVAR_TOKEN_COLUMNS];

    (void)scratch;
    for (block_walk w = {.units = &a->units}; next_block(&w);) {
        invar_tensor_row_load(sum, &a->sums, w.number, first, sums.count);
        add_block(&sums, sum, w.last);
    }
}

INVAR_NO_WORKSPACE(cpu, token_fold)

invar_status invar_cpu_token_fold(const invar_device *dev, const invar_token_fold_args *a,
                                  void *workspace)
{
    (void)workspace;
    return run_groups(dev, a->out.shape[0], fold_group, a);
}

static void add_row(float *sum, const void *payload, int32_t shard, int64_t token, int64_t first,
                    int64_t count)
{
    float x[INVAR_TOKEN_COLUMNS];

    (void)shard; // always 0
    invar_tensor_row_load(x, payload, token, first, count);
    for (int64_t i = 0; i < count; i++)
        sum[i] += x[i];
}

INVAR_NO_WORKSPACE(cpu, token_sum)

invar_status invar_cpu_token_sum(const invar_device *dev, const invar_token_sum_args *a,
                                 void *workspace)
{
    (void)workspace;
    return invar_token_accumulate(dev, &a->out, &a->units, 1, add_row, &a->x);
}

/* ---- embedding ------------------------------------------------------------------------------- */

#define TOKENS_PER_TASK 16

static void copy_row(const void *payload, int64_t token, void *scratch)
{
    const invar_embedding_fwd_args *a = payload;
    int64_t id = ((const int32_t *)a->ids.data)[token];
    int64_t element = invar_dtype_bits(a->out.dtype) / 8;

    (void)scratch;
    memcpy((char *)a->out.data + token * a->out.row_stride * element,
           (const char *)a->table.data + id * a->table.row_stride * element,
           (size_t)(a->out.shape[1] * element));
}

INVAR_NO_WORKSPACE(cpu, embedding_fwd)

invar_status invar_cpu_embedding_fwd(const invar_device *dev, const invar_embedding_fwd_args *a,
                                     void *workspace)
{
    // rows without elements have no address
    int64_t tokens = a->out.shape[1] > 0 ? a->out.shape[0] : 0;
    invar_row_parallel_job job = {tokens, TOKENS_PER_TASK, 0, copy_row, a};

    return invar_row_parallel_run(dev, &job, workspace);
}

/* The tokens of a unit with the same id form a chain, linked by `next`. */
typedef struct scatter_job {
    const invar_embedding_bwd_args *args;
    int64_t *last; /* (V) last token of each id so far; -1 if there is none */
    int64_t *next; /* (T) next token of the same id and unit; -1 if there is none */
    bool *follows; /* (T) the token is not the first of its chain */
} scatter_job;

static void link_tokens(const scatter_job *job)
{
    const invar_embedding_bwd_args *a = job->args;
    const int32_t *ids = a->ids.data;

    for (int64_t id = 0; id < a->dtable.shape[0]; id++)
        job->last[id] = -1;
    for (int64_t u = 0; u < a->units.count; u++) {
        for (int64_t t = a->units.offsets[u]; t < a->units.offsets[u + 1]; t++) {
            int64_t *last = &job->last[ids[t]];
            job->next[t] = -1;
            job->follows[t] = *last >= a->units.offsets[u];
            if (job->follows[t])
                job->next[*last] = t;
            *last = t;
        }
    }
}

/*
 * Adds all tokens to some columns. Tokens may share a row of dtable, so only columns are divided.
 */
static void scatter_group(const void *payload, int64_t group, void *scratch)
{
    const scatter_job *job = payload;
    const invar_embedding_bwd_args *a = job->args;
    int64_t first = group * INVAR_TOKEN_COLUMNS;
    int64_t count = group_columns(group, a->dout.shape[1]);

    (void)scratch;
    for (int64_t t = 0; t < a->dout.shape[0]; t++) {
        int64_t id = ((const int32_t *)a->ids.data)[t];
        float *running = (float *)a->dtable.data + id * a->dtable.row_stride + first;
        float dout[INVAR_TOKEN_COLUMNS], sum[INVAR_TOKEN_COLUMNS] = {0};
        if (job->follows[t])
            continue;
        for (int64_t at = t; at >= 0; at = job->next[at]) {
            invar_tensor_row_load(dout, &a->dout, at, first, count);
            for (int64_t i = 0; i < count; i++)
                sum[i] += dout[i];
        }
        for (int64_t i = 0; i < count; i++)
            running[i] += sum[i];
    }
}

size_t invar_cpu_embedding_bwd_workspace(const invar_device *dev, const invar_embedding_bwd_args *a)
{
    (void)dev;
    return (size_t)(a->dtable.shape[0] + a->dout.shape[0]) * sizeof(int64_t) +
           (size_t)a->dout.shape[0] * sizeof(bool);
}

invar_status invar_cpu_embedding_bwd(const invar_device *dev, const invar_embedding_bwd_args *a,
                                     void *workspace)
{
    int64_t *last = workspace, *next = last + a->dtable.shape[0];
    scatter_job job = {a, last, next, (bool *)(next + a->dout.shape[0])};

    link_tokens(&job);
    return run_groups(dev, a->dout.shape[1], scatter_group, &job);
}

/* ---- residual -------------------------------------------------------------------------------- */

static void add_piece(const void *payload, int64_t row, int64_t first, int64_t count)
{
    const invar_add_args *args = payload;
    float a[INVAR_PIECE], b[INVAR_PIECE];

    invar_tensor_row_load(a, &args->a, row, first, count);
    invar_tensor_row_load(b, &args->b, row, first, count);
    for (int64_t i = 0; i < count; i++)
        a[i] += b[i];
    invar_tensor_row_store(&args->out, row, first, count, a);
}

INVAR_ELEMENTWISE_OP(add, out, add_piece)

/* ---- a factor -------------------------------------------------------------------------------- */

static void scale_piece(const void *payload, int64_t row, int64_t first, int64_t count)
{
    const invar_scale_args *a = payload;
    float x[INVAR_PIECE];

    invar_tensor_row_load(x, &a->x, row, first, count);
    for (int64_t i = 0; i < count; i++)
        x[i] = a->factor * x[i];
    invar_tensor_row_store(&a->y, row, first, count, x);
}

INVAR_ELEMENTWISE_OP(scale, y, scale_piece)

/* ---- shards of ranks ------------------------------------------------------------------------- */

/* Computes sum[0..count) of a row: the tree over the shards, neighbors first. */
static void fold_shards(float *sum, const invar_shards_fold_args *a, int64_t row, int64_t first,
                        int64_t count)
{
    float partial[SHARD_LEVELS][INVAR_PIECE];

    for (int32_t shard = 0; shard < a->shards; shard++) {
        int level = 0;
        invar_tensor_row_load(sum, &a->x, shard * a->y.shape[0] + row, first, count);
        for (; shard >> level & 1; level++)
            for (int64_t i = 0; i < count; i++)
                sum[i] = partial[level][i] + sum[i];
        memcpy(partial[level], sum, (size_t)count * sizeof *sum);
    }
    for (int64_t i = 0; i < count; i++)
        sum[i] += 0.0f; // -0 becomes +0
}

static void fold_piece(const void *payload, int64_t row, int64_t first, int64_t count)
{
    const invar_shards_fold_args *a = payload;
    float sum[INVAR_PIECE], residual[INVAR_PIECE];

    fold_shards(sum, a, row, first, count);
    if (!invar_tensor_present(&a->residual)) {
        invar_tensor_row_store(&a->y, row, first, count, sum);
        return;
    }
    invar_tensor_row_load(residual, &a->residual, row, first, count);
    // rounds the sum to storage before the residual is added
    invar_tensor_row_store(&a->y, row, first, count, sum);
    invar_tensor_row_load(sum, &a->y, row, first, count);
    for (int64_t i = 0; i < count; i++)
        sum[i] = residual[i] + sum[i];
    invar_tensor_row_store(&a->y, row, first, count, sum);
}

INVAR_ELEMENTWISE_OP(shards_fold, y, fold_piece)
