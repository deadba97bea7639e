/*
 * ops.c - cases of invar bench: every op at the shapes of a small model, except expert ops.
 *
 * Each function builds the arguments of one op, states its work, and names a peer where a fair one
 * exists. The list at the end has an entry per op of ops.def, so a new op without a case does not
 * link.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "cli/bench/cases.h"

#include "base/invar_banned.h"

enum {
    TOKENS = INVAR_CASE_TOKENS,
    WIDTH = INVAR_CASE_WIDTH,
    WIDE = 2048,
    HEADS = 8,
    KV_HEADS = 2,
    HEAD_DIM = 64,
    Q_WIDTH = HEADS * HEAD_DIM,
    KV_WIDTH = KV_HEADS * HEAD_DIM,
    VOCABULARY = 151936,
    LOGIT_ROWS = 64,
    SEQUENCES = 8,
    PAGE = 16,
    SEQUENCE_PAGES = TOKENS / PAGE,
    PARAMETERS = TOKENS * WIDE
};

/* ---- data ------------------------------------------------------------------------------------ */

static invar_tensor make_vector(invar_bench *b, invar_dtype dtype, int64_t n)
{
    invar_tensor t = invar_case_make(b, dtype, 1, n);

    return invar_case_1d(&t);
}

static invar_tensor make_heads(invar_bench *b, int64_t tokens, int64_t heads, int64_t dim)
{
    invar_tensor t = invar_case_make(b, INVAR_DTYPE_BF16, tokens, heads * dim);

    return invar_tensor_3d(t.data, t.dtype, tokens, heads, dim);
}

/* Makes scattered ids below `limit`; the last eighth repeats the first ones. */
static invar_tensor make_ids(invar_bench *b, int64_t n, int64_t limit)
{
    invar_tensor t = invar_case_zero(b, INVAR_DTYPE_I32, 1, n);

    for (int64_t i = 0; i < n; i++)
        ((int32_t *)t.data)[i] = (int32_t)(i % (n - n / 8) * 7919 % limit);
    return invar_case_1d(&t);
}

static invar_tensor make_sequence(invar_bench *b, int64_t n)
{
    invar_tensor t = invar_case_zero(b, INVAR_DTYPE_I32, 1, n);

    for (int64_t i = 0; i < n; i++)
        ((int32_t *)t.data)[i] = (int32_t)i;
    return invar_case_1d(&t);
}

/* Makes an uninitialized quantized tensor. */
static invar_tensor make_quantized_output(invar_bench *b, invar_dtype format, int64_t rows,
                                          int64_t cols, int32_t scale_rows)
{
    invar_tensor q = invar_case_zero(b, format, rows, cols);

    q.scale_rows = scale_rows;
    q.scale = invar_bench_alloc(b, invar_tensor_scale_bytes(&q));
    return q;
}

static invar_status make_quantized(invar_tensor *out, invar_bench *b, invar_dtype format,
                                   int64_t rows, int64_t cols, int32_t scale_rows)
{
    *out = make_quantized_output(b, format, rows, cols, scale_rows);
    return invar_bench_prepare(
        b, INVAR_OP_QUANTIZE,
        &(invar_quantize_args){.q = *out, .x = invar_case_make(b, INVAR_DTYPE_BF16, rows, cols)});
}

static int32_t weight_scale_rows(invar_dtype format)
{
    return format == INVAR_DTYPE_FP8 ? INVAR_FP8_BLOCK : 1;
}

/* ---- linear layers --------------------------------------------------------------------------- */

static invar_status linear_fwd_case(invar_bench *b, invar_dtype type, int64_t m, int64_t n,
                                    int64_t k)
{
    bool quantized = type != INVAR_DTYPE_F32 && type != INVAR_DTYPE_BF16;
    invar_dtype storage = quantized ? INVAR_DTYPE_BF16 : type;
    invar_linear_fwd_args args = {.y = invar_case_make(b, storage, m, n), .k_shards = 1};
    invar_bench_gemm product = {.transpose_b = true};

    if (!quantized || type == INVAR_DTYPE_INT4)
        args.x = invar_case_make(b, storage, m, k);
    else
        INVAR_TRY(make_quantized(&args.x, b, type, m, k, 1));
    if (!quantized)
        args.w = invar_case_make(b, type, n, k);
    else
        INVAR_TRY(make_quantized(&args.w, b, type, n, k, weight_scale_rows(type)));
    product.c = args.y;
    product.a = args.x;
    product.b = args.w;
    return invar_case_products(b, &args, type, (const int64_t[]){m, n, k}, 1, &product);
}

