/*
 * trace.c - records the phases of a run for chrome://tracing, ui.perfetto.dev and the ledger.
 *
 * Every event after the first begins with its comma, so the file up to any line end is JSON once a
 * bracket is appended. A write error ends the file, not the run: the first failure is kept for
 * invar_trace_check. Ledger timings have one row per phase name and step; rows of repeated phases
 * add up.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json/text.h"
#include "base/process/process.h"
#include "engine/record/trace_event.h"

#include "base/invar_banned.h"

/* First event; it names the program. */
#define BEGINNING                                                                                  \
    "[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"tid\":0,\"args\":{\"name\":\"invar\"}" \
    "}\n"

/* First bytes of every trace; older versions have another first event. */
#define MARK "[\n{\"name\":\""

typedef struct open_phase {
    const char *name;
    int64_t begin_ns;      /* monotonic clock */
    int64_t begin_unix_ns; /* Unix time, for the ledger */
} open_phase;

struct invar_trace {
    int fd; /* -1 if there is no file, or after a failure */
    int64_t origin_ns, origin_unix_ns;
    int64_t step;
    open_phase stack[INVAR_TRACE_DEPTH];
    int depth;
    const char *tracks[INVAR_TRACE_TRACKS];
    int n_tracks;
    invar_ledger_timing *timings;
    int64_t n_timings, capacity;
    bool timings_read;      /* the caller has read the timings; the next phase starts a new list */
    invar_rank_timer *work; /* owned; NULL if there is one rank */
    invar_op_trace *ops;    /* owned; NULL if no ops are measured */
    void (*range)(const char *name); /* function of the device; NULL if it has none */
    int n_named_ranks;               /* number of ranks whose track was named */
    invar_json_text line;
    invar_error failure;
    char path[INVAR_PATH_SIZE];
};

/* Closes the file after a failure and keeps the first failure. */
static void end_file(invar_trace *trace, invar_status status)
{
    if (status == INVAR_OK)
        return;
    if (trace->failure.status == INVAR_OK)
        invar_error_take(&trace->failure);
    if (trace->fd >= 0)
        close(trace->fd);
    trace->fd = -1;
    invar_error_clear();
}

/* ---- file ------------------------------------------------------------------------------------ */

static invar_status write_bytes(const invar_trace *trace, const char *data, size_t bytes)
{
    char shown[INVAR_PATH_SHOWN_SIZE];

    while (bytes > 0) {
        ssize_t put = write(trace->fd, data, bytes);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0) {
            invar_path_show(shown, trace->path);
            return INVAR_FAIL(INVAR_E_IO, errno, "%s: the trace cannot be written: %s", shown,
                              strerror(errno));
        }
        data += put;
        bytes -= (size_t)put;
    }
    return INVAR_OK;
}

/* Processes of the trace viewer: the phases of the run, and the ranks. */
enum { RUN = 1, RANKS = 2 };

static invar_json_text *begin_event(invar_trace *trace, const char *name, const char *ph,
                                    int process, int track)
{
    invar_json_text_reset(&trace->line);
    invar_trace_event_begin(&trace->line, name, ph, process, track);
    return &trace->line;
}

static void put_line(invar_trace *trace)
{
    if (trace->line.status == INVAR_OK && trace->fd >= 0)
        end_file(trace, write_bytes(trace, trace->line.data, trace->line.bytes));
    end_file(trace, trace->line.status);
}

static void put_event(invar_trace *trace)
{
    invar_trace_event_end(&trace->line);
    put_line(trace);
}

static void put_track_name(invar_trace *trace, const char *what, int process, int track,
                           const char *name)
{
    invar_json_text_reset(&trace->line);
    invar_trace_event_name(&trace->line, what, process, track, name);
    put_line(trace);
}

/* Returns the track of a phase; names the track on its first use. */
static int track_of(invar_trace *trace, const char *phase)
{
    int track = 0;

    while (track < trace->n_tracks && strcmp(trace->tracks[track], phase) != 0)
        track++;
    if (track < trace->n_tracks || track == INVAR_TRACE_TRACKS)
        return track;
    trace->tracks[trace->n_tracks++] = phase;
    put_track_name(trace, "thread_name", RUN, track, phase);
    return track;
}

static void put_phase(invar_trace *trace, const open_phase *phase, int64_t end_ns)
{
    int track = track_of(trace, phase->name);
    invar_json_text *line = begin_event(trace, phase->name, "X", RUN, track);

    invar_trace_event_time(line, "ts", phase->begin_ns - trace->origin_ns);
    invar_trace_event_time(line, "dur", end_ns - phase->begin_ns);
    if (trace->step >= 0) {
        invar_json_text_put_open(line, "args", '{');
        invar_json_text_put_int(line, "step", trace->step);
        invar_json_text_close(line, '}');
    }
    put_event(trace);
}

