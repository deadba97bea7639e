/*
 * selfcheck.c - every op once, on fixed data, each result as a digest.
 *
 * The code reads as a layer does: forward in order, backward in reverse. Tensors, and all else that
 * ops are pointed to, live on the device's scratch until the run ends; their data are made on the
 * host and put there. Random tensors are numbered in order of making: new ones go last, or every
 * recorded value after them changes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/selfcheck.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "kernels-deterministic/math/philox.h"
#include "kernels-deterministic/row.h"

#include "base/invar_banned.h"

enum {
    TOKENS = 37,
    WIDTH = 128, /* whole fp8 blocks */
    HEADS = 4,
    KV_HEADS = 2,
    HEAD_DIM = 32,
    Q_WIDTH = HEADS * HEAD_DIM,
    KV_WIDTH = KV_HEADS * HEAD_DIM,
    INNER = 256,
    VOCABULARY = 300,
    IDS = 700, /* of a vocabulary that two ranks divide */
    POSITIONS = 64,
    EXPERTS = 4,
    SLOTS = 2,
    EXPERT_ROWS = TOKENS * SLOTS,
    PAGE = 8,
    PAGES = 16,
    SHARDS = 2,
    RANKS = 4,
    SAMPLES = 3
};

static const int64_t sample_start[SAMPLES + 1] = {0, 5, 24, 37};

typedef struct run {
    const invar_device *dev;
    invar_dtype storage;
    invar_selfcheck_emit emit;
    void *payload;
    uint32_t tensors;       /* made so far: each one's data is its own Philox stream */
    invar_segments samples; /* sample_start, where the device sees it */
    invar_digest *digest;   /* (1) on the device: of the value at hand */
} run;

/* ---- data ------------------------------------------------------------------------------------ */

/* Zeroed memory of the device. */
static invar_status make_raw(void **out, run *r, size_t bytes)
{
    INVAR_TRY(invar_arena_push(out, r->dev->scratch, bytes, "selfcheck"));
    return invar_device_zero(r->dev, *out, bytes);
}

/* The host's bytes on the device. */
static invar_status make_copy(void **out, run *r, const void *from, size_t bytes)
{
    INVAR_TRY(invar_arena_push(out, r->dev->scratch, bytes, "selfcheck"));
    return invar_device_put(r->dev, *out, from, bytes);
}

static invar_status make_segments(invar_segments *out, run *r, const int64_t *start, int64_t count)
{
    void *data;

    INVAR_TRY(make_copy(&data, r, start, (size_t)(count + 1) * sizeof *start));
    *out = (invar_segments){data, count};
    return INVAR_OK;
}

static size_t tensor_bytes(invar_dtype dtype, int64_t rows, int64_t cols)
{
    return (size_t)(rows * cols * invar_dtype_bits(dtype) / 8);
}

/* A zeroed tensor. */
static invar_status make(invar_tensor *out, run *r, invar_dtype dtype, int64_t rows, int64_t cols)
{
    void *data;

    INVAR_TRY(make_raw(&data, r, tensor_bytes(dtype, rows, cols)));
    *out = invar_tensor_2d(data, dtype, rows, cols);
    return INVAR_OK;
}

/* Indices, as a vector. */
static invar_status make_indices(invar_tensor *out, run *r, const int32_t *values, int64_t count)
{
    void *data;

    INVAR_TRY(make_copy(&data, r, values, (size_t)count * sizeof *values));
    *out = invar_tensor_1d(data, INVAR_DTYPE_I32, count);
    return INVAR_OK;
}

/* The values of a tensor in the host's memory. */
static void fill_random(const invar_tensor *out, uint32_t stream, float range)
{
    uint32_t key[2] = {0x496E7661u, stream};

    for (int64_t i = 0; i < out->shape[0]; i++)
        for (int64_t j = 0; j < out->shape[1]; j++) {
            uint32_t counter[4] = {(uint32_t)(i * out->shape[1] + j), 0, 0, 0}, word[4];
            float value;
            invar_philox4x32(word, counter, key);
            value = ((float)(word[0] >> 8) * 0x1p-23f - 1.0f) * range;
            invar_row_store(out, i, j, 1, &value);
        }
}

/* A tensor of `dtype` with values in (-range, range). */
static invar_status make_random(invar_tensor *out, run *r, invar_dtype dtype, int64_t rows,
                                int64_t cols, float range)
{
    size_t bytes = tensor_bytes(dtype, rows, cols);
    void *near, *data = NULL;
    invar_status status;

    INVAR_TRY(invar_alloc(&near, 1, bytes, "selfcheck"));
    *out = invar_tensor_2d(near, dtype, rows, cols);
    fill_random(out, r->tensors++, range);
    status = make_copy(&data, r, near, bytes);
    invar_free(near);
    out->data = data;
    return status;
}

static invar_tensor as_3d(const invar_tensor *t, int64_t n1, int64_t n2)
{
    return invar_tensor_3d(t->data, t->dtype, t->shape[0], n1, n2);
}

static invar_tensor as_1d(const invar_tensor *t)
{
    return invar_tensor_1d(t->data, t->dtype, t->shape[0] * t->shape[1]);
}

static invar_status make_quantised(invar_tensor *out, run *r, const invar_tensor *x,
                                   invar_dtype dtype, int32_t scale_rows)
{
    INVAR_TRY(make(out, r, dtype, x->shape[0], x->shape[1]));
    out->scale_rows = scale_rows;
    INVAR_TRY(make_raw(&out->scale, r, invar_tensor_scale_bytes(out)));
    return invar_quantise(r->dev, &(invar_quantise_args){.q = *out, .x = *x});
}

/* The operands of a linear layer as a format takes them. */
typedef struct operands {
    invar_tensor x;
    invar_tensor w;
    invar_tensor dy;
} operands;

/* int4 is a format of weights; its activations stay as they are. */
static invar_status quantise_operands(operands *out, run *r, const operands *plain,
                                      invar_dtype format)
{
    *out = *plain;
    INVAR_TRY(make_quantised(&out->w, r, &plain->w, format,
                             format == INVAR_DTYPE_FP8 ? INVAR_FP8_BLOCK : 1));
    if (format == INVAR_DTYPE_INT4)
        return INVAR_OK;
    INVAR_TRY(make_quantised(&out->x, r, &plain->x, format, 1));
    return make_quantised(&out->dy, r, &plain->dy, format, 1);
}

/* Products are defined for every format but int4 weights with f32 activations. */
static bool has_product(const run *r, invar_dtype format)
{
    return format != INVAR_DTYPE_INT4 || r->storage == INVAR_DTYPE_BF16;
}

static invar_status emit_tensor(run *r, invar_op op, const char *what, const invar_tensor *t)
{
    invar_digest digest;
    invar_hash_tree_args args = {.digest = r->digest, .x = t, .count = 1, .shards = 1};

    INVAR_TRY(invar_hash_tree(r->dev, &args));
    INVAR_TRY(invar_device_get(r->dev, &digest, r->digest, sizeof digest));
    return r->emit(r->payload, op, what, &digest);
}

