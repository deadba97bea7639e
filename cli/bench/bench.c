/*
 * bench.c - invar bench: runs the cases of every op on a device and prints a row for each.
 *
 * A row shows what the op achieves, and its share of what this machine can do: of the speed of a
 * copy that reads and writes as many bytes, timed in turn with the op, or of a large product. Under
 * sm90 a CPU emulates tensor cores, so a CPU has rows for both numerics.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/bench/bench.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/console/term.h"
#include "base/json/result.h"

#include "base/invar_banned.h"

#define CPU_BURST 0.02 /* seconds */
#define GPU_BURST 0.01

/* ---- the peak of this machine ---------------------------------------------------------------- */

typedef struct copy_args {
    char *to;
    const char *from;
    size_t bytes;
} copy_args;

typedef struct copy_parts {
    const copy_args *copy;
    size_t parts;
} copy_parts;

/* Copies the part of one thread. */
static invar_status copy_part(void *payload, int64_t task, int worker)
{
    const copy_parts *p = payload;
    size_t part = (size_t)task, each = p->copy->bytes / p->parts, first = each * part;
    size_t end = part + 1 == p->parts ? p->copy->bytes : first + each;

    (void)worker;
    memcpy(p->copy->to + first, p->copy->from + first, end - first);
    return INVAR_OK;
}

static invar_status run_copy(const invar_device *dev, const void *args, void *workspace)
{
    const copy_args *c = args;
    copy_parts parts = {c, (size_t)invar_pool_threads(dev->pool)};

    (void)workspace;
    if (invar_device_is_local(dev))
        return invar_device_copy(dev, c->to, c->from, c->bytes);
    return invar_pool_run(dev->pool, invar_pool_threads(dev->pool), copy_part, &parts);
}

static double burst(const invar_bench *b)
{
    double usual = b->local ? GPU_BURST : CPU_BURST;

    return b->options->burst > 0.0 ? b->options->burst : usual;
}

/* Times runners, the first of which is the op of a case. */
static invar_status measure_runners(invar_bench_runner *runners, int count, invar_device *dev,
                                    const invar_bench *b, const invar_bench_case *c)
{
    invar_status status = invar_bench_begin_scratch(dev, c->op, c->args[0]);

    // copies, and ops that move data and read lists of the host, cannot be in a graph
    if (status == INVAR_OK)
        status = invar_bench_measure(runners, count, dev, c->op, burst(b),
                                     c->unit == INVAR_BENCH_UNIT_MAC);
    invar_arena_free(dev->scratch);
    return status;
}

/* Raises *peak to the multiply-adds per second of a large product of this type. */
static invar_status measure_product(double *peak, invar_bench *b, invar_device *dev,
                                    invar_dtype type)
{
    const int64_t n = b->local ? 8192 : 1024;
    const invar_linear_fwd_args args = {.y = invar_bench_make(b, type, n, n),
                                        .x = invar_bench_make(b, type, n, n),
                                        .w = invar_bench_make(b, type, n, n),
                                        .k_shards = 1};
    const invar_bench_case c = {.op = INVAR_OP_LINEAR_FWD, .args = {&args}, .sets = 1};
    invar_bench_runner ours = {.args = c.args, .sets = 1};
    double rate;

    INVAR_TRY(b->status);
    INVAR_TRY(measure_runners(&ours, 1, dev, b, &c));
    rate = (double)n * (double)n * (double)n / ours.seconds;
    *peak = rate > *peak ? rate : *peak;
    return INVAR_OK;
}

/* A CPU is faster in f32 or in bf16, a GPU in bf16. */
static invar_status measure_peak(double *peak, invar_bench *b, const invar_device *dev)
{
    invar_device plain = *dev;

    if (!b->local) {
        plain.numerics = INVAR_NUMERICS_IEEE;
        INVAR_TRY(measure_product(peak, b, &plain, INVAR_DTYPE_F32));
    }
    return measure_product(peak, b, &plain, INVAR_DTYPE_BF16);
}

/* ---- rows ------------------------------------------------------------------------------------ */

typedef struct bench_row {
    const invar_bench_case *c;
    const invar_device *dev;
    double seconds, rate, share; /* share: 0 if the peak is not known */
    const char *unit;
    bool first_of_case;
} bench_row;

static void set_rate(bench_row *r)
{
    switch (r->c->unit) {
    case INVAR_BENCH_UNIT_MAC:
        r->unit = invar_device_is_local(r->dev) ? "TFLOP/s" : "GMAC/s";
        r->rate = r->c->work / r->seconds * (invar_device_is_local(r->dev) ? 2e-12 : 1e-9);
        break;
    case INVAR_BENCH_UNIT_BYTE:
        r->unit = "GB/s";
        r->rate = r->c->work / r->seconds * 1e-9;
        break;
    case INVAR_BENCH_UNIT_TOKEN:
        r->unit = "Mtok/s";
        r->rate = r->c->work / r->seconds * 1e-6;
        break;
    }
}

