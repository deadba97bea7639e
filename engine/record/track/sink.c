/*
 * sink.c - runs a program of the user that gets a line per event of a run.
 *
 * The pipe is nonblocking and written at each line; bytes that it does not accept stay in the
 * queue. Only complete lines are queued or dropped, so a program never sees a part of a line,
 * unless it stops reading.
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
#define CHECK_MS 20 /* ms between two checks whether the program has exited */

struct invar_sink {
    invar_subprocess child;
    invar_sink_log *log;
    int input_fd; /* write end of the program's input; -1 if it was closed */
    int64_t lines, dropped;
    size_t used;
    char queue[INVAR_SINK_QUEUE]; /* (used) bytes to write */
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
    if (s->input_fd >= 0)
        close(s->input_fd);
    s->input_fd = -1;
    s->dropped += count_lines(s->queue, s->used);
    s->used = 0;
}

/* Writes as much of the queue as the pipe accepts now. */
static void write_queue(invar_sink *s)
{
    while (s->used > 0 && s->input_fd >= 0) {
        ssize_t put = invar_subprocess_write(s->input_fd, s->queue, s->used);

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
    if (s->input_fd >= 0 && bytes > sizeof s->queue - s->used)
        write_queue(s);
    if (s->input_fd < 0 || bytes > sizeof s->queue - s->used) {
        s->dropped++;
        return;
    }
    memcpy(s->queue + s->used, line, bytes);
    s->used += bytes;
    write_queue(s);
}

bool invar_sink_is_closed(const invar_sink *s)
{
    return s->input_fd < 0;
}

int invar_sink_log_ended(const invar_sink *s)
{
    return invar_sink_log_status(s->log);
}

/* ---- start and end --------------------------------------------------------------------------- */

/* Starts the log and the program. Always closes the program's ends of its streams. */
static invar_status start_program(invar_sink *s, char *const *words, const char *log)
{
    int ends[2], out, rc;
    invar_status status;

    INVAR_TRY(invar_sink_log_open(&s->log, &out, log));
    rc = invar_process_pipe(ends);
    if (rc) {
        close(out);
        return INVAR_FAIL(INVAR_E_IO, rc, NAME ": no pipe: %s", strerror(rc));
    }
    s->input_fd = ends[1];
    status = fcntl(s->input_fd, F_SETFL, O_NONBLOCK) == 0
                 ? invar_subprocess_start(&s->child, NAME, words, (int[]){ends[0], out, out})
                 : INVAR_FAIL(INVAR_E_IO, errno, NAME ": no pipe: %s", strerror(errno));
    close(ends[0]);
    close(out);
    return status;
}

invar_status invar_sink_check(const char *command, const char *log)
{
    invar_plugin_argv words = {0};
    invar_status status = invar_plugin_argv_split(&words, NAME, command);

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
    status = invar_plugin_argv_split(&words, NAME, command);
    if (status == INVAR_OK)
        status = INVAR_ALLOC(s, 1, "a sink");
    if (status == INVAR_OK) {
        s->child = (invar_subprocess){0};
        s->log = NULL;
        s->input_fd = -1;
        s->lines = s->dropped = 0;
        s->used = 0;
        status = start_program(s, words.words, log);
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

/* Writes until the queue is empty, the input is closed or the deadline is over. */
static void drain_queue(invar_sink *s, int64_t deadline)
{
    for (write_queue(s); s->used > 0 && s->input_fd >= 0 && left_ms(deadline) > 0; write_queue(s)) {
        struct pollfd writable = {.fd = s->input_fd, .events = POLLOUT};

        (void)poll(&writable, 1, (int)left_ms(deadline));
    }
}

static void wait_for_end(const invar_sink *s, int64_t deadline)
{
    const struct timespec pause = {.tv_nsec = CHECK_MS * 1000000};

    while (!invar_subprocess_ended(&s->child) && left_ms(deadline) > 0)
        (void)nanosleep(&pause, NULL);
}

bool invar_sink_finish(invar_sink *s, int64_t ms)
{
    const int64_t deadline = invar_process_clock_ms() + ms;

    drain_queue(s, deadline);
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
    invar_subprocess_kill(&s->child); // reaps the program and kills its remaining processes
    how = s->child.wait_status;
    if (!out->killed)
        out->code = WIFSIGNALED(how) ? -WTERMSIG(how) : WEXITSTATUS(how);
    out->log_ended = invar_sink_log_close(s->log);
    out->lines = s->lines;
    out->dropped = s->dropped;
    invar_free(s);
}
