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
#include "cli/command.h"
#include "cli/safe_text.h"
#ifdef INVAR_LEDGER
#include "cli/bench/model.h"
#endif

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

/* ---- the command ----------------------------------------------------------------------------- */

typedef struct settings {
    invar_option_choice device;
    const char *op;
    int64_t threads;
    invar_gpu_compare_options race;
#ifdef INVAR_LEDGER
    invar_bench_model_options whole; /* without a model single ops are measured */
#endif
} settings;

static bool is_selected(const settings *s, invar_op op)
{
    return strstr(invar_op_name(op), s->op) != NULL;
}

static invar_status check_selection(const settings *s)
{
    for (int op = 0; op < INVAR_OP_COUNT; op++)
        if (is_selected(s, (invar_op)op))
            return INVAR_OK;
    return INVAR_FAIL(INVAR_E_INVALID, 0, "--op: no op has '%s' in its name", s->op);
}

static invar_status run_selected(invar_bench *b, const settings *s)
{
    for (int op = 0; op < INVAR_OP_COUNT; op++) {
        if (!is_selected(s, (invar_op)op))
            continue;
        b->op = (invar_op)op;
        b->first_of_op = true;
        b->used = 0;
        INVAR_TRY(invar_bench_ops[op](b));
    }
    return INVAR_OK;
}

static invar_status run_bench(invar_bench *b, const settings *s)
{
    invar_status status;

    INVAR_TRY(invar_alloc(&b->memory, 1, MEMORY_BYTES, "bench"));
    INVAR_TRY(invar_pool_new(&b->pool[b->pools], 1));
    b->pools++;
    if (s->threads > 1) {
        INVAR_TRY(invar_pool_new(&b->pool[b->pools], (int)s->threads));
        b->pools++;
    }
    if (b->json)
        printf("{\n  \"rows\": [");
    else
        print_head(b->color);
    status = run_selected(b, s);
    if (b->json)
        invar_safe_text_end_json(stdout, status);
    else if (status == INVAR_OK)
        printf("\nratio: the peer's time over ours; above 1 we are faster\n");
    return status;
}

#ifdef INVAR_LEDGER
enum { MODEL_OPTIONS = 13 };

