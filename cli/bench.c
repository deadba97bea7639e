/*
 * bench.c - invar bench: what each op costs, beside a peer measured in the same run.
 *
 * A row is the median of several timed repetitions, after one that warms up. The peers are found at
 * run time: OpenBLAS by dlopen (sgemm on the same matrices), XXH3 over the same bytes in one call,
 * memcpy over the same bytes for ops that only move data, and our own ieee chain for sm90.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/term.h"
#include "cli/verb.h"
#include "kernels-deterministic/ops.h"
#include "kernels-deterministic/row.h"

#include "base/invar_banned.h"

/* ---- time ------------------------------------------------------------------------------------ */

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum { REPETITIONS = 7 };

typedef invar_status (*timed_fn)(void *payload);

/* The median of REPETITIONS, each long enough to be told from the clock's grain. */
static invar_status measure(double *out, timed_fn run, void *payload)
{
    double times[REPETITIONS], start;
    int64_t calls = 1;

    INVAR_TRY(run(payload));
    start = now();
    INVAR_TRY(run(payload));
    start = now() - start;
    if (start < 0.02)
        calls = (int64_t)(0.02 / (start + 1e-9)) + 1;
    for (int i = 0; i < REPETITIONS; i++) {
        double t = now();
        int at = i;
        for (int64_t c = 0; c < calls; c++)
            INVAR_TRY(run(payload));
        t = (now() - t) / (double)calls;
        while (at > 0 && times[at - 1] > t) {
            times[at] = times[at - 1];
            at--;
        }
        times[at] = t;
    }
    *out = times[REPETITIONS / 2];
    return INVAR_OK;
}

/* ---- rows of the table ----------------------------------------------------------------------- */

typedef struct bench {
    bool json;
    bool colour;
    int rows;
    int threads;
    invar_device dev;
    void *memory; /* tensors of the current row */
    size_t used;
} bench;

#define MEMORY_BYTES ((size_t)1 << 30)

/* `work` in units of `unit` per second; `peer` in seconds, 0: none. */
typedef struct row {
    const char *op;
    char shape[48];
    const char *type;
    double seconds;
    double work;
    const char *unit;
    const char *peer_name;
    double peer_seconds;
} row;

static void print_row(bench *b, const row *r)
{
    double rate = r->work / r->seconds / 1e9;

    if (b->json) {
        printf(
            "%s\n    {\"op\": \"%s\", \"shape\": \"%s\", \"type\": \"%s\", \"numerics\": \"%s\", "
            "\"threads\": %d, \"seconds\": %.9g, \"rate\": %.6g, \"unit\": \"%s\"",
            b->rows ? "," : "", r->op, r->shape, r->type, invar_numerics_name(b->dev.numerics),
            b->threads, r->seconds, rate, r->unit);
        if (r->peer_name)
            printf(", \"peer\": \"%s\", \"peer_seconds\": %.9g, \"ratio\": %.4g", r->peer_name,
                   r->peer_seconds, r->peer_seconds / r->seconds);
        printf("}");
    } else {
        if (b->rows == 0)
            printf("%s%-15s %-24s %-6s %-5s %2s %10s %9s %-6s %6s  %s%s\n",
                   invar_term_escape(b->colour, INVAR_TERM_STYLE_BOLD), "op", "shape", "type",
                   "num", "th", "time ms", "rate", "", "ratio", "peer",
                   invar_term_escape(b->colour, INVAR_TERM_STYLE_PLAIN));
        printf("%-15s %-24s %-6s %-5s %2d %10.3f %9.2f %-6s", r->op, r->shape, r->type,
               invar_numerics_name(b->dev.numerics), b->threads, 1e3 * r->seconds, rate, r->unit);
        if (r->peer_name)
            printf(" %6.2f  %s", r->peer_seconds / r->seconds, r->peer_name);
        printf("\n");
    }
    fflush(stdout);
    b->rows++;
}

/* ---- data ------------------------------------------------------------------------------------ */

static void *take(bench *b, size_t bytes)
{
    void *p = (char *)b->memory + b->used;

    b->used += (bytes + INVAR_ALIGN - 1) / INVAR_ALIGN * INVAR_ALIGN;
    INVAR_CHECK(b->used <= MEMORY_BYTES);
    return p;
}