/*
 * The same for what is computed from the result of `source`. A new revision of that op changes the
 * digest although `op` has its bits as before: so it is another value, with another name.
 */
static invar_status emit_after(run *r, invar_op source, invar_op op, const char *what,
                               const invar_tensor *t)
{
    char name[64];

    snprintf(name, sizeof name, "%s after %s %d", what, invar_op_name(source),
             invar_op_revision(source));
    return emit_tensor(r, op, name, t);
}

/* ---- the pieces of the layer ----------------------------------------------------------------- */

static invar_status linear(run *r, invar_tensor *y, const invar_tensor *x, const invar_tensor *w,
                           const invar_tensor *bias, int32_t k_shards, invar_dtype out_type)
{
    invar_linear_fwd_args args = {
        .x = *x, .w = *w, .k_shards = k_shards, .k_atom = x->shape[1] / k_shards};

    INVAR_TRY(make(y, r, out_type, x->shape[0], w->shape[0]));
    args.y = *y;
    if (bias)
        args.bias = *bias;
    return invar_linear_fwd(r->dev, &args);
}

static invar_status weight_grad(run *r, invar_tensor *dw, const invar_tensor *dy,
                                const invar_tensor *x)
{
    INVAR_TRY(make(dw, r, INVAR_DTYPE_F32, dy->shape[1], x->shape[1]));
    return invar_linear_dw(
        r->dev, &(invar_linear_dw_args){.dw = *dw, .dy = *dy, .x = *x, .units = r->samples});
}

/* dx of up to three linear layers that share an input. */
static invar_status input_grad(run *r, invar_tensor *dx, const invar_linear_part *parts, int n)
{
    invar_linear_dx_args args = {.n_parts = n, .k_shards = 1};

    INVAR_TRY(make(dx, r, r->storage, parts[0].dy.shape[0], parts[0].w.shape[1]));
    args.dx = *dx;
    memcpy(args.parts, parts, (size_t)n * sizeof *parts);
    return invar_linear_dx(r->dev, &args);
}

static invar_status norm(run *r, invar_tensor *y, const invar_tensor *x, const invar_tensor *weight,
                         int64_t heads)
{
    int64_t dim = x->shape[1] / heads;

    INVAR_TRY(make(y, r, r->storage, x->shape[0], x->shape[1]));
    return invar_rmsnorm_fwd(r->dev, &(invar_rmsnorm_fwd_args){.y = as_3d(y, heads, dim),
                                                               .x = as_3d(x, heads, dim),
                                                               .weight = as_1d(weight),
                                                               .eps = 1e-6f});
}

static invar_status norm_grad(run *r, invar_tensor *dx, invar_tensor *dweight,
                              const invar_tensor *dy, const invar_tensor *x,
                              const invar_tensor *weight, int64_t heads)
{
    int64_t dim = x->shape[1] / heads;

    INVAR_TRY(make(dx, r, r->storage, x->shape[0], x->shape[1]));
    INVAR_TRY(make(dweight, r, INVAR_DTYPE_F32, 1, dim));
    return invar_rmsnorm_bwd(r->dev, &(invar_rmsnorm_bwd_args){.dx = as_3d(dx, heads, dim),
                                                               .dweight = as_1d(dweight),
                                                               .dy = as_3d(dy, heads, dim),
                                                               .x = as_3d(x, heads, dim),
                                                               .weight = as_1d(weight),
                                                               .units = r->samples,
                                                               .eps = 1e-6f});
}

/* ---- attention ------------------------------------------------------------------------------- */

typedef struct rope {
    invar_tensor cosine;
    invar_tensor sine;
    invar_tensor positions;
} rope;

static invar_status make_rope(run *r, rope *out)
{
    invar_rope_table_args args = {.theta = 10000.0,
                                  .scaling = INVAR_ROPE_LLAMA3,
                                  .factor = 8.0,
                                  .low_freq_factor = 1.0,
                                  .high_freq_factor = 4.0,
                                  .original_context = 64.0};
    int32_t positions[TOKENS];

    INVAR_TRY(make(&args.cosine, r, INVAR_DTYPE_F32, POSITIONS, HEAD_DIM / 2));
    INVAR_TRY(make(&args.sine, r, INVAR_DTYPE_F32, POSITIONS, HEAD_DIM / 2));
    INVAR_TRY(invar_rope_table(r->dev, &args));
    out->cosine = args.cosine;
    out->sine = args.sine;
    for (int s = 0; s < SAMPLES; s++)
        for (int64_t t = sample_start[s]; t < sample_start[s + 1]; t++)
            positions[t] = (int32_t)(t - sample_start[s]);
    INVAR_TRY(make_indices(&out->positions, r, positions, TOKENS));
    INVAR_TRY(emit_tensor(r, INVAR_OP_ROPE_TABLE, "cosine", &out->cosine));
    return emit_tensor(r, INVAR_OP_ROPE_TABLE, "sine", &out->sine);
}

static invar_rope_fwd_args rope_args(const rope *table, const invar_tensor *y,
                                     const invar_tensor *x, int64_t heads)
{
    return (invar_rope_fwd_args){.y = as_3d(y, heads, HEAD_DIM),
                                 .x = as_3d(x, heads, HEAD_DIM),
                                 .positions = table->positions,
                                 .cosine = table->cosine,
                                 .sine = table->sine};
}

/* The last sample again through a paged cache, in two chunks: the same rows must come out. */
static invar_status paged_attention(run *r, const invar_tensor *q, const invar_tensor *k,
                                    const invar_tensor *v)
{
    static const int64_t chunks[2][3] = {{0, 7, 7}, {0, 6, 13}}; // its rows, then the length
    static const int32_t pages[] = {9, 3};
    int64_t first = sample_start[2];
    invar_kv_pages cache;
    invar_tensor o;
    void *bounds;

    INVAR_TRY(make(&cache.k, r, r->storage, PAGES, PAGE * KV_WIDTH));
    INVAR_TRY(make(&cache.v, r, r->storage, PAGES, PAGE * KV_WIDTH));
    cache.k = invar_tensor_4d(cache.k.data, r->storage, PAGES, PAGE, KV_HEADS, HEAD_DIM);
    cache.v = invar_tensor_4d(cache.v.data, r->storage, PAGES, PAGE, KV_HEADS, HEAD_DIM);
    INVAR_TRY(make_indices(&cache.pages, r, pages, 2));
    cache.pages = invar_tensor_2d(cache.pages.data, INVAR_DTYPE_I32, 1, 2);
    INVAR_TRY(make_copy(&bounds, r, chunks, sizeof chunks));
    INVAR_TRY(make(&o, r, r->storage, 13, Q_WIDTH));
    for (int c = 0; c < 2; c++) {
        int64_t n = chunks[c][1], row = first + chunks[c][2] - n;
        const int64_t *chunk = (const int64_t *)bounds + 3 * c;
        invar_tensor qc = invar_tensor_rows(q, row, n), kc = invar_tensor_rows(k, row, n);
        invar_tensor vc = invar_tensor_rows(v, row, n), oc = invar_tensor_rows(&o, row - first, n);
        invar_kv_write_args put = {.cache = cache,
                                   .k = as_3d(&kc, KV_HEADS, HEAD_DIM),
                                   .v = as_3d(&vc, KV_HEADS, HEAD_DIM),
                                   .rows = {chunk, 1},
                                   .lengths = chunk + 2};
        invar_attention_paged_args get = {.o = as_3d(&oc, HEADS, HEAD_DIM),
                                          .q = as_3d(&qc, HEADS, HEAD_DIM),
                                          .cache = cache,
                                          .rows = {chunk, 1},
                                          .lengths = chunk + 2};
        INVAR_TRY(invar_kv_write(r->dev, &put));
        INVAR_TRY(invar_attention_paged(r->dev, &get));
    }
    INVAR_TRY(emit_tensor(r, INVAR_OP_KV_WRITE, "k", &cache.k));
    return emit_tensor(r, INVAR_OP_ATTENTION_PAGED, "o", &o);
}