/* ---- open and close -------------------------------------------------------------------------- */

/*
 * A character device such as /dev/null may be written, since the file is not replaced by renaming.
 */
static invar_status check_file_kind(const char *path)
{
    struct stat info;

    return lstat(path, &info) == 0 && S_ISCHR(info.st_mode)
               ? INVAR_OK
               : invar_path_check_output(path, MARK, 0);
}

invar_status invar_trace_check_path(const char *path, const char *home)
{
    char shown[INVAR_PATH_SHOWN_SIZE];

    INVAR_TRY(check_file_kind(path));
    if (!invar_path_exists(path))
        return invar_path_check_writable_in(path, home);
    if (faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) == 0)
        return INVAR_OK;
    invar_path_show(shown, path);
    return INVAR_FAIL(INVAR_E_IO, errno, "%s: the trace cannot be written: %s", shown,
                      strerror(errno));
}

static invar_status open_trace_file(invar_trace *trace, const char *path)
{
    size_t bytes = strlen(path) + 1;
    char shown[INVAR_PATH_SHOWN_SIZE];

    invar_path_show(shown, path);
    if (bytes > sizeof trace->path)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the path of the trace is too long", shown);
    INVAR_TRY(check_file_kind(path));
    memcpy(trace->path, path, bytes);
    // neither follow a link nor block on a pipe without a reader
    trace->fd = invar_fd_open(
        path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (trace->fd < 0)
        return INVAR_FAIL(INVAR_E_IO, errno, "%s: the trace cannot be made: %s", shown,
                          strerror(errno));
    return write_bytes(trace, BEGINNING, strlen(BEGINNING));
}

invar_status invar_trace_open(invar_trace **out, const char *path)
{
    invar_trace *trace;
    invar_status status = INVAR_OK;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC_ZEROED(trace, 1, "a trace"));
    trace->fd = -1;
    trace->step = -1;
    trace->origin_ns = invar_process_clock_ns(CLOCK_MONOTONIC);
    trace->origin_unix_ns = invar_process_clock_ns(CLOCK_REALTIME);
    if (path && path[0])
        status = open_trace_file(trace, path);
    if (status != INVAR_OK) {
        if (trace->fd >= 0)
            close(trace->fd);
        invar_free(trace);
        return status;
    }
    *out = trace;
    return INVAR_OK;
}

void invar_trace_close(invar_trace *trace)
{
    if (!trace)
        return;
    while (trace->depth > 0) // a failed run may end within a phase
        invar_trace_end(trace);
    if (trace->fd >= 0) {
        end_file(trace, write_bytes(trace, "]\n", 2));
        if (trace->fd >= 0)
            close(trace->fd);
    }
    invar_json_text_release(&trace->line);
    invar_op_trace_free(trace->ops);
    invar_rank_timer_free(trace->work);
    invar_free(trace->timings);
    invar_free(trace);
}

invar_status invar_trace_check(const invar_trace *trace)
{
    if (!trace || trace->failure.status == INVAR_OK)
        return INVAR_OK;
    invar_error_put(&trace->failure);
    return trace->failure.status;
}

void invar_trace_set_rank_timer(invar_trace *trace, invar_rank_timer *timer)
{
    trace->work = timer;
}

invar_status invar_trace_profile(invar_trace *trace, const invar_op_trace_options *options)
{
    invar_op_trace_options with = *options;

    with.origin_ns = trace->origin_unix_ns;
    return invar_op_trace_new(&trace->ops, &with);
}

void invar_trace_range(invar_trace *trace, void (*range)(const char *name))
{
    trace->range = range;
}

/* ---- phases ---------------------------------------------------------------------------------- */

void invar_trace_step(invar_trace *trace, int64_t step)
{
    if (!trace)
        return;
    trace->step = step;
    invar_op_trace_step(trace->ops, step);
}

void invar_trace_begin(invar_trace *trace, const char *phase)
{
    if (!trace)
        return;
    INVAR_CHECK(trace->depth < INVAR_TRACE_DEPTH);
    trace->stack[trace->depth++] = (open_phase){phase, invar_process_clock_ns(CLOCK_MONOTONIC),
                                                invar_process_clock_ns(CLOCK_REALTIME)};
    invar_rank_timer_begin(trace->work, phase);
    invar_op_trace_phase(trace->ops, phase);
    if (trace->range)
        trace->range(phase);
}