/* Values of a network's size, from a small generator: no zeros, no repeating rows. */
static void fill(const invar_tensor *t, float scale)
{
    int64_t cols = invar_tensor_row_elements(t);
    uint32_t state = 0x9E3779B9u + (uint32_t)cols;

    for (int64_t i = 0; i < t->shape[0]; i++)
        for (int64_t j = 0; j < cols; j++) {
            float value;
            state = state * 1664525u + 1013904223u;
            value = ((float)(state >> 8) * 0x1p-23f - 1.0f) * scale;
            invar_row_store(t, i, j, 1, &value);
        }
}

static invar_tensor make(bench *b, invar_dtype dtype, int64_t rows, int64_t cols)
{
    size_t bytes = (size_t)(rows * cols * invar_dtype_bits(dtype) / 8);
    invar_tensor t = invar_tensor_2d(take(b, bytes), dtype, rows, cols);

    memset(t.data, 0, bytes);
    if (dtype == INVAR_DTYPE_F32 || dtype == INVAR_DTYPE_BF16)
        fill(&t, 1.0f);
    return t;
}

static invar_status make_quantised(invar_tensor *out, bench *b, invar_dtype dtype, int64_t rows,
                                   int64_t cols, int32_t scale_rows)
{
    invar_tensor x = make(b, INVAR_DTYPE_BF16, rows, cols);

    *out = make(b, dtype, rows, cols);
    out->scale_rows = scale_rows;
    out->scale = take(b, invar_tensor_scale_bytes(out));
    return invar_quantise(&b->dev, &(invar_quantise_args){.q = *out, .x = x});
}

/* An op with its arguments, as something to time. */
typedef struct call {
    const invar_device *dev;
    invar_op op;
    const void *args;
} call;

static invar_status run_call(void *payload)
{
    const call *c = payload;

    return invar_op_run(c->dev, c->op, c->args);
}

static invar_status time_op(bench *b, row *r, invar_op op, const void *args)
{
    call c = {&b->dev, op, args};

    r->op = invar_op_name(op);
    return measure(&r->seconds, run_call, &c);
}

/* ---- peers ----------------------------------------------------------------------------------- */

typedef void (*sgemm_fn)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                         const float *a, int lda, const float *b, int ldb, float beta, float *c,
                         int ldc);

typedef struct blas {
    sgemm_fn sgemm;
    void (*set_threads)(int threads);
} blas;

/* A pointer to data becomes a pointer to a function, as POSIX promises for dlsym. */
static void find_symbol(void *out, void *library, const char *name)
{
    void *symbol = dlsym(library, name);

    memcpy(out, &symbol, sizeof symbol);
}

static blas find_blas(void)
{
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    blas found = {NULL, NULL};

    if (!library)
        return found;
    find_symbol(&found.sgemm, library, "cblas_sgemm");
    find_symbol(&found.set_threads, library, "openblas_set_num_threads");
    return found;
}

typedef struct gemm_call {
    blas library;
    const invar_linear_fwd_args *args;
} gemm_call;

static invar_status run_blas(void *payload)
{
    const gemm_call *g = payload;
    const invar_linear_fwd_args *a = g->args;
    enum { ROW_MAJOR = 101, AS_IS = 111, TRANSPOSED = 112 };

    g->library.sgemm(ROW_MAJOR, AS_IS, TRANSPOSED, (int)a->y.shape[0], (int)a->y.shape[1],
                     (int)a->x.shape[1], 1.0f, a->x.data, (int)a->x.row_stride, a->w.data,
                     (int)a->w.row_stride, 0.0f, a->y.data, (int)a->y.row_stride);
    return INVAR_OK;
}

typedef struct copy_call {
    void *to;
    const void *from;
    size_t bytes;
} copy_call;

static invar_status run_copy(void *payload)
{
    const copy_call *c = payload;

    memcpy(c->to, c->from, c->bytes);
    return INVAR_OK;
}

static invar_status run_hash(void *payload)
{
    const copy_call *c = payload;
    invar_digest digest;

    invar_hash_bytes(&digest, c->from, c->bytes);
    return INVAR_OK;
}

/* ---- the benchmarks -------------------------------------------------------------------------- */

