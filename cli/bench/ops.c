/*
 * ops.c - cases of invar bench: every op, except expert ops, at the shapes of a model.
 *
 * Each function builds the arguments of one op, in the sizes of the device (sizes.def); the bytes
 * that it moves are those of its tensors unless it says otherwise. A new op without a case does not
 * link.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>

#include "cli/bench/bench.h"

#include "base/invar_banned.h"

#define F32 INVAR_DTYPE_F32
#define BF16 INVAR_DTYPE_BF16
#define FP8 INVAR_DTYPE_FP8
#define MXFP8 INVAR_DTYPE_MXFP8
#define INT4 INVAR_DTYPE_INT4
#define SHAPE INVAR_BENCH_SHAPE

enum { VOCABULARY = 151936, WIDTH = 1024, PAGE = 16, RANKS = 4 };

/* Returns activations, of noise. */
static invar_tensor rows(invar_bench *b, invar_dtype dtype)
{
    return invar_bench_make(b, dtype, b->sizes->tokens, b->sizes->hidden);
}

static invar_status moves_rows(invar_bench *b, const void *args, invar_dtype dtype)
{
    return invar_bench_case_moves(b, args, dtype, SHAPE(b->sizes->tokens, b->sizes->hidden));
}

static invar_row_offsets units(invar_bench *b)
{
    return invar_bench_offsets(b, b->sizes->tokens, b->sizes->units);
}

/* ---- linear layers --------------------------------------------------------------------------- */

/* A product of (m, k) by (k, n); k is divided into shards. */
typedef struct product {
    invar_dtype type;
    int64_t m, n, k;
    int32_t shards;
} product;

#define SIZES(list) (sizeof(list) / sizeof *(list))
enum { SHARDS = 8, SHARD_ATOM = 128 };

static const product cpu_forward[] = {
    {F32, 1, 4096, 4096, 1},    {F32, 1024, 1024, 1024, 1},  {F32, 512, 4096, 1024, 1},
    {F32, 2048, 2048, 2048, 1}, {BF16, 1, 4096, 4096, 1},    {BF16, 1024, 1024, 1024, 1},
    {FP8, 512, 1024, 1024, 1},  {MXFP8, 512, 1024, 1024, 1}, {INT4, 512, 1024, 1024, 1},
};
static const product gpu_forward[] = {
    {BF16, 8192, 8192, 8192, 1},       {BF16, 4096, 4096, 4096, 1},
    {BF16, 8192, 4096, 14336, 1},      {BF16, 8192, 14336, 4096, 1},
    {BF16, 8192, 896, 4864, 1},        {BF16, 8192, 151936, 896, 1},
    {BF16, 16384, 1024, 3072, 1},      {BF16, 1024, 4096, 4096, 1},
    {BF16, 256, 4096, 4096, 1},        {BF16, 64, 4096, 4096, 1},
    {BF16, 16, 4096, 4096, 1},         {BF16, 1, 4096, 4096, 1},
    {BF16, 8192, 8192, 8192, SHARDS},  {BF16, 16384, 1024, 2048, SHARDS},
    {BF16, 16384, 1024, 3072, SHARDS}, {BF16, 256, 1024, 2048, SHARDS},
    {FP8, 8192, 8192, 8192, 1},        {MXFP8, 8192, 8192, 8192, 1},
    {INT4, 8192, 8192, 8192, 1},       {FP8, 4096, 4096, 4096, 1},
    {MXFP8, 4096, 4096, 4096, 1},      {INT4, 4096, 4096, 4096, 1},
    {FP8, 8192, 4096, 14336, 1},       {MXFP8, 8192, 4096, 14336, 1},
    {INT4, 8192, 4096, 14336, 1},      {MXFP8, 64, 4096, 4096, 1},
    {INT4, 64, 4096, 4096, 1},         {MXFP8, 16, 4096, 4096, 1},
    {INT4, 16, 4096, 4096, 1},         {MXFP8, 1, 4096, 4096, 1},
    {INT4, 1, 4096, 4096, 1},
};
static const product cpu_gradient[] = {{F32, 512, 1024, 1024, 1}, {BF16, 512, 1024, 1024, 1}};
static const product gpu_gradient[] = {
    {BF16, 8192, 8192, 8192, 1},       {BF16, 4096, 4096, 4096, 1},
    {BF16, 8192, 4096, 14336, 1},      {BF16, 8192, 8192, 8192, SHARDS},
    {BF16, 16384, 1024, 2048, SHARDS}, {BF16, 16384, 1024, 3072, SHARDS},
    {BF16, 256, 1024, 2048, SHARDS},
};
static const product cpu_weight[] = {{F32, 1024, 1024, 512, 1}, {BF16, 1024, 1024, 512, 1}};
static const product gpu_weight[] = {
    {BF16, 1024, 3072, 16384, 1}, {BF16, 2048, 1024, 16384, 1}, {BF16, 4096, 4096, 16384, 1}};

