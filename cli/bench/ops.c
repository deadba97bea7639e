/*
 * ops.c - the cases of invar bench: every op at the shapes of a small model.
 *
 * One function per op, named after it, so that an op without a benchmark does not compile. Tensors
 * live until the op is done. bf16 is the storage of a run; f32 is there where a peer needs it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "cli/bench/bench.h"
#include "kernels-deterministic/row.h"

#include "base/invar_banned.h"

enum {
    TOKENS = 1024,
    WIDTH = 1024,
    WIDE = 2048,
    HEADS = 8,
    KV_HEADS = 2,
    HEAD_DIM = 64,
    Q_WIDTH = HEADS * HEAD_DIM,
    KV_WIDTH = KV_HEADS * HEAD_DIM,
    EXPERTS = 16,
    SLOTS = 4,
    EXPERT_ROWS = TOKENS * SLOTS,
    INNER = 512, /* of an expert */
    VOCABULARY = 151936,
    LOGIT_ROWS = 64,
    SEQUENCES = 8,
    PAGE = 16,
    SEQUENCE_PAGES = TOKENS / PAGE,
    PARAMETERS = TOKENS * WIDE
};

static const int64_t whole_start[] = {0, TOKENS};
static const invar_segments whole = {whole_start, 1}; /* one sample, one unit */

/* ---- data ------------------------------------------------------------------------------------ */

/* Values in (-range, range), from a small generator: no zeros, no repeating rows. */
static void fill(const invar_tensor *t, float range)
{
    enum { BLOCK = 512 };
    int64_t cols = invar_tensor_row_elements(t);
    uint32_t state = 0x9E3779B9u + (uint32_t)cols;
    float values[BLOCK];

    for (int64_t i = 0; i < t->shape[0]; i++)
        for (int64_t j = 0; j < cols; j += BLOCK) {
            int64_t count = cols - j < BLOCK ? cols - j : BLOCK;
            for (int64_t k = 0; k < count; k++) {
                state = state * 1664525u + 1013904223u;
                values[k] = ((float)(state >> 8) * 0x1p-23f - 1.0f) * range;
            }
            invar_row_store(t, i, j, count, values);
        }
}

static invar_tensor make_zero(invar_bench *b, invar_dtype dtype, int64_t rows, int64_t cols)
{
    size_t bytes = (size_t)(rows * cols * invar_dtype_bits(dtype) / 8);
    invar_tensor t = invar_tensor_2d(invar_bench_take(b, bytes), dtype, rows, cols);

    memset(t.data, 0, bytes);
    return t;
}

static invar_tensor make(invar_bench *b, invar_dtype dtype, int64_t rows, int64_t cols)
{
    invar_tensor t = make_zero(b, dtype, rows, cols);

    fill(&t, 1.0f);
    return t;
}

static invar_tensor as_1d(const invar_tensor *t)
{
    return invar_tensor_1d(t->data, t->dtype, t->shape[0] * t->shape[1]);
}

static invar_tensor make_vector(invar_bench *b, invar_dtype dtype, int64_t n)
{
    invar_tensor t = make(b, dtype, 1, n);

    return as_1d(&t);
}

static invar_tensor make_heads(invar_bench *b, int64_t tokens, int64_t heads, int64_t dim)
{
    invar_tensor t = make(b, INVAR_DTYPE_BF16, tokens, heads * dim);

    return invar_tensor_3d(t.data, t.dtype, tokens, heads, dim);
}

/* Ids below `limit`, scattered; the last eighth repeats the first. */
static invar_tensor make_ids(invar_bench *b, int64_t n, int64_t limit)
{
    invar_tensor t = make_zero(b, INVAR_DTYPE_I32, 1, n);

    for (int64_t i = 0; i < n; i++)
        ((int32_t *)t.data)[i] = (int32_t)(i % (n - n / 8) * 7919 % limit);
    return as_1d(&t);
}

static invar_tensor make_counting(invar_bench *b, int64_t n)
{
    invar_tensor t = make_zero(b, INVAR_DTYPE_I32, 1, n);

    for (int64_t i = 0; i < n; i++)
        ((int32_t *)t.data)[i] = (int32_t)i;
    return as_1d(&t);
}

/* Room for a quantised tensor. */
static invar_tensor make_format(invar_bench *b, invar_dtype format, int64_t rows, int64_t cols,
                                int32_t scale_rows)
{
    invar_tensor q = make_zero(b, format, rows, cols);

    q.scale_rows = scale_rows;
    q.scale = invar_bench_take(b, invar_tensor_scale_bytes(&q));
    return q;
}

static invar_status make_quantised(invar_tensor *out, invar_bench *b, invar_dtype format,
                                   int64_t rows, int64_t cols, int32_t scale_rows)
{
    *out = make_format(b, format, rows, cols, scale_rows);
    return invar_bench_prepare(
        b, INVAR_OP_QUANTISE,
        &(invar_quantise_args){.q = *out, .x = make(b, INVAR_DTYPE_BF16, rows, cols)});
}

static int32_t weight_scale_rows(invar_dtype format)
{
    return format == INVAR_DTYPE_FP8 ? INVAR_FP8_BLOCK : 1;
}

static double tensor_bytes(const invar_tensor *t)
{
    int64_t bits = t->shape[0] * invar_tensor_row_elements(t) * invar_dtype_bits(t->dtype);

    return (double)(bits / 8) + (double)invar_tensor_scale_bytes(t);
}

