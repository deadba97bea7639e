/*
 * lock_holder.h - a child process that holds a lock until it is killed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_LOCK_HOLDER_H
#define INVAR_TESTS_LOCK_HOLDER_H

#include <signal.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support.h"

enum { INVAR_TEST_CHILD_SECONDS = 300 }; // limit for a child whose test has failed

/* Starts a child and returns after `take` has succeeded in it. */
static inline pid_t invar_test_holder_start(bool (*take)(const void *payload), const void *payload)
{
    int ends[2];
    pid_t child;
    char byte;

    assert_int_equal(pipe(ends), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)alarm(INVAR_TEST_CHILD_SECONDS);
        if (!take(payload) || write(ends[1], "", 1) != 1)
            _exit(1);
        for (;;)
            (void)pause();
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    return child;
}

static inline void invar_test_holder_kill(pid_t child)
{
    int status;

    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
}

#endif
