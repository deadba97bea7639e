/*
 * layouts.c - layouts of a run on GPUs that are not there.
 *
 * Memory and bytes are those of the run's own code (engine/run/memory_plan). The time is a
 * prediction by a simple model: products at one rate, then bytes at that of the slowest link of
 * their axis, and nothing overlaps. Ranks are numbered so that tensor-parallel ones are neighbours
 * in a node, then those of the context, of experts, of data, of the pipeline.
 *
 * With --all each way to divide the model is planned as it is. Where that does not fit, what needs
 * less memory and takes longer is tried in turn: tensor-parallel ranks divide rows, then
 * context-parallel ranks do, then other GPUs sample.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/run/layouts.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/console/progress.h"
#include "base/console/term.h"
#include "base/sort.h"
#include "cli/ledger/row_output.h"
#include "cli/memory_table.h"
#include "cli/text_table.h"
#include "engine/model/lora/adapters.h"
#include "engine/run/admission.h"
#include "engine/run/memory_plan/comm_volume.h"
#include "engine/run/memory_workload.h"

#include "base/invar_banned.h"

enum {
    NODE = 8,
    MOST_ROWS = 1024,
    MOST_TENSOR = 8,
    MOST_CONTEXT = 8,
    MOST_ENGINE = 8,
    MOST_SHOWN = 16
};

typedef struct row {
    int gpus, data;
    invar_layout_sizes sizes;
    invar_memory_plan budget; /* of the rank that needs most */
    bool fits;
    double sent[INVAR_COMM_VOLUME_AXES]; /* GB of a rank, in a step */
    double computing, moving;            /* seconds */
    int rollout_ranks, engine; /* GPUs that only sample, and those of an engine; 0: none */
    invar_memory_plan sampler; /* of one of them */
} row;

/* A way to divide a model, on so many GPUs. */
typedef struct task {
    int gpus;
    invar_layout_sizes sizes;
} task;

typedef struct table {
    const invar_layouts_options *options;
    invar_memory_planning view;
    invar_rank_role_sizes recipe;
    row rows[MOST_ROWS];
    const void *order[MOST_ROWS]; /* rows, as they are shown */
    int count;
    task tasks[MOST_ROWS];
    int n_tasks;
} table;

static double seconds_of(const row *r)
{
    return r->computing + r->moving;
}

/* ---- one layout ------------------------------------------------------------------------------ */

/* GB/s along an axis: its ranks lie in one node, or not. */
static double link_of(const table *t, const row *r, invar_parallel_axis axis)
{
    const int sizes[INVAR_COMM_VOLUME_AXES] = {r->sizes.tensor, r->sizes.context, r->sizes.expert,
                                               r->data, r->sizes.pipeline};
    int span = 1;

    for (int i = 0; i <= (int)axis; i++)
        span *= sizes[i];
    return span <= NODE ? t->options->intra_node_gbps : t->options->inter_node_gbps;
}

/* The step waits for the slowest stage, and to be filled and emptied. */
static void add_time(row *r, const table *t, const invar_comm_volume *traffic)
{
    double bubble = (double)(r->sizes.pipeline - 1) / (double)(traffic->rounds * r->sizes.chunks);
    double computing = traffic->flop / (t->options->tflops * 1e12) * (1.0 + bubble), moving = 0.0;

    for (int i = 0; i < INVAR_COMM_VOLUME_AXES; i++)
        moving += (double)invar_comm_volume_sent(traffic, (invar_parallel_axis)i) / 1e9 /
                  link_of(t, r, (invar_parallel_axis)i);
    if (computing + moving < seconds_of(r))
        return;
    r->computing = computing;
    r->moving = moving;
    for (int i = 0; i < INVAR_COMM_VOLUME_AXES; i++)
        r->sent[i] = (double)invar_comm_volume_sent(traffic, (invar_parallel_axis)i) / 1e9;
}

