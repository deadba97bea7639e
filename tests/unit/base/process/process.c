/*
 * process.c - tests of what every part that starts programs needs.
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

/* Bound to one core, nobody has more; ranks divide what there is. */
static void test_base_process__cores_are_those_it_may_use(void **state)
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

static void assert_words(const invar_process_tail *tail, const char *expected)
{
    char words[64];

    invar_process_last_output_line(words, sizeof words, tail);
    assert_string_equal(words, expected);
}

static void test_base_process__last_words_are_the_last_line(void **state)
{
    invar_process_tail tail = {0};
    char block[2 * INVAR_PROCESS_TAIL_BYTES];

    (void)state;
    assert_words(&tail, "");
    invar_process_tail_add(&tail, " \n\r\t\n", 5);
    assert_words(&tail, "");
    invar_process_tail_add(&tail, "first\nsec", 9);
    invar_process_tail_add(&tail, "", 0);
    invar_process_tail_add(&tail, "ond\x1b\n\n ", 7);
    assert_words(&tail, "second?");
    invar_process_tail_add(&tail, "50%\r100%\0\n", 10);
    assert_words(&tail, "100%");

    // more than there is room for, at once and piece by piece
    memset(block, 'x', sizeof block);
    memcpy(block + sizeof block - 4, "\nend", 4);
    invar_process_tail_add(&tail, block, sizeof block);
    assert_int_equal(tail.used, INVAR_PROCESS_TAIL_BYTES);
    assert_words(&tail, "end");
    for (int i = 0; i < 1000; i++)
        invar_process_tail_add(&tail, i == 998 ? "\n" : "y", 1);
    assert_int_equal(tail.used, INVAR_PROCESS_TAIL_BYTES);
    assert_words(&tail, "y");
}

static void test_base_process__pipe_avoids_the_standard_streams(void **state)
{
    int kept = dup(STDIN_FILENO), ends[2];

    (void)state;
    close(STDIN_FILENO); // so that the next descriptor would be 0
    assert_int_equal(invar_process_pipe(ends), 0);
    assert_true(ends[0] > STDERR_FILENO && ends[1] > STDERR_FILENO);
    assert_int_equal(fcntl(STDIN_FILENO, F_GETFD), -1); // nothing is left there
    for (int i = 0; i < 2; i++) {
        assert_int_equal(fcntl(ends[i], F_GETFD), FD_CLOEXEC);
        close(ends[i]);
    }
    assert_int_equal(invar_process_fd_above_stdio(-1), -1);
    if (kept >= 0) {
        assert_int_equal(dup2(kept, STDIN_FILENO), STDIN_FILENO);
        close(kept);
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
        cmocka_unit_test(test_base_process__last_words_are_the_last_line),
        cmocka_unit_test(test_base_process__pipe_avoids_the_standard_streams),
        cmocka_unit_test(test_base_process__clock_does_not_go_back),
        cmocka_unit_test(test_base_process__cores_are_those_it_may_use),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