static invar_status bench_f32_gemm(bench *b, const blas *library, int64_t m, int64_t n, int64_t k)
{
    invar_linear_fwd_args args = {.y = make(b, INVAR_DTYPE_F32, m, n),
                                  .x = make(b, INVAR_DTYPE_F32, m, k),
                                  .w = make(b, INVAR_DTYPE_F32, n, k),
                                  .k_shards = 1};
    gemm_call peer = {*library, &args};
    row r = {.type = "f32", .work = (double)m * (double)n * (double)k, .unit = "GMAC/s"};

    snprintf(r.shape, sizeof r.shape, "%" PRId64 " %" PRId64 " %" PRId64, m, n, k);
    INVAR_TRY(time_op(b, &r, INVAR_OP_LINEAR_FWD, &args));
    if (library->sgemm) {
        library->set_threads(b->threads);
        r.peer_name = "OpenBLAS sgemm";
        INVAR_TRY(measure(&r.peer_seconds, run_blas, &peer));
    }
    print_row(b, &r);
    b->used = 0;
    return INVAR_OK;
}

/* bf16 chains: ieee first, then sm90 with it as peer. */
static invar_status bench_bf16_gemm(bench *b, int64_t m, int64_t n, int64_t k)
{
    invar_linear_fwd_args args = {.y = make(b, INVAR_DTYPE_BF16, m, n),
                                  .x = make(b, INVAR_DTYPE_BF16, m, k),
                                  .w = make(b, INVAR_DTYPE_BF16, n, k),
                                  .k_shards = 1};
    row r = {.type = "bf16", .work = (double)m * (double)n * (double)k, .unit = "GMAC/s"};

    snprintf(r.shape, sizeof r.shape, "%" PRId64 " %" PRId64 " %" PRId64, m, n, k);
    b->dev.numerics = INVAR_NUMERICS_IEEE;
    INVAR_TRY(time_op(b, &r, INVAR_OP_LINEAR_FWD, &args));
    print_row(b, &r);
    r.peer_name = "our ieee chain";
    r.peer_seconds = r.seconds;
    b->dev.numerics = INVAR_NUMERICS_SM90;
    INVAR_TRY(time_op(b, &r, INVAR_OP_LINEAR_FWD, &args));
    print_row(b, &r);
    b->dev.numerics = INVAR_NUMERICS_IEEE;
    b->used = 0;
    return INVAR_OK;
}

static invar_status bench_low_precision(bench *b, invar_dtype dtype, int64_t m, int64_t n,
                                        int64_t k)
{
    bool int4 = dtype == INVAR_DTYPE_INT4;
    invar_linear_fwd_args args = {.y = make(b, INVAR_DTYPE_BF16, m, n), .k_shards = 1};
    row r = {.type = invar_dtype_name(dtype),
             .work = (double)m * (double)n * (double)k,
             .unit = "GMAC/s"};

    if (int4)
        args.x = make(b, INVAR_DTYPE_BF16, m, k);
    else
        INVAR_TRY(make_quantised(&args.x, b, dtype, m, k, 1));
    INVAR_TRY(make_quantised(&args.w, b, dtype, n, k, dtype == INVAR_DTYPE_FP8 ? 128 : 1));
    snprintf(r.shape, sizeof r.shape, "%" PRId64 " %" PRId64 " %" PRId64, m, n, k);
    b->dev.numerics = INVAR_NUMERICS_SM90;
    INVAR_TRY(time_op(b, &r, INVAR_OP_LINEAR_FWD, &args));
    print_row(b, &r);
    b->dev.numerics = INVAR_NUMERICS_IEEE;
    b->used = 0;
    return INVAR_OK;
}

static invar_status bench_gradients(bench *b, invar_numerics numerics, int64_t m, int64_t n,
                                    int64_t k)
{
    const int64_t unit[] = {0, m};
    invar_tensor dy = make(b, INVAR_DTYPE_BF16, m, n);
    invar_linear_dx_args dx = {.dx = make(b, INVAR_DTYPE_BF16, m, k),
                               .parts = {{dy, make(b, INVAR_DTYPE_BF16, n, k)}},
                               .n_parts = 1,
                               .k_shards = 1};
    invar_linear_dw_args dw = {.dw = make(b, INVAR_DTYPE_F32, n, k),
                               .dy = dy,
                               .x = make(b, INVAR_DTYPE_BF16, m, k),
                               .units = {unit, 1}};
    row r = {.type = "bf16", .work = (double)m * (double)n * (double)k, .unit = "GMAC/s"};

    b->dev.numerics = numerics;
    snprintf(r.shape, sizeof r.shape, "%" PRId64 " %" PRId64 " %" PRId64, m, n, k);
    INVAR_TRY(time_op(b, &r, INVAR_OP_LINEAR_DX, &dx));
    print_row(b, &r);
    INVAR_TRY(time_op(b, &r, INVAR_OP_LINEAR_DW, &dw));
    print_row(b, &r);
    b->dev.numerics = INVAR_NUMERICS_IEEE;
    b->used = 0;
    return INVAR_OK;
}

