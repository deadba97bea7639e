/*
 * layouts.c - layouts of a run on GPUs that are not there.
 *
 * Memory and bytes are those of the run's own code (engine/budget). The time is a prediction by a
 * simple model: products at one rate, then bytes at that of the slowest link of their axis, and
 * nothing overlaps. Ranks are numbered so that tensor-parallel ones are neighbours in a node, then
 * those of the context, of experts, of data, of the pipeline.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/run/layouts.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sort.h"
#include "cli/grid.h"
#include "cli/ledger/rows.h"
#include "cli/run/memory_kinds.h"
#include "engine/budget/traffic.h"
#include "engine/run/memory.h"

#include "base/invar_banned.h"

enum { NODE = 8, MOST_ROWS = 256, MOST_TENSOR = 8 };

typedef struct row {
    int gpus, data;
    invar_layout_sizes sizes;
    invar_budget budget; /* of the rank that needs most */
    bool fits;
    double sent[INVAR_TRAFFIC_AXES]; /* GB of a rank, in a step */
    double computing, moving;        /* seconds */
    int rollout_ranks, engine;       /* GPUs that only sample, and those of an engine; 0: none */
    invar_budget sampler;            /* of one of them */
} row;

typedef struct table {
    const invar_layouts_options *options;
    invar_memory_view view;
    row rows[MOST_ROWS];
    const void *order[MOST_ROWS]; /* rows, as they are shown */
    int count;
} table;

static double seconds_of(const row *r)
{
    return r->computing + r->moving;
}

/* ---- one layout ------------------------------------------------------------------------------ */

/* GB/s along an axis: its ranks lie in one node, or not. */
static double link_of(const table *t, const row *r, invar_traffic_axis axis)
{
    const int sizes[INVAR_TRAFFIC_AXES] = {r->sizes.tensor, r->sizes.context, r->sizes.expert,
                                           r->data, r->sizes.pipeline};
    int span = 1;

    for (int i = 0; i <= (int)axis; i++)
        span *= sizes[i];
    return span <= NODE ? t->options->node : t->options->net;
}

/* The step waits for the slowest stage, and to be filled and emptied. */
static void add_time(row *r, const table *t, const invar_traffic *traffic)
{
    double bubble = (double)(r->sizes.pipeline - 1) / (double)(traffic->rounds * r->sizes.chunks);
    double computing = traffic->flop / (t->options->tflops * 1e12) * (1.0 + bubble), moving = 0.0;

    for (int i = 0; i < INVAR_TRAFFIC_AXES; i++)
        moving += (double)invar_traffic_sent(traffic, (invar_traffic_axis)i) / 1e9 /
                  link_of(t, r, (invar_traffic_axis)i);
    if (computing + moving < seconds_of(r))
        return;
    r->computing = computing;
    r->moving = moving;
    for (int i = 0; i < INVAR_TRAFFIC_AXES; i++)
        r->sent[i] = (double)invar_traffic_sent(traffic, (invar_traffic_axis)i) / 1e9;
}

/* The first rank of a stage stands for all: rows that ranks own differ by some parameters. */
static invar_status plan_stage(row *r, table *t, int stage)
{
    invar_memory_view *v = &t->view;
    invar_traffic traffic;

    INVAR_TRY(invar_memory_plan_rank(v, &r->sizes, r->gpus, stage * (r->gpus / r->sizes.pipeline)));
    r->data = v->layout.data.size;
    if (v->budget.need > r->budget.need)
        r->budget = v->budget;
    r->fits = r->fits && v->budget.fits;
    if (!r->fits && t->options->all)
        return INVAR_OK;
    INVAR_TRY(invar_traffic_make_longest(&traffic, &v->ask, &v->budget.choice));
    add_time(r, t, &traffic);
    return INVAR_OK;
}

static invar_status plan_row(row *out, table *t, const invar_layout_sizes *sizes, int gpus)
{
    int last = sizes->pipeline - 1;

    *out = (row){.gpus = gpus, .sizes = *sizes, .fits = true};
    INVAR_TRY(plan_stage(out, t, 0));
    return last > 0 ? plan_stage(out, t, last) : INVAR_OK;
}

/* ---- layouts --------------------------------------------------------------------------------- */

