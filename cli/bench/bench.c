/*
 * bench.c - invar bench: times every op, next to a peer that is measured in the same run.
 *
 * A row is the median of several timed repetitions after a warm-up. Peers are found at run time:
 * OpenBLAS by dlopen (sgemm on the same matrices), memcpy with the same number of threads for ops
 * that mostly move data, XXH3 over the same bytes in one call, and our own ieee chain for sm90. An
 * op without a fair peer has none. The cases of the ops are in ops.c and experts.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/bench/bench.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/console/term.h"
#include "cli/safe_text.h"

#include "base/invar_banned.h"

typedef void (*sgemm_fn)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                         const float *a, int lda, const float *b, int ldb, float beta, float *c,
                         int ldc);

typedef struct blas_library {
    bool sought;
    sgemm_fn sgemm; /* NULL if OpenBLAS was not found */
    void (*set_threads)(int threads);
} blas_library;

enum { MAX_POOLS = 2 };

struct invar_bench {
    bool json;
    bool color;
    int rows;
    invar_op op;                 /* current op */
    bool first_of_op;            /* no row of the current op was printed yet */
    invar_pool *pool[MAX_POOLS]; /* pools of 1 thread and of the requested number of threads */
    int pools;
    void *memory; /* tensors of the current op */
    size_t used;
    blas_library library;
};

#define MEMORY_BYTES ((size_t)1 << 30)

void *invar_bench_alloc(invar_bench *bench, size_t bytes)
{
    void *p = (char *)bench->memory + bench->used;

    bench->used += invar_aligned(bytes);
    INVAR_CHECK(bench->used <= MEMORY_BYTES);
    return p;
}

/* ---- time ------------------------------------------------------------------------------------ */

double invar_bench_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Sums four random bytes, which is approximately normal. */
float invar_bench_noise(uint64_t *state)
{
    uint64_t s = *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);

    return (float)((int)(s >> 56) + (int)(s >> 48 & 0xFF) + (int)(s >> 40 & 0xFF) +
                   (int)(s >> 32 & 0xFF) - 510) *
           0x1p-8f;
}

typedef invar_status (*timed_fn)(void *payload);

static invar_status time_calls(double *out, timed_fn run, void *payload, int64_t calls)
{
    double start = invar_bench_now();

    for (int64_t c = 0; c < calls; c++)
        INVAR_TRY(run(payload));
    *out = (invar_bench_now() - start) / (double)calls;
    return INVAR_OK;
}

/*
 * Measures the median of 7 repetitions, each long enough for the resolution of the clock. Calls of
 * more than 0.15 s have 3 repetitions, because their length averages out disturbances.
 */
static invar_status measure_median(double *out, timed_fn run, void *payload)
{
    enum { MOST = 7, FEW = 3 };
    const double grain = 0.02, slow = 0.15;
    double times[MOST], first;
    int64_t calls = 1;
    int repetitions = MOST;

    INVAR_TRY(time_calls(&first, run, payload, 1));
    if (first < slow)
        INVAR_TRY(time_calls(&first, run, payload, 1));
    if (first < grain)
        calls = (int64_t)(grain / (first + 1e-9)) + 1;
    if (first >= slow)
        repetitions = FEW;
    for (int i = 0; i < repetitions; i++) {
        double t;
        int at = i;
        INVAR_TRY(time_calls(&t, run, payload, calls));
        for (; at > 0 && times[at - 1] > t; at--)
            times[at] = times[at - 1];
        times[at] = t;
    }
    *out = times[repetitions / 2];
    return INVAR_OK;
}

/* ---- ops ------------------------------------------------------------------------------------- */

typedef struct op_call {
    invar_device dev;
    invar_op op;
    const void *args;
} op_call;

static invar_status run_call(void *payload)
{
    const op_call *c = payload;

    return invar_op_run(&c->dev, c->op, c->args);
}

/*
 * Times an op on a device with exactly the scratch memory that it needs. With a NULL `out` the op
 * only runs once.
 */
