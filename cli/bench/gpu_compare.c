/*
 * gpu_compare.c - times a GPU op and its peers in turn, and prints one row per case.
 *
 * The op and its peers run in turn, burst by burst, so that all of them see the same clock of a GPU
 * that warms up. A burst is a number of calls that are queued without synchronization and timed
 * from idle to idle; short calls are captured as one graph, so that launch overhead does not count.
 * The result is the median over the bursts.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/bench/gpu_compare.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/console/term.h"
#include "cli/bench/bench.h"
#include "cli/safe_text.h"
#include "kernels-deterministic/math/elementary.h"

#include "base/invar_banned.h"

enum { WARM_ROUNDS = 2, ROUNDS = 7, MAX_RUNNERS = 4, MAX_FAMILIES = 64 };
#define SHORT 8e-5 /* calls shorter than this (seconds) may be limited by the launch */

/* Ratios of the rows of an op to one peer. */
typedef struct ratio_family {
    invar_op op;
    const char *type, *peer;
    double least;
    float logs; /* sum of the logarithms */
    int rows;
} ratio_family;

struct invar_gpu_compare {
    const invar_device *dev;
    const invar_gpu_compare_peer *peers;
    double burst; /* seconds */
    bool json;
    int rows;
    ratio_family families[MAX_FAMILIES];
    int n_families;
};

/* ---- peers ----------------------------------------------------------------------------------- */

static invar_status find_peers(invar_gpu_compare *compare, const char *path)
{
    static const invar_gpu_compare_peer none[] = {{0}};
    invar_gpu_compare_peers_fn list = NULL;
    void *library, *symbol;

    compare->peers = none;
    if (!path[0])
        return INVAR_OK;
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--peer: %.1000s", dlerror());
    symbol = dlsym(library, "invar_race_peers");
    memcpy(&list, &symbol, sizeof symbol);
    compare->peers = list ? list(compare->dev->backend) : NULL;
    if (!compare->peers)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--peer %.1000s: it has no ops for this device",
                          path);
    return INVAR_OK;
}

typedef struct copy_args {
    void *to, *from;
    size_t bytes;
} copy_args;

static invar_status run_copy(const invar_device *dev, const void *args, void *workspace)
{
    const copy_args *c = args;

    (void)workspace;
    return invar_device_copy(dev, c->to, c->from, c->bytes);
}

/* ---- timing ---------------------------------------------------------------------------------- */

typedef struct runner {
    const char *name;         /* NULL for our op */
    invar_gpu_compare_fn run; /* NULL to run the op */
    const void *const *args;
    int sets;
    int calls; /* calls per burst */
    invar_device_graph *graph;
    double times[ROUNDS]; /* seconds per call */
} runner;

static invar_status queue_calls(const invar_device *dev, invar_op op, const runner *r)
{
    for (int i = 0; i < r->calls; i++) {
        const void *args = r->args[i % r->sets];
        INVAR_TRY(r->run ? r->run(dev, args, NULL) : invar_op_run(dev, op, args));
    }
    return INVAR_OK;
}

/* Times one burst; *out is the seconds per call. */
static invar_status time_burst(double *out, const invar_device *dev, invar_op op, const runner *r)
{
    double begin;

    INVAR_TRY(invar_device_synchronize(dev));
    begin = invar_bench_now();
    INVAR_TRY(r->graph ? dev->backend->graphs.launch(dev, r->graph) : queue_calls(dev, op, r));
    INVAR_TRY(invar_device_synchronize(dev));
    *out = (invar_bench_now() - begin) / r->calls;
    return INVAR_OK;
}

/*
 * Chooses the number of calls per burst and, if `graphs` is set and supported, captures them as a
 * graph.
 */
static invar_status prepare_runner(runner *r, const invar_device *dev, invar_op op, double length,
                                   bool graphs)
{
    double seconds;
    invar_status status;

    r->calls = 3;
    INVAR_TRY(time_burst(&seconds, dev, op, r)); // the first calls load code and choose algorithms
    INVAR_TRY(time_burst(&seconds, dev, op, r));
    r->calls = (int)(length / (seconds + 1e-7)) + 1;
    if (!graphs || !dev->backend->graphs.begin || seconds > SHORT)
        return INVAR_OK;
    INVAR_TRY(dev->backend->graphs.begin(dev));
    status = queue_calls(dev, op, r);
    if (status == INVAR_OK)
        return dev->backend->graphs.end(&r->graph, dev);
    (void)dev->backend->graphs.end(NULL, dev);
    return status;
}

