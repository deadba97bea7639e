/*
 * line_process.c - exchanges lines with a child process, without deadlocks.
 *
 * All three pipes are served while this side waits, so a program that writes much to its standard
 * error, or answers before it has read everything, cannot make both sides wait for each other. A
 * program may write one line per request only; anything else is an error with a hint.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ext/line_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/process/process.h"
#include "base/text.h"
#include "engine/ext/plugin_command.h"
#include "engine/ext/subprocess.h"

#include "base/invar_banned.h"

#define LOG_BYTES ((size_t)1 << 20) /* standard error that is logged for one request, in bytes */
#define WATCH_MS 1000               /* interval of the wait callback */
#define END_MS 1000                 /* time to exit after the end of its input */
#define MAX_TIMEOUT_S 1000000.0     /* seconds; keeps deadlines far from overflow */

struct invar_line_process {
    const char *name;
    pthread_t thread;   /* thread that opened the program */
    int64_t timeout_ms; /* 0 for none */
    int log_fd;
    size_t logged; /* bytes logged since the last request */
    bool spoken;   /* there was an exchange */
    bool died;     /* the program exited, or closed its output */
    invar_subprocess child;
    int in, out, err; /* our ends of the pipes; -1 if closed */
    char *line;       /* output of the program since the last request */
    size_t used, capacity;
    invar_process_tail tail;      /* tail of its standard error */
    void (*waits)(void *payload); /* wait callback; may be NULL */
    void *payload;
    invar_status (*check)(void *payload); /* guard; may be NULL */
    void *check_payload;
    char command[];
};

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* ---- start ----------------------------------------------------------------------------------- */

/* Starts the words of a command, with our ends of its pipes non-blocking. */
static invar_status start_words(invar_line_process *program, char *const *words)
{
    int *const ours[3] = {&program->in, &program->out, &program->err};
    int theirs[3] = {-1, -1, -1}, ends[2], rc = 0;
    invar_status status;

    for (int i = 0; i < 3 && !rc; i++) {
        rc = invar_process_pipe(ends);
        if (rc)
            break;
        *ours[i] = ends[i == 0];
        theirs[i] = ends[i != 0];
        rc = fcntl(*ours[i], F_SETFL, O_NONBLOCK) == 0 ? 0 : errno;
    }
    status = rc ? INVAR_FAIL(INVAR_E_IO, rc, "plug-in %.1000s: no pipes for it: %s", program->name,
                             strerror(rc))
                : invar_subprocess_start(&program->child, program->name, words, theirs);
    for (int i = 0; i < 3; i++)
        close_fd(&theirs[i]);
    return status;
}

static invar_status start_program(invar_line_process *program)
{
    invar_plugin_argv command = {0};
    invar_status status = invar_plugin_argv_split(&command, program->name, program->command);

    if (status == INVAR_OK)
        status = start_words(program, command.words);
    invar_plugin_argv_release(&command);
    return status;
}

invar_status invar_line_process_open(invar_line_process **out, const char *name,
                                     const char *command, double timeout, int log_fd)
{
    const size_t bytes = strlen(command) + 1;
    invar_line_process *program;
    invar_status status;

    *out = NULL;
    if (!(timeout >= 0))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "plug-in %.1000s: a timeout below 0", name);
    INVAR_TRY(INVAR_ALLOC_SIZED(program, 1, sizeof *program + bytes, "a program"));
    memset(program, 0, sizeof *program);
    memcpy(program->command, command, bytes);
    program->name = name;
    program->timeout_ms = (int64_t)((timeout < MAX_TIMEOUT_S ? timeout : MAX_TIMEOUT_S) * 1000);
    program->timeout_ms += timeout > 0 && program->timeout_ms == 0;
    program->log_fd = log_fd;
    program->in = program->out = program->err = -1;
    program->thread = pthread_self();
    status = start_program(program);
    if (status != INVAR_OK) {
        invar_line_process_close(program);
        return status;
    }
    *out = program;
    return INVAR_OK;
}

/* ---- end ------------------------------------------------------------------------------------- */

/* Logs standard error, up to LOG_BYTES per request. */
static void log_errors(invar_line_process *program, const char *block, size_t bytes)
{
    static const char rest[] =
        "\ninvar: the plug-in wrote more than 1 MiB to standard error for one "
        "request; the rest is left out\n";
    size_t room = LOG_BYTES - program->logged, some = bytes < room ? bytes : room;

    if (program->log_fd < 0 || room == 0)
        return;
    program->logged += some;
    if (write(program->log_fd, block, some) < 0 ||
        (program->logged == LOG_BYTES && write(program->log_fd, rest, sizeof rest - 1) < 0))
        program->log_fd = -1; // a log that cannot be written is no reason to fail
}

/*
 * Reads standard error: keeps its tail and logs it. Limited, because a program may write forever.
 */