static invar_status run_product(invar_bench *b, const void *args, const product *z)
{
    char shards[16] = "";
    invar_bench_case c = {.args = {args},
                          .type = z->type,
                          .unit = INVAR_BENCH_UNIT_MAC,
                          .work = (double)z->m * (double)z->n * (double)z->k};

    if (z->shards > 1)
        (void)snprintf(shards, sizeof shards, " V%d", (int)z->shards);
    return invar_bench_case_run(b, &c, SHAPE(z->m, z->n, z->k), shards);
}

static invar_status linear_fwd(invar_bench *b, const product *z)
{
    invar_linear_fwd_args args = {.y = invar_bench_make(b, z->type == F32 ? F32 : BF16, z->m, z->n),
                                  .x = invar_bench_quantized(b, z->type, false, z->m, z->k),
                                  .w = invar_bench_quantized(b, z->type, true, z->n, z->k),
                                  .k_shards = z->shards,
                                  .k_atom = SHARD_ATOM};

    return run_product(b, &args, z);
}

static invar_status linear_dx(invar_bench *b, const product *z)
{
    invar_linear_dx_args args = {.dx = invar_bench_make(b, z->type, z->m, z->n),
                                 .parts = {{invar_bench_make(b, z->type, z->m, z->k),
                                            invar_bench_make(b, z->type, z->k, z->n)}},
                                 .n_parts = 1,
                                 .k_shards = z->shards,
                                 .k_atom = {SHARD_ATOM}};

    return run_product(b, &args, z);
}

static invar_status linear_dw(invar_bench *b, const product *z)
{
    invar_linear_dw_args args = {.dw = invar_bench_make(b, F32, z->m, z->n),
                                 .dy = invar_bench_make(b, z->type, z->k, z->m),
                                 .x = invar_bench_make(b, z->type, z->k, z->n),
                                 .units = invar_bench_offsets(b, z->k, b->sizes->units)};

    return run_product(b, &args, z);
}

static invar_status run_products(invar_bench *b,
                                 invar_status (*run)(invar_bench *b, const product *z),
                                 const product *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        INVAR_TRY(run(b, &list[i]));
    return INVAR_OK;
}

invar_status invar_bench_op_linear_fwd(invar_bench *b)
{
    return b->local ? run_products(b, linear_fwd, gpu_forward, SIZES(gpu_forward))
                    : run_products(b, linear_fwd, cpu_forward, SIZES(cpu_forward));
}

invar_status invar_bench_op_linear_dx(invar_bench *b)
{
    return b->local ? run_products(b, linear_dx, gpu_gradient, SIZES(gpu_gradient))
                    : run_products(b, linear_dx, cpu_gradient, SIZES(cpu_gradient));
}

invar_status invar_bench_op_linear_dw(invar_bench *b)
{
    return b->local ? run_products(b, linear_dw, gpu_weight, SIZES(gpu_weight))
                    : run_products(b, linear_dw, cpu_weight, SIZES(cpu_weight));
}

invar_status invar_bench_op_token_sum(invar_bench *b)
{
    invar_token_sum_args args = {
        .out = invar_bench_vector(b, F32, b->sizes->hidden), .x = rows(b, BF16), .units = units(b)};

    return moves_rows(b, &args, BF16);
}

invar_status invar_bench_op_token_fold(invar_bench *b)
{
    invar_token_fold_args args = {.out = invar_bench_vector(b, F32, b->sizes->hidden),
                                  .units = units(b),
                                  .tokens = b->sizes->tokens};

    args.sums = invar_bench_make(b, F32, invar_token_blocks_max(&args.units, args.tokens),
                                 b->sizes->hidden);
    return moves_rows(b, &args, F32);
}

