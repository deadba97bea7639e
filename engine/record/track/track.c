/*
 * track.c - reports a run while it trains: TensorBoard, Prometheus, a program of the user.
 *
 * Each tracker reads new steps from the ledger. TensorBoard reads them itself; Prometheus and the
 * sink share one export: a scalar updates the gauges and is added to the line of its step. A
 * failure is printed; it switches off TensorBoard or the Prometheus file, whereas the Prometheus
 * server and the sink only miss an update. `run.last_step` only matters at the beginning;
 * `reported` is the last step that all trackers have.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/track/track.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json/text.h"
#include "base/number.h"
#include "base/process/process.h"
#include "engine/config/config.h"
#include "engine/record/track/gauges.h"
#include "engine/record/track/lock_file.h"
#include "engine/record/track/sink.h"
#include "engine/record/track/sink_log.h"
#include "engine/sample/serve/metrics/metrics_server.h"
#include "engine/sample/serve/metrics/prometheus.h"
#include "ledger/view/export/export.h"

#include "base/invar_banned.h"

#define PROTOCOL 1 /* version of the sink's line format */

/* Keys, for error messages. */
#define EVENTS_KEY "tensorboard-dir"
#define PORT_KEY "prometheus-port"
#define FILE_KEY "prometheus-file"

#define LOG_NAME "sink.log" /* log of the sink, in the run's folder */

#define WAIT_MS 100      /* ms of a wait for the sink, between two checks of run.stop */
#define PATIENCE_MS 1000 /* ms before a line explains why the run does not end */

struct invar_track {
    invar_track_run run;
    int64_t reported;                 /* last reported step */
    invar_tensorboard_writer *events; /* TensorBoard; NULL if not used, or after a failure */
    invar_metrics_server *scrape;     /* Prometheus server; NULL if not used */
    const char *file;                 /* Prometheus file; empty if not used, or after a failure */
    invar_lock_file file_lock;        /* lock of `file` */
    invar_gauges gauges;              /* metrics for server and file */
    invar_sink *sink;                 /* NULL if not used */
    /* the user was informed that the sink reads no more, or that its log has ended */
    bool sink_gone_reported, log_end_reported;
    invar_json_text line; /* line for the sink */
    int64_t line_step;    /* step of the unfinished line; valid if line_begun */
    bool line_begun;      /* `line` has an unfinished step */
};

static void print_line(const invar_track *t, const char *line)
{
    if (t->run.say)
        t->run.say(t->run.payload, line);
}

/* Prints the last error of a tracker and clears it. */
static void print_failure(const invar_track *t, const char *key)
{
    char line[INVAR_ERROR_MESSAGE_SIZE + 128];

    (void)snprintf(line, sizeof line, "%s: %s; the run goes on without", key,
                   invar_error_last()->message);
    invar_error_clear();
    print_line(t, line);
}

/* ---- TensorBoard ----------------------------------------------------------------------------- */

static invar_status open_events(invar_track *t)
{
    const char *folder = t->run.config->tensorboard_dir;

    if (!folder[0])
        return INVAR_OK;
    return invar_error_of_key(invar_tensorboard_writer_open(&t->events, folder, t->run.ledger,
                                                            t->run.run, t->run.last_step),
                              EVENTS_KEY);
}

static void report_to_tensorboard(invar_track *t, int64_t step)
{
    if (!t->events || invar_tensorboard_writer_add(t->events, step) == INVAR_OK)
        return;
    print_failure(t, EVENTS_KEY);
    invar_tensorboard_writer_close(t->events);
    t->events = NULL;
}

/* ---- Prometheus ------------------------------------------------------------------------------ */

/*
 * Checks that the file can be written, is not another program's and is not locked by another run.
 */
static invar_status check_prometheus_file(const char *path, const char *run_folder)
{
    INVAR_TRY(invar_path_check_writable_in(path, run_folder));
    INVAR_TRY(invar_path_check_output(path, INVAR_PROMETHEUS_MARK, 0));
    return invar_lock_file_check(path);
}

/* Checks that the server is available and the port is free. */
static invar_status check_port(int64_t port)
{
    invar_metrics_server *scrape;

    INVAR_TRY(invar_metrics_server_open(&scrape, port));
    invar_metrics_server_close(scrape);
    return INVAR_OK;
}

