/*
 * sink_log.c - what a sink prints, in a file that does not grow without end.
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

enum { BLOCK = 1 << 16, PAUSE_MS = 10 /* between two blocks that are dropped */ };

struct invar_sink_log {
    int file, from; /* our end of what it prints to, read without waiting */
    int stop[2];    /* closing the second one ends the thread */
    size_t bytes;   /* kept by this start */
    atomic_int over;
    pthread_t thread;
    char block[BLOCK];
};

/* ---- the thread ------------------------------------------------------------------------------ */

static void sink_log_store(invar_sink_log *log, size_t bytes)
{
    const size_t room = INVAR_SINK_LOG_BYTES - log->bytes, most = bytes < room ? bytes : room;

    for (size_t done = 0; done < most && !log->over;) {
        ssize_t put = write(log->file, log->block + done, most - done);

        if (put > 0)
            done += (size_t)put;
        else if (put == 0 || errno != EINTR)
            log->over = put < 0 ? errno : EIO;
    }
    log->bytes += most;
    if (bytes > room && !log->over)
        log->over = INVAR_SINK_LOG_FULL;
}

/* Until the sink and all its children have ended, or nobody wants more. */
static void *carry(void *payload)
{
    invar_sink_log *log = payload;
    struct pollfd ends[2] = {{.fd = log->from, .events = POLLIN}, {.fd = log->stop[0]}};
    bool stops = false;

    for (;;) {
        ssize_t got = read(log->from, log->block, sizeof log->block);

        if (got > 0 && !log->over)
            sink_log_store(log, (size_t)got);
        else if (got > 0 && !stops)
            stops = poll(&ends[1], 1, PAUSE_MS) > 0;
        else if (got < 0 && errno == EAGAIN && !stops)
            stops = poll(ends, 2, -1) > 0 && ends[1].revents;
        else if (got >= 0 || errno != EINTR)
            return NULL;
    }
}

/* It takes no signal of the program's. */
static int sink_log_start(invar_sink_log *log)
{
    sigset_t all, before;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&log->thread, NULL, carry, log);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

/* ---- life ------------------------------------------------------------------------------------ */

static invar_status refuse(const char *path, int code, const char *why)
{
    char shown[INVAR_PATH_SHOWN_SIZE];

    invar_path_show(shown, path);
    return INVAR_FAIL(INVAR_E_IO, code, "sink: its log %s: %s; move away what lies there", shown,
                      why);
}

invar_status invar_sink_log_check(const char *path)
{
    struct stat info;

    return lstat(path, &info) == 0 && !S_ISREG(info.st_mode) ? refuse(path, 0, "it is no file")
                                                             : INVAR_OK;
}

/* Neither through a link nor waiting for somebody who reads a pipe. */
static invar_status open_file(int *out, const char *path)
{
    struct stat info;
    int code;

    *out = -1;
    INVAR_TRY(invar_sink_log_check(path));
    *out = invar_process_fd_above_stdio(invar_fd_open(
        path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
    code = errno;
    if (*out < 0)
        return refuse(path, code, strerror(code));
    return fstat(*out, &info) == 0 && S_ISREG(info.st_mode) ? INVAR_OK
                                                            : refuse(path, 0, "it is no file");
}

static void close_all(const int *fds, int count)
{
    for (int i = 0; i < count; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

static void sink_log_release(invar_sink_log *log)
{
    close_all((int[]){log->file, log->from, log->stop[0], log->stop[1]}, 4);
    invar_free(log);
}

/* The pipes and the thread; 0 or errno. */
static int connect_ends(invar_sink_log *log, int *end_out)
{
    int ends[2], rc = invar_process_pipe(ends);

    if (rc)
        return rc;
    log->from = ends[0];
    *end_out = ends[1];
    if (fcntl(log->from, F_SETFL, O_NONBLOCK) != 0)
        return errno;
    rc = invar_process_pipe(log->stop);
    if (rc) {
        log->stop[0] = log->stop[1] = -1;
        return rc;
    }
    return sink_log_start(log);
}

invar_status invar_sink_log_open(invar_sink_log **out, int *end_out, const char *path)
{
    invar_sink_log *log;
    invar_status status;
    int rc;

    *out = NULL;
    *end_out = -1;
    INVAR_TRY(invar_alloc((void **)&log, 1, sizeof *log, "a sink's log"));
    log->from = log->stop[0] = log->stop[1] = -1;
    log->bytes = 0;
    atomic_init(&log->over, 0);
    status = open_file(&log->file, path);
    rc = status == INVAR_OK ? connect_ends(log, end_out) : 0;
    if (rc)
        status = INVAR_FAIL(INVAR_E_IO, rc, "sink: no pipe for its log: %s", strerror(rc));
    if (status == INVAR_OK) {
        *out = log;
        return status;
    }
    close_all(end_out, 1);
    *end_out = -1;
    sink_log_release(log);
    return status;
}

int invar_sink_log_over(const invar_sink_log *log)
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
    sink_log_release(log);
    return over;
}