static invar_status attention_block(run *r, const invar_tensor *h)
{
    invar_tensor wq, wk, wv, wo, bias, qk_weight, q_raw, q_normed, q, k_raw, k, v, o, lse2, y;
    invar_tensor dy, d_o, dq, dk, dv, dq_normed, dq_raw, dk_raw, dqk_weight, dwo, dh;
    invar_attention_fwd_args fwd;
    invar_attention_bwd_args bwd;
    rope table;

    INVAR_TRY(make_random(&wq, r, r->storage, Q_WIDTH, WIDTH, 0.15f));
    INVAR_TRY(make_random(&wk, r, r->storage, KV_WIDTH, WIDTH, 0.15f));
    INVAR_TRY(make_random(&wv, r, r->storage, KV_WIDTH, WIDTH, 0.15f));
    INVAR_TRY(make_random(&wo, r, r->storage, WIDTH, Q_WIDTH, 0.15f));
    INVAR_TRY(make_random(&bias, r, r->storage, 1, Q_WIDTH, 0.5f));
    INVAR_TRY(make_random(&qk_weight, r, r->storage, 1, HEAD_DIM, 1.0f));
    bias = as_1d(&bias);
    INVAR_TRY(linear(r, &q_raw, h, &wq, &bias, 1, r->storage));
    INVAR_TRY(linear(r, &k_raw, h, &wk, NULL, 1, r->storage));
    INVAR_TRY(linear(r, &v, h, &wv, NULL, 1, r->storage));
    INVAR_TRY(emit_tensor(r, INVAR_OP_LINEAR_FWD, "q", &q_raw));
    INVAR_TRY(norm(r, &q_normed, &q_raw, &qk_weight, HEADS));
    INVAR_TRY(emit_tensor(r, INVAR_OP_RMSNORM_FWD, "q", &q_normed));
    INVAR_TRY(make_rope(r, &table));
    INVAR_TRY(make(&q, r, r->storage, TOKENS, Q_WIDTH));
    INVAR_TRY(make(&k, r, r->storage, TOKENS, KV_WIDTH));
    {
        invar_rope_fwd_args rq = rope_args(&table, &q, &q_normed, HEADS);
        invar_rope_fwd_args rk = rope_args(&table, &k, &k_raw, KV_HEADS);
        INVAR_TRY(invar_rope_fwd(r->dev, &rq));
        INVAR_TRY(invar_rope_fwd(r->dev, &rk));
    }
    INVAR_TRY(emit_tensor(r, INVAR_OP_ROPE_FWD, "q", &q));

    INVAR_TRY(make(&o, r, r->storage, TOKENS, Q_WIDTH));
    INVAR_TRY(make(&lse2, r, INVAR_DTYPE_F32, TOKENS, HEADS));
    fwd = (invar_attention_fwd_args){.o = as_3d(&o, HEADS, HEAD_DIM),
                                     .lse2 = lse2,
                                     .q = as_3d(&q, HEADS, HEAD_DIM),
                                     .k = as_3d(&k, KV_HEADS, HEAD_DIM),
                                     .v = as_3d(&v, KV_HEADS, HEAD_DIM),
                                     .samples = r->samples};
    INVAR_TRY(invar_attention_fwd(r->dev, &fwd));
    INVAR_TRY(emit_tensor(r, INVAR_OP_ATTENTION_FWD, "o", &o));
    INVAR_TRY(emit_tensor(r, INVAR_OP_ATTENTION_FWD, "lse2", &lse2));
    INVAR_TRY(paged_attention(r, &q, &k, &v));
    INVAR_TRY(linear(r, &y, &o, &wo, NULL, SHARDS, r->storage));
    INVAR_TRY(emit_after(r, INVAR_OP_ATTENTION_FWD, INVAR_OP_LINEAR_FWD, "y of 2 shards", &y));

    INVAR_TRY(make_random(&dy, r, r->storage, TOKENS, WIDTH, 1.0f));
    INVAR_TRY(weight_grad(r, &dwo, &dy, &o));
    INVAR_TRY(emit_after(r, INVAR_OP_ATTENTION_FWD, INVAR_OP_LINEAR_DW, "dwo", &dwo));
    INVAR_TRY(input_grad(r, &d_o, &(invar_linear_part){dy, wo}, 1));
    INVAR_TRY(make(&dq, r, r->storage, TOKENS, Q_WIDTH));
    INVAR_TRY(make(&dk, r, r->storage, TOKENS, KV_WIDTH));
    INVAR_TRY(make(&dv, r, r->storage, TOKENS, KV_WIDTH));
    bwd = (invar_attention_bwd_args){.dq = as_3d(&dq, HEADS, HEAD_DIM),
                                     .dk = as_3d(&dk, KV_HEADS, HEAD_DIM),
                                     .dv = as_3d(&dv, KV_HEADS, HEAD_DIM),
                                     .d_o = as_3d(&d_o, HEADS, HEAD_DIM),
                                     .o = fwd.o,
                                     .lse2 = lse2,
                                     .q = fwd.q,
                                     .k = fwd.k,
                                     .v = fwd.v,
                                     .samples = r->samples};
    INVAR_TRY(invar_attention_bwd(r->dev, &bwd));
    INVAR_TRY(emit_tensor(r, INVAR_OP_ATTENTION_BWD, "dq", &dq));
    INVAR_TRY(emit_tensor(r, INVAR_OP_ATTENTION_BWD, "dk", &dk));
    INVAR_TRY(emit_tensor(r, INVAR_OP_ATTENTION_BWD, "dv", &dv));
    INVAR_TRY(make(&dq_normed, r, r->storage, TOKENS, Q_WIDTH));
    INVAR_TRY(make(&dk_raw, r, r->storage, TOKENS, KV_WIDTH));
    {
        invar_rope_bwd_args rq = rope_args(&table, &dq_normed, &dq, HEADS);
        invar_rope_bwd_args rk = rope_args(&table, &dk_raw, &dk, KV_HEADS);
        INVAR_TRY(invar_rope_bwd(r->dev, &rq));
        INVAR_TRY(invar_rope_bwd(r->dev, &rk));
    }
    INVAR_TRY(emit_after(r, INVAR_OP_ATTENTION_BWD, INVAR_OP_ROPE_BWD, "dq", &dq_normed));
    INVAR_TRY(norm_grad(r, &dq_raw, &dqk_weight, &dq_normed, &q_raw, &qk_weight, HEADS));
    INVAR_TRY(emit_after(r, INVAR_OP_ATTENTION_BWD, INVAR_OP_RMSNORM_BWD, "dq", &dq_raw));
    INVAR_TRY(emit_after(r, INVAR_OP_ATTENTION_BWD, INVAR_OP_RMSNORM_BWD, "dweight", &dqk_weight));
    INVAR_TRY(input_grad(r, &dh, (invar_linear_part[]){{dq_raw, wq}, {dk_raw, wk}, {dv, wv}}, 3));
    return emit_after(r, INVAR_OP_ATTENTION_BWD, INVAR_OP_LINEAR_DX, "dx of q, k, v", &dh);
}

