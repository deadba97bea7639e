/*
 * schedule_log.c - tests of the log of recorded ticks: text format, damage, and how runs follow it.
 *
 * A log that is read and written again must have the same bytes, a file that is cut anywhere must
 * yield its complete ticks, and each invalid line must be named.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/source/schedule_log.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/files/journal.h"
#include "engine/sample/source/recorded_schedule.h"
#include "tests/support.h"

enum { TICKS = 40, FIRST = 3, GROUPS = 5, LEFT = 7 };

static const char head[] = "{\"invar_schedule\":1,\"run\":\"00000000000000000000000000000000\"}\n";

/* Fills a log with pseudo-random ticks in which the token counts of samples grow. */
static void fill_log(invar_schedule_log *out, int64_t count)
{
    int64_t groups[GROUPS];
    invar_unfinished_sample unfinished[LEFT];

    *out = (invar_schedule_log){0};
    for (int64_t t = 0; t < count; t++) {
        int64_t n = (int64_t)(invar_test_random(1, (uint64_t)t) % (LEFT + 1));

        for (int64_t i = 0; i < GROUPS; i++)
            groups[i] = t * 10 + i * 2;
        for (int64_t i = 0; i < n; i++)
            unfinished[i] = (invar_unfinished_sample){i * 3, t + i};
        assert_ok(invar_schedule_log_add_batch(out, FIRST + t, groups, GROUPS, "a test"));
        assert_ok(invar_schedule_log_add_drawn(out, FIRST + t, unfinished, n, "a test"));
    }
}

static void write_with_sums(invar_json_text *out, const invar_schedule_log *ticks)
{
    static const invar_digest run = {{1}}, uuid = {{2}};
    invar_digest chain = {{0}};
    invar_json_text lines = {0};

    *out = (invar_json_text){0};
    invar_schedule_log_write(&lines, ticks, &run, &uuid);
    assert_ok(lines.status);
    assert_ok(invar_journal_add_sums(out, &chain, lines.data, lines.bytes));
    invar_json_text_release(&lines);
}

/* ---- text ------------------------------------------------------------------------------------ */

static void test_schedule_log__read_back(void **state)
{
    invar_schedule_log ticks, again = {0};
    invar_json_text first, second;
    invar_schedule_log_head found;

    (void)state;
    fill_log(&ticks, TICKS);
    write_with_sums(&first, &ticks);
    assert_ok(invar_schedule_log_read_file(&again, &found, first.data, first.bytes, "a test"));
    assert_true(found.found && found.checked && found.run.bytes[0] == 1 &&
                found.uuid.bytes[0] == 2);
    assert_int_equal(again.first, FIRST);
    assert_int_equal(invar_schedule_log_end(&again), FIRST + TICKS);
    write_with_sums(&second, &again);
    assert_int_equal(first.bytes, second.bytes);
    assert_memory_equal(first.data, second.data, first.bytes);
    assert_null(invar_schedule_log_find(&again, FIRST - 1));
    assert_null(invar_schedule_log_find(&again, FIRST + TICKS));
    invar_schedule_log_release(&again);
    invar_schedule_log_release(&ticks);
    invar_json_text_release(&first);
    invar_json_text_release(&second);
}

/* A file that is cut anywhere yields the ticks whose lines are complete. */
static void test_schedule_log__cut_anywhere(void **state)
{
    invar_schedule_log ticks;
    invar_json_text text;
    size_t lines = 0;

    (void)state;
    fill_log(&ticks, 4);
    write_with_sums(&text, &ticks);
    for (size_t cut = 0; cut <= text.bytes; cut++) {
        invar_schedule_log partial = {0};
        invar_schedule_log_head found;

        lines += cut > 0 && text.data[cut - 1] == '\n';
        assert_ok(invar_schedule_log_read_file(&partial, &found, text.data, cut, "a test"));
        assert_int_equal(found.found, lines > 0);
        assert_int_equal(partial.count, lines / 2);
        invar_schedule_log_release(&partial);
    }
    invar_json_text_release(&text);
    invar_schedule_log_release(&ticks);
}