static double median(const double *times)
{
    double sorted[ROUNDS];

    for (int i = 0; i < ROUNDS; i++) {
        int at = i;
        for (; at > 0 && sorted[at - 1] > times[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = times[i];
    }
    return sorted[ROUNDS / 2];
}

static invar_status run_rounds(runner *runners, int count, const invar_gpu_compare *compare,
                               invar_op op, bool graphs)
{
    const invar_device *dev = compare->dev;

    for (int i = 0; i < count; i++)
        INVAR_TRY(prepare_runner(&runners[i], dev, op, compare->burst, graphs));
    for (int round = -WARM_ROUNDS; round < ROUNDS; round++)
        for (int i = 0; i < count; i++)
            INVAR_TRY(time_burst(&runners[i].times[round < 0 ? 0 : round], dev, op, &runners[i]));
    return INVAR_OK;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void add_ratio(invar_gpu_compare *compare, const invar_gpu_compare_case *row,
                      const char *peer, double ratio)
{
    ratio_family *f = compare->families, *end = f + compare->n_families;

    while (f < end &&
           !(f->op == row->op && strcmp(f->type, row->type) == 0 && strcmp(f->peer, peer) == 0))
        f++;
    if (f == end) {
        INVAR_CHECK(compare->n_families < MAX_FAMILIES);
        compare->n_families++;
        *f = (ratio_family){.op = row->op, .type = row->type, .peer = peer, .least = ratio};
    }
    f->logs += invar_log((float)ratio);
    f->least = ratio < f->least ? ratio : f->least;
    f->rows++;
}

static void print_json(const invar_gpu_compare *compare, const invar_gpu_compare_case *row,
                       const runner *runners, int count, const char *unit, double rate)
{
    double seconds = median(runners[0].times);

    printf("%s\n    {\"op\": \"%s\", \"type\": \"%s\", \"shape\": \"%s\", \"seconds\": %.9g, "
           "\"rate\": %.6g, \"unit\": \"%s\", \"compared\": %" PRId64 ", \"different\": %" PRId64
           ", \"peers\": [",
           compare->rows ? "," : "", invar_op_name(row->op), row->type, row->shape, seconds, rate,
           unit, row->compared, row->different);
    for (int i = 1; i < count; i++)
        printf("%s{\"name\": \"%s\", \"seconds\": %.9g, \"ratio\": %.5g}", i > 1 ? ", " : "",
               runners[i].name, median(runners[i].times), median(runners[i].times) / seconds);
    printf("]}");
}

static void print_line(const invar_gpu_compare_case *row, const runner *runners, int count,
                       const char *unit, double rate)
{
    enum { LEFT = 87 }; // columns before those of the peer
    double seconds = median(runners[0].times);
    const char *bits = row->different ? "DIFFERENT" : row->compared ? "equal" : "";

    printf("%-16s %-6s %-24s %10.1f %8.1f %-8s %-9s", invar_op_name(row->op), row->type, row->shape,
           1e6 * seconds, rate, unit, bits);
    for (int i = 1; i < count; i++)
        printf("%*s %10.1f %7.3f  %s\n", i > 1 ? LEFT : 0, "", 1e6 * median(runners[i].times),
               median(runners[i].times) / seconds, runners[i].name);
    if (count == 1)
        printf("\n");
}

static void print_row(invar_gpu_compare *compare, const invar_gpu_compare_case *row,
                      const runner *runners, int count)
{
    double seconds = median(runners[0].times);
    const char *unit = row->copy_from ? "GB/s" : "TFLOP/s";
    double rate = row->work / seconds * (row->copy_from ? 1e-9 : 1e-12);

    if (compare->json)
        print_json(compare, row, runners, count, unit, rate);
    else
        print_line(row, runners, count, unit, rate);
    fflush(stdout);
    compare->rows++;
    for (int i = 1; i < count; i++)
        add_ratio(compare, row, runners[i].name, median(runners[i].times) / seconds);
}

invar_status invar_gpu_compare_run(invar_gpu_compare *compare, const invar_gpu_compare_case *row)
{
    copy_args copy = {row->copy_to, row->copy_from, (size_t)(row->work / 2)};
    const void *copies[] = {&copy};
    runner runners[MAX_RUNNERS] = {{.args = row->args, .sets = row->sets}};
    invar_status status;
    int count = 1;

    if (row->copy_from)
        runners[count++] = (runner){.name = "copy", .run = run_copy, .args = copies, .sets = 1};
    for (const invar_gpu_compare_peer *p = compare->peers; p->name && count < MAX_RUNNERS; p++)
        if (p->op == row->op && strcmp(p->type, row->type) == 0)
            runners[count++] =
                (runner){.name = p->name, .run = p->run, .args = row->args, .sets = row->sets};
    status = run_rounds(runners, count, compare, row->op, !row->copy_from);
    if (status == INVAR_OK)
        print_row(compare, row, runners, count);
    for (int i = 0; i < count; i++)
        if (runners[i].graph)
            compare->dev->backend->graphs.free(compare->dev, runners[i].graph);
    return status;
}

/* ---- table ----------------------------------------------------------------------------------- */

invar_status invar_gpu_compare_new(invar_gpu_compare **out, const invar_device *dev,
                                   const invar_gpu_compare_options *options)
{
    bool color = invar_term_has_color(stdout);
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(*out, 1, "a benchmark"));
    **out = (invar_gpu_compare){
        .dev = dev, .burst = 1e-3 * (double)options->burst, .json = options->json};
    status = find_peers(*out, options->peer);
    if (status != INVAR_OK) {
        invar_gpu_compare_free(*out);
        *out = NULL;
        return status;
    }
    if (options->json)
        printf("{\n  \"rows\": [");
    else
        printf("%s%-16s %-6s %-24s %10s %8s %-8s %-9s %10s %7s  %s%s\n",
               invar_term_escape(color, INVAR_TERM_STYLE_BOLD), "op", "type", "shape", "time us",
               "rate", "", "CPU", "peer us", "ratio", "peer",
               invar_term_escape(color, INVAR_TERM_STYLE_PLAIN));
    return INVAR_OK;
}

void invar_gpu_compare_free(invar_gpu_compare *compare)
{
    invar_free(compare);
}

int invar_gpu_compare_end(invar_gpu_compare *compare, invar_status status)
{
    if (compare->json)
        invar_safe_text_end_json(stdout, status);
    else if (compare->n_families > 0)
        printf("\nratio: the peer's time over ours; above 1 we are faster\n");
    for (int i = 0; i < compare->n_families && !compare->json; i++) {
        const ratio_family *f = &compare->families[i];
        if (f->rows > 1)
            printf("%s %s beside %s: geometric mean of %d %.3f, least %.3f\n", invar_op_name(f->op),
                   f->type, f->peer, f->rows, (double)invar_exp(f->logs / (float)f->rows),
                   f->least);
    }
    return compare->rows;
}
