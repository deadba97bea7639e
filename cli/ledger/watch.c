/*
 * watch.c - invar ledger watch: follows a run live, in the terminal or with a page in the browser.
 *
 * The ledger is only read, in short transactions, so the writer is never blocked. Steps are printed
 * in the order of their execution, segment by segment, including steps that a resume executes
 * again.
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
    int64_t port; /* port of the live page; NO_PAGE for no page, 0 for any free port */
} settings;

enum { NO_PAGE = -1 };
enum { PAST = 10 }; // number of steps before the start that are printed

/* Default value of the option --metrics. */
static const char default_metrics[] = "rollout/raw_reward,train/loss,train/grad_norm,train/ppo_kl,"
                                      "train/entropy_loss,train/train_rollout_logprob_abs_diff";

typedef struct watch_job {
    const settings *settings;
    char *names;        /* metric names as ",a,b," */
    bool names_checked; /* the run has all of these metrics */
    invar_located at;
    int64_t segment;   /* segment that is being printed */
    int64_t last_step; /* last printed step of that segment */
    bool in_line;      /* the line of that step is open, so more metrics may follow */
} watch_job;

/* ---- status line ----------------------------------------------------------------------------- */

static void print_status(const watch_job *w)
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

/* Rows for the steps of `line`, a table of step and seg, with their selected metrics. */
#define STEPS                                                                                      \
    " SELECT s.step, lower(hex(s.chain)), n.name, m.value_bits, s.seg"                             \
    " FROM line JOIN step s ON s.run = :run AND s.step = line.step AND s.seg = line.seg"           \
    " LEFT JOIN (metric m JOIN series n USING(series)) ON m.run = s.run AND m.step = s.step"       \
    " AND m.seg = s.seg AND instr(:names, ',' || n.name || ',') > 0"                               \
    " ORDER BY s.step, instr(:names, ',' || n.name || ',')"

static const char new_steps[] =
    "WITH line AS (SELECT step, seg FROM step WHERE run = :run AND seg = :segment"
    "  AND step > :after AND step <= :until)" STEPS;

/* Last steps of the run, each from its own segment, without steps that a resume has discarded. */
static const char past_steps[] =
    "WITH line AS (SELECT step, seg FROM step s WHERE run = :run AND step <= :until"
    "  AND NOT EXISTS (SELECT 1 FROM segment g WHERE g.run = s.run AND g.seg > s.seg"
    "   AND g.after_step < s.step) ORDER BY step DESC LIMIT :after)" STEPS;

static void end_line(watch_job *w)
{
    if (w->in_line)
        putchar('\n');
    w->in_line = false;
}

/* Switches to a segment and announces it if it is another one. */
static void begin_segment(watch_job *w, int64_t segment)
{
    if (w->segment >= 0 && segment != w->segment)
        printf("segment %" PRId64 " begins\n", segment);
    w->segment = segment;
}

/* Prints a row: a step and one of its metrics, or no metric. */
static invar_status print_row(void *payload, const char *const *columns,
                              const invar_ledger_value *values, int count)
{
    watch_job *w = payload;
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
    invar_safe_text_print(stdout, name && w->settings->metrics == default_metrics ? name + 1
                                                                                  : values[2].data);
    invar_number_round(digits, value, 5); // `show` prints all digits
    printf(" %s", digits);
    return INVAR_OK;
}

/* Prints steps. `after` is the step before the first one, or for past_steps their number. */
static invar_status print_steps(watch_job *w, const char *sql, int64_t after)
{
    const invar_ledger_argument arguments[] = {
        {"run", {.type = INVAR_LEDGER_TYPE_INT, .integer = w->at.run.run}},
        {"segment", {.type = INVAR_LEDGER_TYPE_INT, .integer = w->segment}},
        {"after", {.type = INVAR_LEDGER_TYPE_INT, .integer = after}},
        {"until", {.type = INVAR_LEDGER_TYPE_INT, .integer = w->settings->until_step}},
        {"names", {.type = INVAR_LEDGER_TYPE_TEXT, .data = w->names, .bytes = strlen(w->names)}},
    };
    invar_status status;

    status = invar_ledger_select(
        w->at.ledger,
        &(invar_ledger_select_request){
            .sql = sql, .arguments = arguments, .n_arguments = 5, .row = print_row, .payload = w});
    end_line(w);
    return status;
}

