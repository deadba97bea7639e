/*
 * layouts.c - plans the layouts of a run on GPUs that need not exist: memory, traffic, time.
 *
 * Memory and bytes come from the code of the run itself (engine/run/memory_plan). The time is a
 * prediction by a simple model: all products at one rate, then all bytes at the rate of the slowest
 * link of their axis, without overlap. Ranks are numbered so that tensor-parallel ranks are
 * neighbors in a node, followed by context, expert, data and pipeline parallelism.
 *
 * With --all, every way to divide the model is planned. If one does not fit, slower variants with
 * less memory are tried in turn: sequence parallelism, context parallelism, and GPUs that only
 * sample.
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
    GPUS_PER_NODE = 8,
    MAX_ROWS = 1024,
    MAX_TENSOR = 8,
    MAX_CONTEXT = 8,
    MAX_ENGINE = 8,
    MAX_SHOWN = 16
};

typedef struct layout_row {
    int gpus, data;
    invar_layout_sizes sizes;
    invar_memory_plan budget; /* memory plan of the rank with the largest need */
    bool fits;
    double sent[INVAR_COMM_VOLUME_AXES]; /* GB that a rank sends in a step */
    double computing, moving;            /* seconds */
    int rollout_ranks, engine;           /* GPUs that only sample, and GPUs per engine; 0 if all
                                            ranks do both */
    invar_memory_plan sampler;           /* memory plan of a GPU that only samples */
} layout_row;

/* A way to divide the model on a number of GPUs. */
typedef struct layout_task {
    int gpus;
    invar_layout_sizes sizes;
} layout_task;

typedef struct layout_table {
    const invar_layouts_options *options;
    invar_memory_planning view;
    invar_rank_role_sizes recipe;
    layout_row rows[MAX_ROWS];
    const void *order[MAX_ROWS]; /* rows in the order of the output */
    int count;
    layout_task tasks[MAX_ROWS];
    int n_tasks;
} layout_table;

static double seconds_of(const layout_row *r)
{
    return r->computing + r->moving;
}

/* ---- one layout ------------------------------------------------------------------------------ */

/* Returns the bandwidth along an axis in GB/s. It depends on whether its ranks share a node. */
static double link_bandwidth(const layout_table *t, const layout_row *r, invar_parallel_axis axis)
{
    const int sizes[INVAR_COMM_VOLUME_AXES] = {r->sizes.tensor, r->sizes.context, r->sizes.expert,
                                               r->data, r->sizes.pipeline};
    int span = 1;

    for (int i = 0; i <= (int)axis; i++)
        span *= sizes[i];
    return span <= GPUS_PER_NODE ? t->options->intra_node_gbps : t->options->inter_node_gbps;
}

/*
 * Updates the time of a step with a stage. The step takes as long as its slowest stage, plus
 * filling and draining the pipeline.
 */
static void update_time(layout_row *r, const layout_table *t, const invar_comm_volume *traffic)
{
    double bubble =
        (double)(r->sizes.pipeline - 1) / (double)(traffic->rounds * r->sizes.virtual_stages);
    double computing = traffic->flop / (t->options->tflops * 1e12) * (1.0 + bubble), moving = 0.0;

    for (int i = 0; i < INVAR_COMM_VOLUME_AXES; i++)
        moving += (double)invar_comm_volume_sent(traffic, (invar_parallel_axis)i) / 1e9 /
                  link_bandwidth(t, r, (invar_parallel_axis)i);
    if (computing + moving < seconds_of(r))
        return;
    r->computing = computing;
    r->moving = moving;
    for (int i = 0; i < INVAR_COMM_VOLUME_AXES; i++)
        r->sent[i] = (double)invar_comm_volume_sent(traffic, (invar_parallel_axis)i) / 1e9;
}

