/*
 * child.c - a command as a child process: bounded in time, in output and in what it leaves.
 *
 * The process that starts it has threads, so between fork and exec there are only calls that a
 * signal handler could make; all that needs memory is made before. The thread that forks waits for
 * the child's end, so the kernel's signal at the death of a parent, which is one of threads, comes
 * when the process dies and not before.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE 1 // close_range, wait4, sigabbrev_np, execvp with environ

#include "bisect/workspace/child.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/close_range.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/process/process.h"
#include "base/text.h"
#include "bisect/workspace/process_tag.h"

#include "base/invar_banned.h"

#define TICK_MS 20             /* from one look at the child to the next */
#define DRAIN_MS 200           /* how long its group, killed, may take to close the output */
#define MOST_SECONDS 1000000.0 /* keeps the arithmetic of deadlines small */
#define BLOCK_BYTES 65536
#define HALF_BYTES (INVAR_CHILD_LOG_BYTES / 2)
#define MARK_SIZE (sizeof INVAR_USER_CHILD + INVAR_USER_SIZE + 16)

typedef struct child {
    const invar_child_request *request;
    invar_child_result *result;
    char mark[MARK_SIZE]; /* INVAR_CHILD=USER-NUMBER */
    char **environment;
    pid_t pid;
    int out;             /* our end of its output; -1: closed */
    int log;             /* -1: none */
    invar_status status; /* of the log */
    char *block;         /* (BLOCK_BYTES) for reading; behind it, with a log, (HALF_BYTES) */
    char *ring;          /* of what comes after the first half, the end */
    invar_process_tail tail;
    int64_t begun, watched, kill_at; /* moments */
    int nap;
    bool asked;  /* to end, by us: `result->end` says why */
    bool killed; /* with SIGKILL, because it did not */
} child;

static int64_t milliseconds(double seconds)
{
    return (int64_t)((seconds < MOST_SECONDS ? seconds : MOST_SECONDS) * 1000);
}

/* ---- the log --------------------------------------------------------------------------------- */

static void log_fails(child *c, int code)
{
    char shown[INVAR_PATH_SHOWN_SIZE];

    invar_path_show(shown, c->request->log);
    if (c->status == INVAR_OK)
        c->status = INVAR_FAIL(INVAR_E_IO, code, "%s: the log cannot be written: %s", shown,
                               strerror(code));
}

static void log_put(child *c, const char *data, size_t bytes)
{
    while (bytes > 0 && c->status == INVAR_OK) {
        ssize_t put = write(c->log, data, bytes);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0) {
            log_fails(c, put < 0 ? errno : ENOSPC);
            return;
        }
        data += put;
        bytes -= (size_t)put;
    }
}

/* The first half goes into the file at once, the rest into the ring. */
static void log_add(child *c, const char *data, size_t bytes)
{
    size_t before = (size_t)c->result->output_bytes;
    size_t head = before < HALF_BYTES ? HALF_BYTES - before : 0;

    invar_process_tail_add(&c->tail, data, bytes);
    c->result->output_bytes += (int64_t)bytes;
    if (c->log < 0)
        return;
    head = bytes < head ? bytes : head;
    log_put(c, data, head);
    for (size_t i = head; i < bytes;) {
        size_t at = (before + i) % HALF_BYTES, room = HALF_BYTES - at;
        size_t count = bytes - i < room ? bytes - i : room;
        memcpy(c->ring + at, data + i, count);
        i += count;
    }
}

/* What the ring holds, after a line that says how much it does not. */
static void log_end(child *c)
{
    size_t total = (size_t)c->result->output_bytes, at = total % HALF_BYTES;
    char line[96];

    if (c->log < 0)
        return;
    if (total > 2 * (size_t)HALF_BYTES) {
        int bytes = snprintf(line, sizeof line, "\n[%zu bytes are left out here]\n",
                             total - 2 * (size_t)HALF_BYTES);
        log_put(c, line, (size_t)bytes);
        log_put(c, c->ring + at, HALF_BYTES - at);
        log_put(c, c->ring, at);
    } else if (total > HALF_BYTES) {
        log_put(c, c->ring, total - HALF_BYTES);
    }
    if (close(c->log) != 0)
        log_fails(c, errno);
    c->log = -1;
}