/*
 * What the layer above does not reach: a window, spans, heads wider than a block of 128 keys allows
 * and one sample that fills several blocks.
 */
static invar_status long_attention(run *r)
{
    enum { LENGTH = 300, WIDE = 144 };
    static const int64_t start[] = {0, LENGTH};
    invar_tensor q, k, v, o, lse2, d_o, dq, dk, dv;
    invar_segments whole;
    invar_attention_shape shape = {.window = 200, .kv_span = 128, .q_span = 128};
    invar_attention_fwd_args fwd;

    INVAR_TRY(make_random(&q, r, r->storage, LENGTH, 2 * WIDE, 1.0f));
    INVAR_TRY(make_random(&k, r, r->storage, LENGTH, WIDE, 1.0f));
    INVAR_TRY(make_random(&v, r, r->storage, LENGTH, WIDE, 1.0f));
    INVAR_TRY(make_random(&d_o, r, r->storage, LENGTH, 2 * WIDE, 1.0f));
    INVAR_TRY(make(&o, r, r->storage, LENGTH, 2 * WIDE));
    INVAR_TRY(make(&lse2, r, INVAR_DTYPE_F32, LENGTH, 2));
    INVAR_TRY(make(&dq, r, r->storage, LENGTH, 2 * WIDE));
    INVAR_TRY(make(&dk, r, r->storage, LENGTH, WIDE));
    INVAR_TRY(make(&dv, r, r->storage, LENGTH, WIDE));
    INVAR_TRY(make_segments(&whole, r, start, 1));
    fwd = (invar_attention_fwd_args){.o = as_3d(&o, 2, WIDE),
                                     .lse2 = lse2,
                                     .q = as_3d(&q, 2, WIDE),
                                     .k = as_3d(&k, 1, WIDE),
                                     .v = as_3d(&v, 1, WIDE),
                                     .samples = whole,
                                     .shape = shape};
    INVAR_TRY(invar_attention_fwd(r->dev, &fwd));
    INVAR_TRY(invar_attention_bwd(r->dev, &(invar_attention_bwd_args){.dq = as_3d(&dq, 2, WIDE),
                                                                      .dk = as_3d(&dk, 1, WIDE),
                                                                      .dv = as_3d(&dv, 1, WIDE),
                                                                      .d_o = as_3d(&d_o, 2, WIDE),
                                                                      .o = fwd.o,
                                                                      .lse2 = lse2,
                                                                      .q = fwd.q,
                                                                      .k = fwd.k,
                                                                      .v = fwd.v,
                                                                      .samples = fwd.samples,
                                                                      .shape = shape}));
    INVAR_TRY(emit_tensor(r, INVAR_OP_ATTENTION_FWD, "o long", &o));
    INVAR_TRY(emit_tensor(r, INVAR_OP_ATTENTION_BWD, "dq long", &dq));
    INVAR_TRY(emit_tensor(r, INVAR_OP_ATTENTION_BWD, "dk long", &dk));
    return emit_tensor(r, INVAR_OP_ATTENTION_BWD, "dv long", &dv);
}

/* ---- experts --------------------------------------------------------------------------------- */

/* The experts' products in one low-precision format. */
static invar_status low_precision_experts(run *r, const operands *plain, invar_segments experts,
                                          invar_dtype format)
{
    operands q;
    invar_tensor y, dx;
    char what[32];

    if (!has_product(r, format))
        return INVAR_OK;
    INVAR_TRY(quantise_operands(&q, r, plain, format));
    INVAR_TRY(make(&y, r, r->storage, EXPERT_ROWS, WIDTH));
    INVAR_TRY(make(&dx, r, r->storage, EXPERT_ROWS, WIDTH));
    INVAR_TRY(invar_moe_linear_fwd(
        r->dev, &(invar_moe_linear_fwd_args){
                    .y = y, .x = q.x, .w = q.w, .experts = experts, .k_shards = 1}));
    INVAR_TRY(invar_moe_linear_dx(
        r->dev,
        &(invar_moe_linear_dx_args){
            .dx = dx, .parts = {{q.dy, q.w}}, .n_parts = 1, .experts = experts, .k_shards = 1}));
    snprintf(what, sizeof what, "y %s", invar_dtype_name(format));
    INVAR_TRY(emit_tensor(r, INVAR_OP_MOE_LINEAR_FWD, what, &y));
    snprintf(what, sizeof what, "dx %s", invar_dtype_name(format));
    return emit_tensor(r, INVAR_OP_MOE_LINEAR_DX, what, &dx);
}

