/*
 * ranks.c - invar doctor --ranks: checks whether several ranks can run together.
 *
 * Each rank describes itself in text cells, which are gathered; rank 0 compares them column by
 * column and prints the result. Bytes are sent between the ranks and checked; the measured rates
 * are informative only. With a recipe the ranks also read the inputs of a run and compare them as
 * the run would.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/console/term.h"
#include "base/process/module.h"
#include "base/process/process.h"
#include "cli/command.h"
#include "cli/doctor.h"
#include "cli/ledger/row_output.h"
#include "cli/open_ranks.h"
#include "cli/run/ranks_gpu.h"
#include "cli/safe_text.h"
#include "cli/text_table.h"
#include "engine/ranks/comm/link_test.h"
#include "engine/ranks/layout/rank_collectives.h"
#include "engine/run/launch/launch.h"

#include "base/invar_banned.h"

#define DEFAULT_TIMEOUT_S 60.0 /* default of the seconds that a rank waits for another */

enum { HOST, CORES, THREADS, GPU, DRIVER, SM90, NCCL, PROGRAM, WEIGHTS, DATA, IDENTITY, COLUMNS };
enum { CELL = 160, SHORT = 12 };

static const struct {
    const char *name;
    bool number, digest;
    const char *advice; /* advice if ranks differ; NULL if the column may differ */
} columns[COLUMNS] = {
    [HOST] = {.name = "host"},
    [CORES] = {.name = "cores", .number = true},
    [THREADS] = {.name = "threads", .number = true},
    [GPU] = {.name = "gpu", .advice = "choose hosts with the same GPU"},
    [DRIVER] = {.name = "driver", .advice = "install the same driver on all hosts"},
    [SM90] = {.name = "sm90", .advice = "leave its host out, or train with device = cpu"},
    [NCCL] = {.name = "nccl", .advice = "install the same NCCL on all hosts"},
    [PROGRAM] = {.name = "program",
                 .digest = true,
                 .advice = "give all hosts the same program with the same modules"},
    [WEIGHTS] = {.name = "weights", .digest = true, .advice = "give all hosts the same weights"},
    [DATA] = {.name = "data", .digest = true, .advice = "give all hosts the same data"},
    [IDENTITY] = {.name = "identity",
                  .digest = true,
                  .advice = "give all ranks the same recipe, data and weights"},
};

/*
 * Description of one rank. Plain bytes without padding contents, because it is sent to other ranks.
 */
typedef struct rank_record {
    char cell[COLUMNS][CELL]; /* empty if not applicable */
    char trouble[CELL];       /* error of the GPU */
    int32_t code;             /* exit code of the machine alone */
    int32_t op, from;         /* call and source rank of the first wrong byte */
    uint64_t wrong;           /* number of wrong bytes */
} rank_record;

/* Result on rank 0. */
typedef struct ranks_report {
    rank_record *all; /* (size) descriptions of all ranks; owned */
    int size;
    const char *transport;
    invar_link_test trial;                 /* link test of rank 0; its rates hold for all ranks */
    invar_doctor_gpu_ranks gpus;           /* GPU link test of rank 0 */
    char recipe[INVAR_ERROR_MESSAGE_SIZE]; /* how the inputs of the ranks differ; empty if they do
                                              not */
    int majority[COLUMNS];                 /* first rank with the majority value of the column */
    int differing[COLUMNS];                /* first rank with another value, or -1 */
    bool differ;
} ranks_report;

/* Context shared by the ranks of a process. */
typedef struct ranks_context {
    const invar_doctor_ranks_options *ask;
    double seconds;
    invar_digest program;
    ranks_report *out;
} ranks_context;

/* ---- one rank -------------------------------------------------------------------------------- */

static void format_digest(char out[CELL], const invar_digest *digest)
{
    const invar_digest none = {{0}};
    char hex[INVAR_DIGEST_HEX_SIZE];

    invar_digest_format(hex, digest);
    (void)snprintf(out, CELL, "%s", invar_digest_equal(digest, &none) ? "" : hex);
}

