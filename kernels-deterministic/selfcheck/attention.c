/*
 * attention.c - self-check of attention: projections, norm, rope, KV cache, forward and backward.
 *
 * Two blocks: the attention of the layer, with packed samples, QK-norm, rope and a paged repetition
 * of one sample; and a long sample with a window and spans.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/selfcheck/layer.h"

#include "base/invar_banned.h"

enum { KV_HEADS = 2, KV_WIDTH = KV_HEADS * HEAD_DIM, POSITIONS = 64, PAGE = 8, PAGES = 16 };

typedef struct rope {
    invar_tensor cosine;
    invar_tensor sine;
    invar_tensor positions;
} rope;

static invar_status make_rope(invar_selfcheck *r, rope *out)
{
    invar_rope_table_args args = {.theta = 10000.0,
                                  .scaling = INVAR_ROPE_LLAMA3,
                                  .factor = 8.0,
                                  .low_freq_factor = 1.0,
                                  .high_freq_factor = 4.0,
                                  .original_context = 64.0};
    int32_t positions[TOKENS];

    INVAR_TRY(invar_selfcheck_make(&args.cosine, r, INVAR_DTYPE_F32, POSITIONS, HEAD_DIM / 2));
    INVAR_TRY(invar_selfcheck_make(&args.sine, r, INVAR_DTYPE_F32, POSITIONS, HEAD_DIM / 2));
    INVAR_TRY(invar_rope_table(r->dev, &args));
    out->cosine = args.cosine;
    out->sine = args.sine;
    for (int s = 0; s < SAMPLES; s++)
        for (int64_t t = invar_selfcheck_sample_start[s]; t < invar_selfcheck_sample_start[s + 1];
             t++)
            positions[t] = (int32_t)(t - invar_selfcheck_sample_start[s]);
    INVAR_TRY(invar_selfcheck_make_indices(&out->positions, r, positions, TOKENS));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_ROPE_TABLE, "cosine", &out->cosine));
    return invar_selfcheck_emit_tensor(r, INVAR_OP_ROPE_TABLE, "sine", &out->sine);
}

static invar_rope_fwd_args rope_args(const rope *table, const invar_tensor *y,
                                     const invar_tensor *x, int64_t heads)
{
    return (invar_rope_fwd_args){.y = invar_selfcheck_as_3d(y, heads, HEAD_DIM),
                                 .x = invar_selfcheck_as_3d(x, heads, HEAD_DIM),
                                 .positions = table->positions,
                                 .cosine = table->cosine,
                                 .sine = table->sine};
}

/* Computes the last sample again from a paged cache, in two chunks. */
static invar_status paged_attention(invar_selfcheck *r, const invar_tensor *q,
                                    const invar_tensor *k, const invar_tensor *v)
{
    static const int64_t chunks[2][3] = {{0, 7, 7}, {0, 6, 13}}; // row offsets, then the length
    static const int32_t pages[] = {9, 3};
    int64_t first = invar_selfcheck_sample_start[2];
    invar_kv_pages cache;
    invar_tensor o;
    void *bounds;

    INVAR_TRY(invar_selfcheck_make(&cache.k, r, r->storage, PAGES, PAGE * KV_WIDTH));
    INVAR_TRY(invar_selfcheck_make(&cache.v, r, r->storage, PAGES, PAGE * KV_WIDTH));
    cache.k = invar_tensor_4d(cache.k.data, r->storage, PAGES, PAGE, KV_HEADS, HEAD_DIM);
    cache.v = invar_tensor_4d(cache.v.data, r->storage, PAGES, PAGE, KV_HEADS, HEAD_DIM);
    INVAR_TRY(invar_selfcheck_make_indices(&cache.pages, r, pages, 2));
    cache.pages = invar_tensor_2d(cache.pages.data, INVAR_DTYPE_I32, 1, 2);
    INVAR_TRY(invar_selfcheck_make_copy(&bounds, r, chunks, sizeof chunks));
    INVAR_TRY(invar_selfcheck_make(&o, r, r->storage, 13, Q_WIDTH));
    for (int c = 0; c < 2; c++) {
        int64_t n = chunks[c][1], row = first + chunks[c][2] - n;
        const int64_t *chunk = (const int64_t *)bounds + 3 * c;
        invar_tensor qc = invar_tensor_rows(q, row, n), kc = invar_tensor_rows(k, row, n);
        invar_tensor vc = invar_tensor_rows(v, row, n), oc = invar_tensor_rows(&o, row - first, n);
        invar_kv_write_args put = {.cache = cache,
                                   .k = invar_selfcheck_as_3d(&kc, KV_HEADS, HEAD_DIM),
                                   .v = invar_selfcheck_as_3d(&vc, KV_HEADS, HEAD_DIM),
                                   .rows = {chunk, 1},
                                   .lengths = chunk + 2};
        invar_attention_paged_args get = {.o = invar_selfcheck_as_3d(&oc, HEADS, HEAD_DIM),
                                          .q = invar_selfcheck_as_3d(&qc, HEADS, HEAD_DIM),
                                          .cache = cache,
                                          .rows = {chunk, 1},
                                          .lengths = chunk + 2};
        INVAR_TRY(invar_kv_write(r->dev, &put));
        INVAR_TRY(invar_attention_paged(r->dev, &get));
    }
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_KV_WRITE, "k", &cache.k));
    return invar_selfcheck_emit_tensor(r, INVAR_OP_ATTENTION_PAGED, "o", &o);
}