/* An op that mostly moves data. */
static invar_bench_case moves(const void *args, invar_dtype type, double bytes)
{
    return (invar_bench_case){.args = args,
                              .type = type,
                              .unit = INVAR_BENCH_UNIT_BYTE,
                              .work = bytes,
                              .peer = INVAR_BENCH_PEER_COPY};
}

/* An op whose work is per token, and which nothing else here does. */
static invar_bench_case decides(const void *args, invar_dtype type, int64_t tokens)
{
    return (invar_bench_case){
        .args = args, .type = type, .unit = INVAR_BENCH_UNIT_TOKEN, .work = (double)tokens};
}

static invar_bench_case multiplies(const void *args, invar_dtype type, double macs)
{
    return (invar_bench_case){
        .args = args, .type = type, .unit = INVAR_BENCH_UNIT_MAC, .work = macs};
}

static invar_status run_shape(invar_bench *b, invar_bench_case c, int64_t n0, int64_t n1,
                              int64_t n2)
{
    c.shape[0] = n0;
    c.shape[1] = n1;
    c.shape[2] = n2;
    return invar_bench_run(b, &c);
}

/* ---- linear layers --------------------------------------------------------------------------- */

/* `products` are what sgemm does instead; f32 only. */
static invar_status run_products(invar_bench *b, const void *args, invar_dtype type,
                                 const int64_t shape[3], int64_t experts,
                                 const invar_bench_product *products)
{
    invar_bench_case c =
        multiplies(args, type, (double)shape[0] * (double)shape[1] * (double)shape[2]);

    memcpy(c.shape, shape, 3 * sizeof *shape);
    if (experts > 1)
        c.shape[3] = experts;
    if (type == INVAR_DTYPE_F32) {
        c.peer = INVAR_BENCH_PEER_SGEMM;
        c.products = products;
        c.n_products = experts;
    }
    return invar_bench_run(b, &c);
}

static invar_status linear_fwd_case(invar_bench *b, invar_dtype type, int64_t m, int64_t n,
                                    int64_t k)
{
    bool quantised = type != INVAR_DTYPE_F32 && type != INVAR_DTYPE_BF16;
    invar_dtype storage = quantised ? INVAR_DTYPE_BF16 : type;
    invar_linear_fwd_args args = {.y = make(b, storage, m, n), .k_shards = 1};
    invar_bench_product product = {.transpose_b = true};

    if (!quantised || type == INVAR_DTYPE_INT4)
        args.x = make(b, storage, m, k);
    else
        INVAR_TRY(make_quantised(&args.x, b, type, m, k, 1));
    if (!quantised)
        args.w = make(b, type, n, k);
    else
        INVAR_TRY(make_quantised(&args.w, b, type, n, k, weight_scale_rows(type)));
    product.c = args.y;
    product.a = args.x;
    product.b = args.w;
    return run_products(b, &args, type, (const int64_t[]){m, n, k}, 1, &product);
}

static invar_status bench_linear_fwd(invar_bench *b)
{
    INVAR_TRY(linear_fwd_case(b, INVAR_DTYPE_F32, 1, 4096, 4096));
    INVAR_TRY(linear_fwd_case(b, INVAR_DTYPE_F32, 1024, 1024, 1024));
    INVAR_TRY(linear_fwd_case(b, INVAR_DTYPE_F32, 512, 4096, 1024));
    INVAR_TRY(linear_fwd_case(b, INVAR_DTYPE_F32, 2048, 2048, 2048));
    INVAR_TRY(linear_fwd_case(b, INVAR_DTYPE_BF16, 1, 4096, 4096));
    INVAR_TRY(linear_fwd_case(b, INVAR_DTYPE_BF16, 1024, 1024, 1024));
    INVAR_TRY(linear_fwd_case(b, INVAR_DTYPE_FP8, 512, 1024, 1024));
    INVAR_TRY(linear_fwd_case(b, INVAR_DTYPE_MXFP8, 512, 1024, 1024));
    return linear_fwd_case(b, INVAR_DTYPE_INT4, 512, 1024, 1024);
}

static const invar_dtype storage_types[] = {INVAR_DTYPE_F32, INVAR_DTYPE_BF16};
static const int64_t gradient_shape[] = {512, WIDTH, WIDTH};

static invar_status bench_linear_dx(invar_bench *b)
{
    for (int i = 0; i < 2; i++) {
        invar_dtype type = storage_types[i];
        int64_t m = gradient_shape[0], n = gradient_shape[1], k = gradient_shape[2];
        invar_linear_part part = {make(b, type, m, n), make(b, type, n, k)};
        invar_linear_dx_args args = {
            .dx = make(b, type, m, k), .parts = {part}, .n_parts = 1, .k_shards = 1};
        invar_bench_product product = {.c = args.dx, .a = part.dy, .b = part.w};
        INVAR_TRY(run_products(b, &args, type, gradient_shape, 1, &product));
    }
    return INVAR_OK;
}

static invar_status bench_linear_dw(invar_bench *b)
{
    const int64_t unit[] = {0, gradient_shape[0]};

    for (int i = 0; i < 2; i++) {
        invar_dtype type = storage_types[i];
        int64_t m = gradient_shape[0], n = gradient_shape[1], k = gradient_shape[2];
        invar_linear_dw_args args = {.dw = make_zero(b, INVAR_DTYPE_F32, n, k),
                                     .dy = make(b, type, m, n),
                                     .x = make(b, type, m, k),
                                     .units = {unit, 1}};
        invar_bench_product product = {
            .c = args.dw, .a = args.dy, .b = args.x, .transpose_a = true, .accumulate = true};
        INVAR_TRY(run_products(b, &args, type, gradient_shape, 1, &product));
    }
    return INVAR_OK;
}

