/*
 * plan.c - invar plan: plans the memory and disk space of a run without running it.
 *
 * The plan is the one that `train` makes at its start, for one rank of this machine or for a given
 * memory size; --gpus plans layouts (layouts.h). Problems of the machine are only warnings, because
 * a plan may be made on a machine other than that of the run.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <ctype.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/console/term.h"
#include "cli/interactive.h"
#include "cli/ledger/ledger.h"
#include "cli/ledger/row_output.h"
#include "cli/memory_table.h"
#include "cli/recipe_flags.h"
#include "cli/run/layouts.h"
#include "cli/text_table.h"
#include "engine/config/config.h"
#include "engine/run/admission.h"
#include "engine/run/memory_workload.h"
#include "engine/run/run_dir/paths.h"
#include "engine/run/run_plugins.h"

#include "base/invar_banned.h"

typedef struct settings {
    const char *memory;
    invar_layouts_options layouts; /* gpus is NULL to plan one rank */
    bool json;
} settings;

static settings asked = {.layouts = {.tflops = INVAR_LAYOUTS_TFLOPS,
                                     .intra_node_gbps = INVAR_LAYOUTS_NODE,
                                     .inter_node_gbps = INVAR_LAYOUTS_NET}};

/* ---- sizes ----------------------------------------------------------------------------------- */

/*
 * Returns the factor of a unit such as "GB", "GiB" or "g": a power of 1000, or of 1024 with an "i";
 * 0 for an unknown unit.
 */
static double unit_of(const char *text)
{
    static const char letters[] = "kmgtpe";
    const char *letter = *text ? strchr(letters, tolower((unsigned char)*text)) : NULL;
    bool binary = letter && tolower((unsigned char)text[1]) == 'i';
    double unit = 1.0;

    if (!*text)
        return 0.0;
    for (const char *c = letters; letter && c <= letter; c++)
        unit *= binary ? 1024.0 : 1000.0;
    text += letter ? 1 + binary : 0;
    text += *text == 'B' || *text == 'b';
    return *text ? 0.0 : unit;
}

/* Parses sizes such as "80GB", "79.1 GiB" and "512m". */
static invar_status read_size(size_t *out, const char *text)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text)
        end += strlen(end);
    while (*end == ' ')
        end++;
    value *= unit_of(end);
    if (value >= 9.0e18)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--memory: \"%.40s\" is more than the 9 EB that can be planned for",
                          text);
    if (!(value >= 1.0))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--memory: \"%.40s\" is no size; expected a number with a unit, as in "
                          "80GB, 79.1GiB or 512MiB",
                          text);
    *out = (size_t)value;
    return INVAR_OK;
}

/* ---- printing -------------------------------------------------------------------------------- */

/* A key, the value of the plan and the value of the recipe; 0 if the recipe leaves it open. */
typedef struct planned_key {
    const char *key;
    int64_t value, asked;
} planned_key;

enum { MAX_PLANNED_KEYS = 4, VERDICT_SIZE = INVAR_PATH_SHOWN_SIZE + 100 };

static int list_choices(planned_key out[MAX_PLANNED_KEYS], const invar_memory_planning *planning)
{
    const invar_memory_plan_choice *c = &planning->plan.choice;
    const invar_memory_workload *a = &planning->workload;
    int n = 0;

    out[n++] = (planned_key){"log-probs-chunk-size", c->head_rows, a->head_rows};
    if (a->micro_batch_unset)
        out[n++] = (planned_key){"rows of a micro-batch", c->max_tokens, 0};
    else if (a->dynamic)
        out[n++] = (planned_key){"max-tokens-per-gpu", c->max_tokens, a->plan.max_tokens};
    else
        out[n++] = (planned_key){"micro-batch-size", a->plan.micro_batch, a->plan.micro_batch};
    if (c->pages == 0)
        return n;
    out[n++] = (planned_key){"kv-pages", c->pages, a->limits.pages};
    out[n++] = (planned_key){"rollout-concurrency", c->concurrency, a->limits.concurrency};
    return n;
}

