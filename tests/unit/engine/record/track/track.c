/*
 * track.c - tests of the lines that a sink gets: a complete line for each step, or none.
 *
 * The sink is cat, whose output is parsed with jansson. The control is the same ledger with a
 * metric name that is not UTF-8 in one step.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/track/track.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/json/json.h"
#include "engine/config/config.h"
#include "tests/unit/engine/config/config_of.h"
#include "tests/unit/ledger/raw_ledger.h"

enum { STEPS = 6, DAMAGED = 3 };

typedef struct sink_output {
    int lines;            /* number of JSON lines with a step */
    bool has_line[STEPS]; /* steps that have a line */
    size_t metrics;       /* number of metrics of each intact step */
    int n_messages;       /* number of messages to the user */
} sink_output;

static void count_message(void *payload, const char *line)
{
    sink_output *h = payload;

    assert_non_null(strstr(line, "numbers of the ledger: "));
    h->n_messages++;
}

static void parse_line(sink_output *h, const char *line, size_t bytes)
{
    json_t *event = json_loadb(line, bytes, JSON_REJECT_DUPLICATES, NULL);
    int64_t step;

    if (!event)
        fail_msg("no JSON: %.*s", (int)bytes, line);
    if (strcmp(json_string_value(json_object_get(event, "event")), "step") == 0) {
        step = json_integer_value(json_object_get(event, "step"));
        assert_true(step >= 0 && step < STEPS && !h->has_line[step]);
        h->has_line[step] = true;
        h->lines++;
        if (step != DAMAGED) {
            size_t metrics = json_object_size(json_object_get(event, "metrics"));
            assert_true(!h->metrics || h->metrics == metrics);
            h->metrics = metrics;
        }
    }
    json_decref(event);
}

/* Reports the steps of the run in the ledger to the sink "cat" and reads its output. */
static sink_output report_to_sink(const char *path)
{
    sink_output h = {0};
    invar_ledger *ledger = raw_reader(path);
    invar_recipe *recipe;
    invar_track *track;
    char *text;
    size_t bytes;

    (void)unlink(raw_path("sink.log"));
    assert_ok(invar_recipe_new(&recipe, invar_config_schema()));
    assert_ok(invar_recipe_set(recipe, "sink", "cat", "test"));
    assert_ok(invar_track_open(&track, &(invar_track_run){.config = config_of(recipe),
                                                          .ledger = ledger,
                                                          .run = 1,
                                                          .name = "told",
                                                          .uuid = "uuid",
                                                          .folder = raw_folder,
                                                          .last_step = INVAR_TRACK_NOTHING,
                                                          .say = count_message,
                                                          .payload = &h}));
    for (int64_t step = 0; step < STEPS; step++)
        invar_track_report_steps(track, step);
    invar_track_close(track, "done");
    invar_recipe_free(recipe);
    invar_ledger_close(ledger);
    assert_ok(invar_file_read(&text, &bytes, raw_path("sink.log"), 1 << 20));
    for (const char *at = text; *at; at = strchr(at, '\n') + 1)
        parse_line(&h, at, strcspn(at, "\n"));
    invar_free(text);
    return h;
}

static void test_track__a_step_that_cannot_be_read_is_no_half_line(void **state)
{
    const char *path = raw_path("told.db");
    sink_output h;

    (void)state;
    assert_ok(invar_test_ledger_write(path, &(invar_test_ledger){.steps = STEPS}));
    h = report_to_sink(path);
    assert_int_equal(h.lines, STEPS);
    assert_int_equal(h.n_messages, 0);
    assert_true(h.metrics > 2);
    // the name of the step's last metric is not UTF-8: the error comes after all other metrics
    raw_tamper(path, "INSERT INTO series(series, name) VALUES(9999, CAST(x'7a7aff' AS TEXT))");
    raw_tamper(path, "INSERT INTO metric SELECT run, step, seg, 9999, value_bits, value, sum FROM"
                     " metric WHERE step = 3 LIMIT 1");
    h = report_to_sink(path);
    assert_int_equal(h.lines, STEPS - 1);
    assert_false(h.has_line[DAMAGED]);
    assert_int_equal(h.n_messages, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_track__a_step_that_cannot_be_read_is_no_half_line),
    };

    return cmocka_run_group_tests(tests, raw_setup, raw_teardown);
}