static invar_tensor make_heads(bench *b, int64_t tokens, int64_t heads, int64_t dim)
{
    invar_tensor t = make(b, INVAR_DTYPE_BF16, tokens, heads * dim);

    return invar_tensor_3d(t.data, t.dtype, tokens, heads, dim);
}

static invar_status bench_attention(bench *b, invar_numerics numerics)
{
    enum { LENGTH = 1024, HEADS = 8, KV_HEADS = 2, DIM = 64 };
    const int64_t sample[] = {0, LENGTH};
    invar_attention_fwd_args fwd = {.o = make_heads(b, LENGTH, HEADS, DIM),
                                    .lse2 = make(b, INVAR_DTYPE_F32, LENGTH, HEADS),
                                    .q = make_heads(b, LENGTH, HEADS, DIM),
                                    .k = make_heads(b, LENGTH, KV_HEADS, DIM),
                                    .v = make_heads(b, LENGTH, KV_HEADS, DIM),
                                    .samples = {sample, 1}};
    invar_attention_bwd_args bwd = {.dq = make_heads(b, LENGTH, HEADS, DIM),
                                    .dk = make_heads(b, LENGTH, KV_HEADS, DIM),
                                    .dv = make_heads(b, LENGTH, KV_HEADS, DIM),
                                    .d_o = make_heads(b, LENGTH, HEADS, DIM),
                                    .o = fwd.o,
                                    .lse2 = fwd.lse2,
                                    .q = fwd.q,
                                    .k = fwd.k,
                                    .v = fwd.v,
                                    .samples = fwd.samples};
    // causal: half of two products of length^2 * dim per head
    row r = {.type = "bf16", .work = (double)LENGTH * LENGTH * DIM * HEADS, .unit = "GMAC/s"};

    b->dev.numerics = numerics;
    snprintf(r.shape, sizeof r.shape, "%d x %d/%d x %d", LENGTH, HEADS, KV_HEADS, DIM);
    INVAR_TRY(time_op(b, &r, INVAR_OP_ATTENTION_FWD, &fwd));
    print_row(b, &r);
    r.work *= 2.5;
    INVAR_TRY(time_op(b, &r, INVAR_OP_ATTENTION_BWD, &bwd));
    print_row(b, &r);
    b->dev.numerics = INVAR_NUMERICS_IEEE;
    b->used = 0;
    return INVAR_OK;
}

/* Ops that mostly move data: bytes read and written; memcpy of half as many does both too. */
static invar_status bench_bytes(bench *b, invar_op op, const void *args, const char *type,
                                const char *shape, size_t bytes)
{
    copy_call copy = {take(b, bytes / 2), take(b, bytes / 2), bytes / 2};
    row r = {.type = type, .work = (double)bytes, .unit = "GB/s", .peer_name = "memcpy, 1 thread"};

    snprintf(r.shape, sizeof r.shape, "%s", shape);
    INVAR_TRY(time_op(b, &r, op, args));
    memset(copy.to, 0, copy.bytes);
    INVAR_TRY(measure(&r.peer_seconds, run_copy, &copy));
    print_row(b, &r);
    b->used = 0;
    return INVAR_OK;
}

