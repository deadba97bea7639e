/*
 * bench_gpu.c - invar bench --device cuda: ops at the sizes of training and decoding, on the GPU.
 *
 * The rows of bench_race.c: products and attention beside what --peer brings, ops that move data
 * beside a copy, over as many sets of operands as it takes to overflow the cache. Of forward
 * products in bf16 some elements are also computed by the CPU and compared bit by bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "cli/bench.h"
#include "kernels-deterministic/row.h"

#include "base/invar_banned.h"

#define CACHE_BYTES ((size_t)120 << 20) /* twice the second-level cache */
#define NOISE_BYTES ((size_t)1 << 24)

typedef struct bench {
    invar_device gpu;
    invar_device cpu;
    const char *only; /* part of an op's name */
    invar_race *race;
    int64_t compared, different; /* elements */
    uint16_t *noise;             /* NOISE_BYTES of bf16 */
    void *taken[64];             /* memory of the current row */
    int n_taken;
} bench;

/* ---- memory ---------------------------------------------------------------------------------- */

static invar_status take(void **out, bench *b, size_t bytes)
{
    INVAR_CHECK(b->n_taken < (int)(sizeof b->taken / sizeof *b->taken));
    INVAR_TRY(invar_device_take(&b->gpu, out, bytes, "tensors of a benchmark"));
    b->taken[b->n_taken++] = *out;
    return INVAR_OK;
}

static void give_all(bench *b)
{
    while (b->n_taken > 0)
        invar_device_give(&b->gpu, b->taken[--b->n_taken]);
}

static invar_status make_noise(bench *b)
{
    uint64_t state = 1;

    INVAR_TRY(invar_alloc((void **)&b->noise, NOISE_BYTES, 1, "noise"));
    for (size_t i = 0; i < NOISE_BYTES / sizeof *b->noise; i++) {
        invar_tensor at = invar_tensor_1d(&b->noise[i], INVAR_DTYPE_BF16, 1);
        float value = invar_bench_noise(&state);
        invar_row_store(&at, 0, 0, 1, &value);
    }
    return INVAR_OK;
}

/* Noise as bf16, as f32 (bf16 in the high halves), or as bytes. */
static invar_status fill(bench *b, void *to, size_t bytes)
{
    size_t period = NOISE_BYTES - 2 * 997; // rows do not repeat

    for (size_t at = 0; at < bytes; at += period)
        INVAR_TRY(invar_device_put(&b->gpu, (char *)to + at, b->noise,
                                   bytes - at < period ? bytes - at : period));
    return INVAR_OK;
}

static size_t tensor_bytes(invar_dtype dtype, int64_t rows, int64_t cols)
{
    return (size_t)(rows * cols) * (size_t)invar_dtype_bits(dtype) / 8;
}

static invar_status make(invar_tensor *out, bench *b, invar_dtype dtype, int64_t rows, int64_t cols)
{
    size_t bytes = tensor_bytes(dtype, rows, cols);
    void *data;

    INVAR_TRY(take(&data, b, bytes));
    INVAR_TRY(fill(b, data, bytes));
    *out = invar_tensor_2d(data, dtype, rows, cols);
    return INVAR_OK;
}

/* For results. */
static invar_status room(invar_tensor *out, bench *b, invar_dtype dtype, int64_t rows, int64_t cols)
{
    void *data;

    INVAR_TRY(take(&data, b, tensor_bytes(dtype, rows, cols)));
    *out = invar_tensor_2d(data, dtype, rows, cols);
    return INVAR_OK;
}

static invar_status make_array(void **out, bench *b, const void *from, size_t bytes)
{
    INVAR_TRY(take(out, b, bytes));
    return invar_device_put(&b->gpu, *out, from, bytes);
}

/* ---- a row ----------------------------------------------------------------------------------- */

/* Scratch of exactly what a call needs; the caller frees it with end_scratch. */
static invar_status begin_scratch(invar_device *dev, invar_op op, const void *args)
{
    size_t bytes;

    INVAR_TRY(invar_op_workspace(&bytes, dev, op, args));
    INVAR_TRY(invar_device_arena(&dev->scratch, dev, "scratch of a benchmark"));
    INVAR_TRY(invar_arena_plan_scratch(dev->scratch, bytes + INVAR_ALIGN));
    return invar_arena_reserve(dev->scratch);
}

