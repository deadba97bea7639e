/*
 * ranks.c - invar doctor --ranks: whether several ranks are fit for a run together.
 *
 * Each rank describes itself in cells of text, which are gathered: rank 0 compares them, column by
 * column, and prints. Between them bytes travel that are checked and timed; a rate is for people,
 * and no verdict. With a recipe the ranks also read what a run would, and compare it as a run does.
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

#define PATIENCE 60.0 /* seconds, where nobody says how long a rank waits */

enum { HOST, CORES, THREADS, GPU, DRIVER, SM90, NCCL, PROGRAM, WEIGHTS, DATA, IDENTITY, COLUMNS };
enum { CELL = 160, SHORT = 12 };

static const struct {
    const char *name;
    bool number, digest;
    const char *advice; /* where ranks differ; NULL: they may */
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

/* What a rank tells of itself. Plain bytes: other ranks read it. */
typedef struct record {
    char cell[COLUMNS][CELL]; /* "": it has nothing to say */
    char trouble[CELL];       /* of its GPU */
    int32_t code;             /* of its machine alone */
    int32_t op, from;         /* of the first wrong byte */
    uint64_t wrong;           /* bytes */
} record;

/* What rank 0 knows in the end. */
typedef struct report {
    record *all; /* (size) */
    int size;
    const char *transport;
    invar_link_test trial;                 /* its own: the rates are those of all */
    invar_doctor_gpu_ranks gpus;           /* likewise */
    char recipe[INVAR_ERROR_MESSAGE_SIZE]; /* how their runs differ; "": they do not */
    int usual[COLUMNS];                    /* the first rank that has what most have */
    int odd[COLUMNS];                      /* the first that has something else; -1: none */
    bool differ;
} report;

/* What the ranks of a process share. */
typedef struct scene {
    const invar_doctor_ranks_options *ask;
    double seconds;
    invar_digest program;
    report *out;
} scene;

/* ---- one rank -------------------------------------------------------------------------------- */

static void put_digest(char out[CELL], const invar_digest *digest)
{
    const invar_digest none = {{0}};
    char hex[INVAR_DIGEST_HEX_SIZE];

    invar_digest_format(hex, digest);
    (void)snprintf(out, CELL, "%s", invar_digest_equal(digest, &none) ? "" : hex);
}

static void put_machine(record *own, const invar_doctor_findings *found)
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

/* Of several trials the first wrong byte is told. */
static void put_wrong(record *own, const invar_link_test *trial)
{
    if (own->wrong == 0) {
        own->op = (int32_t)trial->op;
        own->from = trial->src_rank;
    }
    own->wrong += trial->wrong;
}

/* The recipe as a run reads it; that ranks differ is for the report, on all of them. */
static invar_status check_recipe(invar_train_inputs *out, char *why, const scene *s,
                                 const invar_train_options *options)
{
    invar_status status;

    *out = (invar_train_inputs){.threads = 0};
    why[0] = '\0';
    if (!s->ask->recipe)
        return INVAR_OK;
    status = invar_train_check(out, s->ask->recipe, options);
    if (status == INVAR_OK || !out->differ)
        return status;
    (void)snprintf(why, INVAR_ERROR_MESSAGE_SIZE, "%s", invar_error_last()->message);
    invar_error_clear();
    return INVAR_OK;
}

static invar_status layout_gather(report *out, const invar_layout *layout, const record *own)
{
    invar_status status;

    out->size = invar_ranks_size(layout);
    INVAR_TRY(
        invar_alloc((void **)&out->all, (size_t)out->size, sizeof *out->all, "what ranks tell"));
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

static invar_status scene_examine(report *out, const scene *s, const invar_layout *layout,
                                  const invar_train_options *options)
{
    invar_train_inputs given;
    record own;
    invar_doctor_findings found;

    memset(&own, 0, sizeof own); // its gaps travel, too
    invar_doctor_inspect(&found, invar_ranks_local_rank(layout));
    put_machine(&own, &found);
    INVAR_TRY(check_recipe(&given, out->recipe, s, options));
    if (given.threads == 0) // there is no recipe
        given.threads = (int)invar_process_cores(
            options->threads_for > 1 ? options->threads_for : 1, invar_ranks_local_size(layout));
    (void)snprintf(own.cell[THREADS], CELL, "%d", given.threads);
    put_digest(own.cell[PROGRAM], &s->program);
    put_digest(own.cell[WEIGHTS], &given.weights);
    put_digest(own.cell[DATA], &given.data);
    put_digest(own.cell[IDENTITY], &given.identity);
    if (layout) {
        INVAR_TRY(invar_link_test_run(&out->trial, layout->world, s->seconds));
        INVAR_TRY(invar_doctor_gpu_ranks_test(&out->gpus, layout, found.present, s->ask->recipe));
        (void)snprintf(own.cell[NCCL], CELL, "%s", out->gpus.transport.nccl_version);
    }
    put_wrong(&own, &out->trial);
    put_wrong(&own, &out->gpus.trial);
    return layout_gather(out, layout, &own);
}

static invar_status comm_work(void *payload, invar_comm *comm, int threads)
{
    const scene *s = payload;
    invar_train_options options = {
        .recipe_path = s->ask->path, .until = -1, .comm = comm, .threads_for = threads};
    report own = {.transport = !comm         ? "one rank"
                               : threads > 1 ? "threads of one process"
                                             : "processes, MPI"};
    invar_layout layout;
    invar_status status;

    if (comm)
        invar_layout_init(&layout, comm, s->seconds);
    status = scene_examine(&own, s, comm ? &layout : NULL, &options);
    if (status != INVAR_OK && comm)
        invar_comm_abort(comm, invar_error_last()->message);
    if (status == INVAR_OK && (!comm || invar_comm_rank(comm) == 0))
        *s->out = own;
    else
        invar_free(own.all);
    return status;
}

/* ---- what it means --------------------------------------------------------------------------- */

static bool is_odd(const report *r, int rank, int column)
{
    return columns[column].advice &&
           strcmp(r->all[rank].cell[column], r->all[r->usual[column]].cell[column]) != 0;
}

static invar_status report_compare(report *r)
{
    invar_digest *digests;

    INVAR_TRY(invar_alloc((void **)&digests, (size_t)r->size, sizeof *digests, "cells of ranks"));
    for (int c = 0; c < COLUMNS; c++) {
        invar_rank_outlier found;

        for (int i = 0; i < r->size; i++)
            invar_hash_bytes(&digests[i], r->all[i].cell[c], strlen(r->all[i].cell[c]));
        found = invar_ranks_find_odd(digests, r->size);
        r->usual[c] = found.majority_rank;
        r->odd[c] = columns[c].advice ? found.differing_rank : -1;
        r->differ = r->differ || r->odd[c] >= 0;
    }
    r->differ = r->differ || r->recipe[0];
    invar_free(digests);
    return INVAR_OK;
}

/* The first rank with wrong bytes; -1: none. */
static int first_wrong(const report *r)
{
    for (int i = 0; i < r->size; i++)
        if (r->all[i].wrong)
            return i;
    return -1;
}

static int code_of(const report *r)
{
    int code = r->differ || first_wrong(r) >= 0 ? INVAR_EXIT_DIFFERENT : INVAR_EXIT_OK;

    for (int i = 0; i < r->size; i++)
        if (r->all[i].code == INVAR_EXIT_TROUBLE ||
            (r->all[i].code == INVAR_EXIT_DIFFERENT && code == INVAR_EXIT_OK))
            code = r->all[i].code;
    return code;
}

/* ---- telling people -------------------------------------------------------------------------- */

/* What nobody has is not shown. */
static bool is_shown(const report *r, int column)
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

static invar_status fill_ranks(invar_text_table *grid, const report *r)
{
    char text[CELL + 4];

    INVAR_TRY(invar_text_table_string(grid, "rank"));
    for (int c = 0; c < COLUMNS; c++)
        if (is_shown(r, c))
            INVAR_TRY(invar_text_table_string(grid, columns[c].name));
    for (int i = 0; i < r->size; i++) {
        INVAR_TRY(invar_text_table_int(grid, i));
        for (int c = 0; c < COLUMNS; c++) {
            const char *cell = r->all[i].cell[c];

            if (!is_shown(r, c))
                continue;
            (void)snprintf(text, sizeof text, "%.*s%s", shown_bytes(c), cell[0] ? cell : "-",
                           is_odd(r, i, c) ? " !" : "");
            INVAR_TRY(columns[c].number ? invar_text_table_number(grid, text)
                                        : invar_text_table_string(grid, text));
        }
    }
    return INVAR_OK;
}

static invar_status fill_trial(invar_text_table *grid, const invar_link_test *trial)
{
    static const char *const head[] = {"call", "bytes a rank sends", "microseconds", "GB/s"};
    char text[32];

    for (size_t i = 0; i < sizeof head / sizeof *head; i++)
        INVAR_TRY(invar_text_table_string(grid, head[i]));
    for (int i = 0; i < INVAR_COMM_RATES; i++) {
        const invar_link_rate *rate = &trial->rates[i];

        INVAR_TRY(invar_text_table_string(grid, invar_comm_op_name(rate->op)));
        INVAR_TRY(invar_text_table_int(grid, (int64_t)rate->bytes));
        (void)snprintf(text, sizeof text, "%.1f", rate->seconds * 1e6);
        INVAR_TRY(invar_text_table_number(grid, text));
        (void)snprintf(text, sizeof text, "%.2f", (double)rate->bytes / rate->seconds * 1e-9);
        INVAR_TRY(invar_text_table_number(grid, rate->bytes ? text : ""));
    }
    return INVAR_OK;
}

static invar_status fill_rates(invar_text_table *grid, const report *r)
{
    return fill_trial(grid, &r->trial);
}

static invar_status fill_gpu_rates(invar_text_table *grid, const report *r)
{
    return fill_trial(grid, &r->gpus.trial);
}

static invar_status print_grid(const report *r, int width,
                               invar_status (*fill)(invar_text_table *grid, const report *r))
{
    invar_text_table *grid = NULL;
    invar_status status;

    INVAR_TRY(invar_text_table_new(&grid, width));
    status = fill(grid, r);
    if (status == INVAR_OK)
        status = invar_text_table_show(grid, stdout);
    invar_text_table_free(grid);
    return status;
}

/* The head of a line about something that is wrong. */
static void print_wrong(const char *name)
{
    bool colour = invar_term_colour(stdout);

    printf("%s%-8s%s ", invar_term_escape(colour, INVAR_TERM_STYLE_RED), name,
           invar_term_escape(colour, INVAR_TERM_STYLE_PLAIN));
}

/* "rank 2 on b" */
static void print_rank(const report *r, int rank)
{
    printf("rank %d on ", rank);
    invar_safe_text_print(stdout, r->all[rank].cell[HOST]);
}

static void print_cell(const report *r, int rank, int column)
{
    const char *cell = r->all[rank].cell[column];

    fputs(" has ", stdout);
    invar_safe_text_print_bytes(stdout, cell[0] ? cell : "none",
                                strnlen(cell[0] ? cell : "none", (size_t)shown_bytes(column)));
}

static void print_differences(const report *r)
{
    for (int c = 0; c < COLUMNS; c++) {
        if (r->odd[c] < 0)
            continue;
        print_wrong(columns[c].name);
        print_rank(r, r->odd[c]);
        print_cell(r, r->odd[c], c);
        fputs(", ", stdout);
        print_rank(r, r->usual[c]);
        print_cell(r, r->usual[c], c);
        printf(": %s\n", columns[c].advice);
    }
    if (r->recipe[0]) {
        print_wrong("recipe");
        invar_safe_text_print(stdout, r->recipe);
        putchar('\n');
    }
}

static void print_machines(const report *r)
{
    for (int i = 0; i < r->size; i++) {
        if (r->all[i].code == INVAR_EXIT_OK)
            continue;
        print_wrong("gpu");
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

static invar_status print_bytes(const report *r)
{
    int rank = first_wrong(r);

    if (r->size < 2)
        return INVAR_OK;
    if (rank >= 0) {
        const record *its = &r->all[rank];

        print_wrong("bytes");
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
    INVAR_TRY(print_grid(r, 4, fill_rates));
    if (!r->gpus.any)
        return INVAR_OK;
    printf("\ngpus     bytes between them go %s %s\n", r->gpus.transport.nccl ? "by" : "through",
           r->gpus.transport.text);
    if (!r->gpus.transport.nccl)
        return INVAR_OK;
    putchar('\n');
    return print_grid(r, 4, fill_gpu_rates);
}

static invar_status print_text(const report *r)
{
    int width = 1;

    for (int c = 0; c < COLUMNS; c++)
        width += is_shown(r, c);
    printf("invar    %s\nranks    %d: %s\n\n", INVAR_VERSION, r->size, r->transport);
    INVAR_TRY(print_grid(r, width, fill_ranks));
    putchar('\n');
    print_differences(r);
    print_machines(r);
    if (!r->differ)
        puts("ranks    all are equal");
    return print_bytes(r);
}

/* ---- telling programs ------------------------------------------------------------------------ */

static json_t *json_ranks(const report *r)
{
    json_t *list = json_array();

    for (int i = 0; i < r->size; i++) {
        json_t *rank =
            json_pack("{s:i, s:I}", "rank", i, "wrong_bytes", (json_int_t)r->all[i].wrong);

        for (int c = 0; c < COLUMNS; c++)
            if (r->all[i].cell[c][0])
                (void)json_object_set_new(rank, columns[c].name,
                                          columns[c].number
                                              ? json_integer(strtoll(r->all[i].cell[c], NULL, 10))
                                              : invar_row_writer_json_string(r->all[i].cell[c]));
        (void)json_array_append_new(list, rank);
    }
    return list;
}

static json_t *json_differences(const report *r)
{
    json_t *list = json_array();

    for (int c = 0; c < COLUMNS; c++)
        for (int i = 0; i < r->size; i++)
            if (is_odd(r, i, c))
                (void)json_array_append_new(
                    list, json_pack("{s:i, s:s}", "rank", i, "what", columns[c].name));
    return list;
}

static json_t *json_calls(const invar_link_test *trial, bool tried)
{
    json_t *list = json_array();

    for (int i = 0; i < INVAR_COMM_RATES && tried; i++) {
        const invar_link_rate *rate = &trial->rates[i];

        (void)json_array_append_new(
            list, json_pack("{s:s, s:I, s:f}", "call", invar_comm_op_name(rate->op), "bytes",
                            (json_int_t)rate->bytes, "seconds", rate->seconds));
    }
    return list;
}

static invar_status print_json(const report *r)
{
    return invar_json_write(
        stdout,
        json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:b}", "version", INVAR_VERSION,
                  "transport", r->transport, "ranks", json_ranks(r), "differences",
                  json_differences(r), "recipe",
                  r->recipe[0] ? invar_row_writer_json_string(r->recipe) : json_null(), "calls",
                  json_calls(&r->trial, r->size > 1), "gpu_transport",
                  r->gpus.any ? invar_row_writer_json_string(r->gpus.transport.text) : json_null(),
                  "gpu_calls", json_calls(&r->gpus.trial, r->gpus.transport.nccl), "sound",
                  code_of(r) == INVAR_EXIT_OK));
}

/* ---- all ranks ------------------------------------------------------------------------------- */

static invar_status run_ranks(report *out, invar_launch *launch,
                              const invar_doctor_ranks_options *ask)
{
    scene s = {.ask = ask,
               .seconds = ask->seconds > 0.0 ? ask->seconds
                          : ask->recipe      ? invar_launch_timeout(ask->recipe)
                                             : PATIENCE,
               .out = out};

    INVAR_TRY(invar_module_hash_program(&s.program, NULL));
    INVAR_TRY(invar_open_ranks(launch, s.seconds, ask->ranks));
    return invar_launch_end(launch, invar_launch_run(launch, comm_work, &s));
}

int invar_doctor_ranks(const invar_doctor_ranks_options *ask)
{
    invar_launch launch = {.count = 1};
    report found = {.all = NULL};
    int code = INVAR_EXIT_OK;
    invar_status status = run_ranks(&found, &launch, ask);

    if (status == INVAR_OK && found.all)
        status = report_compare(&found);
    if (status == INVAR_OK && found.all)
        status = ask->json ? print_json(&found) : print_text(&found);
    if (status != INVAR_OK && !launch.comms)
        invar_open_ranks_queue();
    if (status != INVAR_OK)
        code = invar_report_error();
    else if (found.all) // a rank that tells nothing has no other code: the launcher would end all
        code = code_of(&found);
    invar_free(found.all);
    invar_launch_close(&launch);
    return code;
}
