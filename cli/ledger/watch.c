/*
 * watch.c - invar ledger watch: a run while it happens.
 *
 * It only reads, in short transactions, so it holds up nobody. Steps are told in the order in which
 * they were executed: segment after segment, also those that a resume executes again.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/console/term.h"
#include "base/number.h"
#include "base/process/process.h"
#include "cli/ledger/ledger.h"
#include "cli/ledger/live_report_server.h"
#include "cli/safe_text.h"

#include "base/invar_banned.h"

typedef struct settings {
    const char *ledger;
    const char *metrics;
    double interval_s;
    int64_t until_step;
    int64_t port; /* of the browser's page; NO_PAGE: none, 0: any that is free */
} settings;

enum { NO_PAGE = -1 };
enum { PAST = 10 }; // steps that are told although they are over

/* What is told of a step unless --metrics says otherwise; the names are Miles'. */
static const char usual[] = "rollout/raw_reward,train/loss,train/grad_norm,train/ppo_kl,"
                            "train/entropy_loss,train/train_rollout_logprob_abs_diff";

typedef struct watch {
    const settings *settings;
    char *names; /* of metrics: ",a,b," */
    bool named;  /* the run has them all */
    invar_located at;
    int64_t segment;   /* that is being told */
    int64_t last_step; /* of it that was told */
    bool in_line;      /* of that step, which more metrics may follow on */
} watch;

/* ---- the line that says that it waits -------------------------------------------------------- */

static void clear_status(void)
{
    if (invar_term_live(stderr))
        fputs("\r\033[K", stderr);
}