static void end_scratch(invar_device *dev)
{
    invar_arena_free(dev->scratch);
    dev->scratch = NULL;
}

static invar_status race(bench *b, const invar_race_row *row)
{
    INVAR_TRY(begin_scratch(&b->gpu, row->op, row->args[0]));
    return invar_race_run(b->race, row);
}

/* ---- products -------------------------------------------------------------------------------- */

typedef struct size3 {
    int64_t m, n, k;
} size3;

static const size3 forward_sizes[] = {
    {8192, 8192, 8192}, {4096, 4096, 4096},  {8192, 4096, 14336}, {8192, 14336, 4096},
    {8192, 896, 4864},  {8192, 151936, 896}, {16384, 1024, 3072}, {1024, 4096, 4096},
    {256, 4096, 4096},  {64, 4096, 4096},    {16, 4096, 4096},    {1, 4096, 4096},
};
enum { DECODING = 9 }; /* from this size on */
static const size3 weight_sizes[] = {{1024, 3072, 16384}, {2048, 1024, 16384}, {4096, 4096, 16384}};

/* Some rows and columns of y, by the CPU. */
static invar_status compare_forward(int64_t *compared, int64_t *different, bench *b,
                                    const invar_linear_fwd_args *a)
{
    enum { ROWS = 2, COLS = 32 };
    int64_t k = a->x.shape[1], m = a->x.shape[0], n = a->w.shape[0];
    int64_t rows = m < ROWS ? m : ROWS, row0 = (m - rows) / 2, col0 = (n - COLS) / 3;
    size_t wide = (size_t)k * 2;
    invar_linear_fwd_args small = {.k_shards = 1};
    float expected[ROWS * COLS], got[COLS];
    invar_status status;
    char *memory;

    INVAR_TRY(invar_alloc((void **)&memory, (ROWS + COLS) * wide, 1, "rows of operands"));
    small.x = invar_tensor_2d(memory, INVAR_DTYPE_BF16, rows, k);
    small.w = invar_tensor_2d(memory + ROWS * wide, INVAR_DTYPE_BF16, COLS, k);
    small.y = invar_tensor_2d(expected, INVAR_DTYPE_F32, rows, COLS);
    status = invar_device_get(&b->gpu, small.x.data, (char *)a->x.data + (size_t)row0 * wide,
                              (size_t)rows * wide);
    if (status == INVAR_OK)
        status = invar_device_get(&b->gpu, small.w.data, (char *)a->w.data + (size_t)col0 * wide,
                                  COLS * wide);
    if (status == INVAR_OK)
        status = begin_scratch(&b->cpu, INVAR_OP_LINEAR_FWD, &small);
    if (status == INVAR_OK)
        status = invar_linear_fwd(&b->cpu, &small);
    end_scratch(&b->cpu);
    for (int64_t i = 0; i < rows && status == INVAR_OK; i++) {
        status = invar_device_get(
            &b->gpu, got, (float *)a->y.data + (row0 + i) * a->y.row_stride + col0, sizeof got);
        for (int64_t j = 0; j < COLS && status == INVAR_OK; j++)
            *different += memcmp(&got[j], &expected[i * COLS + j], sizeof *got) != 0;
        *compared += COLS;
    }
    invar_free(memory);
    return status;
}

enum { SHAPE_SIZE = 64 };

/* (m, n) by k products each, with operands of this type. */
static invar_race_row product_row(invar_op op, invar_dtype type, size3 z, char shape[SHAPE_SIZE])
{
    size_t touched = tensor_bytes(type, z.m + z.n, z.k) + tensor_bytes(INVAR_DTYPE_BF16, z.m, z.n);
    size_t sets = CACHE_BYTES / touched + 1;

    snprintf(shape, SHAPE_SIZE, "%" PRId64 "x%" PRId64 "x%" PRId64, z.m, z.n, z.k);
    return (invar_race_row){.op = op,
                            .type = invar_dtype_name(type),
                            .shape = shape,
                            .sets = sets > INVAR_RACE_SETS ? INVAR_RACE_SETS : (int)sets,
                            .work = 2.0 * (double)z.m * (double)z.n * (double)z.k};
}