static invar_status expert_block(run *r, const invar_tensor *h)
{
    void *expert_start;
    invar_tensor wr, logits, ids, weights, scores, row_token, slot_row, x, w, y, out;
    invar_tensor dout, dy, dweights, dx, dw, dh, dlogits;
    invar_moe_router router = {.scoring = INVAR_MOE_SOFTMAX,
                               .groups = 1,
                               .groups_kept = 1,
                               .group_score_top = 1,
                               .normalise = 1,
                               .scale = 1.0f};

    INVAR_TRY(make_random(&wr, r, r->storage, EXPERTS, WIDTH, 0.3f));
    INVAR_TRY(linear(r, &logits, h, &wr, NULL, 1, INVAR_DTYPE_F32));
    INVAR_TRY(make(&ids, r, INVAR_DTYPE_I32, TOKENS, SLOTS));
    INVAR_TRY(make(&weights, r, INVAR_DTYPE_F32, TOKENS, SLOTS));
    INVAR_TRY(make(&scores, r, INVAR_DTYPE_F32, TOKENS, EXPERTS));
    INVAR_TRY(invar_moe_route_fwd(
        r->dev,
        &(invar_moe_route_fwd_args){
            .ids = ids, .weights = weights, .scores = scores, .logits = logits, .router = router}));
    INVAR_TRY(emit_tensor(r, INVAR_OP_MOE_ROUTE_FWD, "ids", &ids));
    INVAR_TRY(emit_tensor(r, INVAR_OP_MOE_ROUTE_FWD, "weights", &weights));
    INVAR_TRY(make(&row_token, r, INVAR_DTYPE_I32, 1, EXPERT_ROWS));
    row_token = as_1d(&row_token);
    INVAR_TRY(make(&slot_row, r, INVAR_DTYPE_I32, TOKENS, SLOTS));
    INVAR_TRY(make_raw(&expert_start, r, (EXPERTS + 1) * sizeof(int64_t)));
    INVAR_TRY(invar_moe_plan(r->dev, &(invar_moe_plan_args){.row_token = row_token,
                                                            .slot_row = slot_row,
                                                            .expert_start = expert_start,
                                                            .ids = ids,
                                                            .experts = EXPERTS}));
    INVAR_TRY(emit_tensor(r, INVAR_OP_MOE_PLAN, "slot_row", &slot_row));
    INVAR_TRY(make(&x, r, r->storage, EXPERT_ROWS, WIDTH));
    INVAR_TRY(invar_moe_gather_fwd(
        r->dev, &(invar_moe_gather_fwd_args){.out = x, .x = *h, .row_token = row_token}));
    INVAR_TRY(emit_tensor(r, INVAR_OP_MOE_GATHER_FWD, "out", &x));

    INVAR_TRY(make_random(&w, r, r->storage, EXPERTS * WIDTH, WIDTH, 0.15f));
    INVAR_TRY(make(&y, r, r->storage, EXPERT_ROWS, WIDTH));
    INVAR_TRY(invar_moe_linear_fwd(
        r->dev, &(invar_moe_linear_fwd_args){
                    .y = y, .x = x, .w = w, .experts = {expert_start, EXPERTS}, .k_shards = 1}));
    INVAR_TRY(emit_tensor(r, INVAR_OP_MOE_LINEAR_FWD, "y", &y));
    INVAR_TRY(make(&out, r, r->storage, TOKENS, WIDTH));
    INVAR_TRY(invar_moe_combine_fwd(
        r->dev, &(invar_moe_combine_fwd_args){
                    .out = out, .y = y, .weights = weights, .slot_row = slot_row, .shared = *h}));
    INVAR_TRY(emit_tensor(r, INVAR_OP_MOE_COMBINE_FWD, "out", &out));

    INVAR_TRY(make_random(&dout, r, r->storage, TOKENS, WIDTH, 1.0f));
    INVAR_TRY(make(&dy, r, r->storage, EXPERT_ROWS, WIDTH));
    INVAR_TRY(make(&dweights, r, INVAR_DTYPE_F32, TOKENS, SLOTS));
    INVAR_TRY(invar_moe_combine_bwd(r->dev, &(invar_moe_combine_bwd_args){.dy = dy,
                                                                          .dweights = dweights,
                                                                          .dout = dout,
                                                                          .y = y,
                                                                          .weights = weights,
                                                                          .slot_row = slot_row}));
    INVAR_TRY(emit_tensor(r, INVAR_OP_MOE_COMBINE_BWD, "dy", &dy));
    INVAR_TRY(emit_tensor(r, INVAR_OP_MOE_COMBINE_BWD, "dweights", &dweights));
    INVAR_TRY(make(&dx, r, r->storage, EXPERT_ROWS, WIDTH));
    INVAR_TRY(
        invar_moe_linear_dx(r->dev, &(invar_moe_linear_dx_args){.dx = dx,
                                                                .parts = {{dy, w}},
                                                                .n_parts = 1,
                                                                .experts = {expert_start, EXPERTS},
                                                                .k_shards = 1}));
    INVAR_TRY(emit_tensor(r, INVAR_OP_MOE_LINEAR_DX, "dx", &dx));
    INVAR_TRY(make(&dw, r, INVAR_DTYPE_F32, EXPERTS * WIDTH, WIDTH));
    INVAR_TRY(
        invar_moe_linear_dw(r->dev, &(invar_moe_linear_dw_args){.dw = dw,
                                                                .dy = dy,
                                                                .x = x,
                                                                .row_token = row_token,
                                                                .experts = {expert_start, EXPERTS},
                                                                .units = r->samples}));
    INVAR_TRY(emit_tensor(r, INVAR_OP_MOE_LINEAR_DW, "dw", &dw));
    for (invar_dtype format = INVAR_DTYPE_FP8; format <= INVAR_DTYPE_INT4; format++)
        INVAR_TRY(low_precision_experts(r, &(operands){x, w, dy},
                                        (invar_segments){expert_start, EXPERTS}, format));
    INVAR_TRY(make(&dh, r, r->storage, TOKENS, WIDTH));
    INVAR_TRY(invar_moe_gather_bwd(
        r->dev, &(invar_moe_gather_bwd_args){.dx = dh, .dout = dx, .slot_row = slot_row}));
    INVAR_TRY(emit_tensor(r, INVAR_OP_MOE_GATHER_BWD, "dx", &dh));
    INVAR_TRY(make(&dlogits, r, r->storage, TOKENS, EXPERTS));
    INVAR_TRY(invar_moe_route_bwd(r->dev, &(invar_moe_route_bwd_args){.dlogits = dlogits,
                                                                      .dweights = dweights,
                                                                      .ids = ids,
                                                                      .scores = scores,
                                                                      .router = router}));
    return emit_tensor(r, INVAR_OP_MOE_ROUTE_BWD, "dlogits", &dlogits);
}

/* ---- dense block, in every format of the weights --------------------------------------------- */

static invar_status low_precision(run *r, const operands *plain, invar_dtype format)
{
    operands q;
    invar_tensor y, dx, back;
    char what[32];

    INVAR_TRY(quantise_operands(&q, r, plain, format));
    INVAR_TRY(emit_tensor(r, INVAR_OP_QUANTISE, invar_dtype_name(format), &q.w));
    INVAR_TRY(make(&back, r, r->storage, q.w.shape[0], q.w.shape[1]));
    INVAR_TRY(invar_dequantise(r->dev, &(invar_dequantise_args){.x = back, .q = q.w}));
    INVAR_TRY(emit_tensor(r, INVAR_OP_DEQUANTISE, invar_dtype_name(format), &back));
    if (!has_product(r, format))
        return INVAR_OK;
    INVAR_TRY(linear(r, &y, &q.x, &q.w, NULL, 1, r->storage));
    snprintf(what, sizeof what, "y %s", invar_dtype_name(format));
    INVAR_TRY(emit_tensor(r, INVAR_OP_LINEAR_FWD, what, &y));
    INVAR_TRY(input_grad(r, &dx, &(invar_linear_part){q.dy, q.w}, 1));
    snprintf(what, sizeof what, "dx %s", invar_dtype_name(format));
    return emit_tensor(r, INVAR_OP_LINEAR_DX, what, &dx);
}

