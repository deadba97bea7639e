/*
 * child.c - runs a command as a child process with limits on time and output, and cleans up after
 * it.
 *
 * The parent has threads, so only async-signal-safe calls are made between fork and exec;
 * everything that needs memory is prepared before. The thread that forks also waits for the child:
 * PR_SET_PDEATHSIG fires when the forking thread exits, which must not happen before the process
 * dies. The child is reaped last, so that its process group id cannot be reused while it is killed.
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

#define POLL_MS 20            /* interval at which the child is polled */
#define DRAIN_MS 200          /* time that a killed group may take to close its output */
#define MAX_SECONDS 1000000.0 /* limits deadlines so that milliseconds cannot overflow */
#define BLOCK_BYTES 65536
#define HALF_BYTES (INVAR_CHILD_LOG_BYTES / 2)
#define MARK_SIZE (sizeof INVAR_PROCESS_TAG_CHILD + INVAR_PROCESS_TAG_SIZE + 16)

typedef struct child_process {
    const invar_child_request *request;
    invar_child_result *result;
    char mark[MARK_SIZE]; /* INVAR_CHILD=TAG-NUMBER */
    char **environment;
    pid_t pid;
    int out;             /* read end of the output pipe; -1 if closed */
    int log;             /* log file; -1 if there is no log */
    invar_status status; /* status of the log */
    char *block;         /* (BLOCK_BYTES) read buffer, followed by `ring` if there is a log */
    char *ring;          /* (HALF_BYTES) ring buffer for output after the first half of the log */
    invar_process_tail tail;
    int64_t begin_ms, last_watch_ms, kill_at_ms; /* times in ms: start, last poll of should_stop,
                                                    deadline for SIGKILL */
    int nap;
    bool end_requested; /* this process asked the child to end; `result->end` has the reason */
    bool killed;        /* the child was killed with SIGKILL because it did not end */
} child_process;

static int64_t to_milliseconds(double seconds)
{
    return (int64_t)((seconds < MAX_SECONDS ? seconds : MAX_SECONDS) * 1000);
}

/* ---- the log --------------------------------------------------------------------------------- */

static void set_log_error(child_process *c)
{
    if (c->status == INVAR_OK)
        c->status = invar_path_fail(c->request->log, "the log cannot be written");
}

static void log_write(child_process *c, const char *data, size_t bytes)
{
    if (c->status == INVAR_OK && invar_fd_write(c->log, data, bytes) != 0)
        set_log_error(c);
}

/* Adds output to the log: the first half goes to the file at once, the rest into the ring. */
static void log_add(child_process *c, const char *data, size_t bytes)
{
    size_t before = (size_t)c->result->output_bytes;
    size_t head = before < HALF_BYTES ? HALF_BYTES - before : 0;

    invar_process_tail_add(&c->tail, data, bytes);
    c->result->output_bytes += (int64_t)bytes;
    if (c->log < 0)
        return;
    head = bytes < head ? bytes : head;
    log_write(c, data, head);
    for (size_t i = head; i < bytes;) {
        size_t at = (before + i) % HALF_BYTES, room = HALF_BYTES - at;
        size_t count = bytes - i < room ? bytes - i : room;
        memcpy(c->ring + at, data + i, count);
        i += count;
    }
}

/* Writes the ring to the file, after a line with the number of bytes that were dropped. */
static void log_end(child_process *c)
{
    size_t total = (size_t)c->result->output_bytes, at = total % HALF_BYTES;
    char line[96];

    if (c->log < 0)
        return;
    if (total > 2 * (size_t)HALF_BYTES) {
        int bytes = snprintf(line, sizeof line, "\n[%zu bytes are left out here]\n",
                             total - 2 * (size_t)HALF_BYTES);
        log_write(c, line, (size_t)bytes);
        log_write(c, c->ring + at, HALF_BYTES - at);
        log_write(c, c->ring, at);
    } else if (total > HALF_BYTES) {
        log_write(c, c->ring, total - HALF_BYTES);
    }
    if (close(c->log) != 0)
        set_log_error(c);
    c->log = -1;
}

