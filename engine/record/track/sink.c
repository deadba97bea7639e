/*
 * sink.c - a program of the user that is told about a run.
 *
 * The pipe is written without waiting, at each line; what it does not take waits in the queue. A
 * line that was begun is always finished before the next one, so a sink never sees half of one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/track/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/process/process.h"
#include "engine/ext/plugin_command.h"
#include "engine/ext/subprocess.h"
#include "engine/record/track/sink_log.h"

#include "base/invar_banned.h"

#define NAME "sink"
#define LOOK_MS 20 /* between two looks whether it has ended */

struct invar_sink {
    invar_subprocess child;
    invar_sink_log *log;
    int in; /* our end of its input; -1: nobody reads it */
    int64_t lines, dropped;
    size_t used;
    char queue[INVAR_SINK_QUEUE]; /* (used) */
};

/* ---- writing --------------------------------------------------------------------------------- */

static int64_t count_lines(const char *text, size_t bytes)
{
    int64_t lines = 0;

    for (size_t i = 0; i < bytes; i++)
        lines += text[i] == '\n';
    return lines;
}

static void close_input(invar_sink *s)
{
    if (s->in >= 0)
        close(s->in);
    s->in = -1;
    s->dropped += count_lines(s->queue, s->used);
    s->used = 0;
}

/* What the pipe takes now. */
static void sink_pump(invar_sink *s)
{
    while (s->used > 0 && s->in >= 0) {
        ssize_t put = invar_subprocess_write(s->in, s->queue, s->used);

        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (put < 0) {
            close_input(s);
            return;
        }
        s->used -= (size_t)put;
        memmove(s->queue, s->queue + put, s->used);
    }
}

void invar_sink_put(invar_sink *s, const char *line, size_t bytes)
{
    s->lines++;
    if (s->in >= 0 && bytes > sizeof s->queue - s->used)
        sink_pump(s);
    if (s->in < 0 || bytes > sizeof s->queue - s->used) {
        s->dropped++;
        return;
    }
    memcpy(s->queue + s->used, line, bytes);
    s->used += bytes;
    sink_pump(s);
}

bool invar_sink_gone(const invar_sink *s)
{
    return s->in < 0;
}

int invar_sink_log_ended(const invar_sink *s)
{
    return invar_sink_log_over(s->log);
}

/* ---- life ------------------------------------------------------------------------------------ */

/* The child's ends of its streams are closed here whatever becomes of it. */
static invar_status sink_start(invar_sink *s, char *const *words, const char *log)
{
    int ends[2], out, rc;
    invar_status status;

    INVAR_TRY(invar_sink_log_open(&s->log, &out, log));
    rc = invar_process_pipe(ends);
    if (rc) {
        close(out);
        return INVAR_FAIL(INVAR_E_IO, rc, NAME ": no pipe: %s", strerror(rc));
    }
    s->in = ends[1];
    status = fcntl(s->in, F_SETFL, O_NONBLOCK) == 0
                 ? invar_subprocess_start(&s->child, NAME, words, (int[]){ends[0], out, out})
                 : INVAR_FAIL(INVAR_E_IO, errno, NAME ": no pipe: %s", strerror(errno));
    close(ends[0]);
    close(out);
    return status;
}

invar_status invar_sink_check(const char *command, const char *log)
{
    invar_plugin_argv words = {0};
    invar_status status = invar_plugin_argv_cut(&words, NAME, command);

    if (status == INVAR_OK)
        status = invar_plugin_argv_find(&words, NAME);
    invar_plugin_argv_release(&words);
    return status == INVAR_OK ? invar_sink_log_check(log) : status;
}

invar_status invar_sink_open(invar_sink **out, const char *command, const char *log)
{
    invar_plugin_argv words = {0};
    invar_sink *s = NULL;
    invar_status status;

    *out = NULL;
    status = invar_plugin_argv_cut(&words, NAME, command);
    if (status == INVAR_OK)
        status = invar_alloc((void **)&s, 1, sizeof *s, "a sink");
    if (status == INVAR_OK) {
        s->child = (invar_subprocess){0};
        s->log = NULL;
        s->in = -1;
        s->lines = s->dropped = 0;
        s->used = 0;
        status = sink_start(s, words.words, log);
    }
    invar_plugin_argv_release(&words);
    if (status == INVAR_OK) {
        *out = s;
        return status;
    }
    if (s) {
        close_input(s);
        (void)invar_sink_log_close(s->log);
    }
    invar_free(s);
    return status;
}

static int64_t left_ms(int64_t deadline)
{
    int64_t left = deadline - invar_process_clock_ms();

    return left > 0 ? left : 0;
}

/* Until all is written, nobody reads, or the time is over. */
static void sink_drain(invar_sink *s, int64_t deadline)
{
    for (sink_pump(s); s->used > 0 && s->in >= 0 && left_ms(deadline) > 0; sink_pump(s)) {
        struct pollfd writable = {.fd = s->in, .events = POLLOUT};

        (void)poll(&writable, 1, (int)left_ms(deadline));
    }
}

static void wait_for_end(const invar_sink *s, int64_t deadline)
{
    const struct timespec pause = {.tv_nsec = LOOK_MS * 1000000};

    while (!invar_subprocess_ended(&s->child) && left_ms(deadline) > 0)
        (void)nanosleep(&pause, NULL);
}

bool invar_sink_finish(invar_sink *s, int64_t ms)
{
    const int64_t deadline = invar_process_clock_ms() + ms;

    sink_drain(s, deadline);
    if (s->used == 0)
        close_input(s);
    wait_for_end(s, deadline);
    return invar_subprocess_ended(&s->child);
}

void invar_sink_close(invar_sink_result *out, invar_sink *s)
{
    int how;

    *out = (invar_sink_result){0};
    close_input(s);
    out->killed = !invar_subprocess_ended(&s->child);
    invar_subprocess_kill(&s->child); // reaps it, too, and ends what it has left behind
    how = s->child.wait_status;
    if (!out->killed)
        out->code = WIFSIGNALED(how) ? -WTERMSIG(how) : WEXITSTATUS(how);
    out->log_ended = invar_sink_log_close(s->log);
    out->lines = s->lines;
    out->dropped = s->dropped;
    invar_free(s);
}