invar_status invar_bench_op_shards_fold(invar_bench *b)
{
    invar_shards_fold_args args = {
        .y = rows(b, BF16),
        .x = invar_bench_make(b, F32, RANKS * b->sizes->tokens, b->sizes->hidden),
        .residual = rows(b, BF16),
        .shards = RANKS};

    return moves_rows(b, &args, BF16);
}

/* ---- low precision --------------------------------------------------------------------------- */

static const invar_dtype formats[] = {FP8, MXFP8, INT4};

/* Quantizes weights on a CPU, and activations on a GPU, which int4 is no format of. */
invar_status invar_bench_op_quantize(invar_bench *b)
{
    for (size_t i = 0; i < SIZES(formats) - b->local; i++) {
        invar_quantize_args args = {.q = invar_bench_quantized_output(b, formats[i], !b->local,
                                                                      b->sizes->tokens,
                                                                      b->sizes->hidden),
                                    .x = rows(b, BF16)};
        INVAR_TRY(moves_rows(b, &args, formats[i]));
    }
    return INVAR_OK;
}

invar_status invar_bench_op_dequantize(invar_bench *b)
{
    for (size_t i = 0; i < SIZES(formats); i++) {
        invar_dequantize_args args = {
            .x = rows(b, BF16),
            .q = invar_bench_quantized(b, formats[i], true, b->sizes->tokens, b->sizes->hidden)};
        INVAR_TRY(moves_rows(b, &args, formats[i]));
    }
    return INVAR_OK;
}

/* ---- embedding, residual, norm, rotary embedding, activation --------------------------------- */

enum { ID_STEP = 7919 };

invar_status invar_bench_op_embedding_fwd(invar_bench *b)
{
    int64_t tokens = b->sizes->tokens;
    invar_embedding_fwd_args args = {.out = invar_bench_make(b, BF16, tokens, WIDTH),
                                     .table = invar_bench_make(b, BF16, VOCABULARY, WIDTH),
                                     .ids = invar_bench_indices(b, tokens, 1, VOCABULARY, ID_STEP)};

    return invar_bench_case_works(b, &args, BF16, SHAPE(tokens, VOCABULARY, WIDTH),
                                  INVAR_BENCH_UNIT_BYTE, 4.0 * (double)(tokens * WIDTH));
}

/* Some rows of the table are not in use; those in use are read and written. */
invar_status invar_bench_op_embedding_bwd(invar_bench *b)
{
    const invar_bench_sizes *z = b->sizes;
    int64_t used = z->table_ids < z->tokens ? z->table_ids : z->tokens;
    invar_embedding_bwd_args args = {
        .dtable = invar_bench_zero(b, F32, z->table_rows, WIDTH),
        .dout = invar_bench_make(b, BF16, z->tokens, WIDTH),
        .ids = invar_bench_indices(b, z->tokens, 1, z->table_ids, ID_STEP),
        .units = units(b)};

    return invar_bench_case_works(b, &args, BF16, SHAPE(z->tokens, z->table_rows, WIDTH),
                                  INVAR_BENCH_UNIT_BYTE,
                                  (2.0 * (double)z->tokens + 8.0 * (double)used) * WIDTH);
}

invar_status invar_bench_op_scale(invar_bench *b)
{
    invar_scale_args args = {.y = rows(b, BF16), .x = rows(b, F32), .factor = 2.0f};

    return moves_rows(b, &args, BF16);
}

invar_status invar_bench_op_add(invar_bench *b)
{
    invar_add_args args = {.out = rows(b, BF16), .a = rows(b, BF16), .b = rows(b, BF16)};

    return moves_rows(b, &args, BF16);
}

static invar_tensor norm_rows(invar_bench *b)
{
    return invar_bench_heads(b, b->sizes->tokens, 1, b->sizes->hidden);
}

invar_status invar_bench_op_rmsnorm_fwd(invar_bench *b)
{
    invar_rmsnorm_fwd_args args = {.y = norm_rows(b),
                                   .x = norm_rows(b),
                                   .weight = invar_bench_vector(b, BF16, b->sizes->hidden),
                                   .eps = 1e-6f};

    return moves_rows(b, &args, BF16);
}

invar_status invar_bench_op_rmsnorm_bwd(invar_bench *b)
{
    invar_rmsnorm_bwd_args args = {.dx = norm_rows(b),
                                   .dweight = invar_bench_vector(b, F32, b->sizes->hidden),
                                   .dy = norm_rows(b),
                                   .x = norm_rows(b),
                                   .weight = invar_bench_vector(b, BF16, b->sizes->hidden),
                                   .units = units(b),
                                   .eps = 1e-6f};

    return moves_rows(b, &args, BF16);
}