static json_t *row_json(const invar_bench *b, const bench_row *r)
{
    return INVAR_RESULT(INVAR_BENCH_ROW, invar_op_name(r->c->op), r->c->shape,
                        invar_dtype_name(r->c->type), invar_numerics_name(r->dev->numerics),
                        r->seconds, r->rate, r->unit, r->share > 0.0 ? r->share : (double)NAN,
                        b->local ? -1 : invar_pool_threads(r->dev->pool));
}

/* Omits what is equal to the row above. */
static void print_line(const invar_bench *b, const bench_row *r)
{
    char share[16] = "";

    if (r->share > 0.0)
        (void)snprintf(share, sizeof share, "%.1f%%", 100.0 * r->share);
    printf("%-15s %-21s %-5s %-4s %4.0d %11.1f %9.*f %-7s %7s",
           b->first_of_op ? invar_op_name(r->c->op) : "", r->first_of_case ? r->c->shape : "",
           r->first_of_case ? invar_dtype_name(r->c->type) : "",
           invar_numerics_name(r->dev->numerics), b->local ? 0 : invar_pool_threads(r->dev->pool),
           1e6 * r->seconds, r->rate < 0.01 ? 6 : 2, r->rate, r->unit, share);
}

static void print_head(const invar_bench *b)
{
    bool color = invar_term_has_color(stdout);

    printf("%s%-15s %-21s %-5s %-4s %4s %11s %9s %-7s %7s%s%s%s\n",
           invar_term_escape(color, INVAR_TERM_STYLE_BOLD), "op", "shape", "type", "num", "thr",
           "time us", "rate", "", "share", b->options->peers && b->local ? " CPU      " : "",
           b->options->peers ? "    peer us   ratio  peer" : "",
           invar_term_escape(color, INVAR_TERM_STYLE_PLAIN));
}

static void print_row(invar_bench *b, const bench_row *r, const invar_bench_runner *peers,
                      int count)
{
    const invar_bench_peers *hooks = b->options->peers;
    json_t *row = b->rows ? row_json(b, r) : NULL;

    if (!b->rows)
        print_line(b, r);
    if (hooks)
        hooks->print(r->c, r->seconds, peers, count, r->dev, row);
    if (b->rows)
        (void)json_array_append_new(b->rows, row);
    else
        printf("\n");
    fflush(stdout);
    b->first_of_op = false;
}

/* ---- a case ---------------------------------------------------------------------------------- */

/* Times a case with one of the pools and prints its row. */
static invar_status run_row(invar_bench *b, bench_row *r, invar_device *dev, int pool)
{
    const invar_bench_case *c = r->c;
    bool moves = c->unit == INVAR_BENCH_UNIT_BYTE;
    size_t half = moves ? (size_t)(c->work / 2) : 0; // each byte is read and written
    copy_args copy = {.bytes = half};
    const void *copies[] = {&copy};
    invar_bench_runner runners[INVAR_BENCH_RUNNERS] = {{.args = c->args, .sets = c->sets}};
    int count = 1;

    if (c->unit == INVAR_BENCH_UNIT_MAC && b->peak[pool] == 0.0)
        INVAR_TRY(measure_peak(&b->peak[pool], b, dev));
    if (moves) {
        copy.to = invar_bench_zero(b, INVAR_DTYPE_FP8, 1, (int64_t)half).data;
        copy.from = invar_bench_make(b, INVAR_DTYPE_FP8, 1, (int64_t)half).data;
        runners[count++] =
            (invar_bench_runner){.name = "copy", .run = run_copy, .args = copies, .sets = 1};
    }
    if (b->options->peers)
        count += b->options->peers->find(runners + count, c, dev);
    INVAR_TRY(b->status);
    INVAR_TRY(measure_runners(runners, count, dev, b, c));
    r->seconds = runners[0].seconds;
    set_rate(r);
    r->share = moves ? runners[1].seconds / r->seconds : 0.0;
    if (c->unit == INVAR_BENCH_UNIT_MAC)
        r->share = c->work / r->seconds / b->peak[pool];
    print_row(b, r, runners + 1, count - 1);
    r->first_of_case = false;
    return INVAR_OK;
}

