/*
 * overlap.c - tests which outputs of an op may overlap other arguments, as op_fields.def says.
 *
 * A permitted in-place call has the bits of a call with separate memory. Every other overlap is
 * rejected with the names of both arguments.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "tests/ops.h"

#define F32 INVAR_DTYPE_F32
#define BF16 INVAR_DTYPE_BF16
#define I32 INVAR_DTYPE_I32

/* ---- rejected overlaps ----------------------------------------------------------------------- */

#define REGION_BYTES 8192

/* Sixteen separate regions of zeros, which are also valid indices. */
static char memory[16 * REGION_BYTES];

static void *region(int place)
{
    return memory + place * REGION_BYTES;
}

/* Asserts that `good` is rejected if `a` is moved into `b`. */
#define OVERLAP(op, good, a, b)                                                                    \
    do {                                                                                           \
        invar_##op##_args bad = good;                                                              \
        bad.a.data = (char *)bad.b.data + 4;                                                       \
        assert_invalid(invar_##op(dev, &bad), #a " and " #b " overlap in memory");                 \
    } while (0)

/* Asserts that `good` is rejected if one field has another value. */
#define REFUSED(op, good, field, value, text)                                                      \
    do {                                                                                           \
        invar_##op##_args bad = good;                                                              \
        bad.field = value;                                                                         \
        assert_invalid(invar_##op(dev, &bad), text);                                               \
    } while (0)

static const int64_t one_segment[] = {0, 4}, two_segments[] = {0, 2, 4};

static void test_overlap__linear_rejects_it(void **state)
{
    const invar_device *dev = *state;
    const invar_row_offsets unit = {one_segment, 1}, experts = {two_segments, 2};
    const invar_tensor x = invar_tensor_2d(region(0), BF16, 4, 16),
                       w = invar_tensor_2d(region(1), BF16, 8, 16);
    const invar_tensor y = invar_tensor_2d(region(2), BF16, 4, 8),
                       g = invar_tensor_2d(region(3), BF16, 4, 4);
    const invar_linear_fwd_args fwd = {.y = y,
                                       .x = x,
                                       .w = w,
                                       .bias = invar_tensor_1d(region(4), F32, 8),
                                       .k_shards = 1,
                                       .residual = invar_tensor_2d(region(6), BF16, 4, 8)};
    const invar_linear_dx_args dx = {x, {{y, w}}, 1, 1, {0}};
    const invar_linear_dw_args dw = {invar_tensor_2d(region(5), F32, 8, 16), y, x, unit, 0};
    const invar_moe_linear_fwd_args moe_fwd = {g, x, w, experts, 1, 0};
    const invar_moe_linear_dx_args moe_dx = {x, {{g, w}}, 1, experts, 1, {0}};
    const invar_moe_linear_dw_args moe_dw = {
        dw.dw, g, x, invar_tensor_1d((int32_t[]){0, 1, 0, 1}, I32, 4), experts, {two_segments, 1},
        0};

    assert_ok(invar_linear_fwd(dev, &fwd));
    OVERLAP(linear_fwd, fwd, y, x);
    OVERLAP(linear_fwd, fwd, y, w);
    OVERLAP(linear_fwd, fwd, y, bias);
    OVERLAP(linear_fwd, fwd, y, residual);
    assert_ok(invar_linear_dx(dev, &dx));
    REFUSED(linear_dx, dx, dx.data, y.data, "linear.dx: dx and parts[0].dy overlap");
    REFUSED(linear_dx, dx, dx.data, w.data, "linear.dx: dx and parts[0].w overlap");
    assert_ok(invar_linear_dw(dev, &dw));
    OVERLAP(linear_dw, dw, dw, dy);
    OVERLAP(linear_dw, dw, dw, x);
    assert_ok(invar_moe_linear_fwd(dev, &moe_fwd));
    OVERLAP(moe_linear_fwd, moe_fwd, y, x);
    OVERLAP(moe_linear_fwd, moe_fwd, y, w);
    assert_ok(invar_moe_linear_dx(dev, &moe_dx));
    REFUSED(moe_linear_dx, moe_dx, dx.data, g.data, "dx and parts[0].dy overlap");
    REFUSED(moe_linear_dx, moe_dx, dx.data, w.data, "dx and parts[0].w overlap");
    assert_ok(invar_moe_linear_dw(dev, &moe_dw));
    OVERLAP(moe_linear_dw, moe_dw, dw, dy);
    OVERLAP(moe_linear_dw, moe_dw, dw, x);
    OVERLAP(moe_linear_dw, moe_dw, dw, row_token);
}

static void test_overlap__attention_rejects_it(void **state)
{
    const invar_device *dev = *state;
    const invar_row_offsets samples = {one_segment, 1};
    const int64_t length = 4;
#define HEADS(place) invar_tensor_3d(region(place), BF16, 4, 2, 8)
    const invar_attention_fwd_args fwd = {.o = HEADS(0),
                                          .lse2 = invar_tensor_2d(region(1), F32, 4, 2),
                                          .q = HEADS(2),
                                          .k = HEADS(3),
                                          .v = HEADS(4),
                                          .samples = samples};
    const invar_attention_bwd_args bwd = {.dq = HEADS(5),
                                          .dk = HEADS(6),
                                          .dv = HEADS(7),
                                          .d_o = HEADS(8),
                                          .o = HEADS(0),
                                          .lse2 = fwd.lse2,
                                          .q = HEADS(2),
                                          .k = HEADS(3),
                                          .v = HEADS(4),
                                          .samples = samples};
    const invar_kv_pages cache = {invar_tensor_4d(region(9), BF16, 2, 4, 2, 8),
                                  invar_tensor_4d(region(10), BF16, 2, 4, 2, 8),
                                  invar_tensor_2d(region(11), I32, 1, 2)};
    const invar_attention_paged_args paged = {
        .o = HEADS(0), .q = HEADS(2), .cache = cache, .rows = samples, .lengths = &length};
    const invar_kv_write_args write = {cache, HEADS(3), HEADS(4), samples, &length};

    assert_ok(invar_attention_fwd(dev, &fwd));
    OVERLAP(attention_fwd, fwd, o, lse2);
    OVERLAP(attention_fwd, fwd, o, q);
    OVERLAP(attention_fwd, fwd, o, v);
    OVERLAP(attention_fwd, fwd, lse2, k);
    assert_ok(invar_attention_bwd(dev, &bwd));
    OVERLAP(attention_bwd, bwd, dq, dk);
    OVERLAP(attention_bwd, bwd, dk, dv);
    OVERLAP(attention_bwd, bwd, dq, q);
    OVERLAP(attention_bwd, bwd, dq, d_o);
    OVERLAP(attention_bwd, bwd, dk, k);
    OVERLAP(attention_bwd, bwd, dv, o);
    OVERLAP(attention_bwd, bwd, dv, lse2);
    assert_ok(invar_kv_write(dev, &write));
    OVERLAP(kv_write, write, cache.k, cache.v);
    OVERLAP(kv_write, write, cache.k, k);
    OVERLAP(kv_write, write, cache.v, v);
    OVERLAP(kv_write, write, cache.k, cache.pages);
    assert_ok(invar_attention_paged(dev, &paged));
    OVERLAP(attention_paged, paged, o, q);
    OVERLAP(attention_paged, paged, o, cache.k);
    OVERLAP(attention_paged, paged, o, cache.v);
    OVERLAP(attention_paged, paged, o, cache.pages);
#undef HEADS
}

static void test_overlap__moe_rejects_it(void **state)
{
    const invar_device *dev = *state;
    const invar_moe_router router = {INVAR_MOE_SOFTMAX, 1, 1, 1, 1, 0.0f, 1.0f};
    int32_t id[6] = {0, 1, 1, 2, 2, 0}, slot[6] = {0, 2, 3, 4, 5, 1};
    int64_t start[4];
    const invar_tensor ids = invar_tensor_2d(id, I32, 3, 2),
                       tokens = invar_tensor_2d(region(0), F32, 3, 8);
    const invar_tensor rows = invar_tensor_2d(region(1), F32, 6, 8),
                       slot_row = invar_tensor_2d(slot, I32, 3, 2);
    const invar_tensor weights = invar_tensor_2d(region(2), F32, 3, 2);
    const invar_tensor row_token = invar_tensor_1d(region(3), I32, 6);
    const invar_moe_route_fwd_args route = {.ids = invar_tensor_2d(region(4), I32, 3, 2),
                                            .weights = weights,
                                            .scores = invar_tensor_2d(region(5), F32, 3, 3),
                                            .logits = invar_tensor_2d(region(6), F32, 3, 3),
                                            .bias = invar_tensor_1d(region(7), F32, 3),
                                            .replay = ids,
                                            .router = router};
    const invar_moe_route_bwd_args back = {invar_tensor_2d(region(8), F32, 3, 3), weights, ids,
                                           route.scores, router};
    const invar_moe_plan_args plan = {invar_tensor_1d(region(9), I32, 6),
                                      invar_tensor_2d(region(10), I32, 3, 2), start, ids, 3};
    const invar_moe_gather_fwd_args gather = {rows, tokens, row_token};
    const invar_moe_gather_bwd_args gather_back = {tokens, rows, slot_row};
    const invar_moe_combine_fwd_args combine = {tokens, rows, weights, slot_row,
                                                invar_tensor_2d(region(11), F32, 3, 8)};
    const invar_moe_combine_bwd_args combine_back = {invar_tensor_2d(region(12), F32, 6, 8),
                                                     invar_tensor_2d(region(13), F32, 3, 2),
                                                     tokens,
                                                     rows,
                                                     weights,
                                                     slot_row};

    assert_ok(invar_moe_route_fwd(dev, &route));
    OVERLAP(moe_route_fwd, route, scores, logits);
    OVERLAP(moe_route_fwd, route, ids, replay);
    OVERLAP(moe_route_fwd, route, weights, scores);
    OVERLAP(moe_route_fwd, route, weights, bias);
    assert_ok(invar_moe_route_bwd(dev, &back));
    OVERLAP(moe_route_bwd, back, dlogits, scores);
    OVERLAP(moe_route_bwd, back, dlogits, dweights);
    assert_ok(invar_moe_plan(dev, &plan));
    OVERLAP(moe_plan, plan, slot_row, ids);
    OVERLAP(moe_plan, plan, row_token, slot_row);
    REFUSED(moe_plan, plan, expert_start, region(9), "row_token and expert_start overlap");
    assert_ok(invar_moe_gather_fwd(dev, &gather));
    OVERLAP(moe_gather_fwd, gather, out, x);
    OVERLAP(moe_gather_fwd, gather, out, row_token);
    assert_ok(invar_moe_gather_bwd(dev, &gather_back));
    OVERLAP(moe_gather_bwd, gather_back, dx, dout);
    OVERLAP(moe_gather_bwd, gather_back, dx, slot_row);
    assert_ok(invar_moe_combine_fwd(dev, &combine));
    OVERLAP(moe_combine_fwd, combine, out, y);
    OVERLAP(moe_combine_fwd, combine, out, weights);
    OVERLAP(moe_combine_fwd, combine, out, shared);
    assert_ok(invar_moe_combine_bwd(dev, &combine_back));
    OVERLAP(moe_combine_bwd, combine_back, dy, y);
    OVERLAP(moe_combine_bwd, combine_back, dy, dout);
    OVERLAP(moe_combine_bwd, combine_back, dy, dweights);
    OVERLAP(moe_combine_bwd, combine_back, dweights, weights);
}

static void test_overlap__rows_and_vectors_reject_it(void **state)
{
    const invar_device *dev = *state;
    const invar_row_offsets unit = {one_segment, 1};
    const invar_tensor a = invar_tensor_2d(region(0), F32, 4, 32),
                       b = invar_tensor_2d(region(1), F32, 4, 32);
    const invar_tensor c = invar_tensor_2d(region(2), F32, 4, 32),
                       d = invar_tensor_2d(region(3), F32, 4, 32);
    const invar_tensor x = invar_tensor_3d(region(0), F32, 4, 2, 16),
                       y = invar_tensor_3d(region(1), F32, 4, 2, 16);
    const invar_tensor dy = invar_tensor_3d(region(2), F32, 4, 2, 16),
                       w = invar_tensor_1d(region(4), F32, 16);
    const invar_tensor v = invar_tensor_1d(region(5), F32, 32),
                       ids = invar_tensor_1d(region(6), I32, 4);
    const invar_tensor cosine = invar_tensor_2d(region(7), F32, 4, 8),
                       sine = invar_tensor_2d(region(8), F32, 4, 8);
    const invar_tensor q =
        invar_tensor_quantized(region(9), region(10), INVAR_DTYPE_MXFP8, 1, 4, 32);
    const invar_tensor t = invar_tensor_1d(region(11), F32, 4),
                       u = invar_tensor_1d(region(12), F32, 4);
    const invar_tensor s = invar_tensor_1d(region(13), F32, 4);
    const invar_token_sum_args sum = {v, a, unit};
    const invar_token_fold_args fold = {v, invar_tensor_2d(region(0), F32, 1, 32), unit, 4};
    const invar_shards_fold_args shards = {invar_tensor_2d(region(1), F32, 2, 32), a,
                                           invar_tensor_2d(region(2), F32, 2, 32), 2};
    const invar_scale_args scale = {invar_tensor_2d(region(1), BF16, 4, 32), a, 2.0f};
    const invar_quantize_args quantize = {q, a};
    const invar_dequantize_args dequantize = {a, q};
    const invar_embedding_fwd_args embed = {a, b, ids};
    const invar_embedding_bwd_args embed_back = {a, b, ids, unit};
    const invar_add_args add = {a, b, c};
    const invar_rope_args rotation = {ids, cosine, sine};
    const invar_rmsnorm_fwd_args norm = {y, x, w, 1e-6f, rotation};
    const invar_rmsnorm_bwd_args norm_back = {
        y, invar_tensor_1d(region(5), F32, 16), .dy = dy, x, w, unit, 1e-6f, rotation};
    const invar_rope_table_args table = {.cosine = cosine, .sine = sine, .theta = 1e4};
    const invar_rope_fwd_args rope = {y, x, ids, cosine, sine};
    const invar_swiglu_fwd_args swiglu = {.y = a, .gate = b, .up = c};
    const invar_swiglu_bwd_args swiglu_back = {
        .dgate = a, .dup = b, .dy = c, .gate = d, .up = invar_tensor_2d(region(14), F32, 4, 32)};
    const invar_logprob_fwd_args logprob = {t, {0}, u, s, a, ids, 1.0f};
    const invar_logprob_bwd_args back = {.dlogits = b,
                                         .dlogp = t,
                                         .max = u,
                                         .logsum = s,
                                         .logits = a,
                                         .targets = ids,
                                         .temperature = 1.0f};
    const invar_logprob_sum_args part = {invar_tensor_2d(region(1), F32, 4, 4), a, ids, 1.0f};
    const invar_logprob_join_args join = {t,   {0}, u, s,   invar_tensor_2d(region(1), F32, 8, 4),
                                          ids, 32,  2, 1.0f};
    const invar_sample_args sample = {.tokens = ids, .logits = a, .top_p = 1.0f};
    const invar_adamw_args adamw = {.weight = invar_tensor_1d(region(0), BF16, 32),
                                    .master = invar_tensor_1d(region(1), F32, 32),
                                    .m = invar_tensor_1d(region(2), F32, 32),
                                    .v = invar_tensor_1d(region(3), F32, 32),
                                    .grad = v,
                                    .clip = 1.0f,
                                    .eps = 1e-8f};
    float norm_clip[2];
    invar_digest digest;
    const invar_grad_norm_args grad_norm = {norm_clip, norm_clip + 1, .grads = &v,
                                            1,         0.0f,          .digest = &digest};
    const invar_hash_tree_args hash = {&digest, &a, 1, 1, NULL};
    const invar_hash_leaves_args leaves = {&digest, a, unit, 1};
    invar_rmsnorm_bwd_args blocks = norm_back;
    invar_quantize_args scales = quantize;
    invar_logprob_bwd_args half = back;

    memset(memory, 0, sizeof memory);
    OVERLAP(token_sum, sum, out, x);
    OVERLAP(token_fold, fold, out, sums);
    OVERLAP(shards_fold, shards, y, x);
    OVERLAP(shards_fold, shards, y, residual);
    OVERLAP(scale, scale, y, x);
    OVERLAP(quantize, quantize, q, x);
    scales.q.scale = a.data;
    assert_invalid(invar_quantize(dev, &scales), "quantise: q and x overlap");
    OVERLAP(dequantize, dequantize, x, q);
    OVERLAP(embedding_fwd, embed, out, table);
    OVERLAP(embedding_bwd, embed_back, dtable, dout);
    OVERLAP(add, add, out, a);
    OVERLAP(add, add, out, b);
    OVERLAP(rmsnorm_fwd, norm, y, x);
    OVERLAP(rmsnorm_fwd, norm, y, weight);
    REFUSED(rmsnorm_fwd, norm, rotation.sine.data, y.data, "y and rotation.sine overlap");
    OVERLAP(rmsnorm_bwd, norm_back, dx, x);
    OVERLAP(rmsnorm_bwd, norm_back, dx, dy);
    OVERLAP(rmsnorm_bwd, norm_back, dx, dweight);
    OVERLAP(rmsnorm_bwd, norm_back, dweight, weight);
    blocks.dweight = (invar_tensor){0};
    blocks.block_sums = invar_tensor_2d(region(5), F32, 1, 16);
    OVERLAP(rmsnorm_bwd, blocks, dx, block_sums);
    OVERLAP(rmsnorm_bwd, blocks, block_sums, x);
    REFUSED(rmsnorm_bwd, norm_back, dx, dy, "dx and dy overlap");
    REFUSED(rmsnorm_bwd, norm_back, rotation.cosine.data, y.data, "dx and rotation.cosine overlap");
    OVERLAP(rope_table, table, cosine, sine);
    OVERLAP(rope_fwd, rope, y, x);
    OVERLAP(rope_fwd, rope, y, cosine);
    OVERLAP(swiglu_fwd, swiglu, y, gate);
    OVERLAP(swiglu_fwd, swiglu, y, up);
    OVERLAP(swiglu_bwd, swiglu_back, dgate, dup);
    OVERLAP(swiglu_bwd, swiglu_back, dup, gate);
    REFUSED(swiglu_bwd, swiglu_back, dup, a, "dgate and dup overlap");
    OVERLAP(logprob_fwd, logprob, logp, max);
    OVERLAP(logprob_fwd, logprob, logsum, logits);
    OVERLAP(logprob_bwd, back, dlogits, logits);
    OVERLAP(logprob_bwd, back, dlogits, max);
    half.dlogits = invar_tensor_2d(a.data, BF16, 4, 32); // its rows overlap other rows of logits
    assert_invalid(invar_logprob_bwd(dev, &half), "dlogits and logits overlap");
    half.dlogits = a, half.dlogits.row_stride++;
    assert_invalid(invar_logprob_bwd(dev, &half), "dlogits and logits overlap");
    OVERLAP(logprob_sum, part, sums, logits);
    OVERLAP(logprob_join, join, logp, max);
    OVERLAP(logprob_join, join, logsum, sums);
    OVERLAP(sample, sample, tokens, logits);
    OVERLAP(adamw, adamw, weight, master);
    OVERLAP(adamw, adamw, master, grad);
    OVERLAP(adamw, adamw, m, v);
    REFUSED(grad_norm, grad_norm, clip, norm_clip, "norm and clip overlap");
    REFUSED(grad_norm, grad_norm, norm, v.data, "norm and grads[0] overlap");
    REFUSED(grad_norm, grad_norm, digest, v.data, "digest and grads[0] overlap");
    REFUSED(grad_norm, grad_norm, norm, (float *)(void *)&digest, "norm and digest overlap");
    REFUSED(grad_norm, grad_norm, clip, (float *)(void *)&digest, "clip and digest overlap");
    REFUSED(hash_tree, hash, digest, a.data, "digest and x[0] overlap");
    REFUSED(hash_leaves, leaves, digest, a.data, "digest and x overlap");
}

/* ---- permitted overlaps ---------------------------------------------------------------------- */

enum { ROWS = 37, COLS = 1030 };

/* Returns a new tensor with the values of stream `seed`. */
static invar_tensor make_normal(invar_dtype dtype, uint64_t seed)
{
    invar_tensor t = invar_test_strided(invar_tensor_2d(NULL, dtype, ROWS, COLS), 3);

    invar_test_fill_normal(&t, seed, 1.0f);
    return t;
}

/* Returns a view of the tensor with the shape (ROWS, heads, COLS / heads). */
static invar_tensor as_heads(invar_tensor t, int64_t heads)
{
    invar_tensor view = invar_tensor_3d(t.data, t.dtype, ROWS, heads, COLS / heads);

    view.row_stride = t.row_stride;
    return view;
}

/* Compares `call` with a separate `out` to the call with `out` on each of the first inputs. */
#define SAME_IN_PLACE(n_inputs, call)                                                              \
    for (int place = 0; place < (n_inputs); place++) {                                             \
        invar_tensor in[3] = {make_normal(dtype, 1), make_normal(dtype, 2),                        \
                              make_normal(dtype, 3)},                                              \
                     out, apart;                                                                   \
        apart = out = make_normal(dtype, 4);                                                       \
        assert_ok(call);                                                                           \
        out = in[place];                                                                           \
        assert_ok(call);                                                                           \
        invar_assert_bits_tensor(&out, &apart, #call);                                             \
        invar_test_free(&in[0], &in[1], &in[2], &apart);                                           \
    }

static void run_in_place(const invar_device *dev, invar_dtype dtype)
{
    invar_tensor weight = invar_test_tensor(invar_tensor_1d(NULL, F32, COLS / 5));
    invar_tensor cosine = invar_test_tensor(invar_tensor_2d(NULL, F32, ROWS, COLS / 10));
    invar_tensor sine = invar_test_tensor(cosine);
    invar_tensor positions = invar_test_tensor(invar_tensor_1d(NULL, I32, ROWS));

    invar_test_fill_normal(&weight, 5, 1.0f);
    invar_test_fill_normal(&cosine, 6, 1.0f);
    invar_test_fill_normal(&sine, 7, 1.0f);
    invar_test_fill_index(&positions, 8, ROWS);
    SAME_IN_PLACE(2, invar_add(dev, &(invar_add_args){out, in[0], in[1]}))
    SAME_IN_PLACE(
        2, invar_swiglu_fwd(dev, &(invar_swiglu_fwd_args){.y = out, .gate = in[0], .up = in[1]}))
    SAME_IN_PLACE(1, invar_rmsnorm_fwd(dev, &(invar_rmsnorm_fwd_args){.y = as_heads(out, 5),
                                                                      .x = as_heads(in[0], 5),
                                                                      .weight = weight,
                                                                      .eps = 1e-6f}))
    SAME_IN_PLACE(1,
                  invar_rope_fwd(dev, &(invar_rope_fwd_args){as_heads(out, 5), as_heads(in[0], 5),
                                                             positions, cosine, sine}))
    SAME_IN_PLACE(1,
                  invar_rope_bwd(dev, &(invar_rope_bwd_args){as_heads(out, 5), as_heads(in[0], 5),
                                                             positions, cosine, sine}))
    invar_test_free(&weight, &cosine, &sine, &positions);
}

/* Compares dgate and dup on every two different inputs to a call with separate outputs. */
static void run_swiglu_back(const invar_device *dev, invar_dtype dtype)
{
    invar_tensor dgate = make_normal(dtype, 4), dup = make_normal(dtype, 5);

    for (int i = -1; i < 9; i++) {
        invar_tensor in[3] = {make_normal(dtype, 1), make_normal(dtype, 2), make_normal(dtype, 3)};

        if (i < 0) {
            assert_ok(invar_swiglu_bwd(
                dev, &(invar_swiglu_bwd_args){
                         .dgate = dgate, .dup = dup, .dy = in[0], .gate = in[1], .up = in[2]}));
        } else if (i / 3 != i % 3) {
            assert_ok(invar_swiglu_bwd(dev, &(invar_swiglu_bwd_args){.dgate = in[i / 3],
                                                                     .dup = in[i % 3],
                                                                     .dy = in[0],
                                                                     .gate = in[1],
                                                                     .up = in[2]}));
            invar_assert_bits_tensor(&in[i / 3], &dgate, "dgate in place");
            invar_assert_bits_tensor(&in[i % 3], &dup, "dup in place");
        }
        invar_test_free(&in[0], &in[1], &in[2]);
    }
    invar_test_free(&dgate, &dup);
}

static void run_logprob_back(const invar_device *dev)
{
    invar_tensor targets = invar_test_tensor(invar_tensor_1d(NULL, I32, ROWS));
    invar_tensor vectors = invar_test_tensor(invar_tensor_2d(NULL, F32, 3, ROWS));
    invar_tensor logits = make_normal(F32, 1), apart = make_normal(F32, 2);
    invar_logprob_bwd_args a = {.dlogits = apart,
                                .dlogp = invar_tensor_1d(vectors.data, F32, ROWS),
                                .max = invar_tensor_1d((float *)vectors.data + ROWS, F32, ROWS),
                                .logsum =
                                    invar_tensor_1d((float *)vectors.data + 2 * ROWS, F32, ROWS),
                                .logits = logits,
                                .targets = targets,
                                .temperature = 0.7f};

    invar_test_fill_index(&targets, 3, COLS);
    invar_test_fill_normal(&vectors, 4, 1.0f);
    assert_ok(invar_logprob_bwd(dev, &a));
    a.dlogits = logits;
    assert_ok(invar_logprob_bwd(dev, &a));
    invar_assert_bits_tensor(&logits, &apart, "logprob.bwd in place");
    invar_test_free(&targets, &vectors, &logits, &apart);
}

static void test_overlap__in_place_has_the_same_bits(void **state)
{
    const invar_device *devices = *state;

    for (int d = 0; d < INVAR_TEST_DEVICES; d++) {
        for (int i = 0; i < 2; i++) {
            run_in_place(&devices[d], invar_test_storage[i]);
            run_swiglu_back(&devices[d], invar_test_storage[i]);
        }
        run_logprob_back(&devices[d]);
    }
}

/* Disjoint columns of one buffer are no overlap. Control: an overlap of one column is rejected. */
static void test_overlap__accepts_columns_of_one_buffer(void **state)
{
    const invar_device *dev = *state;
    invar_tensor buffer = invar_test_tensor(invar_tensor_2d(NULL, F32, 5, 24));
    invar_tensor w = invar_test_tensor(invar_tensor_2d(NULL, F32, 8, 8));
    invar_tensor apart = invar_test_tensor(invar_tensor_2d(NULL, F32, 5, 8));

    invar_test_fill_normal(&w, 1, 1.0f);
    for (int64_t x = 0; x <= 16; x += 8)
        for (int64_t y = 0; y <= 16; y++) {
            invar_linear_fwd_args a = {
                .y = apart, .x = invar_tensor_columns(&buffer, x, 8), .w = w, .k_shards = 1};

            invar_test_fill_normal(&buffer, 2, 1.0f);
            assert_ok(invar_linear_fwd(dev, &a));
            a.y = invar_tensor_columns(&buffer, y, 8);
            if (y > x - 8 && y < x + 8) {
                assert_invalid(invar_linear_fwd(dev, &a), "linear.fwd: y and x overlap");
            } else {
                assert_ok(invar_linear_fwd(dev, &a));
                invar_assert_bits_tensor(&a.y, &apart, "columns");
            }
        }
    invar_test_free(&buffer, &w, &apart);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_overlap__linear_rejects_it),
        cmocka_unit_test(test_overlap__attention_rejects_it),
        cmocka_unit_test(test_overlap__moe_rejects_it),
        cmocka_unit_test(test_overlap__rows_and_vectors_reject_it),
        cmocka_unit_test(test_overlap__in_place_has_the_same_bits),
        cmocka_unit_test(test_overlap__accepts_columns_of_one_buffer),
    };
    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
