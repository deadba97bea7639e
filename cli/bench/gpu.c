/*
 * gpu.c - invar bench --device cuda: times ops on the GPU at the sizes of training and decoding.
 *
 * Products and attention are compared with the ops of --peer, ops that move data with a copy, over
 * enough sets of operands to exceed the cache (gpu_compare.c). Before the timing each op runs once,
 * and a part of its result is computed on the CPU and compared bit by bit: elements of products and
 * rows of attention through the audit of the engine, some rows of all other ops.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "cli/bench/bench.h"
#include "cli/bench/gpu.h"
#include "kernels-deterministic/tensor_row.h"
#ifdef INVAR_LEDGER
#include "engine/model/audit/audit.h"
#endif

#include "base/invar_banned.h"

#define CACHE_BYTES ((size_t)120 << 20) /* twice the size of the L2 cache */
#define NOISE_BYTES ((size_t)1 << 24)

/* ---- memory ---------------------------------------------------------------------------------- */

invar_status invar_gpu_bench_device_alloc(void **out, invar_gpu_bench *b, size_t bytes)
{
    INVAR_CHECK(b->n_row_blocks < (int)(sizeof b->row_blocks / sizeof *b->row_blocks));
    INVAR_TRY(invar_device_alloc(&b->gpu, out, bytes, "tensors of a benchmark"));
    b->row_blocks[b->n_row_blocks++] = *out;
    return INVAR_OK;
}

static void free_row_blocks(invar_gpu_bench *b)
{
    while (b->n_row_blocks > 0)
        invar_device_free(&b->gpu, b->row_blocks[--b->n_row_blocks]);
}

static invar_status make_noise(invar_gpu_bench *b)
{
    uint64_t state = 1;

    INVAR_TRY(INVAR_ALLOC(b->noise, NOISE_BYTES, "noise"));
    for (size_t i = 0; i < NOISE_BYTES / sizeof *b->noise; i++) {
        invar_tensor at = invar_tensor_1d(&b->noise[i], INVAR_DTYPE_BF16, 1);
        float value = invar_bench_noise(&state);
        invar_tensor_row_store(&at, 0, 0, 1, &value);
    }
    return INVAR_OK;
}

invar_status invar_gpu_bench_fill(invar_gpu_bench *b, void *to, size_t bytes)
{
    size_t period = NOISE_BYTES - 2 * 997; // offset, so that rows do not repeat

    for (size_t at = 0; at < bytes; at += period)
        INVAR_TRY(invar_device_upload(&b->gpu, (char *)to + at, b->noise,
                                      bytes - at < period ? bytes - at : period));
    return INVAR_OK;
}

size_t invar_gpu_bench_bytes(invar_dtype dtype, int64_t rows, int64_t cols)
{
    return (size_t)(rows * cols) * (size_t)invar_dtype_bits(dtype) / 8;
}

invar_status invar_gpu_bench_make(invar_tensor *out, invar_gpu_bench *b, invar_dtype dtype,
                                  int64_t rows, int64_t cols)
{
    size_t bytes = invar_gpu_bench_bytes(dtype, rows, cols);
    void *data;

    INVAR_TRY(invar_gpu_bench_device_alloc(&data, b, bytes));
    INVAR_TRY(invar_gpu_bench_fill(b, data, bytes));
    *out = invar_tensor_2d(data, dtype, rows, cols);
    return INVAR_OK;
}

invar_status invar_gpu_bench_alloc(invar_tensor *out, invar_gpu_bench *b, invar_dtype dtype,
                                   int64_t rows, int64_t cols)
{
    void *data;

    INVAR_TRY(invar_gpu_bench_device_alloc(&data, b, invar_gpu_bench_bytes(dtype, rows, cols)));
    *out = invar_tensor_2d(data, dtype, rows, cols);
    return INVAR_OK;
}

