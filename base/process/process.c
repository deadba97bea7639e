/*
 * process.c - exit codes, clocks, usable cores, descriptors, and the last output of child
 * processes.
 *
 * Shared by all components that start programs or wait.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE 1 // pipe2, sched_getaffinity

#include "base/process/process.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/text.h"

#include "base/invar_banned.h"

int64_t invar_process_cores(int process, int host)
{
    int64_t online = sysconf(_SC_NPROCESSORS_ONLN) / host, own = online;
    cpu_set_t allowed;

    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        own = CPU_COUNT(&allowed) / process;
    own = own < online ? own : online;
    return own > 1 ? own : 1;
}

int64_t invar_process_clock_ns(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t invar_process_clock_ms(void)
{
    return invar_process_clock_ns(CLOCK_MONOTONIC) / 1000000;
}

int invar_process_fd_above_stdio(int fd)
{
    int moved, code;

    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    code = errno;
    close(fd);
    errno = code;
    return moved;
}

int invar_process_pipe(int ends[2])
{
    int code;

    if (pipe2(ends, O_CLOEXEC) != 0)
        return errno;
    ends[0] = invar_process_fd_above_stdio(ends[0]);
    code = ends[0] < 0 ? errno : 0;
    ends[1] = invar_process_fd_above_stdio(ends[1]);
    return ends[1] < 0 ? errno : code;
}

int invar_process_exit_code(invar_status status)
{
    switch (status) {
    case INVAR_OK: return INVAR_EXIT_OK;
    case INVAR_E_INVALID: return INVAR_EXIT_USAGE;
    case INVAR_E_MISMATCH: return INVAR_EXIT_DIFFERENT;
    case INVAR_E_NODEVICE: return INVAR_EXIT_UNTESTABLE;
    default: return INVAR_EXIT_TROUBLE;
    }
}

int invar_process_stop_code(int number)
{
    return 128 + (number == SIGHUP ? SIGTERM : number);
}

void invar_process_tail_add(invar_process_tail *tail, const char *block, size_t bytes)
{
    const size_t most = INVAR_PROCESS_TAIL_BYTES;
    size_t keep = bytes < most ? bytes : most, room = most - keep;
    size_t old = tail->used < room ? tail->used : room;

    memmove(tail->bytes, tail->bytes + tail->used - old, old);
    memcpy(tail->bytes + old, block + bytes - keep, keep);
    tail->used = old + keep;
}

void invar_process_last_output_line(char *out, size_t size, const invar_process_tail *tail)
{
    size_t end = tail->used, begin;

    while (end > 0 && strchr(" \t\r\n", tail->bytes[end - 1]))
        end--;
    for (begin = end; begin > 0 && !strchr("\r\n", tail->bytes[begin - 1]); begin--)
        continue;
    invar_text_quote(out, size, tail->bytes + begin, end - begin);
}