/* GPUs that train sample nothing. */
static invar_status plan_both(row *out, table *t, const invar_sides_sizes *sizes, int gpus)
{
    const invar_budget_ask ask = t->view.ask;
    invar_sides sides;
    invar_status status;

    INVAR_TRY(invar_sides_outline(&sides, sizes, gpus));
    memset(t->view.ask.rollouts, 0, sizeof t->view.ask.rollouts);
    status = plan_row(out, t, &sizes->train, sides.first);
    t->view.ask = ask;
    return status == INVAR_OK ? invar_memory_plan_sampler(&t->view) : status;
}

static invar_status plan_sides(row *out, table *t, const invar_sides_sizes *sizes, int gpus)
{
    invar_status status;

    invar_memory_take_sides(&t->view, sizes, gpus);
    status = plan_both(out, t, sizes, gpus);
    invar_memory_take_sides(&t->view, NULL, 0);
    INVAR_TRY(status);
    out->gpus = gpus;
    out->rollout_ranks = sizes->rollout_ranks;
    out->engine = sizes->rollout.tensor;
    out->sampler = t->view.budget;
    out->fits = out->fits && out->sampler.fits;
    return INVAR_OK;
}

static invar_status add_recipe(table *t, const invar_recipe *recipe, int gpus)
{
    row *next = &t->rows[t->count++];
    invar_sides_sizes sizes;

    INVAR_TRY(invar_settings_sides(&sizes, recipe));
    return sizes.rollout_ranks > 0 ? plan_sides(next, t, &sizes, gpus)
                                   : plan_row(next, t, &sizes.train, gpus);
}

/* One that the model or the memory does not allow is left out. */
static invar_status try_layout(table *t, const invar_layout_sizes *sizes, int gpus)
{
    row *next = &t->rows[t->count];
    invar_status status = plan_row(next, t, sizes, gpus);

    if (status == INVAR_E_INVALID || status == INVAR_E_NOMEM) {
        invar_error_clear();
        return INVAR_OK;
    }
    t->count += status == INVAR_OK && next->fits;
    return status;
}

/* Divided rows need less memory and send more: only where it would not fit without. */
static invar_status try_both(table *t, const invar_layout_sizes *sizes, int gpus)
{
    invar_layout_sizes divided = *sizes;
    int before = t->count;

    INVAR_TRY(try_layout(t, sizes, gpus));
    divided.sequence = true;
    return t->count > before || sizes->tensor == 1 ? INVAR_OK : try_layout(t, &divided, gpus);
}

/* Data-parallel ranks without a unit would be idle. */
static bool wanted(const table *t, const invar_layout_sizes *s, int gpus)
{
    int parts = invar_layout_parts(s);
    const invar_budget_ask *ask = &t->view.ask;
    int64_t units =
        ask->plan.unit_count < ask->step_samples ? ask->plan.unit_count : ask->step_samples;

    return gpus % parts == 0 && gpus / parts <= units && s->expert_tensor <= s->tensor &&
           (s->expert == 1 || s->expert <= ask->spec->experts) &&
           s->pipeline <= ask->spec->layers && t->count < MOST_ROWS;
}

/* All with so many tensor-parallel ranks. */
static invar_status add_all_with(table *t, int tensor, int gpus)
{
    bool experts = t->view.ask.spec->experts > 0;
    invar_layout_sizes s = {.tensor = tensor, .context = 1, .chunks = 1};

    for (s.expert = 1; s.expert <= gpus; s.expert *= 2)
        for (s.pipeline = 1; s.pipeline <= gpus; s.pipeline *= 2)
            for (int etp = 1; etp <= (experts && tensor > 1 ? 2 : 1); etp++) {
                s.expert_tensor = etp == 1 ? 1 : tensor;
                if (wanted(t, &s, gpus))
                    INVAR_TRY(try_both(t, &s, gpus));
            }
    return INVAR_OK;
}

static invar_status add_all(table *t, int gpus)
{
    for (int tensor = 1; tensor <= MOST_TENSOR; tensor *= 2)
        INVAR_TRY(add_all_with(t, tensor, gpus));
    return INVAR_OK;
}

/* By GPUs, then the fastest first. */
static int compare(const void *a, const void *b)
{
    const row *x = a, *y = b;

    if (x->gpus != y->gpus)
        return x->gpus < y->gpus ? -1 : 1;
    return seconds_of(x) < seconds_of(y) ? -1 : seconds_of(x) > seconds_of(y);
}