invar_status invar_gpu_bench_array(void **out, invar_gpu_bench *b, const void *from, size_t bytes)
{
    INVAR_TRY(invar_gpu_bench_device_alloc(out, b, bytes));
    return invar_device_upload(&b->gpu, *out, from, bytes);
}

/* ---- one row --------------------------------------------------------------------------------- */

/* Allocates exactly the scratch memory that a call needs. The caller frees it with end_scratch. */
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

invar_status invar_gpu_bench_time(invar_gpu_bench *b, const invar_gpu_compare_case *row)
{
    b->compared += row->compared;
    b->different += row->different;
    INVAR_TRY(begin_scratch(&b->gpu, row->op, row->args[0]));
    return invar_gpu_compare_run(b->compare, row);
}

/* ---- comparison with the CPU ----------------------------------------------------------------- */

#ifdef INVAR_LEDGER
static invar_status count_difference(void *payload, const invar_audit_finding *finding)
{
    (void)finding;
    ++*(int64_t *)payload;
    return INVAR_OK;
}

static invar_status run_audited(invar_op_runner *runner, const invar_gpu_compare_case *row)
{
    // in the first step the audit only collects the tensors
    for (int64_t step = 0; step < 2; step++) {
        invar_audit_begin(runner->audit, step, INVAR_AUDIT_TRAIN);
        INVAR_TRY(invar_op_runner_run(runner, row->op, row->args[0]));
        invar_audit_end(runner->audit);
    }
    return INVAR_OK;
}

invar_status invar_gpu_bench_audit(invar_gpu_compare_case *row, const invar_gpu_bench *b)
{
    enum { ELEMENTS = 16 };
    invar_audit_options options = {
        .elements = ELEMENTS, .found = count_difference, .payload = &row->different};
    invar_op_runner runner;
    invar_status status;
    int64_t differ;

    invar_op_runner_init(&runner, &b->gpu);
    status = invar_audit_new(&runner.audit, &b->gpu, &options);
    if (status == INVAR_OK)
        status = run_audited(&runner, row);
    invar_audit_counted(&row->compared, &differ, runner.audit);
    invar_audit_free(runner.audit);
    invar_op_runner_release(&runner);
    return status;
}
#else
invar_status invar_gpu_bench_audit(invar_gpu_compare_case *row, const invar_gpu_bench *b)
{
    (void)row, (void)b;
    return INVAR_OK;
}
#endif

/* Rows of a tensor on the GPU and on the host, before the op and, for results, after it. */
typedef struct row_excerpt {
    const char *device_rows;
    size_t bytes;
    char *host_rows, *result_rows;
} row_excerpt;

static invar_status fetch_rows(row_excerpt *out, const invar_gpu_bench *b, invar_tensor *t,
                               int64_t all, int64_t rows)
{
    size_t row = (size_t)(t->row_stride * invar_dtype_bits(t->dtype)) / 8;
    bool cut = t->shape[0] == all; // weights are used completely

    if (cut)
        t->shape[0] = rows;
    out->device_rows =
        (char *)t->data + (cut ? (size_t)invar_gpu_row_check_first(all, rows) * row : 0);
    out->bytes = (size_t)t->shape[0] * row;
    INVAR_TRY(INVAR_ALLOC(out->host_rows, out->bytes, "rows of a benchmark"));
    INVAR_TRY(INVAR_ALLOC(out->result_rows, out->bytes, "rows of a benchmark"));
    t->data = out->host_rows;
    return invar_device_download(&b->gpu, out->host_rows, out->device_rows, out->bytes);
}

invar_status invar_gpu_bench_run(invar_device *dev, invar_op op, const void *args)
{
    invar_status status = begin_scratch(dev, op, args);

    if (status == INVAR_OK)
        status = invar_op_run(dev, op, args);
    end_scratch(dev);
    return status;
}