static invar_status forward(bench *b, size3 z)
{
    invar_linear_fwd_args args[INVAR_RACE_SETS];
    char shape[SHAPE_SIZE];
    invar_race_row row = product_row(INVAR_OP_LINEAR_FWD, INVAR_DTYPE_BF16, z, shape);

    for (int i = 0; i < row.sets; i++) {
        args[i] = (invar_linear_fwd_args){.k_shards = 1};
        INVAR_TRY(make(&args[i].x, b, INVAR_DTYPE_BF16, z.m, z.k));
        INVAR_TRY(make(&args[i].w, b, INVAR_DTYPE_BF16, z.n, z.k));
        INVAR_TRY(room(&args[i].y, b, INVAR_DTYPE_F32, z.m, z.n));
        row.args[i] = &args[i];
    }
    INVAR_TRY(begin_scratch(&b->gpu, row.op, &args[0]));
    INVAR_TRY(invar_op_run(&b->gpu, row.op, &args[0]));
    end_scratch(&b->gpu);
    INVAR_TRY(compare_forward(&row.compared, &row.different, b, &args[0]));
    b->compared += row.compared;
    b->different += row.different;
    for (int i = 0; i < row.sets; i++) // what a linear layer stores
        args[i].y.dtype = INVAR_DTYPE_BF16;
    return race(b, &row);
}

static invar_status input_gradient(bench *b, size3 z)
{
    invar_linear_dx_args args[INVAR_RACE_SETS];
    char shape[SHAPE_SIZE];
    invar_race_row row = product_row(INVAR_OP_LINEAR_DX, INVAR_DTYPE_BF16, z, shape);

    for (int i = 0; i < row.sets; i++) {
        args[i] = (invar_linear_dx_args){.n_parts = 1, .k_shards = 1};
        INVAR_TRY(room(&args[i].dx, b, INVAR_DTYPE_BF16, z.m, z.n));
        INVAR_TRY(make(&args[i].parts[0].dy, b, INVAR_DTYPE_BF16, z.m, z.k));
        INVAR_TRY(make(&args[i].parts[0].w, b, INVAR_DTYPE_BF16, z.k, z.n));
        row.args[i] = &args[i];
    }
    return race(b, &row);
}

static invar_status weight_gradient(bench *b, size3 z)
{
    enum { UNITS = 8 };
    int64_t start[UNITS + 1];
    invar_linear_dw_args args[INVAR_RACE_SETS];
    void *units;
    char shape[SHAPE_SIZE];
    invar_race_row row = product_row(INVAR_OP_LINEAR_DW, INVAR_DTYPE_BF16, z, shape);

    for (int i = 0; i <= UNITS; i++)
        start[i] = z.k / UNITS * i;
    INVAR_TRY(make_array(&units, b, start, sizeof start));
    for (int i = 0; i < row.sets; i++) {
        args[i] = (invar_linear_dw_args){.units = {units, UNITS}};
        INVAR_TRY(make(&args[i].dw, b, INVAR_DTYPE_F32, z.m, z.n));
        INVAR_TRY(make(&args[i].dy, b, INVAR_DTYPE_BF16, z.k, z.m));
        INVAR_TRY(make(&args[i].x, b, INVAR_DTYPE_BF16, z.k, z.n));
        row.args[i] = &args[i];
    }
    return race(b, &row);
}

static const size3 fp8_sizes[] = {{8192, 8192, 8192}, {4096, 4096, 4096}, {8192, 4096, 14336}};