static invar_status show_choices(const invar_memory_planning *planning)
{
    invar_text_table table = {.columns = 3};
    planned_key list[MAX_PLANNED_KEYS];
    int n = list_choices(list, planning);

    invar_text_table_add(&table, "sss", "key", "value", "");
    for (const planned_key *s = list; s < list + n; s++) {
        char note[64] = "";
        if (s->asked == 0)
            (void)snprintf(note, sizeof note, "chosen");
        else if (s->value != s->asked)
            (void)snprintf(note, sizeof note, "chosen; the recipe allows %" PRId64, s->asked);
        invar_text_table_add(&table, "sis", s->key, s->value, note);
    }
    return invar_text_table_show(&table, stdout, INVAR_OK);
}

/* Formats the verdict on the memory, and on the disk if the run writes checkpoints. */
static void write_verdict(char out[VERDICT_SIZE], const invar_memory_planning *planning,
                          const invar_disk *disk)
{
    const char *memory = planning->plan.fits ? "fits" : "does not fit";
    char shown[INVAR_PATH_SHOWN_SIZE];

    (void)snprintf(out, VERDICT_SIZE, "%s", memory);
    if (!disk->save[0])
        return;
    invar_path_show(shown, disk->save);
    (void)snprintf(out, VERDICT_SIZE, "%s; on the disk of %s: %s", memory, shown,
                   disk->free < 0                             ? "unknown"
                   : !invar_disk_fits(disk, disk->n_required) ? "does not fit"
                   : invar_disk_fits(disk, disk->n_remaining)
                       ? "fits"
                       : "the first checkpoint fits, all of them do not");
}

static invar_status print_text(const invar_memory_planning *planning, const invar_disk *disk)
{
    const invar_model_spec *spec = &planning->session.spec;
    bool color = invar_term_has_color(stdout);
    const char *plain = invar_term_escape(color, INVAR_TERM_STYLE_PLAIN);
    const char *begin =
        invar_term_escape(color, planning->plan.fits && invar_disk_fits(disk, disk->n_required)
                                     ? INVAR_TERM_STYLE_GREEN
                                     : INVAR_TERM_STYLE_RED);
    char verdict[VERDICT_SIZE];

    INVAR_TRY(invar_memory_table_show(&planning->plan));
    putchar('\n');
    INVAR_TRY(show_choices(planning));
    printf("\nlongest sample: %" PRId64 " tokens%s\n",
           invar_memory_plan_longest_sample(&planning->workload),
           planning->data.prompt ? "" : " (by the recipe's bounds: prompt-data was not read)");
    if (spec->logical_tp > 1 || spec->logical_etp > 1)
        printf("sums are made of: %" PRId64 " pieces (logical-tp), those of experts %" PRId64
               " (logical-etp)\n",
               spec->logical_tp, spec->logical_etp);
    if (planning->session.imagined)
        puts("scratch of ops: as the CPU needs it, since there is no GPU here");
    INVAR_TRY(invar_disk_show(disk));
    write_verdict(verdict, planning, disk);
    printf("verdict: %s%s%s\n", begin, verdict, plain);
    return INVAR_OK;
}

/* Returns the planned values of keys, and the names of those that the plan chose. */
static void choices_json(json_t **values_out, json_t **chosen_out,
                         const invar_memory_planning *planning)
{
    planned_key list[MAX_PLANNED_KEYS];
    int n = list_choices(list, planning);

    *values_out = json_object();
    *chosen_out = json_array();
    for (const planned_key *s = list; s < list + n; s++) {
        (void)json_object_set_new(*values_out, s->key, json_integer((json_int_t)s->value));
        if (s->value != s->asked)
            (void)json_array_append_new(*chosen_out, json_string(s->key));
    }
}

