/*
 * copy.c - invar ledger import, backup and export: copies a ledger or writes it in other formats.
 *
 * Import verifies each run and copies it once. The ledger of a run that `invar train` continues
 * must keep exactly one run, so importing into it is rejected. A ledger that was created for an
 * import that failed is removed again.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _XOPEN_SOURCE 700 // realpath

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/text.h"
#include "cli/ledger/ledger.h"
#include "cli/output.h"
#include "cli/safe_text.h"
#include "engine/run/run_dir/paths.h"
#include "ledger/view/export/export.h"

#include "base/invar_banned.h"

#define IMPORT_RESULT "{ledger text, imported int}"
#define BACKUP_RESULT "{ledger text}"

#define IMPORT "import" /* writer name of an import in the lock of a ledger */

static struct {
    const char *ledger;
    const char *into;
    const char *out;
    const char *csv, *jsonl, *tensorboard;
    int64_t keep_last, keep_every;
    bool json;
} given = {.keep_last = -1};

/* Prints "PATH: TEXT" to stdout. */
static void print_done(const char *path, const char *text)
{
    invar_safe_text_print(stdout, path);
    printf(": %s\n", text);
}

/* ---- import ---------------------------------------------------------------------------------- */

static invar_status count_run(void *payload, const invar_ledger_summary *run)
{
    (void)run;
    ++*(int64_t *)payload;
    return INVAR_OK;
}

/*
 * Returns true for the ledger of a run: `invar train` wrote it last, or it is next to files of a
 * run.
 */
static invar_status is_run_ledger(bool *out, const char *path)
{
    static const char *const marks[] = {INVAR_RUN_PATHS_CHECKPOINTS, "report.html"};
    char last[INVAR_LEDGER_WRITER_SIZE], beside[INVAR_PATH_SIZE];
    const char *slash = strrchr(path, '/');

    INVAR_TRY(invar_ledger_last_writer(last, path));
    *out = invar_text_has_suffix(last, ": invar train");
    for (size_t i = 0; slash && strcmp(slash, "/ledger.db") == 0 && i < 2; i++) {
        int length =
            snprintf(beside, sizeof beside, "%.*s/%s", (int)(slash - path), path, marks[i]);
        *out |= length < (int)sizeof beside && invar_path_exists(beside);
    }
    return INVAR_OK;
}

/*
 * Rejects the ledger of a run as destination: a run is located by its ledger, which must contain
 * only that run. Copies and collections of runs may have any name.
 */
static invar_status check_destination(const char *path)
{
    char now[INVAR_LEDGER_WRITER_SIZE], real[PATH_MAX];
    invar_ledger *ledger;
    invar_status status;
    bool of_run = false;
    int64_t runs = 0;

    // through links, because the other files of the run are next to the target
    if (!realpath(path, real))
        return INVAR_OK;
    INVAR_TRY(invar_ledger_writer(now, real));
    if (!now[0]) // a current writer is reported when the ledger is opened
        INVAR_TRY(is_run_ledger(&of_run, real));
    if (!of_run)
        return INVAR_OK;
    INVAR_TRY(invar_ledger_open(&ledger, path, &(invar_ledger_options){0}));
    status = invar_ledger_runs(ledger, count_run, &runs);
    invar_ledger_close(ledger);
    if (status == INVAR_OK && runs == 1)
        return INVAR_FAIL(
            INVAR_E_STATE, 0,
            "%.1000s is the ledger of a run, which could not be resumed with others in "
            "it; import both into another file, --into FILE",
            path);
    return status;
}

static invar_status import_file(int64_t *runs_out, invar_ledger *into, const char *word)
{
    char path[INVAR_LOCATE_PATH_SIZE];
    invar_ledger *from;
    invar_status status;

    INVAR_TRY(invar_locate_file(path, word));
    INVAR_TRY(invar_ledger_open(&from, path, &(invar_ledger_options){0}));
    status = invar_ledger_import(runs_out, into, from);
    invar_ledger_close(from);
    return status;
}