static invar_rope_table_args rope_tables(invar_bench *b)
{
    return (invar_rope_table_args){
        .cosine = invar_bench_make(b, F32, b->sizes->positions, b->sizes->dim / 2),
        .sine = invar_bench_make(b, F32, b->sizes->positions, b->sizes->dim / 2),
        .theta = 1e6};
}

invar_status invar_bench_op_rope_table(invar_bench *b)
{
    invar_rope_table_args args = rope_tables(b);

    return invar_bench_case_works(b, &args, F32, SHAPE(b->sizes->positions, b->sizes->dim / 2),
                                  INVAR_BENCH_UNIT_TOKEN, (double)b->sizes->positions);
}

/* Runs rope forward or backward, which have the same arguments. */
static invar_status run_rope(invar_bench *b)
{
    const invar_bench_sizes *z = b->sizes;
    invar_rope_table_args table = rope_tables(b);
    invar_rope_fwd_args args = {.y = invar_bench_heads(b, z->tokens, z->heads, z->dim),
                                .x = invar_bench_heads(b, z->tokens, z->heads, z->dim),
                                .positions =
                                    invar_bench_indices(b, z->tokens, 1, b->sizes->positions, 1),
                                .cosine = table.cosine,
                                .sine = table.sine};

    invar_bench_prepare(b, INVAR_OP_ROPE_TABLE, &table);
    return invar_bench_case_moves(b, &args, BF16, SHAPE(z->tokens, z->heads, z->dim));
}

invar_status invar_bench_op_rope_fwd(invar_bench *b)
{
    return run_rope(b);
}

invar_status invar_bench_op_rope_bwd(invar_bench *b)
{
    return run_rope(b);
}

invar_status invar_bench_op_swiglu_fwd(invar_bench *b)
{
    invar_swiglu_fwd_args args = {.y = rows(b, BF16), .gate = rows(b, BF16), .up = rows(b, BF16)};

    return moves_rows(b, &args, BF16);
}

invar_status invar_bench_op_swiglu_bwd(invar_bench *b)
{
    invar_swiglu_bwd_args args = {.dgate = rows(b, BF16),
                                  .dup = rows(b, BF16),
                                  .dy = rows(b, BF16),
                                  .gate = rows(b, BF16),
                                  .up = rows(b, BF16)};

    return moves_rows(b, &args, BF16);
}

/* ---- attention ------------------------------------------------------------------------------- */

#define SPAN 8192 /* span of keys and queries, as in recipes by default */

typedef struct attention_size {
    int64_t batch, length, heads, kv_heads, dim;
} attention_size;

static const attention_size cpu_attention[] = {{1, 1024, 8, 2, 64}, {0}};
static const attention_size gpu_attention[] = {
    {4, 4096, 16, 16, 128}, {1, 16384, 32, 32, 128}, {8, 2048, 16, 16, 128}, {16, 1024, 14, 14, 64},
    {8, 2048, 16, 8, 128},  {1, 32768, 16, 16, 128}, {1, 131072, 8, 8, 128}, {0},
};

static invar_status run_attention(invar_bench *b, const void *args, const attention_size *z,
                                  invar_bench_unit unit, double work)
{
    const int64_t shape[] = {z->batch, z->length, z->heads, z->kv_heads, z->dim, 0};
    invar_bench_case c = {.args = {args}, .type = BF16, .unit = unit, .work = work};

    return invar_bench_case_run(b, &c, z->batch > 1 ? shape : shape + 1, "");
}

/* Causal attention has half of two products of length^2 * dim per head. */
static double attention_macs(const attention_size *z)
{
    return (double)(z->batch * z->heads * z->length) * (double)(z->length * z->dim);
}

static invar_attention_fwd_args make_attention(invar_bench *b, const attention_size *z)
{
    int64_t tokens = z->batch * z->length, span = z->length > SPAN ? SPAN : 0;

    return (invar_attention_fwd_args){.o = invar_bench_heads(b, tokens, z->heads, z->dim),
                                      .lse2 = invar_bench_make(b, F32, tokens, z->heads),
                                      .q = invar_bench_heads(b, tokens, z->heads, z->dim),
                                      .k = invar_bench_heads(b, tokens, z->kv_heads, z->dim),
                                      .v = invar_bench_heads(b, tokens, z->kv_heads, z->dim),
                                      .samples = invar_bench_offsets(b, tokens, z->batch),
                                      .shape = {.kv_span = span, .q_span = span}};
}