/* Plans a stage. Bytes and time are those of its first rank, which has the most units. */
static invar_status plan_stage(layout_row *r, layout_table *t, int stage)
{
    invar_memory_planning *planning = &t->view;
    invar_comm_volume traffic;

    INVAR_TRY(invar_memory_planning_plan_stage(planning, &r->sizes, r->gpus, stage));
    r->data = planning->layout.data.size;
    if (planning->plan.need > r->budget.need)
        r->budget = planning->plan;
    r->fits = r->fits && planning->plan.fits;
    if (!r->fits && t->options->all)
        return INVAR_OK;
    INVAR_TRY(
        invar_comm_volume_make_longest(&traffic, &planning->workload, &planning->plan.choice));
    update_time(r, t, &traffic);
    return INVAR_OK;
}

static invar_status plan_row(layout_row *out, layout_table *t, const invar_layout_sizes *sizes,
                             int gpus)
{
    int last = sizes->pipeline - 1;

    *out = (layout_row){.gpus = gpus, .sizes = *sizes, .fits = true};
    INVAR_TRY(plan_stage(out, t, 0));
    return last > 0 ? plan_stage(out, t, last) : INVAR_OK;
}

/* ---- the recipe's layout --------------------------------------------------------------------- */

/* Plans the GPUs that only train. */
static invar_status plan_trainers(layout_row *out, layout_table *t,
                                  const invar_rank_role_sizes *sizes, int gpus)
{
    const invar_memory_workload workload = t->view.workload;
    invar_rank_roles sides;
    invar_status status;

    INVAR_TRY(invar_rank_roles_init_sizes(&sides, sizes, gpus));
    memset(t->view.workload.rollouts, 0, sizeof t->view.workload.rollouts);
    t->view.workload.models.draft = NULL;
    status = plan_row(out, t, &sizes->train, sides.first_rollout_rank);
    t->view.workload = workload;
    return status;
}

/* Plans the GPUs that only sample. With --all, the smallest engine that fits is chosen. */
static invar_status plan_samplers(layout_row *out, layout_table *t, invar_rank_role_sizes *sizes)
{
    bool experts = t->view.workload.models.actor->experts.count > 0;
    int next;

    for (;; sizes->rollout.tensor = next, sizes->rollout.expert_tensor = experts ? next : 1) {
        INVAR_TRY(invar_memory_planning_plan_sampler(&t->view));
        next = 2 * sizes->rollout.tensor;
        if (!t->options->all || t->view.plan.fits || next > MAX_ENGINE ||
            sizes->rollout_ranks % next != 0)
            break;
    }
    out->sampler = t->view.plan;
    out->fits = out->fits && out->sampler.fits;
    return INVAR_OK;
}

static invar_status plan_train_and_sample(layout_row *out, layout_table *t,
                                          invar_rank_role_sizes *sizes, int gpus)
{
    INVAR_TRY(plan_trainers(out, t, sizes, gpus));
    return out->fits || !t->options->all ? plan_samplers(out, t, sizes) : INVAR_OK;
}

static invar_status plan_separate_roles(layout_row *out, layout_table *t,
                                        invar_rank_role_sizes *sizes, int gpus)
{
    invar_status status;

    t->view.split_roles = sizes;
    t->view.world = gpus;
    status = plan_train_and_sample(out, t, sizes, gpus);
    t->view.split_roles = NULL;
    out->gpus = gpus;
    out->rollout_ranks = sizes->rollout_ranks;
    out->engine = sizes->rollout.tensor;
    return status;
}

static invar_status add_recipe_layout(layout_table *t, int gpus)
{
    const invar_admission facts = {.config = t->view.session.config, .ranks = gpus};
    invar_rank_role_sizes sizes = t->recipe;
    layout_row *next = &t->rows[t->count++];

    INVAR_TRY(invar_admission_check(&facts));
    return sizes.rollout_ranks > 0 ? plan_separate_roles(next, t, &sizes, gpus)
                                   : plan_row(next, t, &sizes.train, gpus);
}

/* ---- all layouts ----------------------------------------------------------------------------- */