static invar_status bench_rows(bench *b)
{
    enum { T = 1024, D = 2048 };
    size_t tensor = (size_t)T * D * 2;
    invar_tensor x = make(b, INVAR_DTYPE_BF16, T, D), y = make(b, INVAR_DTYPE_BF16, T, D);
    invar_tensor w = make(b, INVAR_DTYPE_BF16, 1, D);
    invar_rmsnorm_fwd_args norm = {.y = invar_tensor_3d(y.data, y.dtype, T, 1, D),
                                   .x = invar_tensor_3d(x.data, x.dtype, T, 1, D),
                                   .weight = invar_tensor_1d(w.data, w.dtype, D),
                                   .eps = 1e-6f};
    invar_swiglu_fwd_args swiglu;
    invar_adamw_args adamw;
    enum { N = T * D };

    INVAR_TRY(bench_bytes(b, INVAR_OP_RMSNORM_FWD, &norm, "bf16", "1024 x 2048", 2 * tensor));
    swiglu = (invar_swiglu_fwd_args){.y = make(b, INVAR_DTYPE_BF16, T, D),
                                     .gate = make(b, INVAR_DTYPE_BF16, T, D),
                                     .up = make(b, INVAR_DTYPE_BF16, T, D)};
    INVAR_TRY(bench_bytes(b, INVAR_OP_SWIGLU_FWD, &swiglu, "bf16", "1024 x 2048", 3 * tensor));
    adamw = (invar_adamw_args){
        .weight = invar_tensor_1d(make(b, INVAR_DTYPE_BF16, 1, N).data, INVAR_DTYPE_BF16, N),
        .clip = 1.0f,
        .lr = 1e-3f,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .eps = 1e-8f,
        .weight_decay = 0.1f,
        .beta1_power = 0.9f,
        .beta2_power = 0.95f};
    adamw.master = invar_tensor_1d(make(b, INVAR_DTYPE_F32, 1, N).data, INVAR_DTYPE_F32, N);
    adamw.grad = invar_tensor_1d(make(b, INVAR_DTYPE_F32, 1, N).data, INVAR_DTYPE_F32, N);
    adamw.m = invar_tensor_1d(take(b, (size_t)N * 4), INVAR_DTYPE_F32, N);
    adamw.v = invar_tensor_1d(take(b, (size_t)N * 4), INVAR_DTYPE_F32, N);
    memset(adamw.m.data, 0, (size_t)N * 4);
    memset(adamw.v.data, 0, (size_t)N * 4);
    // reads four, writes three f32; writes one bf16
    return bench_bytes(b, INVAR_OP_ADAMW, &adamw, "f32", "2097152", (size_t)N * 30);
}

static invar_status bench_logprob(bench *b)
{
    enum { T = 64, V = 151936 };
    invar_tensor logits = make(b, INVAR_DTYPE_F32, T, V), numbers = make(b, INVAR_DTYPE_F32, 4, T);
    invar_tensor ids = make(b, INVAR_DTYPE_I32, 1, T);
    float *n = numbers.data;
    invar_logprob_fwd_args args = {.logp = invar_tensor_1d(n, INVAR_DTYPE_F32, T),
                                   .entropy = invar_tensor_1d(n + T, INVAR_DTYPE_F32, T),
                                   .max = invar_tensor_1d(n + 2 * T, INVAR_DTYPE_F32, T),
                                   .logsum = invar_tensor_1d(n + 3 * T, INVAR_DTYPE_F32, T),
                                   .logits = logits,
                                   .targets = invar_tensor_1d(ids.data, INVAR_DTYPE_I32, T),
                                   .temperature = 1.0f};

    return bench_bytes(b, INVAR_OP_LOGPROB_FWD, &args, "f32", "64 x 151936", (size_t)T * V * 4);
}

static invar_status bench_hash(bench *b)
{
    enum { ROWS = 1024, COLS = 65536 };
    invar_digest digest;
    invar_hash_tree_args args = {
        .digest = &digest, .x = make(b, INVAR_DTYPE_BF16, ROWS, COLS), .shards = 1};
    copy_call peer = {NULL, args.x.data, (size_t)ROWS * COLS * 2};
    row r = {.type = "bf16",
             .work = (double)peer.bytes,
             .unit = "GB/s",
             .peer_name = "XXH3-128 in one call, 1 thread"};

    snprintf(r.shape, sizeof r.shape, "128 MiB");
    INVAR_TRY(time_op(b, &r, INVAR_OP_HASH_TREE, &args));
    INVAR_TRY(measure(&r.peer_seconds, run_hash, &peer));
    print_row(b, &r);
    b->used = 0;
    return INVAR_OK;
}

