/*
 * sink_log.c - writes the output of a sink to a log file of limited size.
 *
 * The thread owns all fields except `over`, which is atomic, and the write end of the pipe `stop`:
 * closing it wakes the thread up, which then reads what the output pipe still has and ends.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/track/sink_log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/process/process.h"

#include "base/invar_banned.h"

enum { BLOCK = 1 << 16, PAUSE_MS = 10 /* pause between two blocks that are dropped */ };

struct invar_sink_log {
    int log_fd, output_fd; /* the log file; the nonblocking read end of the sink's output */
    int stop[2];           /* pipe; closing its write end stops the thread */
    size_t bytes;          /* bytes written since the start */
    atomic_int over;
    pthread_t thread;
    char block[BLOCK];
};

/* ---- the thread ------------------------------------------------------------------------------ */

static void write_block(invar_sink_log *log, size_t bytes)
{
    const size_t room = INVAR_SINK_LOG_BYTES - log->bytes, most = bytes < room ? bytes : room;

    for (size_t done = 0; done < most && !log->over;) {
        ssize_t put = write(log->log_fd, log->block + done, most - done);

        if (put > 0)
            done += (size_t)put;
        else if (put == 0 || errno != EINTR)
            log->over = put < 0 ? errno : EIO;
    }
    log->bytes += most;
    if (bytes > room && !log->over)
        log->over = INVAR_SINK_LOG_FULL;
}

/*
 * Thread: copies output until all writers have closed the pipe, or the log is closed and the pipe
 * is empty.
 */
static void *copy_output(void *payload)
{
    invar_sink_log *log = payload;
    struct pollfd ends[2] = {{.fd = log->output_fd, .events = POLLIN}, {.fd = log->stop[0]}};
    bool stops = false;

    for (;;) {
        ssize_t got = read(log->output_fd, log->block, sizeof log->block);

        if (got > 0 && !log->over)
            write_block(log, (size_t)got);
        else if (got > 0 && !stops)
            stops = poll(&ends[1], 1, PAUSE_MS) > 0;
        else if (got < 0 && errno == EAGAIN && !stops)
            stops = poll(ends, 2, -1) > 0 && ends[1].revents;
        else if (got >= 0 || errno != EINTR)
            return NULL;
    }
}

/* Starts the thread with all signals blocked, so that the main thread gets them. */
static int start_thread(invar_sink_log *log)
{
    sigset_t all, before;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&log->thread, NULL, copy_output, log);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

/* ---- open and close -------------------------------------------------------------------------- */

static invar_status log_error(const char *path, int code, const char *why)
{
    char shown[INVAR_PATH_SHOWN_SIZE];

    invar_path_show(shown, path);
    return INVAR_FAIL(INVAR_E_IO, code, "sink: its log %s: %s; move away what lies there", shown,
                      why);
}

invar_status invar_sink_log_check(const char *path)
{
    struct stat info;

    return lstat(path, &info) == 0 && !S_ISREG(info.st_mode) ? log_error(path, 0, "it is no file")
                                                             : INVAR_OK;
}

/* Opens the log without following links or blocking on pipes. */
static invar_status open_log_file(int *out, const char *path)
{
    struct stat info;
    int code;

    *out = -1;
    INVAR_TRY(invar_sink_log_check(path));
    *out = invar_process_fd_above_stdio(invar_fd_open(
        path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
    code = errno;
    if (*out < 0)
        return log_error(path, code, strerror(code));
    return fstat(*out, &info) == 0 && S_ISREG(info.st_mode) ? INVAR_OK
                                                            : log_error(path, 0, "it is no file");
}

static void close_all(const int *fds, int count)
{
    for (int i = 0; i < count; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

static void free_log(invar_sink_log *log)
{
    close_all((int[]){log->log_fd, log->output_fd, log->stop[0], log->stop[1]}, 4);
    invar_free(log);
}

/* Makes the pipes and starts the thread. Returns 0 or errno. */
static int start_copying(invar_sink_log *log, int *end_out)
{
    int ends[2], rc = invar_process_pipe(ends);

    if (rc)
        return rc;
    log->output_fd = ends[0];
    *end_out = ends[1];
    if (fcntl(log->output_fd, F_SETFL, O_NONBLOCK) != 0)
        return errno;
    rc = invar_process_pipe(log->stop);
    if (rc) {
        log->stop[0] = log->stop[1] = -1;
        return rc;
    }
    return start_thread(log);
}

invar_status invar_sink_log_open(invar_sink_log **out, int *end_out, const char *path)
{
    invar_sink_log *log;
    invar_status status;
    int rc;

    *out = NULL;
    *end_out = -1;
    INVAR_TRY(INVAR_ALLOC(log, 1, "a sink's log"));
    log->output_fd = log->stop[0] = log->stop[1] = -1;
    log->bytes = 0;
    atomic_init(&log->over, 0);
    status = open_log_file(&log->log_fd, path);
    rc = status == INVAR_OK ? start_copying(log, end_out) : 0;
    if (rc)
        status = INVAR_FAIL(INVAR_E_IO, rc, "sink: no pipe for its log: %s", strerror(rc));
    if (status == INVAR_OK) {
        *out = log;
        return status;
    }
    close_all(end_out, 1);
    *end_out = -1;
    free_log(log);
    return status;
}

int invar_sink_log_status(const invar_sink_log *log)
{
    return log->over;
}

int invar_sink_log_close(invar_sink_log *log)
{
    int over;

    if (!log)
        return 0;
    close(log->stop[1]);
    log->stop[1] = -1;
    (void)pthread_join(log->thread, NULL);
    over = log->over;
    free_log(log);
    return over;
}