/* Updates the server and the file. */
static invar_status publish_gauges(invar_track *t)
{
    invar_json_text text = {0};
    invar_status status;

    invar_gauges_write(&text, &t->gauges, t->run.name, t->run.uuid);
    status = text.status;
    if (status == INVAR_OK && t->scrape)
        status = invar_metrics_server_set(t->scrape, text.data, text.bytes);
    if (status == INVAR_OK && t->file[0])
        status = invar_file_write(t->file, text.data, text.bytes);
    invar_json_text_release(&text);
    return status;
}

static invar_status open_gauges(invar_track *t)
{
    if (t->run.config->prometheus_port)
        INVAR_TRY(invar_error_of_key(
            invar_metrics_server_open(&t->scrape, t->run.config->prometheus_port), PORT_KEY));
    if (t->file[0])
        INVAR_TRY(invar_error_of_key(invar_lock_file_acquire(&t->file_lock, t->file), FILE_KEY));
    return t->scrape || t->file[0]
               ? invar_error_of_key(publish_gauges(t), t->file[0] ? FILE_KEY : PORT_KEY)
               : INVAR_OK;
}

static void report_to_prometheus(invar_track *t)
{
    if ((!t->scrape && !t->file[0]) || publish_gauges(t) == INVAR_OK)
        return;
    print_failure(t, t->file[0] ? FILE_KEY : PORT_KEY);
    t->file = "";
}

/* ---- sink ------------------------------------------------------------------------------------ */

static void begin_line(invar_track *t, const char *event)
{
    invar_json_text_reset(&t->line);
    invar_json_text_open(&t->line, '{');
    invar_json_text_put_string(&t->line, "event", event);
}

/* Prints once that the sink's log has ended. */
static void report_log_end(invar_track *t, int over)
{
    char line[INVAR_PATH_SIZE + 128];

    if (!over || t->log_end_reported)
        return;
    t->log_end_reported = true;
    (void)snprintf(line, sizeof line, "sink: %s: %.1000s/sink.log; what it prints now is dropped",
                   over == INVAR_SINK_LOG_FULL ? "its log has 16 MiB" : strerror(over),
                   t->run.folder);
    print_line(t, line);
}

/* Prints once that the sink reads no more. Its further lines are counted as dropped. */
static void report_sink_gone(invar_track *t)
{
    char line[INVAR_PATH_SIZE + 128];

    if (t->sink_gone_reported || !invar_sink_is_closed(t->sink))
        return;
    t->sink_gone_reported = true;
    (void)snprintf(line, sizeof line,
                   "sink: it reads no more; the run goes on without; what it printed is in "
                   "%.1000s/sink.log",
                   t->run.folder);
    print_line(t, line);
}

static void end_line(invar_track *t)
{
    invar_json_text_append(&t->line, "}\n", 2);
    if (t->line.status == INVAR_OK) {
        invar_sink_put(t->sink, t->line.data, t->line.bytes);
        report_sink_gone(t);
        report_log_end(t, invar_sink_log_ended(t->sink));
        return;
    }
    print_failure(t, "sink, a line of it"); // out of memory
}

/*
 * Writes a number; one that is not finite becomes text, as in exports, since JSON has no such
 * numbers.
 */
static invar_status put_value(invar_json_text *line, double value)
{
    char text[INVAR_NUMBER_SIZE];

    if (isfinite(value)) {
        invar_json_text_f64(line, value);
        return INVAR_OK;
    }
    INVAR_TRY(invar_number_format(text, value));
    invar_json_text_string(line, text, strlen(text));
    return INVAR_OK;
}

static void end_step(invar_track *t)
{
    if (!t->line_begun)
        return;
    invar_json_text_close(&t->line, '}');
    end_line(t);
    t->line_begun = false;
}

static invar_status add_to_sink_line(invar_track *t, const invar_export_scalar *scalar)
{
    if (!t->line_begun || scalar->step != t->line_step) {
        end_step(t);
        begin_line(t, "step");
        invar_json_text_put_int(&t->line, "step", scalar->step);
        invar_json_text_put_f64(&t->line, "time", (double)scalar->ns / 1e9);
        invar_json_text_put_open(&t->line, "metrics", '{');
        t->line_step = scalar->step;
        t->line_begun = true;
    }
    invar_json_text_key(&t->line, scalar->name);
    return put_value(&t->line, scalar->value);
}