invar_status invar_gpu_bench_quantized(invar_tensor *out, invar_gpu_bench *b, invar_dtype dtype,
                                       int32_t scale_rows, int64_t rows, int64_t cols)
{
    invar_quantize_args q = {.q =
                                 invar_tensor_quantized(NULL, NULL, dtype, scale_rows, rows, cols)};

    INVAR_TRY(invar_gpu_bench_make(&q.x, b, INVAR_DTYPE_BF16, rows, cols));
    INVAR_TRY(invar_gpu_bench_device_alloc(&q.q.data, b, invar_gpu_bench_bytes(dtype, rows, cols)));
    INVAR_TRY(invar_gpu_bench_device_alloc(&q.q.scale, b, invar_tensor_scale_bytes(&q.q)));
    *out = q.q;
    return invar_gpu_bench_run(&b->gpu, INVAR_OP_QUANTIZE, &q);
}

static invar_status compare_excerpts(invar_gpu_compare_case *row, invar_gpu_bench *b,
                                     const invar_gpu_row_check *s, row_excerpt *e)
{
    int64_t all = s->tensors[0]->shape[0];

    for (int i = 0; i < s->count; i++)
        INVAR_TRY(fetch_rows(&e[i], b, s->tensors[i], all, s->rows));
    INVAR_TRY(invar_gpu_bench_run(&b->gpu, row->op, row->args[0]));
    INVAR_TRY(invar_gpu_bench_run(&b->cpu, row->op, s->args));
    for (int i = 0; i < s->results; i++) {
        size_t size = (size_t)invar_dtype_bits(s->tensors[i]->dtype) / 8;
        INVAR_TRY(invar_device_download(&b->gpu, e[i].result_rows, e[i].device_rows, e[i].bytes));
        for (size_t at = 0; at < e[i].bytes; at += size)
            row->different += memcmp(e[i].host_rows + at, e[i].result_rows + at, size) != 0;
        row->compared += (int64_t)(e[i].bytes / size);
    }
    return INVAR_OK;
}

invar_status invar_gpu_bench_compare(invar_gpu_compare_case *row, invar_gpu_bench *b,
                                     const invar_gpu_row_check *s)
{
    row_excerpt e[INVAR_GPU_ROW_CHECK_TENSORS] = {{0}};
    invar_status status = compare_excerpts(row, b, s, e);

    for (int i = 0; i < INVAR_GPU_ROW_CHECK_TENSORS; i++) {
        invar_free(e[i].host_rows);
        invar_free(e[i].result_rows);
    }
    return status;
}

/* ---- products -------------------------------------------------------------------------------- */

typedef struct product_size {
    int64_t m, n, k;
} product_size;

static const product_size forward_sizes[] = {
    {8192, 8192, 8192}, {4096, 4096, 4096},  {8192, 4096, 14336}, {8192, 14336, 4096},
    {8192, 896, 4864},  {8192, 151936, 896}, {16384, 1024, 3072}, {1024, 4096, 4096},
    {256, 4096, 4096},  {64, 4096, 4096},    {16, 4096, 4096},    {1, 4096, 4096},
};
enum { DECODING = 9 }; /* sizes from this index on are those of decoding */
enum { SHARDS = 8, SHARD_ATOM = 128 };
static const product_size shard_sizes[] = {
    {8192, 8192, 8192}, {16384, 1024, 2048}, {16384, 1024, 3072}, {256, 1024, 2048}};
static const product_size weight_sizes[] = {
    {1024, 3072, 16384}, {2048, 1024, 16384}, {4096, 4096, 16384}};

enum { SHAPE_SIZE = 64 };