invar_status invar_bench_op_attention_fwd(invar_bench *b)
{
    for (const attention_size *z = b->local ? gpu_attention : cpu_attention; z->batch > 0; z++) {
        invar_attention_fwd_args args = make_attention(b, z);
        INVAR_TRY(run_attention(b, &args, z, INVAR_BENCH_UNIT_MAC, attention_macs(z)));
    }
    return INVAR_OK;
}

invar_status invar_bench_op_attention_bwd(invar_bench *b)
{
    for (const attention_size *z = b->local ? gpu_attention : cpu_attention; z->batch > 0; z++) {
        int64_t tokens = z->batch * z->length;
        invar_attention_fwd_args fwd = make_attention(b, z);
        invar_attention_bwd_args args = {.dq = invar_bench_heads(b, tokens, z->heads, z->dim),
                                         .dk = invar_bench_heads(b, tokens, z->kv_heads, z->dim),
                                         .dv = invar_bench_heads(b, tokens, z->kv_heads, z->dim),
                                         .d_o = invar_bench_heads(b, tokens, z->heads, z->dim),
                                         .o = fwd.o,
                                         .lse2 = fwd.lse2,
                                         .q = fwd.q,
                                         .k = fwd.k,
                                         .v = fwd.v,
                                         .samples = fwd.samples,
                                         .shape = fwd.shape};
        invar_bench_prepare(b, INVAR_OP_ATTENTION_FWD, &fwd);
        // five products instead of two
        INVAR_TRY(run_attention(b, &args, z, INVAR_BENCH_UNIT_MAC, 2.5 * attention_macs(z)));
    }
    return INVAR_OK;
}

/* Makes a KV cache of sequences with scattered pages. */
static invar_kv_pages make_cache(invar_bench *b, int64_t sequences, int64_t length)
{
    const invar_bench_sizes *z = b->sizes;
    int64_t each = length / PAGE, pages = sequences * each;
    invar_tensor k = invar_bench_make(b, BF16, pages, PAGE * z->kv_heads * z->dim);
    invar_tensor v = invar_bench_make(b, BF16, pages, PAGE * z->kv_heads * z->dim);

    return (invar_kv_pages){invar_tensor_4d(k.data, k.dtype, pages, PAGE, z->kv_heads, z->dim),
                            invar_tensor_4d(v.data, v.dtype, pages, PAGE, z->kv_heads, z->dim),
                            invar_bench_indices(b, sequences, each, pages, 1021)};
}

static const int64_t *make_lengths(invar_bench *b, int64_t sequences, int64_t length)
{
    int64_t lengths[256];

    INVAR_CHECK(sequences <= (int64_t)(sizeof lengths / sizeof *lengths));
    for (int64_t i = 0; i < sequences; i++)
        lengths[i] = length;
    return invar_bench_array(b, lengths, (size_t)sequences * sizeof *lengths);
}

/* Decode: one new row per sequence. On a GPU the bytes count: those of keys and values. */
invar_status invar_bench_op_attention_paged(invar_bench *b)
{
    const invar_bench_sizes *s = b->sizes;
    const attention_size z = {s->sequences, s->context, s->heads, s->kv_heads, s->dim};
    double cached = (double)(s->sequences * s->context * s->dim);
    invar_attention_paged_args args = {.o = invar_bench_heads(b, s->sequences, s->heads, s->dim),
                                       .q = invar_bench_heads(b, s->sequences, s->heads, s->dim),
                                       .cache = make_cache(b, s->sequences, s->context),
                                       .rows = invar_bench_offsets(b, s->sequences, s->sequences),
                                       .lengths = make_lengths(b, s->sequences, s->context)};

    if (b->local)
        return run_attention(b, &args, &z, INVAR_BENCH_UNIT_BYTE,
                             4.0 * cached * (double)s->kv_heads);
    return run_attention(b, &args, &z, INVAR_BENCH_UNIT_MAC, 2.0 * cached * (double)s->heads);
}