static void set_machine(rank_record *own, const invar_doctor_findings *found)
{
    if (gethostname(own->cell[HOST], CELL - 1) != 0)
        (void)snprintf(own->cell[HOST], CELL, "an unknown host");
    (void)snprintf(own->cell[CORES], CELL, "%ld", found->cores);
    (void)snprintf(own->cell[GPU], CELL, "%s",
                   found->examined  ? found->gpu.name
                   : found->present ? "fails"
                                    : "none");
    (void)snprintf(own->cell[DRIVER], CELL, "%s", found->examined ? found->gpu.driver : "");
    (void)snprintf(own->cell[SM90], CELL, "%s",
                   !found->examined             ? ""
                   : invar_doctor_agrees(found) ? "agrees"
                                                : "DIFFERS");
    (void)snprintf(own->trouble, CELL, "%.*s", CELL - 1, found->trouble);
    own->code = invar_doctor_code(found);
}

/* Adds a link test. The first wrong byte over all tests is kept. */
static void add_link_test(rank_record *own, const invar_link_test *trial)
{
    if (own->wrong == 0) {
        own->op = (int32_t)trial->op;
        own->from = trial->src_rank;
    }
    own->wrong += trial->wrong;
}

/*
 * Reads the inputs of a run. Differences between ranks are not an error here, so that they can be
 * reported.
 */
static invar_status check_recipe(invar_train_inputs *out, char *why, const ranks_context *s,
                                 const invar_train_options *options)
{
    invar_status status;

    *out = (invar_train_inputs){.threads = 0};
    why[0] = '\0';
    if (!s->ask->config)
        return INVAR_OK;
    status = invar_train_check(out, s->ask->config, options);
    if (status == INVAR_OK || !out->differ)
        return status;
    (void)snprintf(why, INVAR_ERROR_MESSAGE_SIZE, "%s", invar_error_last()->message);
    invar_error_clear();
    return INVAR_OK;
}

static invar_status gather_records(ranks_report *out, const invar_layout *layout,
                                   const rank_record *own)
{
    invar_status status;

    out->size = invar_ranks_size(layout);
    INVAR_TRY(INVAR_ALLOC(out->all, (size_t)out->size, "what ranks tell"));
    status = invar_ranks_all_gather(layout, "doctor", own, sizeof *own, out->all);
    for (int r = 0; r < out->size && status == INVAR_OK; r++) {
        for (int c = 0; c < COLUMNS; c++)
            out->all[r].cell[c][CELL - 1] = '\0';
        out->all[r].trouble[CELL - 1] = '\0';
    }
    if (status != INVAR_OK) {
        invar_free(out->all);
        out->all = NULL;
    }
    return status;
}

static invar_status examine_rank(ranks_report *out, const ranks_context *s,
                                 const invar_layout *layout, const invar_train_options *options)
{
    invar_train_inputs given;
    rank_record own;
    invar_doctor_findings found;

    memset(&own, 0, sizeof own); // padding is sent too
    invar_doctor_inspect(&found, invar_ranks_local_rank(layout));
    set_machine(&own, &found);
    INVAR_TRY(check_recipe(&given, out->recipe, s, options));
    if (given.threads == 0) // without a recipe
        given.threads = (int)invar_process_cores(
            options->threads_for > 1 ? options->threads_for : 1, invar_ranks_local_size(layout));
    (void)snprintf(own.cell[THREADS], CELL, "%d", given.threads);
    format_digest(own.cell[PROGRAM], &s->program);
    format_digest(own.cell[WEIGHTS], &given.weights);
    format_digest(own.cell[DATA], &given.data);
    format_digest(own.cell[IDENTITY], &given.identity);
    if (layout) {
        INVAR_TRY(invar_link_test_run(&out->trial, layout->world, s->seconds));
        INVAR_TRY(invar_doctor_gpu_ranks_test(&out->gpus, layout, found.present, s->ask->config));
        (void)snprintf(own.cell[NCCL], CELL, "%s", out->gpus.transport.nccl_version);
    }
    add_link_test(&own, &out->trial);
    add_link_test(&own, &out->gpus.trial);
    return gather_records(out, layout, &own);
}

