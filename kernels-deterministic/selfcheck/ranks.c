/*
 * ranks.c - self-check of sums that several ranks compute together.
 *
 * Runs the ops for logical shards, block sums and parts of a vocabulary, with the data of all ranks
 * on one device.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/selfcheck/layer.h"

#include "base/invar_banned.h"

enum {
    IDS = 700, /* size of a vocabulary that two ranks divide */
    RANKS = 4
};

invar_status invar_selfcheck_products_of_ranks(invar_selfcheck *r)
{
    invar_tensor x, residual, y;

    INVAR_TRY(invar_selfcheck_make_random(&x, r, INVAR_DTYPE_F32, RANKS * TOKENS, WIDTH, 1.0f));
    INVAR_TRY(invar_selfcheck_make_random(&residual, r, r->storage, TOKENS, WIDTH, 1.0f));
    INVAR_TRY(invar_selfcheck_make(&y, r, r->storage, TOKENS, WIDTH));
    INVAR_TRY(
        invar_shards_fold(r->dev, &(invar_shards_fold_args){.y = y, .x = x, .shards = RANKS}));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_SHARDS_FOLD, "y", &y));
    INVAR_TRY(invar_shards_fold(
        r->dev, &(invar_shards_fold_args){.y = y, .x = x, .residual = residual, .shards = RANKS}));
    return invar_selfcheck_emit_tensor(r, INVAR_OP_SHARDS_FOLD, "y with a residual", &y);
}

invar_status invar_selfcheck_norm_of_ranks(invar_selfcheck *r)
{
    invar_tensor x, dy, weight, dx, sums, dweight;

    INVAR_TRY(invar_selfcheck_make_random(&x, r, r->storage, TOKENS, Q_WIDTH, 1.0f));
    INVAR_TRY(invar_selfcheck_make_random(&dy, r, r->storage, TOKENS, Q_WIDTH, 1.0f));
    INVAR_TRY(invar_selfcheck_make_random(&weight, r, r->storage, 1, HEAD_DIM, 1.0f));
    INVAR_TRY(invar_selfcheck_make(&dx, r, r->storage, TOKENS, Q_WIDTH));
    INVAR_TRY(invar_selfcheck_make(&sums, r, INVAR_DTYPE_F32,
                                   invar_token_blocks_max(&r->samples, TOKENS), HEAD_DIM));
    INVAR_TRY(invar_selfcheck_make(&dweight, r, INVAR_DTYPE_F32, 1, HEAD_DIM));
    INVAR_TRY(invar_rmsnorm_bwd(
        r->dev, &(invar_rmsnorm_bwd_args){.dx = invar_selfcheck_as_3d(&dx, HEADS, HEAD_DIM),
                                          .block_sums = sums,
                                          .dy = invar_selfcheck_as_3d(&dy, HEADS, HEAD_DIM),
                                          .x = invar_selfcheck_as_3d(&x, HEADS, HEAD_DIM),
                                          .weight = invar_selfcheck_as_1d(&weight),
                                          .units = r->samples,
                                          .eps = 1e-6f,
                                          .head_shards = SHARDS,
                                          .head_atom = 1}));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_RMSNORM_BWD, "block sums", &sums));
    INVAR_TRY(
        invar_token_fold(r->dev, &(invar_token_fold_args){.out = invar_selfcheck_as_1d(&dweight),
                                                          .sums = sums,
                                                          .units = r->samples,
                                                          .tokens = TOKENS}));
    return invar_selfcheck_emit_after(r, INVAR_OP_RMSNORM_BWD, INVAR_OP_TOKEN_FOLD, "dweight",
                                      &dweight);
}

/* Computes the sums of part p of two; the first part has one chunk more. */
static invar_status sum_part(invar_selfcheck *r, const invar_tensor *sums,
                             const invar_tensor *logits, const int32_t *ids, int p)
{
    static const int32_t start[] = {0, 2 * INVAR_LOGPROB_CHUNK, IDS};
    int32_t own[TOKENS], count = start[p + 1] - start[p];
    invar_tensor targets;

    for (int t = 0; t < TOKENS; t++)
        own[t] = ids[t] >= start[p] && ids[t] < start[p + 1] ? ids[t] - start[p] : count;
    INVAR_TRY(invar_selfcheck_make_indices(&targets, r, own, TOKENS));
    return invar_logprob_sum(
        r->dev, &(invar_logprob_sum_args){.sums = invar_tensor_rows(sums, p * TOKENS, TOKENS),
                                          .logits = invar_tensor_columns(logits, start[p], count),
                                          .targets = targets,
                                          .temperature = 0.8f});
}

invar_status invar_selfcheck_logprobs_of_ranks(invar_selfcheck *r)
{
    int32_t ids[TOKENS];
    invar_tensor logits, sums, targets, logp, entropy, max, logsum;

    for (int32_t t = 0; t < TOKENS; t++)
        ids[t] = t * 97 % IDS;
    INVAR_TRY(invar_selfcheck_make_random(&logits, r, INVAR_DTYPE_F32, TOKENS, IDS, 4.0f));
    INVAR_TRY(invar_selfcheck_make(&sums, r, INVAR_DTYPE_F32, 2 * TOKENS,
                                   invar_logprob_sum_columns(IDS, 2)));
    for (int p = 0; p < 2; p++)
        INVAR_TRY(sum_part(r, &sums, &logits, ids, p));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_LOGPROB_SUM, "sums", &sums));
    INVAR_TRY(invar_selfcheck_make_indices(&targets, r, ids, TOKENS));
    INVAR_TRY(invar_selfcheck_make(&logp, r, INVAR_DTYPE_F32, 1, TOKENS));
    INVAR_TRY(invar_selfcheck_make(&entropy, r, INVAR_DTYPE_F32, 1, TOKENS));
    INVAR_TRY(invar_selfcheck_make(&max, r, INVAR_DTYPE_F32, 1, TOKENS));
    INVAR_TRY(invar_selfcheck_make(&logsum, r, INVAR_DTYPE_F32, 1, TOKENS));
    INVAR_TRY(invar_logprob_join(
        r->dev, &(invar_logprob_join_args){.logp = invar_selfcheck_as_1d(&logp),
                                           .entropy = invar_selfcheck_as_1d(&entropy),
                                           .max = invar_selfcheck_as_1d(&max),
                                           .logsum = invar_selfcheck_as_1d(&logsum),
                                           .sums = sums,
                                           .targets = targets,
                                           .vocabulary = IDS,
                                           .parts = 2,
                                           .temperature = 0.8f}));
    INVAR_TRY(
        invar_selfcheck_emit_after(r, INVAR_OP_LOGPROB_SUM, INVAR_OP_LOGPROB_JOIN, "logp", &logp));
    return invar_selfcheck_emit_after(r, INVAR_OP_LOGPROB_SUM, INVAR_OP_LOGPROB_JOIN, "entropy",
                                      &entropy);
}