/* Bytes and time are those of the first rank of a stage, which has most units. */
static invar_status plan_stage(row *r, table *t, int stage)
{
    invar_memory_planning *v = &t->view;
    invar_comm_volume traffic;

    INVAR_TRY(invar_memory_planning_plan_stage(v, &r->sizes, r->gpus, stage));
    r->data = v->layout.data.size;
    if (v->budget.need > r->budget.need)
        r->budget = v->budget;
    r->fits = r->fits && v->budget.fits;
    if (!r->fits && t->options->all)
        return INVAR_OK;
    INVAR_TRY(invar_comm_volume_make_longest(&traffic, &v->ask, &v->budget.choice));
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

/* ---- the recipe's ---------------------------------------------------------------------------- */

/* GPUs that train sample nothing. */
static invar_status plan_trainers(row *out, table *t, const invar_rank_role_sizes *sizes, int gpus)
{
    const invar_memory_workload ask = t->view.ask;
    invar_rank_roles sides;
    invar_status status;

    INVAR_TRY(invar_rank_roles_outline(&sides, sizes, gpus));
    memset(t->view.ask.rollouts, 0, sizeof t->view.ask.rollouts);
    status = plan_row(out, t, &sizes->train, sides.first_rollout_rank);
    t->view.ask = ask;
    return status;
}

/* With --all the smallest engine that fits. */
static invar_status plan_samplers(row *out, table *t, invar_rank_role_sizes *sizes)
{
    bool experts = t->view.ask.spec->experts > 0;
    int next;

    for (;; sizes->rollout.tensor = next, sizes->rollout.expert_tensor = experts ? next : 1) {
        INVAR_TRY(invar_memory_planning_plan_sampler(&t->view));
        next = 2 * sizes->rollout.tensor;
        if (!t->options->all || t->view.budget.fits || next > MOST_ENGINE ||
            sizes->rollout_ranks % next != 0)
            break;
    }
    out->sampler = t->view.budget;
    out->fits = out->fits && out->sampler.fits;
    return INVAR_OK;
}

static invar_status plan_both(row *out, table *t, invar_rank_role_sizes *sizes, int gpus)
{
    INVAR_TRY(plan_trainers(out, t, sizes, gpus));
    return out->fits || !t->options->all ? plan_samplers(out, t, sizes) : INVAR_OK;
}

static invar_status plan_sides(row *out, table *t, invar_rank_role_sizes *sizes, int gpus)
{
    invar_status status;

    invar_memory_planning_take_sides(&t->view, sizes, gpus);
    status = plan_both(out, t, sizes, gpus);
    invar_memory_planning_take_sides(&t->view, NULL, 0);
    out->gpus = gpus;
    out->rollout_ranks = sizes->rollout_ranks;
    out->engine = sizes->rollout.tensor;
    return status;
}

static invar_status add_recipe(table *t, int gpus)
{
    const invar_admission facts = {.recipe = t->view.session.recipe, .ranks = gpus};
    invar_rank_role_sizes sizes = t->recipe;
    row *next = &t->rows[t->count++];

    INVAR_TRY(invar_admission_check(&facts));
    return sizes.rollout_ranks > 0 ? plan_sides(next, t, &sizes, gpus)
                                   : plan_row(next, t, &sizes.train, gpus);
}

/* ---- all ------------------------------------------------------------------------------------- */

/* What the model or the memory does not allow is left out: it does not fit. */
static invar_status ignore_misfit(invar_status status, bool *fits)
{
    *fits = *fits && status == INVAR_OK;
    if (status != INVAR_E_INVALID && status != INVAR_E_NOMEM)
        return status;
    invar_error_clear();
    return INVAR_OK;
}

/* Data-parallel ranks without a unit would be idle. */
static bool table_wanted(const table *t, const invar_layout_sizes *s, int gpus)
{
    int parts = invar_layout_parts(s);
    const invar_memory_workload *ask = &t->view.ask;
    int64_t units =
        ask->plan.unit_count < ask->step_samples ? ask->plan.unit_count : ask->step_samples;

    return gpus > 0 && gpus % parts == 0 && gpus / parts <= units;
}

/* How many of the GPUs only sample: none, a quarter, a half; or as many as the recipe says. */
static int rollout_ranks(const table *t, int gpus, int quarters)
{
    return t->recipe.rollout_ranks > 0 ? t->recipe.rollout_ranks : gpus / 4 * quarters;
}

/* Of context-parallel ranks each makes some rows of an adapter's gradient. Beside training a rank
   samples by itself. */
static bool table_suits(const table *t, const invar_rank_role_sizes *s)
{
    const invar_lora_spec *lora = &t->view.ask.spec->lora;

    if (t->view.settings.overlap && (s->rollout_ranks > 0 || invar_layout_parts(&s->train) > 1))
        return false;
    return lora->rank == 0 || s->train.context <= invar_lora_rows(lora);
}

/* Why a layout does not fit. */
typedef struct verdict {
    bool hopeless; /* what is resident is too much, with more contexts as well */
    bool crowded;  /* only the cache is */
} verdict;

static invar_status try_layout(verdict *out, table *t, const invar_layout_sizes *sizes, int gpus,
                               int quarters)
{
    invar_rank_role_sizes sides = t->recipe;
    row *next = &t->rows[t->count];
    invar_status status;

    *next = (row){.fits = false};
    sides.train = *sizes;
    sides.rollout_ranks = rollout_ranks(t, gpus, quarters);
    if (!table_suits(t, &sides) || !table_wanted(t, sizes, gpus - sides.rollout_ranks))
        return INVAR_OK;
    status = sides.rollout_ranks > 0 ? plan_sides(next, t, &sides, gpus)
                                     : plan_row(next, t, sizes, gpus);
    INVAR_TRY(ignore_misfit(status, &next->fits));
    out->hopeless = next->budget.resident > next->budget.usable;
    out->crowded = out->crowded || (!next->fits && next->budget.sampling > 0);
    t->count += next->fits;
    return INVAR_OK;
}

/* What needs less memory takes longer: only where it would not fit without. */
static invar_status try_task(table *t, const task *k)
{
    int before = t->count;
    int most = t->recipe.rollout_ranks > 0 || k->gpus < 4 ? 0 : 2;
    verdict v = {false, false};

    for (int quarters = 0; quarters <= most && (quarters == 0 || v.crowded); quarters++)
        for (int context = 1; context <= MOST_CONTEXT; context *= 2)
            for (int sequence = 0; sequence <= (k->sizes.tensor > 1); sequence++) {
                invar_layout_sizes sizes = k->sizes;
                sizes.context = context;
                sizes.sequence = sequence;
                if (t->count == before && !v.hopeless)
                    INVAR_TRY(try_layout(&v, t, &sizes, k->gpus, quarters));
            }
    return INVAR_OK;
}

static invar_status list_task(table *t, const invar_layout_sizes *s, int gpus)
{
    const invar_model_spec *spec = t->view.ask.spec;
    int trainers = gpus - t->recipe.rollout_ranks;
    bool stages = (s->pipeline & (s->pipeline - 1)) == 0 || trainers % s->pipeline == 0;

    if (!stages || invar_layout_parts(s) > trainers || s->pipeline > spec->layers ||
        s->expert > (spec->experts > 0 ? spec->experts : 1))
        return INVAR_OK;
    if (t->n_tasks == MOST_ROWS)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--gpus %.40s: more than %d layouts: ask for fewer numbers at a time",
                          t->options->gpus, MOST_ROWS);
    t->tasks[t->n_tasks++] = (task){gpus, *s};
    return INVAR_OK;
}

