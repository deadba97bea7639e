/*
 * logprob.c - log-probability of a token, entropy of its distribution, and their backward.
 *
 * Numerics contract (rev 1), docs/arithmetic.md section 9: z = logit * (1/T); the vocabulary is
 * summed in chunks of 256, each with its own maximum and REDUCE; REDUCE joins the chunks under the
 * maximum M of all. The epilogue of a matrix product can compute this tile by tile without storing
 * the logits, and ranks that divide the vocabulary only exchange the sums of their chunks
 * (logprob.sum, logprob.join). The backward computes each probability again from M and log L, and
 * rounds once to storage. A token's results depend on its own row only; columns after the tensor's
 * extent (a padded vocabulary) are never read.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "kernels-deterministic/cpu/cpu.h"
#include "kernels-deterministic/cpu/elementwise.h"
#include "kernels-deterministic/cpu/row_parallel.h"
#include "kernels-deterministic/cpu/softmax_chunk.h"
#include "kernels-deterministic/math/shards.h"
#include "kernels-deterministic/tensor_row.h"

#include "base/invar_banned.h"

#define CHUNK INVAR_CHUNK

static float value_at(const invar_tensor *vector, int64_t i)
{
    return ((const float *)vector->data)[i];
}

static void set_value(const invar_tensor *vector, int64_t i, float value)
{
    ((float *)vector->data)[i] = value;
}

static const float *logits_of(const invar_tensor *logits, int64_t token)
{
    return (const float *)logits->data + token * logits->row_stride;
}

/* ---- forward --------------------------------------------------------------------------------- */

/* The sums of one chunk, under its own maximum. */
typedef struct chunk_sum {
    float largest;  /* m_c */
    float total;    /* l_c: sum of exp(z - m_c) */
    float weighted; /* a_c: sum of exp(z - m_c) * (z - m_c) */
} chunk_sum;

/* The sums of all chunks of a token. */
typedef struct chunk_sums {
    float *largest, *total, *weighted; /* (count) */
    int64_t count;
} chunk_sums;

static chunk_sums sums_in(void *scratch, int64_t chunks)
{
    float *block = scratch;

    return (chunk_sums){block, block + chunks, block + 2 * chunks, chunks};
}

static size_t sums_bytes(int64_t vocabulary)
{
    return 3 * (size_t)invar_softmax_chunk_count(vocabulary) * sizeof(float);
}

static void set_sum(const chunk_sums *sums, int64_t chunk, const chunk_sum *sum)
{
    sums->largest[chunk] = sum->largest;
    sums->total[chunk] = sum->total;
    sums->weighted[chunk] = sum->weighted;
}

/* Sums chunk c of a row of logits; the last chunk may be shorter. */
static chunk_sum sum_chunk(const float *row, int64_t c, int64_t vocabulary, float inverse)
{
    const float *logits = row + c * CHUNK;
    int64_t left = vocabulary - c * CHUNK, count = left < CHUNK ? left : CHUNK;
    float z[CHUNK], e[CHUNK], largest;

    for (int64_t i = 0; i < count; i++)
        z[i] = logits[i] * inverse;
    largest = invar_softmax_chunk_max(z, count);
    for (int64_t i = 0; i < count; i++) {
        z[i] -= largest;
        e[i] = invar_exp(z[i]);
        z[i] *= e[i];
    }
    return (chunk_sum){largest, invar_reduce_f32(e, count), invar_reduce_f32(z, count)};
}

/* Outputs of the ops, by token. */
typedef struct results {
    const invar_tensor *logp, *entropy, *max, *logsum;
} results;

/*
 * Joins the chunks and writes the results of a token. `z` is the scaled logit of the target. The
 * sums are replaced by those under the maximum of all chunks.
 */
static void join_chunks(const results *out, int64_t token, const chunk_sums *sums, float z)
{
    float largest = sums->largest[0], total, weighted, logsum;

    for (int64_t c = 1; c < sums->count; c++)
        largest = invar_max_f32(largest, sums->largest[c]);
    for (int64_t c = 0; c < sums->count; c++) {
        float below = sums->largest[c] - largest, factor = invar_exp(below);
        sums->weighted[c] = fmaf(sums->total[c], below, sums->weighted[c]) * factor;
        sums->total[c] *= factor;
    }
    total = invar_reduce_f32(sums->total, sums->count);
    weighted = invar_reduce_f32(sums->weighted, sums->count);
    logsum = invar_log(total);

    set_value(out->max, token, largest);
    set_value(out->logsum, token, logsum);
    set_value(out->logp, token, (z - largest) - logsum);
    if (invar_tensor_present(out->entropy))
        set_value(out->entropy, token, logsum - weighted / total);
}