static invar_status take_key(void *payload, const char *const *columns,
                             const invar_ledger_value *values, int count)
{
    invar_track *t = payload;

    (void)columns;
    (void)count;
    if (!values)
        return INVAR_OK;
    invar_json_text_key(&t->line, values[0].data);
    invar_json_text_string(&t->line, values[1].data, values[1].bytes);
    return INVAR_OK;
}

/* Writes the recipe as the ledger has it: values that are hidden there are hidden here. */
static invar_status put_recipe(invar_track *t)
{
    const invar_ledger_argument run = {"run",
                                       {.type = INVAR_LEDGER_TYPE_INT, .integer = t->run.run}};
    const invar_ledger_select_request request = {
        .sql = "SELECT key, value FROM identity WHERE run = :run UNION ALL SELECT key, value FROM"
               " fact WHERE run = :run AND scope = 'free' AND seg = (SELECT max(seg) FROM segment"
               " WHERE run = :run) ORDER BY 1",
        .arguments = &run,
        .n_arguments = 1,
        .row = take_key,
        .payload = t};

    invar_json_text_put_open(&t->line, "recipe", '{');
    INVAR_TRY(invar_ledger_select(t->run.ledger, &request));
    invar_json_text_close(&t->line, '}');
    return INVAR_OK;
}

static invar_status check_sink(const char *command, const char *folder)
{
    char log[INVAR_PATH_SIZE];

    INVAR_TRY(invar_path_join(log, sizeof log, folder, LOG_NAME));
    return invar_sink_check(command, log);
}

static invar_status open_sink(invar_track *t)
{
    const char *command = t->run.config->sink;
    char log[INVAR_PATH_SIZE];

    if (!command[0])
        return INVAR_OK;
    INVAR_TRY(invar_path_join(log, sizeof log, t->run.folder, LOG_NAME));
    INVAR_TRY(invar_sink_open(&t->sink, command, log));
    begin_line(t, "begin");
    invar_json_text_put_int(&t->line, "protocol", PROTOCOL);
    invar_json_text_put_string(&t->line, "run", t->run.uuid);
    invar_json_text_put_string(&t->line, "name", t->run.name);
    invar_json_text_put_string(&t->line, "folder", t->run.folder);
    invar_json_text_put_int(&t->line, "after", t->run.last_step < 0 ? -1 : t->run.last_step);
    INVAR_TRY(put_recipe(t));
    end_line(t);
    return INVAR_OK;
}

/* Prints how many lines were dropped and whether the sink failed. */
static void report_sink_result(const invar_track *t, const invar_sink_result *r, bool stopped)
{
    char line[INVAR_PATH_SIZE + 256];
    int used = 0;

    if (r->dropped)
        used = snprintf(line, sizeof line,
                        "sink: %" PRId64 " of %" PRId64 " lines were dropped: it %s", r->dropped,
                        r->lines, t->sink_gone_reported ? "reads no more" : "was too slow");
    if (r->killed)
        used += snprintf(line + used, sizeof line - (size_t)used,
                         "%sit had not ended %s, and was killed", used ? "; " : "sink: ",
                         stopped ? "when the wait for it was stopped" : "after sink-timeout");
    else if (r->code)
        used += snprintf(line + used, sizeof line - (size_t)used, "%sit ended with %s %d",
                         used ? "; " : "sink: ", r->code < 0 ? "signal" : "exit code",
                         r->code < 0 ? -r->code : r->code);
    if (!used)
        return;
    (void)snprintf(line + used, sizeof line - (size_t)used, "; see %.1000s/sink.log",
                   t->run.folder);
    print_line(t, line);
}

static int pending_signal(const invar_track *t)
{
    return t->run.stop ? __atomic_load_n(t->run.stop, __ATOMIC_ACQUIRE) : 0;
}

/*
 * Waits for the sink to end, in short waits, and informs the user. Returns true if a signal stopped
 * the wait.
 */
static bool wait_for_sink(const invar_track *t)
{
    const int64_t seconds = t->run.config->sink_timeout;
    const int64_t begin = invar_process_clock_ms(), end = begin + 1000 * seconds;
    const int before = pending_signal(t);
    char line[128];
    bool reported = false;

    for (int64_t now = begin; now < end; now = invar_process_clock_ms()) {
        if (invar_sink_finish(t->sink, end - now < WAIT_MS ? end - now : WAIT_MS))
            return false;
        if (pending_signal(t) != before)
            return true;
        if (!reported && now - begin >= PATIENCE_MS) {
            (void)snprintf(line, sizeof line,
                           "sink: waiting up to %" PRId64 " s for it to end (sink-timeout); Ctrl-C "
                           "ends it",
                           seconds);
            print_line(t, line);
            reported = true;
        }
    }
    return false;
}