/* Returns the row of a product (m, k) by (k, n) with operands of this type. */
static invar_gpu_compare_case product_row(invar_op op, invar_dtype type, product_size z,
                                          char shape[SHAPE_SIZE])
{
    size_t touched = invar_gpu_bench_bytes(type, z.m + z.n, z.k) +
                     invar_gpu_bench_bytes(INVAR_DTYPE_BF16, z.m, z.n);
    size_t sets = CACHE_BYTES / touched + 1;

    snprintf(shape, SHAPE_SIZE, "%" PRId64 "x%" PRId64 "x%" PRId64, z.m, z.n, z.k);
    return (invar_gpu_compare_case){.op = op,
                                    .type = invar_dtype_name(type),
                                    .shape = shape,
                                    .sets = sets > INVAR_GPU_COMPARE_SETS ? INVAR_GPU_COMPARE_SETS
                                                                          : (int)sets,
                                    .work = 2.0 * (double)z.m * (double)z.n * (double)z.k};
}

static void append_shards(char shape[SHAPE_SIZE], int32_t shards)
{
    size_t used = strlen(shape);

    if (shards > 1)
        snprintf(shape + used, SHAPE_SIZE - used, " V%" PRId32, shards);
}

static invar_status bench_linear_fwd(invar_gpu_bench *b, product_size z, int32_t shards)
{
    invar_linear_fwd_args args[INVAR_GPU_COMPARE_SETS];
    char shape[SHAPE_SIZE];
    invar_gpu_compare_case row = product_row(INVAR_OP_LINEAR_FWD, INVAR_DTYPE_BF16, z, shape);

    append_shards(shape, shards);
    for (int i = 0; i < row.sets; i++) {
        args[i] = (invar_linear_fwd_args){.k_shards = shards, .k_atom = SHARD_ATOM};
        INVAR_TRY(invar_gpu_bench_make(&args[i].x, b, INVAR_DTYPE_BF16, z.m, z.k));
        INVAR_TRY(invar_gpu_bench_make(&args[i].w, b, INVAR_DTYPE_BF16, z.n, z.k));
        INVAR_TRY(invar_gpu_bench_alloc(&args[i].y, b, INVAR_DTYPE_BF16, z.m, z.n));
        row.args[i] = &args[i];
    }
    INVAR_TRY(invar_gpu_bench_audit(&row, b));
    return invar_gpu_bench_time(b, &row);
}

static invar_status bench_linear_dx(invar_gpu_bench *b, product_size z, int32_t shards)
{
    invar_linear_dx_args args[INVAR_GPU_COMPARE_SETS];
    char shape[SHAPE_SIZE];
    invar_gpu_compare_case row = product_row(INVAR_OP_LINEAR_DX, INVAR_DTYPE_BF16, z, shape);

    append_shards(shape, shards);
    for (int i = 0; i < row.sets; i++) {
        args[i] = (invar_linear_dx_args){.n_parts = 1, .k_shards = shards, .k_atom = {SHARD_ATOM}};
        INVAR_TRY(invar_gpu_bench_alloc(&args[i].dx, b, INVAR_DTYPE_BF16, z.m, z.n));
        INVAR_TRY(invar_gpu_bench_make(&args[i].parts[0].dy, b, INVAR_DTYPE_BF16, z.m, z.k));
        INVAR_TRY(invar_gpu_bench_make(&args[i].parts[0].w, b, INVAR_DTYPE_BF16, z.k, z.n));
        row.args[i] = &args[i];
    }
    INVAR_TRY(invar_gpu_bench_audit(&row, b));
    return invar_gpu_bench_time(b, &row);
}

static invar_status bench_linear_dw(invar_gpu_bench *b, product_size z)
{
    enum { UNITS = 8 };
    int64_t start[UNITS + 1];
    invar_linear_dw_args args[INVAR_GPU_COMPARE_SETS];
    void *units;
    char shape[SHAPE_SIZE];
    invar_gpu_compare_case row = product_row(INVAR_OP_LINEAR_DW, INVAR_DTYPE_BF16, z, shape);

    for (int i = 0; i <= UNITS; i++)
        start[i] = z.k / UNITS * i;
    INVAR_TRY(invar_gpu_bench_array(&units, b, start, sizeof start));
    for (int i = 0; i < row.sets; i++) {
        args[i] = (invar_linear_dw_args){.units = {units, UNITS}};
        INVAR_TRY(invar_gpu_bench_make(&args[i].dw, b, INVAR_DTYPE_F32, z.m, z.n));
        INVAR_TRY(invar_gpu_bench_make(&args[i].dy, b, INVAR_DTYPE_BF16, z.k, z.m));
        INVAR_TRY(invar_gpu_bench_make(&args[i].x, b, INVAR_DTYPE_BF16, z.k, z.n));
        row.args[i] = &args[i];
    }
    INVAR_TRY(invar_gpu_bench_audit(&row, b));
    return invar_gpu_bench_time(b, &row);
}