static invar_status run_op(double *out, invar_op op, const void *args, invar_pool *pool,
                           invar_numerics numerics)
{
    op_call c = {{.backend = invar_backend_cpu(), .numerics = numerics, .pool = pool}, op, args};
    invar_status status;
    size_t bytes;

    INVAR_TRY(invar_op_workspace(&bytes, &c.dev, op, args));
    INVAR_TRY(invar_arena_new(&c.dev.scratch, "bench"));
    status = invar_arena_plan_scratch(c.dev.scratch, invar_aligned(bytes));
    if (status == INVAR_OK)
        status = invar_arena_reserve(c.dev.scratch);
    if (status == INVAR_OK)
        status = out ? measure_median(out, run_call, &c) : run_call(&c);
    invar_arena_free(c.dev.scratch);
    return status;
}

invar_status invar_bench_prepare(invar_bench *bench, invar_op op, const void *args)
{
    return run_op(NULL, op, args, bench->pool[bench->pools - 1], INVAR_NUMERICS_IEEE);
}

/* ---- peers ----------------------------------------------------------------------------------- */

/* Converts a data pointer to a function pointer, as POSIX guarantees for dlsym. */
static void find_symbol(void *out, void *library, const char *name)
{
    void *symbol = dlsym(library, name);

    memcpy(out, &symbol, sizeof symbol);
}

/*
 * Called for the first matrix product, so that a run without one neither loads nor misses OpenBLAS.
 */
static void find_blas(blas_library *out)
{
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);

    out->sought = true;
    if (library) {
        find_symbol(&out->sgemm, library, "cblas_sgemm");
        find_symbol(&out->set_threads, library, "openblas_set_num_threads");
    }
    if (out->sgemm && out->set_threads)
        return;
    out->sgemm = NULL;
    fprintf(stderr, "invar: bench: no OpenBLAS here, so no peer for f32 products "
                    "(apt-get install libopenblas0-pthread)\n");
}

typedef struct sgemm_call {
    sgemm_fn sgemm;
    const invar_bench_case *c;
} sgemm_call;

static invar_status run_sgemm(void *payload)
{
    enum { ROW_MAJOR = 101, AS_IS = 111, TRANSPOSED = 112 };
    const sgemm_call *s = payload;

    for (int64_t i = 0; i < s->c->n_products; i++) {
        const invar_bench_gemm *p = &s->c->products[i];
        int64_t depth = p->a.shape[p->transpose_a ? 0 : 1];
        if (p->c.shape[0] == 0 || depth == 0)
            continue; // an expert without tokens
        s->sgemm(ROW_MAJOR, p->transpose_a ? TRANSPOSED : AS_IS,
                 p->transpose_b ? TRANSPOSED : AS_IS, (int)p->c.shape[0], (int)p->c.shape[1],
                 (int)depth, 1.0f, p->a.data, (int)p->a.row_stride, p->b.data, (int)p->b.row_stride,
                 p->accumulate ? 1.0f : 0.0f, p->c.data, (int)p->c.row_stride);
    }
    return INVAR_OK;
}

typedef struct copy_call {
    char *to;
    const char *from;
    size_t bytes;
    invar_pool *pool;
} copy_call;

/* Copies the part of one thread. */
static invar_status copy_part(void *payload, int64_t task, int worker)
{
    const copy_call *c = payload;
    size_t parts = (size_t)invar_pool_threads(c->pool), part = (size_t)task;
    size_t first = c->bytes / parts * part;
    size_t end = part + 1 == parts ? c->bytes : first + c->bytes / parts;

    (void)worker;
    memcpy(c->to + first, c->from + first, end - first);
    return INVAR_OK;
}

static invar_status run_copy(void *payload)
{
    copy_call *c = payload;

    return invar_pool_run(c->pool, invar_pool_threads(c->pool), copy_part, c);
}

static invar_status measure_copy(double *out, invar_bench *b, size_t moved, invar_pool *pool)
{
    size_t mark = b->used, bytes = moved / 2; // each byte is read and written
    copy_call copy = {invar_bench_alloc(b, bytes), invar_bench_alloc(b, bytes), bytes, pool};
    invar_status status;

    // touches the pages, because untouched zero pages are faster to copy
    memset(copy.to, 1, 2 * invar_aligned(bytes));
    status = measure_median(out, run_copy, &copy);
    b->used = mark;
    return status;
}