static void print_status(const watch *w)
{
    char age[INVAR_SAFE_TEXT_TIME_SIZE];

    if (!invar_term_live(stderr))
        return;
    invar_safe_text_span(age, invar_process_clock_ns(CLOCK_REALTIME) - w->at.run.updated_ns);
    fprintf(stderr, "\r\033[Kstep %" PRId64 ", segment %" PRId64 ", last word %s ago", w->last_step,
            w->segment, age);
    fflush(stderr);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* The steps of `line`, a table of step and seg, with those of their metrics that are told. */
#define STEPS                                                                                      \
    " SELECT s.step, lower(hex(s.chain)), n.name, m.value_bits, s.seg"                             \
    " FROM line JOIN step s ON s.run = :run AND s.step = line.step AND s.seg = line.seg"           \
    " LEFT JOIN (metric m JOIN series n USING(series)) ON m.run = s.run AND m.step = s.step"       \
    " AND m.seg = s.seg AND instr(:names, ',' || n.name || ',') > 0"                               \
    " ORDER BY s.step, instr(:names, ',' || n.name || ',')"

static const char new_steps[] =
    "WITH line AS (SELECT step, seg FROM step WHERE run = :run AND seg = :segment"
    "  AND step > :after AND step <= :until)" STEPS;

/* The last steps of the run, each in its segment, without those that a resume went back behind. */
static const char past_steps[] =
    "WITH line AS (SELECT step, seg FROM step s WHERE run = :run AND step <= :until"
    "  AND NOT EXISTS (SELECT 1 FROM segment g WHERE g.run = s.run AND g.seg > s.seg"
    "   AND g.after_step < s.step) ORDER BY step DESC LIMIT :after)" STEPS;

static void end_line(watch *w)
{
    if (w->in_line)
        putchar('\n');
    w->in_line = false;
}

/* The one that is told from now on, if it is another. */
static void begin_segment(watch *w, int64_t segment)
{
    if (w->segment >= 0 && segment != w->segment)
        printf("segment %" PRId64 " begins\n", segment);
    w->segment = segment;
}

/* A row is a step and one of its metrics, if it has one. */
static invar_status take_row(void *payload, const char *const *columns,
                             const invar_ledger_value *values, int count)
{
    watch *w = payload;
    const char *name;
    char digits[INVAR_NUMBER_SIZE];
    double value;

    (void)columns;
    (void)count;
    if (!values)
        return INVAR_OK;
    if (!w->in_line || values[0].integer != w->last_step) {
        end_line(w);
        begin_segment(w, values[4].integer);
        w->last_step = values[0].integer;
        w->in_line = true;
        printf("step %-6" PRId64 " chain %.12s", w->last_step, (const char *)values[1].data);
    }
    if (values[2].type == INVAR_LEDGER_TYPE_NULL)
        return INVAR_OK;
    memcpy(&value, &values[3].integer, sizeof value);
    name = strrchr(values[2].data, '/');
    fputs("  ", stdout);
    invar_safe_text_print(stdout,
                          name && w->settings->metrics == usual ? name + 1 : values[2].data);
    invar_number_round(digits, value, 5); // `show` has all digits
    printf(" %s", digits);
    return INVAR_OK;
}

static invar_ledger_value integer(int64_t value)
{
    return (invar_ledger_value){.type = INVAR_LEDGER_TYPE_INT, .integer = value};
}

/* `after`: the step behind which they begin or, of past steps, their number. */
static invar_status tell_steps(watch *w, const char *sql, int64_t after)
{
    const invar_ledger_argument arguments[] = {
        {"run", integer(w->at.run.run)},
        {"segment", integer(w->segment)},
        {"after", integer(after)},
        {"until", integer(w->settings->until_step)},
        {"names", {.type = INVAR_LEDGER_TYPE_TEXT, .data = w->names, .bytes = strlen(w->names)}},
    };
    invar_status status;

    status = invar_ledger_select(
        w->at.ledger,
        &(invar_ledger_select_request){
            .sql = sql, .arguments = arguments, .n_arguments = 5, .row = take_row, .payload = w});
    end_line(w);
    return status;
}

/* A misspelt name would be a column that never comes; a run has its metrics with its first step. */
static invar_status check_names(watch *w)
{
    if (w->named || w->at.run.last_step < 0 || w->settings->metrics == usual)
        return INVAR_OK;
    for (const char *at = w->settings->metrics;; at++) {
        size_t bytes = strcspn(at, ",");

        INVAR_TRY(invar_ledger_metric_check(w->at.ledger, "metrics", w->at.run.run, at, bytes));
        at += bytes;
        if (*at == '\0')
            break;
    }
    w->named = true;
    return INVAR_OK;
}

/* What is new, of all segments. */
static invar_status tell_news(watch *w)
{
    INVAR_TRY(tell_steps(w, new_steps, w->last_step));
    while (w->segment + 1 < w->at.run.segments && w->last_step < w->settings->until_step) {
        begin_segment(w, w->segment + 1);
        w->last_step = -1;
        INVAR_TRY(tell_steps(w, new_steps, w->last_step));
    }
    return INVAR_OK;
}

/* The steps that the run had before the watch began are printed first. */
static invar_status tell_past(watch *w)
{
    w->segment = w->last_step = -1;
    INVAR_TRY(check_names(w));
    INVAR_TRY(tell_steps(w, past_steps, PAST));
    if (w->segment < 0) // there is no step to go on from
        w->segment = w->at.run.segments - 1;
    return INVAR_OK;
}

/* ---- the verb -------------------------------------------------------------------------------- */

/* What became of the run, as far as it was told. */
typedef enum end { GOES_ON, ENOUGH, FINISHED, KILLED } end;

/* Looks once, and tells the steps that are new. */
static invar_status print_new_steps(end *out, watch *w)
{
    char writer[INVAR_LEDGER_WRITER_SIZE], uuid[INVAR_LEDGER_UUID_SIZE];

    // first the writer, then the run: one that finishes in between is found again
    INVAR_TRY(invar_ledger_writer(writer, w->at.path));
    memcpy(uuid, w->at.run.uuid, sizeof uuid);
    INVAR_TRY(invar_ledger_find(&w->at.run, w->at.ledger, uuid));
    clear_status();
    INVAR_TRY(check_names(w));
    INVAR_TRY(tell_news(w));
    *out = w->at.run.last_step >= w->settings->until_step ? ENOUGH
           : w->at.run.finished                           ? FINISHED
           : writer[0] == '\0'                            ? KILLED
                                                          : GOES_ON;
    return INVAR_OK;
}

/* How it ended; that nobody finished it is a failure. */
static invar_status tell_end(const watch *w, end how)
{
    const invar_ledger_summary *run = &w->at.run;
    char resume[INVAR_RUN_RESUME_SIZE];

    INVAR_TRY(invar_run_resume(resume, w->at.ledger, run));
    if (how == KILLED)
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "run %.8s was killed after step %" PRId64
                          ": nobody writes its ledger any more, and it did not finish%s",
                          run->uuid, run->last_step, resume);
    if (how == FINISHED)
        printf("%s with exit code %" PRId64 "%s\n", invar_run_end(run), run->exit_code, resume);
    return INVAR_OK;
}

static void pause_for(double seconds)
{
    struct timespec span = {.tv_sec = (time_t)seconds};

    span.tv_nsec = (long)((seconds - (double)span.tv_sec) * 1e9);
    nanosleep(&span, NULL);
}

static invar_status watch_follow(watch *w)
{
    end how;

    INVAR_TRY(tell_past(w));
    for (;;) {
        INVAR_TRY(print_new_steps(&how, w));
        if (fflush(stdout) != 0) // main says what became of standard output
            return INVAR_OK;
        if (how != GOES_ON)
            return tell_end(w, how);
        print_status(w);
        pause_for(w->settings->interval_s);
    }
}

