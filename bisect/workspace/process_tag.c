/*
 * process_tag.c - identifies processes by pid and start time, and kills those that a dead one left.
 *
 * A tag is "PID-START" in hexadecimal. The start time from /proc/PID/stat distinguishes a process
 * from a later one with the same pid. Children carry the tag of their parent in the variable
 * INVAR_CHILD, which a sweep finds in /proc/PID/environ.
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

#define PASSES                                                                                     \
    200                  /* largest number of sweeps, needed if processes start others while they
                            are being killed */
#define CHUNK_SIZE 16384 /* size of the read buffer for an environment */
#define NEEDLE_SIZE 64   /* largest size of the searched variable */
#define START_FIELD 22

/* ---- tags ------------------------------------------------------------------------------------ */

/*
 * Returns the start time in clock ticks since boot; 0 if the process does not exist or is a zombie.
 */
static uint64_t read_start_time(uint32_t pid)
{
    char path[64], text[1024];
    const char *at;
    ssize_t got;
    int fd;

    (void)snprintf(path, sizeof path, "/proc/%" PRIu32 "/stat", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    if (got <= 0)
        return 0;
    text[got] = '\0';
    at = strrchr(text, ')'); // the process name before the last ")" may contain any character
    if (!at || at[1] != ' ' || at[2] == 'Z' || at[2] == 'X')
        return 0;
    for (int field = 2; at && field < START_FIELD; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

void invar_process_tag_self(char out[INVAR_PROCESS_TAG_SIZE])
{
    uint32_t pid = (uint32_t)getpid();

    (void)snprintf(out, INVAR_PROCESS_TAG_SIZE, "%08" PRIx32 "-%016" PRIx64, pid,
                   read_start_time(pid));
}

static bool is_tag(const char *text)
{
    for (int i = 0; i < INVAR_PROCESS_TAG_SIZE - 1; i++) {
        if (i == 8 ? text[i] != '-' : !text[i] || !strchr("0123456789abcdef", text[i]))
            return false;
    }
    return true;
}

bool invar_process_tag_lives(const char *user)
{
    uint64_t pid, start;

    if (!is_tag(user))
        return false;
    pid = strtoull(user, NULL, 16);
    start = strtoull(user + 9, NULL, 16);
    if (start == 0) // the tag was written without /proc
        return pid > 1 && pid <= INT32_MAX && (kill((pid_t)pid, 0) == 0 || errno == EPERM);
    return read_start_time((uint32_t)pid) == start;
}

/* ---- sweeps ---------------------------------------------------------------------------------- */

/* Returns true if a process has a variable that begins with `needle`, which starts with a NUL. */
static bool has_variable(const char *pid, const char *needle, size_t length)
{
    char path[64], text[NEEDLE_SIZE + CHUNK_SIZE];
    size_t used = 1;
    bool found = false;
    ssize_t got = 1;
    int fd;

    (void)snprintf(path, sizeof path, "/proc/%.16s/environ", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    text[0] = '\0'; // the first variable is preceded by a NUL like all others
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

static int kill_tagged(DIR *processes, const char *needle, size_t length)
{
    struct dirent *entry;
    int killed = 0;

    rewinddir(processes);
    while ((entry = readdir(processes))) {
        long pid = strtol(entry->d_name, NULL, 10);
        if (pid > 1 && pid != (long)getpid() && has_variable(entry->d_name, needle, length))
            killed += kill((pid_t)pid, SIGKILL) == 0;
    }
    return killed;
}

void invar_process_tag_sweep(const char *mark)
{
    static const struct timespec nap = {0, 2000000};
    char needle[NEEDLE_SIZE] = "";
    int length = snprintf(needle + 1, sizeof needle - 1, INVAR_PROCESS_TAG_CHILD "=%s", mark);
    DIR *processes;

    if (!is_tag(mark) || length >= (int)sizeof needle - 1)
        return;
    processes = opendir("/proc");
    for (int i = 0; processes && i < PASSES && kill_tagged(processes, needle, (size_t)length + 1);
         i++)
        nanosleep(&nap, NULL);
    if (processes)
        closedir(processes);
}