static invar_status quantised(invar_tensor *out, bench *b, invar_dtype dtype, int32_t scale_rows,
                              int64_t rows, int64_t cols)
{
    invar_quantise_args q = {.q =
                                 invar_tensor_quantised(NULL, NULL, dtype, scale_rows, rows, cols)};
    invar_status status;

    INVAR_TRY(make(&q.x, b, INVAR_DTYPE_BF16, rows, cols));
    INVAR_TRY(take(&q.q.data, b, tensor_bytes(dtype, rows, cols)));
    INVAR_TRY(take(&q.q.scale, b, invar_tensor_scale_bytes(&q.q)));
    *out = q.q;
    INVAR_TRY(begin_scratch(&b->gpu, INVAR_OP_QUANTISE, &q));
    status = invar_quantise(&b->gpu, &q);
    end_scratch(&b->gpu);
    return status;
}

static invar_status forward_quantised(bench *b, invar_dtype dtype, size3 z)
{
    bool weights_only = dtype == INVAR_DTYPE_INT4;
    invar_linear_fwd_args args[INVAR_RACE_SETS];
    char shape[SHAPE_SIZE];
    invar_race_row row = product_row(INVAR_OP_LINEAR_FWD, dtype, z, shape);

    for (int i = 0; i < row.sets; i++) {
        args[i] = (invar_linear_fwd_args){.k_shards = 1};
        if (weights_only)
            INVAR_TRY(make(&args[i].x, b, INVAR_DTYPE_BF16, z.m, z.k));
        else
            INVAR_TRY(quantised(&args[i].x, b, dtype, 1, z.m, z.k));
        INVAR_TRY(quantised(&args[i].w, b, dtype, dtype == INVAR_DTYPE_FP8 ? INVAR_FP8_BLOCK : 1,
                            z.n, z.k));
        INVAR_TRY(room(&args[i].y, b, INVAR_DTYPE_BF16, z.m, z.n));
        row.args[i] = &args[i];
    }
    return race(b, &row);
}

/* ---- attention ------------------------------------------------------------------------------- */

typedef struct attention_size {
    int64_t batch, heads, kv_heads, length, dim;
} attention_size;

static const attention_size attention_sizes[] = {
    {4, 16, 16, 4096, 128}, {1, 32, 32, 16384, 128}, {8, 16, 16, 2048, 128},
    {16, 14, 14, 1024, 64}, {8, 16, 8, 2048, 128},
};

static invar_status make_heads(invar_tensor *out, bench *b, int64_t tokens, int64_t heads,
                               int64_t dim)
{
    INVAR_TRY(make(out, b, INVAR_DTYPE_BF16, tokens, heads * dim));
    *out = invar_tensor_3d(out->data, INVAR_DTYPE_BF16, tokens, heads, dim);
    return INVAR_OK;
}

static invar_status attention(bench *b, attention_size z)
{
    int64_t tokens = z.batch * z.length, start[17];
    invar_attention_fwd_args f = {0};
    invar_attention_bwd_args g = {0};
    double flops = 2.0 * (double)(z.batch * z.heads * z.length) * (double)(z.length * z.dim);
    char shape[SHAPE_SIZE];
    void *samples;
    invar_race_row row = {.op = INVAR_OP_ATTENTION_FWD,
                          .type = "bf16",
                          .shape = shape,
                          .args = {&f},
                          .sets = 1,
                          .work = flops};

    snprintf(shape, sizeof shape, "B%" PRId64 " H%" PRId64 "/%" PRId64 " S%" PRId64 " D%" PRId64,
             z.batch, z.heads, z.kv_heads, z.length, z.dim);
    for (int64_t i = 0; i <= z.batch; i++)
        start[i] = i * z.length;
    INVAR_TRY(make_array(&samples, b, start, (size_t)(z.batch + 1) * sizeof *start));
    f.samples = (invar_segments){samples, z.batch};
    INVAR_TRY(make_heads(&f.q, b, tokens, z.heads, z.dim));
    INVAR_TRY(make_heads(&f.k, b, tokens, z.kv_heads, z.dim));
    INVAR_TRY(make_heads(&f.v, b, tokens, z.kv_heads, z.dim));
    INVAR_TRY(make_heads(&f.o, b, tokens, z.heads, z.dim));
    INVAR_TRY(room(&f.lse2, b, INVAR_DTYPE_F32, tokens, z.heads));
    INVAR_TRY(race(b, &row));
    end_scratch(&b->gpu);
    g = (invar_attention_bwd_args){
        .q = f.q, .k = f.k, .v = f.v, .o = f.o, .lse2 = f.lse2, .samples = f.samples};
    INVAR_TRY(make_heads(&g.d_o, b, tokens, z.heads, z.dim));
    INVAR_TRY(make_heads(&g.dq, b, tokens, z.heads, z.dim));
    INVAR_TRY(make_heads(&g.dk, b, tokens, z.kv_heads, z.dim));
    INVAR_TRY(make_heads(&g.dv, b, tokens, z.kv_heads, z.dim));
    row.op = INVAR_OP_ATTENTION_BWD;
    row.args[0] = &g;
    row.work = 2.5 * flops;
    return race(b, &row);
}