static void test_schedule_log__refuses_invalid_lines(void **state)
{
    static const struct {
        const char *lines, *message;
    } wrong[] = {
        {"{\"tick\":0,\"drawn\":[]}\n", "expected \"batch\" of tick 0"},
        {"{\"tick\":0,\"batch\":[1]}\n{\"tick\":0,\"batch\":[1]}\n",
         "expected \"drawn\" of tick 0"},
        {"{\"tick\":0,\"batch\":[1]}\n{\"tick\":1,\"drawn\":[]}\n", "expected \"drawn\" of tick 0"},
        {"{\"tick\":0,\"batch\":[1]}\n{\"tick\":0,\"drawn\":[]}\n{\"tick\":2,\"batch\":[2]}\n",
         "expected \"batch\" of tick 1"},
        {"{\"tick\":-1,\"batch\":[1]}\n", "\"tick\""},
        {"{\"tick\":0,\"batch\":[2,1]}\n", "group 1 of tick 0 is out of order"},
        {"{\"tick\":0,\"batch\":[2,2]}\n", "group 2 of tick 0 is out of order"},
        {"{\"tick\":0,\"batch\":[-1]}\n", "group -1 of tick 0 is out of order"},
        {"{\"tick\":0,\"batch\":[1.0]}\n", "item 0 of \"batch\" is invalid"},
        {"{\"tick\":0,\"batch\":7}\n", "expected a list"},
        {"{\"tick\":0}\n", "expected a list"},
        {"{\"tick\":0,\"batch\":[1],\"drawn\":[]}\n", "expected a list"},
        {"{\"tick\":0,\"batch\":[1]}\n{\"tick\":0,\"drawn\":[[1]]}\n",
         "item 0 of \"drawn\" is invalid"},
        {"{\"tick\":0,\"batch\":[1]}\n{\"tick\":0,\"drawn\":[1]}\n",
         "item 0 of \"drawn\" is invalid"},
        {"{\"tick\":0,\"batch\":[1]}\n{\"tick\":0,\"drawn\":[[1,-1]]}\n", "has -1 tokens"},
        {"{\"tick\":0,\"batch\":[1]}\n{\"tick\":0,\"drawn\":[[2,1],[1,1]]}\n",
         "sample 1 of tick 0 is out of order"},
        {"{\"tick\":0,\"batch\":[1]}\n{\"tick\":0,\"drawn\":[[5,3]]}\n{\"tick\":1,\"batch\":[2]}\n"
         "{\"tick\":1,\"drawn\":[[4,0],[5,2]]}\n",
         "sample 5 has 2 tokens after tick 1, and had 3 before"},
        {"nonsense\n", "is not JSON"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        invar_schedule_log ticks = {0};
        invar_schedule_log_head found;
        char text[1024];

        (void)snprintf(text, sizeof text, "%s%s", head, wrong[i].lines);
        assert_int_equal(invar_schedule_log_read_file(&ticks, &found, text, strlen(text), "a test"),
                         INVAR_E_CORRUPT);
        assert_non_null(strstr(invar_error_last()->message, wrong[i].message));
        assert_non_null(strstr(invar_error_last()->message, "a test:"));
        invar_error_clear();
        invar_schedule_log_release(&ticks);
    }
}

static void test_schedule_log__trim(void **state)
{
    invar_schedule_log ticks;

    (void)state;
    fill_log(&ticks, 6);
    invar_schedule_log_trim(&ticks, FIRST);
    assert_int_equal(ticks.count, 6);
    invar_schedule_log_trim(&ticks, FIRST + 4);
    assert_int_equal(ticks.count, 2);
    assert_null(invar_schedule_log_find(&ticks, FIRST + 3));
    assert_int_equal(invar_schedule_log_find(&ticks, FIRST + 4)->groups[1], 42);
    assert_int_equal(invar_schedule_log_end(&ticks), FIRST + 6);
    invar_schedule_log_trim(&ticks, FIRST + 6); // no tick has this number: no effect
    assert_int_equal(ticks.count, 2);
    invar_schedule_log_release(&ticks);
}

/* ---- recorded schedules ---------------------------------------------------------------------- */

/* A ledger has, for each rollout, its batch and the token counts of the tick before it. */
static void test_schedule_log__from_a_ledger(void **state)
{
    invar_recorded_schedule schedule = {0};
    invar_schedule_log complete = {0}, partial = {0};

    (void)state;
    fill_log(&schedule.own_log, 6);
    for (int64_t t = FIRST; t < FIRST + 6; t++) {
        invar_json_text text = {0};

        invar_recorded_schedule_write(&text, &schedule, t);
        assert_ok(invar_schedule_log_read(&complete, text.data, text.bytes, "a ledger"));
        if (t > FIRST + 2) // like a resume from a checkpoint
            assert_ok(invar_schedule_log_read(&partial, text.data, text.bytes, "a ledger"));
        invar_json_text_release(&text);
    }
    assert_int_equal(invar_schedule_log_end(&complete),
                     FIRST + 5); // the last tick lacks its token counts
    assert_false(invar_schedule_log_find(&partial, FIRST + 2)->has_batch);
    assert_true(invar_schedule_log_find(&partial, FIRST + 2)->has_unfinished);
    assert_true(invar_schedule_log_find(&partial, FIRST + 3)->has_batch);
    invar_schedule_log_release(&complete);
    invar_schedule_log_release(&partial);
    invar_recorded_schedule_release(&schedule);
}

static void test_schedule_log__own_log_then_given_log_then_clock(void **state)
{
    const int64_t group = 7;
    invar_recorded_schedule schedule = {.origin = "a record"};
    invar_schedule_tick tick;

    (void)state;
    fill_log(&schedule.given_log, 3);
    assert_ok(invar_recorded_schedule_batch(&schedule, FIRST, &group, 1));
    assert_ok(invar_recorded_schedule_plan(&tick, &schedule, FIRST));
    assert_true(tick.has_batch && tick.n_groups == 1 && tick.groups[0] == 7 && tick.has_unfinished);
    assert_ok(invar_recorded_schedule_plan(&tick, &schedule, FIRST + 1));
    assert_true(tick.has_batch && tick.n_groups == GROUPS && tick.has_unfinished);
    assert_fails(invar_recorded_schedule_plan(&tick, &schedule, FIRST + 3), INVAR_E_NOTFOUND,
                 "a record: the recorded schedule ends before tick 6");
    schedule.origin = NULL;
    assert_ok(invar_recorded_schedule_plan(&tick, &schedule, FIRST + 3));
    assert_true(!tick.has_batch && !tick.has_unfinished);
    invar_recorded_schedule_release(&schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedule_log__read_back),
        cmocka_unit_test(test_schedule_log__cut_anywhere),
        cmocka_unit_test(test_schedule_log__refuses_invalid_lines),
        cmocka_unit_test(test_schedule_log__trim),
        cmocka_unit_test(test_schedule_log__from_a_ledger),
        cmocka_unit_test(test_schedule_log__own_log_then_given_log_then_clock),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
