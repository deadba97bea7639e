/*
 * token.c - sums over tokens and shards, embedding, residual addition.
 *
 * Numerics contract (rev 1), docs/arithmetic.md; all in f32, round to nearest even:
 *   token.sum       per unit, per block of 128 tokens: from +0, tokens ascending; blocks and units
 *                   added to out in ascending order
 *   shard.fold      binary tree over the shards, neighbours first: ((0+1) + (2+3)) + ...
 *   embedding.fwd   a copy
 *   embedding.bwd   dtable[id] += dout[t], tokens ascending
 *   add             round(a + b)
 * Columns are independent of each other, and so are rows where nothing is summed over them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cpu/token.h"

#include <string.h>

#include "kernels-deterministic/cpu/cpu.h"
#include "kernels-deterministic/cpu/pieces.h"
#include "kernels-deterministic/cpu/rows.h"
#include "kernels-deterministic/row.h"

#include "base/invar_banned.h"

/* ---- sums over tokens ------------------------------------------------------------------------ */

typedef struct token_job {
    const invar_tensor *out;
    const invar_segments *units;
    int32_t shards;
    invar_token_term term;
    const void *payload;
} token_job;

/* The columns from group * INVAR_TOKEN_COLUMNS on, of `cols` in all. */
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
    invar_row_job job = {groups, 1, 0, run, payload};

    return invar_rows_run(dev, &job, NULL);
}

#define SHARD_LEVELS 4 // 2^3 shards, INVAR_LINEAR_MAX_SHARDS

/* partial[level][0..count) = the block's sum; yields the level. */
static int sum_block(float partial[SHARD_LEVELS][INVAR_TOKEN_COLUMNS], const token_job *job,
                     int64_t token, int64_t end, int64_t first, int64_t count)
{
    int level = 0;

    for (int32_t shard = 0; shard < job->shards; shard++) {
        float sum[INVAR_TOKEN_COLUMNS] = {0};
        for (int64_t t = token; t < end; t++)
            job->term(sum, job->payload, shard, t, first, count);
        // a binary counter, as in fold_piece
        for (level = 0; shard >> level & 1; level++)
            for (int64_t i = 0; i < count; i++)
                sum[i] = partial[level][i] + sum[i];
        memcpy(partial[level], sum, (size_t)count * sizeof *sum);
    }
    return level;
}

static void accumulate_group(const void *payload, int64_t group, void *scratch)
{
    const token_job *job = payload;
    int64_t first = group * INVAR_TOKEN_COLUMNS;
    int64_t count = group_columns(group, job->out->shape[0]);
    float *running = (float *)job->out->data + first;
    float partial[SHARD_LEVELS][INVAR_TOKEN_COLUMNS];

    (void)scratch;
    for (int64_t u = 0; u < job->units->count; u++) {
        int64_t unit_end = job->units->start[u + 1];
        for (int64_t token = job->units->start[u]; token < unit_end; token += INVAR_TOKEN_BLOCK) {
            int64_t left = unit_end - token;
            int64_t block_end = left < INVAR_TOKEN_BLOCK ? unit_end : token + INVAR_TOKEN_BLOCK;
            int level = sum_block(partial, job, token, block_end, first, count);
            for (int64_t i = 0; i < count; i++)
                running[i] += partial[level][i];
        }
    }
}

invar_status invar_token_accumulate(const invar_device *dev, const invar_tensor *out,
                                    const invar_segments *units, int32_t shards,
                                    invar_token_term term, const void *payload)
{
    token_job job = {out, units, shards, term, payload};

    return run_groups(dev, out->shape[0], accumulate_group, &job);
}

static void add_row(float *sum, const void *payload, int32_t shard, int64_t token, int64_t first,
                    int64_t count)
{
    float x[INVAR_TOKEN_COLUMNS];

    (void)shard; // there is one
    invar_row_load(x, payload, token, first, count);
    for (int64_t i = 0; i < count; i++)
        sum[i] += x[i];
}

size_t invar_cpu_token_sum_workspace(const invar_device *dev, const invar_token_sum_args *a)
{
    (void)dev, (void)a;
    return 0;
}