/* "8,64,512". */
static invar_status fill(table *t, const invar_recipe *recipe)
{
    const char *next = t->options->gpus;
    char *end;

    for (;; next = end + 1) {
        long gpus = strtol(next, &end, 10);

        if (end == next || (*end && *end != ',') || gpus < 1 || gpus > INVAR_COMM_MAX_SIZE ||
            t->count == MOST_ROWS)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "--gpus: \"%.40s\" is no list of numbers from 1 to %d, as in 8,64",
                              t->options->gpus, INVAR_COMM_MAX_SIZE);
        INVAR_TRY(t->options->all ? add_all(t, (int)gpus) : add_recipe(t, recipe, (int)gpus));
        if (!*end)
            return INVAR_OK;
    }
}

/* ---- printing -------------------------------------------------------------------------------- */

static invar_status add_real(invar_grid *grid, const char *format, double value)
{
    char cell[32];

    (void)snprintf(cell, sizeof cell, format, value);
    return invar_grid_number(grid, cell);
}

/* Columns that only some layouts have something for. */
typedef struct columns {
    bool sequence, contexts;
} columns;

static columns columns_of(const table *t)
{
    columns shown = {false, false};

    for (int i = 0; i < t->count; i++) {
        shown.sequence = shown.sequence || t->rows[i].sizes.sequence;
        shown.contexts = shown.contexts || t->rows[i].sizes.context > 1;
    }
    return shown;
}

static invar_status add_row(invar_grid *grid, const row *r, const columns *shown)
{
    const int sizes[] = {r->sizes.expert, r->sizes.expert_tensor, r->sizes.pipeline, r->data};

    INVAR_TRY(invar_grid_int(grid, r->gpus));
    INVAR_TRY(invar_grid_int(grid, r->sizes.tensor));
    if (shown->sequence)
        INVAR_TRY(invar_grid_string(grid, r->sizes.sequence ? "yes" : "no"));
    if (shown->contexts)
        INVAR_TRY(invar_grid_int(grid, r->sizes.context));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        INVAR_TRY(invar_grid_int(grid, sizes[i]));
    INVAR_TRY(add_real(grid, "%.1f", (double)r->budget.need / (double)((size_t)1 << 30)));
    INVAR_TRY(invar_grid_string(grid, r->fits ? "yes" : "no"));
    for (int i = 0; i < INVAR_TRAFFIC_AXES; i++)
        if (i != INVAR_TRAFFIC_CONTEXT || shown->contexts)
            INVAR_TRY(add_real(grid, "%.2f", r->sent[i]));
    INVAR_TRY(add_real(grid, "%.3f", r->computing));
    INVAR_TRY(add_real(grid, "%.3f", r->moving));
    return add_real(grid, "%.3f", seconds_of(r));
}

static invar_status print_grid(const table *t)
{
    static const char *const heads[] = {"gpus",  "tp",    "sp",    "cp",        "ep",     "etp",
                                        "pp",    "dp",    "GiB",   "fits",      "tp GB",  "cp GB",
                                        "ep GB", "dp GB", "pp GB", "compute s", "move s", "step s"};
    enum { HEADS = sizeof heads / sizeof *heads };
    columns shown = columns_of(t);
    invar_grid *grid = NULL;
    invar_status status = invar_grid_new(&grid, HEADS - !shown.sequence - (shown.contexts ? 0 : 2));

    for (int i = 0; i < HEADS && status == INVAR_OK; i++) {
        bool context = strncmp(heads[i], "cp", 2) == 0, sequence = strcmp(heads[i], "sp") == 0;
        if ((!context || shown.contexts) && (!sequence || shown.sequence))
            status = invar_grid_string(grid, heads[i]);
    }
    for (int i = 0; i < t->count && status == INVAR_OK; i++)
        status = add_row(grid, t->order[i], &shown);
    if (status == INVAR_OK)
        status = invar_grid_show(grid, stdout);
    invar_grid_free(grid);
    return status;
}

static void print_samplers(const row *r)
{
    const invar_budget *b = &r->sampler;

    if (r->rollout_ranks > 0)
        printf("\n%d of %d GPUs only sample, in engines of %d: %.1f GiB each (%s). Before each "
               "rollout one gets\n%.3f GB of weights.\n",
               r->rollout_ranks, r->gpus, r->engine, (double)b->need / (double)((size_t)1 << 30),
               b->fits ? "fits" : "does not fit", (double)b->weights / 1e9);
}

