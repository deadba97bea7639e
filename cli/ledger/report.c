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

typedef struct settings {
    const char *ledger;
    const char *out;
    bool no_samples, share;
} settings;

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

static invar_status write_and_count_damage(FILE *out, int64_t *damaged_out,
                                           const invar_report_run *runs, size_t count,
                                           invar_report_options *options)
{
    *damaged_out = 0;
    options->damaged = report_damage;
    options->payload = damaged_out;
    return invar_report_write(out, runs, count, options);
}

invar_status invar_report_page(FILE *out, int64_t *damaged_out, const invar_report_run *runs,
                               size_t count)
{
    invar_ledger_pair defaults[INVAR_KEY_COUNT];
    invar_report_options options = page_options(defaults, false);

    return write_and_count_damage(out, damaged_out, runs, count, &options);
}

invar_status invar_report_live_page(FILE *out, const invar_report_run *runs, size_t count)
{
    invar_ledger_pair defaults[INVAR_KEY_COUNT];
    const invar_report_options options = page_options(defaults, true);

    return invar_report_write(out, runs, count, &options);
}

invar_status invar_report_data(FILE *out, const invar_report_run *runs, size_t count)
{
    invar_ledger_pair defaults[INVAR_KEY_COUNT];
    const invar_report_options options = page_options(defaults, true);

    return invar_report_write_data(out, runs, count, &options);
}

static const invar_option *ledger_report_options(settings *s)
{
    static invar_option list[5];

    list[0] = (invar_option){.name = "out",
                             .type = INVAR_OPTION_TEXT,
                             .value = &s->out,
                             .metavar = "FILE",
                             .help = "HTML file to write; an existing page is replaced"};
    list[1] =
        (invar_option){.name = "share",
                       .type = INVAR_OPTION_FLAG,
                       .value = &s->share,
                       .help = "leave out what is not for others: samples, commands, folders, "
                               "host name, author, messages of events"};
    list[2] = (invar_option){.name = "no-samples",
                             .type = INVAR_OPTION_FLAG,
                             .value = &s->no_samples,
                             .help = "leave out the texts of samples"};
    list[3] = invar_option_ledger(&s->ledger);
    list[4] = (invar_option){0};
    return list;
}

/* Returns the argument of a run as its label if another run has the same name, otherwise NULL. */
static const char *label_of(const invar_located *runs, int count, int i, char **argv)
{
    for (int other = 0; other < count; other++)
        if (other != i && strcmp(runs[other].run.name, runs[i].run.name) == 0)
            return argv[i];
    return NULL;
}

static invar_status write_page(const settings *s, int64_t *damaged_out, const invar_located *runs,
                               int count, char **argv)
{
    invar_ledger_pair defaults[INVAR_KEY_COUNT];
    invar_report_options options = page_options(defaults, false);
    invar_report_run *list;
    invar_output out;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(list, (size_t)count, "report"));
    for (int i = 0; i < count; i++)
        list[i] = (invar_report_run){.ledger = runs[i].ledger,
                                     .run = runs[i].run.run,
                                     .label = label_of(runs, count, i, argv)};
    options.no_samples = s->no_samples;
    options.redact = s->share;
    status = invar_output_open(&out, s->out, INVAR_PAGE_MARK("report"));
    if (status == INVAR_OK)
        status = invar_output_close(
            &out, write_and_count_damage(out.stream, damaged_out, list, (size_t)count, &options));
    invar_free(list);
    return status;
}

static invar_status report_runs(int64_t *damaged_out, const settings *s, int words, char **argv)
{
    int count = words > 0 ? words : 1, open = 0;
    invar_located *runs;
    invar_status status = INVAR_OK;

    if (!s->out)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "report needs --out FILE.html");
    INVAR_TRY(INVAR_ALLOC(runs, (size_t)count, "report"));
    while (open < count && status == INVAR_OK) {
        status = invar_locate_run(&runs[open], words > 0 ? argv[open] : NULL, s->ledger);
        open += status == INVAR_OK;
    }
    if (status == INVAR_OK)
        status = write_page(s, damaged_out, runs, count, argv);
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
    settings s = {0};
    int64_t damaged = 0;
    int words;

    if (invar_options_parse_words(&words, ledger_report_options(&s), argc, argv, "RUN", 0, argc) !=
            INVAR_OK ||
        report_runs(&damaged, &s, words, argv) != INVAR_OK)
        return invar_report_error();
    if (strcmp(s.out, "-") != 0) {
        invar_safe_text_print(stdout, s.out);
        puts(": written; open it in a browser");
        invar_print_next(stdout, damaged ? "ledger verify" : "ledger show",
                         words > 0 ? argv[0] : NULL, s.ledger, NULL);
    }
    return check_damage(damaged) == INVAR_OK ? INVAR_EXIT_OK : invar_report_error();
}

static void ledger_report_help(void)
{
    settings s;

    invar_help_text(
        "Writes one self-contained HTML page about one run or several side by side: curves, facts\n"
        "that differ, where two runs diverge, slow steps. The page needs no server and no\n"
        "network. Use --share for a page that others will see.\n");
    invar_options_help(ledger_report_options(&s));
}

const invar_cli_command invar_cmd_ledger_report = {
    .name = "report",
    .summary = "write an HTML page with curves of one or several runs",
    .run = cmd_ledger_report,
    .help = ledger_report_help,
    .arguments = "RUN [RUN ...] --out FILE.html [--share] [--no-samples] [--option value ...]"};