#define PLAN                                                                                       \
    "{fits bool (in memory), need int, available int, usable int, resident int,"                   \
    " items [" INVAR_MEMORY_ITEM "], host int, block int, sampling int, kv_cache int,"             \
    " checking int, beside int, scoring int, learning int, around int, loading int,"               \
    " choices {* int} (sizes by key),"                                                             \
    " chosen [text] (those of them that the recipe left open), advice text?, longest_sample int,"  \
    " device_present bool, logical_tp int, logical_etp int,"                                       \
    " disk " INVAR_DISK_RESULT " (bytes of checkpoints, and what is free where they go),"          \
    " verdict text (whether the run fits in memory and, with checkpoints, on their disk)}"         \
    " (bytes of the memory of one device)"

static invar_status print_json(const invar_memory_planning *planning, const invar_disk *disk)
{
    const invar_memory_plan *b = &planning->plan;
    char advice[INVAR_MEMORY_PLAN_ADVICE_SIZE], verdict[VERDICT_SIZE];
    json_t *choices, *chosen;

    INVAR_TRY(invar_memory_plan_advice(advice, b, &planning->workload));
    write_verdict(verdict, planning, disk);
    choices_json(&choices, &chosen, planning);
    return invar_json_write(
        stdout, INVAR_RESULT(PLAN, b->fits, b->need, b->available, b->usable, b->resident,
                             invar_memory_table_items(b), b->host, b->block, b->sampling, b->cache,
                             b->verify_bytes, b->sampler_bytes, b->scoring, b->learning,
                             b->outside_block_bytes, b->load_peak_bytes, choices, chosen,
                             advice[0] ? advice : NULL,
                             invar_memory_plan_longest_sample(&planning->workload),
                             !planning->session.imagined, planning->session.spec.logical_tp,
                             planning->session.spec.logical_etp, invar_disk_json(disk), verdict));
}

/* ---- the command ----------------------------------------------------------------------------- */

static invar_status plan_layouts(int *code_out, const settings *s, const invar_config *config,
                                 const char *path, size_t memory)
{
    invar_layouts_options o = s->layouts;
    bool fits;

    o.json = s->json;
    o.memory = memory;
    o.path = path;
    INVAR_TRY(invar_layouts_show(&fits, config, &o));
    *code_out = fits ? INVAR_EXIT_OK : INVAR_EXIT_DIFFERENT;
    return INVAR_OK;
}

static invar_status turn_into_warning(invar_status status)
{
    char line[1400];

    if (status == INVAR_OK || status == INVAR_E_NOMEM)
        return status;
    (void)snprintf(line, sizeof line, "warning: train refuses this on this machine: %.1300s",
                   invar_error_last()->message);
    invar_error_clear();
    invar_interactive_print(NULL, line);
    return INVAR_OK;
}

/*
 * Checks plug-ins and folders. Missing files are only warnings, because the run may be on another
 * machine.
 */
static invar_status check_surroundings(const invar_config *config, const char *path)
{
    const invar_status located = invar_run_plugins_locate(config);
    invar_run_paths at;

    INVAR_TRY(located == INVAR_E_IO ? turn_into_warning(located) : located);
    INVAR_TRY(invar_run_paths_find(&at, config, path));
    return turn_into_warning(invar_run_paths_check(&at, config, false));
}

