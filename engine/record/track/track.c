/*
 * track.c - a run, shown elsewhere while it trains.
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

#define PROTOCOL 1 /* of sinks */

/* Keys, in messages. */
#define EVENTS_KEY "tensorboard-dir"
#define PORT_KEY "prometheus-port"
#define FILE_KEY "prometheus-file"

#define LOG "sink.log" /* in the run's folder */

#define WAIT_MS 100      /* for a sink, before somebody looks whether they still want to */
#define PATIENCE_MS 1000 /* of people */

struct invar_track {
    invar_track_run run;
    int64_t told;                     /* the last step */
    invar_tensorboard_writer *events; /* of TensorBoard; NULL: none, or no more */
    invar_metrics_server *scrape;     /* of Prometheus; likewise */
    const char *file;                 /* the same in a file; "": none */
    invar_lock_file hold;             /* of that file */
    invar_gauges gauges;              /* of both */
    invar_sink *sink;                 /* NULL: none */
    bool sink_gone, log_over;         /* and people know */
    invar_json_text line;             /* for it */
    int64_t line_step;                /* of the line that is being made, */
    bool line_begun;                  /* if there is one */
};

static void track_print(const invar_track *t, const char *line)
{
    if (t->run.say)
        t->run.say(t->run.payload, line);
}

/* Who cannot be told is left alone from now on. */
static void give_up(const invar_track *t, const char *key)
{
    char line[INVAR_ERROR_MESSAGE_SIZE + 128];

    (void)snprintf(line, sizeof line, "%s: %s; the run goes on without", key,
                   invar_error_last()->message);
    invar_error_clear();
    track_print(t, line);
}

/* ---- TensorBoard ----------------------------------------------------------------------------- */

static const char *events_folder(const invar_recipe *recipe)
{
    return invar_recipe_string(recipe, INVAR_KEY_TENSORBOARD_DIR);
}

static invar_status open_events(invar_track *t)
{
    const char *folder = events_folder(t->run.recipe);

    if (!folder[0])
        return INVAR_OK;
    return invar_error_of_key(invar_tensorboard_writer_open(&t->events, folder, t->run.ledger,
                                                            t->run.run, t->run.last_step),
                              EVENTS_KEY);
}

static void tell_events(invar_track *t, int64_t step)
{
    if (!t->events || invar_tensorboard_writer_add(t->events, step) == INVAR_OK)
        return;
    give_up(t, EVENTS_KEY);
    invar_tensorboard_writer_close(t->events);
    t->events = NULL;
}

/* ---- Prometheus ------------------------------------------------------------------------------ */

static int64_t port_of(const invar_recipe *recipe)
{
    return invar_recipe_int(recipe, INVAR_KEY_PROMETHEUS_PORT);
}

static const char *prometheus_file(const invar_recipe *recipe)
{
    return invar_recipe_string(recipe, INVAR_KEY_PROMETHEUS_FILE);
}

/* A file of somebody else is not replaced, nor one that another run writes. */
static invar_status check_file(const char *path, const char *run_folder)
{
    INVAR_TRY(invar_path_check_writable_in(path, run_folder));
    INVAR_TRY(invar_path_check_output(path, INVAR_PROMETHEUS_MARK, 0));
    return invar_lock_file_check(path);
}

/* The port is free, and there is a server to listen at it. */
static invar_status check_port(int64_t port)
{
    invar_metrics_server *scrape;

    INVAR_TRY(invar_metrics_server_open(&scrape, port));
    invar_metrics_server_close(scrape);
    return INVAR_OK;
}

/* What both show now. */
static invar_status show_gauges(invar_track *t)
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
    if (port_of(t->run.recipe))
        INVAR_TRY(invar_error_of_key(invar_metrics_server_open(&t->scrape, port_of(t->run.recipe)),
                                     PORT_KEY));
    if (t->file[0])
        INVAR_TRY(invar_error_of_key(invar_lock_file_take(&t->hold, t->file), FILE_KEY));
    return t->scrape || t->file[0]
               ? invar_error_of_key(show_gauges(t), t->file[0] ? FILE_KEY : PORT_KEY)
               : INVAR_OK;
}

static void tell_gauges(invar_track *t)
{
    if ((!t->scrape && !t->file[0]) || show_gauges(t) == INVAR_OK)
        return;
    give_up(t, t->file[0] ? FILE_KEY : PORT_KEY);
    t->file = "";
}

/* ---- a sink ---------------------------------------------------------------------------------- */