invar_status invar_bench_op_linear_fwd(invar_bench *b)
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

static const int64_t gradient_shape[] = {512, WIDTH, WIDTH};

invar_status invar_bench_op_linear_dx(invar_bench *b)
{
    for (int i = 0; i < 2; i++) {
        invar_dtype type = invar_case_types[i];
        int64_t m = gradient_shape[0], n = gradient_shape[1], k = gradient_shape[2];
        invar_linear_part part = {invar_case_make(b, type, m, n), invar_case_make(b, type, n, k)};
        invar_linear_dx_args args = {
            .dx = invar_case_make(b, type, m, k), .parts = {part}, .n_parts = 1, .k_shards = 1};
        invar_bench_gemm product = {.c = args.dx, .a = part.dy, .b = part.w};
        INVAR_TRY(invar_case_products(b, &args, type, gradient_shape, 1, &product));
    }
    return INVAR_OK;
}

invar_status invar_bench_op_linear_dw(invar_bench *b)
{
    const int64_t unit[] = {0, gradient_shape[0]};

    for (int i = 0; i < 2; i++) {
        invar_dtype type = invar_case_types[i];
        int64_t m = gradient_shape[0], n = gradient_shape[1], k = gradient_shape[2];
        invar_linear_dw_args args = {.dw = invar_case_zero(b, INVAR_DTYPE_F32, n, k),
                                     .dy = invar_case_make(b, type, m, n),
                                     .x = invar_case_make(b, type, m, k),
                                     .units = {unit, 1}};
        invar_bench_gemm product = {
            .c = args.dw, .a = args.dy, .b = args.x, .transpose_a = true, .accumulate = true};
        INVAR_TRY(invar_case_products(b, &args, type, gradient_shape, 1, &product));
    }
    return INVAR_OK;
}

invar_status invar_bench_op_token_sum(invar_bench *b)
{
    invar_token_sum_args args = {.out = make_vector(b, INVAR_DTYPE_F32, WIDE),
                                 .x = invar_case_make(b, INVAR_DTYPE_BF16, TOKENS, WIDE),
                                 .units = invar_case_whole};

    return invar_case_run(
        b,
        invar_case_moves(&args, INVAR_DTYPE_BF16,
                         invar_case_bytes(&args.x) + 2 * invar_case_bytes(&args.out)),
        TOKENS, WIDE, 0);
}

invar_status invar_bench_op_token_fold(invar_bench *b)
{
    invar_token_fold_args args = {
        .out = make_vector(b, INVAR_DTYPE_F32, WIDE),
        .sums = invar_case_make(b, INVAR_DTYPE_F32,
                                invar_token_blocks_max(&invar_case_whole, TOKENS), WIDE),
        .units = invar_case_whole,
        .tokens = TOKENS};

    return invar_case_run(
        b,
        invar_case_moves(&args, INVAR_DTYPE_F32,
                         invar_case_bytes(&args.sums) + 2 * invar_case_bytes(&args.out)),
        TOKENS, WIDE, 0);
}

#define RANKS 4

invar_status invar_bench_op_shards_fold(invar_bench *b)
{
    invar_shards_fold_args args = {.y = invar_case_make(b, INVAR_DTYPE_BF16, TOKENS, WIDE),
                                   .x = invar_case_make(b, INVAR_DTYPE_F32, RANKS * TOKENS, WIDE),
                                   .residual = invar_case_make(b, INVAR_DTYPE_BF16, TOKENS, WIDE),
                                   .shards = RANKS};

    return invar_case_run(
        b,
        invar_case_moves(&args, INVAR_DTYPE_BF16,
                         invar_case_bytes(&args.x) + 2 * invar_case_bytes(&args.y)),
        TOKENS, WIDE, 0);
}

/* ---- low precision --------------------------------------------------------------------------- */

static const invar_dtype formats[] = {INVAR_DTYPE_FP8, INVAR_DTYPE_MXFP8, INVAR_DTYPE_INT4};
enum { FORMATS = sizeof formats / sizeof *formats };