/* It stays when the run is over: somebody may be reading the page, and resume the run. */
static invar_status follow_for_good(watch *w)
{
    end how, before = GOES_ON;

    INVAR_TRY(tell_past(w));
    for (;;) {
        INVAR_TRY(print_new_steps(&how, w));
        if (how != GOES_ON && how != before) {
            if (tell_end(w, how) != INVAR_OK)
                (void)invar_report_error();
            invar_error_clear();
            puts("the page stays until Ctrl-C");
        }
        before = how;
        if (fflush(stdout) != 0)
            return INVAR_OK;
        if (how == GOES_ON)
            print_status(w);
        pause_for(w->settings->interval_s);
    }
}

static invar_status keep_names(watch *w, const char *metrics)
{
    size_t bytes = strlen(metrics) + 3;
    void *memory;

    INVAR_TRY(invar_alloc(&memory, bytes, 1, "names of metrics"));
    w->names = memory;
    (void)snprintf(w->names, bytes, ",%s,", metrics);
    return INVAR_OK;
}

static invar_status follow_in_browser(watch *w)
{
    invar_live_report_server *browser;

    INVAR_TRY(invar_live_report_server_open(&browser, &w->at, w->settings->port));
    printf("page at http://127.0.0.1:%" PRId64 "/\n", invar_live_report_server_port(browser));
    fflush(stdout);
    invar_status status = follow_for_good(w);
    invar_live_report_server_close(browser);
    return status;
}

static const invar_option *cmd_ledger_watch_options(settings *s)
{
    static invar_option list[6];

    list[0] = (invar_option){.name = "interval",
                             .type = INVAR_OPTION_REAL,
                             .value = &s->interval_s,
                             .metavar = "S",
                             .help = "seconds between updates (1)",
                             .high = 3600};
    list[1] = (invar_option){.name = "until-step",
                             .type = INVAR_OPTION_INT,
                             .value = &s->until_step,
                             .metavar = "N",
                             .help = "stop when this step is done",
                             .high = INT64_MAX};
    list[2] =
        (invar_option){.name = "metrics",
                       .type = INVAR_OPTION_TEXT,
                       .value = &s->metrics,
                       .metavar = "A,B",
                       .help = "metrics to show instead of the usual ones; the run must have them"};
    list[3] =
        (invar_option){.name = "serve",
                       .type = INVAR_OPTION_OPTIONAL_INT,
                       .value = &s->port,
                       .metavar = "PORT",
                       .help = "show the report at http://127.0.0.1:PORT, live, until Ctrl-C; "
                               "without PORT: at one that is free",
                       .high = 65535};
    list[4] = invar_option_ledger(&s->ledger);
    list[5] = (invar_option){0};
    return list;
}

static int cmd_ledger_watch(int argc, char **argv)
{
    settings s = {.interval_s = 1, .until_step = INT64_MAX, .metrics = usual, .port = NO_PAGE};
    watch w = {.settings = &s};
    invar_status status;
    int words;

    if (invar_options_parse_words(&words, cmd_ledger_watch_options(&s), argc, argv, "RUN", 0, 1) !=
            INVAR_OK ||
        invar_locate_run(&w.at, words > 0 ? argv[0] : NULL, s.ledger) != INVAR_OK)
        return invar_report_error();
    if (s.interval_s < 0.01)
        s.interval_s = 0.01; // a look takes the ledger a moment too
    status = keep_names(&w, s.metrics);
    if (status == INVAR_OK)
        status = s.port == NO_PAGE ? watch_follow(&w) : follow_in_browser(&w);
    invar_free(w.names);
    invar_located_close(&w.at);
    if (status == INVAR_OK)
        invar_print_next(stdout, "ledger show", words > 0 ? argv[0] : NULL, s.ledger, NULL);
    return invar_exit(status);
}

static void cmd_ledger_watch_help(void)
{
    settings s;

    invar_help_text(
        "Follows a running run: prints its last ten steps, then a line for every new step, and\n"
        "ends with the run. With --serve a browser shows the report, which brings itself up to\n"
        "date, until Ctrl-C: a run that is resumed goes on. Only this machine reaches it.\n"
        "\n"
        "Exit codes:\n"
        "  0    the run has ended, also by a failure, or step --until-step is done\n"
        "  2    the run was killed\n");
    invar_options_help(cmd_ledger_watch_options(&s));
}

const invar_cli_command invar_verb_ledger_watch = {
    .name = "watch",
    .summary = "follow a run live, step by step",
    .run = cmd_ledger_watch,
    .help = cmd_ledger_watch_help,
    .arguments = "RUN [--interval S] [--until-step N] [--serve [PORT]] [--option value ...]"};