static invar_status log_begin(child_process *c)
{
    const char *path = c->request->log;
    size_t bytes = BLOCK_BYTES + (path ? HALF_BYTES : 0);

    INVAR_TRY(INVAR_ALLOC(c->block, bytes, "a child's output"));
    c->ring = c->block + BLOCK_BYTES;
    if (!path)
        return INVAR_OK;
    c->log =
        invar_process_fd_above_stdio(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (c->log < 0)
        set_log_error(c);
    return c->status;
}

/* ---- starting -------------------------------------------------------------------------------- */

/* Returns true if a word of the request's environment names the variable "NAME=...". */
static bool names_variable(const char *word, const char *variable)
{
    size_t length = strcspn(word, "=");

    if (length > 0 && word[length - 1] == '*' && !word[length])
        return strncmp(word, variable, length - 1) == 0;
    return strncmp(word, variable, length) == 0 && variable[length] == '=';
}

/* Returns true if a word from `first` on removes or replaces the variable. */
static bool is_overridden(const char *variable, const char *const *first)
{
    for (; first && *first; first++) {
        if (names_variable(*first, variable))
            return true;
    }
    return false;
}

static invar_status make_environment(child_process *c)
{
    const char *const *extra = c->request->environment;
    size_t count = 2, used = 0;

    for (char **v = environ; v && *v; v++)
        count++;
    for (size_t i = 0; extra && extra[i]; i++)
        count++;
    INVAR_TRY(INVAR_ALLOC(c->environment, count, "a child's environment"));
    for (char **v = environ; v && *v; v++) {
        if (!is_overridden(*v, extra) && !names_variable(INVAR_PROCESS_TAG_CHILD, *v))
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

/* Everything that the child needs between fork and exec. */
typedef struct launch {
    const child_process *c;
    pid_t parent;
    int in, out, report;
} launch;

typedef enum launch_stage { STAGE_STREAMS, STAGE_FOLDER, STAGE_EXEC } launch_stage;

typedef struct launch_error {
    launch_stage where;
    int code; /* errno of the failed step */
} launch_error;

/* Marks all inherited descriptors close-on-exec, except the lock. */
static void close_on_exec_except(int lock)
{
    if (close_range(3, ~0u, CLOSE_RANGE_CLOEXEC) != 0) { // kernels before 5.11
        for (int fd = 3; fd < 65536; fd++)
            (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
    if (lock >= 0)
        (void)fcntl(lock, F_SETFD, 0);
}

static launch_stage prepare_child(const launch *l)
{
    const invar_child_request *request = l->c->request;
    struct sigaction standard;

    (void)setpgid(0, 0);
    memset(&standard, 0, sizeof standard);
    for (int number = 1; number < NSIG; number++) {
        // SIG_IGN drops pending signals, such as a Ctrl-C that came before the child had its own
        // group
        standard.sa_handler = SIG_IGN;
        (void)sigaction(number, &standard, NULL);
        standard.sa_handler = SIG_DFL;
        (void)sigaction(number, &standard, NULL);
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != l->parent) // the parent died before PR_SET_PDEATHSIG was set
        _Exit(127);
    if (dup2(l->in, STDIN_FILENO) < 0 || dup2(l->out, STDOUT_FILENO) < 0 ||
        dup2(l->out, STDERR_FILENO) < 0)
        return STAGE_STREAMS;
    if (request->folder && chdir(request->folder) != 0)
        return STAGE_FOLDER;
    if (request->same_addresses)
        (void)personality((unsigned long)personality(0xffffffff) | ADDR_NO_RANDOMIZE);
    close_on_exec_except(request->lock);
    return STAGE_EXEC;
}

static void exec_program(const launch *l)
{
    launch_error p = {prepare_child(l), errno};
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

/*
 * Forks and waits for exec. *out is the failed step, or has the code 0 if the program runs. Returns
 * errno of fork.
 */
static int launch_child(launch_error *out, child_process *c, const launch *how, int report)
{
    sigset_t all, before;
    ssize_t got;
    int code;

    // no signal handler of this process may run in the child before its signals are reset
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
        *out = (launch_error){STAGE_EXEC, 0};
        return 0;
    }
    while (waitpid(c->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    c->pid = -1;
    return 0;
}

/* Makes one attempt to start the child, with new pipes. Returns errno. */
static int try_launch(launch_error *out, child_process *c)
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
 * Starts the child. exec fails with ETXTBSY while a just written program is still open for writing
 * in a child that another thread has forked but that has not called exec yet; the start is retried
 * for some seconds.
 */
static invar_status start_child(child_process *c)
{
    static const struct timespec nap = {0, 5000000};
    const char *word = c->request->words[0];
    char quote[INVAR_CHILD_WORDS_SIZE - 64];
    launch_error p = {STAGE_STREAMS, 0};
    int code;

    for (int i = 0;; i++) {
        code = try_launch(&p, c);
        if (code || p.code != ETXTBSY || i == 1000)
            break;
        close(c->out);
        c->out = -1;
        nanosleep(&nap, NULL);
    }
    c->begin_ms = invar_process_clock_ms();
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
    errno = code;
    if (p.where == STAGE_FOLDER)
        return invar_path_fail(c->request->folder, "nothing can be run there");
    return INVAR_FAIL(INVAR_E_IO, code, "%s: cannot be started: %s", quote, strerror(code));
}

/* ---- while the child runs -------------------------------------------------------------------- */

/* Reads the available output, with a bound on the number of blocks. */
static void read_output(child_process *c)
{
    for (int i = 0; i < 64 && c->out >= 0; i++) {
        ssize_t got = read(c->out, c->block, BLOCK_BYTES);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (got <= 0) {
            close(c->out);
            c->out = -1;
            c->nap = 1; // closed output usually means that the child is about to end
            return;
        }
        log_add(c, c->block, (size_t)got);
    }
}

static void wait_output(child_process *c, int64_t ms)
{
    struct pollfd fd = {c->out, POLLIN, 0}; // poll ignores a descriptor of -1 and only waits

    (void)poll(&fd, 1, (int)ms);
    read_output(c);
}

/* Sends SIGTERM to the process group and sets the deadline for SIGKILL. */
static void request_end(child_process *c, invar_child_end why, int64_t now)
{
    c->end_requested = true;
    c->result->end = why;
    c->kill_at_ms = now + to_milliseconds(c->request->kill_grace_s);
    kill(-c->pid, SIGTERM);
}

static void check_deadlines(child_process *c)
{
    const invar_child_request *r = c->request;
    int64_t now = invar_process_clock_ms();

    if (c->end_requested || c->status != INVAR_OK) {
        if (now >= c->kill_at_ms && !c->killed) {
            kill(-c->pid, SIGKILL);
            c->killed = true;
        }
        return;
    }
    // a signal handler or another thread may set the flag
    if (r->stop && __atomic_load_n(r->stop, __ATOMIC_RELAXED)) {
        request_end(c, INVAR_CHILD_STOPPED, now);
    } else if (r->timeout > 0 && now - c->begin_ms >= to_milliseconds(r->timeout)) {
        request_end(c, INVAR_CHILD_TIMED_OUT, now);
    } else if (r->should_stop && now - c->last_watch_ms >= POLL_MS) {
        c->last_watch_ms = now;
        if (r->should_stop(r->payload))
            request_end(c, INVAR_CHILD_ENDED_EARLY, now);
    }
}

/* Returns true if the child has ended. It is not reaped, so its process id stays valid. */
static bool has_ended(const child_process *c)
{
    siginfo_t info;

    memset(&info, 0, sizeof info);
    if (waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0)
        return errno != EINTR; // the child does not exist any more
    return info.si_pid == c->pid;
}

/*
 * Reads output until the child ends. A child that was asked to end is finished when all writers of
 * its output have closed it or the grace period is over.
 */
static void pump_output(child_process *c)
{
    c->nap = POLL_MS;
    for (;;) {
        // checked before reading, so that all output of an ended child is read
        bool ended = has_ended(c);

        read_output(c);
        if (ended && (!c->end_requested || c->killed || c->out < 0))
            return;
        check_deadlines(c);
        wait_output(c, c->nap);
        c->nap = c->out >= 0 || 2 * c->nap > POLL_MS ? POLL_MS : 2 * c->nap;
    }
}

/* ---- the end --------------------------------------------------------------------------------- */

static void set_result(child_process *c, int how, const struct rusage *usage)
{
    invar_child_result *result = c->result;

    result->peak_bytes = (int64_t)usage->ru_maxrss * 1024;
    result->killed = c->killed;
    if (c->end_requested) {
        result->code = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
    } else {
        result->end = WIFEXITED(how) ? INVAR_CHILD_EXITED : INVAR_CHILD_SIGNALLED;
        result->code = WIFEXITED(how) ? WEXITSTATUS(how) : WTERMSIG(how);
    }
}

/*
 * Kills the rest of the process group before the child is reaped, while the group id cannot be
 * reused.
 */
static invar_status finish_child(child_process *c)
{
    int64_t until = invar_process_clock_ms() + DRAIN_MS, now;
    struct rusage usage;
    int how = 0;
    pid_t got;

    kill(-c->pid, SIGKILL);
    while (c->out >= 0 && (now = invar_process_clock_ms()) < until)
        wait_output(c, until - now);
    if (c->end_requested || c->killed || c->out >= 0)
        invar_process_tag_sweep(c->mark + sizeof INVAR_PROCESS_TAG_CHILD);
    read_output(c);
    do
        got = wait4(c->pid, &how, 0, &usage);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return INVAR_FAIL(INVAR_E_IO, errno, "a child cannot be waited for: %s", strerror(errno));
    set_result(c, how, &usage);
    return INVAR_OK;
}

static invar_status run_child(child_process *c)
{
    const invar_child_request *r = c->request;

    INVAR_TRY(make_environment(c));
    INVAR_TRY(log_begin(c));
    INVAR_TRY(start_child(c));
    if (c->pid < 0)
        return INVAR_OK;
    pump_output(c);
    INVAR_TRY(finish_child(c));
    c->result->seconds = (double)(invar_process_clock_ms() - c->begin_ms) / 1000;
    if (r->should_stop)
        (void)r->should_stop(r->payload);
    return INVAR_OK;
}

invar_status invar_child_run(invar_child_result *out, const invar_child_request *request)
{
    static _Atomic uint32_t children;
    child_process c = {.request = request, .result = out, .pid = -1, .out = -1, .log = -1};
    char user[INVAR_PROCESS_TAG_SIZE];
    invar_status status;

    memset(out, 0, sizeof *out);
    invar_process_tag_self(user);
    (void)snprintf(c.mark, sizeof c.mark, INVAR_PROCESS_TAG_CHILD "=%s-%08" PRIx32, user,
                   atomic_fetch_add(&children, 1));
    status = run_child(&c);
    log_end(&c);
    if (c.out >= 0)
        close(c.out);
    if (out->end != INVAR_CHILD_MISSING)
        invar_process_last_output_line(out->last_words, sizeof out->last_words, &c.tail);
    invar_free(c.environment);
    invar_free(c.block);
    return status == INVAR_OK ? c.status : status;
}

/* ---- description ----------------------------------------------------------------------------- */

void invar_child_describe(char out[INVAR_CHILD_REASON_SIZE], const invar_child_result *result,
                          double timeout)
{
    char how[64] = "";
    const char *name;

    switch (result->end) {
    case INVAR_CHILD_EXITED: (void)snprintf(how, sizeof how, "exit code %d", result->code); break;
    case INVAR_CHILD_SIGNALLED:
        name = sigabbrev_np(result->code);
        (void)snprintf(how, sizeof how, "killed by signal %d%s%s", result->code,
                       name ? ", SIG" : "", name ? name : "");
        break;
    case INVAR_CHILD_TIMED_OUT:
        (void)snprintf(how, sizeof how, "no end within %g s", timeout);
        break;
    case INVAR_CHILD_STOPPED: (void)snprintf(how, sizeof how, "stopped"); break;
    case INVAR_CHILD_ENDED_EARLY:
        (void)snprintf(how, sizeof how, "ended early, enough was seen");
        break;
    case INVAR_CHILD_MISSING: (void)snprintf(how, sizeof how, "cannot be run"); break;
    }
    (void)snprintf(out, INVAR_CHILD_REASON_SIZE, "%s%s%s", how, result->last_words[0] ? ": " : "",
                   result->last_words);
}