/* Turns errors about the model or the memory into a layout that does not fit. */
static invar_status ignore_misfit(invar_status status, bool *fits)
{
    *fits = *fits && status == INVAR_OK;
    if (status != INVAR_E_INVALID && status != INVAR_E_NOMEM)
        return status;
    invar_error_clear();
    return INVAR_OK;
}

/* Returns true if every data-parallel rank has at least one unit. */
static bool has_enough_units(const layout_table *t, const invar_layout_sizes *s, int gpus)
{
    int parts = invar_layout_model_ranks(s);
    const invar_memory_workload *workload = &t->view.workload;
    int64_t units = workload->plan.unit_count < workload->step_samples ? workload->plan.unit_count
                                                                       : workload->step_samples;

    return gpus > 0 && gpus % parts == 0 && gpus / parts <= units;
}

/*
 * Returns the number of GPUs that only sample: the recipe's number, or 0, 1 or 2 quarters of all
 * GPUs.
 */
static int rollout_ranks(const layout_table *t, int gpus, int quarters)
{
    return t->recipe.rollout_ranks > 0 ? t->recipe.rollout_ranks : gpus / 4 * quarters;
}

/*
 * Returns false for layouts that the engine does not support: more context-parallel ranks than rows
 * of an adapter, or overlapped sampling on several ranks.
 */
static bool is_supported(const layout_table *t, const invar_rank_role_sizes *s)
{
    const invar_lora_spec *lora = &t->view.workload.models.actor->lora;

    if (t->view.session.config->rollout_overlap &&
        (s->rollout_ranks > 0 || invar_layout_model_ranks(&s->train) > 1))
        return false;
    return lora->rank == 0 || s->train.context <= invar_lora_rows(lora);
}

/* Reasons for which a layout does not fit. */
typedef struct misfit_reason {
    bool resident_too_large; /* the resident memory alone is too large, whatever the context
                                parallelism */
    bool cache_too_large;    /* only the KV cache is too large */
} misfit_reason;

static invar_status try_layout(misfit_reason *out, layout_table *t, const invar_layout_sizes *sizes,
                               int gpus, int quarters)
{
    invar_rank_role_sizes sides = t->recipe;
    layout_row *next = &t->rows[t->count];
    invar_status status;

    *next = (layout_row){.fits = false};
    sides.train = *sizes;
    sides.rollout_ranks = rollout_ranks(t, gpus, quarters);
    if (!is_supported(t, &sides) || !has_enough_units(t, sizes, gpus - sides.rollout_ranks))
        return INVAR_OK;
    status = sides.rollout_ranks > 0 ? plan_separate_roles(next, t, &sides, gpus)
                                     : plan_row(next, t, sizes, gpus);
    INVAR_TRY(ignore_misfit(status, &next->fits));
    out->resident_too_large = next->budget.resident > next->budget.usable;
    out->cache_too_large = out->cache_too_large || (!next->fits && next->budget.sampling > 0);
    t->count += next->fits;
    return INVAR_OK;
}

/* Tries the variants of a task in the order of increasing time, until one fits. */
static invar_status try_task(layout_table *t, const layout_task *k)
{
    int before = t->count;
    int most = t->recipe.rollout_ranks > 0 || k->gpus < 4 ? 0 : 2;
    misfit_reason v = {false, false};

    for (int quarters = 0; quarters <= most && (quarters == 0 || v.cache_too_large); quarters++)
        for (int context = 1; context <= MAX_CONTEXT; context *= 2)
            for (int sequence = 0; sequence <= (k->sizes.tensor > 1); sequence++) {
                invar_layout_sizes sizes = k->sizes;
                sizes.context = context;
                sizes.sequence = sequence;
                if (t->count == before && !v.resident_too_large)
                    INVAR_TRY(try_layout(&v, t, &sizes, k->gpus, quarters));
            }
    return INVAR_OK;
}