static const product_size fp8_sizes[] = {
    {8192, 8192, 8192}, {4096, 4096, 4096}, {8192, 4096, 14336}};

static invar_status bench_linear_fwd_quantized(invar_gpu_bench *b, invar_dtype dtype,
                                               product_size z)
{
    bool weights_only = dtype == INVAR_DTYPE_INT4;
    invar_linear_fwd_args args[INVAR_GPU_COMPARE_SETS];
    char shape[SHAPE_SIZE];
    invar_gpu_compare_case row = product_row(INVAR_OP_LINEAR_FWD, dtype, z, shape);

    for (int i = 0; i < row.sets; i++) {
        args[i] = (invar_linear_fwd_args){.k_shards = 1};
        if (weights_only)
            INVAR_TRY(invar_gpu_bench_make(&args[i].x, b, INVAR_DTYPE_BF16, z.m, z.k));
        else
            INVAR_TRY(invar_gpu_bench_quantized(&args[i].x, b, dtype, 1, z.m, z.k));
        INVAR_TRY(invar_gpu_bench_quantized(
            &args[i].w, b, dtype, dtype == INVAR_DTYPE_FP8 ? INVAR_FP8_BLOCK : 1, z.n, z.k));
        INVAR_TRY(invar_gpu_bench_alloc(&args[i].y, b, INVAR_DTYPE_BF16, z.m, z.n));
        row.args[i] = &args[i];
    }
    INVAR_TRY(invar_gpu_bench_audit(&row, b));
    return invar_gpu_bench_time(b, &row);
}

/* ---- attention ------------------------------------------------------------------------------- */

#define SPAN 8192 /* span of keys and queries, as in recipes by default */

typedef struct attention_size {
    int64_t batch, heads, kv_heads, length, dim;
} attention_size;

static const attention_size attention_sizes[] = {
    {4, 16, 16, 4096, 128}, {1, 32, 32, 16384, 128}, {8, 16, 16, 2048, 128}, {16, 14, 14, 1024, 64},
    {8, 16, 8, 2048, 128},  {1, 16, 16, 32768, 128}, {1, 8, 8, 131072, 128},
};

static invar_status make_heads(invar_tensor *out, invar_gpu_bench *b, int64_t tokens, int64_t heads,
                               int64_t dim)
{
    INVAR_TRY(invar_gpu_bench_make(out, b, INVAR_DTYPE_BF16, tokens, heads * dim));
    *out = invar_tensor_3d(out->data, INVAR_DTYPE_BF16, tokens, heads, dim);
    return INVAR_OK;
}