static invar_status run_rank(void *payload, invar_comm *comm, int threads)
{
    const ranks_context *s = payload;
    invar_train_options options = {
        .recipe_path = s->ask->path, .until = -1, .comm = comm, .threads_for = threads};
    ranks_report own = {.transport = !comm         ? "one rank"
                                     : threads > 1 ? "threads of one process"
                                                   : "processes, MPI"};
    invar_layout layout;
    invar_status status;

    if (comm)
        invar_layout_init(&layout, comm, s->seconds);
    status = examine_rank(&own, s, comm ? &layout : NULL, &options);
    if (status != INVAR_OK && comm)
        invar_comm_abort(comm, invar_error_last()->message);
    if (status == INVAR_OK && (!comm || invar_comm_rank(comm) == 0))
        *s->out = own;
    else
        invar_free(own.all);
    return status;
}

/* ---- evaluation ------------------------------------------------------------------------------ */

static bool is_different(const ranks_report *r, int rank, int column)
{
    return columns[column].advice &&
           strcmp(r->all[rank].cell[column], r->all[r->majority[column]].cell[column]) != 0;
}

static invar_status compare_ranks(ranks_report *r)
{
    invar_digest *digests;

    INVAR_TRY(INVAR_ALLOC(digests, (size_t)r->size, "cells of ranks"));
    for (int c = 0; c < COLUMNS; c++) {
        invar_rank_outlier found;

        for (int i = 0; i < r->size; i++)
            invar_hash_bytes(&digests[i], r->all[i].cell[c], strlen(r->all[i].cell[c]));
        found = invar_ranks_find_outlier(digests, r->size);
        r->majority[c] = found.majority_rank;
        r->differing[c] = columns[c].advice ? found.differing_rank : -1;
        r->differ = r->differ || r->differing[c] >= 0;
    }
    r->differ = r->differ || r->recipe[0];
    invar_free(digests);
    return INVAR_OK;
}

/* Returns the first rank with wrong bytes, or -1. */
static int first_wrong(const ranks_report *r)
{
    for (int i = 0; i < r->size; i++)
        if (r->all[i].wrong)
            return i;
    return -1;
}

static int exit_code_of(const ranks_report *r)
{
    int code = r->differ || first_wrong(r) >= 0 ? INVAR_EXIT_DIFFERENT : INVAR_EXIT_OK;

    for (int i = 0; i < r->size; i++)
        if (r->all[i].code == INVAR_EXIT_TROUBLE ||
            (r->all[i].code == INVAR_EXIT_DIFFERENT && code == INVAR_EXIT_OK))
            code = r->all[i].code;
    return code;
}

/* ---- text output ----------------------------------------------------------------------------- */

/* Returns true if a rank has a value in the column. */
static bool is_shown(const ranks_report *r, int column)
{
    for (int i = 0; i < r->size; i++)
        if (r->all[i].cell[column][0])
            return true;
    return false;
}

static int shown_bytes(int column)
{
    return columns[column].digest ? SHORT : CELL;
}

static invar_status print_table_of_ranks(const ranks_report *r)
{
    invar_text_table grid = {.columns = 1};
    char text[CELL + 4];

    invar_text_table_add(&grid, "s", "rank");
    for (int c = 0; c < COLUMNS; c++)
        if (is_shown(r, c)) {
            invar_text_table_add(&grid, "s", columns[c].name);
            grid.columns++;
        }
    for (int i = 0; i < r->size; i++) {
        invar_text_table_add(&grid, "i", (int64_t)i);
        for (int c = 0; c < COLUMNS; c++) {
            const char *cell = r->all[i].cell[c];

            if (!is_shown(r, c))
                continue;
            (void)snprintf(text, sizeof text, "%.*s%s", shown_bytes(c), cell[0] ? cell : "-",
                           is_different(r, i, c) ? " !" : "");
            invar_text_table_add(&grid, columns[c].number ? "n" : "s", text);
        }
    }
    return invar_text_table_show(&grid, stdout, INVAR_OK);
}