static void drain_errors(invar_line_process *program)
{
    char block[4096];

    for (int i = 0; i < 32 && program->err >= 0; i++) {
        ssize_t got = read(program->err, block, sizeof block);
        if (got < 0)
            return;
        invar_process_tail_add(&program->tail, block, (size_t)got);
        if (got > 0)
            log_errors(program, block, (size_t)got);
        else
            close_fd(&program->err);
    }
}

/* Returns true if the program exits within `ms` milliseconds; does not reap it. */
static bool ends_within(invar_line_process *program, int64_t ms)
{
    int64_t deadline = invar_process_clock_ms() + ms;
    struct timespec nap = {0, 2000000};

    for (;;) {
        drain_errors(program);
        if (invar_subprocess_ended(&program->child))
            return true;
        if (invar_process_clock_ms() >= deadline)
            return false;
        nanosleep(&nap, NULL);
    }
}

void invar_line_process_kill(invar_line_process *program)
{
    close_fd(&program->in);
    close_fd(&program->out);
    invar_subprocess_kill(&program->child);
    drain_errors(program);
    close_fd(&program->err);
}

void invar_line_process_close(invar_line_process *program)
{
    if (!program)
        return;
    close_fd(&program->in);
    if (program->child.pid)
        ends_within(program, END_MS);
    invar_line_process_kill(program);
    invar_free(program->line);
    invar_free(program);
}

/* Writes ": LINE" with the last non-blank line of standard error, or "" if it is empty. */
static const char *format_last_line(char out[INVAR_TEXT_QUOTE_SIZE * 2],
                                    const invar_line_process *program)
{
    memcpy(out, ": ", 2);
    invar_process_last_output_line(out + 2, INVAR_TEXT_QUOTE_SIZE * 2 - 2, &program->tail);
    if (!out[2])
        out[0] = '\0';
    return out;
}

/* Returns the error for a closed pipe: the program has ended, or has closed its output. */
static invar_status report_end(invar_line_process *program)
{
    bool ended = ends_within(program, END_MS);
    char words[INVAR_TEXT_QUOTE_SIZE * 2];
    int how;

    program->died = true;
    invar_line_process_kill(program);
    how = program->child.wait_status;
    format_last_line(words, program);
    if (!ended)
        return INVAR_FAIL(INVAR_E_IO, EPIPE, "plug-in %.1000s: it closed its output%s",
                          program->name, words);
    if (WIFSIGNALED(how))
        return INVAR_FAIL(INVAR_E_IO, 0, "plug-in %.1000s: it was killed by signal %d%s",
                          program->name, WTERMSIG(how), words);
    return INVAR_FAIL(INVAR_E_IO, 0, "plug-in %.1000s: it ended with exit code %d%s", program->name,
                      WEXITSTATUS(how), words);
}

static invar_status report_timeout(invar_line_process *program)
{
    char words[INVAR_TEXT_QUOTE_SIZE * 2];

    invar_line_process_kill(program);
    return INVAR_FAIL(INVAR_E_IO, ETIMEDOUT,
                      "plug-in %.1000s: no reply within %.3g s (plugin-timeout)%s", program->name,
                      (double)program->timeout_ms / 1000, format_last_line(words, program));
}

void invar_line_process_hint(char out[INVAR_LINE_PROCESS_HINT_SIZE], const char *text, size_t bytes)
{
    const char *newline = memchr(text, '\n', bytes);
    char quote[INVAR_TEXT_QUOTE_SIZE];

    out[0] = '\0';
    if (bytes == 0 || (bytes > 1 && memcmp(text, "{\"", 2) == 0))
        return;
    invar_text_quote(quote, sizeof quote, text, newline ? (size_t)(newline - text) : bytes);
    (void)snprintf(out, INVAR_LINE_PROCESS_HINT_SIZE,
                   "; standard output is for replies: print to standard error, not '%s'", quote);
}

static invar_status report_invalid(invar_line_process *program, const char *what)
{
    invar_line_process_kill(program);
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "plug-in %.1000s: %s", program->name, what);
}

/*
 * Returns the error for unexpected output. `second` is the text after the first line, or NULL if
 * there is only one line.
 */
static invar_status report_unasked(invar_line_process *program, const char *what,
                                   const char *second)
{
    char hint[INVAR_LINE_PROCESS_HINT_SIZE], text[INVAR_LINE_PROCESS_HINT_SIZE + 80];

    invar_line_process_hint(hint, program->line, program->used);
    if (!hint[0] && second)
        invar_line_process_hint(hint, second, program->used - (size_t)(second - program->line));
    (void)snprintf(text, sizeof text, "%s%s", what, hint);
    return report_invalid(program, text);
}

/* ---- exchange -------------------------------------------------------------------------------- */

static bool would_wait(int code)
{
    return code == EAGAIN || code == EWOULDBLOCK || code == EINTR;
}

/*
 * Reads available output. *done_out is true if it is one complete line; more than that is an error.
 */
