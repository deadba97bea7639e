/*
 * process_tag.c - a process by number and start, so that what it left can be told from what is in
 * use.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE 1 // memmem

#include "bisect/workspace/process_tag.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/invar_banned.h"

#define PASSES 200  /* of a sweep; a few are enough, unless they start others faster than we look */
#define PIECE 16384 /* of an environment */
#define NEEDLE 64   /* of what is looked for in it, at most */
#define START_FIELD 22

/* ---- who lives ------------------------------------------------------------------------------- */

static ssize_t read_proc(char *out, size_t size, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got;

    if (fd < 0)
        return -1;
    got = read(fd, out, size - 1);
    close(fd);
    out[got > 0 ? got : 0] = '\0';
    return got;
}

/* When the process began, in ticks since the machine did; 0: it is not there, or dead. */
static uint64_t start_of(uint32_t pid)
{
    char path[64], text[1024];
    const char *at;

    (void)snprintf(path, sizeof path, "/proc/%" PRIu32 "/stat", pid);
    if (read_proc(text, sizeof text, path) <= 0)
        return 0;
    at = strrchr(text, ')'); // the name before it may hold anything
    if (!at || at[1] != ' ' || at[2] == 'Z' || at[2] == 'X')
        return 0;
    for (int field = 2; at && field < START_FIELD; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

void invar_user_self(char out[INVAR_USER_SIZE])
{
    uint32_t pid = (uint32_t)getpid();

    (void)snprintf(out, INVAR_USER_SIZE, "%08" PRIx32 "-%016" PRIx64, pid, start_of(pid));
}

static bool is_user(const char *text)
{
    for (int i = 0; i < INVAR_USER_SIZE - 1; i++) {
        if (i == 8 ? text[i] != '-' : !text[i] || !strchr("0123456789abcdef", text[i]))
            return false;
    }
    return true;
}

bool invar_user_lives(const char *user)
{
    uint64_t pid, start;

    if (!is_user(user))
        return false;
    pid = strtoull(user, NULL, 16);
    start = strtoull(user + 9, NULL, 16);
    if (start == 0) // no /proc when it was written
        return pid > 1 && pid <= INT32_MAX && (kill((pid_t)pid, 0) == 0 || errno == EPERM);
    return start_of((uint32_t)pid) == start;
}

/* ---- what it left ---------------------------------------------------------------------------- */

/* Whether the environment has a variable that begins with `needle`, which starts with a NUL. */
static bool carries(const char *pid, const char *needle, size_t length)
{
    char path[64], text[NEEDLE + PIECE];
    size_t used = 1;
    bool found = false;
    ssize_t got = 1;
    int fd;

    (void)snprintf(path, sizeof path, "/proc/%.16s/environ", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    text[0] = '\0'; // as if a variable had ended before the first
    while (!found && got > 0) {
        got = read(fd, text + used, sizeof text - used);
        used += got > 0 ? (size_t)got : 0;
        found = memmem(text, used, needle, length) != NULL;
        if (used > length) {
            memmove(text, text + used - length, length);
            used = length;
        }
    }
    close(fd);
    return found;
}

static int kill_all(DIR *processes, const char *needle, size_t length)
{
    struct dirent *entry;
    int killed = 0;

    rewinddir(processes);
    while ((entry = readdir(processes))) {
        long pid = strtol(entry->d_name, NULL, 10);
        if (pid > 1 && pid != (long)getpid() && carries(entry->d_name, needle, length))
            killed += kill((pid_t)pid, SIGKILL) == 0;
    }
    return killed;
}

void invar_user_sweep(const char *mark)
{
    static const struct timespec nap = {0, 2000000};
    char needle[NEEDLE] = "";
    int length = snprintf(needle + 1, sizeof needle - 1, INVAR_USER_CHILD "=%s", mark);
    DIR *processes;

    if (!is_user(mark) || length >= (int)sizeof needle - 1)
        return;
    processes = opendir("/proc");
    for (int i = 0; processes && i < PASSES && kill_all(processes, needle, (size_t)length + 1); i++)
        nanosleep(&nap, NULL);
    if (processes)
        closedir(processes);
}