invar_status invar_selfcheck_attention(invar_selfcheck *r, const invar_tensor *h)
{
    invar_tensor wq, wk, wv, wo, bias, qk_weight, q_raw, q_normed, q, k_raw, k, v, o, lse2, y;
    invar_tensor dy, d_o, dq, dk, dv, dq_normed, dq_raw, dk_raw, dqk_weight, dwo, dh;
    invar_attention_fwd_args fwd;
    invar_attention_bwd_args bwd;
    rope table;

    INVAR_TRY(invar_selfcheck_make_random(&wq, r, r->storage, Q_WIDTH, WIDTH, 0.15f));
    INVAR_TRY(invar_selfcheck_make_random(&wk, r, r->storage, KV_WIDTH, WIDTH, 0.15f));
    INVAR_TRY(invar_selfcheck_make_random(&wv, r, r->storage, KV_WIDTH, WIDTH, 0.15f));
    INVAR_TRY(invar_selfcheck_make_random(&wo, r, r->storage, WIDTH, Q_WIDTH, 0.15f));
    INVAR_TRY(invar_selfcheck_make_random(&bias, r, r->storage, 1, Q_WIDTH, 0.5f));
    INVAR_TRY(invar_selfcheck_make_random(&qk_weight, r, r->storage, 1, HEAD_DIM, 1.0f));
    bias = invar_selfcheck_as_1d(&bias);
    INVAR_TRY(invar_selfcheck_linear(r, &q_raw, h, &wq, &bias, 1, r->storage));
    INVAR_TRY(invar_selfcheck_linear(r, &k_raw, h, &wk, NULL, 1, r->storage));
    INVAR_TRY(invar_selfcheck_linear(r, &v, h, &wv, NULL, 1, r->storage));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_LINEAR_FWD, "q", &q_raw));
    INVAR_TRY(invar_selfcheck_norm(r, &q_normed, &q_raw, &qk_weight, HEADS));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_RMSNORM_FWD, "q", &q_normed));
    INVAR_TRY(make_rope(r, &table));
    INVAR_TRY(invar_selfcheck_make(&q, r, r->storage, TOKENS, Q_WIDTH));
    INVAR_TRY(invar_selfcheck_make(&k, r, r->storage, TOKENS, KV_WIDTH));
    {
        invar_rope_fwd_args rq = rope_args(&table, &q, &q_normed, HEADS);
        invar_rope_fwd_args rk = rope_args(&table, &k, &k_raw, KV_HEADS);
        INVAR_TRY(invar_rope_fwd(r->dev, &rq));
        INVAR_TRY(invar_rope_fwd(r->dev, &rk));
    }
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_ROPE_FWD, "q", &q));

    INVAR_TRY(invar_selfcheck_make(&o, r, r->storage, TOKENS, Q_WIDTH));
    INVAR_TRY(invar_selfcheck_make(&lse2, r, INVAR_DTYPE_F32, TOKENS, HEADS));
    fwd = (invar_attention_fwd_args){.o = invar_selfcheck_as_3d(&o, HEADS, HEAD_DIM),
                                     .lse2 = lse2,
                                     .q = invar_selfcheck_as_3d(&q, HEADS, HEAD_DIM),
                                     .k = invar_selfcheck_as_3d(&k, KV_HEADS, HEAD_DIM),
                                     .v = invar_selfcheck_as_3d(&v, KV_HEADS, HEAD_DIM),
                                     .samples = r->samples};
    INVAR_TRY(invar_attention_fwd(r->dev, &fwd));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_ATTENTION_FWD, "o", &o));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_ATTENTION_FWD, "lse2", &lse2));
    INVAR_TRY(paged_attention(r, &q, &k, &v));
    INVAR_TRY(invar_selfcheck_linear(r, &y, &o, &wo, NULL, SHARDS, r->storage));
    INVAR_TRY(invar_selfcheck_emit_after(r, INVAR_OP_ATTENTION_FWD, INVAR_OP_LINEAR_FWD,
                                         "y of 2 shards", &y));

    INVAR_TRY(invar_selfcheck_make_random(&dy, r, r->storage, TOKENS, WIDTH, 1.0f));
    INVAR_TRY(invar_selfcheck_weight_grad(r, &dwo, &dy, &o));
    INVAR_TRY(
        invar_selfcheck_emit_after(r, INVAR_OP_ATTENTION_FWD, INVAR_OP_LINEAR_DW, "dwo", &dwo));
    INVAR_TRY(invar_selfcheck_input_grad(r, &d_o, &(invar_linear_part){dy, wo}, 1));
    INVAR_TRY(invar_selfcheck_make(&dq, r, r->storage, TOKENS, Q_WIDTH));
    INVAR_TRY(invar_selfcheck_make(&dk, r, r->storage, TOKENS, KV_WIDTH));
    INVAR_TRY(invar_selfcheck_make(&dv, r, r->storage, TOKENS, KV_WIDTH));
    bwd = (invar_attention_bwd_args){.dq = invar_selfcheck_as_3d(&dq, HEADS, HEAD_DIM),
                                     .dk = invar_selfcheck_as_3d(&dk, KV_HEADS, HEAD_DIM),
                                     .dv = invar_selfcheck_as_3d(&dv, KV_HEADS, HEAD_DIM),
                                     .d_o = invar_selfcheck_as_3d(&d_o, HEADS, HEAD_DIM),
                                     .o = fwd.o,
                                     .lse2 = lse2,
                                     .q = fwd.q,
                                     .k = fwd.k,
                                     .v = fwd.v,
                                     .samples = r->samples};
    INVAR_TRY(invar_attention_bwd(r->dev, &bwd));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_ATTENTION_BWD, "dq", &dq));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_ATTENTION_BWD, "dk", &dk));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_ATTENTION_BWD, "dv", &dv));
    INVAR_TRY(invar_selfcheck_make(&dq_normed, r, r->storage, TOKENS, Q_WIDTH));
    INVAR_TRY(invar_selfcheck_make(&dk_raw, r, r->storage, TOKENS, KV_WIDTH));
    {
        invar_rope_bwd_args rq = rope_args(&table, &dq_normed, &dq, HEADS);
        invar_rope_bwd_args rk = rope_args(&table, &dk_raw, &dk, KV_HEADS);
        INVAR_TRY(invar_rope_bwd(r->dev, &rq));
        INVAR_TRY(invar_rope_bwd(r->dev, &rk));
    }
    INVAR_TRY(
        invar_selfcheck_emit_after(r, INVAR_OP_ATTENTION_BWD, INVAR_OP_ROPE_BWD, "dq", &dq_normed));
    INVAR_TRY(
        invar_selfcheck_norm_grad(r, &dq_raw, &dqk_weight, &dq_normed, &q_raw, &qk_weight, HEADS));
    INVAR_TRY(
        invar_selfcheck_emit_after(r, INVAR_OP_ATTENTION_BWD, INVAR_OP_RMSNORM_BWD, "dq", &dq_raw));
    INVAR_TRY(invar_selfcheck_emit_after(r, INVAR_OP_ATTENTION_BWD, INVAR_OP_RMSNORM_BWD, "dweight",
                                         &dqk_weight));
    INVAR_TRY(invar_selfcheck_input_grad(
        r, &dh, (invar_linear_part[]){{dq_raw, wq}, {dk_raw, wk}, {dv, wv}}, 3));
    return invar_selfcheck_emit_after(r, INVAR_OP_ATTENTION_BWD, INVAR_OP_LINEAR_DX,
                                      "dx of q, k, v", &dh);
}