static invar_status list_task(layout_table *t, const invar_layout_sizes *s, int gpus)
{
    const invar_model_spec *spec = t->view.workload.models.actor;
    int trainers = gpus - t->recipe.rollout_ranks;
    bool stages = (s->pipeline & (s->pipeline - 1)) == 0 || trainers % s->pipeline == 0;

    if (!stages || invar_layout_model_ranks(s) > trainers || s->pipeline > spec->layers ||
        s->expert > (spec->experts.count > 0 ? spec->experts.count : 1))
        return INVAR_OK;
    if (t->n_tasks == MAX_ROWS)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--gpus %.40s: more than %d layouts: ask for fewer numbers at a time",
                          t->options->gpus, MAX_ROWS);
    t->tasks[t->n_tasks++] = (layout_task){gpus, *s};
    return INVAR_OK;
}

static invar_status list_tasks(layout_table *t, int gpus)
{
    bool experts = t->view.workload.models.actor->experts.count > 0;
    invar_layout_sizes s = {.context = 1, .virtual_stages = 1};
    invar_rank_role_sizes sides = t->recipe;
    invar_rank_roles outline;

    sides.train = (invar_layout_sizes){1, 1, 1, 1, 1, 1, false};
    if (sides.rollout_ranks > 0)
        INVAR_TRY(invar_rank_roles_init_sizes(&outline, &sides, gpus));
    for (s.tensor = 1; s.tensor <= MAX_TENSOR; s.tensor *= 2)
        for (s.expert = 1; s.expert <= gpus; s.expert *= 2)
            for (s.pipeline = 1; s.pipeline <= gpus; s.pipeline++)
                for (int etp = 1; etp <= (experts && s.tensor > 1 ? 2 : 1); etp++) {
                    s.expert_tensor = etp == 1 ? 1 : s.tensor;
                    INVAR_TRY(list_task(t, &s, gpus));
                }
    return INVAR_OK;
}

/* Tries all tasks, with a progress line on a terminal. */
static invar_status try_tasks(layout_table *t)
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

/* ---- parsing --gpus -------------------------------------------------------------------------- */

/* Orders by number of GPUs, then by time. */
static int compare_layouts(const void *a, const void *b)
{
    const layout_row *x = a, *y = b;

    if (x->gpus != y->gpus)
        return x->gpus < y->gpus ? -1 : 1;
    return seconds_of(x) < seconds_of(y) ? -1 : seconds_of(x) > seconds_of(y);
}

/* Parses a list such as "8,64,512" and plans the layouts of each number. */
static invar_status plan_layouts(layout_table *t, const invar_config *config)
{
    const char *next = t->options->gpus;
    char *end;

    INVAR_TRY(invar_train_settings_roles(&t->recipe, config));
    t->view.workload.must_fit = t->options->all;

    for (;; next = end + 1) {
        long gpus = strtol(next, &end, 10);

        if (end == next || (*end && *end != ',') || gpus < 1 || gpus > INVAR_COMM_MAX_SIZE ||
            t->count == MAX_ROWS)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "--gpus: \"%.40s\" is no list of numbers from 1 to %d, as in 8,64",
                              t->options->gpus, INVAR_COMM_MAX_SIZE);
        INVAR_TRY(t->options->all ? list_tasks(t, (int)gpus) : add_recipe_layout(t, (int)gpus));
        if (!*end)
            return try_tasks(t);
    }
}

/* ---- printing -------------------------------------------------------------------------------- */

static void add_real(invar_text_table *grid, const char *format, double value)
{
    char cell[32];

    (void)snprintf(cell, sizeof cell, format, value);
    invar_text_table_add(grid, "n", cell);
}

/* Columns that are shown only if a layout uses them. */
typedef enum column { ALWAYS, SEQUENCE, CONTEXTS, SAMPLERS, COLUMNS } column;