static invar_status list_tasks(table *t, int gpus)
{
    bool experts = t->view.ask.spec->experts > 0;
    invar_layout_sizes s = {.context = 1, .chunks = 1};
    invar_rank_role_sizes sides = t->recipe;
    invar_rank_roles outline;

    sides.train = (invar_layout_sizes){1, 1, 1, 1, 1, 1, false};
    if (sides.rollout_ranks > 0)
        INVAR_TRY(invar_rank_roles_outline(&outline, &sides, gpus));
    for (s.tensor = 1; s.tensor <= MOST_TENSOR; s.tensor *= 2)
        for (s.expert = 1; s.expert <= gpus; s.expert *= 2)
            for (s.pipeline = 1; s.pipeline <= gpus; s.pipeline++)
                for (int etp = 1; etp <= (experts && s.tensor > 1 ? 2 : 1); etp++) {
                    s.expert_tensor = etp == 1 ? 1 : s.tensor;
                    INVAR_TRY(list_task(t, &s, gpus));
                }
    return INVAR_OK;
}

/* On a terminal with a line that says how far it is. */
static invar_status try_tasks(table *t)
{
    const invar_progress_options o = {.stream = stderr,
                                      .title = "plan",
                                      .unit = "layouts",
                                      .total = t->n_tasks,
                                      .mode = invar_term_live(stderr) ? INVAR_PROGRESS_MODE_AUTO
                                                                      : INVAR_PROGRESS_MODE_SILENT};
    invar_progress *progress = NULL;
    invar_status status = invar_progress_new(&progress, &o);

    for (int i = 0; i < t->n_tasks && status == INVAR_OK; i++) {
        char fit[32];
        status = try_task(t, &t->tasks[i]);
        (void)snprintf(fit, sizeof fit, "%d fit", t->count);
        invar_progress_update(progress, i + 1, fit);
    }
    invar_progress_free(progress);
    return status;
}