static invar_status bench_token_sum(invar_bench *b)
{
    invar_token_sum_args args = {.out = make_vector(b, INVAR_DTYPE_F32, WIDE),
                                 .x = make(b, INVAR_DTYPE_BF16, TOKENS, WIDE),
                                 .units = whole};

    return run_shape(
        b, moves(&args, INVAR_DTYPE_BF16, tensor_bytes(&args.x) + 2 * tensor_bytes(&args.out)),
        TOKENS, WIDE, 0);
}

static invar_status bench_token_fold(invar_bench *b)
{
    invar_token_fold_args args = {
        .out = make_vector(b, INVAR_DTYPE_F32, WIDE),
        .sums = make(b, INVAR_DTYPE_F32, invar_token_blocks_of(&whole, TOKENS), WIDE),
        .units = whole,
        .tokens = TOKENS};

    return run_shape(
        b, moves(&args, INVAR_DTYPE_F32, tensor_bytes(&args.sums) + 2 * tensor_bytes(&args.out)),
        TOKENS, WIDE, 0);
}

#define RANKS 4

static invar_status bench_shards_fold(invar_bench *b)
{
    invar_shards_fold_args args = {.y = make(b, INVAR_DTYPE_BF16, TOKENS, WIDE),
                                   .x = make(b, INVAR_DTYPE_F32, RANKS * TOKENS, WIDE),
                                   .residual = make(b, INVAR_DTYPE_BF16, TOKENS, WIDE),
                                   .shards = RANKS};

    return run_shape(
        b, moves(&args, INVAR_DTYPE_BF16, tensor_bytes(&args.x) + 2 * tensor_bytes(&args.y)),
        TOKENS, WIDE, 0);
}

/* ---- low precision --------------------------------------------------------------------------- */

static const invar_dtype formats[] = {INVAR_DTYPE_FP8, INVAR_DTYPE_MXFP8, INVAR_DTYPE_INT4};
enum { FORMATS = sizeof formats / sizeof *formats };

static invar_status bench_quantise(invar_bench *b)
{
    for (int i = 0; i < FORMATS; i++) {
        invar_quantise_args args = {
            .q = make_format(b, formats[i], TOKENS, WIDE, weight_scale_rows(formats[i])),
            .x = make(b, INVAR_DTYPE_BF16, TOKENS, WIDE)};
        double bytes = tensor_bytes(&args.q) + tensor_bytes(&args.x);
        INVAR_TRY(run_shape(b, moves(&args, formats[i], bytes), TOKENS, WIDE, 0));
    }
    return INVAR_OK;
}

static invar_status bench_dequantise(invar_bench *b)
{
    for (int i = 0; i < FORMATS; i++) {
        invar_dequantise_args args = {.x = make(b, INVAR_DTYPE_BF16, TOKENS, WIDE)};
        double bytes;
        INVAR_TRY(
            make_quantised(&args.q, b, formats[i], TOKENS, WIDE, weight_scale_rows(formats[i])));
        bytes = tensor_bytes(&args.q) + tensor_bytes(&args.x);
        INVAR_TRY(run_shape(b, moves(&args, formats[i], bytes), TOKENS, WIDE, 0));
    }
    return INVAR_OK;
}

/* ---- embedding, residual, norm, rotary embedding, activation --------------------------------- */

static invar_status bench_embedding_fwd(invar_bench *b)
{
    invar_embedding_fwd_args args = {.out = make(b, INVAR_DTYPE_BF16, TOKENS, WIDTH),
                                     .table = make(b, INVAR_DTYPE_BF16, VOCABULARY, WIDTH),
                                     .ids = make_ids(b, TOKENS, VOCABULARY)};

    return run_shape(b, moves(&args, INVAR_DTYPE_BF16, 2 * tensor_bytes(&args.out)), TOKENS,
                     VOCABULARY, WIDTH);
}

static invar_status bench_embedding_bwd(invar_bench *b)
{
    invar_embedding_bwd_args args = {.dtable = make_zero(b, INVAR_DTYPE_F32, VOCABULARY, WIDTH),
                                     .dout = make(b, INVAR_DTYPE_BF16, TOKENS, WIDTH),
                                     .ids = make_ids(b, TOKENS, VOCABULARY),
                                     .units = whole};

    // each row of dout meets a row of f32 that is read and written: 1 + 2 * 2 times its bytes
    return run_shape(b, moves(&args, INVAR_DTYPE_BF16, 5 * tensor_bytes(&args.dout)), TOKENS,
                     VOCABULARY, WIDTH);
}

static invar_status bench_add(invar_bench *b)
{
    invar_add_args args = {.out = make(b, INVAR_DTYPE_BF16, TOKENS, WIDE),
                           .a = make(b, INVAR_DTYPE_BF16, TOKENS, WIDE),
                           .b = make(b, INVAR_DTYPE_BF16, TOKENS, WIDE)};

    return run_shape(b, moves(&args, INVAR_DTYPE_BF16, 3 * tensor_bytes(&args.out)), TOKENS, WIDE,
                     0);
}

static invar_status bench_rmsnorm_fwd(invar_bench *b)
{
    invar_rmsnorm_fwd_args args = {.y = make_heads(b, TOKENS, 1, WIDE),
                                   .x = make_heads(b, TOKENS, 1, WIDE),
                                   .weight = make_vector(b, INVAR_DTYPE_BF16, WIDE),
                                   .eps = 1e-6f};

    return run_shape(b, moves(&args, INVAR_DTYPE_BF16, 2 * tensor_bytes(&args.x)), TOKENS, WIDE, 0);
}