invar_status invar_selfcheck_long_attention(invar_selfcheck *r)
{
    enum { LENGTH = 300, WIDE = 144 };
    static const int64_t start[] = {0, LENGTH};
    invar_tensor q, k, v, o, lse2, d_o, dq, dk, dv;
    invar_row_offsets whole;
    invar_attention_shape shape = {.window = 200, .kv_span = 128, .q_span = 128};
    invar_attention_fwd_args fwd;

    INVAR_TRY(invar_selfcheck_make_random(&q, r, r->storage, LENGTH, 2 * WIDE, 1.0f));
    INVAR_TRY(invar_selfcheck_make_random(&k, r, r->storage, LENGTH, WIDE, 1.0f));
    INVAR_TRY(invar_selfcheck_make_random(&v, r, r->storage, LENGTH, WIDE, 1.0f));
    INVAR_TRY(invar_selfcheck_make_random(&d_o, r, r->storage, LENGTH, 2 * WIDE, 1.0f));
    INVAR_TRY(invar_selfcheck_make(&o, r, r->storage, LENGTH, 2 * WIDE));
    INVAR_TRY(invar_selfcheck_make(&lse2, r, INVAR_DTYPE_F32, LENGTH, 2));
    INVAR_TRY(invar_selfcheck_make(&dq, r, r->storage, LENGTH, 2 * WIDE));
    INVAR_TRY(invar_selfcheck_make(&dk, r, r->storage, LENGTH, WIDE));
    INVAR_TRY(invar_selfcheck_make(&dv, r, r->storage, LENGTH, WIDE));
    INVAR_TRY(invar_selfcheck_make_segments(&whole, r, start, 1));
    fwd = (invar_attention_fwd_args){.o = invar_selfcheck_as_3d(&o, 2, WIDE),
                                     .lse2 = lse2,
                                     .q = invar_selfcheck_as_3d(&q, 2, WIDE),
                                     .k = invar_selfcheck_as_3d(&k, 1, WIDE),
                                     .v = invar_selfcheck_as_3d(&v, 1, WIDE),
                                     .samples = whole,
                                     .shape = shape};
    INVAR_TRY(invar_attention_fwd(r->dev, &fwd));
    INVAR_TRY(invar_attention_bwd(
        r->dev, &(invar_attention_bwd_args){.dq = invar_selfcheck_as_3d(&dq, 2, WIDE),
                                            .dk = invar_selfcheck_as_3d(&dk, 1, WIDE),
                                            .dv = invar_selfcheck_as_3d(&dv, 1, WIDE),
                                            .d_o = invar_selfcheck_as_3d(&d_o, 2, WIDE),
                                            .o = fwd.o,
                                            .lse2 = lse2,
                                            .q = fwd.q,
                                            .k = fwd.k,
                                            .v = fwd.v,
                                            .samples = fwd.samples,
                                            .shape = shape}));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_ATTENTION_FWD, "o long", &o));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_ATTENTION_BWD, "dq long", &dq));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_ATTENTION_BWD, "dk long", &dk));
    return invar_selfcheck_emit_tensor(r, INVAR_OP_ATTENTION_BWD, "dv long", &dv);
}