/* ---- how many GPUs --------------------------------------------------------------------------- */

/* By GPUs, then the fastest first. */
static int compare(const void *a, const void *b)
{
    const row *x = a, *y = b;

    if (x->gpus != y->gpus)
        return x->gpus < y->gpus ? -1 : 1;
    return seconds_of(x) < seconds_of(y) ? -1 : seconds_of(x) > seconds_of(y);
}

/* "8,64,512". */
static invar_status table_fill(table *t, const invar_recipe *recipe)
{
    const char *next = t->options->gpus;
    char *end;

    INVAR_TRY(invar_train_settings_sides(&t->recipe, recipe));
    t->view.ask.must_fit = t->options->all;

    for (;; next = end + 1) {
        long gpus = strtol(next, &end, 10);

        if (end == next || (*end && *end != ',') || gpus < 1 || gpus > INVAR_COMM_MAX_SIZE ||
            t->count == MOST_ROWS)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "--gpus: \"%.40s\" is no list of numbers from 1 to %d, as in 8,64",
                              t->options->gpus, INVAR_COMM_MAX_SIZE);
        INVAR_TRY(t->options->all ? list_tasks(t, (int)gpus) : add_recipe(t, (int)gpus));
        if (!*end)
            return try_tasks(t);
    }
}

/* ---- printing -------------------------------------------------------------------------------- */

static invar_status add_real(invar_text_table *grid, const char *format, double value)
{
    char cell[32];

    (void)snprintf(cell, sizeof cell, format, value);
    return invar_text_table_number(grid, cell);
}

/* Columns that only some layouts have something for. */
typedef enum column { ALWAYS, SEQUENCE, CONTEXTS, SAMPLERS, COLUMNS } column;

static void find_columns(bool shown[COLUMNS], const table *t)
{
    for (int i = 0; i < COLUMNS; i++)
        shown[i] = i == ALWAYS;
    for (int i = 0; i < t->count; i++) {
        const row *r = &t->rows[i];
        shown[SEQUENCE] = shown[SEQUENCE] || r->sizes.sequence;
        shown[CONTEXTS] = shown[CONTEXTS] || r->sizes.context > 1;
        shown[SAMPLERS] = shown[SAMPLERS] || r->rollout_ranks > 0;
    }
}

static double gib(size_t bytes)
{
    return (double)bytes / (double)((size_t)1 << 30);
}