static invar_status log_begin(child *c)
{
    const char *path = c->request->log;
    size_t bytes = BLOCK_BYTES + (path ? HALF_BYTES : 0);

    INVAR_TRY(invar_alloc((void **)&c->block, bytes, 1, "a child's output"));
    c->ring = c->block + BLOCK_BYTES;
    if (!path)
        return INVAR_OK;
    c->log =
        invar_process_fd_above_stdio(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (c->log < 0)
        log_fails(c, errno);
    return c->status;
}

/* ---- starting -------------------------------------------------------------------------------- */

/* Whether a word of the request's environment is about the variable "NAME=...". */
static bool about(const char *word, const char *variable)
{
    size_t length = strcspn(word, "=");

    if (length > 0 && word[length - 1] == '*' && !word[length])
        return strncmp(word, variable, length - 1) == 0;
    return strncmp(word, variable, length) == 0 && variable[length] == '=';
}

/* Words from `first` on may remove or replace the variable. */
static bool is_overridden(const char *variable, const char *const *first)
{
    for (; first && *first; first++) {
        if (about(*first, variable))
            return true;
    }
    return false;
}

static invar_status make_environment(child *c)
{
    const char *const *extra = c->request->environment;
    size_t count = 2, used = 0;

    for (char **v = environ; v && *v; v++)
        count++;
    for (size_t i = 0; extra && extra[i]; i++)
        count++;
    INVAR_TRY(invar_alloc((void **)&c->environment, count, sizeof *c->environment,
                          "a child's environment"));
    for (char **v = environ; v && *v; v++) {
        if (!is_overridden(*v, extra) && !about(INVAR_USER_CHILD, *v))
            c->environment[used++] = *v;
    }
    for (size_t i = 0; extra && extra[i]; i++) {
        if (strchr(extra[i], '=') && !is_overridden(extra[i], extra + i + 1))
            c->environment[used++] = (char *)(uintptr_t)extra[i];
    }
    c->environment[used++] = c->mark;
    c->environment[used] = NULL;
    return INVAR_OK;
}

/* What the child needs between fork and exec, and which step of it failed. */
typedef struct launch {
    const child *c;
    pid_t parent;
    int in, out, report;
} launch;

typedef enum stage { STAGE_STREAMS, STAGE_FOLDER, STAGE_EXEC } stage;

typedef struct problem {
    stage where;
    int code; /* errno */
} problem;

/* All that we have open goes with exec, but the lock. */
static void keep_only(int lock)
{
    if (close_range(3, ~0u, CLOSE_RANGE_CLOEXEC) != 0) { // an old kernel
        for (int fd = 3; fd < 65536; fd++)
            (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
    if (lock >= 0)
        (void)fcntl(lock, F_SETFD, 0);
}

static stage launch_prepare(const launch *l)
{
    const invar_child_request *request = l->c->request;
    struct sigaction standard;

    (void)setpgid(0, 0);
    memset(&standard, 0, sizeof standard);
    for (int number = 1; number < NSIG; number++) {
        // a Ctrl-C that came before it had its own group was ours: SIG_IGN drops what is pending
        standard.sa_handler = SIG_IGN;
        (void)sigaction(number, &standard, NULL);
        standard.sa_handler = SIG_DFL;
        (void)sigaction(number, &standard, NULL);
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != l->parent) // it died before the kernel knew what to do then
        _Exit(127);
    if (dup2(l->in, STDIN_FILENO) < 0 || dup2(l->out, STDOUT_FILENO) < 0 ||
        dup2(l->out, STDERR_FILENO) < 0)
        return STAGE_STREAMS;
    if (request->folder && chdir(request->folder) != 0)
        return STAGE_FOLDER;
    if (request->same_addresses)
        (void)personality((unsigned long)personality(0xffffffff) | ADDR_NO_RANDOMIZE);
    keep_only(request->lock);
    return STAGE_EXEC;
}

static void exec_program(const launch *l)
{
    problem p = {launch_prepare(l), errno};
    sigset_t none;
    ssize_t put;

    if (p.where == STAGE_EXEC) {
        sigemptyset(&none);
        (void)sigprocmask(SIG_SETMASK, &none, NULL);
        environ = l->c->environment;
        execvp(l->c->request->words[0], (char *const *)(uintptr_t)l->c->request->words);
        p.code = errno;
    }
    put = write(l->report, &p, sizeof p);
    _Exit(put < 0 ? 126 : 127);
}

/* Forks; *out is where it failed, or has the code 0: the program runs. */
static int launch_child(problem *out, child *c, const launch *how, int report)
{
    sigset_t all, before;
    ssize_t got;
    int code;

    // no handler of ours runs in the child before its signals are reset
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    c->pid = fork();
    code = errno;
    if (c->pid == 0)
        exec_program(how);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    close(how->report);
    if (c->pid < 0)
        return code;
    (void)setpgid(c->pid, c->pid);
    do
        got = read(report, out, sizeof *out);
    while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof *out) {
        *out = (problem){STAGE_EXEC, 0};
        return 0;
    }
    while (waitpid(c->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    c->pid = -1;
    return 0;
}

/* One attempt with new pipes. Returns errno. */
static int try_launch(problem *out, child *c)
{
    int output[2] = {-1, -1}, report[2] = {-1, -1};
    int in = invar_process_fd_above_stdio(open("/dev/null", O_RDONLY | O_CLOEXEC));
    int code = in < 0 ? errno : 0;

    code = code ? code : invar_process_pipe(output);
    code = code ? code : invar_process_pipe(report);
    if (!code && fcntl(output[0], F_SETFL, O_NONBLOCK) != 0)
        code = errno;
    if (!code) {
        launch how = {c, getpid(), in, output[1], report[1]};
        code = launch_child(out, c, &how, report[0]);
        report[1] = -1;
        c->out = output[0];
        output[0] = -1;
    }
    for (int i = 0; i < 2; i++) {
        if (output[i] >= 0)
            close(output[i]);
        if (report[i] >= 0)
            close(report[i]);
    }
    if (in >= 0)
        close(in);
    return code;
}

static bool cannot_be_run(int code)
{
    return code == ENOENT || code == ENOTDIR || code == EACCES || code == EISDIR ||
           code == ENOEXEC || code == ELOOP || code == ENAMETOOLONG || code == ELIBBAD;
}

/*
 * A program that was just written may still be open for writing: in a child that another thread has
 * forked and that has not come to its exec. That takes a moment, so it is tried again.
 */
static invar_status child_start(child *c)
{
    static const struct timespec nap = {0, 5000000};
    const char *word = c->request->words[0];
    char quote[INVAR_CHILD_WORDS_SIZE - 64], shown[INVAR_PATH_SHOWN_SIZE];
    problem p = {STAGE_STREAMS, 0};
    int code;

    for (int i = 0;; i++) {
        code = try_launch(&p, c);
        if (code || p.code != ETXTBSY || i == 1000)
            break;
        close(c->out);
        c->out = -1;
        nanosleep(&nap, NULL);
    }
    c->begun = invar_process_clock_ms();
    if (!code && !p.code)
        return INVAR_OK;
    invar_text_quote(quote, sizeof quote, word, strlen(word));
    if (!code && p.where == STAGE_EXEC && cannot_be_run(p.code)) {
        c->result->end = INVAR_CHILD_MISSING;
        c->result->code = p.code;
        (void)snprintf(c->result->last_words, sizeof c->result->last_words, "%s: %s", quote,
                       strerror(p.code));
        return INVAR_OK;
    }
    code = code ? code : p.code;
    if (p.where == STAGE_FOLDER) {
        invar_path_show(shown, c->request->folder);
        return INVAR_FAIL(INVAR_E_IO, code, "%s: nothing can be run there: %s", shown,
                          strerror(code));
    }
    return INVAR_FAIL(INVAR_E_IO, code, "%s: cannot be started: %s", quote, strerror(code));
}

/* ---- while it runs --------------------------------------------------------------------------- */

/* What is there now, though not for ever. */
static void take_output(child *c)
{
    for (int i = 0; i < 64 && c->out >= 0; i++) {
        ssize_t got = read(c->out, c->block, BLOCK_BYTES);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (got <= 0) {
            close(c->out);
            c->out = -1;
            c->nap = 1; // it is about to end, as a rule
            return;
        }
        log_add(c, c->block, (size_t)got);
    }
}

static void wait_output(child *c, int64_t ms)
{
    struct pollfd fd = {c->out, POLLIN, 0}; // -1 is passed over: then it is a nap

    (void)poll(&fd, 1, (int)ms);
    take_output(c);
}

/* Asks the whole group to end, and says by when. */
static void ask_to_end(child *c, invar_child_end why, int64_t now)
{
    c->asked = true;
    c->result->end = why;
    c->kill_at = now + milliseconds(c->request->kill_grace_s);
    kill(-c->pid, SIGTERM);
}

static void child_inspect(child *c)
{
    const invar_child_request *r = c->request;
    int64_t now = invar_process_clock_ms();

    if (c->asked || c->status != INVAR_OK) {
        if (now >= c->kill_at && !c->killed) {
            kill(-c->pid, SIGKILL);
            c->killed = true;
        }
        return;
    }
    // a signal's handler or another thread may have set it
    if (r->stop && __atomic_load_n(r->stop, __ATOMIC_RELAXED)) {
        ask_to_end(c, INVAR_CHILD_STOPPED, now);
    } else if (r->timeout > 0 && now - c->begun >= milliseconds(r->timeout)) {
        ask_to_end(c, INVAR_CHILD_TIMED_OUT, now);
    } else if (r->should_stop && now - c->watched >= TICK_MS) {
        c->watched = now;
        if (r->should_stop(r->payload))
            ask_to_end(c, INVAR_CHILD_ENDED_EARLY, now);
    }
}

/* True when the child itself has ended; it is not reaped, so its number is still ours. */
static bool has_ended(const child *c)
{
    siginfo_t info;

    memset(&info, 0, sizeof info);
    if (waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0)
        return errno != EINTR; // no child of ours any more
    return info.si_pid == c->pid;
}

/* One that was asked to end is over when all who write to its output are, or the time is up. */
static void pump(child *c)
{
    c->nap = TICK_MS;
    for (;;) {
        bool ended = has_ended(c); // before the output is taken: what it wrote is there now

        take_output(c);
        if (ended && (!c->asked || c->killed || c->out < 0))
            return;
        child_inspect(c);
        wait_output(c, c->nap);
        c->nap = c->out >= 0 || 2 * c->nap > TICK_MS ? TICK_MS : 2 * c->nap;
    }
}

/* ---- its end --------------------------------------------------------------------------------- */

static void keep_end(child *c, int how, const struct rusage *usage)
{
    invar_child_result *result = c->result;

    result->peak_bytes = (int64_t)usage->ru_maxrss * 1024;
    result->killed = c->killed;
    if (c->asked) {
        result->code = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
    } else {
        result->end = WIFEXITED(how) ? INVAR_CHILD_EXITED : INVAR_CHILD_SIGNALLED;
        result->code = WIFEXITED(how) ? WEXITSTATUS(how) : WTERMSIG(how);
    }
}

/* Whatever is left of it is killed before it is reaped, while the group's number is still ours. */
static invar_status child_finish(child *c)
{
    int64_t until = invar_process_clock_ms() + DRAIN_MS, now;
    struct rusage usage;
    int how = 0;
    pid_t got;

    kill(-c->pid, SIGKILL);
    while (c->out >= 0 && (now = invar_process_clock_ms()) < until)
        wait_output(c, until - now);
    if (c->asked || c->killed || c->out >= 0)
        invar_user_sweep(c->mark + sizeof INVAR_USER_CHILD);
    take_output(c);
    do
        got = wait4(c->pid, &how, 0, &usage);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return INVAR_FAIL(INVAR_E_IO, errno, "a child cannot be waited for: %s", strerror(errno));
    keep_end(c, how, &usage);
    return INVAR_OK;
}

static invar_status child_run(child *c)
{
    const invar_child_request *r = c->request;

    INVAR_TRY(make_environment(c));
    INVAR_TRY(log_begin(c));
    INVAR_TRY(child_start(c));
    if (c->pid < 0)
        return INVAR_OK;
    pump(c);
    INVAR_TRY(child_finish(c));
    c->result->seconds = (double)(invar_process_clock_ms() - c->begun) / 1000;
    if (r->should_stop)
        (void)r->should_stop(r->payload);
    return INVAR_OK;
}

invar_status invar_child_run(invar_child_result *out, const invar_child_request *request)
{
    static _Atomic uint32_t children;
    child c = {.request = request, .result = out, .pid = -1, .out = -1, .log = -1};
    char user[INVAR_USER_SIZE];
    invar_status status;

    memset(out, 0, sizeof *out);
    invar_user_self(user);
    (void)snprintf(c.mark, sizeof c.mark, INVAR_USER_CHILD "=%s-%08" PRIx32, user,
                   atomic_fetch_add(&children, 1));
    status = child_run(&c);
    log_end(&c);
    if (c.out >= 0)
        close(c.out);
    if (out->end != INVAR_CHILD_MISSING)
        invar_process_last_output_line(out->last_words, sizeof out->last_words, &c.tail);
    invar_free(c.environment);
    invar_free(c.block);
    return status == INVAR_OK ? c.status : status;
}

/* ---- in words -------------------------------------------------------------------------------- */

static void tell_end(char out[64], const invar_child_result *result, double timeout)
{
    const char *name;

    switch (result->end) {
    case INVAR_CHILD_EXITED: (void)snprintf(out, 64, "exit code %d", result->code); break;
    case INVAR_CHILD_SIGNALLED:
        name = sigabbrev_np(result->code);
        (void)snprintf(out, 64, "killed by signal %d%s%s", result->code, name ? ", SIG" : "",
                       name ? name : "");
        break;
    case INVAR_CHILD_TIMED_OUT: (void)snprintf(out, 64, "no end within %g s", timeout); break;
    case INVAR_CHILD_STOPPED: (void)snprintf(out, 64, "stopped"); break;
    case INVAR_CHILD_ENDED_EARLY: (void)snprintf(out, 64, "ended early, enough was seen"); break;
    case INVAR_CHILD_MISSING: (void)snprintf(out, 64, "cannot be run"); break;
    }
}

void invar_child_tell(char out[INVAR_CHILD_REASON_SIZE], const invar_child_result *result,
                      double timeout)
{
    char how[64] = "";

    tell_end(how, result, timeout);
    (void)snprintf(out, INVAR_CHILD_REASON_SIZE, "%s%s%s", how, result->last_words[0] ? ": " : "",
                   result->last_words);
}