static void find_columns(bool shown[COLUMNS], const layout_table *t)
{
    for (int i = 0; i < COLUMNS; i++)
        shown[i] = i == ALWAYS;
    for (int i = 0; i < t->count; i++) {
        const layout_row *r = &t->rows[i];
        shown[SEQUENCE] = shown[SEQUENCE] || r->sizes.sequence;
        shown[CONTEXTS] = shown[CONTEXTS] || r->sizes.context > 1;
        shown[SAMPLERS] = shown[SAMPLERS] || r->rollout_ranks > 0;
    }
}

static double to_gib(size_t bytes)
{
    return (double)bytes / (double)((size_t)1 << 30);
}

static void add_layout(invar_text_table *grid, const layout_row *r, const bool shown[COLUMNS])
{
    const int sizes[] = {r->sizes.expert, r->sizes.expert_tensor, r->sizes.pipeline, r->data};

    invar_text_table_add(grid, "ii", (int64_t)r->gpus, (int64_t)r->sizes.tensor);
    if (shown[SEQUENCE])
        invar_text_table_add(grid, "s", r->sizes.sequence ? "yes" : "no");
    if (shown[CONTEXTS])
        invar_text_table_add(grid, "i", (int64_t)r->sizes.context);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        invar_text_table_add(grid, "i", (int64_t)sizes[i]);
    add_real(grid, "%.1f", to_gib(r->budget.need));
    if (shown[SAMPLERS]) {
        invar_text_table_add(grid, "ii", (int64_t)r->rollout_ranks, (int64_t)r->engine);
        add_real(grid, "%.1f", to_gib(r->sampler.need));
    }
    invar_text_table_add(grid, "s", r->fits ? "yes" : "no");
    for (int i = 0; i < INVAR_COMM_VOLUME_AXES; i++)
        if (i != INVAR_COMM_VOLUME_CONTEXT || shown[CONTEXTS])
            add_real(grid, "%.2f", r->sent[i]);
    add_real(grid, "%.3f", r->computing);
    add_real(grid, "%.3f", r->moving);
    add_real(grid, "%.3f", seconds_of(r));
}

/* Returns true if the layout is among the MAX_SHOWN fastest with its number of GPUs. */
static bool among_fastest(const layout_table *t, int place)
{
    const layout_row *r = t->order[place],
                     *before = place < MAX_SHOWN ? NULL : t->order[place - MAX_SHOWN];

    return !before || before->gpus != r->gpus;
}

static void print_hidden_count(const layout_table *t)
{
    int more = 0;

    for (int i = 0; i < t->count; i++)
        more += !among_fastest(t, i);
    if (more > 0)
        printf("%d more fit, which take longer: --json lists all of them.\n", more);
}

static invar_status print_grid(const layout_table *t, const bool shown[COLUMNS])
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
    invar_text_table grid = {.columns = 0};

    for (int i = 0; i < HEADS; i++) {
        invar_text_table_add(&grid, shown[heads[i].of] ? "s" : "", heads[i].name);
        grid.columns += shown[heads[i].of];
    }
    for (int i = 0; i < t->count; i++)
        if (among_fastest(t, i))
            add_layout(&grid, t->order[i], shown);
    return invar_text_table_show(&grid, stdout, INVAR_OK);
}

static void print_samplers(const layout_row *r)
{
    const invar_memory_plan *b = &r->sampler;

    if (r->rollout_ranks > 0)
        printf("\n%d of %d GPUs only sample, in engines of %d: %.1f GiB each (%s). Before each "
               "rollout one gets\n%.3f GB of weights.\n",
               r->rollout_ranks, r->gpus, r->engine, to_gib(b->need),
               b->fits ? "fits" : "does not fit", (double)b->weights / 1e9);
}

