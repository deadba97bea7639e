/*
 * logprob.c - log-probability of a token, entropy of its distribution, and their backward.
 *
 * Numerics contract (rev 1), docs/arithmetic.md section 9: z = logit * (1/T); the vocabulary in
 * chunks of 256, each with its own maximum and REDUCE; the chunks joined by REDUCE under the
 * maximum M of all. That is what the epilogue of a matrix product can compute tile by tile, so no
 * implementation has to hold the logits. The backward recomputes each probability from M and log L;
 * one rounding into storage at the end. A token's results depend on its own row alone, and columns
 * behind the tensor's extent (a padded vocabulary) are never read.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>

#include "kernels-deterministic/cpu/chunk.h"
#include "kernels-deterministic/cpu/cpu.h"
#include "kernels-deterministic/cpu/pieces.h"
#include "kernels-deterministic/cpu/rows.h"
#include "kernels-deterministic/row.h"

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

/* What is known of each chunk, under its own maximum. */
typedef struct chunk_sums {
    float *largest;  /* m_c */
    float *total;    /* l_c: sum of exp(z - m_c) */
    float *weighted; /* a_c: sum of exp(z - m_c) * (z - m_c) */
} chunk_sums;

static void sum_chunk(const chunk_sums *sums, int64_t chunk, const float *logits, int64_t count,
                      float inverse)
{
    float z[CHUNK], e[CHUNK], largest;

    for (int64_t i = 0; i < count; i++)
        z[i] = logits[i] * inverse;
    largest = invar_chunk_largest(z, count);
    for (int64_t i = 0; i < count; i++) {
        z[i] -= largest;
        e[i] = invar_exp(z[i]);
        z[i] *= e[i];
    }
    sums->largest[chunk] = largest;
    sums->total[chunk] = invar_reduce_f32(e, count);
    sums->weighted[chunk] = invar_reduce_f32(z, count);
}

static void logprob_token(const void *payload, int64_t token, void *scratch)
{
    const invar_logprob_fwd_args *a = payload;
    const float *logits = logits_of(&a->logits, token);
    int64_t vocabulary = a->logits.shape[1], chunks = invar_chunks_of(vocabulary);
    int32_t target = ((const int32_t *)a->targets.data)[token];
    float *block = scratch, inverse = 1.0f / a->temperature, largest, total, weighted, logsum;
    chunk_sums sums = {block, block + chunks, block + 2 * chunks};

    for (int64_t c = 0; c < chunks; c++) {
        int64_t left = vocabulary - c * CHUNK;
        sum_chunk(&sums, c, logits + c * CHUNK, left < CHUNK ? left : CHUNK, inverse);
    }
    largest = sums.largest[0];
    for (int64_t c = 1; c < chunks; c++)
        largest = invar_max_f32(largest, sums.largest[c]);
    for (int64_t c = 0; c < chunks; c++) {
        float below = sums.largest[c] - largest, factor = invar_exp(below);
        sums.weighted[c] = fmaf(sums.total[c], below, sums.weighted[c]) * factor;
        sums.total[c] *= factor;
    }
    total = invar_reduce_f32(sums.total, chunks);
    weighted = invar_reduce_f32(sums.weighted, chunks);
    logsum = invar_log(total);

    set_value(&a->max, token, largest);
    set_value(&a->logsum, token, logsum);
    set_value(&a->logp, token, (logits[target] * inverse - largest) - logsum);
    if (invar_tensor_present(&a->entropy))
        set_value(&a->entropy, token, logsum - weighted / total);
}

static size_t logprob_scratch(const invar_logprob_fwd_args *a)
{
    return 3 * (size_t)invar_chunks_of(a->logits.shape[1]) * sizeof(float);
}

size_t invar_cpu_logprob_fwd_workspace(const invar_device *dev, const invar_logprob_fwd_args *a)
{
    return invar_rows_workspace(dev, logprob_scratch(a));
}

invar_status invar_cpu_logprob_fwd(const invar_device *dev, const invar_logprob_fwd_args *a,
                                   void *workspace)
{
    invar_row_job job = {a->logits.shape[0], 1, logprob_scratch(a), logprob_token, a};

    return invar_rows_run(dev, &job, workspace);
}

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
    invar_row_store(&a->dlogits, token, first, count, g);
}

size_t invar_cpu_logprob_bwd_workspace(const invar_device *dev, const invar_logprob_bwd_args *a)
{
    (void)dev, (void)a;
    return 0;
}

invar_status invar_cpu_logprob_bwd(const invar_device *dev, const invar_logprob_bwd_args *a,
                                   void *workspace)
{
    (void)workspace;
    return invar_pieces_run(dev, a->logits.shape[0], a->logits.shape[1], logprob_piece_back, a);
}