invar_status invar_cpu_token_sum(const invar_device *dev, const invar_token_sum_args *a,
                                 void *workspace)
{
    (void)workspace;
    return invar_token_accumulate(dev, &a->out, &a->units, 1, add_row, &a->x);
}

/* ---- sum over shards ------------------------------------------------------------------------- */

#define MAX_LEVELS 11 // 2^10 shards, the bound of the check

static void fold_piece(const void *payload, int64_t row, int64_t first, int64_t count)
{
    const invar_shard_fold_args *a = payload;
    float partial[MAX_LEVELS][INVAR_PIECE];
    int level = 0;

    (void)row;
    // a binary counter: partial[l] waits for its right neighbour, a subtree of 2^l shards
    for (int64_t shard = 0; shard < a->x.shape[0]; shard++) {
        float sum[INVAR_PIECE];
        invar_row_load(sum, &a->x, shard, first, count);
        for (level = 0; shard >> level & 1; level++)
            for (int64_t i = 0; i < count; i++)
                sum[i] = partial[level][i] + sum[i];
        memcpy(partial[level], sum, (size_t)count * sizeof *sum);
    }
    invar_row_store(&a->out, 0, first, count, partial[level]);
}

size_t invar_cpu_shard_fold_workspace(const invar_device *dev, const invar_shard_fold_args *a)
{
    (void)dev, (void)a;
    return 0;
}

invar_status invar_cpu_shard_fold(const invar_device *dev, const invar_shard_fold_args *a,
                                  void *workspace)
{
    (void)workspace;
    return invar_pieces_run(dev, 1, a->out.shape[0], fold_piece, a);
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

size_t invar_cpu_embedding_fwd_workspace(const invar_device *dev, const invar_embedding_fwd_args *a)
{
    (void)dev, (void)a;
    return 0;
}

invar_status invar_cpu_embedding_fwd(const invar_device *dev, const invar_embedding_fwd_args *a,
                                     void *workspace)
{
    int64_t tokens = a->out.shape[1] > 0 ? a->out.shape[0] : 0; // rows of nothing have no address
    invar_row_job job = {tokens, TOKENS_PER_TASK, 0, copy_row, a};

    return invar_rows_run(dev, &job, workspace);
}

/* All tokens of some columns: two tokens may share a row, two columns share nothing. */
static void scatter_group(const void *payload, int64_t group, void *scratch)
{
    const invar_embedding_bwd_args *a = payload;
    const int32_t *ids = a->ids.data;
    int64_t first = group * INVAR_TOKEN_COLUMNS;
    int64_t count = group_columns(group, a->dout.shape[1]);

    (void)scratch;
    for (int64_t t = 0; t < a->dout.shape[0]; t++) {
        float *running = (float *)a->dtable.data + ids[t] * a->dtable.row_stride + first;
        float dout[INVAR_TOKEN_COLUMNS];
        invar_row_load(dout, &a->dout, t, first, count);
        for (int64_t i = 0; i < count; i++)
            running[i] += dout[i];
    }
}

size_t invar_cpu_embedding_bwd_workspace(const invar_device *dev, const invar_embedding_bwd_args *a)
{
    (void)dev, (void)a;
    return 0;
}

invar_status invar_cpu_embedding_bwd(const invar_device *dev, const invar_embedding_bwd_args *a,
                                     void *workspace)
{
    (void)workspace;
    return run_groups(dev, a->dout.shape[1], scatter_group, a);
}

/* ---- residual -------------------------------------------------------------------------------- */

static void add_piece(const void *payload, int64_t row, int64_t first, int64_t count)
{
    const invar_add_args *args = payload;
    float a[INVAR_PIECE], b[INVAR_PIECE];

    invar_row_load(a, &args->a, row, first, count);
    invar_row_load(b, &args->b, row, first, count);
    for (int64_t i = 0; i < count; i++)
        a[i] += b[i];
    invar_row_store(&args->out, row, first, count, a);
}

size_t invar_cpu_add_workspace(const invar_device *dev, const invar_add_args *a)
{
    (void)dev, (void)a;
    return 0;
}

invar_status invar_cpu_add(const invar_device *dev, const invar_add_args *a, void *workspace)
{
    (void)workspace;
    return invar_pieces_run(dev, a->out.shape[0], a->out.shape[1], add_piece, a);
}
