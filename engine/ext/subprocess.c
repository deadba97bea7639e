/*
 * subprocess.c - a child process that does not outlive us; where we end it, nor do its descendants.
 *
 * posix_spawn cannot ask for the signal at our death, so this is vfork: until exec the child runs
 * in our memory while this thread waits, with all signals blocked and no handler of ours in force.
 * It makes system calls only.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE 1 // vfork, closefrom, execvpe, memmem

#include "engine/ext/subprocess.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/process/process.h"
#include "base/text.h"

#include "base/invar_banned.h"

#define MARK "INVAR_PLUGIN_CHILD"
#define SWEEPS 100 /* descendants that keep forking are given up after so many */

extern char **environ;

/* ---- starting -------------------------------------------------------------------------------- */

/* Ignored signals stay so in a program, but for those that a shell would not have left so. */
static void reset_signals(void)
{
    const struct sigaction standard = {.sa_handler = SIG_DFL};
    struct sigaction now;

    for (int number = 1; number < NSIG; number++) {
        bool own = number == SIGPIPE || number == SIGINT || number == SIGQUIT;
        if (sigaction(number, NULL, &now) == 0 && (own || now.sa_handler != SIG_IGN))
            sigaction(number, &standard, NULL);
    }
}

/* In the child: only returns when it fails. */
static int exec_program(char *const *words, char *const *variables, const int streams[3],
                        pid_t parent)
{
    sigset_t none;

    reset_signals();
    if (setpgid(0, 0) != 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        return errno;
    if (getppid() != parent)
        return ESRCH;
    for (int i = 0; i < 3; i++)
        if (dup2(streams[i], i) < 0)
            return errno;
    closefrom(3);
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
    execvpe(words[0], words, variables);
    return errno;
}

/* 0 or errno. */
static int pid_t_spawn(pid_t *pid_out, char *const *words, char *const *variables,
                       const int streams[3])
{
    pid_t parent = getpid(), pid;
    volatile int failure = 0; // the child writes into our memory
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid = vfork();
    if (pid == 0) {
        failure = exec_program(words, variables, streams, parent);
        _exit(127);
    }
    if (pid < 0)
        failure = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (pid > 0 && failure)
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            continue;
    *pid_out = failure ? 0 : pid;
    return failure;
}

/* Our environment, with the mark in front. */
static invar_status mark_environment(char ***out, char *mark)
{
    size_t count = 0;

    while (environ && environ[count])
        count++;
    INVAR_TRY(invar_alloc((void **)out, count + 2, sizeof **out, "an environment"));
    (*out)[0] = mark;
    if (count > 0)
        memcpy(*out + 1, environ, count * sizeof **out);
    (*out)[count + 1] = NULL;
    return INVAR_OK;
}

invar_status invar_subprocess_start(invar_subprocess *out, const char *name, char *const *words,
                                    const int streams[3])
{
    static atomic_int started;
    char quote[INVAR_TEXT_QUOTE_SIZE * 2], **variables = NULL;
    int rc;

    *out = (invar_subprocess){0};
    (void)snprintf(out->mark, sizeof out->mark, MARK "=%d.%d.%" PRId64, (int)getpid(),
                   atomic_fetch_add(&started, 1), invar_process_clock_ms());
    INVAR_TRY(mark_environment(&variables, out->mark));
    rc = pid_t_spawn(&out->pid, words, variables, streams);
    invar_free(variables);
    if (!rc)
        return INVAR_OK;
    invar_text_quote(quote, sizeof quote, words[0], strlen(words[0]));
    return INVAR_FAIL(INVAR_E_IO, rc, "plug-in %.1000s: cannot start %s: %s", name, quote,
                      strerror(rc));
}

/* ---- talking --------------------------------------------------------------------------------- */

ssize_t invar_subprocess_write(int fd, const char *data, size_t bytes)
{
    struct timespec at_once = {0, 0};
    sigset_t pipes, before, pending;
    ssize_t put;
    int code;

    sigemptyset(&pipes);
    sigaddset(&pipes, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &pipes, &before);
    put = write(fd, data, bytes);
    code = errno;
    if (put < 0 && code == EPIPE && !sigismember(&pending, SIGPIPE))
        sigtimedwait(&pipes, NULL, &at_once);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = code;
    return put;
}

/* ---- ending ---------------------------------------------------------------------------------- */

bool invar_subprocess_ended(const invar_subprocess *child)
{
    siginfo_t info = {0};

    return waitid(P_PID, (id_t)child->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
           info.si_pid == child->pid; // the former: no child of ours any more
}

/* True when an environment, read piece by piece, has the mark. */
static bool has_mark(int fd, const char *mark)
{
    size_t bytes = strlen(mark) + 1, kept = 0; // with the NUL after it
    char block[4096];
    ssize_t got;

    INVAR_CHECK(bytes < sizeof block);
    while ((got = read(fd, block + kept, sizeof block - kept)) > 0) {
        size_t there = kept + (size_t)got;
        if (memmem(block, there, mark, bytes))
            return true;
        kept = there < bytes - 1 ? there : bytes - 1;
        memmove(block, block + there - kept, kept);
    }
    return false;
}

static bool is_marked(const char *pid, const char *mark)
{
    char path[64];
    bool marked;
    int fd;

    (void)snprintf(path, sizeof path, "/proc/%.20s/environ", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false; // somebody else's, or gone
    marked = has_mark(fd, mark);
    close(fd);
    return marked;
}

/* Kills all that carry the mark; true when there were some. */
static bool sweep(const char *mark)
{
    DIR *processes = opendir("/proc");
    const struct dirent *entry;
    bool found = false;

    while (processes && (entry = readdir(processes))) {
        long pid = strtol(entry->d_name, NULL, 10);
        if (pid > 0 && is_marked(entry->d_name, mark))
            found = kill((pid_t)pid, SIGKILL) == 0 || found;
    }
    if (processes)
        closedir(processes);
    return found;
}

/* The group is killed before the reaping, while the number is still ours. */
void invar_subprocess_kill(invar_subprocess *child)
{
    if (!child->pid)
        return;
    kill(-child->pid, SIGKILL);
    while (waitpid(child->pid, &child->wait_status, 0) < 0 && errno == EINTR)
        continue;
    child->pid = 0;
    for (int i = 0; i < SWEEPS && sweep(child->mark); i++)
        continue;
}