static void begin_line(invar_track *t, const char *event)
{
    invar_json_text_reset(&t->line);
    invar_json_text_open(&t->line, '{');
    invar_json_text_key(&t->line, "event");
    invar_json_text_string(&t->line, event, strlen(event));
}

static void put_text(invar_track *t, const char *key, const char *text)
{
    invar_json_text_key(&t->line, key);
    invar_json_text_string(&t->line, text, strlen(text));
}

static void put_int(invar_track *t, const char *key, int64_t value)
{
    invar_json_text_key(&t->line, key);
    invar_json_text_int(&t->line, value);
}

/* Once, as soon as it is known, as all about a sink. */
static void tell_log(invar_track *t, int over)
{
    char line[INVAR_PATH_SIZE + 128];

    if (!over || t->log_over)
        return;
    t->log_over = true;
    (void)snprintf(line, sizeof line, "sink: %s: %.1000s/sink.log; what it prints now is dropped",
                   over == INVAR_SINK_LOG_FULL ? "its log has 16 MiB" : strerror(over),
                   t->run.folder);
    track_print(t, line);
}

/* Lines behind that are counted as dropped. */
static void tell_gone(invar_track *t)
{
    char line[INVAR_PATH_SIZE + 128];

    if (t->sink_gone || !invar_sink_gone(t->sink))
        return;
    t->sink_gone = true;
    (void)snprintf(line, sizeof line,
                   "sink: it reads no more; the run goes on without; what it printed is in "
                   "%.1000s/sink.log",
                   t->run.folder);
    track_print(t, line);
}

static void end_line(invar_track *t)
{
    invar_json_text_append(&t->line, "}\n", 2);
    if (t->line.status == INVAR_OK) {
        invar_sink_put(t->sink, t->line.data, t->line.bytes);
        tell_gone(t);
        tell_log(t, invar_sink_log_ended(t->sink));
        return;
    }
    give_up(t, "sink, a line of it"); // for want of memory
}

/* JSON has no number for what is not finite: it is text then, as in exports. */
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