/* ---- what moves data ------------------------------------------------------------------------- */

enum { TOKENS = 16384, HIDDEN = 4096, VOCABULARY = 151936 };

static invar_status moves(bench *b, invar_op op, const void *args, const char *shape, double bytes)
{
    invar_race_row row = {
        .op = op, .type = "bf16", .shape = shape, .args = {args}, .sets = 1, .work = bytes};
    size_t half = (size_t)(bytes / 2);

    INVAR_TRY(take(&row.copy_to, b, half));
    INVAR_TRY(take(&row.copy_from, b, half));
    INVAR_TRY(fill(b, row.copy_from, half));
    return race(b, &row);
}

static invar_status bench_add(bench *b)
{
    invar_add_args a = {0};

    INVAR_TRY(make(&a.a, b, INVAR_DTYPE_BF16, TOKENS, HIDDEN));
    INVAR_TRY(make(&a.b, b, INVAR_DTYPE_BF16, TOKENS, HIDDEN));
    INVAR_TRY(room(&a.out, b, INVAR_DTYPE_BF16, TOKENS, HIDDEN));
    return moves(b, INVAR_OP_ADD, &a, "16384x4096", 3.0 * TOKENS * HIDDEN * 2);
}

static invar_status bench_rmsnorm(bench *b)
{
    invar_rmsnorm_fwd_args a = {.eps = 1e-6f};

    INVAR_TRY(make(&a.x, b, INVAR_DTYPE_BF16, TOKENS, HIDDEN));
    INVAR_TRY(room(&a.y, b, INVAR_DTYPE_BF16, TOKENS, HIDDEN));
    INVAR_TRY(make(&a.weight, b, INVAR_DTYPE_BF16, 1, HIDDEN));
    a.x = invar_tensor_3d(a.x.data, INVAR_DTYPE_BF16, TOKENS, 1, HIDDEN);
    a.y = invar_tensor_3d(a.y.data, INVAR_DTYPE_BF16, TOKENS, 1, HIDDEN);
    a.weight = invar_tensor_1d(a.weight.data, INVAR_DTYPE_BF16, HIDDEN);
    return moves(b, INVAR_OP_RMSNORM_FWD, &a, "16384x4096", 2.0 * TOKENS * HIDDEN * 2);
}

static invar_status bench_swiglu(bench *b)
{
    invar_swiglu_fwd_args a = {0};

    INVAR_TRY(make(&a.gate, b, INVAR_DTYPE_BF16, TOKENS, HIDDEN));
    INVAR_TRY(make(&a.up, b, INVAR_DTYPE_BF16, TOKENS, HIDDEN));
    INVAR_TRY(room(&a.y, b, INVAR_DTYPE_BF16, TOKENS, HIDDEN));
    return moves(b, INVAR_OP_SWIGLU_FWD, &a, "16384x4096", 3.0 * TOKENS * HIDDEN * 2);
}

static invar_status bench_hash(bench *b)
{
    invar_tensor x;
    invar_hash_tree_args a = {.x = &x, .count = 1, .shards = 1};
    void *digest;

    INVAR_TRY(make(&x, b, INVAR_DTYPE_BF16, 4 * TOKENS, HIDDEN));
    INVAR_TRY(take(&digest, b, sizeof *a.digest));
    a.digest = digest;
    return moves(b, INVAR_OP_HASH_TREE, &a, "65536x4096", 4.0 * TOKENS * HIDDEN * 2);
}