/* Adds the options of --model. The first one is --model; the others require it. */
static int add_model_options(invar_option *list, invar_bench_model_options *o)
{
    const struct {
        const char *name;
        invar_option_choice *value;
        const char *metavar, *help;
    } words[] = {
        {"model", &o->model, "SHAPE", "measure a whole model with random weights"},
        {"only", &o->only, "PART", "measure one part alone"},
        {"dtype", &o->dtype, "FORMAT", "number format of the model"},
        {"numerics", &o->numerics, "NAME",
         "arithmetic, by default sm90 on a GPU and ieee elsewhere"},
    };
    const struct {
        const char *name;
        int64_t *value, low, high;
        const char *help;
    } numbers[] = {
        {"micro-batch", &o->micro_batch, 1, 1 << 20, "number of samples in a micro-batch (all)"},
        {"batch", &o->batch, 1, 1 << 16, "number of sequences decoded together (256; tiny: fewer)"},
        {"context", &o->context, 1, 1 << 20,
         "number of tokens in each sequence before decoding is timed (512; tiny: fewer)"},
        {"layers", &o->layers, 1, 256,
         "use only the first N layers, when a step does not fit in memory"},
        {"logical-tp", &o->logical_tp, 1, 8,
         "make sums of 1, 2, 4 or 8 pieces, as the recipe key does (1)"},
        {"repetitions", &o->repetitions, 1, 64, "number of timed steps (5); the median is shown"},
    };
    int n = 0;

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        list[n++] = (invar_option){.name = words[i].name,
                                   .type = INVAR_OPTION_WORD,
                                   .value = words[i].value,
                                   .metavar = words[i].metavar,
                                   .help = words[i].help};
    list[n++] =
        (invar_option){.name = "tokens",
                       .type = INVAR_OPTION_TEXT,
                       .value = &o->tokens,
                       .metavar = "BxL",
                       .help = "samples in a training step x tokens in each (8x2048; tiny: fewer)"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        list[n++] = (invar_option){.name = numbers[i].name,
                                   .type = INVAR_OPTION_INT,
                                   .value = numbers[i].value,
                                   .metavar = "N",
                                   .help = numbers[i].help,
                                   .low = numbers[i].low,
                                   .high = numbers[i].high};
    list[n++] = (invar_option){.name = "profile",
                               .value = &o->profile,
                               .help = "show the time of each op in a step and in a decoding pass"};
    list[n++] = (invar_option){.name = "optimizer-cpu-offload",
                               .value = &o->offload,
                               .help = "on a GPU: keep the moments of AdamW in host memory"};
    return n;
}
#endif

static const invar_option *bench_options(settings *s)
{
    static invar_option list[21];
    int n = 6;

    list[0] = (invar_option){.name = "device",
                             .type = INVAR_OPTION_WORD,
                             .value = &s->device,
                             .metavar = "DEVICE",
                             .help = "where to run"};
    list[1] = (invar_option){.name = "op",
                             .type = INVAR_OPTION_TEXT,
                             .value = &s->op,
                             .metavar = "NAME",
                             .help = "only ops whose name contains NAME, such as linear or fwd"};
    list[2] = invar_option_threads(&s->threads, "measure with 1 thread and with N; a model with N");
    list[3] =
        (invar_option){.name = "json", .value = &s->race.json, .help = "print every row as JSON"};
    list[4] = (invar_option){.name = "peer",
                             .type = INVAR_OPTION_TEXT,
                             .value = &s->race.peer,
                             .metavar = "FILE.so",
                             .help = "on a GPU or with --model: also measure the ops of this "
                                     "shared object (tests/bench/peer.cpp)"};
    list[5] = (invar_option){
        .name = "burst",
        .type = INVAR_OPTION_INT,
        .value = &s->race.burst,
        .metavar = "MS",
        .help = "on a GPU: how long each op and its peers run in turn, in milliseconds (10)",
        .low = 1,
        .high = 1000};
#ifdef INVAR_LEDGER
    n += add_model_options(list + n, &s->whole);
#endif
    list[n] = (invar_option){0};
    return list;
}

/* Returns the first of these options that is among the words, or NULL. */
static const char *first_given(const invar_option *options, int argc, char **argv)
{
    for (; options->name; options++)
        for (int i = 0; i < argc; i++) {
            size_t length = strlen(options->name);
            if (strncmp(argv[i], "--", 2) == 0 &&
                strncmp(argv[i] + 2, options->name, length) == 0 &&
                (argv[i][2 + length] == '\0' || argv[i][2 + length] == '='))
                return options->name;
        }
    return NULL;
}

/* Rejects options that would have no effect. */
static invar_status check_option_combinations(settings *s, int argc, char **argv)
{
    static const invar_option ops[] = {{.name = "op"}, {.name = "burst"}, {0}};
    static const invar_option gpu[] = {{.name = "burst"}, {.name = "optimizer-cpu-offload"}, {0}};
    bool whole = false;
    const char *stray;

#ifdef INVAR_LEDGER
    invar_option models[MODEL_OPTIONS + 1] = {0};
    (void)add_model_options(models, &s->whole);
    whole = s->whole.model.value >= 0;
    stray = whole ? NULL : first_given(models + 1, argc, argv);
    if (stray)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--%s is about a whole model: give --model", stray);
#endif
    stray = whole ? first_given(ops, argc, argv) : NULL;
    if (stray)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--%s is about single ops: leave out --model", stray);
    stray = s->device.value == INVAR_DEVICE_CPU ? first_given(gpu, argc, argv) : NULL;
    if (stray)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--%s is about a GPU: give --device cuda", stray);
    return INVAR_OK;
}

/* Returns the exit code; a missing GPU is an error. */
static int exit_code_of(invar_status status)
{
    return status == INVAR_OK ? INVAR_EXIT_OK : invar_report_error();
}

static int run_on_gpu(const settings *s)
{
    invar_pool *pool = NULL;
    invar_status status = invar_pool_new(&pool, (int)s->threads);

    if (status == INVAR_OK)
        status = invar_bench_gpu(s->op, &s->race, pool);
    invar_pool_free(pool);
    return exit_code_of(status);
}

static int run_on_cpu(const settings *s)
{
    invar_bench b = {.color = invar_term_has_color(stdout), .json = s->race.json};
    invar_status status = run_bench(&b, s);

    for (int p = 0; p < b.pools; p++)
        invar_pool_free(b.pool[p]);
    invar_free(b.memory);
    return exit_code_of(status);
}

static settings default_settings(void)
{
    return (settings){
        .device = {&invar_device_kind_choices, INVAR_DEVICE_CPU},
        .op = "",
        .threads = invar_default_threads(),
        .race = {.peer = "", .burst = 10},
#ifdef INVAR_LEDGER
        .whole = {.model = {&invar_bench_shape_choices, -1},
                  .dtype = {&invar_format_choices, INVAR_FORMAT_BF16},
                  .numerics = {&invar_numerics_choices, -1},
                  .tokens = "",
                  .only = {&invar_bench_part_choices, -1},
                  .repetitions = 5},
#endif
    };
}

static int cmd_bench(int argc, char **argv)
{
    settings s = default_settings();
    bool cuda;

    if (invar_options_parse(bench_options(&s), argc, argv) != INVAR_OK)
        return invar_report_error();
    if (check_selection(&s) != INVAR_OK || check_option_combinations(&s, argc, argv) != INVAR_OK)
        return invar_report_error();
    cuda = s.device.value == INVAR_DEVICE_CUDA;
#ifdef INVAR_LEDGER
    if (s.whole.model.value >= 0) {
        s.whole.device = (invar_device_kind)s.device.value;
        s.whole.threads = s.threads;
        s.whole.json = s.race.json;
        s.whole.peer = s.race.peer;
        return exit_code_of(invar_bench_model(&s.whole));
    }
#endif
    if (!cuda && s.race.peer[0]) {
        fprintf(stderr, "invar: bench: --peer: ops of the CPU have their own peers; give --device "
                        "cuda or --model\n");
        return INVAR_EXIT_USAGE;
    }
    return cuda ? run_on_gpu(&s) : run_on_cpu(&s);
}

static void bench_help(void)
{
    settings s = default_settings();

    invar_help_text(
        "Measures the speed of every op and, in the same run, of a peer to compare it with:\n"
        "OpenBLAS, memcpy or plain XXH3 on a CPU; a copy of as many bytes on a GPU, or with\n"
        "--peer the kernels of a vendor (tests/bench/gpu.py builds such a file from cuBLAS and\n"
        "cuDNN).\n"
        "\n"
        "The column 'shape' depends on the op. A matrix product shows rows x outputs x inputs (x\n"
        "experts). Attention shows length x heads x key heads x head width, with the number of\n"
        "sequences in front if there is more than one. Expert ops show tokens x experts, or slots\n"
        "x width. Other ops show the shape of their tensor. Rates are multiply-adds (GMAC/s, on a\n"
        "GPU TFLOP/s), bytes read and written (GB/s) or tokens (Mtok/s).\n"
        "\n"
        "On a GPU, part of every result is also compared with the CPU.\n");
#ifdef INVAR_LEDGER
    invar_help_text(
        "With --model it measures one optimizer step and decoding of a whole model, what hashing\n"
        "and the ledger add to a step, and the memory that each part takes.\n");
#endif
    invar_help_text("Exit codes:\n"
                    "  0    done\n"
                    "  1    bits on the GPU differ from the CPU's\n"
                    "  125  no such device here\n");
    invar_options_help(bench_options(&s));
}

const invar_cli_command invar_cmd_bench = {.name = "bench",
                                           .summary =
                                               "measure the speed of ops or of a whole model",
                                           .run = cmd_bench,
                                           .help = bench_help,
                                           .multi_process = true};
