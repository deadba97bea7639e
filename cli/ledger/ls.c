/*
 * ls.c - invar ledger ls: lists the runs of many ledgers, one line each.
 *
 * An unreadable ledger gets a row of its own and sets the exit code, but does not stop the list. In
 * JSON every row has the same keys.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "base/process/process.h"
#include "cli/ledger/ledger.h"
#include "cli/safe_text.h"
#include "cli/text_table.h"

#include "base/invar_banned.h"

static struct {
    const char *ledger;
    bool json;
} given;

typedef struct run_listing {
    invar_text_table table;
    json_t *array;    /* NULL without --json */
    const char *path; /* ledger that is being read */
    invar_ledger *ledger;
    bool by_uuid; /* the ledgers are below runs/, so a uuid is sufficient to name their runs */
    int64_t now_ns;
    int64_t ledgers;
    int64_t runs;
    int64_t unreadable;                 /* number of unreadable ledgers */
    char first[INVAR_LOCATE_PATH_SIZE]; /* RUN argument for the first run */
    int code;                           /* exit code after an unreadable ledger */
} run_listing;

static invar_status add_row(run_listing *l, const invar_ledger_summary *run, const char *state)
{
    char chain[INVAR_DIGEST_HEX_SIZE], age[INVAR_SAFE_TEXT_TIME_SIZE];
    char created[INVAR_SAFE_TEXT_TIME_SIZE], text[48];

    snprintf(text, sizeof text, "%s %" PRId64, state, run->exit_code);
    invar_safe_text_span(age, l->now_ns - run->created_ns);
    invar_digest_format(chain, &run->chain);
    chain[run->last_step < 0 ? 0 : 12] = '\0';
    invar_safe_text_time(created, run->created_ns);
    invar_text_table_text(&l->table, run->uuid, strnlen(run->uuid, 8));
    invar_text_table_add(&l->table, "sssiinsss", run->name, run->kind, run->finished ? text : state,
                         invar_run_steps(run), run->segments, age, chain, created, l->path);
    return l->table.status;
}

/* Appends a row. Every row has the same keys; `error` is null if the ledger is readable. */
static invar_status append_json(run_listing *l, json_t *row, json_t *error)
{
    int failed = json_object_set_new(row, "error", error);

    return json_array_append_new(l->array, row) == 0 && failed == 0
               ? INVAR_OK
               : INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for the list of runs");
}

static invar_status add_run(void *payload, const invar_ledger_summary *run)
{
    run_listing *l = payload;
    const char *state;
    json_t *row, *model;

    if (l->runs++ == 0 && l->by_uuid)
        snprintf(l->first, sizeof l->first, "%.8s", run->uuid);
    else if (l->runs == 1)
        snprintf(l->first, sizeof l->first, "%s:%.8s", l->path, run->uuid);
    INVAR_TRY(invar_run_state(&state, l->path, run));
    if (!l->array)
        return add_row(l, run, state);
    INVAR_TRY(invar_run_row(&model, l->ledger, run->run, invar_ledger_model_sql));
    row = invar_run_json(l->path, run, state);
    (void)json_object_set_new(row, "model", model); // append_json fails if the row is NULL
    return append_json(l, row, json_null());
}

static invar_status read_ledger(run_listing *l, const char *path)
{
    invar_status status;

    l->path = path;
    INVAR_TRY(invar_ledger_open(&l->ledger, path, &(invar_ledger_options){0}));
    status = invar_ledger_runs(l->ledger, add_run, l);
    invar_ledger_close(l->ledger);
    return status;
}

/* Returns the row of an unreadable ledger. */
static json_t *unreadable_json(const char *path)
{
    json_t *row = invar_run_json(path, &(invar_ledger_summary){.run = 0}, "unreadable");
    const char *key;
    json_t *value;

    json_object_foreach(row, key,
                        value) if (strcmp(key, "ledger") != 0 && strcmp(key, "state") != 0)(void)
        json_object_set_new(row, key, json_null());
    (void)json_object_set_new(row, "model", json_null());
    return row;
}

static invar_status add_unreadable(run_listing *l)
{
    l->unreadable++;
    if (l->array)
        return append_json(
            l, unreadable_json(l->path),
            invar_result_text(invar_error_last()->message, strlen(invar_error_last()->message)));
    invar_text_table_add(&l->table, "ssssssssss", "", "", "", "unreadable", "", "", "", "", "",
                         l->path);
    return l->table.status;
}

