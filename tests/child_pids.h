/*
 * child_pids.h - processes that a test starts indirectly: waits for their ids and for their end.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_CHILD_PIDS_H
#define INVAR_TESTS_CHILD_PIDS_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>

#include "tests/support.h"

/* Returns true if the process ends within five seconds; a zombie has ended. */
static inline bool invar_test_wait_exit(pid_t pid)
{
    static const struct timespec nap = {0, 5000000};

    for (int i = 0; i < 1000; i++) {
        char path[64], text[512] = "";
        FILE *file;

        snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
        file = fopen(path, "r");
        if (!file)
            return true;
        if (!fgets(text, sizeof text, file))
            text[0] = '\0';
        fclose(file);
        if (!text[0] || strstr(text, ") Z ") || strstr(text, ") X "))
            return true;
        nanosleep(&nap, NULL);
    }
    return false;
}

/* Waits for a file that a script writes and returns the process id in it. */
static inline pid_t invar_test_read_pid(const char *path)
{
    static const struct timespec nap = {0, 5000000};

    for (int i = 0; i < 2000; i++) {
        FILE *file = fopen(path, "r");
        int pid = 0, got = file ? fscanf(file, "%d\n", &pid) : 0;
        if (file)
            fclose(file);
        if (got == 1 && pid > 1)
            return (pid_t)pid;
        nanosleep(&nap, NULL);
    }
    fail_msg("%s has no number", path);
    return 0;
}

#endif