/* Prefill: all sequences are new. */
invar_status invar_bench_op_kv_write(invar_bench *b)
{
    const invar_bench_sizes *z = b->sizes;
    int64_t length = z->tokens / z->new_sequences;
    invar_kv_write_args args = {.cache = make_cache(b, z->new_sequences, length),
                                .k = invar_bench_heads(b, z->tokens, z->kv_heads, z->dim),
                                .v = invar_bench_heads(b, z->tokens, z->kv_heads, z->dim),
                                .rows = invar_bench_offsets(b, z->tokens, z->new_sequences),
                                .lengths = make_lengths(b, z->new_sequences, length)};

    return invar_bench_case_works(b, &args, BF16, SHAPE(z->tokens, z->kv_heads, z->dim),
                                  INVAR_BENCH_UNIT_BYTE,
                                  8.0 * (double)(z->tokens * z->kv_heads * z->dim));
}

/* ---- log-probs and sampling ------------------------------------------------------------------ */

static invar_logprob_fwd_args make_logprob(invar_bench *b)
{
    int64_t n = b->sizes->logit_rows;

    return (invar_logprob_fwd_args){.logp = invar_bench_vector(b, F32, n),
                                    .entropy = invar_bench_vector(b, F32, n),
                                    .max = invar_bench_vector(b, F32, n),
                                    .logsum = invar_bench_vector(b, F32, n),
                                    .logits = invar_bench_make(b, F32, n, VOCABULARY),
                                    .targets = invar_bench_indices(b, n, 1, VOCABULARY, ID_STEP),
                                    .temperature = 1.0f};
}

invar_status invar_bench_op_logprob_fwd(invar_bench *b)
{
    invar_logprob_fwd_args args = make_logprob(b);

    return invar_bench_case_moves(b, &args, F32, SHAPE(b->sizes->logit_rows, VOCABULARY));
}

invar_status invar_bench_op_logprob_bwd(invar_bench *b)
{
    int64_t n = b->sizes->logit_rows;
    invar_logprob_fwd_args fwd = make_logprob(b);
    invar_logprob_bwd_args args = {.dlogits = invar_bench_make(b, BF16, n, VOCABULARY),
                                   .dlogp = invar_bench_vector(b, F32, n),
                                   .dentropy = invar_bench_vector(b, F32, n),
                                   .entropy = fwd.entropy,
                                   .max = fwd.max,
                                   .logsum = fwd.logsum,
                                   .logits = fwd.logits,
                                   .targets = fwd.targets,
                                   .temperature = 1.0f};

    invar_bench_prepare(b, INVAR_OP_LOGPROB_FWD, &fwd);
    return invar_bench_case_moves(b, &args, BF16, SHAPE(n, VOCABULARY));
}

/* The part of one of RANKS ranks. */
invar_status invar_bench_op_logprob_sum(invar_bench *b)
{
    int64_t ids = VOCABULARY / INVAR_LOGPROB_CHUNK / RANKS * INVAR_LOGPROB_CHUNK;
    int64_t n = b->sizes->logit_rows;
    invar_logprob_sum_args args = {
        .sums = invar_bench_make(b, F32, n, invar_logprob_sum_columns(VOCABULARY, RANKS)),
        .logits = invar_bench_make(b, F32, n, ids),
        .targets = invar_bench_indices(b, n, 1, ids, ID_STEP),
        .temperature = 1.0f};

    return invar_bench_case_moves(b, &args, F32, SHAPE(n, ids));
}

invar_status invar_bench_op_logprob_join(invar_bench *b)
{
    int64_t n = b->sizes->logit_rows;
    invar_logprob_fwd_args fwd = make_logprob(b);
    invar_logprob_join_args args = {
        .logp = fwd.logp,
        .entropy = fwd.entropy,
        .max = fwd.max,
        .logsum = fwd.logsum,
        .sums = invar_bench_make(b, F32, RANKS * n, invar_logprob_sum_columns(VOCABULARY, RANKS)),
        .targets = fwd.targets,
        .vocabulary = VOCABULARY,
        .parts = RANKS,
        .temperature = 1.0f};

    return invar_bench_case_moves(b, &args, F32, SHAPE(n, VOCABULARY));
}