static invar_status bench_rmsnorm_bwd(invar_bench *b)
{
    invar_rmsnorm_bwd_args args = {.dx = make_heads(b, TOKENS, 1, WIDE),
                                   .dweight = make_vector(b, INVAR_DTYPE_F32, WIDE),
                                   .dy = make_heads(b, TOKENS, 1, WIDE),
                                   .x = make_heads(b, TOKENS, 1, WIDE),
                                   .weight = make_vector(b, INVAR_DTYPE_BF16, WIDE),
                                   .units = whole,
                                   .eps = 1e-6f};

    return run_shape(b, moves(&args, INVAR_DTYPE_BF16, 3 * tensor_bytes(&args.x)), TOKENS, WIDE, 0);
}

static invar_rope_table_args rope_tables(invar_bench *b)
{
    return (invar_rope_table_args){.cosine = make(b, INVAR_DTYPE_F32, TOKENS, HEAD_DIM / 2),
                                   .sine = make(b, INVAR_DTYPE_F32, TOKENS, HEAD_DIM / 2),
                                   .theta = 1e6};
}

static invar_status bench_rope_table(invar_bench *b)
{
    invar_rope_table_args args = rope_tables(b);

    return run_shape(b, decides(&args, INVAR_DTYPE_F32, TOKENS), TOKENS, HEAD_DIM / 2, 0);
}

/* Forward and backward take the same arguments. */
static invar_status rope(invar_bench *b)
{
    invar_rope_table_args table = rope_tables(b);
    invar_rope_fwd_args args = {.y = make_heads(b, TOKENS, HEADS, HEAD_DIM),
                                .x = make_heads(b, TOKENS, HEADS, HEAD_DIM),
                                .positions = make_counting(b, TOKENS),
                                .cosine = table.cosine,
                                .sine = table.sine};

    INVAR_TRY(invar_bench_prepare(b, INVAR_OP_ROPE_TABLE, &table));
    return run_shape(
        b,
        moves(&args, INVAR_DTYPE_BF16, 2 * tensor_bytes(&args.x) + 2 * tensor_bytes(&args.cosine)),
        TOKENS, HEADS, HEAD_DIM);
}

static invar_status bench_rope_fwd(invar_bench *b)
{
    return rope(b);
}

static invar_status bench_rope_bwd(invar_bench *b)
{
    return rope(b);
}

static invar_status bench_swiglu_fwd(invar_bench *b)
{
    invar_swiglu_fwd_args args = {.y = make(b, INVAR_DTYPE_BF16, TOKENS, WIDE),
                                  .gate = make(b, INVAR_DTYPE_BF16, TOKENS, WIDE),
                                  .up = make(b, INVAR_DTYPE_BF16, TOKENS, WIDE)};

    return run_shape(b, moves(&args, INVAR_DTYPE_BF16, 3 * tensor_bytes(&args.y)), TOKENS, WIDE, 0);
}

static invar_status bench_swiglu_bwd(invar_bench *b)
{
    invar_swiglu_bwd_args args = {.dgate = make(b, INVAR_DTYPE_BF16, TOKENS, WIDE),
                                  .dup = make(b, INVAR_DTYPE_BF16, TOKENS, WIDE),
                                  .dy = make(b, INVAR_DTYPE_BF16, TOKENS, WIDE),
                                  .gate = make(b, INVAR_DTYPE_BF16, TOKENS, WIDE),
                                  .up = make(b, INVAR_DTYPE_BF16, TOKENS, WIDE)};

    return run_shape(b, moves(&args, INVAR_DTYPE_BF16, 5 * tensor_bytes(&args.dy)), TOKENS, WIDE,
                     0);
}

/* ---- attention ------------------------------------------------------------------------------- */

/* `sequences` 0: packed, not in a cache. */
static invar_status run_attention(invar_bench *b, const void *args, double macs, int64_t sequences)
{
    static const int64_t shape[] = {TOKENS, HEADS, KV_HEADS, HEAD_DIM};
    invar_bench_case c = multiplies(args, INVAR_DTYPE_BF16, macs);

    c.shape[0] = sequences;
    memcpy(c.shape + (sequences > 0), shape, sizeof shape);
    return invar_bench_run(b, &c);
}

static invar_attention_fwd_args attention(invar_bench *b)
{
    return (invar_attention_fwd_args){.o = make_heads(b, TOKENS, HEADS, HEAD_DIM),
                                      .lse2 = make(b, INVAR_DTYPE_F32, TOKENS, HEADS),
                                      .q = make_heads(b, TOKENS, HEADS, HEAD_DIM),
                                      .k = make_heads(b, TOKENS, KV_HEADS, HEAD_DIM),
                                      .v = make_heads(b, TOKENS, KV_HEADS, HEAD_DIM),
                                      .samples = whole};
}

/* Causal: half of two products of tokens^2 * dim per head. */
static const double attention_macs = (double)TOKENS * TOKENS * HEAD_DIM * HEADS;

static invar_status bench_attention_fwd(invar_bench *b)
{
    invar_attention_fwd_args args = attention(b);

    return run_attention(b, &args, attention_macs, 0);
}