static invar_status print_trial(const invar_link_test *trial)
{
    invar_text_table grid = {.columns = 4};
    char spent[32], speed[32];

    invar_text_table_add(&grid, "ssss", "call", "bytes a rank sends", "microseconds", "GB/s");
    for (int i = 0; i < INVAR_COMM_RATES; i++) {
        const invar_link_rate *rate = &trial->rates[i];

        (void)snprintf(spent, sizeof spent, "%.1f", rate->seconds * 1e6);
        (void)snprintf(speed, sizeof speed, "%.2f", (double)rate->bytes / rate->seconds * 1e-9);
        invar_text_table_add(&grid, "sinn", invar_comm_op_name(rate->op), (int64_t)rate->bytes,
                             spent, rate->bytes ? speed : "");
    }
    return invar_text_table_show(&grid, stdout, INVAR_OK);
}

/* Prints the heading of a line about a problem. */
static void print_problem(const char *name)
{
    bool color = invar_term_has_color(stdout);

    printf("%s%-8s%s ", invar_term_escape(color, INVAR_TERM_STYLE_RED), name,
           invar_term_escape(color, INVAR_TERM_STYLE_PLAIN));
}

/* Prints "rank 2 on HOST". */
static void print_rank(const ranks_report *r, int rank)
{
    printf("rank %d on ", rank);
    invar_safe_text_print(stdout, r->all[rank].cell[HOST]);
}

static void print_cell(const ranks_report *r, int rank, int column)
{
    const char *cell = r->all[rank].cell[column];

    fputs(" has ", stdout);
    invar_safe_text_print_bytes(stdout, cell[0] ? cell : "none",
                                strnlen(cell[0] ? cell : "none", (size_t)shown_bytes(column)));
}

static void print_differences(const ranks_report *r)
{
    for (int c = 0; c < COLUMNS; c++) {
        if (r->differing[c] < 0)
            continue;
        print_problem(columns[c].name);
        print_rank(r, r->differing[c]);
        print_cell(r, r->differing[c], c);
        fputs(", ", stdout);
        print_rank(r, r->majority[c]);
        print_cell(r, r->majority[c], c);
        printf(": %s\n", columns[c].advice);
    }
    if (r->recipe[0]) {
        print_problem("recipe");
        invar_safe_text_print(stdout, r->recipe);
        putchar('\n');
    }
}

static void print_machines(const ranks_report *r)
{
    for (int i = 0; i < r->size; i++) {
        if (r->all[i].code == INVAR_EXIT_OK)
            continue;
        print_problem("gpu");
        print_rank(r, i);
        if (r->all[i].code == INVAR_EXIT_TROUBLE) {
            fputs(": its GPU fails: ", stdout);
            invar_safe_text_print(stdout, r->all[i].trouble);
            putchar('\n');
        } else {
            puts(": its GPU must not run numerics sm90: train with device = cpu");
        }
    }
}

static invar_status print_bytes(const ranks_report *r)
{
    int rank = first_wrong(r);

    if (r->size < 2)
        return INVAR_OK;
    if (rank >= 0) {
        const rank_record *its = &r->all[rank];

        print_problem("bytes");
        print_rank(r, rank);
        printf(" got %" PRIu64 " bytes that nobody had sent, the first in %s from ", its->wrong,
               its->op >= 0 && its->op < INVAR_COMM_OPS ? invar_comm_op_name((invar_comm_op)its->op)
                                                        : "a call");
        print_rank(r, its->from >= 0 && its->from < r->size ? its->from : 0);
        puts(": look at the network and the memory of both hosts");
    } else {
        puts("bytes    all arrived as they were sent");
    }
    putchar('\n');
    INVAR_TRY(print_trial(&r->trial));
    if (!r->gpus.any)
        return INVAR_OK;
    printf("\ngpus     bytes between them go %s %s\n", r->gpus.transport.nccl ? "by" : "through",
           r->gpus.transport.text);
    if (!r->gpus.transport.nccl)
        return INVAR_OK;
    putchar('\n');
    return print_trial(&r->gpus.trial);
}