typedef struct hash_call {
    const void *data;
    size_t bytes;
    invar_digest digest;
} hash_call;

static invar_status run_hash(void *payload)
{
    hash_call *h = payload;

    invar_hash_bytes(&h->digest, h->data, h->bytes);
    return INVAR_OK;
}

/* *name is NULL if there is no peer. */
static invar_status measure_peer(double *out, const char **name, invar_bench *b,
                                 const invar_bench_case *c, invar_pool *pool)
{
    *name = NULL;
    switch (c->peer) {
    case INVAR_BENCH_PEER_NONE: return INVAR_OK;
    case INVAR_BENCH_PEER_COPY:
        *name = "memcpy";
        return measure_copy(out, b, (size_t)c->work, pool);
    case INVAR_BENCH_PEER_SGEMM:
        if (!b->library.sought)
            find_blas(&b->library);
        if (!b->library.sgemm)
            return INVAR_OK;
        *name = "OpenBLAS sgemm";
        b->library.set_threads(invar_pool_threads(pool));
        return measure_median(out, run_sgemm, &(sgemm_call){b->library.sgemm, c});
    case INVAR_BENCH_PEER_XXH3:
        *name = "XXH3, one call";
        return measure_median(out, run_hash,
                              &(hash_call){.data = c->hashed, .bytes = (size_t)c->work});
    }
    return INVAR_FAIL(INVAR_E_INVALID, 0, "peer %d does not exist", (int)c->peer);
}

/* ---- rows of the table ----------------------------------------------------------------------- */

typedef struct bench_row {
    const char *op; /* the table omits values that are equal to those of the row above */
    const char *shape;
    const char *type;
    invar_numerics numerics;
    int threads;
    double seconds;
    double rate;
    const char *unit;
    const char *peer; /* NULL if there is no peer */
    double peer_seconds;
    bool first_of_op;
    bool first_of_case;
} bench_row;

static void print_json(const bench_row *r, bool first)
{
    printf("%s\n    {\"op\": \"%s\", \"shape\": \"%s\", \"type\": \"%s\", \"numerics\": \"%s\", "
           "\"threads\": %d, \"seconds\": %.9g, \"rate\": %.6g, \"unit\": \"%s\"",
           first ? "" : ",", r->op, r->shape, r->type, invar_numerics_name(r->numerics), r->threads,
           r->seconds, r->rate, r->unit);
    if (r->peer)
        printf(", \"peer\": \"%s\", \"peer_seconds\": %.9g, \"ratio\": %.4g", r->peer,
               r->peer_seconds, r->peer_seconds / r->seconds);
    printf("}");
}

static void print_line(const bench_row *r)
{
    printf("%-15s %-17s %-5s %-4s %4d %10.3f %9.*f %-6s", r->first_of_op ? r->op : "",
           r->first_of_case ? r->shape : "", r->first_of_case ? r->type : "",
           invar_numerics_name(r->numerics), r->threads, 1e3 * r->seconds, r->rate < 0.01 ? 6 : 2,
           r->rate, r->unit);
    if (r->peer)
        printf(" %6.3f  %s", r->peer_seconds / r->seconds, r->peer);
    printf("\n");
}

static void print_head(bool color)
{
    printf("%s%-15s %-17s %-5s %-4s %4s %10s %9s %-6s %6s  %s%s\n",
           invar_term_escape(color, INVAR_TERM_STYLE_BOLD), "op", "shape", "type", "num", "thr",
           "time ms", "rate", "", "ratio", "peer",
           invar_term_escape(color, INVAR_TERM_STYLE_PLAIN));
}

static void print_row(invar_bench *b, const bench_row *r)
{
    if (b->json)
        print_json(r, b->rows == 0);
    else
        print_line(r);
    fflush(stdout);
    b->rows++;
}

/* Formats a shape as "1024x2048". */
static void format_shape(char *out, size_t size, const int64_t *shape)
{
    size_t length = 0;

    out[0] = '\0';
    for (int i = 0; shape[i] != 0 && length < size; i++)
        length +=
            (size_t)snprintf(out + length, size - length, "%s%" PRId64, i > 0 ? "x" : "", shape[i]);
}