/* Adds a phase to the timings: to the row of the same phase, if the step has one. */
static invar_status add_timing(invar_trace *trace, const open_phase *phase, int64_t end_ns)
{
    if (trace->timings_read)
        trace->n_timings = 0;
    trace->timings_read = false;
    for (int64_t i = 0; i < trace->n_timings; i++) {
        if (strcmp(trace->timings[i].phase, phase->name) == 0) {
            trace->timings[i].duration_ns += end_ns - phase->begin_ns;
            return INVAR_OK;
        }
    }
    INVAR_TRY(INVAR_GROW(trace->timings, trace->capacity, trace->n_timings, trace->n_timings + 1,
                         "timings"));
    trace->timings[trace->n_timings++] =
        (invar_ledger_timing){phase->name, phase->begin_unix_ns, end_ns - phase->begin_ns};
    return INVAR_OK;
}

void invar_trace_end(invar_trace *trace)
{
    int64_t end_ns = invar_process_clock_ns(CLOCK_MONOTONIC);
    const open_phase *phase;

    if (!trace)
        return;
    INVAR_CHECK(trace->depth > 0);
    phase = &trace->stack[--trace->depth];
    invar_rank_timer_end(trace->work);
    invar_op_trace_phase(trace->ops, trace->depth ? trace->stack[trace->depth - 1].name : NULL);
    if (trace->range)
        trace->range(NULL);
    if (trace->fd >= 0)
        put_phase(trace, phase, end_ns);
    end_file(trace, add_timing(trace, phase, end_ns));
}

void invar_trace_add_phase(invar_trace *trace, const char *phase, int64_t begin_ns, int64_t end_ns)
{
    if (trace && trace->fd >= 0)
        put_phase(trace, &(open_phase){.name = phase, .begin_ns = begin_ns}, end_ns);
}

int64_t invar_trace_clock(void)
{
    return invar_process_clock_ns(CLOCK_MONOTONIC);
}

const invar_ledger_timing *invar_trace_timings(invar_trace *trace, size_t *count_out)
{
    *count_out = 0;
    if (!trace)
        return NULL;
    *count_out = trace->timings_read ? 0 : (size_t)trace->n_timings;
    trace->timings_read = true;
    return trace->timings;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Names the track of a rank before its first interval. Ranks come in ascending order. */
static void name_rank(invar_trace *trace, const invar_rank_interval *slice)
{
    char name[160];

    if (slice->rank < trace->n_named_ranks)
        return;
    if (trace->n_named_ranks == 0)
        put_track_name(trace, "process_name", RANKS, 0, "ranks");
    (void)snprintf(name, sizeof name, "rank %d on %s", slice->rank, slice->host);
    put_track_name(trace, "thread_name", RANKS, slice->rank, name);
    trace->n_named_ranks = slice->rank + 1;
}

/* Writes an interval by Unix time, since ranks on other hosts have no other common clock. */
static void put_slice(invar_trace *trace, const invar_rank_interval *slice)
{
    int64_t from = slice->start_ns - trace->origin_unix_ns, cut = from < 0 ? -from : 0;
    char name[INVAR_COMM_PHASE_SIZE + 16];
    invar_json_text *line;

    if (cut > slice->duration_ns) // before the trace of rank 0 began
        return;
    (void)snprintf(name, sizeof name, slice->transfer[0] ? "wait: %s" : "%s",
                   slice->transfer[0] ? slice->transfer : slice->phase);
    name_rank(trace, slice);
    line = begin_event(trace, name, "X", RANKS, slice->rank);
    invar_trace_event_time(line, "ts", from + cut);
    invar_trace_event_time(line, "dur", slice->duration_ns - cut);
    invar_json_text_put_open(line, "args", '{');
    invar_json_text_put_int(line, "step", trace->step);
    if (slice->transfer[0]) {
        invar_json_text_put_int(line, "sent", slice->sent);
        invar_json_text_put_int(line, "received", slice->received);
    }
    invar_json_text_close(line, '}');
    put_event(trace);
}

invar_status invar_trace_collect_rank_times(const invar_ledger_rank_time **out, size_t *count_out,
                                            invar_trace *trace)
{
    invar_rank_times all;

    *out = NULL;
    *count_out = 0;
    if (!trace)
        return INVAR_OK;
    INVAR_TRY(invar_rank_timer_collect(&all, trace->work));
    for (size_t i = 0; i < all.n_intervals && trace->fd >= 0; i++)
        put_slice(trace, &all.intervals[i]);
    *out = all.rows;
    *count_out = all.n_rows;
    return INVAR_OK;
}

invar_status invar_trace_collect_op_times(const invar_ledger_op_time **out, size_t *count_out,
                                          invar_trace *trace)
{
    invar_op_trace_result all;

    *out = NULL;
    *count_out = 0;
    if (!trace)
        return INVAR_OK;
    INVAR_TRY(invar_op_trace_collect(&all, trace->ops));
    end_file(trace, all.local_status);
    if (trace->fd >= 0 && all.bytes)
        end_file(trace, write_bytes(trace, all.text, all.bytes));
    *out = all.rows;
    *count_out = all.n_rows;
    return INVAR_OK;
}
