/*
 * trace.c - tests of the trace file in Chrome's JSON format and of the timings for the ledger.
 *
 * The file is parsed with jansson: when complete, and when cut after any line, as a killed run
 * leaves it. A write error (RLIMIT_FSIZE) must not affect the timings.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/trace.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json/json.h"
#include "tests/support.h"

static char path[] = INVAR_TEST_WORK "/trace-XXXXXX";

static void sleep_2_ms(void)
{
    nanosleep(&(struct timespec){0, 2000000}, NULL);
}

/* Two steps: a rollout with two inner phases, and a train phase. */
static void run_steps(invar_trace *trace)
{
    for (int64_t step = 0; step < 2; step++) {
        invar_trace_step(trace, step);
        invar_trace_begin(trace, "rollout");
        invar_trace_begin(trace, "decode");
        sleep_2_ms();
        invar_trace_end(trace);
        invar_trace_begin(trace, "decode");
        sleep_2_ms();
        invar_trace_end(trace);
        invar_trace_end(trace);
        invar_trace_begin(trace, "train \"step\"");
        invar_trace_end(trace);
    }
}

static double number(const json_t *event, const char *key)
{
    const json_t *value = json_object_get(event, key);

    assert_true(json_is_number(value));
    return json_number_value(value);
}

static const char *text_of(const json_t *event, const char *key)
{
    const char *value = json_string_value(json_object_get(event, key));

    assert_non_null(value);
    return value;
}

static void test_engine_trace__is_json_that_perfetto_reads(void **state)
{
    int phases = 0, names = 0;
    double inner = 0, outer = 0, outer_ts = 0;
    invar_trace *trace;
    json_t *events;

    (void)state;
    assert_ok(invar_trace_open(&trace, path));
    run_steps(trace);
    assert_ok(invar_trace_check(trace));
    invar_trace_close(trace);
    assert_ok(invar_json_read(&events, path, 1 << 20));
    assert_true(json_is_array(events));
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *event = json_array_get(events, i);
        const char *ph = text_of(event, "ph"), *name = text_of(event, "name");
        const json_t *args = json_object_get(event, "args");
        assert_true(number(event, "pid") == 1);
        assert_true(number(event, "tid") >= 0);
        names += strcmp(ph, "M") == 0;
        if (strcmp(ph, "X") != 0)
            continue;
        phases++;
        assert_true(number(event, "ts") >= 0 && number(event, "dur") >= 0);
        assert_true(number(args, "step") == (phases > 4));
        if (phases <= 3 && strcmp(name, "decode") == 0) {
            inner += number(event, "dur");
            assert_true(number(event, "dur") >= 2000); // microseconds
        }
        if (phases == 3) {
            assert_string_equal(name, "rollout");
            outer = number(event, "dur");
            outer_ts = number(event, "ts");
        }
        if (phases == 4) {
            assert_string_equal(name, "train \"step\"");
            assert_true(number(event, "ts") >= outer_ts + outer - 0.001);
        }
    }
    assert_true(outer >= inner);
    assert_int_equal(phases, 8);
    assert_int_equal(names, 4); // the process, and one track for each phase name
    json_decref(events);
}

/* The file of a killed run, cut at any line end, is valid JSON with a closing bracket. */
static void test_engine_trace__loads_after_a_cut_at_any_line(void **state)
{
    invar_trace *trace;
    char *text, *prefix;
    size_t bytes;
    int n_lines = 0;

    (void)state;
    assert_ok(invar_trace_open(&trace, path));
    run_steps(trace);
    assert_ok(invar_file_read(&text, &bytes, path, 1 << 20)); // read before the trace is closed
    invar_trace_close(trace);
    assert_ok(INVAR_ALLOC(prefix, bytes + 1, "a part"));
    for (size_t i = 0; i < bytes; i++) {
        json_t *events;
        if (text[i] != '\n')
            continue;
        memcpy(prefix, text, i + 1);
        prefix[i + 1] = ']';
        assert_ok(invar_json_parse(&events, "part", prefix, i + 2));
        assert_int_equal(json_array_size(events), n_lines++);
        json_decref(events);
        assert_int_equal(invar_json_parse(&events, "part", prefix, i + 1), INVAR_E_INVALID);
    }
    assert_int_equal(n_lines, 1 + 1 + 3 + 8); // bracket, process, tracks, phases
    invar_free(prefix);
    invar_free(text);
}

static void test_engine_trace__timings_for_the_ledger(void **state)
{
    invar_trace *trace;
    const invar_ledger_timing *timings;
    struct timespec now;
    size_t count;

    (void)state;
    assert_ok(invar_trace_open(&trace, "")); // without a file
    assert_null(invar_trace_timings(trace, &count));
    assert_int_equal(count, 0);
    run_steps(trace);
    timings = invar_trace_timings(trace, &count);
    assert_int_equal(count, 3); // each phase once, in the order in which they first ended
    assert_string_equal(timings[0].phase, "decode");
    assert_string_equal(timings[1].phase, "rollout");
    assert_string_equal(timings[2].phase, "train \"step\"");
    assert_true(timings[0].duration_ns >= 4 * 2000000);
    assert_true(timings[1].duration_ns >= timings[0].duration_ns);
    assert_true(timings[1].start_ns <= timings[0].start_ns);
    clock_gettime(CLOCK_REALTIME, &now);
    assert_true((int64_t)now.tv_sec - timings[0].start_ns / 1000000000 < 60);
    invar_trace_timings(trace, &count);
    assert_int_equal(count, 0); // timings are returned once
    invar_trace_begin(trace, "save");
    invar_trace_end(trace);
    timings = invar_trace_timings(trace, &count);
    assert_int_equal(count, 1);
    assert_string_equal(timings[0].phase, "save");
    invar_trace_close(trace);
}

static void test_engine_trace__null_is_silent(void **state)
{
    size_t count = 7;

    (void)state;
    run_steps(NULL);
    assert_null(invar_trace_timings(NULL, &count));
    assert_int_equal(count, 0);
    assert_ok(invar_trace_check(NULL));
    invar_trace_close(NULL);
}

static void test_engine_trace__a_full_disk_does_not_stop_the_run(void **state)
{
    invar_trace *trace;
    struct rlimit limit;
    size_t count;

    (void)state;
    assert_fails(invar_trace_open(&trace, INVAR_TEST_WORK "/absent/trace.json"), INVAR_E_IO,
                 "the trace cannot be made");
    assert_null(trace);
    assert_fails(invar_trace_open(&trace, "/dev/full"), INVAR_E_IO, "cannot be written");
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){300, limit.rlim_max}); // maximum file size in bytes
    assert_ok(invar_trace_open(&trace, path));
    run_steps(trace);
    assert_fails(invar_trace_check(trace), INVAR_E_IO, "cannot be written");
    invar_trace_timings(trace, &count);
    assert_int_equal(count, 3); // timings do not depend on the file
    invar_trace_close(trace);
    setrlimit(RLIMIT_FSIZE, &limit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engine_trace__is_json_that_perfetto_reads),
        cmocka_unit_test(test_engine_trace__loads_after_a_cut_at_any_line),
        cmocka_unit_test(test_engine_trace__timings_for_the_ledger),
        cmocka_unit_test(test_engine_trace__null_is_silent),
        cmocka_unit_test(test_engine_trace__a_full_disk_does_not_stop_the_run),
    };
    int fd = mkstemp(path), rc;

    close(fd);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return rc;
}