static invar_status dense_block(run *r, const invar_tensor *h)
{
    invar_tensor wg, wu, wd, gate, up, act, y, out, dy, dact, dgate, dup, dx, dbias;

    INVAR_TRY(make_random(&wg, r, r->storage, INNER, WIDTH, 0.15f));
    INVAR_TRY(make_random(&wu, r, r->storage, INNER, WIDTH, 0.15f));
    INVAR_TRY(make_random(&wd, r, r->storage, WIDTH, INNER, 0.15f));
    INVAR_TRY(linear(r, &gate, h, &wg, NULL, 1, r->storage));
    INVAR_TRY(linear(r, &up, h, &wu, NULL, 1, r->storage));
    INVAR_TRY(make(&act, r, r->storage, TOKENS, INNER));
    INVAR_TRY(invar_swiglu_fwd(r->dev, &(invar_swiglu_fwd_args){.y = act, .gate = gate, .up = up}));
    INVAR_TRY(emit_tensor(r, INVAR_OP_SWIGLU_FWD, "y", &act));
    INVAR_TRY(linear(r, &y, &act, &wd, NULL, 4, r->storage));
    INVAR_TRY(emit_tensor(r, INVAR_OP_LINEAR_FWD, "y of 4 shards", &y));
    INVAR_TRY(make(&out, r, r->storage, TOKENS, WIDTH));
    INVAR_TRY(invar_add(r->dev, &(invar_add_args){.out = out, .a = *h, .b = y}));
    INVAR_TRY(emit_tensor(r, INVAR_OP_ADD, "out", &out));

    INVAR_TRY(make_random(&dy, r, r->storage, TOKENS, WIDTH, 1.0f));
    INVAR_TRY(input_grad(r, &dact, &(invar_linear_part){dy, wd}, 1));
    INVAR_TRY(make(&dgate, r, r->storage, TOKENS, INNER));
    INVAR_TRY(make(&dup, r, r->storage, TOKENS, INNER));
    INVAR_TRY(invar_swiglu_bwd(
        r->dev,
        &(invar_swiglu_bwd_args){.dgate = dgate, .dup = dup, .dy = dact, .gate = gate, .up = up}));
    INVAR_TRY(emit_tensor(r, INVAR_OP_SWIGLU_BWD, "dgate", &dgate));
    INVAR_TRY(emit_tensor(r, INVAR_OP_SWIGLU_BWD, "dup", &dup));
    INVAR_TRY(input_grad(r, &dx, (invar_linear_part[]){{dgate, wg}, {dup, wu}}, 2));
    INVAR_TRY(emit_tensor(r, INVAR_OP_LINEAR_DX, "dx of gate, up", &dx));
    INVAR_TRY(make(&dbias, r, INVAR_DTYPE_F32, 1, INNER));
    INVAR_TRY(invar_token_sum(
        r->dev, &(invar_token_sum_args){.out = as_1d(&dbias), .x = dgate, .units = r->samples}));
    INVAR_TRY(emit_tensor(r, INVAR_OP_TOKEN_SUM, "out", &dbias));
    for (invar_dtype format = INVAR_DTYPE_FP8; format <= INVAR_DTYPE_INT4; format++)
        INVAR_TRY(low_precision(r, &(operands){*h, wg, dgate}, format));
    return INVAR_OK;
}

/* ---- head, loss, optimizer ------------------------------------------------------------------- */

static invar_status optimizer(run *r, const invar_tensor *grad)
{
    int64_t n = grad->shape[0] * grad->shape[1];
    invar_tensor own = invar_tensor_2d(grad->data, INVAR_DTYPE_F32, 1, n), other, sum;
    invar_tensor master, m, v, weight;
    float norm_and_clip[2];
    invar_tensor numbers;
    void *data;

    INVAR_TRY(make_random(&other, r, INVAR_DTYPE_F32, 1, n, 0.01f)); // as of a tied head
    INVAR_TRY(make(&sum, r, INVAR_DTYPE_F32, 1, n));
    INVAR_TRY(invar_add(r->dev, &(invar_add_args){.out = sum, .a = other, .b = own}));
    sum = as_1d(&sum);
    INVAR_TRY(emit_after(r, INVAR_OP_EMBEDDING_BWD, INVAR_OP_ADD, "gradient", &sum));
    INVAR_TRY(invar_grad_norm(r->dev, &(invar_grad_norm_args){.norm = &norm_and_clip[0],
                                                              .clip = &norm_and_clip[1],
                                                              .grads = &sum,
                                                              .count = 1,
                                                              .max_norm = 0.5f}));
    INVAR_TRY(make_copy(&data, r, norm_and_clip, sizeof norm_and_clip)); // the host's, of that op
    numbers = invar_tensor_1d(data, INVAR_DTYPE_F32, 2);
    INVAR_TRY(emit_after(r, INVAR_OP_EMBEDDING_BWD, INVAR_OP_GRAD_NORM, "norm, clip", &numbers));
    INVAR_TRY(make_random(&master, r, INVAR_DTYPE_F32, 1, n, 0.15f));
    INVAR_TRY(make(&m, r, INVAR_DTYPE_F32, 1, n));
    INVAR_TRY(make(&v, r, INVAR_DTYPE_F32, 1, n));
    INVAR_TRY(make(&weight, r, r->storage, 1, n));
    for (int step = 1; step <= 3; step++) {
        static const float beta1_power[] = {0.9f, 0.81f, 0.729f};
        static const float beta2_power[] = {0.95f, 0.9025f, 0.857375f};
        INVAR_TRY(invar_adamw(r->dev, &(invar_adamw_args){.weight = as_1d(&weight),
                                                          .master = as_1d(&master),
                                                          .m = as_1d(&m),
                                                          .v = as_1d(&v),
                                                          .grad = sum,
                                                          .clip = norm_and_clip[1],
                                                          .lr = 1e-3f,
                                                          .beta1 = 0.9f,
                                                          .beta2 = 0.95f,
                                                          .eps = 1e-8f,
                                                          .weight_decay = 0.1f,
                                                          .beta1_power = beta1_power[step - 1],
                                                          .beta2_power = beta2_power[step - 1]}));
    }
    INVAR_TRY(emit_after(r, INVAR_OP_EMBEDDING_BWD, INVAR_OP_ADAMW, "master", &master));
    return emit_after(r, INVAR_OP_EMBEDDING_BWD, INVAR_OP_ADAMW, "weight", &weight);
}