invar_status invar_bench_op_quantize(invar_bench *b)
{
    for (int i = 0; i < FORMATS; i++) {
        invar_quantize_args args = {
            .q = make_quantized_output(b, formats[i], TOKENS, WIDE, weight_scale_rows(formats[i])),
            .x = invar_case_make(b, INVAR_DTYPE_BF16, TOKENS, WIDE)};
        double bytes = invar_case_bytes(&args.q) + invar_case_bytes(&args.x);
        INVAR_TRY(invar_case_run(b, invar_case_moves(&args, formats[i], bytes), TOKENS, WIDE, 0));
    }
    return INVAR_OK;
}

invar_status invar_bench_op_dequantize(invar_bench *b)
{
    for (int i = 0; i < FORMATS; i++) {
        invar_dequantize_args args = {.x = invar_case_make(b, INVAR_DTYPE_BF16, TOKENS, WIDE)};
        double bytes;
        INVAR_TRY(
            make_quantized(&args.q, b, formats[i], TOKENS, WIDE, weight_scale_rows(formats[i])));
        bytes = invar_case_bytes(&args.q) + invar_case_bytes(&args.x);
        INVAR_TRY(invar_case_run(b, invar_case_moves(&args, formats[i], bytes), TOKENS, WIDE, 0));
    }
    return INVAR_OK;
}

/* ---- embedding, residual, norm, rotary embedding, activation --------------------------------- */

invar_status invar_bench_op_embedding_fwd(invar_bench *b)
{
    invar_embedding_fwd_args args = {.out = invar_case_make(b, INVAR_DTYPE_BF16, TOKENS, WIDTH),
                                     .table =
                                         invar_case_make(b, INVAR_DTYPE_BF16, VOCABULARY, WIDTH),
                                     .ids = make_ids(b, TOKENS, VOCABULARY)};

    return invar_case_run(
        b, invar_case_moves(&args, INVAR_DTYPE_BF16, 2 * invar_case_bytes(&args.out)), TOKENS,
        VOCABULARY, WIDTH);
}

invar_status invar_bench_op_embedding_bwd(invar_bench *b)
{
    invar_embedding_bwd_args args = {.dtable =
                                         invar_case_zero(b, INVAR_DTYPE_F32, VOCABULARY, WIDTH),
                                     .dout = invar_case_make(b, INVAR_DTYPE_BF16, TOKENS, WIDTH),
                                     .ids = make_ids(b, TOKENS, VOCABULARY),
                                     .units = invar_case_whole};

    // each row of dout updates a row of f32, which is read and written: 1 + 2 * 2 times its bytes
    return invar_case_run(
        b, invar_case_moves(&args, INVAR_DTYPE_BF16, 5 * invar_case_bytes(&args.dout)), TOKENS,
        VOCABULARY, WIDTH);
}

invar_status invar_bench_op_scale(invar_bench *b)
{
    invar_scale_args args = {.y = invar_case_make(b, INVAR_DTYPE_BF16, TOKENS, WIDE),
                             .x = invar_case_make(b, INVAR_DTYPE_F32, TOKENS, WIDE),
                             .factor = 2.0f};

    return invar_case_run(b,
                          invar_case_moves(&args, INVAR_DTYPE_BF16,
                                           invar_case_bytes(&args.x) + invar_case_bytes(&args.y)),
                          TOKENS, WIDE, 0);
}

invar_status invar_bench_op_add(invar_bench *b)
{
    invar_add_args args = {.out = invar_case_make(b, INVAR_DTYPE_BF16, TOKENS, WIDE),
                           .a = invar_case_make(b, INVAR_DTYPE_BF16, TOKENS, WIDE),
                           .b = invar_case_make(b, INVAR_DTYPE_BF16, TOKENS, WIDE)};

    return invar_case_run(
        b, invar_case_moves(&args, INVAR_DTYPE_BF16, 3 * invar_case_bytes(&args.out)), TOKENS, WIDE,
        0);
}

invar_status invar_bench_op_rmsnorm_fwd(invar_bench *b)
{
    invar_rmsnorm_fwd_args args = {.y = make_heads(b, TOKENS, 1, WIDE),
                                   .x = make_heads(b, TOKENS, 1, WIDE),
                                   .weight = make_vector(b, INVAR_DTYPE_BF16, WIDE),
                                   .eps = 1e-6f};

    return invar_case_run(b,
                          invar_case_moves(&args, INVAR_DTYPE_BF16, 2 * invar_case_bytes(&args.x)),
                          TOKENS, WIDE, 0);
}