static invar_status read_some(bool *done_out, invar_line_process *program)
{
    const char *newline;
    ssize_t got;

    if (program->used == program->capacity)
        INVAR_TRY(invar_alloc_grow(&program->line, &program->capacity, program->used,
                                   INVAR_LINE_PROCESS_REPLY_BYTES, "a plug-in's reply"));
    got = read(program->out, program->line + program->used, program->capacity - program->used);
    if (got < 0 && would_wait(errno))
        return INVAR_OK;
    if (got <= 0)
        return report_end(program);
    newline = memchr(program->line + program->used, '\n', (size_t)got);
    program->used += (size_t)got;
    if (program->used > INVAR_LINE_PROCESS_REPLY_BYTES)
        return report_invalid(program, "its reply is longer than 64 MiB");
    if (newline && newline != program->line + program->used - 1)
        return report_unasked(program, "it wrote more than one line for one request", newline + 1);
    *done_out = newline != NULL;
    return INVAR_OK;
}

/* Polls all pipes once, and reads standard error. */
static invar_status poll_pipes(bool *readable_out, bool *writable_out, invar_line_process *program,
                               bool writing, int64_t deadline)
{
    struct pollfd fds[3] = {{program->out, POLLIN, 0},
                            {program->err, POLLIN, 0}, // poll ignores -1
                            {writing ? program->in : -1, POLLOUT, 0}};
    int64_t left = deadline - invar_process_clock_ms();
    int ready;

    *readable_out = *writable_out = false;
    if (program->timeout_ms && left <= 0)
        return report_timeout(program);
    left = program->timeout_ms && left < WATCH_MS ? left : WATCH_MS;
    ready = poll(fds, 3, (int)left);
    if (ready < 0 && errno != EINTR)
        return INVAR_FAIL(INVAR_E_IO, errno, "plug-in %.1000s: %s", program->name, strerror(errno));
    if (program->waits) // also if the program writes to its standard error all the time
        program->waits(program->payload);
    if (program->check)
        INVAR_TRY(program->check(program->check_payload));
    if (ready <= 0)
        return INVAR_OK;
    if (fds[1].revents)
        drain_errors(program);
    *readable_out = fds[0].revents != 0;
    *writable_out = fds[2].revents != 0;
    return INVAR_OK;
}

void invar_line_process_set_wait_callback(invar_line_process *program, void (*waits)(void *payload),
                                          void *payload)
{
    program->waits = waits;
    program->payload = payload;
}

void invar_line_process_set_check(invar_line_process *program, invar_status (*check)(void *payload),
                                  void *payload)
{
    program->check = check;
    program->check_payload = payload;
}

const char *invar_line_process_command(const invar_line_process *program)
{
    return program->command;
}

bool invar_line_process_may_restart(const invar_line_process *program)
{
    return program->died && pthread_equal(program->thread, pthread_self());
}

invar_status invar_line_process_restart(invar_line_process *program)
{
    invar_line_process_kill(program);
    program->died = program->spoken = false;
    memset(&program->tail, 0, sizeof program->tail);
    return start_program(program);
}

/* Sends the line and receives the reply, both at the same time. */
static invar_status send_and_receive(invar_line_process *program, const char *line, size_t bytes)
{
    int64_t deadline = invar_process_clock_ms() + program->timeout_ms;
    bool readable, writable, done = false;
    size_t sent = 0;

    while (!done) {
        INVAR_TRY(poll_pipes(&readable, &writable, program, sent < bytes, deadline));
        if (writable) {
            ssize_t put = invar_subprocess_write(program->in, line + sent, bytes - sent);
            if (put < 0 && !would_wait(errno))
                return report_end(program);
            sent += put > 0 ? (size_t)put : 0;
        }
        if (readable)
            INVAR_TRY(read_some(&done, program));
    }
    if (sent < bytes)
        return report_invalid(program, "it replied before it had read the request");
    return INVAR_OK;
}

/* Fails if the program has written anything since its last reply. */
static invar_status check_no_output(invar_line_process *program)
{
    bool done = false;

    INVAR_TRY(read_some(&done, program));
    if (program->used == 0)
        return INVAR_OK;
    return report_unasked(program, "it wrote a line without a request", NULL);
}

invar_status invar_line_process_exchange(const char **line_out, size_t *bytes_out,
                                         invar_line_process *program, const char *line,
                                         size_t bytes)
{
    invar_status status;

    if (!program->child.pid)
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "plug-in %.1000s: it has ended after an earlier failure", program->name);
    program->used = 0;
    program->logged = 0;
    status = program->spoken ? check_no_output(program) : INVAR_OK; // its first line may come early
    program->spoken = true;
    if (status == INVAR_OK)
        status = send_and_receive(program, line, bytes);
    if (status != INVAR_OK) {
        invar_line_process_kill(program);
        return status;
    }
    *line_out = program->line;
    *bytes_out = program->used - 1;
    return INVAR_OK;
}