static invar_status sample_tokens(run *r, const invar_tensor *logits)
{
    invar_sample_coords near[TOKENS];
    invar_tensor tokens;
    void *coords;

    for (uint32_t t = 0; t < TOKENS; t++)
        near[t] = (invar_sample_coords){t, 7, 3};
    INVAR_TRY(make_copy(&coords, r, near, sizeof near));
    INVAR_TRY(make(&tokens, r, INVAR_DTYPE_I32, 1, TOKENS));
    INVAR_TRY(invar_sample(r->dev, &(invar_sample_args){.tokens = as_1d(&tokens),
                                                        .logits = *logits,
                                                        .coords = coords,
                                                        .seed = 42,
                                                        .purpose = 1,
                                                        .temperature = 0.8f,
                                                        .top_k = 50,
                                                        .top_p = 0.95f,
                                                        .min_p = 0.01f}));
    return emit_tensor(r, INVAR_OP_SAMPLE, "tokens", &tokens);
}

static invar_status head(run *r, const invar_tensor *h, const invar_tensor *table,
                         const invar_tensor *targets)
{
    invar_tensor logits, logp, entropy, max, logsum, dlogp, dentropy, dlogits, dx, dw;

    INVAR_TRY(linear(r, &logits, h, table, NULL, 1, INVAR_DTYPE_F32));
    INVAR_TRY(make(&logp, r, INVAR_DTYPE_F32, 1, TOKENS));
    INVAR_TRY(make(&entropy, r, INVAR_DTYPE_F32, 1, TOKENS));
    INVAR_TRY(make(&max, r, INVAR_DTYPE_F32, 1, TOKENS));
    INVAR_TRY(make(&logsum, r, INVAR_DTYPE_F32, 1, TOKENS));
    INVAR_TRY(invar_logprob_fwd(r->dev, &(invar_logprob_fwd_args){.logp = as_1d(&logp),
                                                                  .entropy = as_1d(&entropy),
                                                                  .max = as_1d(&max),
                                                                  .logsum = as_1d(&logsum),
                                                                  .logits = logits,
                                                                  .targets = *targets,
                                                                  .temperature = 0.8f}));
    INVAR_TRY(emit_tensor(r, INVAR_OP_LOGPROB_FWD, "logp", &logp));
    INVAR_TRY(emit_tensor(r, INVAR_OP_LOGPROB_FWD, "entropy", &entropy));
    INVAR_TRY(sample_tokens(r, &logits));

    INVAR_TRY(make_random(&dlogp, r, INVAR_DTYPE_F32, 1, TOKENS, 1.0f));
    INVAR_TRY(make_random(&dentropy, r, INVAR_DTYPE_F32, 1, TOKENS, 0.01f));
    INVAR_TRY(make(&dlogits, r, r->storage, TOKENS, VOCABULARY));
    INVAR_TRY(invar_logprob_bwd(r->dev, &(invar_logprob_bwd_args){.dlogits = dlogits,
                                                                  .dlogp = as_1d(&dlogp),
                                                                  .dentropy = as_1d(&dentropy),
                                                                  .entropy = as_1d(&entropy),
                                                                  .max = as_1d(&max),
                                                                  .logsum = as_1d(&logsum),
                                                                  .logits = logits,
                                                                  .targets = *targets,
                                                                  .temperature = 0.8f}));
    INVAR_TRY(emit_tensor(r, INVAR_OP_LOGPROB_BWD, "dlogits", &dlogits));
    INVAR_TRY(input_grad(r, &dx, &(invar_linear_part){dlogits, *table}, 1));
    INVAR_TRY(weight_grad(r, &dw, &dlogits, h));
    INVAR_TRY(emit_tensor(r, INVAR_OP_LINEAR_DW, "dtable", &dw));
    INVAR_TRY(make(&dw, r, INVAR_DTYPE_F32, VOCABULARY, WIDTH));
    INVAR_TRY(invar_embedding_bwd(
        r->dev, &(invar_embedding_bwd_args){
                    .dtable = dw, .dout = dx, .ids = *targets, .units = r->samples}));
    INVAR_TRY(emit_tensor(r, INVAR_OP_EMBEDDING_BWD, "dtable", &dw));
    return optimizer(r, &dw);
}

/* Three samples, one of them without rows. */
static invar_status emit_leaves(run *r, const char *what, const invar_tensor *x)
{
    static const int64_t start[] = {0, 100, 100, VOCABULARY};
    const invar_segments here = {start, 3};
    int64_t leaves = invar_hash_leaf_count(x, &here);
    invar_segments samples;
    invar_tensor words;
    void *digest;

    INVAR_TRY(make_segments(&samples, r, start, here.count));
    INVAR_TRY(make_raw(&digest, r, (size_t)leaves * sizeof(invar_digest)));
    INVAR_TRY(invar_hash_leaves(
        r->dev, &(invar_hash_leaves_args){
                    .digest = digest, .x = *x, .samples = samples, .leaves = leaves}));
    words = invar_tensor_1d(digest, INVAR_DTYPE_I32,
                            leaves * (int64_t)(sizeof(invar_digest) / sizeof(int32_t)));
    return emit_tensor(r, INVAR_OP_HASH_LEAVES, what, &words);
}

static invar_status leaves(run *r, const invar_tensor *table)
{
    invar_tensor quantised;

    INVAR_TRY(make_quantised(&quantised, r, table, INVAR_DTYPE_FP8, 1));
    INVAR_TRY(emit_leaves(r, "digest", table));
    return emit_leaves(r, "digest of fp8", &quantised);
}

/* ---- sums that ranks have parts of ----------------------------------------------------------- */

static invar_status products_of_ranks(run *r)
{
    invar_tensor x, residual, y;

    INVAR_TRY(make_random(&x, r, INVAR_DTYPE_F32, RANKS * TOKENS, WIDTH, 1.0f));
    INVAR_TRY(make_random(&residual, r, r->storage, TOKENS, WIDTH, 1.0f));
    INVAR_TRY(make(&y, r, r->storage, TOKENS, WIDTH));
    INVAR_TRY(
        invar_shards_fold(r->dev, &(invar_shards_fold_args){.y = y, .x = x, .shards = RANKS}));
    INVAR_TRY(emit_tensor(r, INVAR_OP_SHARDS_FOLD, "y", &y));
    INVAR_TRY(invar_shards_fold(
        r->dev, &(invar_shards_fold_args){.y = y, .x = x, .residual = residual, .shards = RANKS}));
    return emit_tensor(r, INVAR_OP_SHARDS_FOLD, "y with a residual", &y);
}