/* Adds the runs of a ledger, or a row that says that it is unreadable. */
static invar_status add_ledger(void *payload, const char *path)
{
    run_listing *l = payload;

    l->ledgers++;
    if (read_ledger(l, path) == INVAR_OK)
        return INVAR_OK;
    l->code = invar_report_error();
    return add_unreadable(l);
}

/* Adds a ledger, the folder of a run, or a folder of such folders. */
static invar_status add_word(run_listing *l, const char *word)
{
    char path[INVAR_LOCATE_PATH_SIZE];
    int64_t before = l->ledgers;

    INVAR_TRY(invar_locate_file(path, word));
    if (strcmp(path, word) == 0 || access(path, F_OK) == 0)
        return add_ledger(l, path);
    INVAR_TRY(invar_locate_below(word, add_ledger, l));
    return l->ledgers > before
               ? INVAR_OK
               : INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                            "%.1000s: neither it nor a folder in it has a ledger.db", word);
}

static invar_status collect_runs(run_listing *l, int words, char **argv)
{
    const char *ledger = invar_locate_given(given.ledger);

    l->by_uuid = words == 0 && !ledger;
    if (words == 0)
        return ledger ? add_word(l, ledger) : invar_locate_below(INVAR_LOCATE_RUNS, add_ledger, l);
    for (int i = 0; i < words; i++)
        if (add_word(l, argv[i]) != INVAR_OK)
            l->code = invar_report_error();
    return INVAR_OK;
}

static invar_status print_listing(run_listing *l)
{
    invar_status status;

    if (l->array) {
        status = invar_json_write(stdout, l->array);
        l->array = NULL;
        return status;
    }
    if (l->runs == 0 && l->unreadable == 0) {
        if (l->code == INVAR_EXIT_OK)
            puts(l->ledgers == 0   ? "no ledger below runs/; say where: invar ledger ls FOLDER"
                 : l->ledgers == 1 ? "the ledger holds no run"
                                   : "the ledgers hold no run");
        return INVAR_OK;
    }
    INVAR_TRY(invar_text_table_show(&l->table, stdout, INVAR_OK));
    if (l->runs == 0)
        return INVAR_OK;
    putchar('\n');
    invar_print_next(stdout, "ledger show", l->first, NULL, NULL);
    return INVAR_OK;
}

static invar_status list_runs(run_listing *l, int words, char **argv)
{
    l->now_ns = invar_process_clock_ns(CLOCK_REALTIME);
    if (given.json && !(l->array = json_array()))
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for the list of runs");
    invar_text_table_add(&l->table, "ssssssssss", "run", "name", "kind", "state", "steps",
                         "segments", "age", "chain", "created", "ledger");
    INVAR_TRY(collect_runs(l, words, argv));
    return print_listing(l);
}

static int cmd_ledger_ls(int argc, char **argv)
{
    run_listing l = {.table = {.columns = 10}, .code = INVAR_EXIT_OK};
    invar_status status = list_runs(&l, argc, argv);

    invar_text_table_free(&l.table);
    json_decref(l.array);
    return status == INVAR_OK ? l.code : invar_report_error();
}

static const invar_option options[] = {
    INVAR_OPTION_LEDGER(&given.ledger), INVAR_OPTION_JSON(&given.json), {0}};

const invar_cli_command invar_cmd_ledger_ls = {
    .name = "ls",
    .summary = "list runs",
    .run = cmd_ledger_ls,
    .about =
        "Lists the runs in the given ledgers and folders, or those below runs/. The column\n"
        "'state' is one of:\n"
        "\n"
        "  running     a process is writing the ledger\n"
        "  finished    it is done\n"
        "  failed      it ended by itself, with the exit code shown\n"
        "  stopped     a signal ended it in an orderly way; it resumes when it is started again\n"
        "  killed      it ended without recording an end; likewise\n"
        "  unreadable  damaged, or not a ledger; the exit code is then 2\n",
    .options = options,
    .words = "FOLDER",
    .max_words = INT_MAX,
    .result =
        "[{" INVAR_RUN_MEMBERS("?") ", model " INVAR_RUN_MODEL "?, error text?"
                                    " (why the ledger cannot be read: then all else is null)}]",
    .arguments = "[FOLDER|FILE ...] [--option value ...]"};
