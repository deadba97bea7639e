/*
 * subprocess.c - starts and kills child processes with all their descendants.
 *
 * posix_spawn cannot request a signal on our death (PR_SET_PDEATHSIG), so this uses vfork: until
 * exec the child runs in our memory while this thread waits, with all signals blocked and our
 * handlers reset. The child makes system calls only.
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
#define SWEEPS 100 /* attempts to kill descendants that keep forking */

extern char **environ;

/* ---- starting -------------------------------------------------------------------------------- */

/* Resets handlers. Ignored signals stay ignored, except those that a shell would reset. */
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

/* Runs in the child; returns only after a failure. */
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

/* Returns 0 or errno. */
static int spawn_child(pid_t *pid_out, char *const *words, char *const *variables,
                       const int streams[3])
{
    pid_t parent = getpid(), pid;
    volatile int failure = 0; // the child writes to our memory
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

/* Copies our environment, with the mark first. */
static invar_status mark_environment(char ***out, char *mark)
{
    size_t count = 0;

    while (environ && environ[count])
        count++;
    INVAR_TRY(INVAR_ALLOC(*out, count + 2, "an environment"));
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
    rc = spawn_child(&out->pid, words, variables, streams);
    invar_free(variables);
    if (!rc)
        return INVAR_OK;
    invar_text_quote(quote, sizeof quote, words[0], strlen(words[0]));
    return INVAR_FAIL(INVAR_E_IO, rc, "plug-in %.1000s: cannot start %s: %s", name, quote,
                      strerror(rc));
}

/* ---- write ----------------------------------------------------------------------------------- */

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
           info.si_pid == child->pid; // an error means that it is no child of ours anymore
}

/* Returns true if an environment, read block by block, contains the mark. */
static bool has_mark(int fd, const char *mark)
{
    size_t bytes = strlen(mark) + 1, kept = 0; // including the NUL
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
        return false; // the process belongs to another user or is gone
    marked = has_mark(fd, mark);
    close(fd);
    return marked;
}

/* Kills all processes that carry the mark; returns true if there were any. */
static bool kill_marked(const char *mark)
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

/* The group is killed before the child is reaped, while its process id is still valid. */
void invar_subprocess_kill(invar_subprocess *child)
{
    if (!child->pid)
        return;
    kill(-child->pid, SIGKILL);
    while (waitpid(child->pid, &child->wait_status, 0) < 0 && errno == EINTR)
        continue;
    child->pid = 0;
    for (int i = 0; i < SWEEPS && kill_marked(child->mark); i++)
        continue;
}