/* Removes a ledger that was created for an import that failed. */
static void remove_ledger(const char *path)
{
    static const char *const suffixes[] = {"", "-wal", "-shm", "-lock"};
    char name[INVAR_PATH_SIZE + 8];

    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        snprintf(name, sizeof name, "%s%s", path, suffixes[i]);
        unlink(name);
    }
}

static invar_status import_files(int64_t *total_out, int words, char **argv)
{
    invar_ledger *into;
    invar_status status;
    int64_t runs;
    bool fresh;

    *total_out = 0;
    if (!given.into)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "import needs --into FILE");
    fresh = !invar_path_exists(given.into);
    INVAR_TRY(check_destination(given.into));
    INVAR_TRY(invar_ledger_open(&into, given.into,
                                &(invar_ledger_options){.create = true, .writer = IMPORT}));
    status = INVAR_OK;
    for (int i = 0; i < words && status == INVAR_OK; i++) {
        status = import_file(&runs, into, argv[i]);
        *total_out += status == INVAR_OK ? runs : 0;
    }
    invar_ledger_close(into);
    if (status != INVAR_OK && fresh && *total_out == 0)
        remove_ledger(given.into);
    return status;
}

static int cmd_ledger_import(int argc, char **argv)
{
    int64_t runs;
    char text[64];

    if (import_files(&runs, argc, argv) != INVAR_OK)
        return invar_report_error();
    if (given.json)
        return invar_exit(invar_json_write(stdout, INVAR_RESULT(IMPORT_RESULT, given.into, runs)));
    snprintf(text, sizeof text, "%" PRId64 " run%s imported", runs, invar_text_plural(runs));
    print_done(given.into, text);
    invar_print_next(stdout, "ledger ls", given.into, NULL, NULL);
    return INVAR_EXIT_OK;
}

static const invar_option import_options[] = {
    {.name = "into",
     .type = INVAR_OPTION_TEXT,
     .value = &given.into,
     .metavar = "FILE",
     .help = "ledger file to copy the runs into; created if missing"},
    INVAR_OPTION_JSON(&given.json),
    {0},
};

const invar_cli_command invar_cmd_ledger_import = {
    .name = "import",
    .summary = "copy runs from several ledgers into one",
    .run = cmd_ledger_import,
    .about =
        "Copies runs from several ledgers into one file, so that a query can compare them. Each\n"
        "run is verified first, keeps its hashes, and is copied only once.\n",
    .options = import_options,
    .words = "FILE",
    .min_words = 1,
    .max_words = INT_MAX,
    .result = IMPORT_RESULT,
    .arguments = "FILE|FOLDER ... --into FILE [--option value ...]"};

/* ---- backup ---------------------------------------------------------------------------------- */

static invar_status backup_ledger(const char *word)
{
    invar_located at;
    invar_status status;

    if (!given.out)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "backup needs --out FILE");
    if (given.keep_every > 0 && given.keep_last < 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--keep-every keeps nothing more without --keep-last N");
    INVAR_TRY(invar_locate_ledger(&at, word, given.ledger));
    status = invar_ledger_backup(at.ledger, given.out,
                                 &(invar_ledger_retention){.last_steps = given.keep_last,
                                                           .every_n_steps = given.keep_every});
    invar_located_close(&at);
    return status;
}

static int cmd_ledger_backup(int argc, char **argv)
{
    (void)argc;
    if (backup_ledger(argv[0]) != INVAR_OK)
        return invar_report_error();
    if (given.json)
        return invar_exit(invar_json_write(stdout, INVAR_RESULT(BACKUP_RESULT, given.out)));
    print_done(given.out, "written");
    invar_print_next(stdout, "ledger verify", given.out, NULL, NULL);
    return INVAR_EXIT_OK;
}

static const invar_option backup_options[] = {
    {.name = "out",
     .type = INVAR_OPTION_TEXT,
     .value = &given.out,
     .metavar = "FILE",
     .help = "file to write; must not exist yet"},
    {.name = "keep-last",
     .type = INVAR_OPTION_INT,
     .value = &given.keep_last,
     .metavar = "N",
     .help = "keep the detail of the last N steps",
     .high = INT64_MAX},
    {.name = "keep-every",
     .type = INVAR_OPTION_INT,
     .value = &given.keep_every,
     .metavar = "N",
     .help = "keep the detail of every N-th step",
     .high = INT64_MAX},
    INVAR_OPTION_LEDGER(&given.ledger),
    INVAR_OPTION_JSON(&given.json),
    {0},
};