/* Rejects misspelt metric names. The metrics of a run are known with its first step. */
static invar_status check_names(watch_job *w)
{
    if (w->names_checked || w->at.run.last_step < 0 || w->settings->metrics == default_metrics)
        return INVAR_OK;
    for (const char *at = w->settings->metrics;; at++) {
        size_t bytes = strcspn(at, ",");

        INVAR_TRY(invar_ledger_metric_check(w->at.ledger, "metrics", w->at.run.run, at, bytes));
        at += bytes;
        if (*at == '\0')
            break;
    }
    w->names_checked = true;
    return INVAR_OK;
}

/* Prints the new steps of all segments. */
static invar_status print_new_segments(watch_job *w)
{
    INVAR_TRY(print_steps(w, new_steps, w->last_step));
    while (w->segment + 1 < w->at.run.segments && w->last_step < w->settings->until_step) {
        begin_segment(w, w->segment + 1);
        w->last_step = -1;
        INVAR_TRY(print_steps(w, new_steps, w->last_step));
    }
    return INVAR_OK;
}

/* Prints the last steps that the run had before the watch began. */
static invar_status print_past_steps(watch_job *w)
{
    w->segment = w->last_step = -1;
    INVAR_TRY(check_names(w));
    INVAR_TRY(print_steps(w, past_steps, PAST));
    if (w->segment < 0) // no step was printed
        w->segment = w->at.run.segments - 1;
    return INVAR_OK;
}

/* ---- the command ----------------------------------------------------------------------------- */

/* State of the run after the last poll. */
typedef enum watch_state { STATE_RUNNING, STATE_REACHED, STATE_FINISHED, STATE_KILLED } watch_state;

/* Polls once and prints the new steps. */
static invar_status print_new_steps(watch_state *out, watch_job *w)
{
    char writer[INVAR_LEDGER_WRITER_SIZE], uuid[INVAR_LEDGER_UUID_SIZE];

    // the writer before the run, so that a run that finishes in between is seen as finished
    INVAR_TRY(invar_ledger_writer(writer, w->at.path));
    memcpy(uuid, w->at.run.uuid, sizeof uuid);
    INVAR_TRY(invar_ledger_find(&w->at.run, w->at.ledger, uuid));
    if (invar_term_live(stderr))
        fputs("\r\033[K", stderr); // the status line
    INVAR_TRY(check_names(w));
    INVAR_TRY(print_new_segments(w));
    *out = w->at.run.last_step >= w->settings->until_step ? STATE_REACHED
           : w->at.run.finished                           ? STATE_FINISHED
           : writer[0] == '\0'                            ? STATE_KILLED
                                                          : STATE_RUNNING;
    return INVAR_OK;
}

/* Prints how the run ended. A killed run is an error. */
static invar_status print_end(const watch_job *w, watch_state how)
{
    const invar_ledger_summary *run = &w->at.run;
    char resume[INVAR_RUN_RESUME_SIZE];

    INVAR_TRY(invar_run_resume(resume, w->at.ledger, run));
    if (how == STATE_KILLED)
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "run %.8s was killed after step %" PRId64
                          ": no process writes its ledger any more, and it did not finish%s",
                          run->uuid, run->last_step, resume);
    if (how == STATE_FINISHED)
        printf("%s with exit code %" PRId64 "%s\n", invar_run_end(run), run->exit_code, resume);
    return INVAR_OK;
}

/*
 * Follows the run to its end; with `browser` until Ctrl-C, because the page may still be open and
 * the run may be resumed.
 */
