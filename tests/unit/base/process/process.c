/*
 * process.c - tests of helpers for child processes: cores, output tail, pipes, monotonic clock.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE 1 // sched_setaffinity

#include "base/process/process.h"

#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "tests/support.h"

/* Ranks divide the cores of the CPU affinity mask, at least one each. */
static void test_base_process__cores_follow_the_affinity_mask(void **state)
{
    int64_t all = invar_process_cores(1, 1);
    cpu_set_t before, one;

    (void)state;
    assert_int_equal(invar_process_cores(1, 1 << 20), 1);
    assert_int_equal(invar_process_cores(1 << 20, 1), 1);
    assert_true(all >= 1 && invar_process_cores(2, 2) <= (all > 1 ? all / 2 : 1));
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_int_equal(CPU_COUNT(&before), all);
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &before))
            CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(invar_process_cores(1, 1), 1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_int_equal(invar_process_cores(1, 1), all);
}

static void assert_last_line(const invar_process_tail *tail, const char *expected)
{
    char last_line[64];

    invar_process_last_output_line(last_line, sizeof last_line, tail);
    assert_string_equal(last_line, expected);
}

static void test_base_process__tail_gives_the_last_line(void **state)
{
    invar_process_tail tail = {0};
    char block[2 * INVAR_PROCESS_TAIL_BYTES];

    (void)state;
    assert_last_line(&tail, "");
    invar_process_tail_add(&tail, " \n\r\t\n", 5);
    assert_last_line(&tail, "");
    invar_process_tail_add(&tail, "first\nsec", 9);
    invar_process_tail_add(&tail, "", 0);
    invar_process_tail_add(&tail, "ond\x1b\n\n ", 7);
    assert_last_line(&tail, "second?");
    invar_process_tail_add(&tail, "50%\r100%\0\n", 10);
    assert_last_line(&tail, "100%");

    // more than the tail holds, in one call and in many
    memset(block, 'x', sizeof block);
    memcpy(block + sizeof block - 4, "\nend", 4);
    invar_process_tail_add(&tail, block, sizeof block);
    assert_int_equal(tail.used, INVAR_PROCESS_TAIL_BYTES);
    assert_last_line(&tail, "end");
    for (int i = 0; i < 1000; i++)
        invar_process_tail_add(&tail, i == 998 ? "\n" : "y", 1);
    assert_int_equal(tail.used, INVAR_PROCESS_TAIL_BYTES);
    assert_last_line(&tail, "y");
}

static void test_base_process__pipe_avoids_the_standard_streams(void **state)
{
    int saved_stdin = dup(STDIN_FILENO), pipe_fds[2];

    (void)state;
    close(STDIN_FILENO); // the next descriptor of the system is 0
    assert_int_equal(invar_process_pipe(pipe_fds), 0);
    assert_true(pipe_fds[0] > STDERR_FILENO && pipe_fds[1] > STDERR_FILENO);
    assert_int_equal(fcntl(STDIN_FILENO, F_GETFD), -1); // descriptor 0 is still closed
    for (int i = 0; i < 2; i++) {
        assert_int_equal(fcntl(pipe_fds[i], F_GETFD), FD_CLOEXEC);
        close(pipe_fds[i]);
    }
    assert_int_equal(invar_process_fd_above_stdio(-1), -1);
    if (saved_stdin >= 0) {
        assert_int_equal(dup2(saved_stdin, STDIN_FILENO), STDIN_FILENO);
        close(saved_stdin);
    }
}

static void test_base_process__clock_does_not_go_back(void **state)
{
    int64_t before = invar_process_clock_ms();

    (void)state;
    for (int i = 0; i < 1000; i++) {
        int64_t now = invar_process_clock_ms();
        assert_true(now >= before);
        before = now;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_process__tail_gives_the_last_line),
        cmocka_unit_test(test_base_process__pipe_avoids_the_standard_streams),
        cmocka_unit_test(test_base_process__clock_does_not_go_back),
        cmocka_unit_test(test_base_process__cores_follow_the_affinity_mask),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