invar_status invar_bench_op_rmsnorm_bwd(invar_bench *b)
{
    invar_rmsnorm_bwd_args args = {.dx = make_heads(b, TOKENS, 1, WIDE),
                                   .dweight = make_vector(b, INVAR_DTYPE_F32, WIDE),
                                   .dy = make_heads(b, TOKENS, 1, WIDE),
                                   .x = make_heads(b, TOKENS, 1, WIDE),
                                   .weight = make_vector(b, INVAR_DTYPE_BF16, WIDE),
                                   .units = invar_case_whole,
                                   .eps = 1e-6f};

    return invar_case_run(b,
                          invar_case_moves(&args, INVAR_DTYPE_BF16, 3 * invar_case_bytes(&args.x)),
                          TOKENS, WIDE, 0);
}

static invar_rope_table_args rope_tables(invar_bench *b)
{
    return (invar_rope_table_args){
        .cosine = invar_case_make(b, INVAR_DTYPE_F32, TOKENS, HEAD_DIM / 2),
        .sine = invar_case_make(b, INVAR_DTYPE_F32, TOKENS, HEAD_DIM / 2),
        .theta = 1e6};
}

invar_status invar_bench_op_rope_table(invar_bench *b)
{
    invar_rope_table_args args = rope_tables(b);

    return invar_case_run(b, invar_case_decides(&args, INVAR_DTYPE_F32, TOKENS), TOKENS,
                          HEAD_DIM / 2, 0);
}

/* Runs rope forward or backward, which have the same arguments. */
static invar_status run_rope_case(invar_bench *b)
{
    invar_rope_table_args table = rope_tables(b);
    invar_rope_fwd_args args = {.y = make_heads(b, TOKENS, HEADS, HEAD_DIM),
                                .x = make_heads(b, TOKENS, HEADS, HEAD_DIM),
                                .positions = make_sequence(b, TOKENS),
                                .cosine = table.cosine,
                                .sine = table.sine};

    INVAR_TRY(invar_bench_prepare(b, INVAR_OP_ROPE_TABLE, &table));
    return invar_case_run(
        b,
        invar_case_moves(&args, INVAR_DTYPE_BF16,
                         2 * invar_case_bytes(&args.x) + 2 * invar_case_bytes(&args.cosine)),
        TOKENS, HEADS, HEAD_DIM);
}

invar_status invar_bench_op_rope_fwd(invar_bench *b)
{
    return run_rope_case(b);
}

invar_status invar_bench_op_rope_bwd(invar_bench *b)
{
    return run_rope_case(b);
}

invar_status invar_bench_op_swiglu_fwd(invar_bench *b)
{
    invar_swiglu_fwd_args args = {.y = invar_case_make(b, INVAR_DTYPE_BF16, TOKENS, WIDE),
                                  .gate = invar_case_make(b, INVAR_DTYPE_BF16, TOKENS, WIDE),
                                  .up = invar_case_make(b, INVAR_DTYPE_BF16, TOKENS, WIDE)};

    return invar_case_run(b,
                          invar_case_moves(&args, INVAR_DTYPE_BF16, 3 * invar_case_bytes(&args.y)),
                          TOKENS, WIDE, 0);
}