static invar_status follow_run(watch_job *w, bool browser)
{
    watch_state how, before = STATE_RUNNING;
    double seconds = w->settings->interval_s;
    struct timespec span = {.tv_sec = (time_t)seconds};

    span.tv_nsec = (long)((seconds - (double)span.tv_sec) * 1e9);
    INVAR_TRY(print_past_steps(w));
    for (;;) {
        INVAR_TRY(print_new_steps(&how, w));
        if (browser && how != STATE_RUNNING && how != before) {
            if (print_end(w, how) != INVAR_OK)
                (void)invar_report_error();
            invar_error_clear();
            puts("the page stays until Ctrl-C");
        }
        before = how;
        if (fflush(stdout) != 0) // main reports the failed output
            return INVAR_OK;
        if (!browser && how != STATE_RUNNING)
            return print_end(w, how);
        if (how == STATE_RUNNING)
            print_status(w);
        nanosleep(&span, NULL);
    }
}

static invar_status follow_in_browser(watch_job *w)
{
    invar_live_report_server *browser;
    int64_t port = w->settings->port;

    INVAR_TRY(invar_live_report_server_open(&browser, &w->at, &port));
    printf("page at http://127.0.0.1:%" PRId64 "/\n", port);
    fflush(stdout);
    invar_status status = follow_run(w, true);
    invar_live_report_server_close(browser);
    return status;
}

static settings given = {
    .interval_s = 1, .until_step = INT64_MAX, .metrics = default_metrics, .port = NO_PAGE};

static const invar_option options[] = {
    {.name = "interval",
     .type = INVAR_OPTION_REAL,
     .value = &given.interval_s,
     .metavar = "S",
     .help = "seconds between updates (1)",
     .high = 3600},
    {.name = "until-step",
     .type = INVAR_OPTION_INT,
     .value = &given.until_step,
     .metavar = "N",
     .help = "stop when this step is done",
     .high = INT64_MAX},
    {.name = "metrics",
     .type = INVAR_OPTION_TEXT,
     .value = &given.metrics,
     .metavar = "A,B",
     .help = "metrics to show instead of the usual ones; the run must have them"},
    {.name = "serve",
     .type = INVAR_OPTION_OPTIONAL_INT,
     .value = &given.port,
     .metavar = "PORT",
     .help = "show the report at http://127.0.0.1:PORT, live, until Ctrl-C; "
             "without PORT: at one that is free",
     .high = 65535},
    INVAR_OPTION_LEDGER(&given.ledger),
    {0},
};

static int cmd_ledger_watch(int argc, char **argv)
{
    watch_job w = {.settings = &given};
    size_t bytes = strlen(given.metrics) + 3;
    invar_status status;

    (void)argc;
    if (invar_locate_run(&w.at, argv[0], given.ledger) != INVAR_OK)
        return invar_report_error();
    if (given.interval_s < 0.01)
        given.interval_s = 0.01; // the poll itself takes some time
    status = INVAR_ALLOC(w.names, bytes, "names of metrics");
    if (status == INVAR_OK) {
        (void)snprintf(w.names, bytes, ",%s,", given.metrics);
        status = given.port == NO_PAGE ? follow_run(&w, false) : follow_in_browser(&w);
    }
    invar_free(w.names);
    invar_located_close(&w.at);
    if (status == INVAR_OK)
        invar_print_next(stdout, "ledger show", argv[0], given.ledger, NULL);
    return invar_exit(status);
}

const invar_cli_command invar_cmd_ledger_watch = {
    .name = "watch",
    .summary = "follow a run live, step by step",
    .run = cmd_ledger_watch,
    .about =
        "Follows a running run: prints its last ten steps, then a line for every new step, and\n"
        "ends with the run. With --serve a browser shows the report, which brings itself up to\n"
        "date, until Ctrl-C: a run that is resumed goes on. Only this machine reaches it.\n"
        "\n"
        "Exit codes:\n"
        "  0    the run has ended, also by a failure, or step --until-step is done\n"
        "  2    the run was killed\n",
    .options = options,
    .words = "RUN",
    .max_words = 1,
    .arguments = "RUN [--interval S] [--until-step N] [--serve [PORT]] [--option value ...]"};