static invar_status norm_of_ranks(run *r)
{
    invar_tensor x, dy, weight, dx, sums, dweight;

    INVAR_TRY(make_random(&x, r, r->storage, TOKENS, Q_WIDTH, 1.0f));
    INVAR_TRY(make_random(&dy, r, r->storage, TOKENS, Q_WIDTH, 1.0f));
    INVAR_TRY(make_random(&weight, r, r->storage, 1, HEAD_DIM, 1.0f));
    INVAR_TRY(make(&dx, r, r->storage, TOKENS, Q_WIDTH));
    INVAR_TRY(
        make(&sums, r, INVAR_DTYPE_F32, invar_token_blocks_of(&r->samples, TOKENS), HEAD_DIM));
    INVAR_TRY(make(&dweight, r, INVAR_DTYPE_F32, 1, HEAD_DIM));
    INVAR_TRY(invar_rmsnorm_bwd(r->dev, &(invar_rmsnorm_bwd_args){.dx = as_3d(&dx, HEADS, HEAD_DIM),
                                                                  .block_sums = sums,
                                                                  .dy = as_3d(&dy, HEADS, HEAD_DIM),
                                                                  .x = as_3d(&x, HEADS, HEAD_DIM),
                                                                  .weight = as_1d(&weight),
                                                                  .units = r->samples,
                                                                  .eps = 1e-6f,
                                                                  .head_shards = SHARDS,
                                                                  .head_atom = 1}));
    INVAR_TRY(emit_tensor(r, INVAR_OP_RMSNORM_BWD, "block sums", &sums));
    INVAR_TRY(invar_token_fold(
        r->dev, &(invar_token_fold_args){
                    .out = as_1d(&dweight), .sums = sums, .units = r->samples, .tokens = TOKENS}));
    return emit_after(r, INVAR_OP_RMSNORM_BWD, INVAR_OP_TOKEN_FOLD, "dweight", &dweight);
}

/* Part p of two, the first of which has a chunk more. */
static invar_status sum_part(run *r, const invar_tensor *sums, const invar_tensor *logits,
                             const int32_t *ids, int p)
{
    static const int32_t start[] = {0, 2 * INVAR_LOGPROB_CHUNK, IDS};
    int32_t own[TOKENS], count = start[p + 1] - start[p];
    invar_tensor targets;

    for (int t = 0; t < TOKENS; t++)
        own[t] = ids[t] >= start[p] && ids[t] < start[p + 1] ? ids[t] - start[p] : count;
    INVAR_TRY(make_indices(&targets, r, own, TOKENS));
    return invar_logprob_sum(
        r->dev, &(invar_logprob_sum_args){.sums = invar_tensor_rows(sums, p * TOKENS, TOKENS),
                                          .logits = invar_tensor_columns(logits, start[p], count),
                                          .targets = targets,
                                          .temperature = 0.8f});
}

static invar_status logprobs_of_ranks(run *r)
{
    int32_t ids[TOKENS];
    invar_tensor logits, sums, targets, logp, entropy, max, logsum;

    for (int32_t t = 0; t < TOKENS; t++)
        ids[t] = t * 97 % IDS;
    INVAR_TRY(make_random(&logits, r, INVAR_DTYPE_F32, TOKENS, IDS, 4.0f));
    INVAR_TRY(make(&sums, r, INVAR_DTYPE_F32, 2 * TOKENS, invar_logprob_sums_of(IDS, 2)));
    for (int p = 0; p < 2; p++)
        INVAR_TRY(sum_part(r, &sums, &logits, ids, p));
    INVAR_TRY(emit_tensor(r, INVAR_OP_LOGPROB_SUM, "sums", &sums));
    INVAR_TRY(make_indices(&targets, r, ids, TOKENS));
    INVAR_TRY(make(&logp, r, INVAR_DTYPE_F32, 1, TOKENS));
    INVAR_TRY(make(&entropy, r, INVAR_DTYPE_F32, 1, TOKENS));
    INVAR_TRY(make(&max, r, INVAR_DTYPE_F32, 1, TOKENS));
    INVAR_TRY(make(&logsum, r, INVAR_DTYPE_F32, 1, TOKENS));
    INVAR_TRY(invar_logprob_join(r->dev, &(invar_logprob_join_args){.logp = as_1d(&logp),
                                                                    .entropy = as_1d(&entropy),
                                                                    .max = as_1d(&max),
                                                                    .logsum = as_1d(&logsum),
                                                                    .sums = sums,
                                                                    .targets = targets,
                                                                    .vocabulary = IDS,
                                                                    .parts = 2,
                                                                    .temperature = 0.8f}));
    INVAR_TRY(emit_after(r, INVAR_OP_LOGPROB_SUM, INVAR_OP_LOGPROB_JOIN, "logp", &logp));
    return emit_after(r, INVAR_OP_LOGPROB_SUM, INVAR_OP_LOGPROB_JOIN, "entropy", &entropy);
}

static invar_status run_all(run *r)
{
    int32_t tokens[TOKENS];
    invar_tensor ids, table, x, weight, h;
    void *digest;

    INVAR_TRY(make_raw(&digest, r, sizeof *r->digest));
    r->digest = digest;
    INVAR_TRY(make_segments(&r->samples, r, sample_start, SAMPLES));
    for (int t = 0; t < TOKENS; t++)
        tokens[t] = t * 11 % 29 + t * 7 % 271; // some tokens repeat
    INVAR_TRY(make_indices(&ids, r, tokens, TOKENS));
    INVAR_TRY(make_random(&table, r, r->storage, VOCABULARY, WIDTH, 1.0f));
    INVAR_TRY(make_random(&weight, r, r->storage, 1, WIDTH, 1.0f));
    INVAR_TRY(make(&x, r, r->storage, TOKENS, WIDTH));
    INVAR_TRY(invar_embedding_fwd(
        r->dev, &(invar_embedding_fwd_args){.out = x, .table = table, .ids = ids}));
    INVAR_TRY(emit_tensor(r, INVAR_OP_EMBEDDING_FWD, "out", &x));
    INVAR_TRY(norm(r, &h, &x, &weight, 1));
    INVAR_TRY(emit_tensor(r, INVAR_OP_RMSNORM_FWD, "y", &h));
    INVAR_TRY(attention_block(r, &h));
    INVAR_TRY(expert_block(r, &h));
    INVAR_TRY(dense_block(r, &h));
    INVAR_TRY(head(r, &h, &table, &ids));
    INVAR_TRY(long_attention(r));
    INVAR_TRY(leaves(r, &table));
    INVAR_TRY(products_of_ranks(r));
    INVAR_TRY(norm_of_ranks(r));
    return logprobs_of_ranks(r);
}

size_t invar_selfcheck_scratch(int threads)
{
    // tensors of the layer, then the largest op: chains keep a few MiB per thread
    return ((size_t)24 << 20) + ((size_t)8 << 20) * (size_t)threads;
}

invar_status invar_selfcheck_run(const invar_device *dev, invar_dtype storage,
                                 invar_selfcheck_emit emit, void *payload)
{
    run r = {.dev = dev, .storage = storage, .emit = emit, .payload = payload};
    size_t mark = invar_arena_mark(dev->scratch);
    invar_status status = run_all(&r);

    INVAR_CHECK(invar_arena_rewind(dev->scratch, mark) == INVAR_OK);
    return status;
}