static invar_status run_all(bench *b, const blas *library)
{
    INVAR_TRY(bench_f32_gemm(b, library, 1024, 1024, 1024));
    INVAR_TRY(bench_f32_gemm(b, library, 512, 4096, 1024));
    INVAR_TRY(bench_f32_gemm(b, library, 2048, 2048, 2048));
    INVAR_TRY(bench_f32_gemm(b, library, 1, 4096, 4096));
    INVAR_TRY(bench_bf16_gemm(b, 1024, 1024, 1024));
    INVAR_TRY(bench_bf16_gemm(b, 1, 4096, 4096));
    INVAR_TRY(bench_low_precision(b, INVAR_DTYPE_FP8, 512, 1024, 1024));
    INVAR_TRY(bench_low_precision(b, INVAR_DTYPE_MXFP8, 512, 1024, 1024));
    INVAR_TRY(bench_low_precision(b, INVAR_DTYPE_INT4, 512, 1024, 1024));
    for (int numerics = 0; numerics < INVAR_NUMERICS_COUNT; numerics++) {
        INVAR_TRY(bench_gradients(b, (invar_numerics)numerics, 512, 1024, 1024));
        INVAR_TRY(bench_attention(b, (invar_numerics)numerics));
    }
    INVAR_TRY(bench_rows(b));
    INVAR_TRY(bench_logprob(b));
    return bench_hash(b);
}

/* ---- the verb -------------------------------------------------------------------------------- */

static invar_status run_with_threads(bench *b, int threads, const blas *library)
{
    invar_status status;

    b->threads = threads;
    b->dev = (invar_device){.backend = invar_backend_cpu(), .numerics = INVAR_NUMERICS_IEEE};
    INVAR_TRY(invar_pool_new(&b->dev.pool, threads));
    status = invar_arena_new(&b->dev.scratch, "bench");
    if (status == INVAR_OK)
        status = invar_arena_plan_scratch(b->dev.scratch, (size_t)(threads + 1) << 26);
    if (status == INVAR_OK)
        status = invar_arena_reserve(b->dev.scratch);
    if (status == INVAR_OK)
        status = run_all(b, library);
    invar_arena_free(b->dev.scratch);
    invar_pool_free(b->dev.pool);
    return status;
}

typedef struct settings {
    const char *device;
    int64_t threads;
    bool json;
} settings;

static const invar_option *options(settings *s)
{
    static invar_option list[4];

    list[0] = (invar_option){.name = "device",
                             .type = INVAR_OPTION_TEXT,
                             .value = &s->device,
                             .metavar = "cpu",
                             .help = "where to run: cpu"};
    list[1] = (invar_option){.name = "threads",
                             .type = INVAR_OPTION_INT,
                             .value = &s->threads,
                             .metavar = "N",
                             .help = "most threads; a run with 1 comes first",
                             .low = 1,
                             .high = INVAR_POOL_MAX_THREADS};
    list[2] = (invar_option){.name = "json", .value = &s->json, .help = "every row as JSON"};
    list[3] = (invar_option){0};
    return list;
}

static int run(int argc, char **argv)
{
    settings s = {.device = "cpu", .threads = invar_default_threads()};
    bench b = {.colour = invar_term_colour(stdout)};
    blas library;
    invar_status status;

    if (invar_options_parse(options(&s), argc, argv) != INVAR_OK)
        return invar_report_error();
    if (strcmp(s.device, "cpu") != 0) {
        fprintf(stderr, "invar: bench: --device %s: this build has the CPU only\n", s.device);
        return INVAR_EXIT_UNTESTABLE;
    }
    b.json = s.json;
    library = find_blas();
    if (!library.sgemm)
        fprintf(stderr, "invar: bench: no OpenBLAS here, so no peer for f32 products "
                        "(apt-get install libopenblas0-pthread)\n");
    if (invar_alloc(&b.memory, 1, MEMORY_BYTES, "bench") != INVAR_OK)
        return invar_report_error();
    if (b.json)
        printf("{\n  \"rows\": [");
    status = run_with_threads(&b, 1, &library);
    if (status == INVAR_OK && s.threads > 1)
        status = run_with_threads(&b, (int)s.threads, &library);
    invar_free(b.memory);
    if (status != INVAR_OK)
        return invar_report_error();
    if (b.json)
        printf("\n  ]\n}\n");
    else
        printf("\nratio: the peer's time over ours; above 1 we are faster\n");
    return INVAR_EXIT_OK;
}

static void help(void)
{
    settings s;

    puts("Times ops and, beside them in the same run, a peer where one is present.\n");
    invar_options_help(options(&s));
}

const invar_verb invar_verb_bench = {"bench", "what each op costs, beside a peer", run, help};