static invar_status bench_attention(invar_gpu_bench *b, attention_size z)
{
    int64_t tokens = z.batch * z.length, start[17], span = z.length > SPAN ? SPAN : 0;
    invar_attention_fwd_args f = {.shape = {.kv_span = span, .q_span = span}};
    invar_attention_bwd_args g = {0};
    double flops = 2.0 * (double)(z.batch * z.heads * z.length) * (double)(z.length * z.dim);
    char shape[SHAPE_SIZE];
    void *samples;
    invar_gpu_compare_case row = {.op = INVAR_OP_ATTENTION_FWD,
                                  .type = "bf16",
                                  .shape = shape,
                                  .args = {&f},
                                  .sets = 1,
                                  .work = flops};

    snprintf(shape, sizeof shape, "B%" PRId64 " H%" PRId64 "/%" PRId64 " S%" PRId64 " D%" PRId64,
             z.batch, z.heads, z.kv_heads, z.length, z.dim);
    for (int64_t i = 0; i <= z.batch; i++)
        start[i] = i * z.length;
    INVAR_TRY(invar_gpu_bench_array(&samples, b, start, (size_t)(z.batch + 1) * sizeof *start));
    f.samples = (invar_row_offsets){samples, z.batch};
    INVAR_TRY(make_heads(&f.q, b, tokens, z.heads, z.dim));
    INVAR_TRY(make_heads(&f.k, b, tokens, z.kv_heads, z.dim));
    INVAR_TRY(make_heads(&f.v, b, tokens, z.kv_heads, z.dim));
    INVAR_TRY(make_heads(&f.o, b, tokens, z.heads, z.dim));
    INVAR_TRY(invar_gpu_bench_alloc(&f.lse2, b, INVAR_DTYPE_F32, tokens, z.heads));
    INVAR_TRY(invar_gpu_bench_audit(&row, b));
    INVAR_TRY(invar_gpu_bench_time(b, &row));
    end_scratch(&b->gpu);
    g = (invar_attention_bwd_args){.q = f.q,
                                   .k = f.k,
                                   .v = f.v,
                                   .o = f.o,
                                   .lse2 = f.lse2,
                                   .samples = f.samples,
                                   .shape = f.shape};
    INVAR_TRY(make_heads(&g.d_o, b, tokens, z.heads, z.dim));
    INVAR_TRY(make_heads(&g.dq, b, tokens, z.heads, z.dim));
    INVAR_TRY(make_heads(&g.dk, b, tokens, z.kv_heads, z.dim));
    INVAR_TRY(make_heads(&g.dv, b, tokens, z.kv_heads, z.dim));
    row.op = INVAR_OP_ATTENTION_BWD;
    row.args[0] = &g;
    row.work = 2.5 * flops;
    row.compared = row.different = 0;
    INVAR_TRY(invar_gpu_bench_audit(&row, b));
    return invar_gpu_bench_time(b, &row);
}

/* ---- the run --------------------------------------------------------------------------------- */

invar_status invar_gpu_bench_end_row(invar_gpu_bench *b, invar_status status)
{
    end_scratch(&b->gpu);
    free_row_blocks(b);
    return status;
}

#define SIZES(list) (sizeof(list) / sizeof *(list))

static bool is_selected(const invar_gpu_bench *b, invar_op op)
{
    return strstr(invar_op_name(op), b->only) != NULL;
}