const invar_cli_command invar_cmd_ledger_backup = {
    .name = "backup",
    .summary = "copy a ledger, optionally without old detail",
    .run = cmd_ledger_backup,
    .about =
        "Copies a ledger, also while a run is writing it. --keep-last and --keep-every leave the\n"
        "detail of the other steps out of the copy: digests, statistics, samples, plug-in\n"
        "replies, timings, work of ranks, gauges. Roots, chains and metrics stay, and the copy\n"
        "can still be verified. This is the only way to get a smaller ledger; nothing is ever\n"
        "deleted from the original.\n",
    .options = backup_options,
    .words = "RUN",
    .max_words = 1,
    .result = BACKUP_RESULT,
    .arguments = "RUN|FILE --out FILE [--keep-last N] [--keep-every N] [--option value ...]"};

/* ---- export ---------------------------------------------------------------------------------- */

static invar_status export_file(const invar_located *at, const char *path, const char *mark,
                                invar_status (*write)(FILE *, invar_ledger *, int64_t))
{
    invar_output out;

    INVAR_TRY(invar_output_open(&out, path, mark));
    return invar_output_close(&out, write(out.stream, at->ledger, at->run.run));
}

static invar_status export_run(const char *word)
{
    invar_located at;
    invar_status status = INVAR_OK;

    if (!given.csv && !given.jsonl && !given.tensorboard)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "export needs --csv FILE, --jsonl FILE or --tensorboard FOLDER");
    if (given.csv && given.jsonl && strcmp(given.csv, given.jsonl) == 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--csv and --jsonl are both %.1000s", given.csv);
    INVAR_TRY(invar_locate_run(&at, word, given.ledger));
    if (given.csv)
        status = export_file(&at, given.csv, INVAR_EXPORT_CSV_MARK, invar_export_csv);
    if (given.jsonl && status == INVAR_OK)
        status = export_file(&at, given.jsonl, INVAR_EXPORT_JSONL_MARK, invar_export_jsonl);
    if (given.tensorboard && status == INVAR_OK)
        status = invar_export_tensorboard(given.tensorboard, at.ledger, at.run.run);
    invar_located_close(&at);
    return status;
}

static int cmd_ledger_export(int argc, char **argv)
{
    (void)argc;
    if (export_run(argv[0]) != INVAR_OK)
        return invar_report_error();
    if (given.tensorboard) {
        fputs("next: tensorboard --logdir ", stderr);
        invar_text_print_shell_word(stderr, given.tensorboard);
        fputc('\n', stderr);
    } else {
        invar_print_next(stderr, "ledger report", argv[0], given.ledger, "--out report.html");
    }
    return INVAR_EXIT_OK;
}

static const invar_option export_options[] = {
    {.name = "csv",
     .type = INVAR_OPTION_TEXT,
     .value = &given.csv,
     .metavar = "FILE",
     .help = "write metrics and evaluations as CSV; - writes to standard output"},
    {.name = "jsonl",
     .type = INVAR_OPTION_TEXT,
     .value = &given.jsonl,
     .metavar = "FILE",
     .help = "write everything as JSON lines; - writes to standard output"},
    {.name = "tensorboard",
     .type = INVAR_OPTION_TEXT,
     .value = &given.tensorboard,
     .metavar = "FOLDER",
     .help = "write scalars as a TensorBoard event file into this folder"},
    INVAR_OPTION_LEDGER(&given.ledger),
    {0},
};

const invar_cli_command invar_cmd_ledger_export = {
    .name = "export",
    .summary = "write a run as CSV, JSON lines or TensorBoard events",
    .run = cmd_ledger_export,
    .about =
        "Writes a run in a format that other programs read. The exact bits of every number are\n"
        "written beside it.\n",
    .options = export_options,
    .words = "RUN",
    .max_words = 1,
    .arguments = "RUN --csv FILE|--jsonl FILE|--tensorboard FOLDER [--option value ...]"};