static invar_status bench_attention_bwd(invar_bench *b)
{
    invar_attention_fwd_args fwd = attention(b);
    invar_attention_bwd_args args = {.dq = make_heads(b, TOKENS, HEADS, HEAD_DIM),
                                     .dk = make_heads(b, TOKENS, KV_HEADS, HEAD_DIM),
                                     .dv = make_heads(b, TOKENS, KV_HEADS, HEAD_DIM),
                                     .d_o = make_heads(b, TOKENS, HEADS, HEAD_DIM),
                                     .o = fwd.o,
                                     .lse2 = fwd.lse2,
                                     .q = fwd.q,
                                     .k = fwd.k,
                                     .v = fwd.v,
                                     .samples = whole};

    INVAR_TRY(invar_bench_prepare(b, INVAR_OP_ATTENTION_FWD, &fwd));
    return run_attention(b, &args, 2.5 * attention_macs, 0); // five products instead of two
}

/* Sequences of TOKENS positions each, their pages interleaved as growing together leaves them. */
static invar_kv_pages make_cache(invar_bench *b)
{
    enum { PAGES = SEQUENCES * SEQUENCE_PAGES };
    invar_tensor k = make(b, INVAR_DTYPE_BF16, PAGES, PAGE * KV_WIDTH);
    invar_tensor v = make(b, INVAR_DTYPE_BF16, PAGES, PAGE * KV_WIDTH);
    invar_kv_pages cache = {invar_tensor_4d(k.data, k.dtype, PAGES, PAGE, KV_HEADS, HEAD_DIM),
                            invar_tensor_4d(v.data, v.dtype, PAGES, PAGE, KV_HEADS, HEAD_DIM),
                            make_zero(b, INVAR_DTYPE_I32, SEQUENCES, SEQUENCE_PAGES)};

    for (int32_t s = 0; s < SEQUENCES; s++)
        for (int32_t p = 0; p < SEQUENCE_PAGES; p++)
            ((int32_t *)cache.pages.data)[s * SEQUENCE_PAGES + p] = p * SEQUENCES + s;
    return cache;
}

static const int64_t full_lengths[SEQUENCES] = {TOKENS, TOKENS, TOKENS, TOKENS,
                                                TOKENS, TOKENS, TOKENS, TOKENS};

/* Decode: one new row for each sequence. */
static invar_status bench_attention_paged(invar_bench *b)
{
    static const int64_t rows[SEQUENCES + 1] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    invar_attention_paged_args args = {.o = make_heads(b, SEQUENCES, HEADS, HEAD_DIM),
                                       .q = make_heads(b, SEQUENCES, HEADS, HEAD_DIM),
                                       .cache = make_cache(b),
                                       .rows = {rows, SEQUENCES},
                                       .lengths = full_lengths};

    return run_attention(b, &args, 2.0 * SEQUENCES * TOKENS * HEAD_DIM * HEADS, SEQUENCES);
}

/* Prefill: all sequences together have TOKENS new rows. */
static invar_status bench_kv_write(invar_bench *b)
{
    int64_t rows[SEQUENCES + 1];
    invar_kv_write_args args = {.cache = make_cache(b),
                                .k = make_heads(b, TOKENS, KV_HEADS, HEAD_DIM),
                                .v = make_heads(b, TOKENS, KV_HEADS, HEAD_DIM),
                                .rows = {rows, SEQUENCES},
                                .lengths = full_lengths};

    for (int64_t s = 0; s <= SEQUENCES; s++)
        rows[s] = s * (TOKENS / SEQUENCES);
    return run_shape(b, moves(&args, INVAR_DTYPE_BF16, 4 * tensor_bytes(&args.k)), TOKENS, KV_HEADS,
                     HEAD_DIM);
}

/* ---- mixture of experts ---------------------------------------------------------------------- */

static const invar_moe_router router = {.scoring = INVAR_MOE_SOFTMAX,
                                        .groups = 1,
                                        .groups_kept = 1,
                                        .group_score_top = 1,
                                        .normalise = 1,
                                        .scale = 1.0f};

static invar_moe_route_fwd_args route(invar_bench *b)
{
    return (invar_moe_route_fwd_args){.ids = make_zero(b, INVAR_DTYPE_I32, TOKENS, SLOTS),
                                      .weights = make(b, INVAR_DTYPE_F32, TOKENS, SLOTS),
                                      .scores = make(b, INVAR_DTYPE_F32, TOKENS, EXPERTS),
                                      .logits = make(b, INVAR_DTYPE_F32, TOKENS, EXPERTS),
                                      .router = router};
}

/* The choice for every token, and the rows sorted by it. */
typedef struct dispatch {
    invar_moe_route_fwd_args route;
    invar_moe_plan_args plan;
    int64_t start[EXPERTS + 1];
} dispatch;

static invar_status make_dispatch(dispatch *out, invar_bench *b)
{
    invar_tensor row_token = make_zero(b, INVAR_DTYPE_I32, 1, EXPERT_ROWS);

    out->route = route(b);
    INVAR_TRY(invar_bench_prepare(b, INVAR_OP_MOE_ROUTE_FWD, &out->route));
    out->plan = (invar_moe_plan_args){.row_token = as_1d(&row_token),
                                      .slot_row = make_zero(b, INVAR_DTYPE_I32, TOKENS, SLOTS),
                                      .expert_start = out->start,
                                      .ids = out->route.ids,
                                      .experts = EXPERTS};
    return invar_bench_prepare(b, INVAR_OP_MOE_PLAN, &out->plan);
}

static invar_status bench_moe_route_fwd(invar_bench *b)
{
    invar_moe_route_fwd_args args = route(b);

    return run_shape(b, decides(&args, INVAR_DTYPE_F32, TOKENS), TOKENS, EXPERTS, SLOTS);
}