static invar_status add_row(invar_text_table *grid, const row *r, const bool shown[COLUMNS])
{
    const int sizes[] = {r->sizes.expert, r->sizes.expert_tensor, r->sizes.pipeline, r->data};

    INVAR_TRY(invar_text_table_int(grid, r->gpus));
    INVAR_TRY(invar_text_table_int(grid, r->sizes.tensor));
    if (shown[SEQUENCE])
        INVAR_TRY(invar_text_table_string(grid, r->sizes.sequence ? "yes" : "no"));
    if (shown[CONTEXTS])
        INVAR_TRY(invar_text_table_int(grid, r->sizes.context));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        INVAR_TRY(invar_text_table_int(grid, sizes[i]));
    INVAR_TRY(add_real(grid, "%.1f", gib(r->budget.need)));
    if (shown[SAMPLERS]) {
        INVAR_TRY(invar_text_table_int(grid, r->rollout_ranks));
        INVAR_TRY(invar_text_table_int(grid, r->engine));
        INVAR_TRY(add_real(grid, "%.1f", gib(r->sampler.need)));
    }
    INVAR_TRY(invar_text_table_string(grid, r->fits ? "yes" : "no"));
    for (int i = 0; i < INVAR_COMM_VOLUME_AXES; i++)
        if (i != INVAR_COMM_VOLUME_CONTEXT || shown[CONTEXTS])
            INVAR_TRY(add_real(grid, "%.2f", r->sent[i]));
    INVAR_TRY(add_real(grid, "%.3f", r->computing));
    INVAR_TRY(add_real(grid, "%.3f", r->moving));
    return add_real(grid, "%.3f", seconds_of(r));
}

/* Of those with as many GPUs. */
static bool among_fastest(const table *t, int place)
{
    const row *r = t->order[place],
              *before = place < MOST_SHOWN ? NULL : t->order[place - MOST_SHOWN];

    return !before || before->gpus != r->gpus;
}

static void print_rest(const table *t)
{
    int more = 0;

    for (int i = 0; i < t->count; i++)
        more += !among_fastest(t, i);
    if (more > 0)
        printf("%d more fit, which take longer: --json lists all of them.\n", more);
}

static invar_status print_grid(const table *t, const bool shown[COLUMNS])
{
    static const struct {
        const char *name;
        column of;
    } heads[] = {{"gpus", ALWAYS},      {"tp", ALWAYS},       {"sp", SEQUENCE},
                 {"cp", CONTEXTS},      {"ep", ALWAYS},       {"etp", ALWAYS},
                 {"pp", ALWAYS},        {"dp", ALWAYS},       {"GiB", ALWAYS},
                 {"rollout", SAMPLERS}, {"engine", SAMPLERS}, {"their GiB", SAMPLERS},
                 {"fits", ALWAYS},      {"tp GB", ALWAYS},    {"cp GB", CONTEXTS},
                 {"ep GB", ALWAYS},     {"dp GB", ALWAYS},    {"pp GB", ALWAYS},
                 {"compute s", ALWAYS}, {"move s", ALWAYS},   {"step s", ALWAYS}};
    enum { HEADS = sizeof heads / sizeof *heads };
    int columns = 0;
    invar_text_table *grid = NULL;
    invar_status status;

    for (int i = 0; i < HEADS; i++)
        columns += shown[heads[i].of];
    status = invar_text_table_new(&grid, columns);
    for (int i = 0; i < HEADS && status == INVAR_OK; i++)
        if (shown[heads[i].of])
            status = invar_text_table_string(grid, heads[i].name);
    for (int i = 0; i < t->count && status == INVAR_OK; i++)
        if (among_fastest(t, i))
            status = add_row(grid, t->order[i], shown);
    if (status == INVAR_OK)
        status = invar_text_table_show(grid, stdout);
    invar_text_table_free(grid);
    return status;
}

static void print_samplers(const row *r)
{
    const invar_memory_plan *b = &r->sampler;

    if (r->rollout_ranks > 0)
        printf("\n%d of %d GPUs only sample, in engines of %d: %.1f GiB each (%s). Before each "
               "rollout one gets\n%.3f GB of weights.\n",
               r->rollout_ranks, r->gpus, r->engine, gib(b->need),
               b->fits ? "fits" : "does not fit", (double)b->weights / 1e9);
}