static void close_sink(invar_track *t, const char *how)
{
    invar_sink_result result;
    bool stopped;

    if (!t->sink)
        return;
    begin_line(t, "end");
    invar_json_text_put_string(&t->line, "status", how);
    invar_json_text_put_int(&t->line, "step", t->reported);
    end_line(t);
    stopped = wait_for_sink(t);
    invar_sink_close(&result, t->sink);
    report_log_end(t, result.log_ended);
    report_sink_result(t, &result, stopped);
    t->sink = NULL;
}

/* ---- all trackers ---------------------------------------------------------------------------- */

static invar_status on_scalar(void *payload, const invar_export_scalar *scalar)
{
    invar_track *t = payload;

    if (t->scrape || t->file[0])
        INVAR_TRY(invar_gauges_set(&t->gauges, scalar));
    return t->sink ? add_to_sink_line(t, scalar) : INVAR_OK;
}

/*
 * Exports new values to the gauges and the sink. If some of a step cannot be read, the sink does
 * not get the step.
 */
static void export_values(invar_track *t, int64_t step)
{
    const invar_export_range range = {.gauges = true, .after = t->reported, .upto = step};

    if (!t->sink && !t->scrape && !t->file[0])
        return;
    if (invar_export_scalars(t->run.ledger, t->run.run, &range, on_scalar, t) != INVAR_OK) {
        print_failure(t, "numbers of the ledger");
        t->line_begun = false;
    }
    if (t->sink)
        end_step(t);
    report_to_prometheus(t);
}

invar_status invar_track_check(const invar_track_plan *plan)
{
    const char *events = plan->config->tensorboard_dir, *file = plan->config->prometheus_file;
    const char *sink = plan->config->sink;

    if (events[0])
        INVAR_TRY(invar_error_of_key(
            invar_tensorboard_writer_check(events, plan->name, plan->begins), EVENTS_KEY));
    if (file[0])
        INVAR_TRY(invar_error_of_key(check_prometheus_file(file, plan->folder), FILE_KEY));
    if (sink[0])
        INVAR_TRY(check_sink(sink, plan->folder));
    return plan->config->prometheus_port
               ? invar_error_of_key(check_port(plan->config->prometheus_port), PORT_KEY)
               : INVAR_OK;
}

static bool has_trackers(const invar_config *config)
{
    return config->tensorboard_dir[0] || config->prometheus_port || config->prometheus_file[0] ||
           config->sink[0];
}

invar_status invar_track_open(invar_track **out, const invar_track_run *run)
{
    invar_track *t;
    invar_status status;

    *out = NULL;
    if (!has_trackers(run->config))
        return INVAR_OK;
    if (run->config->prometheus_file[0])
        INVAR_TRY(invar_error_of_key(
            check_prometheus_file(run->config->prometheus_file, run->folder), FILE_KEY));
    INVAR_TRY(INVAR_ALLOC(t, 1, "who is told about a run"));
    *t = (invar_track){
        .run = *run, .reported = run->last_step, .file = run->config->prometheus_file};
    status = open_events(t);
    if (status == INVAR_OK)
        status = open_gauges(t);
    if (status == INVAR_OK)
        status = open_sink(t);
    if (status != INVAR_OK) {
        invar_error first;

        invar_error_take(&first);
        invar_track_close(t, "failed");
        invar_error_put(&first);
        return status;
    }
    *out = t;
    return INVAR_OK;
}

void invar_track_report_steps(invar_track *t, int64_t step)
{
    if (!t || step <= t->reported)
        return;
    report_to_tensorboard(t, step);
    export_values(t, step);
    t->reported = step;
}

void invar_track_close(invar_track *t, const char *how)
{
    if (!t)
        return;
    close_sink(t, how);
    report_to_tensorboard(
        t, INT64_MAX); // a run may end before the last step of the ledger if it was rolled back
    invar_tensorboard_writer_close(t->events);
    invar_metrics_server_close(t->scrape);
    invar_lock_file_release(&t->file_lock);
    invar_gauges_release(&t->gauges);
    invar_json_text_release(&t->line);
    invar_free(t);
}