static void set_rate(bench_row *r, const invar_bench_case *c)
{
    switch (c->unit) {
    case INVAR_BENCH_UNIT_MAC: r->unit = "GMAC/s"; break;
    case INVAR_BENCH_UNIT_BYTE: r->unit = "GB/s"; break;
    case INVAR_BENCH_UNIT_TOKEN: r->unit = "Mtok/s"; break;
    }
    r->rate = c->work / r->seconds / (c->unit == INVAR_BENCH_UNIT_TOKEN ? 1e6 : 1e9);
}

invar_status invar_bench_run(invar_bench *b, const invar_bench_case *c)
{
    // f32 operands use fmaf under all numerics, so sm90 would repeat the ieee rows
    bool step = invar_op_depends_on_numerics(b->op) && c->type != INVAR_DTYPE_F32;
    double ieee[MAX_POOLS] = {0};
    char shape[64];
    bench_row r = {.op = invar_op_name(b->op),
                   .shape = shape,
                   .type = invar_dtype_name(c->type),
                   .first_of_case = true};

    format_shape(shape, sizeof shape, c->shape);
    for (int n = 0; n < (step ? INVAR_NUMERICS_COUNT : 1); n++)
        for (int p = 0; p < b->pools; p++) {
            r.numerics = (invar_numerics)n;
            r.threads = invar_pool_threads(b->pool[p]);
            r.first_of_op = b->first_of_op;
            INVAR_TRY(run_op(&r.seconds, b->op, c->args, b->pool[p], r.numerics));
            set_rate(&r, c);
            if (r.numerics == INVAR_NUMERICS_IEEE) {
                ieee[p] = r.seconds;
                INVAR_TRY(measure_peer(&r.peer_seconds, &r.peer, b, c, b->pool[p]));
            } else {
                r.peer = "our ieee chain";
                r.peer_seconds = ieee[p];
            }
            print_row(b, &r);
            b->first_of_op = r.first_of_case = false;
        }
    return INVAR_OK;
}

/* ---- selection of ops ------------------------------------------------------------------------ */

static bool is_selected(const char *only, invar_op op)
{
    return strstr(invar_op_name(op), only) != NULL;
}

invar_status invar_bench_check_selection(const char *only)
{
    for (int op = 0; op < INVAR_OP_COUNT; op++)
        if (is_selected(only, (invar_op)op))
            return INVAR_OK;
    return INVAR_FAIL(INVAR_E_INVALID, 0, "--op: no op has '%s' in its name", only);
}

static invar_status run_selected(invar_bench *b, const char *only)
{
    for (int op = 0; op < INVAR_OP_COUNT; op++) {
        if (!is_selected(only, (invar_op)op))
            continue;
        b->op = (invar_op)op;
        b->first_of_op = true;
        b->used = 0;
        INVAR_TRY(invar_bench_ops[op](b));
    }
    return INVAR_OK;
}

static invar_status run_bench(invar_bench *b, const char *only, int threads)
{
    invar_status status;

    INVAR_TRY(invar_alloc(&b->memory, 1, MEMORY_BYTES, "bench"));
    INVAR_TRY(invar_pool_new(&b->pool[b->pools], 1));
    b->pools++;
    if (threads > 1) {
        INVAR_TRY(invar_pool_new(&b->pool[b->pools], threads));
        b->pools++;
    }
    if (b->json)
        printf("{\n  \"rows\": [");
    else
        print_head(b->color);
    status = run_selected(b, only);
    if (b->json)
        invar_safe_text_end_json(stdout, status);
    else if (status == INVAR_OK)
        printf("\nratio: the peer's time over ours; above 1 we are faster\n");
    return status;
}

invar_status invar_bench_cpu(const char *only, int threads, bool json)
{
    invar_bench b = {.color = invar_term_has_color(stdout), .json = json};
    invar_status status = run_bench(&b, only, threads);

    for (int p = 0; p < b.pools; p++)
        invar_pool_free(b.pool[p]);
    invar_free(b.memory);
    return status;
}