static invar_status bench_moe_route_bwd(invar_bench *b)
{
    invar_moe_route_fwd_args fwd = route(b);
    invar_moe_route_bwd_args args = {.dlogits = make(b, INVAR_DTYPE_BF16, TOKENS, EXPERTS),
                                     .dweights = make(b, INVAR_DTYPE_F32, TOKENS, SLOTS),
                                     .ids = fwd.ids,
                                     .scores = fwd.scores,
                                     .router = router};

    INVAR_TRY(invar_bench_prepare(b, INVAR_OP_MOE_ROUTE_FWD, &fwd));
    return run_shape(b, decides(&args, INVAR_DTYPE_BF16, TOKENS), TOKENS, EXPERTS, SLOTS);
}

static invar_status bench_moe_plan(invar_bench *b)
{
    dispatch d;

    INVAR_TRY(make_dispatch(&d, b));
    return run_shape(b, decides(&d.plan, INVAR_DTYPE_I32, TOKENS), TOKENS, EXPERTS, SLOTS);
}

static invar_status bench_moe_gather_fwd(invar_bench *b)
{
    invar_moe_gather_fwd_args args = {.out = make(b, INVAR_DTYPE_BF16, EXPERT_ROWS, WIDTH),
                                      .x = make(b, INVAR_DTYPE_BF16, TOKENS, WIDTH)};
    dispatch d;

    INVAR_TRY(make_dispatch(&d, b));
    args.row_token = d.plan.row_token;
    return run_shape(b, moves(&args, INVAR_DTYPE_BF16, 2 * tensor_bytes(&args.out)), TOKENS, SLOTS,
                     WIDTH);
}

static invar_status bench_moe_gather_bwd(invar_bench *b)
{
    invar_moe_gather_bwd_args args = {.dx = make(b, INVAR_DTYPE_BF16, TOKENS, WIDTH),
                                      .dout = make(b, INVAR_DTYPE_BF16, EXPERT_ROWS, WIDTH)};
    dispatch d;

    INVAR_TRY(make_dispatch(&d, b));
    args.slot_row = d.plan.slot_row;
    return run_shape(
        b, moves(&args, INVAR_DTYPE_BF16, tensor_bytes(&args.dx) + tensor_bytes(&args.dout)),
        TOKENS, SLOTS, WIDTH);
}

static const int64_t expert_shape[] = {EXPERT_ROWS, INNER, WIDTH};

/* The rows of one expert, where each has `rows` of its own (weights) or those that it was sent. */
static invar_tensor own_rows(const invar_tensor *t, int64_t expert, int64_t rows)
{
    return invar_tensor_rows(t, expert * rows, rows);
}

static invar_tensor sent_rows(const invar_tensor *t, const dispatch *d, int64_t expert)
{
    return invar_tensor_rows(t, d->start[expert], d->start[expert + 1] - d->start[expert]);
}

static invar_status bench_moe_linear_fwd(invar_bench *b)
{
    dispatch d;

    INVAR_TRY(make_dispatch(&d, b));
    for (int i = 0; i < 2; i++) {
        invar_dtype type = storage_types[i];
        invar_moe_linear_fwd_args args = {.y = make(b, type, EXPERT_ROWS, INNER),
                                          .x = make(b, type, EXPERT_ROWS, WIDTH),
                                          .w = make(b, type, EXPERTS * INNER, WIDTH),
                                          .experts = {d.start, EXPERTS},
                                          .k_shards = 1};
        invar_bench_product products[EXPERTS];
        for (int64_t e = 0; e < EXPERTS; e++)
            products[e] = (invar_bench_product){.c = sent_rows(&args.y, &d, e),
                                                .a = sent_rows(&args.x, &d, e),
                                                .b = own_rows(&args.w, e, INNER),
                                                .transpose_b = true};
        INVAR_TRY(run_products(b, &args, type, expert_shape, EXPERTS, products));
    }
    return INVAR_OK;
}

static invar_status bench_moe_linear_dx(invar_bench *b)
{
    dispatch d;

    INVAR_TRY(make_dispatch(&d, b));
    for (int i = 0; i < 2; i++) {
        invar_dtype type = storage_types[i];
        invar_linear_part part = {make(b, type, EXPERT_ROWS, INNER),
                                  make(b, type, EXPERTS * INNER, WIDTH)};
        invar_moe_linear_dx_args args = {.dx = make(b, type, EXPERT_ROWS, WIDTH),
                                         .parts = {part},
                                         .n_parts = 1,
                                         .experts = {d.start, EXPERTS},
                                         .k_shards = 1};
        invar_bench_product products[EXPERTS];
        for (int64_t e = 0; e < EXPERTS; e++)
            products[e] = (invar_bench_product){.c = sent_rows(&args.dx, &d, e),
                                                .a = sent_rows(&part.dy, &d, e),
                                                .b = own_rows(&part.w, e, INNER)};
        INVAR_TRY(run_products(b, &args, type, expert_shape, EXPERTS, products));
    }
    return INVAR_OK;
}