static invar_status bench_adamw(bench *b)
{
    enum { COUNT = 1 << 28 };
    invar_adamw_args a = {.clip = 1.0f,
                          .lr = 1e-6f,
                          .beta1 = 0.9f,
                          .beta2 = 0.98f,
                          .eps = 1e-8f,
                          .beta1_power = 0.5f,
                          .beta2_power = 0.5f};
    invar_tensor *f32[] = {&a.master, &a.m, &a.v, &a.grad};

    for (size_t i = 0; i < sizeof f32 / sizeof *f32; i++) {
        INVAR_TRY(make(f32[i], b, INVAR_DTYPE_F32, 1, COUNT));
        *f32[i] = invar_tensor_1d(f32[i]->data, INVAR_DTYPE_F32, COUNT);
    }
    INVAR_TRY(invar_device_zero(&b->gpu, a.v.data, (size_t)COUNT * sizeof(float)));
    INVAR_TRY(make(&a.weight, b, INVAR_DTYPE_BF16, 1, COUNT));
    a.weight = invar_tensor_1d(a.weight.data, INVAR_DTYPE_BF16, COUNT);
    return moves(b, INVAR_OP_ADAMW, &a, "268435456", 30.0 * COUNT);
}

static invar_status bench_logprob(bench *b)
{
    enum { ROWS = 4096 };
    static int32_t targets[ROWS];
    invar_logprob_fwd_args a = {.temperature = 1.0f};
    invar_tensor *f32[] = {&a.logp, &a.entropy, &a.max, &a.logsum};
    void *ids;

    for (int i = 0; i < ROWS; i++)
        targets[i] = i * 37 % VOCABULARY;
    INVAR_TRY(make(&a.logits, b, INVAR_DTYPE_F32, ROWS, VOCABULARY));
    for (size_t i = 0; i < sizeof f32 / sizeof *f32; i++) {
        INVAR_TRY(make(f32[i], b, INVAR_DTYPE_F32, 1, ROWS));
        *f32[i] = invar_tensor_1d(f32[i]->data, INVAR_DTYPE_F32, ROWS);
    }
    INVAR_TRY(make_array(&ids, b, targets, sizeof targets));
    a.targets = invar_tensor_1d(ids, INVAR_DTYPE_I32, ROWS);
    return moves(b, INVAR_OP_LOGPROB_FWD, &a, "4096x151936", 4.0 * ROWS * VOCABULARY);
}

static invar_status bench_sample(bench *b)
{
    enum { ROWS = 256 };
    static invar_sample_coords coords[ROWS];
    invar_sample_args a = {.temperature = 1.0f, .top_p = 1.0f};
    void *at;

    for (int i = 0; i < ROWS; i++)
        coords[i] = (invar_sample_coords){7, (uint32_t)i, 1};
    INVAR_TRY(make(&a.logits, b, INVAR_DTYPE_F32, ROWS, VOCABULARY));
    INVAR_TRY(make(&a.tokens, b, INVAR_DTYPE_I32, 1, ROWS));
    a.tokens = invar_tensor_1d(a.tokens.data, INVAR_DTYPE_I32, ROWS);
    INVAR_TRY(make_array(&at, b, coords, sizeof coords));
    a.coords = at;
    return moves(b, INVAR_OP_SAMPLE, &a, "256x151936", 4.0 * ROWS * VOCABULARY);
}

/* ---- the run --------------------------------------------------------------------------------- */

/* A row ends: its memory and its scratch go back, whatever came of it. */
static invar_status end_row(bench *b, invar_status status)
{
    end_scratch(&b->gpu);
    give_all(b);
    return status;
}

#define SIZES(list) (sizeof(list) / sizeof *(list))

static bool wanted(const bench *b, invar_op op)
{
    return strstr(invar_op_name(op), b->only) != NULL;
}