static void logprob_token(const void *payload, int64_t token, void *scratch)
{
    const invar_logprob_fwd_args *a = payload;
    const results out = {&a->logp, &a->entropy, &a->max, &a->logsum};
    const float *logits = logits_of(&a->logits, token);
    int64_t vocabulary = a->logits.shape[1];
    int32_t target = ((const int32_t *)a->targets.data)[token];
    float inverse = 1.0f / a->temperature;
    chunk_sums sums = sums_in(scratch, invar_softmax_chunk_count(vocabulary));

    for (int64_t c = 0; c < sums.count; c++) {
        chunk_sum sum = sum_chunk(logits, c, vocabulary, inverse);
        set_sum(&sums, c, &sum);
    }
    join_chunks(&out, token, &sums, logits[target] * inverse);
}

INVAR_ROW_PARALLEL_OP(logprob_fwd, a->logits.shape[0], 1, sums_bytes(a->logits.shape[1]),
                      logprob_token)

/* ---- forward, by parts of the vocabulary ----------------------------------------------------- */

static void sum_token(const void *payload, int64_t token, void *scratch)
{
    const invar_logprob_sum_args *a = payload;
    const float *logits = logits_of(&a->logits, token);
    int64_t vocabulary = a->logits.shape[1], last = a->sums.shape[1] - 1;
    int32_t target = ((const int32_t *)a->targets.data)[token];
    float *row = (float *)a->sums.data + token * a->sums.row_stride;
    float inverse = 1.0f / a->temperature;

    (void)scratch;
    for (int64_t c = 0; c < last / 3; c++) {
        chunk_sum sum = {0};
        if (c < invar_softmax_chunk_count(vocabulary))
            sum = sum_chunk(logits, c, vocabulary, inverse);
        memcpy(row + 3 * c, &sum, sizeof sum);
    }
    row[last] = target < vocabulary ? logits[target] : 0.0f;
}

INVAR_ROW_PARALLEL_OP(logprob_sum, a->logits.shape[0], 1, 0, sum_token)

static void join_token(const void *payload, int64_t token, void *scratch)
{
    const invar_logprob_join_args *a = payload;
    const results out = {&a->logp, &a->entropy, &a->max, &a->logsum};
    chunk_sums sums = sums_in(scratch, invar_softmax_chunk_count(a->vocabulary));
    int64_t target = ((const int32_t *)a->targets.data)[token] / CHUNK;
    float logit = 0.0f;

    for (int32_t p = 0; p < a->parts; p++) {
        const float *row =
            (const float *)a->sums.data + (p * a->targets.shape[0] + token) * a->sums.row_stride;
        int64_t first = invar_shard_start(sums.count, 1, a->parts, p);
        int64_t end = invar_shard_start(sums.count, 1, a->parts, p + 1);
        for (int64_t c = first; c < end; c++) {
            chunk_sum sum;
            memcpy(&sum, row + 3 * (c - first), sizeof sum);
            set_sum(&sums, c, &sum);
        }
        if (target >= first && target < end)
            logit = row[a->sums.shape[1] - 1];
    }
    join_chunks(&out, token, &sums, logit * (1.0f / a->temperature));
}

INVAR_ROW_PARALLEL_OP(logprob_join, a->targets.shape[0], 1, sums_bytes(a->vocabulary), join_token)

/* ---- backward -------------------------------------------------------------------------------- */

static void logprob_piece_back(const void *payload, int64_t token, int64_t first, int64_t count)
{
    const invar_logprob_bwd_args *a = payload;
    const float *logits = logits_of(&a->logits, token) + first;
    int64_t target = ((const int32_t *)a->targets.data)[token] - first;
    float inverse = 1.0f / a->temperature, largest = value_at(&a->max, token);
    float logsum = value_at(&a->logsum, token), dlogp = value_at(&a->dlogp, token);
    float logp[INVAR_PIECE], p[INVAR_PIECE], g[INVAR_PIECE] = {0};

    if (target >= 0 && target < count)
        g[target] = dlogp;
    for (int64_t i = 0; i < count; i++) {
        logp[i] = (logits[i] * inverse - largest) - logsum;
        p[i] = invar_exp(logp[i]);
        g[i] = fmaf(-p[i], dlogp, g[i]);
    }
    if (invar_tensor_present(&a->dentropy)) {
        float entropy = value_at(&a->entropy, token), dentropy = value_at(&a->dentropy, token);
        for (int64_t i = 0; i < count; i++)
            g[i] = fmaf(-dentropy, p[i] * (logp[i] + entropy), g[i]);
    }
    for (int64_t i = 0; i < count; i++)
        g[i] *= inverse;
    invar_tensor_row_store(&a->dlogits, token, first, count, g);
}

INVAR_ELEMENTWISE_OP(logprob_bwd, logits, logprob_piece_back)