static invar_status tell_sink(invar_track *t, const invar_export_scalar *scalar)
{
    if (!t->line_begun || scalar->step != t->line_step) {
        end_step(t);
        begin_line(t, "step");
        put_int(t, "step", scalar->step);
        invar_json_text_key(&t->line, "time");
        invar_json_text_f64(&t->line, (double)scalar->ns / 1e9);
        invar_json_text_key(&t->line, "metrics");
        invar_json_text_open(&t->line, '{');
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

/* As the ledger has it: what is secret there is secret here. */
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

    invar_json_text_key(&t->line, "recipe");
    invar_json_text_open(&t->line, '{');
    INVAR_TRY(invar_ledger_select(t->run.ledger, &request));
    invar_json_text_close(&t->line, '}');
    return INVAR_OK;
}

static const char *sink_command(const invar_recipe *recipe)
{
    return invar_recipe_string(recipe, INVAR_KEY_SINK);
}

static invar_status check_sink(const char *command, const char *folder)
{
    char log[INVAR_PATH_SIZE];

    INVAR_TRY(invar_path_join(log, sizeof log, folder, LOG));
    return invar_sink_check(command, log);
}

static invar_status open_sink(invar_track *t)
{
    const char *command = sink_command(t->run.recipe);
    char log[INVAR_PATH_SIZE];

    if (!command[0])
        return INVAR_OK;
    INVAR_TRY(invar_path_join(log, sizeof log, t->run.folder, LOG));
    INVAR_TRY(invar_sink_open(&t->sink, command, log));
    begin_line(t, "begin");
    put_int(t, "protocol", PROTOCOL);
    put_text(t, "run", t->run.uuid);
    put_text(t, "name", t->run.name);
    put_text(t, "folder", t->run.folder);
    put_int(t, "after", t->run.last_step < 0 ? -1 : t->run.last_step);
    INVAR_TRY(put_recipe(t));
    end_line(t);
    return INVAR_OK;
}

/* Lines that were lost are told, and so is a sink that was not content. */
static void tell_result(const invar_track *t, const invar_sink_result *r, bool stopped)
{
    char line[INVAR_PATH_SIZE + 256];
    int used = 0;

    if (r->dropped)
        used = snprintf(line, sizeof line,
                        "sink: %" PRId64 " of %" PRId64 " lines were dropped: it %s", r->dropped,
                        r->lines, t->sink_gone ? "reads no more" : "was too slow");
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
    track_print(t, line);
}

static int signal_of(const invar_track *t)
{
    return t->run.stop ? __atomic_load_n(t->run.stop, __ATOMIC_ACQUIRE) : 0;
}

/* In pieces: people who wait are told, and may stop it, which is returned. */
static bool wait_for_sink(const invar_track *t)
{
    const int64_t seconds = invar_recipe_int(t->run.recipe, INVAR_KEY_SINK_TIMEOUT);
    const int64_t begin = invar_process_clock_ms(), end = begin + 1000 * seconds;
    const int before = signal_of(t);
    char line[128];
    bool told = false;

    for (int64_t now = begin; now < end; now = invar_process_clock_ms()) {
        if (invar_sink_finish(t->sink, end - now < WAIT_MS ? end - now : WAIT_MS))
            return false;
        if (signal_of(t) != before)
            return true;
        if (!told && now - begin >= PATIENCE_MS) {
            (void)snprintf(line, sizeof line,
                           "sink: waiting up to %" PRId64 " s for it to end (sink-timeout); Ctrl-C "
                           "ends it",
                           seconds);
            track_print(t, line);
            told = true;
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
    put_text(t, "status", how);
    put_int(t, "step", t->told);
    end_line(t);
    stopped = wait_for_sink(t);
    invar_sink_close(&result, t->sink);
    tell_log(t, result.log_ended);
    tell_result(t, &result, stopped);
    t->sink = NULL;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static invar_status export_scalar_take(void *payload, const invar_export_scalar *scalar)
{
    invar_track *t = payload;

    if (t->scrape || t->file[0])
        INVAR_TRY(invar_gauges_take(&t->gauges, scalar));
    return t->sink ? tell_sink(t, scalar) : INVAR_OK;
}

/* Those who want the newest numbers. A step of which not all can be read is told to no sink. */
static void tell_numbers(invar_track *t, int64_t step)
{
    const invar_export_range range = {.gauges = true, .after = t->told, .upto = step};

    if (!t->sink && !t->scrape && !t->file[0])
        return;
    if (invar_export_scalars(t->run.ledger, t->run.run, &range, export_scalar_take, t) !=
        INVAR_OK) {
        give_up(t, "numbers of the ledger");
        t->line_begun = false;
    }
    if (t->sink)
        end_step(t);
    tell_gauges(t);
}

invar_status invar_track_check(const invar_track_plan *plan)
{
    const char *events = events_folder(plan->recipe), *file = prometheus_file(plan->recipe);
    const char *sink = sink_command(plan->recipe);

    if (events[0])
        INVAR_TRY(invar_error_of_key(
            invar_tensorboard_writer_check(events, plan->name, plan->begins), EVENTS_KEY));
    if (file[0])
        INVAR_TRY(invar_error_of_key(check_file(file, plan->folder), FILE_KEY));
    if (sink[0])
        INVAR_TRY(check_sink(sink, plan->folder));
    return port_of(plan->recipe) ? invar_error_of_key(check_port(port_of(plan->recipe)), PORT_KEY)
                                 : INVAR_OK;
}

static bool recipe_listens(const invar_recipe *recipe)
{
    return events_folder(recipe)[0] || port_of(recipe) || prometheus_file(recipe)[0] ||
           sink_command(recipe)[0];
}

invar_status invar_track_open(invar_track **out, const invar_track_run *run)
{
    invar_track *t;
    invar_status status;

    *out = NULL;
    if (!recipe_listens(run->recipe))
        return INVAR_OK;
    if (prometheus_file(run->recipe)[0])
        INVAR_TRY(
            invar_error_of_key(check_file(prometheus_file(run->recipe), run->folder), FILE_KEY));
    INVAR_TRY(invar_alloc((void **)&t, 1, sizeof *t, "who is told about a run"));
    *t = (invar_track){.run = *run, .told = run->last_step, .file = prometheus_file(run->recipe)};
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
    if (!t || step <= t->told)
        return;
    tell_events(t, step);
    tell_numbers(t, step);
    t->told = step;
}

void invar_track_close(invar_track *t, const char *how)
{
    if (!t)
        return;
    close_sink(t, how);
    tell_events(t, INT64_MAX); // a run that went back may end before steps that the ledger has
    invar_tensorboard_writer_close(t->events);
    invar_metrics_server_close(t->scrape);
    invar_lock_file_release(&t->hold);
    invar_gauges_release(&t->gauges);
    invar_json_text_release(&t->line);
    invar_free(t);
}