static invar_status bench_moe_linear_dw(invar_bench *b)
{
    dispatch d;

    INVAR_TRY(make_dispatch(&d, b));
    for (int i = 0; i < 2; i++) {
        invar_dtype type = storage_types[i];
        invar_moe_linear_dw_args args = {.dw =
                                             make_zero(b, INVAR_DTYPE_F32, EXPERTS * INNER, WIDTH),
                                         .dy = make(b, type, EXPERT_ROWS, INNER),
                                         .x = make(b, type, EXPERT_ROWS, WIDTH),
                                         .row_token = d.plan.row_token,
                                         .experts = {d.start, EXPERTS},
                                         .units = whole};
        invar_bench_product products[EXPERTS];
        for (int64_t e = 0; e < EXPERTS; e++)
            products[e] = (invar_bench_product){.c = own_rows(&args.dw, e, INNER),
                                                .a = sent_rows(&args.dy, &d, e),
                                                .b = sent_rows(&args.x, &d, e),
                                                .transpose_a = true,
                                                .accumulate = true};
        INVAR_TRY(run_products(b, &args, type, expert_shape, EXPERTS, products));
    }
    return INVAR_OK;
}

static invar_status bench_moe_combine_fwd(invar_bench *b)
{
    invar_moe_combine_fwd_args args = {.out = make(b, INVAR_DTYPE_BF16, TOKENS, WIDTH),
                                       .y = make(b, INVAR_DTYPE_BF16, EXPERT_ROWS, WIDTH),
                                       .shared = make(b, INVAR_DTYPE_BF16, TOKENS, WIDTH)};
    dispatch d;

    INVAR_TRY(make_dispatch(&d, b));
    args.weights = d.route.weights;
    args.slot_row = d.plan.slot_row;
    return run_shape(
        b, moves(&args, INVAR_DTYPE_BF16, 2 * tensor_bytes(&args.out) + tensor_bytes(&args.y)),
        TOKENS, SLOTS, WIDTH);
}

static invar_status bench_moe_combine_bwd(invar_bench *b)
{
    invar_moe_combine_bwd_args args = {.dy = make(b, INVAR_DTYPE_BF16, EXPERT_ROWS, WIDTH),
                                       .dweights = make(b, INVAR_DTYPE_F32, TOKENS, SLOTS),
                                       .dout = make(b, INVAR_DTYPE_BF16, TOKENS, WIDTH),
                                       .y = make(b, INVAR_DTYPE_BF16, EXPERT_ROWS, WIDTH)};
    dispatch d;

    INVAR_TRY(make_dispatch(&d, b));
    args.weights = d.route.weights;
    args.slot_row = d.plan.slot_row;
    return run_shape(
        b, moves(&args, INVAR_DTYPE_BF16, 2 * tensor_bytes(&args.dy) + tensor_bytes(&args.dout)),
        TOKENS, SLOTS, WIDTH);
}

/* ---- log-probabilities and sampling ---------------------------------------------------------- */

static invar_tensor make_logits(invar_bench *b)
{
    invar_tensor logits = make_zero(b, INVAR_DTYPE_F32, LOGIT_ROWS, VOCABULARY);

    fill(&logits, 10.0f);
    return logits;
}

static invar_logprob_fwd_args logprob(invar_bench *b)
{
    return (invar_logprob_fwd_args){.logp = make_vector(b, INVAR_DTYPE_F32, LOGIT_ROWS),
                                    .entropy = make_vector(b, INVAR_DTYPE_F32, LOGIT_ROWS),
                                    .max = make_vector(b, INVAR_DTYPE_F32, LOGIT_ROWS),
                                    .logsum = make_vector(b, INVAR_DTYPE_F32, LOGIT_ROWS),
                                    .logits = make_logits(b),
                                    .targets = make_ids(b, LOGIT_ROWS, VOCABULARY),
                                    .temperature = 1.0f};
}

static invar_status bench_logprob_fwd(invar_bench *b)
{
    invar_logprob_fwd_args args = logprob(b);

    return run_shape(b, moves(&args, INVAR_DTYPE_F32, tensor_bytes(&args.logits)), LOGIT_ROWS,
                     VOCABULARY, 0);
}

static invar_status bench_logprob_bwd(invar_bench *b)
{
    invar_logprob_fwd_args fwd = logprob(b);
    invar_logprob_bwd_args args = {.dlogits = make(b, INVAR_DTYPE_BF16, LOGIT_ROWS, VOCABULARY),
                                   .dlogp = make_vector(b, INVAR_DTYPE_F32, LOGIT_ROWS),
                                   .dentropy = make_vector(b, INVAR_DTYPE_F32, LOGIT_ROWS),
                                   .entropy = fwd.entropy,
                                   .max = fwd.max,
                                   .logsum = fwd.logsum,
                                   .logits = fwd.logits,
                                   .targets = fwd.targets,
                                   .temperature = 1.0f};

    INVAR_TRY(invar_bench_prepare(b, INVAR_OP_LOGPROB_FWD, &fwd));
    return run_shape(
        b, moves(&args, INVAR_DTYPE_BF16, tensor_bytes(&args.logits) + tensor_bytes(&args.dlogits)),
        LOGIT_ROWS, VOCABULARY, 0);
}

/* The part of one of RANKS ranks. */
static invar_status bench_logprob_sum(invar_bench *b)
{
    int64_t ids = VOCABULARY / INVAR_LOGPROB_CHUNK / RANKS * INVAR_LOGPROB_CHUNK;
    invar_tensor logits = make_logits(b);
    invar_logprob_sum_args args = {
        .sums = make(b, INVAR_DTYPE_F32, LOGIT_ROWS, invar_logprob_sums_of(VOCABULARY, RANKS)),
        .logits = invar_tensor_columns(&logits, 0, ids),
        .targets = make_ids(b, LOGIT_ROWS, ids),
        .temperature = 1.0f};

    return run_shape(b, moves(&args, INVAR_DTYPE_F32, tensor_bytes(&args.logits)), LOGIT_ROWS, ids,
                     0);
}

