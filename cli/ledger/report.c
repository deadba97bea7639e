/*
 * report.c - invar ledger report: writes runs as one HTML page.
 *
 * The page gets the defaults of this program's recipe keys. Damaged samples are left out, reported
 * on stderr and counted; the page is written, but the exit code is that of a damaged ledger.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/ledger/report.h"

#include <inttypes.h>
#include <limits.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "cli/interactive.h"
#include "cli/ledger/ledger.h"
#include "cli/output.h"
#include "cli/safe_text.h"
#include "engine/config/config.h"
#include "ledger/view/page.h"

#include "base/invar_banned.h"

static struct {
    const char *ledger;
    const char *out;
    bool no_samples, share;
} given;

/* Returns page options with the defaults of this program's recipe keys. */
static invar_report_options page_options(invar_ledger_pair defaults[INVAR_KEY_COUNT], bool live)
{
    return (invar_report_options){
        .defaults = defaults, .n_defaults = invar_config_defaults(defaults), .live = live};
}

static void report_damage(void *payload, const char *line)
{
    int64_t *count = payload;

    ++*count;
    invar_interactive_print(NULL, line);
}

invar_status invar_report_page(FILE *out, int64_t *damaged_out, const invar_report_run *runs,
                               size_t count)
{
    invar_ledger_pair defaults[INVAR_KEY_COUNT];
    invar_report_options options = page_options(defaults, false);

    options.damaged = report_damage;
    options.payload = damaged_out;
    options.no_samples = given.no_samples;
    options.redact = given.share;
    *damaged_out = 0;
    return invar_report_write(out, runs, count, &options);
}

invar_status invar_report_live(FILE *out, const invar_report_run *runs, size_t count, bool page)
{
    invar_ledger_pair defaults[INVAR_KEY_COUNT];
    invar_report_options options = page_options(defaults, true);

    options.data_only = !page;
    return invar_report_write(out, runs, count, &options);
}

/* Returns the argument of a run as its label if another run has the same name, otherwise NULL. */
static const char *label_of(const invar_located *runs, int count, int i, char **argv)
{
    for (int other = 0; other < count; other++)
        if (other != i && strcmp(runs[other].run.name, runs[i].run.name) == 0)
            return argv[i];
    return NULL;
}

static invar_status write_page(int64_t *damaged_out, const invar_located *runs, int count,
                               char **argv)
{
    invar_report_run *list;
    invar_output out;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(list, (size_t)count, "report"));
    for (int i = 0; i < count; i++)
        list[i] = (invar_report_run){.ledger = runs[i].ledger,
                                     .run = runs[i].run.run,
                                     .label = label_of(runs, count, i, argv)};
    status = invar_output_open(&out, given.out, INVAR_PAGE_MARK("report"));
    if (status == INVAR_OK)
        status = invar_output_close(
            &out, invar_report_page(out.stream, damaged_out, list, (size_t)count));
    invar_free(list);
    return status;
}

static invar_status report_runs(int64_t *damaged_out, int words, char **argv)
{
    int count = words > 0 ? words : 1, open = 0;
    invar_located *runs;
    invar_status status = INVAR_OK;

    if (!given.out)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "report needs --out FILE.html");
    INVAR_TRY(INVAR_ALLOC(runs, (size_t)count, "report"));
    while (open < count && status == INVAR_OK) {
        status = invar_locate_run(&runs[open], argv[open], given.ledger);
        open += status == INVAR_OK;
    }
    if (status == INVAR_OK)
        status = write_page(damaged_out, runs, count, argv);
    while (open > 0)
        invar_located_close(&runs[--open]);
    invar_free(runs);
    return status;
}

/* Fails if samples were damaged, although the page is complete otherwise. */
static invar_status check_damage(int64_t damaged)
{
    return damaged == 0
               ? INVAR_OK
               : INVAR_FAIL(INVAR_E_CORRUPT, 0,
                            "the page leaves out %" PRId64 " kept sample%s that %s "
                            "damaged; 'invar ledger verify' says more",
                            damaged, invar_text_plural(damaged), damaged == 1 ? "is" : "are");
}

static int cmd_ledger_report(int argc, char **argv)
{
    int64_t damaged = 0;

    if (report_runs(&damaged, argc, argv) != INVAR_OK)
        return invar_report_error();
    if (strcmp(given.out, "-") != 0) {
        invar_safe_text_print(stdout, given.out);
        puts(": written; open it in a browser");
        invar_print_next(stdout, damaged ? "ledger verify" : "ledger show", argv[0], given.ledger,
                         NULL);
    }
    return invar_exit(check_damage(damaged));
}

static const invar_option options[] = {
    {.name = "out",
     .type = INVAR_OPTION_TEXT,
     .value = &given.out,
     .metavar = "FILE",
     .help = "HTML file to write; an existing page is replaced"},
    {.name = "share",
     .value = &given.share,
     .help = "leave out what is not for others: samples, commands, folders, "
             "host name, author, messages of events"},
    {.name = "no-samples", .value = &given.no_samples, .help = "leave out the texts of samples"},
    INVAR_OPTION_LEDGER(&given.ledger),
    {0},
};

const invar_cli_command invar_cmd_ledger_report = {
    .name = "report",
    .summary = "write an HTML page with curves of one or several runs",
    .run = cmd_ledger_report,
    .about =
        "Writes one self-contained HTML page about one run or several side by side: curves, facts\n"
        "that differ, where two runs diverge, slow steps. The page needs no server and no\n"
        "network. Use --share for a page that others will see.\n",
    .options = options,
    .words = "RUN",
    .max_words = INT_MAX,
    .arguments = "RUN [RUN ...] --out FILE.html [--share] [--no-samples] [--option value ...]"};