static invar_status bench_products(invar_gpu_bench *b)
{
    for (size_t i = 0; i < SIZES(forward_sizes) && is_selected(b, INVAR_OP_LINEAR_FWD); i++)
        INVAR_TRY(invar_gpu_bench_end_row(b, bench_linear_fwd(b, forward_sizes[i], 1)));
    for (size_t i = 0; i < SIZES(shard_sizes) && is_selected(b, INVAR_OP_LINEAR_FWD); i++)
        INVAR_TRY(invar_gpu_bench_end_row(b, bench_linear_fwd(b, shard_sizes[i], SHARDS)));
    for (size_t i = 0; i < SIZES(fp8_sizes) && is_selected(b, INVAR_OP_LINEAR_FWD); i++) {
        INVAR_TRY(invar_gpu_bench_end_row(
            b, bench_linear_fwd_quantized(b, INVAR_DTYPE_FP8, fp8_sizes[i])));
        INVAR_TRY(invar_gpu_bench_end_row(
            b, bench_linear_fwd_quantized(b, INVAR_DTYPE_MXFP8, fp8_sizes[i])));
        INVAR_TRY(invar_gpu_bench_end_row(
            b, bench_linear_fwd_quantized(b, INVAR_DTYPE_INT4, fp8_sizes[i])));
    }
    for (size_t i = DECODING; i < SIZES(forward_sizes) && is_selected(b, INVAR_OP_LINEAR_FWD);
         i++) {
        INVAR_TRY(invar_gpu_bench_end_row(
            b, bench_linear_fwd_quantized(b, INVAR_DTYPE_MXFP8, forward_sizes[i])));
        INVAR_TRY(invar_gpu_bench_end_row(
            b, bench_linear_fwd_quantized(b, INVAR_DTYPE_INT4, forward_sizes[i])));
    }
    for (size_t i = 0; i < SIZES(fp8_sizes) && is_selected(b, INVAR_OP_LINEAR_DX); i++)
        INVAR_TRY(invar_gpu_bench_end_row(b, bench_linear_dx(b, fp8_sizes[i], 1)));
    for (size_t i = 0; i < SIZES(shard_sizes) && is_selected(b, INVAR_OP_LINEAR_DX); i++)
        INVAR_TRY(invar_gpu_bench_end_row(b, bench_linear_dx(b, shard_sizes[i], SHARDS)));
    for (size_t i = 0; i < SIZES(weight_sizes) && is_selected(b, INVAR_OP_LINEAR_DW); i++)
        INVAR_TRY(invar_gpu_bench_end_row(b, bench_linear_dw(b, weight_sizes[i])));
    return INVAR_OK;
}

static invar_status bench_list(invar_gpu_bench *b, const invar_gpu_memory_bench *m)
{
    for (; m->run; m++)
        if (is_selected(b, m->op))
            INVAR_TRY(invar_gpu_bench_end_row(b, m->run(b)));
    return INVAR_OK;
}

static invar_status run_rows(invar_gpu_bench *b)
{
    INVAR_TRY(bench_products(b));
    for (size_t i = 0; i < SIZES(attention_sizes); i++)
        if (is_selected(b, INVAR_OP_ATTENTION_FWD) || is_selected(b, INVAR_OP_ATTENTION_BWD))
            INVAR_TRY(invar_gpu_bench_end_row(b, bench_attention(b, attention_sizes[i])));
    INVAR_TRY(bench_list(b, invar_gpu_movers));
    return bench_list(b, invar_gpu_experts);
}

static invar_status run_gpu_bench(invar_gpu_bench *b, const invar_gpu_compare_options *options)
{
    invar_status status;
    int rows;

    INVAR_TRY(invar_device_open(&b->gpu));
    INVAR_TRY(make_noise(b));
    INVAR_TRY(invar_gpu_compare_new(&b->compare, &b->gpu, options));
    status = run_rows(b);
    rows = invar_gpu_compare_end(b->compare, status);
    INVAR_TRY(status);
    if (rows == 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--op: no op with '%s' in its name is measured on a GPU; without --op "
                          "all that are",
                          b->only);
    if (b->different > 0)
        return INVAR_FAIL(INVAR_E_MISMATCH, 0,
                          "%" PRId64 " of %" PRId64
                          " elements differ from the CPU: see invar doctor, and invar selfcheck "
                          "--device cuda",
                          b->different, b->compared);
    return INVAR_OK;
}

invar_status invar_bench_gpu(const char *only, const invar_gpu_compare_options *options,
                             invar_pool *pool)
{
    invar_gpu_bench b = {
        .gpu = {.numerics = INVAR_NUMERICS_SM90, .pool = pool},
        .cpu = {.backend = invar_backend_cpu(), .numerics = INVAR_NUMERICS_SM90, .pool = pool},
        .only = only};
    invar_status status;

    INVAR_TRY(invar_backend_find(&b.gpu.backend, INVAR_DEVICE_CUDA));
    status = run_gpu_bench(&b, options);
    invar_gpu_compare_free(b.compare);
    invar_free(b.noise);
    invar_device_close(&b.gpu);
    return status;
}