static invar_status run_rows(invar_bench *b, const invar_bench_case *c)
{
    // f32 operands use fmaf under all numerics, so sm90 would repeat the ieee rows
    bool step = invar_op_depends_on_numerics(c->op) && c->type != INVAR_DTYPE_F32;
    bench_row r = {.c = c, .first_of_case = true};

    for (int n = 0; n < (step && !b->local ? INVAR_NUMERICS_COUNT : 1); n++)
        for (int pool = 0; pool < b->n_pools; pool++) {
            invar_device dev = b->dev;
            if (!b->local)
                dev.numerics = (invar_numerics)n;
            dev.pool = b->pools[pool];
            r.dev = &dev;
            INVAR_TRY(run_row(b, &r, &dev, pool));
        }
    return INVAR_OK;
}

static invar_status check_and_run(invar_bench *b, invar_bench_case *c)
{
    invar_op_args copies[INVAR_BENCH_SETS];

    INVAR_TRY(b->status);
    if (b->local) {
        if (b->options->peers)
            INVAR_TRY(b->options->peers->check(c, &b->dev));
        invar_bench_make_sets(b, c, copies);
    }
    return run_rows(b, c);
}

invar_status invar_bench_case_run(invar_bench *b, invar_bench_case *c, const int64_t *shape,
                                  const char *remark)
{
    size_t length = 0;
    invar_status status;

    c->op = b->op;
    c->sets = 1;
    for (int i = 0; shape[i] != 0; i++)
        length += (size_t)snprintf(c->shape + length, sizeof c->shape - length, "%s%" PRId64,
                                   i > 0 ? "x" : "", shape[i]);
    (void)snprintf(c->shape + length, sizeof c->shape - length, "%s", remark);
    status = check_and_run(b, c);
    invar_bench_free_operands(b);
    return status;
}

invar_status invar_bench_case_works(invar_bench *b, const void *args, invar_dtype type,
                                    const int64_t *shape, invar_bench_unit unit, double work)
{
    invar_bench_case c = {.args = {args}, .type = type, .unit = unit, .work = work};

    return invar_bench_case_run(b, &c, shape, "");
}

invar_status invar_bench_case_moves(invar_bench *b, const void *args, invar_dtype type,
                                    const int64_t *shape)
{
    return invar_bench_case_works(b, args, type, shape, INVAR_BENCH_UNIT_BYTE,
                                  invar_bench_bytes(b->op, args));
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

static invar_status run_selected(invar_bench *b)
{
    static invar_status (*const ops[INVAR_OP_COUNT])(invar_bench *) = {
#define INVAR_OP(ID, fn, name, revision, numerics) [INVAR_OP_##ID] = invar_bench_op_##fn,
#include "kernels-deterministic/ops.def"
#undef INVAR_OP
    };

    for (int op = 0; op < INVAR_OP_COUNT; op++) {
        if (!is_selected(b->options->only, (invar_op)op))
            continue;
        b->op = (invar_op)op;
        b->first_of_op = true;
        INVAR_TRY(ops[op](b));
    }
    return INVAR_OK;
}

static invar_status run_table(invar_bench *b)
{
    invar_status status;

    if (b->options->json)
        b->rows = json_array();
    else
        print_head(b);
    status = run_selected(b);
    if (b->options->json)
        INVAR_TRY(invar_json_write(
            stdout, INVAR_RESULT(INVAR_BENCH_OPS_RESULT, b->rows,
                                 status == INVAR_OK ? NULL : invar_error_last()->message)));
    else if (status == INVAR_OK)
        printf("\nshare: of the speed of a copy of as many bytes, or of a large product\n");
    return status;
}

/* A GPU has one pool. */
static invar_status open_bench(invar_bench *b)
{
    if (!b->local)
        INVAR_TRY(invar_pool_new(&b->pools[b->n_pools++], 1));
    if (b->local || b->options->threads > 1)
        INVAR_TRY(invar_pool_new(&b->pools[b->n_pools++], b->options->threads));
    b->dev.pool = b->pools[b->n_pools - 1];
    return invar_device_open(&b->dev);
}

invar_status invar_bench_run(const invar_bench_options *options)
{
    static const invar_bench_sizes sizes[] = {
        {
#define SIZE(name, cpu, gpu) cpu,
#include "cli/bench/sizes.def"
#undef SIZE
        },
        {
#define SIZE(name, cpu, gpu) gpu,
#include "cli/bench/sizes.def"
#undef SIZE
        },
    };
    invar_bench b = {.options = options};
    invar_status status;

    INVAR_TRY(invar_backend_find(&b.dev.backend, options->device));
    b.local = invar_device_is_local(&b.dev);
    b.sizes = &sizes[b.local];
    b.dev.numerics = b.local ? INVAR_NUMERICS_SM90 : INVAR_NUMERICS_IEEE;
    status = open_bench(&b);
    if (status == INVAR_OK)
        status = run_table(&b);
    invar_bench_free_operands(&b);
    invar_free(b.noise);
    invar_device_close(&b.dev);
    for (int p = 0; p < 2; p++)
        invar_pool_free(b.pools[p]);
    return status;
}
