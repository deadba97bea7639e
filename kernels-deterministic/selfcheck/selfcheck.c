/*
 * selfcheck.c - runs the blocks of the self-check in the order of a decoder layer.
 *
 * Each block runs its forward and then its backward, with the normed embeddings as its input and
 * random gradients. Tensors and all other memory that ops access are allocated from the device's
 * scratch until the run ends; data are made on the host and uploaded.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/selfcheck.h"

#include "kernels-deterministic/selfcheck/layer.h"

#include "base/invar_banned.h"

/* Reports the leaf digests of three samples, one of them without rows. */
static invar_status emit_leaves(invar_selfcheck *r, const char *what, const invar_tensor *x)
{
    static const int64_t start[] = {0, 100, 100, VOCABULARY};
    const invar_row_offsets here = {start, 3};
    int64_t leaves = invar_hash_leaf_count(x, &here);
    invar_row_offsets samples;
    invar_tensor words;
    void *digest;

    INVAR_TRY(invar_selfcheck_make_segments(&samples, r, start, here.count));
    INVAR_TRY(invar_selfcheck_make_raw(&digest, r, (size_t)leaves * sizeof(invar_digest)));
    INVAR_TRY(invar_hash_leaves(
        r->dev, &(invar_hash_leaves_args){
                    .digest = digest, .x = *x, .samples = samples, .leaves = leaves}));
    words = invar_tensor_1d(digest, INVAR_DTYPE_I32,
                            leaves * (int64_t)(sizeof(invar_digest) / sizeof(int32_t)));
    return invar_selfcheck_emit_tensor(r, INVAR_OP_HASH_LEAVES, what, &words);
}

static invar_status check_leaves(invar_selfcheck *r, const invar_tensor *table)
{
    invar_tensor quantized;

    INVAR_TRY(invar_selfcheck_make_quantized(&quantized, r, table, INVAR_DTYPE_FP8, 1));
    INVAR_TRY(emit_leaves(r, "digest", table));
    return emit_leaves(r, "digest of fp8", &quantized);
}

static invar_status check_scale(invar_selfcheck *r)
{
    invar_tensor x, y;

    INVAR_TRY(invar_selfcheck_make_random(&x, r, INVAR_DTYPE_F32, TOKENS, WIDTH, 1.0f));
    INVAR_TRY(invar_selfcheck_make(&y, r, r->storage, TOKENS, WIDTH));
    INVAR_TRY(invar_scale(r->dev, &(invar_scale_args){.y = y, .x = x, .factor = 1.3f}));
    return invar_selfcheck_emit_tensor(r, INVAR_OP_SCALE, "y", &y);
}

static invar_status run_all(invar_selfcheck *r)
{
    int32_t tokens[TOKENS];
    invar_tensor ids, table, x, weight, h;
    void *digest;

    INVAR_TRY(invar_selfcheck_make_raw(&digest, r, sizeof *r->digest));
    r->digest = digest;
    INVAR_TRY(invar_selfcheck_make_segments(&r->samples, r, invar_selfcheck_sample_start, SAMPLES));
    for (int t = 0; t < TOKENS; t++)
        tokens[t] = t * 11 % 29 + t * 7 % 271; // some tokens repeat
    INVAR_TRY(invar_selfcheck_make_indices(&ids, r, tokens, TOKENS));
    INVAR_TRY(invar_selfcheck_make_random(&table, r, r->storage, VOCABULARY, WIDTH, 1.0f));
    INVAR_TRY(invar_selfcheck_make_random(&weight, r, r->storage, 1, WIDTH, 1.0f));
    INVAR_TRY(invar_selfcheck_make(&x, r, r->storage, TOKENS, WIDTH));
    INVAR_TRY(invar_embedding_fwd(
        r->dev, &(invar_embedding_fwd_args){.out = x, .table = table, .ids = ids}));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_EMBEDDING_FWD, "out", &x));
    INVAR_TRY(invar_selfcheck_norm(r, &h, &x, &weight, 1));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_RMSNORM_FWD, "y", &h));
    INVAR_TRY(invar_selfcheck_attention(r, &h));
    INVAR_TRY(invar_selfcheck_experts(r, &h));
    INVAR_TRY(invar_selfcheck_dense(r, &h));
    INVAR_TRY(invar_selfcheck_head(r, &h, &table, &ids));
    INVAR_TRY(invar_selfcheck_long_attention(r));
    INVAR_TRY(check_leaves(r, &table));
    INVAR_TRY(invar_selfcheck_products_of_ranks(r));
    INVAR_TRY(invar_selfcheck_norm_of_ranks(r));
    INVAR_TRY(invar_selfcheck_logprobs_of_ranks(r));
    return check_scale(r);
}

size_t invar_selfcheck_scratch(int threads)
{
    // tensors of the layer, then the largest op: chains need a few MiB per thread
    return ((size_t)24 << 20) + ((size_t)8 << 20) * (size_t)threads;
}

invar_status invar_selfcheck_run(const invar_device *dev, invar_dtype storage,
                                 invar_selfcheck_emit emit, void *payload)
{
    invar_selfcheck r = {.dev = dev, .storage = storage, .emit = emit, .payload = payload};
    size_t mark = invar_arena_mark(dev->scratch);
    invar_status status = run_all(&r);

    INVAR_CHECK(invar_arena_rewind(dev->scratch, mark) == INVAR_OK);
    return status;
}