static invar_status bench_logprob_join(invar_bench *b)
{
    invar_logprob_join_args args = {.logp = make_vector(b, INVAR_DTYPE_F32, LOGIT_ROWS),
                                    .entropy = make_vector(b, INVAR_DTYPE_F32, LOGIT_ROWS),
                                    .max = make_vector(b, INVAR_DTYPE_F32, LOGIT_ROWS),
                                    .logsum = make_vector(b, INVAR_DTYPE_F32, LOGIT_ROWS),
                                    .sums = make(b, INVAR_DTYPE_F32, RANKS * LOGIT_ROWS,
                                                 invar_logprob_sums_of(VOCABULARY, RANKS)),
                                    .targets = make_ids(b, LOGIT_ROWS, VOCABULARY),
                                    .vocabulary = VOCABULARY,
                                    .parts = RANKS,
                                    .temperature = 1.0f};

    return run_shape(b, moves(&args, INVAR_DTYPE_F32, tensor_bytes(&args.sums)), LOGIT_ROWS,
                     VOCABULARY, 0);
}

static invar_status bench_sample(invar_bench *b)
{
    invar_sample_coords coords[LOGIT_ROWS];
    invar_tensor tokens = make_zero(b, INVAR_DTYPE_I32, 1, LOGIT_ROWS);
    invar_sample_args args = {.tokens = as_1d(&tokens),
                              .logits = make_logits(b),
                              .coords = coords,
                              .seed = 42,
                              .purpose = 1,
                              .temperature = 0.8f,
                              .top_k = 50,
                              .top_p = 0.95f,
                              .min_p = 0.01f};

    for (uint32_t t = 0; t < LOGIT_ROWS; t++)
        coords[t] = (invar_sample_coords){.position = t, .sample = 7, .rollout = 3};
    return run_shape(b, decides(&args, INVAR_DTYPE_F32, LOGIT_ROWS), LOGIT_ROWS, VOCABULARY, 0);
}

/* ---- optimizer, hashing ---------------------------------------------------------------------- */

static invar_status bench_grad_norm(invar_bench *b)
{
    invar_tensor grad = make_vector(b, INVAR_DTYPE_F32, PARAMETERS);
    float norm, clip;
    invar_grad_norm_args args = {
        .norm = &norm, .clip = &clip, .grads = &grad, .count = 1, .max_norm = 1.0f};

    return run_shape(b, moves(&args, INVAR_DTYPE_F32, tensor_bytes(&grad)), PARAMETERS, 0, 0);
}

static invar_status bench_adamw(invar_bench *b)
{
    invar_tensor m = make_zero(b, INVAR_DTYPE_F32, 1, PARAMETERS);
    invar_tensor v = make_zero(b, INVAR_DTYPE_F32, 1, PARAMETERS);
    invar_adamw_args args = {.weight = make_vector(b, INVAR_DTYPE_BF16, PARAMETERS),
                             .master = make_vector(b, INVAR_DTYPE_F32, PARAMETERS),
                             .m = as_1d(&m),
                             .v = as_1d(&v),
                             .grad = make_vector(b, INVAR_DTYPE_F32, PARAMETERS),
                             .clip = 1.0f,
                             .lr = 1e-3f,
                             .beta1 = 0.9f,
                             .beta2 = 0.95f,
                             .eps = 1e-8f,
                             .weight_decay = 0.1f,
                             .beta1_power = 0.9f,
                             .beta2_power = 0.95f};

    // reads four f32 and writes three; writes the rounded weight
    return run_shape(
        b, moves(&args, INVAR_DTYPE_F32, 7 * tensor_bytes(&args.grad) + tensor_bytes(&args.weight)),
        PARAMETERS, 0, 0);
}

static invar_status bench_hash_tree(invar_bench *b)
{
    enum { ROWS = 1024, COLS = 65536 };
    invar_digest digest;
    invar_tensor x = make(b, INVAR_DTYPE_BF16, ROWS, COLS);
    invar_hash_tree_args args = {.digest = &digest, .x = &x, .count = 1, .shards = 1};
    invar_bench_case c = moves(&args, INVAR_DTYPE_BF16, tensor_bytes(&x));

    c.peer = INVAR_BENCH_PEER_XXH3;
    c.hashed = x.data;
    return run_shape(b, c, ROWS, COLS, 0);
}

/* The same bytes in samples, which hash.tree knows nothing of. */
static invar_status bench_hash_leaves(invar_bench *b)
{
    enum { ROWS = 1024, COLS = 65536, SAMPLES = 8, LEAVES = ROWS * (COLS * 2 / 16384) };
    static invar_digest digest[LEAVES];
    int64_t start[SAMPLES + 1];
    invar_tensor x = make(b, INVAR_DTYPE_BF16, ROWS, COLS);
    invar_hash_leaves_args args = {
        .digest = digest, .x = x, .samples = {start, SAMPLES}, .leaves = LEAVES};
    invar_bench_case c = moves(&args, INVAR_DTYPE_BF16, tensor_bytes(&x));

    for (int64_t i = 0; i <= SAMPLES; i++)
        start[i] = i * ROWS / SAMPLES;
    c.peer = INVAR_BENCH_PEER_XXH3;
    c.hashed = x.data;
    return run_shape(b, c, ROWS, COLS, 0);
}

const invar_bench_fn invar_bench_ops[INVAR_OP_COUNT] = {
#define INVAR_OP(ID, fn, name, revision, numerics) [INVAR_OP_##ID] = bench_##fn,
#include "kernels-deterministic/ops.def"
#undef INVAR_OP
};