static invar_status plan_run(int *code_out, const settings *s, const invar_config *config,
                             const char *path)
{
    invar_memory_planning view;
    invar_disk disk;
    size_t memory = 0;
    invar_status status;

    INVAR_TRY(invar_admission_check(&(invar_admission){.config = config}));
    INVAR_TRY(check_surroundings(config, path));
    if (s->memory)
        INVAR_TRY(read_size(&memory, s->memory));
    if (s->layouts.gpus)
        return plan_layouts(code_out, s, config, path, memory);
    if (s->layouts.all)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--all is about many GPUs: say how many, as in --gpus 8");
    INVAR_TRY(invar_memory_planning_open(&view, config, memory));
    status = invar_memory_plan_make(&view.plan, &view.workload, view.available);
    if (status == INVAR_OK)
        status = invar_memory_table_check_data(&view, path);
    if (status == INVAR_OK)
        status = invar_memory_table_disk(&disk, &view, path);
    if (status == INVAR_OK)
        status = s->json ? print_json(&view, &disk) : print_text(&view, &disk);
    if (status == INVAR_OK && fflush(stdout) == 0)
        status = invar_memory_plan_check_fits(&view.plan, &view.workload);
    if (!view.plan.fits && status == INVAR_E_NOMEM)
        *code_out = INVAR_EXIT_DIFFERENT; // the verdict of the plan is not an error
    invar_memory_planning_release(&view);
    return status;
}

static const invar_option options[] = {
    {"memory", INVAR_OPTION_TEXT, &asked.memory, "SIZE",
     "plan for a device with this much memory, such as 80GB or "
     "79.1GiB (default: what the device has free)",
     0, 0},
    {"gpus", INVAR_OPTION_TEXT, &asked.layouts.gpus, "N[,N...]",
     "plan for so many ranks with a GPU each: memory, bytes that "
     "a rank sends in a training step, and a predicted time",
     0, 0},
    {"all", INVAR_OPTION_FLAG, &asked.layouts.all, NULL,
     "with --gpus: all layouts that fit, the fastest first, not "
     "that of the recipe",
     0, 0},
    {"tflops", INVAR_OPTION_REAL, &asked.layouts.tflops, "RATE",
     "TFLOP/s that a GPU computes (default 450)", 1, 1000000},
    {"node-gbs", INVAR_OPTION_REAL, &asked.layouts.intra_node_gbps, "RATE",
     "GB/s that a GPU sends to others of its node of 8 (default 450)", 1, 1000000},
    {"net-gbs", INVAR_OPTION_REAL, &asked.layouts.inter_node_gbps, "RATE",
     "GB/s that a GPU sends to other nodes (default 50)", 1, 1000000},
    INVAR_OPTION_JSON(&asked.json),
    INVAR_RECIPE_FLAGS_END};

static int cmd_plan(int argc, char **argv)
{
    invar_config config = {.recipe = NULL};
    const char *path = NULL;
    int code = INVAR_EXIT_OK, failure;
    invar_status status = invar_recipe_flags_recipe(&config, &path, options, &argc, argv);

    if (status == INVAR_OK)
        status = plan_run(&code, &asked, &config, path);
    invar_recipe_free(config.recipe);
    failure = invar_exit(status);
    return code ? code : failure;
}

const invar_cli_command invar_cmd_plan = {
    .name = "plan",
    .summary = "show the memory that a run needs, before it runs",
    .run = cmd_plan,
    .about =
        "Prints how much memory a run needs on its device, item by item, and what Invar chooses\n"
        "for the keys that the recipe leaves open. Nothing is run, and no weights are read: of a\n"
        "model folder only config.json is needed. With --device cuda --memory 80GB it plans for\n"
        "a GPU that is not there.\n"
        "\n"
        "'invar train' makes the same plan before it starts.\n"
        "\n"
        "With --gpus it plans for many ranks and predicts the time of a training step.\n"
        "\n"
        "Exit codes:\n"
        "  0    the run fits in memory; the verdict also says whether it fits on the disk\n"
        "  1    it does not; the message names keys that would help\n"
        "  2    a file is missing or damaged\n"
        "  125  there is no GPU, and no --memory\n",
    .options = options,
    .result = PLAN "; " INVAR_LAYOUTS_RESULT,
    .arguments = "RECIPE [--device cpu|cuda] [--memory SIZE] [--gpus N[,N...] [--all]] "
                 "[--key value ...]"};