static invar_status print_text(const table *t)
{
    const invar_memory_workload *ask = &t->view.ask;
    bool shown[COLUMNS];

    find_columns(shown, t);
    if (t->count == 0) {
        puts("No layout fits: more GPUs, more memory of each, shorter samples or\n"
             "recompute-granularity = full would help.");
        return INVAR_OK;
    }
    INVAR_TRY(print_grid(t, shown));
    print_rest(t);
    if (t->count == 1) {
        print_samplers(&t->rows[0]);
        putchar('\n');
        INVAR_TRY(invar_memory_table_show(&t->rows[0].budget));
    }
    printf(
        "\nGiB: memory of the rank that needs most. GB: what a rank sends in a training step of\n"
        "%" PRId64 " samples of %" PRId64 " tokens. Seconds are a prediction: %g TFLOP/s a GPU, "
        "%g GB/s inside of a\nnode of %d, %g GB/s between nodes; nothing overlaps.\n",
        ask->step_samples, invar_memory_plan_longest(ask), t->options->tflops,
        t->options->intra_node_gbps, NODE, t->options->inter_node_gbps);
    if (!t->options->all && t->count == 1 && !t->rows[0].fits)
        puts("The recipe's layout does not fit: --all lists those that do.");
    if (shown[SAMPLERS])
        puts("rollout: GPUs that only sample; engine: those of them that hold a model together.");
    return INVAR_OK;
}

static json_t *row_json(const row *r)
{
    const invar_memory_plan *b = &r->budget;

    return json_pack(
        "{s:i, s:i, s:b, s:i, s:i, s:i, s:i, s:i, s:I, s:o, s:I, s:I, s:I, s:I, s:b, s:f, s:f, "
        "s:f, s:f, s:f, s:f, s:f}",
        "gpus", r->gpus, "tensor", r->sizes.tensor, "sequence", r->sizes.sequence, "context",
        r->sizes.context, "expert", r->sizes.expert, "expert_tensor", r->sizes.expert_tensor,
        "pipeline", r->sizes.pipeline, "data", r->data, "need", (json_int_t)b->need, "items",
        invar_memory_table_items(b), "sampling", (json_int_t)b->sampling, "scoring",
        (json_int_t)b->scoring, "learning", (json_int_t)b->learning, "around",
        (json_int_t)b->outside_block_bytes, "fits", r->fits, "tensor_gb", r->sent[0], "context_gb",
        r->sent[1], "expert_gb", r->sent[2], "data_gb", r->sent[3], "pipeline_gb", r->sent[4],
        "predicted_computing_s", r->computing, "predicted_moving_s", r->moving);
}

static json_t *sampler_json(const row *r)
{
    const invar_memory_plan *b = &r->sampler;

    return json_pack("{s:i, s:i, s:I, s:o, s:I, s:b, s:I}", "gpus", r->rollout_ranks,
                     "gpus_per_engine", r->engine, "need", (json_int_t)b->need, "items",
                     invar_memory_table_items(b), "sampling", (json_int_t)b->sampling, "fits",
                     b->fits, "weights", (json_int_t)b->weights);
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
                  t->options->tflops, "node_gb_per_s", t->options->intra_node_gbps, "net_gb_per_s",
                  t->options->inter_node_gbps, "samples", (json_int_t)t->view.ask.step_samples,
                  "tokens", (json_int_t)invar_memory_plan_longest(&t->view.ask), "layouts", list));
}

/* ---- all ------------------------------------------------------------------------------------- */

static invar_status table_show(bool *fits_out, table *t, const invar_recipe *recipe)
{
    if (!t->view.ask.learns)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--gpus plans training steps, and this recipe only generates: leave out "
                          "debug-rollout-only");
    INVAR_TRY(table_fill(t, recipe));
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
    status = invar_memory_planning_open(&t->view, recipe, options->memory);
    if (status == INVAR_OK) {
        status = invar_memory_table_judge(&t->view, options->path);
        if (status == INVAR_OK)
            status = table_show(fits_out, t, recipe);
        invar_memory_planning_release(&t->view);
    }
    invar_free(t);
    return status;
}