static invar_status print_text(const table *t)
{
    const invar_budget_ask *ask = &t->view.ask;

    INVAR_TRY(print_grid(t));
    for (int i = 0; i < t->count; i++)
        print_samplers(t->order[i]);
    if (t->count == 1) {
        putchar('\n');
        INVAR_TRY(invar_memory_show(&t->rows[0].budget));
    }
    printf(
        "\nGiB: memory of the rank that needs most. GB: what a rank sends in a training step of\n"
        "%" PRId64 " samples of %" PRId64 " tokens. Seconds are a prediction: %g TFLOP/s a GPU, "
        "%g GB/s inside of a\nnode of %d, %g GB/s between nodes; nothing overlaps.\n",
        ask->step_samples, invar_budget_longest(ask), t->options->tflops, t->options->node, NODE,
        t->options->net);
    return INVAR_OK;
}

static json_t *row_json(const row *r)
{
    const invar_budget *b = &r->budget;

    return json_pack(
        "{s:i, s:i, s:b, s:i, s:i, s:i, s:i, s:i, s:I, s:o, s:I, s:I, s:I, s:I, s:b, s:f, s:f, "
        "s:f, s:f, s:f, s:f, s:f}",
        "gpus", r->gpus, "tensor", r->sizes.tensor, "sequence", r->sizes.sequence, "context",
        r->sizes.context, "expert", r->sizes.expert, "expert_tensor", r->sizes.expert_tensor,
        "pipeline", r->sizes.pipeline, "data", r->data, "need", (json_int_t)b->need, "items",
        invar_memory_items(b), "sampling", (json_int_t)b->sampling, "scoring",
        (json_int_t)b->scoring, "learning", (json_int_t)b->learning, "around",
        (json_int_t)b->around, "fits", r->fits, "tensor_gb", r->sent[0], "context_gb", r->sent[1],
        "expert_gb", r->sent[2], "data_gb", r->sent[3], "pipeline_gb", r->sent[4],
        "predicted_computing_s", r->computing, "predicted_moving_s", r->moving);
}

static json_t *sampler_json(const row *r)
{
    const invar_budget *b = &r->sampler;

    return json_pack("{s:i, s:i, s:I, s:o, s:I, s:b, s:I}", "gpus", r->rollout_ranks,
                     "gpus_per_engine", r->engine, "need", (json_int_t)b->need, "items",
                     invar_memory_items(b), "sampling", (json_int_t)b->sampling, "fits", b->fits,
                     "weights", (json_int_t)b->weights);
}

static invar_status print_json(const table *t)
{
    json_t *list = json_array();

    for (int i = 0; i < t->count; i++) {
        const row *r = t->order[i];
        json_t *shown = row_json(r);
        if (shown && r->rollout_ranks > 0)
            (void)json_object_set_new(shown, "samplers", sampler_json(r));
        (void)json_array_append_new(list, shown);
    }
    return invar_json_write(
        stdout,
        json_pack("{s:b, s:f, s:f, s:f, s:I, s:I, s:o}", "prediction", true, "tflops",
                  t->options->tflops, "node_gb_per_s", t->options->node, "net_gb_per_s",
                  t->options->net, "samples", (json_int_t)t->view.ask.step_samples, "tokens",
                  (json_int_t)invar_budget_longest(&t->view.ask), "layouts", list));
}

/* ---- all ------------------------------------------------------------------------------------- */

static invar_status show(bool *fits_out, table *t, const invar_recipe *recipe)
{
    if (!t->view.ask.learns)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--gpus plans training steps, and this recipe only generates: leave out "
                          "debug-rollout-only");
    INVAR_TRY(fill(t, recipe));
    *fits_out = t->count > 0;
    for (int i = 0; i < t->count; i++) {
        *fits_out = *fits_out && t->rows[i].fits;
        t->order[i] = &t->rows[i];
    }
    INVAR_TRY(invar_sort(t->order, (size_t)t->count, compare));
    return t->options->json ? print_json(t) : print_text(t);
}

invar_status invar_layouts_show(bool *fits_out, const invar_recipe *recipe,
                                const invar_layouts_options *options)
{
    table *t = NULL;
    invar_status status;

    *fits_out = false;
    INVAR_TRY(invar_alloc((void **)&t, 1, sizeof *t, "layouts"));
    *t = (table){.options = options};
    status = invar_memory_open(&t->view, recipe, options->memory);
    if (status == INVAR_OK) {
        status = show(fits_out, t, recipe);
        invar_memory_release(&t->view);
    }
    invar_free(t);
    return status;
}