static invar_status products(bench *b)
{
    for (size_t i = 0; i < SIZES(forward_sizes) && wanted(b, INVAR_OP_LINEAR_FWD); i++)
        INVAR_TRY(end_row(b, forward(b, forward_sizes[i])));
    for (size_t i = 0; i < SIZES(fp8_sizes) && wanted(b, INVAR_OP_LINEAR_FWD); i++) {
        INVAR_TRY(end_row(b, forward_quantised(b, INVAR_DTYPE_FP8, fp8_sizes[i])));
        INVAR_TRY(end_row(b, forward_quantised(b, INVAR_DTYPE_MXFP8, fp8_sizes[i])));
        INVAR_TRY(end_row(b, forward_quantised(b, INVAR_DTYPE_INT4, fp8_sizes[i])));
    }
    for (size_t i = DECODING; i < SIZES(forward_sizes) && wanted(b, INVAR_OP_LINEAR_FWD); i++)
        INVAR_TRY(end_row(b, forward_quantised(b, INVAR_DTYPE_INT4, forward_sizes[i])));
    for (size_t i = 0; i < SIZES(fp8_sizes) && wanted(b, INVAR_OP_LINEAR_DX); i++)
        INVAR_TRY(end_row(b, input_gradient(b, fp8_sizes[i])));
    for (size_t i = 0; i < SIZES(weight_sizes) && wanted(b, INVAR_OP_LINEAR_DW); i++)
        INVAR_TRY(end_row(b, weight_gradient(b, weight_sizes[i])));
    return INVAR_OK;
}

static invar_status run_rows(bench *b)
{
    static const struct {
        invar_op op;
        invar_status (*run)(bench *b);
    } others[] = {
        {INVAR_OP_ADD, bench_add},           {INVAR_OP_RMSNORM_FWD, bench_rmsnorm},
        {INVAR_OP_SWIGLU_FWD, bench_swiglu}, {INVAR_OP_LOGPROB_FWD, bench_logprob},
        {INVAR_OP_SAMPLE, bench_sample},     {INVAR_OP_ADAMW, bench_adamw},
        {INVAR_OP_HASH_TREE, bench_hash},
    };

    INVAR_TRY(products(b));
    for (size_t i = 0; i < SIZES(attention_sizes); i++)
        if (wanted(b, INVAR_OP_ATTENTION_FWD) || wanted(b, INVAR_OP_ATTENTION_BWD))
            INVAR_TRY(end_row(b, attention(b, attention_sizes[i])));
    for (size_t i = 0; i < SIZES(others); i++)
        if (wanted(b, others[i].op))
            INVAR_TRY(end_row(b, others[i].run(b)));
    return INVAR_OK;
}

static invar_status run(bench *b, const invar_race_options *options)
{
    invar_status status;
    int rows;

    INVAR_TRY(invar_device_open(&b->gpu));
    INVAR_TRY(make_noise(b));
    INVAR_TRY(invar_race_new(&b->race, &b->gpu, options));
    status = run_rows(b);
    rows = invar_race_end(b->race, status);
    INVAR_TRY(status);
    if (rows == 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--op: no op with '%s' in its name is measured on a GPU; without --op "
                          "all that are",
                          b->only);
    if (b->different > 0)
        return INVAR_FAIL(INVAR_E_MISMATCH, 0,
                          "%" PRId64 " of %" PRId64 " elements differ from the CPU", b->different,
                          b->compared);
    return INVAR_OK;
}

invar_status invar_bench_gpu(const char *only, const invar_race_options *options, invar_pool *pool)
{
    bench b = {
        .gpu = {.numerics = INVAR_NUMERICS_SM90},
        .cpu = {.backend = invar_backend_cpu(), .numerics = INVAR_NUMERICS_SM90, .pool = pool},
        .only = only};
    invar_status status;

    INVAR_TRY(invar_backend_find(&b.gpu.backend, "cuda"));
    status = run(&b, options);
    invar_race_free(b.race);
    invar_free(b.noise);
    invar_device_close(&b.gpu);
    return status;
}