static invar_status print_text(const ranks_report *r)
{
    printf("invar    %s\nranks    %d: %s\n\n", INVAR_VERSION, r->size, r->transport);
    INVAR_TRY(print_table_of_ranks(r));
    putchar('\n');
    print_differences(r);
    print_machines(r);
    if (!r->differ)
        puts("ranks    all are equal");
    return print_bytes(r);
}

/* ---- JSON output ----------------------------------------------------------------------------- */

static json_t *json_ranks(const ranks_report *r)
{
    json_t *list = json_array();

    for (int i = 0; i < r->size; i++) {
        json_t *rank = INVAR_RESULT("{rank int, wrong_bytes int}", i, r->all[i].wrong);
        for (int c = 0; c < COLUMNS; c++)
            if (r->all[i].cell[c][0])
                (void)json_object_set_new(
                    rank, columns[c].name,
                    columns[c].number
                        ? json_integer(strtoll(r->all[i].cell[c], NULL, 10))
                        : invar_result_text(r->all[i].cell[c], strlen(r->all[i].cell[c])));
        (void)json_array_append_new(list, rank);
    }
    return list;
}

static json_t *json_differences(const ranks_report *r)
{
    json_t *list = json_array();

    for (int c = 0; c < COLUMNS; c++)
        for (int i = 0; i < r->size; i++)
            if (is_different(r, i, c))
                (void)json_array_append_new(
                    list, INVAR_RESULT(INVAR_RANKS_DIFFERENCE, i, columns[c].name));
    return list;
}

static json_t *json_calls(const invar_link_test *trial, bool tried)
{
    json_t *list = json_array();

    for (int i = 0; i < INVAR_COMM_RATES && tried; i++) {
        const invar_link_rate *rate = &trial->rates[i];

        (void)json_array_append_new(list,
                                    INVAR_RESULT(INVAR_RANKS_CALL, invar_comm_op_name(rate->op),
                                                 rate->bytes, rate->seconds));
    }
    return list;
}

static invar_status print_json(const ranks_report *r)
{
    return invar_json_write(stdout, INVAR_RESULT(INVAR_RANKS_RESULT, INVAR_VERSION, r->transport,
                                                 json_ranks(r), json_differences(r),
                                                 r->recipe[0] ? r->recipe : NULL,
                                                 json_calls(&r->trial, r->size > 1),
                                                 r->gpus.any ? r->gpus.transport.text : NULL,
                                                 json_calls(&r->gpus.trial, r->gpus.transport.nccl),
                                                 exit_code_of(r) == INVAR_EXIT_OK));
}

/* ---- all ranks ------------------------------------------------------------------------------- */

static invar_status run_ranks(ranks_report *out, invar_launch *launch,
                              const invar_doctor_ranks_options *options)
{
    ranks_context s = {.ask = options,
                       .seconds = options->seconds > 0.0 ? options->seconds
                                  : options->config      ? invar_launch_timeout(options->config)
                                                         : DEFAULT_TIMEOUT_S,
                       .out = out};

    INVAR_TRY(invar_module_hash_program(&s.program, NULL));
    INVAR_TRY(invar_open_ranks(launch, s.seconds, options->ranks));
    return invar_launch_end(launch, invar_launch_run(launch, run_rank, &s));
}

int invar_doctor_ranks(const invar_doctor_ranks_options *options)
{
    invar_launch launch = {.count = 1};
    ranks_report found = {.all = NULL};
    int code = INVAR_EXIT_OK;
    invar_status status = run_ranks(&found, &launch, options);

    if (status == INVAR_OK && found.all)
        status = compare_ranks(&found);
    if (status == INVAR_OK && found.all)
        status = options->json ? print_json(&found) : print_text(&found);
    if (status != INVAR_OK && !launch.comms)
        invar_open_ranks_queue();
    if (status != INVAR_OK)
        code = invar_report_error();
    // ranks without a result exit with 0, because the launcher would end all ranks otherwise
    else if (found.all)
        code = exit_code_of(&found);
    invar_free(found.all);
    invar_launch_close(&launch);
    return code;
}