invar_status invar_bench_op_sample(invar_bench *b)
{
    invar_sample_coords coords[256];
    int64_t n = b->sizes->sample_rows;
    invar_sample_args args = {.tokens = invar_bench_indices(b, n, 1, VOCABULARY, 1),
                              .logits = invar_bench_make(b, F32, n, VOCABULARY),
                              .seed = 42,
                              .purpose = 1,
                              .temperature = 1.0f,
                              .top_p = 1.0f};

    INVAR_CHECK(n <= (int64_t)(sizeof coords / sizeof *coords));
    for (uint32_t t = 0; t < (uint32_t)n; t++)
        coords[t] = (invar_sample_coords){.position = t, .sample = 7, .rollout = 3};
    args.coords = invar_bench_array(b, coords, (size_t)n * sizeof *coords);
    if (b->local)
        return invar_bench_case_moves(b, &args, F32, SHAPE(n, VOCABULARY));
    args.temperature = 0.8f;
    args.top_k = 50;
    args.top_p = 0.95f;
    args.min_p = 0.01f;
    return invar_bench_case_works(b, &args, F32, SHAPE(n, VOCABULARY), INVAR_BENCH_UNIT_TOKEN,
                                  (double)n);
}

/* ---- optimizer, hashing ---------------------------------------------------------------------- */

/* Runs a case that also hashes what it reads or writes, as a training step does. */
static invar_status run_hashed(invar_bench *b, const void *args)
{
    invar_bench_case c = {.args = {args},
                          .type = F32,
                          .unit = INVAR_BENCH_UNIT_BYTE,
                          .work = invar_bench_bytes(b->op, args)};

    return invar_bench_case_run(b, &c, SHAPE(b->sizes->parameters), " hashed");
}

invar_status invar_bench_op_grad_norm(invar_bench *b)
{
    float norm, clip;
    invar_digest digest;

    for (int hashed = 0; hashed < 2; hashed++) {
        invar_tensor grad = invar_bench_vector(b, F32, b->sizes->parameters);
        invar_grad_norm_args args = {.norm = &norm,
                                     .clip = &clip,
                                     .grads = &grad,
                                     .count = 1,
                                     .max_norm = 1.0f,
                                     .digest = hashed ? &digest : NULL};
        INVAR_TRY(hashed ? run_hashed(b, &args)
                         : invar_bench_case_moves(b, &args, F32, SHAPE(b->sizes->parameters)));
    }
    return INVAR_OK;
}

invar_status invar_bench_op_adamw(invar_bench *b)
{
    int64_t n = b->sizes->parameters;

    for (int hashed = 0; hashed < 2; hashed++) {
        invar_adamw_args args = {.weight = invar_bench_vector(b, BF16, n),
                                 .master = invar_bench_vector(b, F32, n),
                                 .m = invar_tensor_1d(invar_bench_zero(b, F32, 1, n).data, F32, n),
                                 .v = invar_tensor_1d(invar_bench_zero(b, F32, 1, n).data, F32, n),
                                 .grad = invar_bench_vector(b, F32, n),
                                 .clip = 1.0f,
                                 .lr = 1e-6f,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.98f,
                                 .eps = 1e-8f,
                                 .beta1_power = 0.5f,
                                 .beta2_power = 0.5f};
        if (hashed) {
            args.digest = invar_bench_alloc(b, sizeof *args.digest);
            args.end = &n;
            args.tensors = 1;
        }
        INVAR_TRY(hashed ? run_hashed(b, &args) : invar_bench_case_moves(b, &args, F32, SHAPE(n)));
    }
    return INVAR_OK;
}

invar_status invar_bench_op_hash_tree(invar_bench *b)
{
    invar_tensor x = invar_bench_make(b, BF16, b->sizes->hash_rows, b->sizes->hash_columns);
    invar_hash_tree_args args = {
        .digest = invar_bench_alloc(b, sizeof *args.digest), .x = &x, .count = 1, .shards = 1};

    return invar_bench_case_moves(b, &args, BF16, SHAPE(x.shape[0], x.shape[1]));
}

/* Hashes the same bytes as hash.tree, divided into samples, which hash.tree does not know. */
invar_status invar_bench_op_hash_leaves(invar_bench *b)
{
    enum { SAMPLES = 8, LEAF = 16384 };
    int64_t rows = b->sizes->hash_rows, leaves = rows * b->sizes->hash_columns * 2 / LEAF;
    invar_hash_leaves_args args = {.digest =
                                       invar_bench_alloc(b, (size_t)leaves * sizeof *args.digest),
                                   .x = invar_bench_make(b, BF16, rows, b->sizes->hash_columns),
                                   .samples = invar_bench_offsets(b, rows, SAMPLES),
                                   .leaves = leaves};

    return invar_bench_case_moves(b, &args, BF16, SHAPE(rows, b->sizes->hash_columns));
}