invar_status invar_bench_op_swiglu_bwd(invar_bench *b)
{
    invar_swiglu_bwd_args args = {.dgate = invar_case_make(b, INVAR_DTYPE_BF16, TOKENS, WIDE),
                                  .dup = invar_case_make(b, INVAR_DTYPE_BF16, TOKENS, WIDE),
                                  .dy = invar_case_make(b, INVAR_DTYPE_BF16, TOKENS, WIDE),
                                  .gate = invar_case_make(b, INVAR_DTYPE_BF16, TOKENS, WIDE),
                                  .up = invar_case_make(b, INVAR_DTYPE_BF16, TOKENS, WIDE)};

    return invar_case_run(b,
                          invar_case_moves(&args, INVAR_DTYPE_BF16, 5 * invar_case_bytes(&args.dy)),
                          TOKENS, WIDE, 0);
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Runs an attention case. `sequences` is 0 for packed rows without a KV cache. */
static invar_status run_attention(invar_bench *b, const void *args, double macs, int64_t sequences)
{
    static const int64_t shape[] = {TOKENS, HEADS, KV_HEADS, HEAD_DIM};
    invar_bench_case c = invar_case_multiplies(args, INVAR_DTYPE_BF16, macs);

    c.shape[0] = sequences;
    memcpy(c.shape + (sequences > 0), shape, sizeof shape);
    return invar_bench_run(b, &c);
}

static invar_attention_fwd_args make_attention_args(invar_bench *b)
{
    return (invar_attention_fwd_args){.o = make_heads(b, TOKENS, HEADS, HEAD_DIM),
                                      .lse2 = invar_case_make(b, INVAR_DTYPE_F32, TOKENS, HEADS),
                                      .q = make_heads(b, TOKENS, HEADS, HEAD_DIM),
                                      .k = make_heads(b, TOKENS, KV_HEADS, HEAD_DIM),
                                      .v = make_heads(b, TOKENS, KV_HEADS, HEAD_DIM),
                                      .samples = invar_case_whole};
}

/* Causal attention has half of two products of tokens^2 * dim per head. */
static const double attention_macs = (double)TOKENS * TOKENS * HEAD_DIM * HEADS;

invar_status invar_bench_op_attention_fwd(invar_bench *b)
{
    invar_attention_fwd_args args = make_attention_args(b);

    return run_attention(b, &args, attention_macs, 0);
}

invar_status invar_bench_op_attention_bwd(invar_bench *b)
{
    invar_attention_fwd_args fwd = make_attention_args(b);
    invar_attention_bwd_args args = {.dq = make_heads(b, TOKENS, HEADS, HEAD_DIM),
                                     .dk = make_heads(b, TOKENS, KV_HEADS, HEAD_DIM),
                                     .dv = make_heads(b, TOKENS, KV_HEADS, HEAD_DIM),
                                     .d_o = make_heads(b, TOKENS, HEADS, HEAD_DIM),
                                     .o = fwd.o,
                                     .lse2 = fwd.lse2,
                                     .q = fwd.q,
                                     .k = fwd.k,
                                     .v = fwd.v,
                                     .samples = invar_case_whole};

    INVAR_TRY(invar_bench_prepare(b, INVAR_OP_ATTENTION_FWD, &fwd));
    return run_attention(b, &args, 2.5 * attention_macs, 0); // five products instead of two
}

/*
 * Makes a KV cache for sequences of TOKENS positions, with interleaved pages as in a real rollout.
 */
static invar_kv_pages make_cache(invar_bench *b)
{
    enum { PAGES = SEQUENCES * SEQUENCE_PAGES };
    invar_tensor k = invar_case_make(b, INVAR_DTYPE_BF16, PAGES, PAGE * KV_WIDTH);
    invar_tensor v = invar_case_make(b, INVAR_DTYPE_BF16, PAGES, PAGE * KV_WIDTH);
    invar_kv_pages cache = {invar_tensor_4d(k.data, k.dtype, PAGES, PAGE, KV_HEADS, HEAD_DIM),
                            invar_tensor_4d(v.data, v.dtype, PAGES, PAGE, KV_HEADS, HEAD_DIM),
                            invar_case_zero(b, INVAR_DTYPE_I32, SEQUENCES, SEQUENCE_PAGES)};

    for (int32_t s = 0; s < SEQUENCES; s++)
        for (int32_t p = 0; p < SEQUENCE_PAGES; p++)
            ((int32_t *)cache.pages.data)[s * SEQUENCE_PAGES + p] = p * SEQUENCES + s;
    return cache;
}

static const int64_t full_lengths[SEQUENCES] = {TOKENS, TOKENS, TOKENS, TOKENS,
                                                TOKENS, TOKENS, TOKENS, TOKENS};

/* Decode: one new row per sequence. */
invar_status invar_bench_op_attention_paged(invar_bench *b)
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
invar_status invar_bench_op_kv_write(invar_bench *b)
{
    int64_t rows[SEQUENCES + 1];
    invar_kv_write_args args = {.cache = make_cache(b),
                                .k = make_heads(b, TOKENS, KV_HEADS, HEAD_DIM),
                                .v = make_heads(b, TOKENS, KV_HEADS, HEAD_DIM),
                                .rows = {rows, SEQUENCES},
                                .lengths = full_lengths};

    for (int64_t s = 0; s <= SEQUENCES; s++)
        rows[s] = s * (TOKENS / SEQUENCES);
    return invar_case_run(b,
                          invar_case_moves(&args, INVAR_DTYPE_BF16, 4 * invar_case_bytes(&args.k)),
                          TOKENS, KV_HEADS, HEAD_DIM);
}

/* ---- log-probs and sampling ------------------------------------------------------------------ */

static invar_tensor make_logits(invar_bench *b)
{
    invar_tensor logits = invar_case_zero(b, INVAR_DTYPE_F32, LOGIT_ROWS, VOCABULARY);

    invar_case_fill(&logits, 10.0f);
    return logits;
}

static invar_logprob_fwd_args make_logprob_args(invar_bench *b)
{
    return (invar_logprob_fwd_args){.logp = make_vector(b, INVAR_DTYPE_F32, LOGIT_ROWS),
                                    .entropy = make_vector(b, INVAR_DTYPE_F32, LOGIT_ROWS),
                                    .max = make_vector(b, INVAR_DTYPE_F32, LOGIT_ROWS),
                                    .logsum = make_vector(b, INVAR_DTYPE_F32, LOGIT_ROWS),
                                    .logits = make_logits(b),
                                    .targets = make_ids(b, LOGIT_ROWS, VOCABULARY),
                                    .temperature = 1.0f};
}

invar_status invar_bench_op_logprob_fwd(invar_bench *b)
{
    invar_logprob_fwd_args args = make_logprob_args(b);

    return invar_case_run(b,
                          invar_case_moves(&args, INVAR_DTYPE_F32, invar_case_bytes(&args.logits)),
                          LOGIT_ROWS, VOCABULARY, 0);
}

invar_status invar_bench_op_logprob_bwd(invar_bench *b)
{
    invar_logprob_fwd_args fwd = make_logprob_args(b);
    invar_logprob_bwd_args args = {.dlogits =
                                       invar_case_make(b, INVAR_DTYPE_BF16, LOGIT_ROWS, VOCABULARY),
                                   .dlogp = make_vector(b, INVAR_DTYPE_F32, LOGIT_ROWS),
                                   .dentropy = make_vector(b, INVAR_DTYPE_F32, LOGIT_ROWS),
                                   .entropy = fwd.entropy,
                                   .max = fwd.max,
                                   .logsum = fwd.logsum,
                                   .logits = fwd.logits,
                                   .targets = fwd.targets,
                                   .temperature = 1.0f};

    INVAR_TRY(invar_bench_prepare(b, INVAR_OP_LOGPROB_FWD, &fwd));
    return invar_case_run(
        b,
        invar_case_moves(&args, INVAR_DTYPE_BF16,
                         invar_case_bytes(&args.logits) + invar_case_bytes(&args.dlogits)),
        LOGIT_ROWS, VOCABULARY, 0);
}

/* Benchmarks the part of one of RANKS ranks. */
invar_status invar_bench_op_logprob_sum(invar_bench *b)
{
    int64_t ids = VOCABULARY / INVAR_LOGPROB_CHUNK / RANKS * INVAR_LOGPROB_CHUNK;
    invar_tensor logits = make_logits(b);
    invar_logprob_sum_args args = {
        .sums = invar_case_make(b, INVAR_DTYPE_F32, LOGIT_ROWS,
                                invar_logprob_sum_columns(VOCABULARY, RANKS)),
        .logits = invar_tensor_columns(&logits, 0, ids),
        .targets = make_ids(b, LOGIT_ROWS, ids),
        .temperature = 1.0f};

    return invar_case_run(b,
                          invar_case_moves(&args, INVAR_DTYPE_F32, invar_case_bytes(&args.logits)),
                          LOGIT_ROWS, ids, 0);
}

invar_status invar_bench_op_logprob_join(invar_bench *b)
{
    invar_logprob_join_args args = {
        .logp = make_vector(b, INVAR_DTYPE_F32, LOGIT_ROWS),
        .entropy = make_vector(b, INVAR_DTYPE_F32, LOGIT_ROWS),
        .max = make_vector(b, INVAR_DTYPE_F32, LOGIT_ROWS),
        .logsum = make_vector(b, INVAR_DTYPE_F32, LOGIT_ROWS),
        .sums = invar_case_make(b, INVAR_DTYPE_F32, RANKS * LOGIT_ROWS,
                                invar_logprob_sum_columns(VOCABULARY, RANKS)),
        .targets = make_ids(b, LOGIT_ROWS, VOCABULARY),
        .vocabulary = VOCABULARY,
        .parts = RANKS,
        .temperature = 1.0f};

    return invar_case_run(b, invar_case_moves(&args, INVAR_DTYPE_F32, invar_case_bytes(&args.sums)),
                          LOGIT_ROWS, VOCABULARY, 0);
}

invar_status invar_bench_op_sample(invar_bench *b)
{
    invar_sample_coords coords[LOGIT_ROWS];
    invar_tensor tokens = invar_case_zero(b, INVAR_DTYPE_I32, 1, LOGIT_ROWS);
    invar_sample_args args = {.tokens = invar_case_1d(&tokens),
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
    return invar_case_run(b, invar_case_decides(&args, INVAR_DTYPE_F32, LOGIT_ROWS), LOGIT_ROWS,
                          VOCABULARY, 0);
}

/* ---- optimizer, hashing ---------------------------------------------------------------------- */

invar_status invar_bench_op_grad_norm(invar_bench *b)
{
    invar_tensor grad = make_vector(b, INVAR_DTYPE_F32, PARAMETERS);
    float norm, clip;
    invar_grad_norm_args args = {
        .norm = &norm, .clip = &clip, .grads = &grad, .count = 1, .max_norm = 1.0f};

    return invar_case_run(b, invar_case_moves(&args, INVAR_DTYPE_F32, invar_case_bytes(&grad)),
                          PARAMETERS, 0, 0);
}

invar_status invar_bench_op_adamw(invar_bench *b)
{
    invar_tensor m = invar_case_zero(b, INVAR_DTYPE_F32, 1, PARAMETERS);
    invar_tensor v = invar_case_zero(b, INVAR_DTYPE_F32, 1, PARAMETERS);
    invar_adamw_args args = {.weight = make_vector(b, INVAR_DTYPE_BF16, PARAMETERS),
                             .master = make_vector(b, INVAR_DTYPE_F32, PARAMETERS),
                             .m = invar_case_1d(&m),
                             .v = invar_case_1d(&v),
                             .grad = make_vector(b, INVAR_DTYPE_F32, PARAMETERS),
                             .clip = 1.0f,
                             .lr = 1e-3f,
                             .beta1 = 0.9f,
                             .beta2 = 0.95f,
                             .eps = 1e-8f,
                             .weight_decay = 0.1f,
                             .beta1_power = 0.9f,
                             .beta2_power = 0.95f};

    // reads four f32 values, writes three and the rounded weight
    return invar_case_run(
        b,
        invar_case_moves(&args, INVAR_DTYPE_F32,
                         7 * invar_case_bytes(&args.grad) + invar_case_bytes(&args.weight)),
        PARAMETERS, 0, 0);
}

invar_status invar_bench_op_hash_tree(invar_bench *b)
{
    enum { ROWS = 1024, COLS = 65536 };
    invar_digest digest;
    invar_tensor x = invar_case_make(b, INVAR_DTYPE_BF16, ROWS, COLS);
    invar_hash_tree_args args = {.digest = &digest, .x = &x, .count = 1, .shards = 1};
    invar_bench_case c = invar_case_moves(&args, INVAR_DTYPE_BF16, invar_case_bytes(&x));

    c.peer = INVAR_BENCH_PEER_XXH3;
    c.hashed = x.data;
    return invar_case_run(b, c, ROWS, COLS, 0);
}

/* Hashes the same bytes as hash.tree, divided into samples, which hash.tree does not know. */
invar_status invar_bench_op_hash_leaves(invar_bench *b)
{
    enum { ROWS = 1024, COLS = 65536, SAMPLES = 8, LEAVES = ROWS * (COLS * 2 / 16384) };
    static invar_digest digest[LEAVES];
    int64_t start[SAMPLES + 1];
    invar_tensor x = invar_case_make(b, INVAR_DTYPE_BF16, ROWS, COLS);
    invar_hash_leaves_args args = {
        .digest = digest, .x = x, .samples = {start, SAMPLES}, .leaves = LEAVES};
    invar_bench_case c = invar_case_moves(&args, INVAR_DTYPE_BF16, invar_case_bytes(&x));

    for (int64_t i = 0; i <= SAMPLES; i++)
        start[i] = i * ROWS / SAMPLES;
    c.peer = INVAR_BENCH_PEER_XXH3;
    c.hashed = x.data;
    return invar_case_run(b, c, ROWS, COLS, 0);
}

const invar_bench_fn invar_bench_ops[INVAR_OP_COUNT] = {
#define INVAR_OP(ID, fn, name, revision, numerics) [INVAR_OP_##ID] = invar_bench_op_##fn,
#include "kernels-deterministic/ops.def"
#undef INVAR_OP
};