static invar_status print_text(const layout_table *t)
{
    const invar_memory_workload *workload = &t->view.workload;
    bool shown[COLUMNS];

    find_columns(shown, t);
    if (t->count == 0) {
        puts("No layout fits: more GPUs, more memory of each, shorter samples or\n"
             "recompute-granularity = full would help.");
        return INVAR_OK;
    }
    INVAR_TRY(print_grid(t, shown));
    print_hidden_count(t);
    if (t->count == 1) {
        print_samplers(&t->rows[0]);
        putchar('\n');
        INVAR_TRY(invar_memory_table_show(&t->rows[0].budget));
    }
    printf(
        "\nGiB: memory of the rank that needs most. GB: what a rank sends in a training step of\n"
        "%" PRId64 " samples of %" PRId64 " tokens. Seconds are a prediction: %g TFLOP/s a GPU, "
        "%g GB/s inside of a\nnode of %d, %g GB/s between nodes; nothing overlaps.\n",
        workload->step_samples, invar_memory_plan_longest(workload), t->options->tflops,
        t->options->intra_node_gbps, GPUS_PER_NODE, t->options->inter_node_gbps);
    if (!t->options->all && t->count == 1 && !t->rows[0].fits)
        puts("The recipe's layout does not fit: --all lists those that do.");
    if (shown[SAMPLERS])
        puts("rollout: GPUs that only sample; engine: those of them that hold a model together.");
    return INVAR_OK;
}

static json_t *sampler_json(const layout_row *r)
{
    const invar_memory_plan *b = &r->sampler;

    return INVAR_RESULT(INVAR_LAYOUTS_SAMPLERS, r->rollout_ranks, r->engine, b->need,
                        invar_memory_table_items(b), b->sampling, b->fits, b->weights);
}

static json_t *row_json(const layout_row *r)
{
    const invar_memory_plan *b = &r->budget;

    return INVAR_RESULT(INVAR_LAYOUTS_ROW, r->gpus, r->sizes.tensor, r->sizes.sequence,
                        r->sizes.context, r->sizes.expert, r->sizes.expert_tensor,
                        r->sizes.pipeline, r->data, b->need, invar_memory_table_items(b),
                        b->sampling, b->scoring, b->learning, b->outside_block_bytes, r->fits,
                        r->sent[0], r->sent[1], r->sent[2], r->sent[3], r->sent[4], r->computing,
                        r->moving, r->rollout_ranks > 0 ? sampler_json(r) : json_null());
}

static invar_status print_json(const layout_table *t)
{
    json_t *list = json_array();

    for (int i = 0; i < t->count; i++)
        (void)json_array_append_new(list, row_json(t->order[i]));
    return invar_json_write(stdout,
                            INVAR_RESULT(INVAR_LAYOUTS_RESULT, true, t->options->tflops,
                                         t->options->intra_node_gbps, t->options->inter_node_gbps,
                                         t->view.workload.step_samples,
                                         invar_memory_plan_longest(&t->view.workload), list));
}

/* ---- entry point ----------------------------------------------------------------------------- */

static invar_status show_layouts(bool *fits_out, layout_table *t, const invar_config *config)
{
    if (!t->view.workload.learns)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--gpus plans training steps, and this recipe only generates: leave out "
                          "debug-rollout-only");
    INVAR_TRY(plan_layouts(t, config));
    *fits_out = t->count > 0;
    for (int i = 0; i < t->count; i++) {
        *fits_out = *fits_out && t->rows[i].fits;
        t->order[i] = &t->rows[i];
    }
    INVAR_TRY(invar_sort(t->order, (size_t)t->count, compare_layouts));
    return t->options->json ? print_json(t) : print_text(t);
}

invar_status invar_layouts_show(bool *fits_out, const invar_config *config,
                                const invar_layouts_options *options)
{
    layout_table *t = NULL;
    invar_status status;

    *fits_out = false;
    INVAR_TRY(INVAR_ALLOC(t, 1, "layouts"));
    *t = (layout_table){.options = options};
    status = invar_memory_planning_open(&t->view, config, options->memory);
    if (status == INVAR_OK) {
        status = invar_memory_table_check_data(&t->view, options->path);
        if (status == INVAR_OK)
            status = show_layouts(fits_out, t, config);
        invar_memory_planning_release(&t->view);
    }
    invar_free(t);
    return status;
}
